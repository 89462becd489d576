//! The tables that a server has announced.
//!
//! Invariant: at most one table per oid, as last announced; announcing the same again leaves it untouched, and whoever
//! holds the old one keeps it.
//! Bounds: a table takes a few times the bytes of the message that announced it. There are as many as the server has
//! announced since the connection began, published partitions included; start anew with each connection.

use std::collections::HashMap;
use std::sync::Arc;

use crate::relation::{ColumnRef, Relation, ReplicaIdentity};

/// The tables as last announced, by oid.
#[derive(Debug, Clone, Default)]
pub struct Relations {
    tables: HashMap<u32, Arc<Table>>,
}

impl Relations {
    /// None so far: a server announces each table anew in each connection, before its first change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of a table. Returns whether that differs from what was known; if not, the same [`Arc`] stays.
    ///
    /// A table that a streamed transaction announces (its `xid` is there) is so only for that transaction until it commits:
    /// keep it in `Relations` of its own, and [`adopt`](Self::adopt) them at its `StreamCommit`.
    pub fn apply(&mut self, relation: &Relation<'_>) -> bool {
        if self.tables.get(&relation.oid).is_some_and(|table| **table == *relation) {
            return false;
        }
        self.tables.insert(relation.oid, Arc::new(Table::from(relation)));
        true
    }

    /// Takes over the tables that a streamed transaction announced, now that it has committed.
    pub fn adopt(&mut self, streamed: Relations) {
        self.tables.extend(streamed.tables);
    }

    /// The table of this oid.
    #[inline]
    pub fn get(&self, oid: u32) -> Option<&Arc<Table>> {
        self.tables.get(&oid)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether none has been announced.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values()
    }
}

/// A table: what a [`Relation`] says, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// By what changes name it.
    pub oid: u32,
    /// Its schema, never empty.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it tells of rows that are updated or deleted.
    pub identity: ReplicaIdentity,
    /// Its columns that are published, in the order of the values in tuples.
    pub columns: Vec<Column>,
}

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, as in `pg_type`.
    pub type_oid: u32,
    /// The type's modifier, as in `pg_attribute.atttypmod`; -1 if there is none.
    pub type_modifier: i32,
    /// Whether it belongs to the replica identity.
    pub is_key: bool,
}

impl From<&Relation<'_>> for Table {
    fn from(relation: &Relation<'_>) -> Self {
        Table {
            oid: relation.oid,
            namespace: schema(relation).to_owned(),
            name: relation.name.to_owned(),
            identity: relation.identity,
            columns: relation.columns.iter().map(Column::from).collect(),
        }
    }
}

impl From<ColumnRef<'_>> for Column {
    fn from(column: ColumnRef<'_>) -> Self {
        let ColumnRef { name, type_oid, type_modifier, is_key } = column;
        Column { name: name.to_owned(), type_oid, type_modifier, is_key }
    }
}

impl PartialEq<Relation<'_>> for Table {
    fn eq(&self, relation: &Relation<'_>) -> bool {
        self.oid == relation.oid
            && self.namespace == schema(relation)
            && self.name == relation.name
            && self.identity == relation.identity
            && self.columns.len() == relation.columns.len()
            && self.columns.iter().zip(relation.columns).all(|(column, announced)| *column == announced)
    }
}

impl PartialEq<ColumnRef<'_>> for Column {
    fn eq(&self, announced: &ColumnRef<'_>) -> bool {
        let ColumnRef { name, type_oid, type_modifier, is_key } = *announced;
        self.name == name
            && self.type_oid == type_oid
            && self.type_modifier == type_modifier
            && self.is_key == is_key
    }
}

fn schema<'a>(relation: &Relation<'a>) -> &'a str {
    if relation.namespace.is_empty() { "pg_catalog" } else { relation.namespace }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoder, Message};

    const USERS: &[u8] = b"R\0\0\0\x01public\0users\0d\0\x01\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF";
    const RENAMED: &[u8] = b"R\0\0\0\x01public\0people\0d\0\x01\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF";
    const IN_CATALOG: &[u8] = b"R\0\0\0\x02\0oddity\0n\0\0";

    fn relation(bytes: &[u8]) -> Relation<'_> {
        match Decoder::new().decode(bytes) {
            Ok(Message::Relation(relation)) => relation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_table_is_found_by_its_oid() {
        let mut relations = Relations::new();
        assert!(relations.is_empty() && relations.get(1).is_none());
        assert!(relations.apply(&relation(USERS)));
        let id = Column { name: "id".into(), type_oid: 23, type_modifier: -1, is_key: true };
        let users = Table {
            oid: 1,
            namespace: "public".into(),
            name: "users".into(),
            identity: ReplicaIdentity::Default,
            columns: vec![id],
        };
        assert_eq!(relations.get(1).map(Arc::as_ref), Some(&users));
        assert!(relations.iter().map(Arc::as_ref).eq([&users]));
    }

    #[test]
    fn announcing_the_same_again_changes_nothing() {
        let mut relations = Relations::new();
        relations.apply(&relation(USERS));
        let before = relations.get(1).unwrap().clone();
        assert!(!relations.apply(&relation(USERS)));
        assert!(Arc::ptr_eq(&before, relations.get(1).unwrap()));
        assert_eq!(relations.len(), 1);
    }

    #[test]
    fn a_changed_table_takes_the_place_of_the_old_one_which_stays_for_its_holders() {
        let mut relations = Relations::new();
        relations.apply(&relation(USERS));
        let before = relations.get(1).unwrap().clone();
        assert!(relations.apply(&relation(RENAMED)));
        assert_eq!((before.name.as_str(), relations.get(1).unwrap().name.as_str()), ("users", "people"));
        assert_eq!(relations.len(), 1);
    }

    #[test]
    fn every_difference_is_seen() {
        for place in 1..USERS.len() {
            let mut changed = USERS.to_vec();
            changed[place] ^= 1;
            let Ok(Message::Relation(other)) = Decoder::new().decode(&changed) else { continue };
            let (before, after) = (Table::from(&relation(USERS)), Table::from(&other));
            assert!(before != other && after == other, "{place}");
        }
    }

    #[test]
    fn a_schema_without_name_is_spelled_out() {
        let mut relations = Relations::new();
        assert!(relations.apply(&relation(IN_CATALOG)));
        assert!(!relations.apply(&relation(IN_CATALOG)));
        assert_eq!(relations.get(2).unwrap().namespace, "pg_catalog");
    }

    #[test]
    fn what_a_streamed_transaction_announced_counts_for_all_once_it_committed() {
        let (mut relations, mut streamed) = (Relations::new(), Relations::new());
        relations.apply(&relation(USERS));
        relations.apply(&relation(IN_CATALOG));
        streamed.apply(&relation(RENAMED));
        assert_eq!(relations.get(1).unwrap().name, "users");
        relations.adopt(streamed);
        assert_eq!((relations.len(), relations.get(1).unwrap().name.as_str()), (2, "people"));
    }
}
