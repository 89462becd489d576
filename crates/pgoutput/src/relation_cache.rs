//! Cache of the relations announced in one connection.
//!
//! Invariant: at most one relation per OID: the latest. Applying an equal [`Relation`] keeps the
//! existing [`Arc`].
//! Bound: a cached relation uses a few times the bytes of its message. Their number is the number
//! of tables announced in the connection, published partitions included. Use a new cache for each
//! connection.

use std::collections::HashMap;
use std::sync::Arc;

use crate::relation::{Relation, RelationColumn, ReplicaIdentity};

/// Latest announced relations, by OID.
#[derive(Debug, Clone, Default)]
pub struct RelationCache {
    tables: HashMap<u32, Arc<CachedRelation>>,
}

impl RelationCache {
    /// Creates an empty cache. A server announces each table in each connection, before its first
    /// change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores a relation. Returns whether it differs from the cached one; if not, the same [`Arc`]
    /// stays.
    ///
    /// A relation from a streamed transaction (with an `xid`) applies to that transaction only,
    /// until it commits. Store it in a separate `RelationCache`, and [`adopt`](Self::adopt) that at
    /// the `StreamCommit`.
    pub fn apply(&mut self, relation: &Relation<'_>) -> bool {
        if self.tables.get(&relation.oid).is_some_and(|table| **table == *relation) {
            return false;
        }
        self.tables.insert(relation.oid, Arc::new(CachedRelation::from(relation)));
        true
    }

    /// Moves the relations of a committed streamed transaction into this cache.
    pub fn adopt(&mut self, streamed: RelationCache) {
        self.tables.extend(streamed.tables);
    }

    /// Returns the relation with this OID.
    #[inline]
    pub fn get(&self, oid: u32) -> Option<&Arc<CachedRelation>> {
        self.tables.get(&oid)
    }

    /// Returns the number of relations.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns an iterator over the relations, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CachedRelation>> {
        self.tables.values()
    }
}

/// Owned copy of a [`Relation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedRelation {
    /// OID that changes refer to.
    pub oid: u32,
    /// Schema name, never empty.
    pub namespace: String,
    /// Table name.
    pub name: String,
    /// Replica identity of the table.
    pub identity: ReplicaIdentity,
    /// Published columns, in the order of the values in tuples.
    pub columns: Vec<CachedColumn>,
}

/// Column of a [`CachedRelation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedColumn {
    /// Column name.
    pub name: String,
    /// OID of the column's type, as in `pg_type`.
    pub type_oid: u32,
    /// Type modifier, as in `pg_attribute.atttypmod`; -1 if there is none.
    pub type_modifier: i32,
    /// Whether the column belongs to the replica identity.
    pub is_key: bool,
}

impl From<&Relation<'_>> for CachedRelation {
    fn from(relation: &Relation<'_>) -> Self {
        CachedRelation {
            oid: relation.oid,
            namespace: schema(relation).to_owned(),
            name: relation.name.to_owned(),
            identity: relation.identity,
            columns: relation.columns.iter().map(CachedColumn::from).collect(),
        }
    }
}

impl From<RelationColumn<'_>> for CachedColumn {
    fn from(column: RelationColumn<'_>) -> Self {
        let RelationColumn { name, type_oid, type_modifier, is_key } = column;
        CachedColumn { name: name.to_owned(), type_oid, type_modifier, is_key }
    }
}

impl PartialEq<Relation<'_>> for CachedRelation {
    fn eq(&self, relation: &Relation<'_>) -> bool {
        self.oid == relation.oid
            && self.namespace == schema(relation)
            && self.name == relation.name
            && self.identity == relation.identity
            && self.columns.len() == relation.columns.len()
            && self.columns.iter().zip(relation.columns).all(|(column, announced)| *column == announced)
    }
}

impl PartialEq<RelationColumn<'_>> for CachedColumn {
    fn eq(&self, announced: &RelationColumn<'_>) -> bool {
        let RelationColumn { name, type_oid, type_modifier, is_key } = *announced;
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
    use crate::{PgOutputDecoder, PgOutputMessage};

    const USERS: &[u8] = b"R\0\0\0\x01public\0users\0d\0\x01\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF";
    const RENAMED: &[u8] = b"R\0\0\0\x01public\0people\0d\0\x01\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF";
    const IN_CATALOG: &[u8] = b"R\0\0\0\x02\0oddity\0n\0\0";

    fn relation(bytes: &[u8]) -> Relation<'_> {
        match PgOutputDecoder::new().decode(bytes) {
            Ok(PgOutputMessage::Relation(relation)) => relation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_table_is_found_by_its_oid() {
        let mut relations = RelationCache::new();
        assert!(relations.is_empty() && relations.get(1).is_none());
        assert!(relations.apply(&relation(USERS)));
        let id = CachedColumn { name: "id".into(), type_oid: 23, type_modifier: -1, is_key: true };
        let users = CachedRelation {
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
    fn applying_an_equal_relation_changes_nothing() {
        let mut relations = RelationCache::new();
        relations.apply(&relation(USERS));
        let before = relations.get(1).unwrap().clone();
        assert!(!relations.apply(&relation(USERS)));
        assert!(Arc::ptr_eq(&before, relations.get(1).unwrap()));
        assert_eq!(relations.len(), 1);
    }

    #[test]
    fn a_changed_relation_replaces_the_old_one_and_old_arcs_stay_valid() {
        let mut relations = RelationCache::new();
        relations.apply(&relation(USERS));
        let before = relations.get(1).unwrap().clone();
        assert!(relations.apply(&relation(RENAMED)));
        assert_eq!((before.name.as_str(), relations.get(1).unwrap().name.as_str()), ("users", "people"));
        assert_eq!(relations.len(), 1);
    }

    #[test]
    fn every_difference_is_detected() {
        for offset in 1..USERS.len() {
            let mut changed = USERS.to_vec();
            changed[offset] ^= 1;
            let Ok(PgOutputMessage::Relation(other)) = PgOutputDecoder::new().decode(&changed) else {
                continue;
            };
            let (before, after) = (CachedRelation::from(&relation(USERS)), CachedRelation::from(&other));
            assert!(before != other && after == other, "{offset}");
        }
    }

    #[test]
    fn a_schema_without_name_is_spelled_out() {
        let mut relations = RelationCache::new();
        assert!(relations.apply(&relation(IN_CATALOG)));
        assert!(!relations.apply(&relation(IN_CATALOG)));
        assert_eq!(relations.get(2).unwrap().namespace, "pg_catalog");
    }

    #[test]
    fn relations_of_a_streamed_transaction_are_adopted_at_its_commit() {
        let (mut relations, mut streamed) = (RelationCache::new(), RelationCache::new());
        relations.apply(&relation(USERS));
        relations.apply(&relation(IN_CATALOG));
        streamed.apply(&relation(RENAMED));
        assert_eq!(relations.get(1).unwrap().name, "users");
        relations.adopt(streamed);
        assert_eq!((relations.len(), relations.get(1).unwrap().name.as_str()), (2, "people"));
    }
}
