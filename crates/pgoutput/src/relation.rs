//! A table as a message announces it.
//!
//! Invariant: `Columns` holds exactly as many whole columns as it says, with names in UTF-8, so walking it can't fail.
//! Kept by: `Columns::read`, the only way to make one, walks it with the same function that `ColumnRefs` uses later.
//! Not here: keeping them; see `relations.rs`.

use std::fmt;
use std::iter::FusedIterator;

use crate::error::{DecodeError, Fault};
use crate::reader::Reader;

/// `R`: a table, as the changes that follow describe their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The transaction that changes it, if it is streamed.
    pub xid: Option<u32>,
    /// By what changes name it.
    pub oid: u32,
    /// Its schema; "" means `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What it tells of rows that are updated or deleted.
    pub identity: ReplicaIdentity,
    /// Its columns that are published, in the order of the values in tuples.
    pub columns: Columns<'a>,
}

impl<'a> Relation<'a> {
    pub(crate) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Relation {
            xid,
            oid: reader.u32("oid")?,
            namespace: reader.text("namespace")?,
            name: reader.text("name")?,
            identity: ReplicaIdentity::read(reader)?,
            columns: Columns::read(reader)?,
        })
    }
}

/// What a table tells of rows that are updated or deleted: `ALTER TABLE … REPLICA IDENTITY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// `d`: the primary key. A table without one can't be updated while updates of it are published.
    Default,
    /// `n`: nothing. The table can't be updated while updates of it are published.
    Nothing,
    /// `f`: the whole row.
    Full,
    /// `i`: the columns of a unique index.
    Index,
}

impl ReplicaIdentity {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let before = *reader;
        match reader.u8("replica identity")? {
            b'd' => Ok(ReplicaIdentity::Default),
            b'n' => Ok(ReplicaIdentity::Nothing),
            b'f' => Ok(ReplicaIdentity::Full),
            b'i' => Ok(ReplicaIdentity::Index),
            _ => Err(before.fault("replica identity", Fault::Unexpected { expected: "'d', 'n', 'f', 'i'" })),
        }
    }
}

/// The columns of a [`Relation`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Columns<'a> {
    len: u16,
    columns: &'a [u8],
}

impl<'a> Columns<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them, in the order of the values in tuples.
    pub fn iter(&self) -> ColumnRefs<'a> {
        ColumnRefs { left: self.len, reader: Reader::new(self.columns) }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = reader.u16("number of columns")?;
        let before = *reader;
        for _ in 0..len {
            ColumnRef::read(reader)?;
        }
        Ok(Columns { len, columns: reader.since(&before) })
    }
}

impl<'a> IntoIterator for Columns<'a> {
    type Item = ColumnRef<'a>;
    type IntoIter = ColumnRefs<'a>;

    fn into_iter(self) -> ColumnRefs<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Columns<'a> {
    type Item = ColumnRef<'a>;
    type IntoIter = ColumnRefs<'a>;

    fn into_iter(self) -> ColumnRefs<'a> {
        self.iter()
    }
}

impl fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Walks over the columns of a [`Relation`].
#[derive(Debug, Clone)]
pub struct ColumnRefs<'a> {
    left: u16,
    reader: Reader<'a>,
}

impl<'a> Iterator for ColumnRefs<'a> {
    type Item = ColumnRef<'a>;

    fn next(&mut self) -> Option<ColumnRef<'a>> {
        self.left = self.left.checked_sub(1)?;
        ColumnRef::read(&mut self.reader).ok() // it was read before
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for ColumnRefs<'_> {}
impl FusedIterator for ColumnRefs<'_> {}

/// A column as a [`Relation`] announces it; [`Column`](crate::Column) is the same, owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnRef<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type, as in `pg_type`. Types that Postgres doesn't come with are announced by a `Type` before.
    pub type_oid: u32,
    /// The type's modifier, as in `pg_attribute.atttypmod`; -1 if there is none.
    pub type_modifier: i32,
    /// Whether it belongs to the replica identity: all columns do, if that is [`ReplicaIdentity::Full`].
    pub is_key: bool,
}

impl<'a> ColumnRef<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let is_key = reader.bool("flags of a column")?;
        Ok(ColumnRef {
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
        let mut reader = Reader::new(bytes);
        let relation = Relation::read(None, &mut reader)?;
        reader.end()?;
        Ok(relation)
    }

    #[test]
    fn a_relation_is_its_names_its_identity_and_its_columns() {
        let relation = read(USERS).unwrap();
        assert_eq!((relation.xid, relation.oid), (None, 16394));
        assert_eq!((relation.namespace, relation.name), ("public", "users"));
        assert_eq!(relation.identity, ReplicaIdentity::Default);
        let id = ColumnRef { name: "id", type_oid: 23, type_modifier: -1, is_key: true };
        let name = ColumnRef { name: "name", type_oid: 1043, type_modifier: 36, is_key: false };
        assert!(relation.columns.iter().eq([id, name]));
        assert!((&relation.columns).into_iter().eq(relation.columns));
        assert_eq!((relation.columns.len(), relation.columns.iter().len()), (2, 2));
    }

    #[test]
    fn a_schema_without_name_stays_without() {
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
    fn columns_that_are_announced_but_not_there_are_refused() {
        let error = read(b"\0\0\0\x01s\0t\0d\xFF\xFF\x01a\0").unwrap_err();
        assert_eq!((error.field, error.fault), ("type of a column", Fault::Ended { needed: 4, left: 0 }));
    }

    #[test]
    fn a_name_in_another_encoding_is_refused() {
        let error = read(b"\0\0\0\x01s\0t\xE9\0d\0\0").unwrap_err();
        assert_eq!((error.at, error.field, error.fault), (6, "name", Fault::NotUtf8));
    }

    #[test]
    fn a_relation_that_ends_early_is_refused_wherever_it_ends() {
        for length in 0..USERS.len() {
            assert!(read(&USERS[..length]).is_err(), "{length}");
        }
    }
}
