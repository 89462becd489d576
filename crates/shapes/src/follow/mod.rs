//! From the stream of changes to the logs of shapes.
//!
//! Invariant: each committed transaction goes to each shape that it concerns exactly once, whole, in the order of the commits, unless the
//! shape's snapshot has seen it.
//! Kept by: a shape is followed from before its snapshot is taken; what comes before it is known what the snapshot has seen is held. A
//! transaction that the store has been given is passed over when it comes again; one that was cut is begun anew. A shape of which a change can't
//! be told (its table is another, its clause fails, its row is huge) is deleted: its clients start over.
//! Partitions: a publication sends the change of a partition's row either under the partition or
//! under the partitioned table that is published. Under the partition it goes to the shapes of the
//! partition and of all its ancestors. Under an ancestor it can't be known whose row it is, so
//! shapes of the partitions below are deleted.
//! Order: whatever is decided under the lock of [`Followed`] is queued for the store under it, so that the store's log has it in that order.

mod followed;
mod group;
mod recent;
mod relation;
#[cfg(test)]
mod tests;
mod transaction;

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use forebay_pgoutput::{OldTuple, PgOutputMessage, Relation, Truncate};

pub(crate) use self::followed::Followed;
use self::group::{RowChange, Scratch};
pub use self::relation::PartitionTree;
use self::relation::StreamRelation;

use self::transaction::Transaction;
use crate::registry::StoreInner;
use crate::store::record::{CommitRecord, Record};

/// The stream makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// A change, or a commit, outside of a transaction.
    #[error("the stream has a change outside of a transaction")]
    NoTransaction,
    /// A change of a table that wasn't described.
    #[error("the stream has a change of table {oid}, which it hasn't described")]
    NoRelation {
        /// The table's.
        oid: u32,
    },
    /// A kind of message that wasn't asked for.
    #[error("the stream has a message that wasn't asked for")]
    Unexpected,
    /// The store was opened anew or reset since the stream began: what came in between is lost.
    #[error("the stream began before the store did")]
    Stale,
}

/// Takes the stream in, message by message.
#[derive(Debug)]
pub struct Follower {
    inner: Arc<StoreInner>,
    /// Since when: see [`Followed::clear`].
    generation: u64,
    relations: HashMap<u32, StreamRelation>,
    /// Of tables that have any.
    relatives: HashMap<u32, PartitionTree>,
    versions: u64,
    transaction: Option<Transaction>,
    scratch: Scratch,
}

impl Follower {
    pub(crate) fn new(inner: Arc<StoreInner>) -> Self {
        let generation = inner.followed().generation();
        let (relations, relatives) = (HashMap::new(), HashMap::new());
        let (transaction, scratch) = (None, Scratch::default());
        Follower { inner, generation, relations, relatives, versions: 0, transaction, scratch }
    }

    /// Another stream begins: what wasn't committed comes again, and what was may.
    pub fn restart(&mut self) {
        self.relations.clear();
        self.relatives.clear();
        self.transaction = None;
        let mut followed = self.inner.followed();
        followed.abandon(&self.inner);
        self.generation = followed.generation();
    }

    /// Sets the place of a table in its tree of partitions, for the description of it that comes
    /// next, and in place of what was set before. To be called right before its
    /// [`Relation`](PgOutputMessage::Relation) is taken.
    pub fn relate(&mut self, oid: u32, relatives: PartitionTree) {
        self.inner.followed().relate(oid, &relatives.descendants);
        if relatives == PartitionTree::default() {
            self.relatives.remove(&oid);
        } else {
            self.relatives.insert(oid, relatives);
        }
    }

    /// Returns whether changes of a relation are also those of partitioned tables above it.
    pub fn has_ancestors(&self, oid: u32) -> bool {
        !self.relatives.is_empty()
            && self.relations.get(&oid).is_some_and(|relation| !relation.ancestors.is_empty())
    }

    /// Takes a message. What it means for shapes is on its way to the store when this returns; whoever calls waits for
    /// [`room`](crate::Shapes::room) there now and then.
    ///
    /// # Errors
    /// When the stream makes no sense: it has to begin again.
    pub fn take(&mut self, message: &PgOutputMessage<'_>) -> Result<(), FollowError> {
        match message {
            PgOutputMessage::Begin(begin) => {
                let (lsn, xid) = (begin.final_lsn.0, begin.xid);
                let is_known = !self.followed()?.begin(lsn, xid, &self.inner);
                self.transaction = Some(Transaction::new(lsn, xid, is_known, &self.inner.config));
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
                    Some(OldTuple::Key(_)) | None => RowChange::Untold,
                };
                self.change(update.relation, change)
            }
            PgOutputMessage::Delete(delete) => {
                let change = match delete.old {
                    OldTuple::Full(old) => RowChange::Delete(old),
                    OldTuple::Key(_) => RowChange::Untold,
                };
                self.change(delete.relation, change)
            }
            PgOutputMessage::Truncate(truncate) => self.truncate(truncate),
            PgOutputMessage::Origin(_) | PgOutputMessage::Type(_) | PgOutputMessage::Logical(_) => Ok(()),
            _ => Err(FollowError::Unexpected),
        }
    }

    fn describe(&mut self, relation: &Relation<'_>) {
        self.versions += 1;
        let relatives = self.relatives.get(&relation.oid);
        self.relations.insert(relation.oid, StreamRelation::new(relation, relatives, self.versions));
    }

    fn change(&mut self, oid: u32, change: RowChange<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        if transaction.is_known {
            return Ok(());
        }
        let relation = self.relations.get(&oid).ok_or(FollowError::NoRelation { oid })?;
        transaction.concerns(oid);
        let mut followed = current(&self.inner, self.generation)?;
        for group in followed.groups(oid) {
            group.change(&relation.described, change, transaction, &mut self.scratch);
        }
        if relation.has_relatives() {
            change_relatives(relation, change, transaction, &mut followed, &mut self.scratch);
        }
        transaction.op += 2;
        for shape in self.scratch.unfit.drain(..) {
            followed.unfit(shape, transaction, &self.inner);
        }
        if transaction.has_many_keys() {
            followed.count_keys(transaction, &self.inner);
        }
        if transaction.is_large() {
            if let Some(changes) = transaction.part(&mut followed) {
                self.inner.enqueue(Record::Part(changes));
            }
            followed.fail_overfull(&self.inner);
        }
        Ok(())
    }

    fn truncate(&mut self, truncate: &Truncate<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        if transaction.is_known {
            return Ok(());
        }
        let mut followed = current(&self.inner, self.generation)?;
        for oid in truncate.relations.iter() {
            transaction.concerns(oid);
            let mut unfit = followed.shapes_of(oid);
            for ancestor in self.relations.get(&oid).into_iter().flat_map(|relation| &relation.ancestors) {
                transaction.concerns(*ancestor);
                unfit.extend(followed.shapes_of(*ancestor));
            }
            let descendants = self.relations.get(&oid).map_or(&[][..], |relation| &relation.descendants);
            unfit.extend(followed.shapes_of_any(descendants));
            unfit.into_iter().for_each(|shape| followed.unfit(shape, transaction, &self.inner));
        }
        Ok(())
    }

    fn commit(&mut self, end: u64) -> Result<(), FollowError> {
        let mut transaction = self.transaction.take().ok_or(FollowError::NoTransaction)?;
        if transaction.is_known {
            return Ok(());
        }
        let mut followed = self.followed()?;
        followed.count_keys(&mut transaction, &self.inner);
        let changes = transaction.last_part(&mut followed);
        let earlier = transaction.earlier(&changes);
        self.inner.enqueue(Record::Commit(changes, CommitRecord { end, earlier }));
        followed.commit(&transaction, end, &self.inner);
        Ok(())
    }

    fn followed(&self) -> Result<MutexGuard<'_, Followed>, FollowError> {
        current(&self.inner, self.generation)
    }
}

/// A change of a partition is one of its ancestors, too. Of a partitioned table's row it isn't
/// known in which partition it is.
fn change_relatives(
    relation: &StreamRelation,
    change: RowChange<'_>,
    transaction: &mut Transaction,
    followed: &mut Followed,
    scratch: &mut Scratch,
) {
    if transaction.meets(relation) {
        // Once is enough: the snapshot of a shape that is followed later has to see the whole
        // transaction.
        scratch.unfit.extend(followed.shapes_of_any(&relation.descendants));
    }
    for oid in &relation.ancestors {
        for group in followed.groups(*oid) {
            group.change(&relation.unnamed, change, transaction, scratch);
        }
    }
}

/// What is followed, if it is what the stream began with.
fn current(inner: &StoreInner, generation: u64) -> Result<MutexGuard<'_, Followed>, FollowError> {
    let followed = inner.followed();
    if followed.generation() == generation { Ok(followed) } else { Err(FollowError::Stale) }
}
