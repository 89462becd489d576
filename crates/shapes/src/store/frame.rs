//! Frames: the encoding of records in the WAL and the catalog.
//!
//! A frame is the payload's length, the CRC-32C of the length and the payload, and the payload. The
//! length and the checksum are little-endian `u32`s. A length of 0 ends a file.
//!
//! Invariant: [`read_frame`] returns only records that were written completely. It returns `None`
//! for a frame that is not whole, and never panics.
//! Enforced by: the checksum covers the length and the payload.
//! A whole frame whose payload this version can't decode is an [`UnknownRecord`]. It is not the end
//! of the file, because a newer version wrote it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::record::{CommitRecord, HoldChange, MessageRange, Record, ShapeTouch, TransactionPart};

/// Bytes of a frame before its payload: length and checksum.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;

/// Maximum payload of a record, in bytes. A larger length is not a record.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1 << 30;

// Kinds of records: the first byte of a payload.
const PART: u8 = 1;
const COMMIT: u8 = 2;
const NOTE: u8 = 3;
/// A commit that changes holds. Not in directories of format 1.
const COMMIT_WITH_HOLDS: u8 = 4;

/// Appends the record's frame to `out`, without the text that ends it. Returns the text, which the
/// caller must write after `out`.
pub(crate) fn write_frame(record: &Record, out: &mut Vec<u8>) -> Bytes {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
    let text = match record {
        Record::Part(changes) => {
            out.push(PART);
            put_changes(out, changes);
            changes.text.clone()
        }
        Record::Commit(changes, commit) => {
            out.push(if commit.holds.is_empty() { COMMIT } else { COMMIT_WITH_HOLDS });
            put_varint(out, commit.end);
            put_varint(out, commit.earlier.len() as u64);
            commit.earlier.iter().for_each(|shape| put_varint(out, *shape));
            if !commit.holds.is_empty() {
                put_varint(out, commit.holds.len() as u64);
                commit.holds.iter().for_each(|hold| {
                    put_varint(out, hold.shape);
                    put_varint(out, hold.from);
                });
            }
            put_changes(out, changes);
            changes.text.clone()
        }
        Record::Note(note, bytes) => {
            out.push(NOTE);
            let note = serde_json::to_vec(note).expect("notes are plain data");
            put_varint(out, note.len() as u64);
            out.extend_from_slice(&note);
            bytes.clone()
        }
    };
    let payload = out.len() - start - FRAME_HEADER_BYTES + text.len();
    let length = u32::try_from(payload).ok().filter(|length| *length as usize <= MAX_PAYLOAD_BYTES);
    let length = length.expect("a text is below MAX_TEXT, and the other fields are small");
    let length = length.to_le_bytes();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), &out[start + FRAME_HEADER_BYTES..]);
    let checksum = crc32c::crc32c_append(checksum, &text).to_le_bytes();
    out[start..start + 4].copy_from_slice(&length);
    out[start + 4..start + FRAME_HEADER_BYTES].copy_from_slice(&checksum);
    text
}

/// Returns the length of the frame at the start of `bytes`, header included, as the header states.
/// Returns the length of a header if `bytes` is shorter than a length field, or if the stated
/// length is above [`MAX_PAYLOAD_BYTES`].
pub(crate) fn framed_length(bytes: &[u8]) -> usize {
    let length = bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    FRAME_HEADER_BYTES + if length <= MAX_PAYLOAD_BYTES { length } else { 0 }
}

/// A whole record that this version can't decode. Describes its kind, never its values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownRecord(String);

impl UnknownRecord {
    /// Describes the kind of a payload that can't be decoded.
    fn describe(payload: &Bytes) -> Self {
        UnknownRecord(match payload.first() {
            Some(&NOTE) => match note_name(payload) {
                Some(name) => format!("a note {name:?}"),
                None => "a note without a name".to_owned(),
            },
            Some(&(PART | COMMIT | COMMIT_WITH_HOLDS)) => "a transaction in another form".to_owned(),
            Some(kind) => format!("a record of kind {kind}"),
            None => "a record without a kind".to_owned(),
        })
    }
}

impl fmt::Display for UnknownRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the name of the note in a payload.
fn note_name(payload: &Bytes) -> Option<String> {
    let mut cursor = PayloadCursor { bytes: payload.slice(1..) };
    let length = usize::try_from(cursor.varint()?).ok()?;
    let note: BTreeMap<String, IgnoredAny> = serde_json::from_slice(cursor.bytes.get(..length)?).ok()?;
    note.into_keys().next().map(|name| name.chars().take(64).collect())
}

/// Returns the record at the start of `bytes`, and its length with the frame. Returns `None` if
/// there is no whole record.
///
/// Fails if there is a whole record that this version can't decode.
pub(crate) fn read_frame(bytes: &Bytes) -> Result<Option<(Record, usize)>, UnknownRecord> {
    let Some(payload) = whole_payload(bytes) else { return Ok(None) };
    let length = FRAME_HEADER_BYTES + payload.len();
    match decode(PayloadCursor { bytes: payload.clone() }) {
        Some(record) => Ok(Some((record, length))),
        None => Err(UnknownRecord::describe(&payload)),
    }
}

/// Returns the payload of the frame at the start of `bytes`, or `None` if the frame is not whole.
fn whole_payload(bytes: &Bytes) -> Option<Bytes> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let checksum = u32::from_le_bytes(bytes.get(4..FRAME_HEADER_BYTES)?.try_into().ok()?);
    if length == 0 || length > MAX_PAYLOAD_BYTES {
        return None;
    }
    let payload = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length)?;
    let is_whole = crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), payload) == checksum;
    is_whole.then(|| bytes.slice(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length))
}

/// Decodes a payload. Returns `None` if this version can't decode it.
fn decode(mut cursor: PayloadCursor) -> Option<Record> {
    match cursor.byte()? {
        PART => cursor.changes().map(Record::Part),
        kind @ (COMMIT | COMMIT_WITH_HOLDS) => {
            let end = cursor.varint()?;
            let earlier = cursor.list(PayloadCursor::varint)?;
            let hold = |cursor: &mut PayloadCursor| {
                Some(HoldChange { shape: cursor.varint()?, from: cursor.varint()? })
            };
            let holds = if kind == COMMIT { Vec::new() } else { cursor.list(hold)? };
            Some(Record::Commit(cursor.changes()?, CommitRecord { end, earlier, holds }))
        }
        NOTE => {
            let length = usize::try_from(cursor.varint()?).ok()?;
            let note = serde_json::from_slice(cursor.bytes.get(..length)?).ok()?;
            Some(Record::Note(note, cursor.bytes.slice(length..)))
        }
        _ => None,
    }
}

/// Appends the fields of a part, without its text.
fn put_changes(out: &mut Vec<u8>, changes: &TransactionPart) {
    put_varint(out, changes.lsn);
    out.push(u8::from(changes.is_first));
    put_varint(out, changes.touches.len() as u64);
    for touch in &changes.touches {
        put_varint(out, touch.shape);
        put_varint(out, touch.ranges.len() as u64);
        for MessageRange { from, to, last_op } in &touch.ranges {
            put_varint(out, u64::from(*from));
            put_varint(out, u64::from(to - from));
            put_varint(out, *last_op);
        }
    }
}

/// Appends a variable-length integer: seven bits per byte, the lowest first. All bytes but the last
/// have the eighth bit set.
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Decoder of a payload. Each method returns `None` if the bytes are no such value.
struct PayloadCursor {
    bytes: Bytes,
}

impl PayloadCursor {
    fn byte(&mut self) -> Option<u8> {
        let first = *self.bytes.first()?;
        let _read = self.bytes.split_to(1);
        Some(first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for (at, byte) in self.bytes.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
            if byte & 0x80 == 0 {
                let _read = self.bytes.split_to(at + 1);
                return Some(number);
            }
        }
        None
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.varint()?).ok()?;
        // An item takes at least one byte, so a corrupt count can't allocate more than the record's
        // size.
        let mut items = Vec::with_capacity(count.min(self.bytes.len()));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn changes(&mut self) -> Option<TransactionPart> {
        let lsn = self.varint()?;
        let is_first = match self.byte()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let touches = self.list(|cursor| {
            let shape = cursor.varint()?;
            let ranges = cursor.list(|cursor| {
                let from = u32::try_from(cursor.varint()?).ok()?;
                let to = from.checked_add(u32::try_from(cursor.varint()?).ok()?)?;
                Some(MessageRange { from, to, last_op: cursor.varint()? })
            })?;
            Some(ShapeTouch { shape, ranges })
        })?;
        let text = self.bytes.clone();
        let within = |range: &MessageRange| range.to as usize <= text.len();
        let fits = touches.iter().all(|touch| touch.ranges.iter().all(within));
        fits.then_some(TransactionPart { lsn, is_first, touches, text })
    }
}

/// Returns a frame around any payload, as a newer version may write.
#[cfg(test)]
pub(crate) fn framed_payload(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), payload).to_le_bytes();
    [&length, &checksum, payload].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::record::Note;

    fn framed(records: &[Record]) -> Bytes {
        let mut out = Vec::new();
        for record in records {
            let text = write_frame(record, &mut out);
            out.extend_from_slice(&text);
        }
        out.into()
    }

    fn some_records() -> Vec<Record> {
        let ranges = vec![
            MessageRange { from: 0, to: 3, last_op: 0 },
            MessageRange { from: 5, to: 9, last_op: 1 << 33 },
        ];
        let touches = vec![ShapeTouch { shape: 300, ranges }];
        let changes = TransactionPart {
            lsn: u64::MAX,
            is_first: true,
            touches,
            text: Bytes::from_static(b"abcdefghi"),
        };
        vec![
            Record::Part(changes.clone()),
            Record::Commit(
                changes.clone(),
                CommitRecord { end: 7, earlier: vec![1, 1 << 40], holds: Vec::new() },
            ),
            Record::Commit(
                changes,
                CommitRecord {
                    end: 0,
                    earlier: Vec::new(),
                    holds: vec![
                        HoldChange { shape: 3, from: 1 << 50 },
                        HoldChange { shape: 1 << 40, from: 0 },
                    ],
                },
            ),
            Record::Note(Note::Delete { id: 5 }, Bytes::new()),
            Record::Note(Note::Advance { lsn: 5 }, Bytes::from_static(b"more")),
        ]
    }

    #[test]
    fn records_are_read_back_as_they_were_written() {
        let records = some_records();
        let mut bytes = framed(&records);
        for record in records {
            let (read, length) = read_frame(&bytes).unwrap().expect("a record");
            assert_eq!(read, record);
            assert_eq!(super::framed_length(&bytes), length);
            let _read = bytes.split_to(length);
        }
        assert_eq!(read_frame(&bytes), Ok(None));
        assert_eq!(read_frame(&Bytes::from_static(&[0; 64])), Ok(None));
    }

    #[test]
    fn a_whole_record_of_a_newer_version_is_an_error_that_names_its_kind() {
        let note = |json: &str| [&[NOTE, json.len() as u8], json.as_bytes(), b"bytes"].concat();
        for (payload, expected) in [
            (vec![9, 1, 2], "a record of kind 9"),
            (note(r#"{"merge":{"secret":"value"}}"#), r#"a note "merge""#),
            (note(r#"{"advance":{"lsn":"a text"}}"#), r#"a note "advance""#),
            (note(r#"{"delete":{}}"#), r#"a note "delete""#),
            (note("[]"), "a note without a name"),
            (vec![NOTE, 200], "a note without a name"),
            (vec![PART, 1, 2, 0], "a transaction in another form"),
            (vec![COMMIT], "a transaction in another form"),
            (vec![COMMIT_WITH_HOLDS, 0, 0, 1], "a transaction in another form"),
        ] {
            let mut bytes = framed_payload(&payload);
            assert_eq!(read_frame(&bytes.clone().into()), Err(UnknownRecord(expected.to_owned())));
            bytes.truncate(bytes.len() - 1);
            assert_eq!(read_frame(&bytes.into()), Ok(None), "it isn't whole: {expected}");
        }
        // Unknown fields of a known note are ignored.
        let more = framed_payload(&note(r#"{"advance":{"lsn":5,"more":[1]}}"#));
        assert!(matches!(read_frame(&more.into()), Ok(Some((Record::Note(Note::Advance { lsn: 5 }, _), _)))));
    }

    proptest! {
        #[test]
        fn a_damaged_record_is_not_read(at in 0_usize..200, flip in 1_u8..) {
            for record in some_records() {
                let mut bytes = framed(&[record]).to_vec();
                let at = at % bytes.len();
                bytes[at] ^= flip;
                prop_assert_eq!(read_frame(&bytes.into()), Ok(None));
            }
        }

        #[test]
        fn random_bytes_are_never_a_record(noise: Vec<u8>) {
            prop_assert_eq!(read_frame(&noise.clone().into()), Ok(None));
            // Decoding must not panic even if the checksum matches.
            let noise = Bytes::from(noise);
            if decode(PayloadCursor { bytes: noise.clone() }).is_none() {
                let _anything = UnknownRecord::describe(&noise);
            }
        }
    }
}
