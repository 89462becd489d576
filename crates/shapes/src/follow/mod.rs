//! From the stream of changes to the logs of shapes.
//!
//! Invariant: each committed transaction goes to each shape that it concerns exactly once, whole, in the order of the commits, unless the
//! shape's snapshot has seen it.
//! Kept by: a shape is followed from before its snapshot is taken; what comes before it is known what the snapshot has seen is held. A
//! transaction that the store has been given is passed over when it comes again; one that was cut is begun anew. A shape of which a change can't
//! be told (its table is another, its clause fails, its row is huge) is deleted: its clients start over.
//! Order: whatever is decided under the lock of [`Followed`] is queued for the store under it, so that the store's log has it in that order.

mod followed;
mod group;
#[cfg(test)]
mod tests;
mod transaction;

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use forebay_pgoutput::{Message, OldTuple, Relation, Truncate};

pub(crate) use self::followed::Followed;
use self::group::{Described, RowChange, Scratch};
use self::transaction::Transaction;
use crate::registry::Inner;
use crate::store::record::{Commit, Record};

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
    inner: Arc<Inner>,
    /// Since when: see [`Followed::clear`].
    generation: u64,
    relations: HashMap<u32, Described>,
    versions: u64,
    transaction: Option<Transaction>,
    scratch: Scratch,
}

impl Follower {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let generation = inner.followed().generation();
        let (relations, transaction, scratch) = (HashMap::new(), None, Scratch::default());
        Follower { inner, generation, relations, versions: 0, transaction, scratch }
    }

    /// Another stream begins: what wasn't committed comes again, and what was may.
    pub fn restart(&mut self) {
        self.relations.clear();
        self.transaction = None;
        let mut followed = self.inner.followed();
        followed.abandon(&self.inner);
        self.generation = followed.generation();
    }

    /// Takes a message. What it means for shapes is on its way to the store when this returns; whoever calls waits for
    /// [`room`](crate::Shapes::room) there now and then.
    ///
    /// # Errors
    /// When the stream makes no sense: it has to begin again.
    pub fn take(&mut self, message: &Message<'_>) -> Result<(), FollowError> {
        match message {
            Message::Begin(begin) => {
                let (lsn, xid) = (begin.final_lsn.0, begin.xid);
                let is_known = !self.followed()?.begin(lsn, xid, &self.inner);
                self.transaction = Some(Transaction::new(lsn, xid, is_known, &self.inner.config));
                Ok(())
            }
            Message::Commit(commit) => self.commit(commit.end.0),
            Message::Relation(relation) => {
                self.describe(relation);
                Ok(())
            }
            Message::Insert(insert) => self.change(insert.relation, RowChange::Insert(insert.new)),
            Message::Update(update) => {
                let change = match update.old {
                    Some(OldTuple::Full(old)) => RowChange::Update(old, update.new),
                    Some(OldTuple::Key(_)) | None => RowChange::Untold,
                };
                self.change(update.relation, change)
            }
            Message::Delete(delete) => {
                let change = match delete.old {
                    OldTuple::Full(old) => RowChange::Delete(old),
                    OldTuple::Key(_) => RowChange::Untold,
                };
                self.change(delete.relation, change)
            }
            Message::Truncate(truncate) => self.truncate(truncate),
            Message::Origin(_) | Message::Type(_) | Message::Logical(_) => Ok(()),
            _ => Err(FollowError::Unexpected),
        }
    }

    fn describe(&mut self, relation: &Relation<'_>) {
        self.versions += 1;
        self.relations.insert(relation.oid, Described::new(relation, self.versions));
    }

    fn change(&mut self, oid: u32, change: RowChange<'_>) -> Result<(), FollowError> {
        let transaction = self.transaction.as_mut().ok_or(FollowError::NoTransaction)?;
        if transaction.is_known {
            return Ok(());
        }
        let described = self.relations.get(&oid).ok_or(FollowError::NoRelation { oid })?;
        transaction.concerns(oid);
        let mut followed = current(&self.inner, self.generation)?;
        for group in followed.groups(oid) {
            group.change(described, change, transaction, &mut self.scratch);
        }
        transaction.op += 2;
        for shape in self.scratch.unfit.drain(..) {
            followed.unfit(shape, transaction, &self.inner);
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
            for shape in followed.shapes_of(oid) {
                followed.unfit(shape, transaction, &self.inner);
            }
        }
        Ok(())
    }

    fn commit(&mut self, end: u64) -> Result<(), FollowError> {
        let mut transaction = self.transaction.take().ok_or(FollowError::NoTransaction)?;
        if transaction.is_known {
            return Ok(());
        }
        let mut followed = self.followed()?;
        let changes = transaction.last_part(&mut followed);
        let earlier = transaction.earlier(&changes);
        self.inner.enqueue(Record::Commit(changes, Commit { end, earlier }));
        followed.commit(&transaction, end, &self.inner);
        Ok(())
    }

    fn followed(&self) -> Result<MutexGuard<'_, Followed>, FollowError> {
        current(&self.inner, self.generation)
    }
}

/// What is followed, if it is what the stream began with.
fn current(inner: &Inner, generation: u64) -> Result<MutexGuard<'_, Followed>, FollowError> {
    let followed = inner.followed();
    if followed.generation() == generation { Ok(followed) } else { Err(FollowError::Stale) }
}
