//! The Relation message: a table's name, replica identity and columns.
//!
//! Invariant: [`RelationColumns`] holds exactly `len` complete columns with UTF-8 names, so
//! iterating over it cannot fail.
//! Enforced by: `RelationColumns::read`, the only constructor, reads every column with the function
//! that [`RelationColumnsIter`] uses later.
//! Out of scope: storing relations; see `relation_cache.rs`.

use std::fmt;
use std::iter::FusedIterator;

use crate::error::{DecodeError, DecodeFault};
use crate::message_reader::MessageReader;

/// `R`: describes a table: the columns of the rows in later changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// Transaction id, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// OID that changes refer to.
    pub oid: u32,
    /// Schema name; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Table name.
    pub name: &'a str,
    /// Replica identity of the table.
    pub identity: ReplicaIdentity,
    /// Published columns, in the order of the values in tuples.
    pub columns: RelationColumns<'a>,
}

impl<'a> Relation<'a> {
    pub(crate) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        Ok(Relation {
            xid,
            oid: reader.u32("oid")?,
            namespace: reader.text("namespace")?,
            name: reader.text("name")?,
            identity: ReplicaIdentity::read(reader)?,
            columns: RelationColumns::read(reader)?,
        })
    }
}

/// Which columns identify an updated or deleted row: `ALTER TABLE … REPLICA IDENTITY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// `d`: the primary key. The server rejects published updates of a table without one.
    Default,
    /// `n`: no columns. The server rejects published updates of the table.
    Nothing,
    /// `f`: all columns.
    Full,
    /// `i`: the columns of a unique index.
    Index,
}

impl ReplicaIdentity {
    fn read(reader: &mut MessageReader<'_>) -> Result<Self, DecodeError> {
        let before = *reader;
        match reader.u8("replica identity")? {
            b'd' => Ok(ReplicaIdentity::Default),
            b'n' => Ok(ReplicaIdentity::Nothing),
            b'f' => Ok(ReplicaIdentity::Full),
            b'i' => Ok(ReplicaIdentity::Index),
            _ => {
                Err(before
                    .fault("replica identity", DecodeFault::Unexpected { expected: "'d', 'n', 'f', 'i'" }))
            }
        }
    }
}

/// Columns of a [`Relation`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct RelationColumns<'a> {
    len: u16,
    columns: &'a [u8],
}

impl<'a> RelationColumns<'a> {
    /// Returns the number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns whether the relation has no columns.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns an iterator over the columns, in the order of the values in tuples.
    pub fn iter(&self) -> RelationColumnsIter<'a> {
        RelationColumnsIter { left: self.len, reader: MessageReader::new(self.columns) }
    }

    fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let len = reader.u16("number of columns")?;
        let before = *reader;
        for _ in 0..len {
            RelationColumn::read(reader)?;
        }
        Ok(RelationColumns { len, columns: reader.since(&before) })
    }
}

impl<'a> IntoIterator for RelationColumns<'a> {
    type Item = RelationColumn<'a>;
    type IntoIter = RelationColumnsIter<'a>;

    fn into_iter(self) -> RelationColumnsIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &RelationColumns<'a> {
    type Item = RelationColumn<'a>;
    type IntoIter = RelationColumnsIter<'a>;

    fn into_iter(self) -> RelationColumnsIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for RelationColumns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterator over the columns of a [`Relation`].
#[derive(Debug, Clone)]
pub struct RelationColumnsIter<'a> {
    left: u16,
    reader: MessageReader<'a>,
}

impl<'a> Iterator for RelationColumnsIter<'a> {
    type Item = RelationColumn<'a>;

    fn next(&mut self) -> Option<RelationColumn<'a>> {
        self.left = self.left.checked_sub(1)?;
        RelationColumn::read(&mut self.reader).ok() // validated by `RelationColumns::read`
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for RelationColumnsIter<'_> {}
impl FusedIterator for RelationColumnsIter<'_> {}

/// Column of a [`Relation`]. [`CachedColumn`](crate::CachedColumn) is the owned form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Column name.
    pub name: &'a str,
    /// OID of the column's type, as in `pg_type`. A `Type` message precedes the relation for types
    /// that are not built in.
    pub type_oid: u32,
    /// Type modifier, as in `pg_attribute.atttypmod`; -1 if there is none.
    pub type_modifier: i32,
    /// Whether the column belongs to the replica identity. True for all columns under
    /// [`ReplicaIdentity::Full`].
    pub is_key: bool,
}

impl<'a> RelationColumn<'a> {
    fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let is_key = reader.bool("flags of a column")?;
        Ok(RelationColumn {
            name: reader.text("name of a column")?,
            type_oid: reader.u32("type of a column")?,
            type_modifier: reader.i32("type modifier of a column")?,
            is_key,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &[u8] =
        b"\0\0\x40\x0Apublic\0users\0d\0\x02\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF\0name\0\0\0\x04\x13\0\0\0\x24";

    fn read(bytes: &[u8]) -> Result<Relation<'_>, DecodeError> {
        let mut reader = MessageReader::new(bytes);
        let relation = Relation::read(None, &mut reader)?;
        reader.end()?;
        Ok(relation)
    }

    #[test]
    fn a_relation_has_names_an_identity_and_columns() {
        let relation = read(USERS).unwrap();
        assert_eq!((relation.xid, relation.oid), (None, 16394));
        assert_eq!((relation.namespace, relation.name), ("public", "users"));
        assert_eq!(relation.identity, ReplicaIdentity::Default);
        let id = RelationColumn { name: "id", type_oid: 23, type_modifier: -1, is_key: true };
        let name = RelationColumn { name: "name", type_oid: 1043, type_modifier: 36, is_key: false };
        assert!(relation.columns.iter().eq([id, name]));
        assert!((&relation.columns).into_iter().eq(relation.columns));
        assert_eq!((relation.columns.len(), relation.columns.iter().len()), (2, 2));
    }

    #[test]
    fn an_empty_schema_name_stays_empty() {
        let relation = read(b"\0\0\0\x01\0t\0n\0\0").unwrap();
        assert_eq!((relation.namespace, relation.columns.is_empty()), ("", true));
    }

    #[test]
    fn every_identity_has_its_letter() {
        for (letter, identity) in [
            (b'd', ReplicaIdentity::Default),
            (b'n', ReplicaIdentity::Nothing),
            (b'f', ReplicaIdentity::Full),
            (b'i', ReplicaIdentity::Index),
        ] {
            let bytes = [b"\0\0\0\x01s\0t\0", &[letter][..], b"\0\0"].concat();
            assert_eq!(read(&bytes).unwrap().identity, identity);
        }
        let error = read(b"\0\0\0\x01s\0t\0x\0\0").unwrap_err();
        assert_eq!((error.at, error.field), (8, "replica identity"));
    }

    #[test]
    fn a_column_count_beyond_the_message_is_refused() {
        let error = read(b"\0\0\0\x01s\0t\0d\xFF\xFF\x01a\0").unwrap_err();
        assert_eq!(
            (error.field, error.fault),
            ("type of a column", DecodeFault::Ended { needed: 4, left: 0 })
        );
    }

    #[test]
    fn a_name_in_another_encoding_is_refused() {
        let error = read(b"\0\0\0\x01s\0t\xE9\0d\0\0").unwrap_err();
        assert_eq!((error.at, error.field, error.fault), (6, "name", DecodeFault::NotUtf8));
    }

    #[test]
    fn a_relation_that_ends_early_is_refused_wherever_it_ends() {
        for length in 0..USERS.len() {
            assert!(read(&USERS[..length]).is_err(), "{length}");
        }
    }
}
