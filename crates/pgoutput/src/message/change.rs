//! Messages for changes of rows and tables: Insert, Update, Delete, Truncate.
//!
//! Invariant: their tuples are complete; see `tuple.rs`.
//! Out of scope: whether a tuple has as many values as its relation has columns. The owner of a
//! relation cache can check that.

use std::fmt;
use std::iter::FusedIterator;

use crate::error::{DecodeError, DecodeFault};
use crate::message_reader::MessageReader;
use crate::tuple::{OldTuple, Tuple};

/// `I`: a row was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// Id of the (sub)transaction, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// OID of the table.
    pub relation: u32,
    /// The inserted row.
    pub new: Tuple<'a>,
}

impl<'a> Insert<'a> {
    #[inline]
    pub(super) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        Ok(Insert { xid, relation: reader.u32("relation")?, new: new_tuple(reader)? })
    }
}

/// `U`: a row was updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// Id of the (sub)transaction, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// OID of the table.
    pub relation: u32,
    /// The row before the update. Always present under
    /// [`ReplicaIdentity::Full`](crate::ReplicaIdentity::Full). Under `Default` and `Index` it is
    /// present only if a key column changed or is stored out of line; `None` means that the key is
    /// the one in `new`.
    pub old: Option<OldTuple<'a>>,
    /// The row after the update. Unsent columns are
    /// [`TupleValue::Unchanged`](crate::TupleValue::Unchanged).
    pub new: Tuple<'a>,
}

impl<'a> Update<'a> {
    #[inline]
    pub(super) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let relation = reader.u32("relation")?;
        let before = *reader;
        let old = match reader.u8(KIND)? {
            b'N' => return Ok(Update { xid, relation, old: None, new: Tuple::read(reader)? }),
            b'K' => OldTuple::Key(Tuple::read(reader)?),
            b'O' => OldTuple::Full(Tuple::read(reader)?),
            _ => return Err(before.fault(KIND, DecodeFault::Unexpected { expected: "'K', 'O', 'N'" })),
        };
        Ok(Update { xid, relation, old: Some(old), new: new_tuple(reader)? })
    }
}

/// `D`: a row was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// Id of the (sub)transaction, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// OID of the table.
    pub relation: u32,
    /// The deleted row, or its key.
    pub old: OldTuple<'a>,
}

impl<'a> Delete<'a> {
    #[inline]
    pub(super) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let relation = reader.u32("relation")?;
        let before = *reader;
        let old = match reader.u8(KIND)? {
            b'K' => OldTuple::Key(Tuple::read(reader)?),
            b'O' => OldTuple::Full(Tuple::read(reader)?),
            _ => return Err(before.fault(KIND, DecodeFault::Unexpected { expected: "'K', 'O'" })),
        };
        Ok(Delete { xid, relation, old })
    }
}

/// `T`: tables were truncated, all by one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// Id of the (sub)transaction, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// OIDs of the tables. Published tables truncated by `CASCADE` are included.
    pub relations: RelationOids<'a>,
    /// Whether the statement had `CASCADE`.
    pub cascade: bool,
    /// Whether the statement had `RESTART IDENTITY`.
    pub restart_identity: bool,
}

impl<'a> Truncate<'a> {
    pub(super) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let before = *reader;
        let Ok(count) = usize::try_from(reader.i32("number of relations")?) else {
            return Err(before.fault("number of relations", DecodeFault::Negative));
        };
        let flags = reader.flags(CASCADE | RESTART_IDENTITY, "flags")?;
        let bytes = reader.bytes(count.saturating_mul(OID_LEN), "relations")?;
        Ok(Truncate {
            xid,
            relations: RelationOids { bytes },
            cascade: flags & CASCADE != 0,
            restart_identity: flags & RESTART_IDENTITY != 0,
        })
    }
}

/// OIDs of the tables of a [`Truncate`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct RelationOids<'a> {
    bytes: &'a [u8],
}

impl<'a> RelationOids<'a> {
    /// Returns the number of tables.
    pub fn len(&self) -> usize {
        self.bytes.len() / OID_LEN
    }

    /// Returns whether there are no tables.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns an iterator over the OIDs.
    pub fn iter(&self) -> RelationOidsIter<'a> {
        RelationOidsIter { bytes: self.bytes }
    }
}

impl<'a> IntoIterator for RelationOids<'a> {
    type Item = u32;
    type IntoIter = RelationOidsIter<'a>;

    fn into_iter(self) -> RelationOidsIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &RelationOids<'a> {
    type Item = u32;
    type IntoIter = RelationOidsIter<'a>;

    fn into_iter(self) -> RelationOidsIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for RelationOids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterator over the OIDs of a [`Truncate`].
#[derive(Debug, Clone)]
pub struct RelationOidsIter<'a> {
    bytes: &'a [u8],
}

impl Iterator for RelationOidsIter<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (oid, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_be_bytes(*oid))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.bytes.len() / OID_LEN;
        (left, Some(left))
    }
}

impl ExactSizeIterator for RelationOidsIter<'_> {}
impl FusedIterator for RelationOidsIter<'_> {}

const KIND: &str = "kind of a tuple";
const OID_LEN: usize = size_of::<u32>();
const CASCADE: u8 = 1;
const RESTART_IDENTITY: u8 = 2;

#[inline]
fn new_tuple<'a>(reader: &mut MessageReader<'a>) -> Result<Tuple<'a>, DecodeError> {
    let before = *reader;
    match reader.u8(KIND)? {
        b'N' => Tuple::read(reader),
        _ => Err(before.fault(KIND, DecodeFault::Unexpected { expected: "'N'" })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{
        PgOutputMessage, assert_rejects_other_lengths, decode_in_stream, decode_outside_stream,
    };
    use crate::tuple::TupleValue;

    const INSERT: &[u8] = b"I\0\0\x40\x0AN\0\x02t\0\0\0\x011n";
    const UPDATE: &[u8] = b"U\0\0\x40\x0AN\0\x02t\0\0\0\x011u";
    const UPDATE_OF_KEY: &[u8] = b"U\0\0\x40\x0AK\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012u";
    const UPDATE_IN_FULL: &[u8] = b"U\0\0\x40\x0AO\0\x02t\0\0\0\x011t\0\0\0\x01aN\0\x02t\0\0\0\x012u";
    const DELETE_BY_KEY: &[u8] = b"D\0\0\x40\x0AK\0\x02t\0\0\0\x011n";
    const DELETE_IN_FULL: &[u8] = b"D\0\0\x40\x0AO\0\x02t\0\0\0\x011t\0\0\0\x01a";
    const TRUNCATE: &[u8] = b"T\0\0\0\x02\x03\0\0\x40\x0A\0\0\x40\x0B";

    const ONE: TupleValue<'_> = TupleValue::Text(b"1");
    const TWO: TupleValue<'_> = TupleValue::Text(b"2");
    const A: TupleValue<'_> = TupleValue::Text(b"a");

    /// Returns the same message as within a stream segment of transaction 752.
    fn with_xid(bytes: &[u8]) -> Vec<u8> {
        [&bytes[..1], b"\0\0\x02\xF0", &bytes[1..]].concat()
    }

    fn update(bytes: &[u8]) -> Update<'_> {
        match decode_outside_stream(bytes) {
            Ok(PgOutputMessage::Update(update)) => update,
            other => panic!("{other:?}"),
        }
    }

    fn delete(bytes: &[u8]) -> Delete<'_> {
        match decode_outside_stream(bytes) {
            Ok(PgOutputMessage::Delete(delete)) => delete,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn insert_has_the_new_row() {
        let Ok(PgOutputMessage::Insert(insert)) = decode_outside_stream(INSERT) else {
            panic!("it is an insert")
        };
        assert_eq!((insert.xid, insert.relation), (None, 16394));
        assert!(insert.new.iter().eq([ONE, TupleValue::Null]));
        assert_rejects_other_lengths(INSERT, decode_outside_stream);
    }

    #[test]
    fn update_has_no_old_row_if_the_key_is_unchanged() {
        let update = update(UPDATE);
        assert_eq!((update.xid, update.relation, update.old), (None, 16394, None));
        assert!(update.new.iter().eq([ONE, TupleValue::Unchanged]));
        assert_rejects_other_lengths(UPDATE, decode_outside_stream);
    }

    #[test]
    fn update_has_the_old_key_if_it_changed() {
        let update = update(UPDATE_OF_KEY);
        let Some(OldTuple::Key(old)) = update.old else { panic!("there is a key") };
        assert!(old.iter().eq([ONE, TupleValue::Null]));
        assert!(update.new.iter().eq([TWO, TupleValue::Unchanged]));
        assert_rejects_other_lengths(UPDATE_OF_KEY, decode_outside_stream);
    }

    #[test]
    fn update_has_the_old_row_under_identity_full() {
        let update = update(UPDATE_IN_FULL);
        let Some(OldTuple::Full(old)) = update.old else { panic!("there is a row") };
        assert!(old.iter().eq([ONE, A]));
        assert!(update.new.iter().eq([TWO, TupleValue::Unchanged]));
        assert_rejects_other_lengths(UPDATE_IN_FULL, decode_outside_stream);
    }

    #[test]
    fn delete_has_the_old_key_or_the_old_row() {
        let by_key = delete(DELETE_BY_KEY);
        assert_eq!((by_key.xid, by_key.relation), (None, 16394));
        assert!(
            matches!(by_key.old, OldTuple::Key(_)) && by_key.old.tuple().iter().eq([ONE, TupleValue::Null])
        );
        let in_full = delete(DELETE_IN_FULL);
        assert!(matches!(in_full.old, OldTuple::Full(_)) && in_full.old.tuple().iter().eq([ONE, A]));
        assert_rejects_other_lengths(DELETE_BY_KEY, decode_outside_stream);
        assert_rejects_other_lengths(DELETE_IN_FULL, decode_outside_stream);
    }

    #[test]
    fn a_tuple_of_the_wrong_kind_is_refused() {
        for (bytes, offset, kind) in [
            (INSERT, 5, b'K'),
            (INSERT, 5, b'O'),
            (UPDATE, 5, b'X'),
            (UPDATE_OF_KEY, 15, b'K'),
            (DELETE_BY_KEY, 5, b'N'),
        ] {
            let mut changed = bytes.to_vec();
            changed[offset] = kind;
            let error = decode_outside_stream(&changed).unwrap_err();
            assert_eq!((error.at, error.field), (offset, "kind of a tuple"), "{error}");
        }
    }

    #[test]
    fn truncate_has_its_tables_and_options() {
        let Ok(PgOutputMessage::Truncate(truncate)) = decode_outside_stream(TRUNCATE) else {
            panic!("it is a truncate")
        };
        assert!(truncate.relations.iter().eq([16394, 16395]));
        assert!((&truncate.relations).into_iter().eq(truncate.relations));
        assert_eq!((truncate.relations.len(), truncate.relations.iter().len()), (2, 2));
        assert!(truncate.cascade && truncate.restart_identity && truncate.xid.is_none());
        assert_eq!(format!("{:?}", truncate.relations), "[16394, 16395]");
        assert_rejects_other_lengths(TRUNCATE, decode_outside_stream);
    }

    #[test]
    fn each_flag_of_truncate_has_its_bit() {
        for (flags, cascade, restart_identity) in [(0, false, false), (1, true, false), (2, false, true)] {
            let bytes = [b"T\0\0\0\0", &[flags][..]].concat();
            let Ok(PgOutputMessage::Truncate(truncate)) = decode_outside_stream(&bytes) else {
                panic!("it is a truncate")
            };
            assert_eq!((truncate.cascade, truncate.restart_identity), (cascade, restart_identity));
            assert!(truncate.relations.is_empty());
        }
        assert_eq!(decode_outside_stream(b"T\0\0\0\0\x04").unwrap_err().field, "flags");
    }

    #[test]
    fn a_table_count_beyond_the_message_is_refused() {
        let error = decode_outside_stream(b"T\x7F\xFF\xFF\xFF\0\0\0\x40").unwrap_err();
        assert_eq!(error.fault, DecodeFault::Ended { needed: 4 * 0x7FFF_FFFF, left: 3 });
        let error = decode_outside_stream(b"T\xFF\xFF\xFF\xFF\0").unwrap_err();
        assert_eq!((error.at, error.fault), (1, DecodeFault::Negative));
    }

    #[test]
    fn every_change_within_a_stream_has_an_xid() {
        for bytes in [INSERT, UPDATE, UPDATE_OF_KEY, UPDATE_IN_FULL, DELETE_BY_KEY, DELETE_IN_FULL, TRUNCATE]
        {
            let bytes = with_xid(bytes);
            let xid = match decode_in_stream(&bytes) {
                Ok(PgOutputMessage::Insert(insert)) => insert.xid,
                Ok(PgOutputMessage::Update(update)) => update.xid,
                Ok(PgOutputMessage::Delete(delete)) => delete.xid,
                Ok(PgOutputMessage::Truncate(truncate)) => truncate.xid,
                other => panic!("{other:?}"),
            };
            assert_eq!(xid, Some(752));
            assert_rejects_other_lengths(&bytes, decode_in_stream);
        }
    }

    #[test]
    fn debug_output_of_a_change_contains_no_value() {
        let printed = format!("{:?}", decode_outside_stream(UPDATE_IN_FULL).unwrap());
        assert_eq!(
            printed,
            "Update(Update { xid: None, relation: 16394, old: Some(Full([Text(1 bytes), Text(1 bytes)])), \
             new: [Text(1 bytes), Unchanged] })"
        );
    }
}
