//! Engine: the parts of a store of shapes, and the operations that concern several of them.
//!
//! | part | owns |
//! |---|---|
//! | [`ShapeRegistry`] | the index of all shapes, their tables and baselines |
//! | [`FollowedShapes`] | which shapes are matched with changes, and the transactions held for them |
//! | [`Store`] | the directory: files, write queue, role of this process, progress, health |
//!
//! No part calls another one, which `no_part_of_a_store_calls_another` checks in the source. They
//! share the shapes, which read their own files. Rows flow one way: a decision of
//! [`FollowedShapes`] becomes a record in the queue; the [writer thread](writer) makes it durable
//! and [applies](apply) it. The result is what became visible, and [`ShapeEngine::notify`] wakes
//! the tasks that wait for it.
//!
//! Two calls go back from the writer thread to [`FollowedShapes`], and neither concerns a row:
//! [`ShapeEngine::evict_bytes`] after a checkpoint, and `forget_recent` after a reset of the store.

pub(crate) mod apply;
pub(crate) mod checkpoint;
mod compaction;
#[cfg(test)]
mod parts_tests;
pub(crate) mod replay;
pub(crate) mod writer;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::sync::Notify;

use self::apply::VisibleChanges;
use crate::definition::{ShapeDefinition, TableSchema};
use crate::filter::FilterError;
use crate::follow::{FollowEffect, FollowedShapes};
use crate::lock_order::{LockRank, RankedGuard, RankedMutex};
use crate::registry::ShapeRegistry;
use crate::row_keys::{self, KeyBudget, KeyCounts};
use crate::shape::{Shape, ShapeGone};
use crate::store::record::{Note, Record};
use crate::store::{OpenError, Store};

/// A store of shapes, shared by its handles, its creations and its writer thread.
pub(crate) struct ShapeEngine {
    pub(crate) registry: ShapeRegistry,
    pub(crate) store: Store,
    pub(crate) key_budget: Arc<KeyBudget>,
    followed: RankedMutex<FollowedShapes>,
    /// Wakes the tasks that pass undecided rows to Postgres.
    pub(crate) undecided: Notify,
}

/// The followed shapes, locked. Performs their decisions before it unlocks them.
pub(crate) struct FollowingGuard<'a> {
    engine: &'a ShapeEngine,
    followed: RankedGuard<MutexGuard<'a, FollowedShapes>>,
}

/// The shape of a definition, and whether it is new.
pub(crate) enum FoundShape {
    Existing(Arc<Shape>),
    /// A new shape without a snapshot, and the writer turn in which it was created.
    New(Arc<Shape>, u64),
}

/// Why a shape can't be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// This process doesn't write to the store.
    #[error("this instance doesn't write to the store")]
    ReadOnly,
    /// The where clause is invalid or not supported.
    #[error(transparent)]
    Clause(#[from] FilterError),
}

impl ShapeEngine {
    pub(crate) fn new(store: Store) -> Self {
        let followed = FollowedShapes::new(&store.config);
        ShapeEngine {
            registry: ShapeRegistry::new(Arc::clone(&store.files)),
            store,
            key_budget: Arc::default(),
            followed: RankedMutex::new(LockRank::Followed, followed),
            undecided: Notify::new(),
        }
    }

    /// Locks the followed shapes.
    pub(crate) fn following(&self) -> FollowingGuard<'_> {
        FollowingGuard { engine: self, followed: self.followed.lock() }
    }

    /// Wakes the readers of shapes, and the tasks that wait for a position.
    pub(crate) fn notify(&self, visible: &mut VisibleChanges) {
        visible.shapes.drain(..).for_each(|shape| shape.notify());
        if std::mem::take(&mut visible.has_progressed) {
            self.store.progress.notify();
        }
        if std::mem::take(&mut visible.is_other_history) {
            self.following().forget_recent();
        }
    }

    /// Returns the shape of a definition. Creates it if it doesn't exist. `micros` is the Unix time
    /// in microseconds, for the handle.
    pub(crate) fn create(&self, definition: ShapeDefinition, micros: u64) -> Result<FoundShape, CreateError> {
        let turn = *self.store.role.turn().ok_or(CreateError::ReadOnly)?;
        let filter = definition.filter()?;
        // Held until the shape is registered, so that its table's state stays the baseline.
        let mut following = self.following();
        following.apply_catalog_state(&definition.table);
        let mut index = self.registry.write();
        if let Some(shape) = index.same(&definition) {
            self.registry.mark_used(&shape);
            return Ok(FoundShape::Existing(shape));
        }
        index.last_handle = micros.max(index.last_handle + 1);
        let handle = format!("{}-{}", definition.fingerprint(), index.last_handle);
        let (id, table) = (index.next_id, definition.table.fingerprint());
        index.next_id += 1;
        let shape = Arc::new(self.registry.build(id, handle.clone(), definition, filter));
        self.registry.mark_used(&shape);
        let described = &shape.definition().table;
        let is_baseline = described.state.is_some() && index.baselines.get(described.oid).is_none();
        if is_baseline || !index.has_table(table, described) {
            self.queue_table(described);
        }
        let options = shape.definition().options.clone();
        self.queue_note(Note::Create { id, handle, table, options });
        index.add(Arc::clone(&shape));
        drop((index, following));
        // After registration: of several concurrent creations, the last one counts all shapes.
        let config = &self.store.config;
        let excess = self.registry.excess_shapes(config.max_shapes.max(1), config.clause_bytes, id);
        self.delete_all(excess);
        Ok(FoundShape::New(shape, turn))
    }

    /// Deletes the least recently used shapes until the others take at most `limit` bytes.
    pub(crate) fn evict_bytes(&self, limit: u64) {
        self.delete_all(self.registry.shapes_beyond_bytes(limit));
    }

    /// Deletes shapes permanently.
    pub(crate) fn delete_all(&self, shapes: Vec<u64>) {
        if !shapes.is_empty() {
            let mut following = self.following();
            shapes.into_iter().for_each(|shape| following.delete(shape));
        }
    }

    /// Makes a table's state its baseline. Does nothing if the table has no shapes.
    pub(crate) fn set_baseline(&self, table: &TableSchema) {
        let mut index = self.registry.write();
        if let Some(state) = &table.state
            && index.baselines.has_shapes(table.oid)
        {
            index.baselines.set(table.oid, state);
            // Queued under the registry lock, so that the WAL has baselines in the order of the
            // calls.
            self.queue_table(table);
        }
    }

    /// Queues a table, whose state is the new baseline.
    fn queue_table(&self, table: &TableSchema) {
        self.queue_note(Note::Table { id: table.fingerprint(), table: Box::new(table.clone()) });
    }

    /// Queues a note for the WAL.
    pub(crate) fn queue_note(&self, note: Note) {
        self.store.role.enqueue(Record::Note(note, Bytes::new()));
    }

    /// Removes a shape from the registry and ends its readers.
    pub(crate) fn forget(&self, id: u64) {
        let shape = self.registry.write().remove(id);
        if let Some(shape) = shape {
            self.store.files.close(id);
            shape.end(ShapeGone::Deleted);
        }
    }

    /// Removes a shape from the registry, unless another shape has its id.
    pub(crate) fn forget_if_same(&self, shape: &Arc<Shape>) {
        let is_same = self.registry.read().by_id(shape.id).is_some_and(|known| Arc::ptr_eq(known, shape));
        if is_same {
            self.forget(shape.id);
        }
    }

    /// Removes all shapes without a complete snapshot. Returns their ids.
    pub(crate) fn forget_incomplete(&self) -> Vec<u64> {
        let incomplete = self.registry.incomplete_shapes();
        incomplete.iter().for_each(|id| self.forget(*id));
        incomplete
    }

    /// Clears the followed shapes, then follows all complete ones. Blocks on disk if some tables
    /// have no primary key.
    ///
    /// Returns the shapes whose logs removed one of several equal rows: a release that didn't count
    /// keys wrote them. The caller deletes them as soon as this process can write.
    fn follow_all(&self) -> Vec<u64> {
        let (mut complete, mut inexact, mut bytes) = (Vec::new(), Vec::new(), row_keys::MAX_READ_TOTAL);
        // Before keys are counted again: the old counts return their reservations.
        self.following().clear(self.store.progress.durable());
        for shape in self.registry.shapes() {
            let (Some(seen), held_from) = ({
                let state = shape.lock();
                (state.seen.clone(), state.held_from)
            }) else {
                continue;
            };
            let keys = shape.definition().table.key.is_empty().then(|| {
                KeyCounts::read(&shape, &self.key_budget, &mut bytes).unwrap_or_else(|| {
                    inexact.push(shape.id);
                    KeyCounts::uncounted()
                })
            });
            complete.push((shape, seen, keys, held_from));
        }
        let mut following = self.following();
        following.clear(self.store.progress.durable());
        // Each commit is visible, also without messages.
        following.resume_holds(self.store.progress.seen().saturating_sub(1));
        for (shape, seen, keys, held_from) in complete {
            following.add_complete(shape, seen, keys, held_from);
        }
        inexact
    }

    /// Marks the store unusable if the error makes it so, and detaches the listeners of all shapes:
    /// nothing is served any more.
    pub(crate) fn mark_unusable_if(&self, error: &OpenError) {
        if let Some(unusable) = error.unusable() {
            self.store.health.set_unusable(Some(unusable));
            self.registry.shapes().iter().for_each(|shape| shape.interrupt());
        }
    }
}

impl FollowingGuard<'_> {
    /// Makes a catalog state the baseline of its table. First deletes the table's shapes if they
    /// are incorrect for that state.
    pub(crate) fn apply_catalog_state(&mut self, table: &TableSchema) {
        let Some(now) = &table.state else { return };
        let change = match self.engine.registry.read().baselines.get(table.oid) {
            Some(before) if before == now => return,
            Some(before) => now.change_since(before),
            None => None,
        };
        if let Some(change) = change {
            let TableSchema { schema, name, oid, .. } = table;
            tracing::info!(schema, name, oid, %change, "table shapes deleted: catalog changed");
            self.engine.registry.shapes_of(*oid).into_iter().for_each(|shape| self.followed.delete(shape));
        }
        // After the deletions, in memory and in the WAL: a crash in between must not lose them.
        self.perform();
        self.engine.set_baseline(table);
    }

    /// Performs the decisions about the followed shapes, in order.
    fn perform(&mut self) {
        for effect in self.followed.drain_effects() {
            match effect {
                FollowEffect::Log(record) => self.engine.store.role.enqueue(record),
                FollowEffect::Delete(id) => {
                    self.engine.store.unlogged_deletions.lock().insert(id);
                    self.engine.queue_note(Note::Delete { id });
                    self.engine.forget(id);
                }
                FollowEffect::Settle(shape) => shape.mark_settled(),
                FollowEffect::Ask => self.engine.undecided.notify_waiters(),
            }
        }
    }
}

impl Deref for FollowingGuard<'_> {
    type Target = FollowedShapes;

    fn deref(&self) -> &FollowedShapes {
        &self.followed
    }
}

impl DerefMut for FollowingGuard<'_> {
    fn deref_mut(&mut self) -> &mut FollowedShapes {
        &mut self.followed
    }
}

impl Drop for FollowingGuard<'_> {
    fn drop(&mut self) {
        self.perform();
    }
}

impl fmt::Debug for ShapeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeEngine").field("dir", &self.store.config.dir).finish_non_exhaustive()
    }
}
