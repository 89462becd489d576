//! Making a shape: its snapshot, from nothing to complete.

use std::io;
use std::sync::{Arc, RwLockReadGuard};

use bytes::Bytes;
use forebay_pgoutput::Snapshot;

use crate::encode::SEPARATOR;
use crate::registry::StoreInner;
use crate::row_keys::KeyCounts;
use crate::shape::{Shape, ShapeGone, SnapshotFailure};
use crate::store::disk::DiskFile;
use crate::store::record::{CompletedSnapshot, MAX_TEXT, Note, Record, SnapshotVisibility};
use crate::store::shape_files::{DIR, FileKind};

/// The duty to fill a shape. Dropped before its time, the shape is gone.
#[derive(Debug)]
#[must_use = "dropped, the shape is gone"]
pub struct ShapeCreation {
    inner: Arc<StoreInner>,
    shape: Arc<Shape>,
    /// When it was begun.
    turn: u64,
    seen: Option<SnapshotVisibility>,
    /// Once the snapshot isn't small.
    file: Option<Arc<dyn DiskFile>>,
    is_sealed: bool,
    is_over: bool,
    /// The keys of all rows by now, if the table has no primary key.
    keys: Option<KeyCounts>,
}

impl ShapeCreation {
    pub(crate) fn new(inner: Arc<StoreInner>, shape: Arc<Shape>, turn: u64) -> Self {
        let has_no_key = shape.definition().table.key.is_empty();
        let keys = has_no_key.then(|| KeyCounts::begin(&shape, &inner.key_budget));
        ShapeCreation { inner, shape, turn, seen: None, file: None, is_sealed: false, is_over: false, keys }
    }

    /// The shape.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// From now on, what the stream says of the shape is held for it: right before the snapshot is taken.
    ///
    /// What the stream has brought of the table by now, the snapshot must see: [`begun`](Self::begun) says whether it does.
    ///
    /// Nothing is held for one that is gone, or was begun before another process wrote.
    pub fn follow(&self) {
        // The turn comes first, as everywhere: whoever waits to end it would stand between two who take both the other way round.
        if let Ok(_turn) = self.writes(&self.inner)
            && self.shape.gone().is_none()
        {
            self.inner.followed().add(Arc::clone(&self.shape));
        }
    }

    /// The snapshot is taken: it sees these transactions, and none whose commit isn't before `lsn`, which is where the log was then.
    /// `false`: it was taken too early, and another is to be taken in its place.
    #[must_use]
    pub fn begun(&mut self, snapshot: &Snapshot, lsn: u64) -> bool {
        let (seen, inner) = (SnapshotVisibility::new(snapshot, lsn), Arc::clone(&self.inner));
        // In another turn its number may be another shape's. Its rows are refused then.
        let Ok(_turn) = self.writes(&inner) else { return true };
        let is_in_time = inner.followed().begun(self.shape.id, seen.clone(), &inner);
        if is_in_time {
            self.seen = Some(seen);
        }
        is_in_time
    }

    /// Whether [`rows`](Self::rows) of so many bytes go to the disk: few stay in memory, and need no thread that may block.
    pub fn rows_block(&self, bytes: usize) -> bool {
        self.needs_file(self.shape.lock().snapshot.len(), bytes)
    }

    /// The same of [`seal`](Self::seal), before its time.
    pub fn seal_blocks(&self) -> bool {
        self.rows_block(self.seen.as_ref().map_or(0, |seen| snapshot_end(seen).len()))
    }

    fn needs_file(&self, so_far: u64, more: usize) -> bool {
        let small = self.inner.config.small_snapshot_bytes.min(MAX_TEXT) as u64;
        self.file.is_some() || so_far + more as u64 > small
    }

    /// Whether all of it is there.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Rows, as messages, each with its separator. They can be read at once. Blocks for the disk, once there are many.
    ///
    /// # Errors
    /// When the disk fails, or this process doesn't write any more.
    pub fn rows(&mut self, messages: Bytes) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        let _turn = self.writes(&inner)?;
        if let Some(keys) = &mut self.keys {
            keys.take_rows(&messages);
        }
        self.append(messages)
    }

    fn append(&mut self, messages: Bytes) -> io::Result<()> {
        let chunk_bytes = self.inner.config.chunk_bytes;
        let so_far = self.shape.lock().snapshot.len();
        if self.file.is_none() && self.needs_file(so_far, messages.len()) {
            let file = self.inner.files.create(self.shape.id, FileKind::Snapshot)?;
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

    /// All rows are there. Blocks for the disk, if there are many.
    ///
    /// # Errors
    /// When the disk fails, or this process doesn't write any more.
    pub fn seal(&mut self) -> io::Result<()> {
        let seen = self.seen.as_ref().ok_or_else(|| io::Error::other("the snapshot hasn't begun"))?;
        let end = snapshot_end(seen);
        let inner = Arc::clone(&self.inner);
        let _turn = self.writes(&inner)?;
        // First: whoever sees the end knows that it is no row.
        self.shape.change(|state| state.rows_end = Some(state.snapshot.len()));
        self.append(end.into())?;
        self.shape.change(|state| state.snapshot.close_chunk());
        self.shape.notify();
        if let Some(file) = &self.file {
            file.sync_data()?;
            self.inner.disk.sync_dir(DIR)?;
        }
        self.is_sealed = true;
        Ok(())
    }

    /// While this is held, the files are this process's to write.
    fn writes<'a>(&self, inner: &'a StoreInner) -> io::Result<RwLockReadGuard<'a, u64>> {
        let turn = inner.turn().filter(|turn| **turn == self.turn);
        turn.ok_or_else(|| io::Error::other("this process doesn't write to the store any more"))
    }

    /// Waits until the shape is durable: from then on it survives. Only after it was [sealed](Self::seal).
    ///
    /// # Errors
    /// When it went meanwhile.
    pub async fn complete(mut self) -> Result<(), ShapeGone> {
        let Some(seen) = self.seen.clone().filter(|_| self.is_sealed) else { return Err(ShapeGone::Deleted) };
        self.shape.until_settled().await?;
        if let Some(keys) = self.keys.take()
            && let Ok(_turn) = self.writes(&self.inner)
        {
            self.inner.followed().counted(self.shape.id, keys, &self.inner);
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
        let durable = self.inner.submit(Record::Note(Note::Complete(completed), bytes), false);
        let Ok(()) = durable.await else { return Err(ShapeGone::Deleted) };
        self.is_over = true;
        self.make_room();
        match self.shape.gone() {
            Some(gone) => Err(gone),
            None => Ok(()),
        }
    }

    /// A large snapshot is in its file, and never in the log that checkpoints make short.
    fn make_room(&self) {
        let Some(limit) = self.inner.config.max_bytes else { return };
        if let Ok(_turn) = self.writes(&self.inner) {
            // Somebody waited for it until now.
            self.inner.touch(&self.shape);
            self.inner.evict_bytes(limit);
        }
    }

    /// The snapshot failed: the shape is gone, and whoever waits for it is told why.
    pub fn fail(mut self, failure: SnapshotFailure) {
        self.give_up(failure);
    }

    fn give_up(&mut self, failure: SnapshotFailure) {
        self.is_over = true;
        self.shape.end(ShapeGone::Failed(failure));
        if self.writes(&self.inner).is_ok() {
            self.inner.followed().delete(self.shape.id, &self.inner);
        } else {
            self.inner.forget_this(&self.shape);
        }
    }
}

/// The last message of a snapshot, with its separator.
pub(crate) fn snapshot_end(seen: &SnapshotVisibility) -> Vec<u8> {
    let message = serde_json::json!({"headers": {
        "control": "snapshot-end",
        "xmin": seen.xmin.to_string(),
        "xmax": seen.xmax.to_string(),
        "xip_list": seen.xip.iter().map(u64::to_string).collect::<Vec<_>>(),
    }});
    [message.to_string().as_bytes(), SEPARATOR].concat()
}

impl Drop for ShapeCreation {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up(SnapshotFailure { is_refusal: false, message: "it was given up".into() });
        }
        if self.file.is_some()
            && self.shape.gone().is_some()
            && let Ok(_turn) = self.writes(&self.inner)
        {
            // It may have been deleted before the file was made.
            self.inner.files.remove(self.shape.id);
        }
    }
}
