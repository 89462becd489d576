//! Public handle of a store: finds, creates and deletes shapes, and starts and ends writing.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;
use forebay_pgoutput::Snapshot;
use tokio::sync::oneshot;

use crate::config::StoreConfig;
use crate::creation::ShapeCreation;
use crate::definition::{CatalogState, ShapeDefinition, TableSchema};
use crate::engine::{CreateError, FoundShape, ShapeEngine, replay, writer};
use crate::filter::RowVerdict;
use crate::follow::{all_held_bytes, cached_verdicts};
use crate::follower::Follower;
use crate::offset::Offset;
use crate::registry::time_of;
use crate::shape::Shape;
use crate::store::disk::{Disk, RealDisk};
use crate::store::record::{Note, Record};
use crate::store::write_queue::AfterWrite;
use crate::store::{OpenError, Store, StoreFailure, StoreUnusable};
use crate::undecided_rows::UndecidedRows;

/// Handle of a store and all its shapes. Cheap to clone.
#[derive(Clone)]
pub struct Shapes {
    pub(crate) engine: Arc<ShapeEngine>,
}

/// Position of a store in the replication stream of the database that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorePosition {
    /// Name of the followed database history, set by [`Shapes::reset`] or [`Shapes::adopt`].
    pub origin: String,
    /// Position (LSN) from which on the stream must continue: everything before it is durable, and
    /// no shape is held from a commit before it.
    pub lsn: u64,
}

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
        let engine = Arc::new(ShapeEngine::new(Store::new(disk, config)));
        replay::open(&engine)?;
        Ok(Shapes { engine })
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
        let inexact = writer::begin(&self.engine).inspect_err(|error| self.engine.mark_unusable_if(error))?;
        self.engine.store.health.set_unusable(None);
        if self.is_writing() {
            self.engine.delete_all(inexact);
        }
        Ok(self.position())
    }

    /// Waits until all queued records are durable, then stops writing. On a full disk, drops the
    /// queued records, which weren't acknowledged. The store can still be read. Blocks on disk.
    pub fn end_writing(&self) {
        writer::end(&self.engine);
    }

    /// Applies the records that another process has written since the last call. Blocks on disk.
    /// Does nothing while this process writes.
    ///
    /// # Errors
    /// If the disk fails, or the directory is [unusable](Self::unusable).
    pub fn refresh(&self) -> Result<(), OpenError> {
        replay::refresh(&self.engine).inspect_err(|error| self.engine.mark_unusable_if(error))
    }

    /// Returns why the store must not be served; `None`: it may be served. An unusable store has
    /// records that this process can't read, so its data in memory is stale.
    /// Cleared when this process begins to write.
    pub fn unusable(&self) -> Option<StoreUnusable> {
        self.engine.store.health.unusable()
    }

    /// Returns the position of the store; `None`: it has followed nothing yet.
    pub fn position(&self) -> Option<StorePosition> {
        let progress = &self.engine.store.progress;
        Some(StorePosition { origin: progress.origin()?, lsn: progress.acknowledgeable() })
    }

    /// Returns an LSN that separates readable changes from later ones: the offset `<seen>_0` is
    /// after all readable changes and before all later ones, except those of held shapes.
    pub fn seen(&self) -> u64 {
        self.engine.store.progress.seen()
    }

    /// Returns an LSN that separates a shape's readable changes from later ones: the offset
    /// `<seen>_0` is after all changes that are readable now, and before all later ones. Call it
    /// before the log is read.
    pub fn seen_of(&self, shape: &Shape) -> u64 {
        // In this order: the hold of a transaction is set before the transaction is seen.
        shape.seen_at_most(self.seen())
    }

    /// Waits until Postgres must judge rows of a shape, and returns them. Several tasks may wait.
    pub async fn undecided_rows(&self) -> UndecidedRows {
        loop {
            let more = self.engine.undecided.notified();
            tokio::pin!(more);
            // From here on, no notification is missed.
            more.as_mut().enable();
            if let Some(rows) = self.take_undecided() {
                return rows;
            }
            more.await;
        }
    }

    pub(crate) fn take_undecided(&self) -> Option<UndecidedRows> {
        if !self.is_writing() {
            return None;
        }
        let mut following = self.engine.following();
        let (shape, questions) = following.take_undecided()?;
        Some(UndecidedRows::new(Arc::clone(&self.engine), shape, following.generation(), questions))
    }

    /// Sets the verdicts of Postgres on rows, one for each row in their order. Transactions that
    /// waited only for them reach the log. Undecided rows, and rows without a verdict, are asked
    /// again.
    pub fn decide(&self, rows: UndecidedRows, verdicts: &[RowVerdict]) {
        let (shape, generation, questions) = rows.take();
        if self.is_writing() {
            self.engine.following().decide(generation, shape.id, questions, verdicts);
        }
    }

    /// Deletes the shape of rows that Postgres can't judge. Its clients start over.
    pub fn give_up(&self, rows: UndecidedRows, reason: &str) {
        let (shape, generation, _) = rows.take();
        if self.is_writing() {
            let mut following = self.engine.following();
            if following.generation() == generation {
                following.delete_because(shape.id, reason);
            }
        }
    }

    /// Returns the number of shapes whose logs wait for verdicts of Postgres.
    pub fn held_shapes(&self) -> usize {
        self.all().iter().filter(|shape| shape.is_held()).count()
    }

    /// Returns the size of the changes that this process holds for all shapes, in bytes.
    pub fn held_bytes(&self) -> usize {
        all_held_bytes()
    }

    /// Returns the number of shapes that this process has deleted because too much was held for
    /// them, or for all shapes.
    pub fn overfull_shapes(&self) -> u64 {
        self.engine.following().overfull_count()
    }

    /// Returns the number of verdicts on rows that this process had cached: Postgres wasn't asked
    /// again.
    pub fn cached_verdicts(&self) -> u64 {
        cached_verdicts()
    }

    /// Waits until the store has reached the LSN of an offset.
    pub async fn wait_until_reached(&self, offset: Offset) {
        self.engine.store.progress.wait_until_reached(offset).await;
    }

    /// Deletes all shapes, and follows `origin` from `lsn` on. Returns when that is durable.
    ///
    /// # Errors
    /// If this process doesn't write any more.
    pub async fn reset(&self, origin: String, lsn: u64) -> Result<(), CreateError> {
        let done = {
            let mut following = self.engine.following();
            following.clear(lsn);
            let below = self.engine.registry.read().next_id;
            self.submit(Note::Reset { origin, lsn, below }, AfterWrite::Nothing)
        };
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Renames the history that the store follows. Returns when that is durable.
    ///
    /// # Errors
    /// If this process doesn't write any more.
    pub async fn adopt(&self, origin: String) -> Result<(), CreateError> {
        let done = self.submit(Note::Adopt { origin }, AfterWrite::Nothing);
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Queues an advance of the position to `lsn`. The caller guarantees that no change before
    /// `lsn` that isn't queued yet concerns a shape.
    pub fn advance(&self, lsn: u64) {
        let mut following = self.engine.following();
        following.check_resumed(lsn);
        following.log(Record::Note(Note::Advance { lsn }, Bytes::new()));
    }

    /// Sets the callback that receives each new durable position. The writer thread calls it under
    /// a lock, so it must be fast and must not use the store.
    pub fn on_durable(&self, callback: impl Fn(u64) + Send + Sync + 'static) {
        self.engine.store.progress.on_durable(Box::new(callback));
    }

    /// Waits until fewer than `queued_bytes` bytes are queued or being written, or this process
    /// stops writing. The consumer of the replication stream calls it after each batch.
    pub async fn wait_for_room(&self) {
        let queue = self.engine.store.role.queue();
        queue.wait_for_room(self.engine.store.config.queued_bytes).await;
    }

    /// Returns a follower, which applies the replication stream. At most one may be in use.
    pub fn follower(&self) -> Follower {
        Follower::new(Arc::clone(&self.engine))
    }

    /// Returns the shape with a handle, and marks it as used.
    pub fn find(&self, handle: &str) -> Option<Arc<Shape>> {
        let shape = self.engine.registry.read().by_handle(handle)?;
        self.engine.registry.mark_used(&shape);
        Some(shape)
    }

    /// Returns whether a shape with an unknown handle may have been created by another process
    /// since the last [`refresh`](Self::refresh). Handles contain increasing times.
    pub fn may_exist_elsewhere(&self, handle: &str) -> bool {
        let registry = self.engine.registry.read();
        !self.is_writing() && time_of(handle).is_some_and(|time| time > registry.last_handle)
    }

    /// Returns the shape with a definition, and marks it as used.
    pub fn find_same(&self, definition: &ShapeDefinition) -> Option<Arc<Shape>> {
        let shape = self.engine.registry.read().same(definition)?;
        self.engine.registry.mark_used(&shape);
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
        let is_known = now.is_none_or(|now| self.baseline(definition.table.oid).as_ref() == Some(now));
        if (is_known || !self.is_writing())
            && let Some(shape) = self.find_same(&definition)
        {
            return Ok((shape, None));
        }
        Ok(match self.engine.create(definition, micros)? {
            FoundShape::Existing(shape) => (shape, None),
            FoundShape::New(shape, turn) => {
                let creation = ShapeCreation::new(Arc::clone(&self.engine), Arc::clone(&shape), turn);
                (shape, Some(creation))
            }
        })
    }

    /// Deletes a shape permanently. Returns `false` if it doesn't exist, or this process doesn't
    /// write.
    pub fn delete(&self, handle: &str) -> bool {
        if !self.is_writing() {
            return false;
        }
        // Locked before the lookup, so that the WAL has the deletion in the order of all decisions
        // under this lock.
        let mut following = self.engine.following();
        let Some(shape) = self.engine.registry.read().by_handle(handle) else { return false };
        following.delete(shape.id);
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
            let mut following = self.engine.following();
            self.engine.registry.shapes_of(oid).into_iter().for_each(|shape| following.delete(shape));
        }
    }

    /// Compares the shapes of a table with its current schema, and deletes those that are incorrect
    /// for it. Does nothing if this process doesn't write.
    ///
    /// If the table has a [`state`](TableSchema::state), it is compared with the baseline of the
    /// table ([`CatalogState::change_since`]) and becomes the baseline. If the table has no
    /// baseline, the state becomes the baseline.
    pub fn check_schema(&self, table: &TableSchema) {
        if self.is_writing() {
            let mut following = self.engine.following();
            following.delete_unfit(table);
            following.apply_catalog_state(table);
        }
    }

    /// Returns whether any followed shape belongs to a table.
    pub fn follows(&self, oid: u32) -> bool {
        self.engine.following().has_table(oid)
    }

    /// Drops recent transactions that a snapshot taken just now sees. Call it every few seconds:
    /// the transactions take memory. They are kept so that [`ShapeCreation::snapshot_taken`] can
    /// detect a snapshot that was taken too early.
    pub fn forget_visible(&self, snapshot: &Snapshot) {
        self.engine.following().forget_visible(snapshot);
    }

    /// Returns the catalog state for which all shapes of a table are correct; `None`: the table has
    /// no shapes, or no state was set.
    pub fn baseline(&self, oid: u32) -> Option<CatalogState> {
        self.engine.registry.read().baselines.get(oid).cloned()
    }

    /// Updates the baselines of all tables after a catalog change that affects no shape. Does
    /// nothing if this process doesn't write.
    pub fn update_baselines(&self, update: impl Fn(&mut CatalogState)) {
        if !self.is_writing() {
            return;
        }
        let _order = self.engine.following();
        for table in self.tables() {
            let Some(before) = self.baseline(table.oid) else { continue };
            let mut state = before.clone();
            update(&mut state);
            if state != before {
                self.engine.set_baseline(&TableSchema { state: Some(state), ..TableSchema::clone(&table) });
            }
        }
    }

    /// Returns the oids of the tables that have shapes.
    pub fn table_oids(&self) -> Vec<u32> {
        self.engine.registry.read().baselines.oids().collect()
    }

    /// Returns the id of the newest shape of each table that has shapes, by table oid. It changes
    /// when the table gets a new shape.
    pub fn newest_shapes(&self) -> HashMap<u32, u64> {
        self.engine.registry.read().baselines.newest_shapes().collect()
    }

    /// Returns the tables that have shapes, one for each oid.
    pub fn tables(&self) -> Vec<Arc<TableSchema>> {
        let tables: HashMap<u32, Arc<TableSchema>> = {
            let registry = self.engine.registry.read();
            let tables = registry.shapes().map(|shape| &shape.definition().table);
            tables.map(|table| (table.oid, Arc::clone(table))).collect()
        };
        tables.into_values().collect()
    }

    /// Returns all shapes, unordered.
    pub fn all(&self) -> Vec<Arc<Shape>> {
        self.engine.registry.shapes()
    }

    /// Returns whether the disk is full. Then nothing is acknowledged, and existing data is served.
    pub fn is_full(&self) -> bool {
        self.engine.store.health.is_full()
    }

    /// Returns the number of bytes of all shapes that are only in memory and in the WAL.
    pub fn unwritten_bytes(&self) -> u64 {
        self.engine.store.files.unwritten()
    }

    /// Returns the writer turn: how many times this process has begun to write. `None`: it doesn't
    /// write.
    pub fn turn(&self) -> Option<u64> {
        self.engine.store.role.turn().map(|turn| *turn)
    }

    /// Returns whether this process writes to the store.
    pub fn is_writing(&self) -> bool {
        self.engine.store.role.is_writing()
    }

    /// Waits until the store fails permanently. Then the process should end, because the contents
    /// of the disk are unknown.
    pub async fn wait_for_failure(&self) -> StoreFailure {
        self.engine.store.health.wait_for_failure().await
    }

    /// Runs a checkpoint, which makes the WAL short and the next start fast. Skips it within a
    /// transaction and on a full disk.
    ///
    /// # Errors
    /// If this process doesn't write any more.
    pub async fn checkpoint(&self) -> Result<(), CreateError> {
        // A position never moves back, so this record has no effect of its own.
        let done = self.submit(Note::Advance { lsn: 0 }, AfterWrite::Checkpoint);
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Queues a note. The receiver completes when the note is durable and `after` is done.
    fn submit(&self, note: Note, after: AfterWrite) -> oneshot::Receiver<()> {
        self.engine.store.role.submit(Record::Note(note, Bytes::new()), after)
    }
}

impl fmt::Debug for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shapes").field("dir", &self.engine.store.config.dir).finish_non_exhaustive()
    }
}
