//! Changes of rows and tables.
//!
//! Invariant: their rows are whole, see `tuple.rs`. Whether they fit the relation, only who keeps relations can say.

use std::fmt;
use std::iter::FusedIterator;

use crate::error::{DecodeError, Fault};
use crate::reader::Reader;
use crate::tuple::{OldTuple, Tuple};

/// `I`: a new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The (sub)transaction, if it is streamed.
    pub xid: Option<u32>,
    /// The table's oid.
    pub relation: u32,
    /// The row.
    pub new: Tuple<'a>,
}

impl<'a> Insert<'a> {
    #[inline]
    pub(super) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Insert { xid, relation: reader.u32("relation")?, new: new_tuple(reader)? })
    }
}

/// `U`: a row that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The (sub)transaction, if it is streamed.
    pub xid: Option<u32>,
    /// The table's oid.
    pub relation: u32,
    /// The row before. Under [`ReplicaIdentity::Full`](crate::ReplicaIdentity::Full) always there; under `Default` and
    /// `Index` only if a column of the key changed or is stored out of line, so that `None` means: the key is as in `new`.
    pub old: Option<OldTuple<'a>>,
    /// The row after. Columns that it doesn't tell are [`Value::Unchanged`](crate::Value::Unchanged).
    pub new: Tuple<'a>,
}

impl<'a> Update<'a> {
    #[inline]
    pub(super) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let relation = reader.u32("relation")?;
        let before = *reader;
        let old = match reader.u8(KIND)? {
            b'N' => return Ok(Update { xid, relation, old: None, new: Tuple::read(reader)? }),
            b'K' => OldTuple::Key(Tuple::read(reader)?),
            b'O' => OldTuple::Full(Tuple::read(reader)?),
            _ => return Err(before.fault(KIND, Fault::Unexpected { expected: "'K', 'O', 'N'" })),
        };
        Ok(Update { xid, relation, old: Some(old), new: new_tuple(reader)? })
    }
}

/// `D`: a row that went away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The (sub)transaction, if it is streamed.
    pub xid: Option<u32>,
    /// The table's oid.
    pub relation: u32,
    /// The row, or its key.
    pub old: OldTuple<'a>,
}

impl<'a> Delete<'a> {
    #[inline]
    pub(super) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let relation = reader.u32("relation")?;
        let before = *reader;
        let old = match reader.u8(KIND)? {
            b'K' => OldTuple::Key(Tuple::read(reader)?),
            b'O' => OldTuple::Full(Tuple::read(reader)?),
            _ => return Err(before.fault(KIND, Fault::Unexpected { expected: "'K', 'O'" })),
        };
        Ok(Delete { xid, relation, old })
    }
}

/// `T`: tables that were emptied, all by one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// The (sub)transaction, if it is streamed.
    pub xid: Option<u32>,
    /// The tables' oids, those emptied by `CASCADE` included, if they are published.
    pub relations: Oids<'a>,
    /// Whether the statement said `CASCADE`.
    pub cascade: bool,
    /// Whether the statement said `RESTART IDENTITY`.
    pub restart_identity: bool,
}

impl<'a> Truncate<'a> {
    pub(super) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let before = *reader;
        let Ok(count) = usize::try_from(reader.i32("number of relations")?) else {
            return Err(before.fault("number of relations", Fault::Negative));
        };
        let flags = reader.flags(CASCADE | RESTART_IDENTITY, "flags")?;
        let bytes = reader.bytes(count.saturating_mul(OID_LEN), "relations")?;
        Ok(Truncate {
            xid,
            relations: Oids { bytes },
            cascade: flags & CASCADE != 0,
            restart_identity: flags & RESTART_IDENTITY != 0,
        })
    }
}

/// The tables of a [`Truncate`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Oids<'a> {
    bytes: &'a [u8],
}

impl<'a> Oids<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / OID_LEN
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> OidsIter<'a> {
        OidsIter { bytes: self.bytes }
    }
}

impl<'a> IntoIterator for Oids<'a> {
    type Item = u32;
    type IntoIter = OidsIter<'a>;

    fn into_iter(self) -> OidsIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Oids<'a> {
    type Item = u32;
    type IntoIter = OidsIter<'a>;

    fn into_iter(self) -> OidsIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Oids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Walks over the tables of a [`Truncate`].
#[derive(Debug, Clone)]
pub struct OidsIter<'a> {
    bytes: &'a [u8],
}

impl Iterator for OidsIter<'_> {
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

impl ExactSizeIterator for OidsIter<'_> {}
impl FusedIterator for OidsIter<'_> {}

const KIND: &str = "kind of a tuple";
const OID_LEN: usize = size_of::<u32>();
const CASCADE: u8 = 1;
const RESTART_IDENTITY: u8 = 2;

#[inline]
fn new_tuple<'a>(reader: &mut Reader<'a>) -> Result<Tuple<'a>, DecodeError> {
    let before = *reader;
    match reader.u8(KIND)? {
        b'N' => Tuple::read(reader),
        _ => Err(before.fault(KIND, Fault::Unexpected { expected: "'N'" })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, alone, assert_needs_all, streamed};
    use crate::tuple::Value;

    const INSERT: &[u8] = b"I\0\0\x40\x0AN\0\x02t\0\0\0\x011n";
    const UPDATE: &[u8] = b"U\0\0\x40\x0AN\0\x02t\0\0\0\x011u";
    const UPDATE_OF_KEY: &[u8] = b"U\0\0\x40\x0AK\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012u";
    const UPDATE_IN_FULL: &[u8] = b"U\0\0\x40\x0AO\0\x02t\0\0\0\x011t\0\0\0\x01aN\0\x02t\0\0\0\x012u";
    const DELETE_BY_KEY: &[u8] = b"D\0\0\x40\x0AK\0\x02t\0\0\0\x011n";
    const DELETE_IN_FULL: &[u8] = b"D\0\0\x40\x0AO\0\x02t\0\0\0\x011t\0\0\0\x01a";
    const TRUNCATE: &[u8] = b"T\0\0\0\x02\x03\0\0\x40\x0A\0\0\x40\x0B";

    const ONE: Value<'_> = Value::Text(b"1");
    const TWO: Value<'_> = Value::Text(b"2");
    const A: Value<'_> = Value::Text(b"a");

    /// The same message within a stream, of transaction 752.
    fn with_xid(bytes: &[u8]) -> Vec<u8> {
        [&bytes[..1], b"\0\0\x02\xF0", &bytes[1..]].concat()
    }

    fn update(bytes: &[u8]) -> Update<'_> {
        match alone(bytes) {
            Ok(Message::Update(update)) => update,
            other => panic!("{other:?}"),
        }
    }

    fn delete(bytes: &[u8]) -> Delete<'_> {
        match alone(bytes) {
            Ok(Message::Delete(delete)) => delete,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn insert_tells_the_new_row() {
        let Ok(Message::Insert(insert)) = alone(INSERT) else { panic!("it is an insert") };
        assert_eq!((insert.xid, insert.relation), (None, 16394));
        assert!(insert.new.iter().eq([ONE, Value::Null]));
        assert_needs_all(INSERT, alone);
    }

    #[test]
    fn update_tells_the_new_row_and_no_old_one_if_the_key_stayed() {
        let update = update(UPDATE);
        assert_eq!((update.xid, update.relation, update.old), (None, 16394, None));
        assert!(update.new.iter().eq([ONE, Value::Unchanged]));
        assert_needs_all(UPDATE, alone);
    }

    #[test]
    fn update_tells_the_old_key_if_it_changed() {
        let update = update(UPDATE_OF_KEY);
        let Some(OldTuple::Key(old)) = update.old else { panic!("there is a key") };
        assert!(old.iter().eq([ONE, Value::Null]));
        assert!(update.new.iter().eq([TWO, Value::Unchanged]));
        assert_needs_all(UPDATE_OF_KEY, alone);
    }

    #[test]
    fn update_tells_the_old_row_under_identity_full() {
        let update = update(UPDATE_IN_FULL);
        let Some(OldTuple::Full(old)) = update.old else { panic!("there is a row") };
        assert!(old.iter().eq([ONE, A]));
        assert!(update.new.iter().eq([TWO, Value::Unchanged]));
        assert_needs_all(UPDATE_IN_FULL, alone);
    }

    #[test]
    fn delete_tells_the_old_key_or_the_old_row() {
        let by_key = delete(DELETE_BY_KEY);
        assert_eq!((by_key.xid, by_key.relation), (None, 16394));
        assert!(matches!(by_key.old, OldTuple::Key(_)) && by_key.old.tuple().iter().eq([ONE, Value::Null]));
        let in_full = delete(DELETE_IN_FULL);
        assert!(matches!(in_full.old, OldTuple::Full(_)) && in_full.old.tuple().iter().eq([ONE, A]));
        assert_needs_all(DELETE_BY_KEY, alone);
        assert_needs_all(DELETE_IN_FULL, alone);
    }

    #[test]
    fn a_tuple_of_a_kind_that_does_not_belong_there_is_refused() {
        for (bytes, place, kind) in [
            (INSERT, 5, b'K'),
            (INSERT, 5, b'O'),
            (UPDATE, 5, b'X'),
            (UPDATE_OF_KEY, 15, b'K'),
            (DELETE_BY_KEY, 5, b'N'),
        ] {
            let mut changed = bytes.to_vec();
            changed[place] = kind;
            let error = alone(&changed).unwrap_err();
            assert_eq!((error.at, error.field), (place, "kind of a tuple"), "{error}");
        }
    }

    #[test]
    fn truncate_tells_its_tables_and_how() {
        let Ok(Message::Truncate(truncate)) = alone(TRUNCATE) else { panic!("it is a truncate") };
        assert!(truncate.relations.iter().eq([16394, 16395]));
        assert!((&truncate.relations).into_iter().eq(truncate.relations));
        assert_eq!((truncate.relations.len(), truncate.relations.iter().len()), (2, 2));
        assert!(truncate.cascade && truncate.restart_identity && truncate.xid.is_none());
        assert_eq!(format!("{:?}", truncate.relations), "[16394, 16395]");
        assert_needs_all(TRUNCATE, alone);
    }

    #[test]
    fn each_flag_of_truncate_has_its_bit() {
        for (flags, cascade, restart_identity) in [(0, false, false), (1, true, false), (2, false, true)] {
            let bytes = [b"T\0\0\0\0", &[flags][..]].concat();
            let Ok(Message::Truncate(truncate)) = alone(&bytes) else { panic!("it is a truncate") };
            assert_eq!((truncate.cascade, truncate.restart_identity), (cascade, restart_identity));
            assert!(truncate.relations.is_empty());
        }
        assert_eq!(alone(b"T\0\0\0\0\x04").unwrap_err().field, "flags");
    }

    #[test]
    fn tables_that_are_announced_but_not_there_are_refused() {
        let error = alone(b"T\x7F\xFF\xFF\xFF\0\0\0\x40").unwrap_err();
        assert_eq!(error.fault, Fault::Ended { needed: 4 * 0x7FFF_FFFF, left: 3 });
        let error = alone(b"T\xFF\xFF\xFF\xFF\0").unwrap_err();
        assert_eq!((error.at, error.fault), (1, Fault::Negative));
    }

    #[test]
    fn every_change_within_a_stream_tells_its_transaction() {
        for bytes in [INSERT, UPDATE, UPDATE_OF_KEY, UPDATE_IN_FULL, DELETE_BY_KEY, DELETE_IN_FULL, TRUNCATE]
        {
            let bytes = with_xid(bytes);
            let xid = match streamed(&bytes) {
                Ok(Message::Insert(insert)) => insert.xid,
                Ok(Message::Update(update)) => update.xid,
                Ok(Message::Delete(delete)) => delete.xid,
                Ok(Message::Truncate(truncate)) => truncate.xid,
                other => panic!("{other:?}"),
            };
            assert_eq!(xid, Some(752));
            assert_needs_all(&bytes, streamed);
        }
    }

    #[test]
    fn what_is_printed_holds_no_row() {
        let printed = format!("{:?}", alone(UPDATE_IN_FULL).unwrap());
        assert_eq!(
            printed,
            "Update(Update { xid: None, relation: 16394, old: Some(Full([Text(1 bytes), Text(1 bytes)])), \
             new: [Text(1 bytes), Unchanged] })"
        );
    }
}
