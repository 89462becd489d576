//! All shapes of a store, as those see them who use it.

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

/// All shapes of a store. Cheap to clone.
#[derive(Clone)]
pub struct Shapes {
    pub(crate) inner: Arc<StoreInner>,
}

/// What a store follows, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorePosition {
    /// As it was given to [`Shapes::reset`] or [`Shapes::adopt`].
    pub origin: String,
    /// Everything up to here is durable.
    pub lsn: u64,
}

/// Why a shape can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Somebody else writes to the store, or nobody does.
    #[error("this instance doesn't write to the store")]
    ReadOnly,
    /// Its clause can't be used.
    #[error(transparent)]
    Clause(#[from] FilterError),
}

/// The store can't be written, and so nothing goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store can't be written: {0}")]
pub struct StoreFailure(pub(crate) Arc<str>);

impl Shapes {
    /// Opens a store to read what is there. Blocks for the disk.
    ///
    /// # Errors
    /// When it isn't one that this program can read.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        let disk = RealDisk::open(config.dir.clone(), false)?;
        Shapes::on(Arc::new(disk), config)
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, config: StoreConfig) -> Result<Self, OpenError> {
        let inner = Arc::new(StoreInner::new(disk, config));
        replay::open(&inner)?;
        Ok(Shapes { inner })
    }

    /// Takes the right to write: whatever the log has is recovered, and shapes without a whole snapshot go. Blocks for the disk. Returns how far
    /// the store has come; `None`: it has followed nothing yet.
    ///
    /// # Errors
    /// When another process writes, the disk fails, or the directory is [unusable](Self::unusable).
    /// An unusable directory isn't changed.
    pub fn begin_writing(&self) -> Result<Option<StorePosition>, OpenError> {
        writer::begin(&self.inner).inspect_err(|error| self.inner.judge(error))?;
        self.inner.usable_again();
        self.inner.delete_inexact();
        Ok(self.position())
    }

    /// Gives the right to write back, once what is queued is durable. Blocks for the disk. Goes on to read.
    pub fn end_writing(&self) {
        writer::end(&self.inner);
    }

    /// Reads what another process has written meanwhile. Blocks for the disk. Does nothing while this one writes.
    ///
    /// # Errors
    /// When the disk fails, or the directory is [unusable](Self::unusable).
    pub fn refresh(&self) -> Result<(), OpenError> {
        replay::refresh(&self.inner).inspect_err(|error| self.inner.judge(error))
    }

    /// Why nothing of the store may be served: what this process has read is old, and it can't read
    /// on. Holds until the process begins to write.
    pub fn unusable(&self) -> Option<StoreUnusable> {
        self.inner.unusable()
    }

    /// How far it has come.
    pub fn position(&self) -> Option<StorePosition> {
        let origin = self.inner.registry().origin.clone()?;
        Some(StorePosition { origin, lsn: self.inner.durable.load(Ordering::Acquire) })
    }

    /// The offset `<seen>_0` is after everything that can be read, and before whatever comes.
    pub fn seen(&self) -> u64 {
        self.inner.seen()
    }

    /// Whether an offset lies beyond everything that can be read.
    pub fn is_beyond(&self, offset: Offset) -> bool {
        offset.lsn > self.inner.durable.load(Ordering::Acquire).max(self.seen())
    }

    /// Waits until an offset no longer lies beyond everything that can be read.
    pub async fn reaches(&self, offset: Offset) {
        while self.is_beyond(offset) {
            let progressed = self.inner.progressed.notified();
            tokio::pin!(progressed);
            // From here on no progress is missed.
            progressed.as_mut().enable();
            if !self.is_beyond(offset) {
                return;
            }
            progressed.await;
        }
    }

    /// Forgets everything, and follows `origin` from `lsn` on. Returns when that is durable.
    ///
    /// # Errors
    /// When nobody writes any more.
    pub async fn reset(&self, origin: String, lsn: u64) -> Result<(), CreateError> {
        let done = {
            let mut followed = self.inner.followed();
            followed.clear(lsn);
            let below = self.inner.registry().next_id;
            self.inner.submit(Record::Note(Note::Reset { origin, lsn, below }, Bytes::new()), false)
        };
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Follows the same history under another name. Returns when that is durable.
    ///
    /// # Errors
    /// When nobody writes any more.
    pub async fn adopt(&self, origin: String) -> Result<(), CreateError> {
        let done = self.inner.submit(Record::Note(Note::Adopt { origin }, Bytes::new()), false);
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Nothing concerns any shape up to here.
    pub fn advance(&self, lsn: u64) {
        self.inner.enqueue(Record::Note(Note::Advance { lsn }, Bytes::new()));
    }

    /// Whoever is to hear what is durable.
    pub fn on_durable(&self, tell: impl Fn(u64) + Send + Sync + 'static) {
        *lock(&self.inner.on_durable) = Some(Box::new(tell));
    }

    /// Waits until there is room for more.
    pub async fn room(&self) {
        let queue = self.inner.queue();
        queue.wait_for_room(self.inner.config.queued_bytes).await;
    }

    /// Who takes the stream in. One at a time.
    pub fn follower(&self) -> Follower {
        Follower::new(Arc::clone(&self.inner))
    }

    /// The shape with this handle.
    pub fn find(&self, handle: &str) -> Option<Arc<Shape>> {
        let shape = self.inner.registry().by_handle(handle)?;
        self.inner.touch(&shape);
        Some(shape)
    }

    /// Whether a shape of this handle, if it can't be found, may be one that somebody else has made since this process last looked. Handles are
    /// given in the order of their times.
    pub fn may_come(&self, handle: &str) -> bool {
        let registry = self.inner.registry();
        !self.is_writing() && time_of(handle).is_some_and(|time| time > registry.last_handle)
    }

    /// The shape that is defined so.
    pub fn find_same(&self, definition: &ShapeDefinition) -> Option<Arc<Shape>> {
        let shape = self.inner.registry().same(definition)?;
        self.inner.touch(&shape);
        Some(shape)
    }

    /// The shape that is defined so, and, if it was made for that, the duty to fill it. `micros`: the time since 1970, for its handle.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn find_or_create(
        &self,
        definition: ShapeDefinition,
        micros: u64,
    ) -> Result<(Arc<Shape>, Option<ShapeCreation>), CreateError> {
        let now = definition.table.state.as_ref();
        // In another catalog state, the shape may have to go first.
        let is_known = now.is_none_or(|now| self.state(definition.table.oid).as_ref() == Some(now));
        if (is_known || !self.is_writing())
            && let Some(shape) = self.find_same(&definition)
        {
            return Ok((shape, None));
        }
        self.inner.create(definition, micros)
    }

    /// Deletes a shape, for good. `false`: it was gone, or somebody else writes.
    pub fn delete(&self, handle: &str) -> bool {
        if !self.is_writing() {
            return false;
        }
        // The lock comes first: what is decided under it is queued in its order.
        let mut followed = self.inner.followed();
        let Some(shape) = self.inner.registry().by_handle(handle) else { return false };
        followed.delete(shape.id, &self.inner);
        true
    }

    /// A shape can't be read: if that is because its files are lost, it is deleted, so that another takes its place. Blocks for the disk.
    pub fn heal(&self, shape: &Arc<Shape>, why: &io::Error) {
        let is_missing = matches!(why.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof);
        if is_missing && self.is_writing() && shape.is_lost() && self.delete(shape.handle()) {
            tracing::error!(handle = shape.handle(), "a shape starts over: some of its files are lost");
        }
    }

    /// Deletes the shapes of a table, unless somebody else writes.
    pub fn delete_table(&self, oid: u32) {
        if self.is_writing() {
            let mut followed = self.inner.followed();
            self.inner.shapes_of(oid).into_iter().for_each(|shape| followed.delete(shape, &self.inner));
        }
    }

    /// Compares the shapes of a table with what the catalog says of it now, and deletes those that
    /// can't go on. Does nothing while another process writes.
    ///
    /// If the table has a [`state`](Table::state), it is compared with the one as of which all its
    /// shapes are right ([`CatalogState::change_since`]), and takes its place. A table without such
    /// a state adopts it.
    pub fn refit(&self, table: &TableSchema) {
        if self.is_writing() {
            self.inner.followed().refit(table, &self.inner);
        }
    }

    /// Whether there are shapes that follow a table.
    pub fn follows(&self, oid: u32) -> bool {
        self.inner.followed().has_table(oid)
    }

    /// Forgets the recent transactions that a snapshot of the database sees, which was taken just
    /// now. To be called every few seconds: a shape that is made meanwhile must be told if its own
    /// snapshot is too early ([`ShapeCreation::begun`]), and what is remembered for that takes memory.
    pub fn forget_visible(&self, snapshot: &Snapshot) {
        self.inner.followed().forget_visible(snapshot);
    }

    /// Returns the catalog state as of which all shapes of a table are right; `None`: it has no
    /// shapes, or no state was told.
    pub fn state(&self, oid: u32) -> Option<CatalogState> {
        self.inner.registry().baselines.get(oid).cloned()
    }

    /// Changes the catalog states as of which shapes are right, where a change of the catalog is
    /// known to leave all shapes right. Does nothing while another process writes.
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

    /// Returns the id of the newest shape of each table that has shapes, by the table's oid. It
    /// differs from an earlier one if the table got a shape since.
    pub fn newest_shapes(&self) -> HashMap<u32, u64> {
        self.inner.registry().baselines.newest_shapes().collect()
    }

    /// Returns the tables that have shapes, each oid once.
    pub fn tables(&self) -> Vec<Arc<TableSchema>> {
        let tables: HashMap<u32, Arc<TableSchema>> = {
            let registry = self.inner.registry();
            let tables = registry.shapes().map(|shape| &shape.definition().table);
            tables.map(|table| (table.oid, Arc::clone(table))).collect()
        };
        tables.into_values().collect()
    }

    /// All shapes, in no order.
    pub fn all(&self) -> Vec<Arc<Shape>> {
        self.inner.registry().shapes().cloned().collect()
    }

    /// Whether the disk is full: nothing is acknowledged, and what is there is served.
    pub fn is_full(&self) -> bool {
        self.inner.is_full.load(Ordering::Relaxed)
    }

    /// How many bytes of all shapes are only in memory and in the write-ahead log.
    pub fn unwritten_bytes(&self) -> u64 {
        self.inner.files.unwritten()
    }

    /// Returns how many times this process has begun to write; `None`: it doesn't write now.
    pub fn turn(&self) -> Option<u64> {
        self.inner.turn().map(|turn| *turn)
    }

    /// Whether this process writes.
    pub fn is_writing(&self) -> bool {
        self.inner.is_writing.load(Ordering::Acquire)
    }

    /// Waits until the store fails for good: then the process should end, since nobody knows what is on its disk.
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

    /// Makes the next start quick: returns when the log is short. Inside of a transaction, or without room on the disk, it stays as it is.
    ///
    /// # Errors
    /// When nobody writes any more.
    pub async fn checkpoint(&self) -> Result<(), CreateError> {
        let nothing = Record::Note(Note::Advance { lsn: 0 }, Bytes::new());
        let told = self.inner.submit(nothing, true);
        told.await.map_err(|_| CreateError::ReadOnly)
    }
}

impl fmt::Debug for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shapes").field("dir", &self.inner.config.dir).finish_non_exhaustive()
    }
}
