//! Follower: matches the replication stream with all shapes, and queues the messages for their
//! logs.
//!
//! Invariant: each committed transaction reaches each shape that it concerns exactly once, whole,
//! in commit order, unless the shape's snapshot sees it.
//! Enforced by:
//! - A shape is followed before its snapshot is taken. Changes are held for the shape until the
//!   transactions that its snapshot sees are known.
//! - A transaction that was queued for the store is skipped when the stream repeats it. A
//!   transaction that was interrupted starts over.
//! - Records that are decided under the lock of [`FollowedShapes`] are queued under it, so that the
//!   WAL has them in that order.
//!
//! A shape is *unfit* if its log can't represent a change exactly. For example, its table was
//! altered or truncated, its clause fails, or the row is too large. An unfit shape is deleted, and
//! its clients start over.
//!
//! Partitions: a publication sends the change of a partition's row with the oid of the partition,
//! or with the oid of a published partitioned table. With the oid of the partition, the change goes
//! to the shapes of the partition and of all its ancestors. With the oid of an ancestor, the
//! partition is unknown, so the shapes of all partitions of that ancestor are deleted.

mod followed_shapes;
mod open_transaction;
mod recent_transactions;
mod stream_relation;
mod table_group;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use forebay_pgoutput::{OldTuple, PgOutputMessage, Relation, Truncate};

pub(crate) use self::followed_shapes::FollowedShapes;
pub use self::stream_relation::PartitionTree;
use self::stream_relation::StreamRelation;
use self::table_group::{ChangeScratch, RowChange};

use self::open_transaction::OpenTransaction;
use crate::registry::StoreInner;
use crate::store::record::{CommitRecord, Record};

/// Error of the replication stream: it must start over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// A change or a commit outside a transaction.
    #[error("the stream has a change outside of a transaction")]
    NoTransaction,
    /// A change of a table without a preceding relation message.
    #[error("the stream has a change of table {oid}, which it hasn't described")]
    NoRelation {
        /// Oid of the table.
        oid: u32,
    },
    /// A message of a kind that Forebay doesn't request, such as a streamed transaction.
    #[error("the stream has a message of an unexpected kind")]
    Unexpected,
    /// The store was opened or reset after the stream started, so changes in between are missing.
    #[error("the stream started before the store was opened or reset")]
    Stale,
}

/// Applies the replication stream to the shapes of a store, message by message.
#[derive(Debug)]
pub struct Follower {
    inner: Arc<StoreInner>,
    /// Generation of the followed shapes when the stream started; see [`FollowedShapes::clear`].
    generation: u64,
    /// Relations that the stream has described, by oid.
    relations: HashMap<u32, StreamRelation>,
    /// Partition trees of tables that have ancestors or descendants, by oid.
    relatives: HashMap<u32, PartitionTree>,
    /// Number of relation messages so far. Each one gets the next number as its version.
    versions: u64,
    transaction: Option<OpenTransaction>,
    scratch: ChangeScratch,
}

impl Follower {
    pub(crate) fn new(inner: Arc<StoreInner>) -> Self {
        let generation = inner.followed().generation();
        let (relations, relatives) = (HashMap::new(), HashMap::new());
        let (transaction, scratch) = (None, ChangeScratch::default());
        Follower { inner, generation, relations, relatives, versions: 0, transaction, scratch }
    }

    /// Prepares for a new stream. The stream must repeat each transaction whose commit wasn't
    /// applied, and may repeat others.
    pub fn restart(&mut self) {
        self.relations.clear();
        self.relatives.clear();
        self.transaction = None;
        let mut followed = self.inner.followed();
        followed.abandon(&self.inner);
        self.generation = followed.generation();
    }

    /// Sets a table's ancestors and descendants in its partition tree. They apply from the next
    /// [`Relation`](PgOutputMessage::Relation) message of the table on, so call this right before
    /// it.
    pub fn set_partition_tree(&mut self, oid: u32, relatives: PartitionTree) {
        self.inner.followed().set_descendants(oid, &relatives.descendants);
        if relatives == PartitionTree::default() {
            self.relatives.remove(&oid);
        } else {
            self.relatives.insert(oid, relatives);
        }
    }

    /// Returns whether a relation is a partition, so that its changes also concern the partitioned
    /// tables above it.
    pub fn has_ancestors(&self, oid: u32) -> bool {
        !self.relatives.is_empty()
            && self.relations.get(&oid).is_some_and(|relation| !relation.ancestors.is_empty())
    }

    /// Applies a message, and queues its records for the store. The caller must wait for
    /// [`room`](crate::Shapes::room) after each batch of messages: the queue itself has no bound.
    ///
    /// # Errors
    /// If the stream is inconsistent: it must start over.
    pub fn apply(&mut self, message: &PgOutputMessage<'_>) -> Result<(), FollowError> {
        match message {
            PgOutputMessage::Begin(begin) => {
                let (lsn, xid) = (begin.final_lsn.0, begin.xid);
                let is_duplicate = !self.followed()?.begin(lsn, xid, &self.inner);
                self.transaction = Some(OpenTransaction::new(lsn, xid, is_duplicate, &self.inner.config));
                Ok(())
            }
            PgOutputMessage::Commit(commit) => self.commit(commit.end_lsn.0),
            PgOutputMessage::Relation(relation) => {
                self.describe(relation);
                Ok(())
            }
            PgOutputMessage::Insert(insert) => self.change(insert.relation, RowChange::Insert(insert.new)),
            PgOutputMessage::Update(update) => {
                let change = match update.old {
                    Some(OldTuple::Full(old)) => RowChange::Update(old, update.new),
                    Some(OldTuple::Key(_)) | None => RowChange::Incomplete,
                };
                self.change(update.relation, change)
            }
            PgOutputMessage::Delete(delete) => {
                let change = match delete.old {
                    OldTuple::Full(old) => RowChange::Delete(old),
                    OldTuple::Key(_) => RowChange::Incomplete,
                };
                self.change(delete.relation, change)
            }
            PgOutputMessage::Truncate(truncate) => self.truncate(truncate),
            PgOutputMessage::Origin(_) | PgOutputMessage::Type(_) | PgOutputMessage::Logical(_) => Ok(()),
            _ => Err(FollowError::Unexpected),
        }
    }

    /// Stores the description of a relation under a new version.
    fn describe(&mut self, relation: &Relation<'_>) {
        self.versions += 1;
        let relatives = self.relatives.get(&relation.oid);
        self.relations.insert(relation.oid, StreamRelation::new(relation, relatives, self.versions));
    }

    fn change(&mut self, oid: u32, change: RowChange<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        if transaction.is_duplicate {
            return Ok(());
        }
        let relation = self.relations.get(&oid).ok_or(FollowError::NoRelation { oid })?;
        transaction.add_table(oid);
        let mut followed = lock_followed(&self.inner, self.generation)?;
        for group in followed.groups(oid) {
            group.change(&relation.described, change, transaction, &mut self.scratch);
        }
        if relation.has_relatives() {
            change_relatives(relation, change, transaction, &mut followed, &mut self.scratch);
        }
        transaction.op += 2;
        for shape in self.scratch.unfit.drain(..) {
            followed.mark_unfit(shape, transaction, &self.inner);
        }
        if transaction.has_many_keys() {
            followed.count_keys(transaction, &self.inner);
        }
        if transaction.is_part_full() {
            if let Some(changes) = transaction.part(&mut followed) {
                self.inner.enqueue(Record::Part(changes));
            }
            followed.delete_overfull(&self.inner);
        }
        Ok(())
    }

    fn truncate(&mut self, truncate: &Truncate<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        if transaction.is_duplicate {
            return Ok(());
        }
        let mut followed = lock_followed(&self.inner, self.generation)?;
        for oid in truncate.relations.iter() {
            transaction.add_table(oid);
            let mut unfit = followed.shapes_of(oid);
            for ancestor in self.relations.get(&oid).into_iter().flat_map(|relation| &relation.ancestors) {
                transaction.add_table(*ancestor);
                unfit.extend(followed.shapes_of(*ancestor));
            }
            let descendants = self.relations.get(&oid).map_or(&[][..], |relation| &relation.descendants);
            unfit.extend(followed.shapes_of_any(descendants));
            unfit.into_iter().for_each(|shape| followed.mark_unfit(shape, transaction, &self.inner));
        }
        Ok(())
    }

    fn commit(&mut self, end: u64) -> Result<(), FollowError> {
        let mut transaction = self.transaction.take().ok_or(FollowError::NoTransaction)?;
        if transaction.is_duplicate {
            return Ok(());
        }
        let mut followed = self.followed()?;
        followed.count_keys(&mut transaction, &self.inner);
        let changes = transaction.last_part(&mut followed);
        let earlier = transaction.shapes_of_earlier_parts(&changes);
        self.inner.enqueue(Record::Commit(changes, CommitRecord { end, earlier }));
        followed.commit(&transaction, end, &self.inner);
        Ok(())
    }

    fn followed(&self) -> Result<MutexGuard<'_, FollowedShapes>, FollowError> {
        lock_followed(&self.inner, self.generation)
    }
}

/// Applies a change to the relatives of its relation. The change of a partition concerns the shapes
/// of its ancestors. The change of a partitioned table concerns an unknown partition, so the shapes
/// of all its partitions are unfit.
fn change_relatives(
    relation: &StreamRelation,
    change: RowChange<'_>,
    transaction: &mut OpenTransaction,
    followed: &mut FollowedShapes,
    scratch: &mut ChangeScratch,
) {
    if transaction.add_relation(relation) {
        // Once for each transaction is enough: the snapshot of a shape that is followed later must
        // see the whole transaction.
        scratch.unfit.extend(followed.shapes_of_any(&relation.descendants));
    }
    for oid in &relation.ancestors {
        for group in followed.groups(*oid) {
            group.change(&relation.unnamed, change, transaction, scratch);
        }
    }
}

/// Locks the followed shapes. Fails if they were cleared after the stream started.
fn lock_followed(inner: &StoreInner, generation: u64) -> Result<MutexGuard<'_, FollowedShapes>, FollowError> {
    let followed = inner.followed();
    if followed.generation() == generation { Ok(followed) } else { Err(FollowError::Stale) }
}
