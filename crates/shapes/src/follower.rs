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
//! altered or truncated, or the row is too large. An unfit shape is deleted, and its clients start
//! over.
//!
//! A row on which the clause of a shape fails is not in the shape. If only Postgres can judge a
//! row, the shape is [held](crate::follow) until it has.
//!
//! Partitions: a publication sends the change of a partition's row with the oid of the partition,
//! or with the oid of a published partitioned table. With the oid of the partition, the change goes
//! to the shapes of the partition and of all its ancestors. With the oid of an ancestor, the
//! partition is unknown, so the shapes of all partitions of that ancestor are deleted.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_pgoutput::{OldTuple, PgOutputMessage, Relation, Truncate};

use crate::engine::{FollowingGuard, ShapeEngine};
use crate::follow::{
    ChangeScratch, FollowedShapes, OpenTransaction, PartitionTree, RowChange, StreamRelation,
    TransactionReceipt,
};
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
    engine: Arc<ShapeEngine>,
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
    pub(crate) fn new(engine: Arc<ShapeEngine>) -> Self {
        let generation = engine.following().generation();
        let (relations, relatives) = (HashMap::new(), HashMap::new());
        let (transaction, scratch) = (None, ChangeScratch::default());
        Follower { engine, generation, relations, relatives, versions: 0, transaction, scratch }
    }

    /// Prepares for a new stream. The stream must repeat each transaction whose commit wasn't
    /// applied, and may repeat others.
    pub fn restart(&mut self) {
        self.relations.clear();
        self.relatives.clear();
        self.transaction = None;
        let mut following = self.engine.following();
        following.abandon();
        self.generation = following.generation();
    }

    /// Sets a table's ancestors and descendants in its partition tree. They apply from the next
    /// [`Relation`](PgOutputMessage::Relation) message of the table on, so call this right before
    /// it.
    pub fn set_partition_tree(&mut self, oid: u32, relatives: PartitionTree) {
        self.engine.following().set_descendants(oid, &relatives.descendants);
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

    /// Applies a message, and queues its records for the store. The queue itself has no bound: the
    /// caller must call [`wait_for_room`](crate::Shapes::wait_for_room) after each batch.
    ///
    /// # Errors
    /// If the stream is inconsistent: it must start over.
    pub fn apply(&mut self, message: &PgOutputMessage<'_>) -> Result<(), FollowError> {
        match message {
            PgOutputMessage::Begin(begin) => {
                let (lsn, xid) = (begin.final_lsn.0, begin.xid);
                let receipt = self.following()?.begin(lsn, xid);
                self.transaction = Some(OpenTransaction::new(lsn, xid, receipt, &self.engine.store.config));
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
        if transaction.receipt == TransactionReceipt::Repeated {
            return Ok(());
        }
        let relation = self.relations.get(&oid).ok_or(FollowError::NoRelation { oid })?;
        transaction.add_table(oid);
        let mut following = lock_following(&self.engine, self.generation)?;
        for group in following.groups(oid) {
            group.change(&relation.described, change, transaction, &mut self.scratch);
        }
        if relation.has_relatives() {
            change_relatives(relation, change, transaction, &mut following, &mut self.scratch);
        }
        transaction.op += 2;
        for shape in self.scratch.unfit.drain(..) {
            following.mark_unfit(shape, transaction);
        }
        for shape in self.scratch.overfull.drain(..) {
            following.delete_as_overfull(shape);
        }
        if transaction.has_many_keys() {
            following.count_keys(transaction);
        }
        if transaction.is_part_full() {
            for changes in transaction.parts(&mut following) {
                following.log(Record::Part(changes));
            }
            following.delete_overfull();
        }
        // A change may add rows to many holds.
        following.delete_largest_holds();
        Ok(())
    }

    fn truncate(&mut self, truncate: &Truncate<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        if transaction.receipt == TransactionReceipt::Repeated {
            return Ok(());
        }
        let mut following = lock_following(&self.engine, self.generation)?;
        for oid in truncate.relations.iter() {
            transaction.add_table(oid);
            let mut unfit = following.shapes_of(oid);
            for ancestor in self.relations.get(&oid).into_iter().flat_map(|relation| &relation.ancestors) {
                transaction.add_table(*ancestor);
                unfit.extend(following.shapes_of(*ancestor));
            }
            let descendants = self.relations.get(&oid).map_or(&[][..], |relation| &relation.descendants);
            unfit.extend(following.shapes_of_any(descendants));
            unfit.into_iter().for_each(|shape| following.mark_unfit(shape, transaction));
        }
        Ok(())
    }

    fn commit(&mut self, end: u64) -> Result<(), FollowError> {
        let mut transaction = self.transaction.take().ok_or(FollowError::NoTransaction)?;
        if transaction.receipt == TransactionReceipt::Repeated {
            return Ok(());
        }
        let mut following = self.following()?;
        following.count_keys(&mut transaction);
        if transaction.receipt == TransactionReceipt::First {
            let (parts, changes) = transaction.last_parts(&mut following);
            parts.into_iter().for_each(|part| following.log(Record::Part(part)));
            let earlier = transaction.shapes_of_earlier_parts(&changes);
            let holds = following.begin_holds(&transaction);
            following.log(Record::Commit(changes, CommitRecord { end, earlier, holds }));
        }
        following.commit(&transaction, end);
        Ok(())
    }

    fn following(&self) -> Result<FollowingGuard<'_>, FollowError> {
        lock_following(&self.engine, self.generation)
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
fn lock_following(engine: &ShapeEngine, generation: u64) -> Result<FollowingGuard<'_>, FollowError> {
    let following = engine.following();
    if following.generation() == generation { Ok(following) } else { Err(FollowError::Stale) }
}
