//! Public handle of a store: finds, creates and deletes shapes, and starts and ends writing.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_pgoutput::Snapshot;

use crate::config::StoreConfig;
use crate::creation::ShapeCreation;
use crate::definition::{CatalogState, ShapeDefinition, TableSchema};
use crate::filter::FilterError;
use crate::follow::Follower;
use crate::offset::Offset;
use crate::registry::{StoreInner, lock, time_of};
use crate::shape::Shape;
use crate::store::disk::{Disk, RealDisk};
use crate::store::record::{Note, Record};
use crate::store::{OpenError, StoreUnusable, replay, writer};

/// Handle of a store and all its shapes. Cheap to clone.
#[derive(Clone)]
pub struct Shapes {
    pub(crate) inner: Arc<StoreInner>,
}

/// Position of a store in the replication stream of the database that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorePosition {
    /// Name of the followed database history, set by [`Shapes::reset`] or [`Shapes::adopt`].
    pub origin: String,
    /// Position (LSN) up to which everything is durable.
    pub lsn: u64,
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

/// Fatal error: the store can't be written any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store can't be written: {0}")]
pub struct StoreFailure(pub(crate) Arc<str>);

impl Shapes {
    /// Opens a store for reading. Blocks on disk.
    ///
    /// # Errors
    /// If this release can't read the directory.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        let disk = RealDisk::open(config.dir.clone(), false)?;
        Shapes::on(Arc::new(disk), config)
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, config: StoreConfig) -> Result<Self, OpenError> {
        let inner = Arc::new(StoreInner::new(disk, config));
        replay::open(&inner)?;
        Ok(Shapes { inner })
    }

    /// Starts to write. Applies the whole WAL, and removes shapes without a complete snapshot.
    /// Blocks on disk.
    ///
    /// Returns the position of the store; `None`: it has followed nothing yet.
    ///
    /// # Errors
    /// If another process writes, the disk fails, or the directory is [unusable](Self::unusable).
    /// An unusable directory isn't changed.
    pub fn begin_writing(&self) -> Result<Option<StorePosition>, OpenError> {
        writer::begin(&self.inner).inspect_err(|error| self.inner.mark_unusable_if(error))?;
        self.inner.mark_usable();
        self.inner.delete_inexact();
        Ok(self.position())
    }

    /// Waits until all queued records are durable, then stops writing. On a full disk, drops the
    /// queued records, which weren't acknowledged. The store can still be read. Blocks on disk.
    pub fn end_writing(&self) {
        writer::end(&self.inner);
    }

    /// Applies the records that another process has written since the last call. Blocks on disk.
    /// Does nothing while this process writes.
    ///
    /// # Errors
    /// If the disk fails, or the directory is [unusable](Self::unusable).
    pub fn refresh(&self) -> Result<(), OpenError> {
        replay::refresh(&self.inner).inspect_err(|error| self.inner.mark_unusable_if(error))
    }

    /// Returns why the store must not be served; `None`: it may be served. An unusable store has
    /// records that this process can't read, so its data in memory is stale.
    /// Cleared when this process begins to write.
    pub fn unusable(&self) -> Option<StoreUnusable> {
        self.inner.unusable()
    }

    /// Returns the position of the store; `None`: it has followed nothing yet.
    pub fn position(&self) -> Option<StorePosition> {
        let origin = self.inner.registry().origin.clone()?;
        Some(StorePosition { origin, lsn: self.inner.durable.load(Ordering::Acquire) })
    }

    /// Returns an LSN that separates readable changes from later ones: the offset `<seen>_0` is
    /// after all readable changes and before all later ones.
    pub fn seen(&self) -> u64 {
        self.inner.seen()
    }

    /// Returns whether the store hasn't reached the LSN of an offset yet.
    pub fn is_beyond(&self, offset: Offset) -> bool {
        offset.lsn > self.inner.durable.load(Ordering::Acquire).max(self.seen())
    }

    /// Waits until the store has reached the LSN of an offset.
    pub async fn reaches(&self, offset: Offset) {
        while self.is_beyond(offset) {
            let progressed = self.inner.progressed.notified();
            tokio::pin!(progressed);
            // From here on, no notification is missed.
            progressed.as_mut().enable();
            if !self.is_beyond(offset) {
                return;
            }
            progressed.await;
        }
    }

    /// Deletes all shapes, and follows `origin` from `lsn` on. Returns when that is durable.
    ///
    /// # Errors
    /// If this process doesn't write any more.
    pub async fn reset(&self, origin: String, lsn: u64) -> Result<(), CreateError> {
        let done = {
            let mut followed = self.inner.followed();
            followed.clear(lsn);
            let below = self.inner.registry().next_id;
            self.inner.submit(Record::Note(Note::Reset { origin, lsn, below }, Bytes::new()), false)
        };
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Renames the history that the store follows. Returns when that is durable.
    ///
    /// # Errors
    /// If this process doesn't write any more.
    pub async fn adopt(&self, origin: String) -> Result<(), CreateError> {
        let done = self.inner.submit(Record::Note(Note::Adopt { origin }, Bytes::new()), false);
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Queues an advance of the position to `lsn`. The caller guarantees that no change before
    /// `lsn` that isn't queued yet concerns a shape.
    pub fn advance(&self, lsn: u64) {
        self.inner.enqueue(Record::Note(Note::Advance { lsn }, Bytes::new()));
    }

    /// Sets the callback that receives each new durable position.
    pub fn on_durable(&self, callback: impl Fn(u64) + Send + Sync + 'static) {
        *lock(&self.inner.on_durable) = Some(Box::new(callback));
    }

    /// Waits until fewer than `queued_bytes` bytes are queued, or this process stops writing.
    pub async fn room(&self) {
        let queue = self.inner.queue();
        queue.wait_for_room(self.inner.config.queued_bytes).await;
    }

    /// Returns a follower, which applies the replication stream. At most one may be in use.
    pub fn follower(&self) -> Follower {
        Follower::new(Arc::clone(&self.inner))
    }

    /// Returns the shape with a handle, and marks it as used.
    pub fn find(&self, handle: &str) -> Option<Arc<Shape>> {
        let shape = self.inner.registry().by_handle(handle)?;
        self.inner.touch(&shape);
        Some(shape)
    }

    /// Returns whether a shape with an unknown handle may have been created by another process
    /// since the last [`refresh`](Self::refresh). Handles contain increasing times.
    pub fn may_exist_elsewhere(&self, handle: &str) -> bool {
        let registry = self.inner.registry();
        !self.is_writing() && time_of(handle).is_some_and(|time| time > registry.last_handle)
    }

    /// Returns the shape with a definition, and marks it as used.
    pub fn find_same(&self, definition: &ShapeDefinition) -> Option<Arc<Shape>> {
        let shape = self.inner.registry().same(definition)?;
        self.inner.touch(&shape);
        Some(shape)
    }

    /// Returns the shape with a definition. If it doesn't exist, creates it and also returns a
    /// [`ShapeCreation`], with which the caller must fill it. `micros` is the Unix time in
    /// microseconds, for the handle.
    ///
    /// # Errors
    /// If the clause is invalid, or this process doesn't write.
    pub fn find_or_create(
        &self,
        definition: ShapeDefinition,
        micros: u64,
    ) -> Result<(Arc<Shape>, Option<ShapeCreation>), CreateError> {
        let now = definition.table.state.as_ref();
        // In another catalog state, `create` may have to delete the shape first.
        let is_known = now.is_none_or(|now| self.state(definition.table.oid).as_ref() == Some(now));
        if (is_known || !self.is_writing())
            && let Some(shape) = self.find_same(&definition)
        {
            return Ok((shape, None));
        }
        self.inner.create(definition, micros)
    }

    /// Deletes a shape permanently. Returns `false` if it doesn't exist, or this process doesn't
    /// write.
    pub fn delete(&self, handle: &str) -> bool {
        if !self.is_writing() {
            return false;
        }
        // Locked before the lookup, so that the WAL has the deletion in the order of all decisions
        // under this lock.
        let mut followed = self.inner.followed();
        let Some(shape) = self.inner.registry().by_handle(handle) else { return false };
        followed.delete(shape.id, &self.inner);
        true
    }

    /// Deletes a shape whose files are lost, so that a new shape can replace it. `why` is the error
    /// of a read; does nothing if all files exist. Blocks on disk.
    pub fn heal(&self, shape: &Arc<Shape>, why: &io::Error) {
        let is_missing = matches!(why.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof);
        if is_missing && self.is_writing() && shape.is_lost() && self.delete(shape.handle()) {
            tracing::error!(handle = shape.handle(), "shape deleted: files lost");
        }
    }

    /// Deletes all shapes of a table. Does nothing if this process doesn't write.
    pub fn delete_table(&self, oid: u32) {
        if self.is_writing() {
            let mut followed = self.inner.followed();
            self.inner.shapes_of(oid).into_iter().for_each(|shape| followed.delete(shape, &self.inner));
        }
    }

    /// Compares the shapes of a table with its current schema, and deletes those that are incorrect
    /// for it. Does nothing if this process doesn't write.
    ///
    /// If the table has a [`state`](TableSchema::state), it is compared with the baseline of the
    /// table ([`CatalogState::change_since`]) and becomes the baseline. If the table has no
    /// baseline, the state becomes the baseline.
    pub fn refit(&self, table: &TableSchema) {
        if self.is_writing() {
            self.inner.followed().refit(table, &self.inner);
        }
    }

    /// Returns whether any followed shape belongs to a table.
    pub fn follows(&self, oid: u32) -> bool {
        self.inner.followed().has_table(oid)
    }

    /// Drops recent transactions that a snapshot taken just now sees. Call it every few seconds:
    /// the transactions take memory. They are kept so that [`ShapeCreation::snapshot_taken`] can
    /// detect a snapshot that was taken too early.
    pub fn forget_visible(&self, snapshot: &Snapshot) {
        self.inner.followed().forget_visible(snapshot);
    }

    /// Returns the catalog state for which all shapes of a table are correct; `None`: the table has
    /// no shapes, or no state was set.
    pub fn state(&self, oid: u32) -> Option<CatalogState> {
        self.inner.registry().baselines.get(oid).cloned()
    }

    /// Updates the baselines of all tables after a catalog change that affects no shape. Does
    /// nothing if this process doesn't write.
    pub fn update_states(&self, update: impl Fn(&mut CatalogState)) {
        if !self.is_writing() {
            return;
        }
        let _order = self.inner.followed();
        for table in self.tables() {
            let Some(before) = self.state(table.oid) else { continue };
            let mut state = before.clone();
            update(&mut state);
            if state != before {
                self.inner.set_baseline(&TableSchema { state: Some(state), ..TableSchema::clone(&table) });
            }
        }
    }

    /// Returns the oids of the tables that have shapes.
    pub fn table_oids(&self) -> Vec<u32> {
        self.inner.registry().baselines.oids().collect()
    }

    /// Returns the id of the newest shape of each table that has shapes, by table oid. It changes
    /// when the table gets a new shape.
    pub fn newest_shapes(&self) -> HashMap<u32, u64> {
        self.inner.registry().baselines.newest_shapes().collect()
    }

    /// Returns the tables that have shapes, one for each oid.
    pub fn tables(&self) -> Vec<Arc<TableSchema>> {
        let tables: HashMap<u32, Arc<TableSchema>> = {
            let registry = self.inner.registry();
            let tables = registry.shapes().map(|shape| &shape.definition().table);
            tables.map(|table| (table.oid, Arc::clone(table))).collect()
        };
        tables.into_values().collect()
    }

    /// Returns all shapes, unordered.
    pub fn all(&self) -> Vec<Arc<Shape>> {
        self.inner.registry().shapes().cloned().collect()
    }

    /// Returns whether the disk is full. Then nothing is acknowledged, and existing data is served.
    pub fn is_full(&self) -> bool {
        self.inner.is_full.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of all shapes that are only in memory and in the WAL.
    pub fn unwritten_bytes(&self) -> u64 {
        self.inner.files.unwritten()
    }

    /// Returns the writer turn: how many times this process has begun to write. `None`: it doesn't
    /// write.
    pub fn turn(&self) -> Option<u64> {
        self.inner.turn().map(|turn| *turn)
    }

    /// Returns whether this process writes to the store.
    pub fn is_writing(&self) -> bool {
        self.inner.is_writing.load(Ordering::Acquire)
    }

    /// Waits until the store fails permanently. Then the process should end, because the contents
    /// of the disk are unknown.
    pub async fn failed(&self) -> StoreFailure {
        loop {
            let failed = self.inner.failed.notified();
            tokio::pin!(failed);
            failed.as_mut().enable();
            if let Some(failure) = lock(&self.inner.failure).clone() {
                return failure;
            }
            failed.await;
        }
    }

    /// Runs a checkpoint, which makes the WAL short and the next start fast. Skips it within a
    /// transaction and on a full disk.
    ///
    /// # Errors
    /// If this process doesn't write any more.
    pub async fn checkpoint(&self) -> Result<(), CreateError> {
        let nothing = Record::Note(Note::Advance { lsn: 0 }, Bytes::new());
        let done = self.inner.submit(nothing, true);
        done.await.map_err(|_| CreateError::ReadOnly)
    }
}

impl fmt::Debug for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shapes").field("dir", &self.inner.config.dir).finish_non_exhaustive()
    }
}
