//! What is written to the write-ahead log and the catalog: records, each in a frame that shows whether it is whole.
//!
//! Invariant: what [`next`] returns was written by [`frame`], whole; whatever else lies in a file, it returns nothing and never panics.
//! Kept by: a frame is its payload's length, the CRC-32C of both, and the payload. A length of 0 ends a file.
//! A whole frame whose payload this version doesn't understand is [`UnknownRecord`], never the end: a
//! newer version wrote it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::definition::{CatalogState, ShapeOptions, TableSchema};

/// Length and checksum.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;

/// A record can't be larger: whatever says so isn't one.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// Nor can its text, so that what else is in it has room.
pub(crate) const MAX_TEXT: usize = MAX_PAYLOAD_BYTES - (128 << 20);

/// One step in the store's history.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// A part of a transaction; more comes.
    Part(TransactionPart),
    /// The last part of a transaction: it is committed.
    Commit(TransactionPart, CommitRecord),
    /// All else, with bytes that belong to it.
    Note(Note, Bytes),
}

/// What a transaction does to shapes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TransactionPart {
    /// The commit's position.
    pub(crate) lsn: u64,
    /// Whether nothing of the transaction comes before: if something does, it is from a stream that was cut, and comes again.
    pub(crate) is_first: bool,
    /// Which messages of `text` belong to which shape.
    pub(crate) touches: Vec<ShapeTouch>,
    /// Messages, each once, each with [`MORE`](crate::encode::MORE) at its end.
    pub(crate) text: Bytes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShapeTouch {
    pub(crate) shape: u64,
    pub(crate) ranges: Vec<MessageRange>,
}

/// Messages that follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MessageRange {
    /// The first byte of the text.
    pub(crate) from: u32,
    /// The one after the last.
    pub(crate) to: u32,
    /// The number of its last change.
    pub(crate) last_op: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    /// The position after the transaction; 0: it was told before, and only some shape took it late.
    pub(crate) end: u64,
    /// The shapes that earlier parts touched, and this one doesn't.
    pub(crate) earlier: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    /// Nothing of interest up to here.
    Advance { lsn: u64 },
    /// A table that shapes after it refer to. Its state is the one as of which all shapes of its
    /// oid are right.
    Table { id: u64, table: Box<TableSchema> },
    /// A shape begins; its snapshot is yet to come.
    Create { id: u64, handle: String, table: u64, choice: ShapeOptions },
    /// Its snapshot is complete. The bytes are the snapshot's, if it has no file of its own.
    Complete(CompletedSnapshot),
    /// It is gone.
    Delete { id: u64 },
    /// All shapes before this one are gone; what follows is the history of this origin from here on.
    Reset { origin: String, lsn: u64, below: u64 },
    /// The same history under another name.
    Adopt { origin: String },
    /// The catalog's first record.
    Catalog(CatalogHeader),
    /// Of the catalog: a shape as it was.
    Shape(Box<CatalogShape>),
    /// Of the catalog: it is whole.
    End { shapes: usize },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompletedSnapshot {
    pub(crate) id: u64,
    pub(crate) seen: SnapshotVisibility,
    pub(crate) len: u64,
    /// Where its chunks end.
    pub(crate) chunks: Vec<u64>,
}

/// What a shape's snapshot has seen, so that the log goes on where it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotVisibility {
    pub(crate) xmin: u64,
    pub(crate) xmax: u64,
    pub(crate) xip: Vec<u64>,
    /// Transactions whose commit isn't before this position aren't in it.
    pub(crate) lsn: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogHeader {
    /// The format of the whole store.
    pub(crate) format: u32,
    pub(crate) origin: Option<String>,
    pub(crate) lsn: u64,
    pub(crate) seen: u64,
    pub(crate) next_id: u64,
    pub(crate) last_handle: u64,
    /// The first segment of the log that isn't in the catalog.
    pub(crate) segment: u64,
    /// Catalog states as of which the shapes of a table are right, by its oid.
    #[serde(default)]
    pub(crate) states: Vec<(u32, CatalogState)>,
}

/// A shape, as the catalog keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogShape {
    pub(crate) id: u64,
    pub(crate) handle: String,
    pub(crate) table: u64,
    pub(crate) choice: ShapeOptions,
    /// `None`: the snapshot wasn't complete.
    pub(crate) snapshot: Option<CompletedSnapshot>,
    pub(crate) log: CatalogLog,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CatalogLog {
    pub(crate) len: u64,
    pub(crate) last: (u64, u64),
    /// Where its chunks end, and with which offset.
    pub(crate) chunks: Vec<(u64, u64, u64)>,
    /// What was before this position is merged.
    #[serde(default)]
    pub(crate) base: u64,
    /// The chunks of that.
    #[serde(default)]
    pub(crate) past: Vec<(u64, u64, u64)>,
}

const PART: u8 = 1;
const COMMIT: u8 = 2;
const NOTE: u8 = 3;

/// Writes the record's frame to `out`, all but the text that ends it: that is returned, and follows in the file.
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
            out.push(COMMIT);
            put_varint(out, commit.end);
            put_varint(out, commit.earlier.len() as u64);
            commit.earlier.iter().for_each(|shape| put_varint(out, *shape));
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
    let length =
        length.expect("whoever makes a text keeps it below MAX_TEXT, and what else there is is small");
    let length = length.to_le_bytes();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), &out[start + FRAME_HEADER_BYTES..]);
    let checksum = crc32c::crc32c_append(checksum, &text).to_le_bytes();
    out[start..start + 4].copy_from_slice(&length);
    out[start + 4..start + FRAME_HEADER_BYTES].copy_from_slice(&checksum);
    text
}

/// How long the record at the beginning of `bytes` is by its own account, with its frame; if there are too few bytes to tell, at least this.
pub(crate) fn framed_length(bytes: &[u8]) -> usize {
    let length = bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    FRAME_HEADER_BYTES + if length <= MAX_PAYLOAD_BYTES { length } else { 0 }
}

/// A whole record that this version doesn't understand. Says what it is, without any of its values.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownRecord(String);

impl UnknownRecord {
    fn describe(payload: &Bytes) -> Self {
        UnknownRecord(match payload.first() {
            Some(&NOTE) => match note_name(payload) {
                Some(name) => format!("a note {name:?}"),
                None => "a note without a name".to_owned(),
            },
            Some(&(PART | COMMIT)) => "a transaction in another form".to_owned(),
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

/// Which [`Note`] a payload has, by its own account.
fn note_name(payload: &Bytes) -> Option<String> {
    let mut cursor = PayloadCursor { bytes: payload.slice(1..) };
    let length = usize::try_from(cursor.varint()?).ok()?;
    let note: BTreeMap<String, IgnoredAny> = serde_json::from_slice(cursor.bytes.get(..length)?).ok()?;
    note.into_keys().next().map(|name| name.chars().take(64).collect())
}

/// Returns the record at the beginning of `bytes`, and its length with its frame; `None`: there is
/// no whole one.
///
/// Fails if there is a whole one that this version doesn't understand.
pub(crate) fn read_frame(bytes: &Bytes) -> Result<Option<(Record, usize)>, UnknownRecord> {
    let Some(payload) = whole_payload(bytes) else { return Ok(None) };
    let length = FRAME_HEADER_BYTES + payload.len();
    match decode(PayloadCursor { bytes: payload.clone() }) {
        Some(record) => Ok(Some((record, length))),
        None => Err(UnknownRecord::describe(&payload)),
    }
}

/// What the frame at the beginning of `bytes` has, if it is whole.
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

fn decode(mut cursor: PayloadCursor) -> Option<Record> {
    match cursor.byte()? {
        PART => cursor.changes().map(Record::Part),
        COMMIT => {
            let end = cursor.varint()?;
            let earlier = cursor.list(PayloadCursor::varint)?;
            Some(Record::Commit(cursor.changes()?, CommitRecord { end, earlier }))
        }
        NOTE => {
            let length = usize::try_from(cursor.varint()?).ok()?;
            let note = serde_json::from_slice(cursor.bytes.get(..length)?).ok()?;
            Some(Record::Note(note, cursor.bytes.slice(length..)))
        }
        _ => None,
    }
}

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

/// Seven bits a byte, the lowest first; all but the last have the eighth set.
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

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
        // An item takes at least a byte: a length can't make us take more memory than the record has.
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

/// A frame around any payload, such as a newer version may write.
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
            Record::Commit(changes, CommitRecord { end: 7, earlier: vec![1, 1 << 40] }),
            Record::Note(Note::Delete { id: 5 }, Bytes::new()),
            Record::Note(Note::Advance { lsn: 5 }, Bytes::from_static(b"more")),
        ]
    }

    #[test]
    fn records_are_read_as_they_were_written() {
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
    fn a_whole_record_of_a_newer_version_says_what_it_is_and_is_no_end() {
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
        ] {
            let mut bytes = framed_payload(&payload);
            assert_eq!(read_frame(&bytes.clone().into()), Err(UnknownRecord(expected.to_owned())));
            bytes.truncate(bytes.len() - 1);
            assert_eq!(read_frame(&bytes.into()), Ok(None), "it isn't whole: {expected}");
        }
        // What is added to a note is for those who know it.
        let more = framed_payload(&note(r#"{"advance":{"lsn":5,"more":[1]}}"#));
        assert!(matches!(read_frame(&more.into()), Ok(Some((Record::Note(Note::Advance { lsn: 5 }, _), _)))));
    }

    proptest! {
        #[test]
        fn a_damaged_record_is_none(at in 0_usize..200, flip in 1_u8..) {
            for record in some_records() {
                let mut bytes = framed(&[record]).to_vec();
                let at = at % bytes.len();
                bytes[at] ^= flip;
                prop_assert_eq!(read_frame(&bytes.into()), Ok(None));
            }
        }

        #[test]
        fn noise_is_never_a_record(noise: Vec<u8>) {
            prop_assert_eq!(read_frame(&noise.clone().into()), Ok(None));
            // Not even where the checksum agrees.
            let noise = Bytes::from(noise);
            if decode(PayloadCursor { bytes: noise.clone() }).is_none() {
                let _anything = UnknownRecord::describe(&noise);
            }
        }
    }
}
