//! Shape creation: fills a new shape with its snapshot and makes it durable.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use forebay_pgoutput::Snapshot;

use crate::encode::snapshot_end;
use crate::engine::ShapeEngine;
use crate::follow::SnapshotTiming;
use crate::row_keys::KeyCounts;
use crate::shape::{Shape, ShapeGone, SnapshotFailure};
use crate::store::disk::DiskFile;
use crate::store::record::{CompletedSnapshot, MAX_TEXT, Note, Record, SnapshotVisibility};
use crate::store::shape_files::{DIR, FileKind};
use crate::store::write_queue::AfterWrite;
use crate::store::writer_role::TurnGuard;

/// Creation of a shape, in progress. Its owner appends the rows of the snapshot. If dropped before
/// [`complete`](Self::complete) succeeds, the shape is removed.
#[derive(Debug)]
#[must_use = "if dropped, the shape is removed"]
pub struct ShapeCreation {
    engine: Arc<ShapeEngine>,
    shape: Arc<Shape>,
    /// Writer turn in which the creation started.
    turn: u64,
    /// Transactions that the snapshot sees, once it is taken.
    seen: Option<SnapshotVisibility>,
    /// Snapshot file. `None` while the snapshot is small enough for the WAL.
    file: Option<Arc<dyn DiskFile>>,
    is_sealed: bool,
    /// Whether the creation has succeeded or failed. If not, drop removes the shape.
    is_over: bool,
    /// Keys of all rows so far, if the table has no primary key.
    keys: Option<KeyCounts>,
}

impl ShapeCreation {
    pub(crate) fn new(engine: Arc<ShapeEngine>, shape: Arc<Shape>, turn: u64) -> Self {
        let has_no_key = shape.definition().table.key.is_empty();
        let keys = has_no_key.then(|| KeyCounts::begin(&shape, &engine.key_budget));
        ShapeCreation { engine, shape, turn, seen: None, file: None, is_sealed: false, is_over: false, keys }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// Starts to hold the stream's changes for the shape. Call it right before the snapshot is
    /// taken.
    ///
    /// The snapshot must see every change of the table that the stream has sent before;
    /// [`snapshot_taken`](Self::snapshot_taken) verifies that.
    ///
    /// Does nothing if the shape is gone, or if another writer turn has begun since the creation
    /// started.
    pub fn follow(&self) {
        if let Ok(_turn) = self.turn_guard(&self.engine)
            && self.shape.gone().is_none()
        {
            self.engine.following().add(Arc::clone(&self.shape));
        }
    }

    /// Sets the transactions that the snapshot sees. `lsn` is the WAL position of Postgres when the
    /// snapshot was taken: the snapshot sees no transaction with a commit at or above it.
    pub fn snapshot_taken(&mut self, snapshot: &Snapshot, lsn: u64) -> SnapshotTiming {
        let (seen, engine) = (SnapshotVisibility::new(snapshot, lsn), Arc::clone(&self.engine));
        // In another writer turn, another shape may have the same id. The next call of `rows` or
        // `seal` fails.
        let Ok(_turn) = self.turn_guard(&engine) else { return SnapshotTiming::InTime };
        let timing = engine.following().snapshot_taken(self.shape.id, seen.clone());
        if timing == SnapshotTiming::InTime {
            self.seen = Some(seen);
        }
        timing
    }

    /// Returns whether [`rows`](Self::rows) with this many bytes writes to disk. Otherwise it
    /// doesn't block.
    pub fn rows_block(&self, bytes: usize) -> bool {
        self.needs_file(self.shape.lock().snapshot.len(), bytes)
    }

    /// Returns whether [`seal`](Self::seal) will write to disk.
    pub fn seal_blocks(&self) -> bool {
        self.rows_block(self.seen.as_ref().map_or(0, |seen| snapshot_end(seen).len()))
    }

    fn needs_file(&self, so_far: u64, more: usize) -> bool {
        let small = self.engine.store.config.small_snapshot_bytes.min(MAX_TEXT) as u64;
        self.file.is_some() || so_far + more as u64 > small
    }

    /// Returns whether the whole snapshot is written.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Appends rows: messages, each with its separator. Clients can read them at once. Blocks on
    /// disk if the snapshot isn't small.
    ///
    /// # Errors
    /// If the disk fails, or this process doesn't write to the store any more.
    pub fn rows(&mut self, messages: Bytes) -> io::Result<()> {
        let engine = Arc::clone(&self.engine);
        let _turn = self.turn_guard(&engine)?;
        if let Some(keys) = &mut self.keys {
            keys.count_rows(&messages);
        }
        self.append(messages)
    }

    fn append(&mut self, messages: Bytes) -> io::Result<()> {
        let chunk_bytes = self.engine.store.config.chunk_bytes;
        let so_far = self.shape.lock().snapshot.len();
        if self.file.is_none() && self.needs_file(so_far, messages.len()) {
            let file = self.engine.store.files.create(self.shape.id, FileKind::Snapshot)?;
            let pieces = self.shape.lock().snapshot.unwritten(so_far).1;
            let mut at = 0;
            for piece in pieces {
                file.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
            self.shape.change(|state| state.snapshot.mark_written(so_far));
            self.file = Some(file);
        }
        if let Some(file) = &self.file {
            file.write_all_at(&messages, so_far)?;
        }
        self.shape.change(|state| state.snapshot.append_rows(messages, self.file.is_some(), chunk_bytes));
        self.shape.notify();
        Ok(())
    }

    /// Appends the end of the snapshot. Blocks on disk if the snapshot isn't small.
    ///
    /// # Errors
    /// If the disk fails, no snapshot was taken, or this process doesn't write to the store any
    /// more.
    pub fn seal(&mut self) -> io::Result<()> {
        let seen = self.seen.as_ref().ok_or_else(|| io::Error::other("the snapshot hasn't begun"))?;
        let end = snapshot_end(seen);
        let engine = Arc::clone(&self.engine);
        let _turn = self.turn_guard(&engine)?;
        // Set before the end is appended: a reader that sees the end must not take it for a row.
        self.shape.change(|state| state.rows_end = Some(state.snapshot.len()));
        self.append(end.into())?;
        self.shape.change(|state| state.snapshot.close_chunk());
        self.shape.notify();
        if let Some(file) = &self.file {
            file.sync_data()?;
            self.engine.store.disk.sync_dir(DIR)?;
        }
        self.is_sealed = true;
        Ok(())
    }

    /// Returns a guard of the creation's writer turn. While it is held, this process may write
    /// files.
    fn turn_guard<'a>(&self, engine: &'a ShapeEngine) -> io::Result<TurnGuard<'a>> {
        let turn = engine.store.role.turn().filter(|turn| **turn == self.turn);
        turn.ok_or_else(|| io::Error::other("this process doesn't write to the store any more"))
    }

    /// Waits until the shape is durable. The creation must be [sealed](Self::seal).
    ///
    /// # Errors
    /// If the shape was deleted meanwhile, this process doesn't write any more, or the creation
    /// isn't sealed.
    pub async fn complete(mut self) -> Result<(), ShapeGone> {
        let Some(seen) = self.seen.clone().filter(|_| self.is_sealed) else { return Err(ShapeGone::Deleted) };
        self.shape.wait_until_settled().await?;
        if let Some(keys) = self.keys.take()
            && let Ok(_turn) = self.turn_guard(&self.engine)
        {
            self.engine.following().set_key_counts(self.shape.id, keys);
        }
        let (completed, bytes) = {
            let state = self.shape.lock();
            let chunks = state.snapshot.chunks().iter().map(|chunk| chunk.end).collect();
            let len = state.snapshot.len();
            let mut bytes = Vec::new();
            if self.file.is_none() {
                state.snapshot.locate(0, len).pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
            }
            (CompletedSnapshot { id: self.shape.id, seen, len, chunks }, Bytes::from(bytes))
        };
        let record = Record::Note(Note::Complete(completed), bytes);
        let durable = self.engine.store.role.submit(record, AfterWrite::Nothing);
        let Ok(()) = durable.await else { return Err(ShapeGone::Deleted) };
        self.is_over = true;
        self.make_room();
        match self.shape.gone() {
            Some(gone) => Err(gone),
            None => Ok(()),
        }
    }

    /// Evicts other shapes if `max_bytes` is exceeded. A large snapshot is in its own file, so it
    /// doesn't enlarge the WAL, and no checkpoint would check the limit soon.
    fn make_room(&self) {
        let Some(limit) = self.engine.store.config.max_bytes else { return };
        if let Ok(_turn) = self.turn_guard(&self.engine) {
            // A client waited for this shape until now, so it counts as used.
            self.engine.registry.mark_used(&self.shape);
            self.engine.evict_bytes(limit);
        }
    }

    /// Removes the shape and passes the failure to its waiting readers.
    pub fn fail(mut self, failure: SnapshotFailure) {
        self.give_up(failure);
    }

    fn give_up(&mut self, failure: SnapshotFailure) {
        self.is_over = true;
        self.shape.end(ShapeGone::Failed(failure));
        // The guard is held until the deletion is queued. Without it, a later writer could give the
        // id to another shape, which would be deleted.
        let turn = self.turn_guard(&self.engine);
        if turn.is_ok() {
            self.engine.following().delete(self.shape.id);
        } else {
            self.engine.forget_if_same(&self.shape);
        }
    }
}

impl Drop for ShapeCreation {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up(SnapshotFailure { is_refusal: false, message: "it was given up".into() });
        }
        if self.file.is_some()
            && self.shape.gone().is_some()
            && let Ok(_turn) = self.turn_guard(&self.engine)
        {
            // The shape may have been deleted before the file was created.
            self.engine.store.files.remove(self.shape.id);
        }
    }
}
