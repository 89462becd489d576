//! Making a shape: its snapshot, from nothing to complete.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use forebay_pgoutput::Snapshot;

use crate::encode::SEPARATOR;
use crate::shape::{Failure, Gone, Shape};
use crate::shapes::Inner;
use crate::store::disk::DiskFile;
use crate::store::files::{DIR, Kind};
use crate::store::record::{Completed, Note, Record, Seen};

/// The duty to fill a shape. Dropped before its time, the shape is gone.
#[derive(Debug)]
#[must_use = "dropped, the shape is gone"]
pub struct Creation {
    inner: Arc<Inner>,
    shape: Arc<Shape>,
    seen: Option<Seen>,
    /// Once the snapshot isn't small.
    file: Option<Arc<dyn DiskFile>>,
    is_over: bool,
}

impl Creation {
    pub(crate) fn new(inner: Arc<Inner>, shape: Arc<Shape>) -> Self {
        Creation { inner, shape, seen: None, file: None, is_over: false }
    }

    /// The shape.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// From now on, what the stream says of the shape is held for it. Before the snapshot is taken, and best right before.
    pub fn follow(&self) {
        self.inner.followed().add(Arc::clone(&self.shape));
    }

    /// The snapshot is taken: it sees these transactions, and none that was committed after `lsn`. `false`: it was taken too early, and
    /// another is to be taken in its place.
    #[must_use]
    pub fn begun(&mut self, snapshot: &Snapshot, lsn: u64) -> bool {
        let seen = Seen::new(snapshot, lsn);
        let mut followed = self.inner.followed();
        if followed.is_early(self.shape.id, snapshot) {
            return false;
        }
        self.seen = Some(seen.clone());
        followed.begun(self.shape.id, seen, &self.inner);
        true
    }

    /// Rows, as messages, each with its separator. They can be read at once. Blocks for the disk, once there are many.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn rows(&mut self, messages: Bytes) -> io::Result<()> {
        let chunk_bytes = self.inner.config.chunk_bytes;
        let so_far = self.shape.lock().snapshot.len();
        if self.file.is_none()
            && so_far + messages.len() as u64 > self.inner.config.small_snapshot_bytes as u64
        {
            let file = self.inner.files.create(self.shape.id, Kind::Snapshot)?;
            let pieces = self.shape.lock().snapshot.unwritten(so_far).1;
            let mut at = 0;
            for piece in pieces {
                file.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
            self.shape.lock().snapshot.wrote(so_far);
            self.file = Some(file);
        }
        if let Some(file) = &self.file {
            file.write_all_at(&messages, so_far)?;
        }
        self.shape.lock().snapshot.append_rows(messages, self.file.is_some(), chunk_bytes);
        self.shape.notify();
        Ok(())
    }

    /// All rows are there. Blocks for the disk, if there are many.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn seal(&mut self) -> io::Result<()> {
        let seen = self.seen.clone().ok_or_else(|| io::Error::other("the snapshot hasn't begun"))?;
        let mut end = serde_json::to_vec(&serde_json::json!({"headers": {
            "control": "snapshot-end",
            "xmin": seen.xmin.to_string(),
            "xmax": seen.xmax.to_string(),
            "xip_list": seen.xip.iter().map(u64::to_string).collect::<Vec<_>>(),
        }}))?;
        end.extend_from_slice(SEPARATOR);
        self.rows(end.into())?;
        self.shape.lock().snapshot.close_chunk();
        self.shape.notify();
        if let Some(file) = &self.file {
            file.sync_data()?;
            self.inner.disk.sync_dir(DIR)?;
        }
        Ok(())
    }

    /// Waits until the shape is durable: from then on it survives.
    ///
    /// # Errors
    /// When it went meanwhile.
    pub async fn complete(mut self) -> Result<(), Gone> {
        self.shape.until_settled().await?;
        let (completed, bytes) = {
            let state = self.shape.lock();
            let seen = self.seen.clone().expect("a sealed snapshot has begun");
            let chunks = state.snapshot.chunks().iter().map(|chunk| chunk.end).collect();
            let len = state.snapshot.len();
            let mut bytes = Vec::new();
            if self.file.is_none() {
                state.snapshot.find(0, len).pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
            }
            (Completed { id: self.shape.id, seen, len, chunks }, Bytes::from(bytes))
        };
        let durable = self.inner.submit(Record::Note(Note::Complete(completed), bytes));
        let Ok(()) = durable.await else { return Err(Gone::Deleted) };
        self.is_over = true;
        match self.shape.gone() {
            Some(gone) => Err(gone),
            None => Ok(()),
        }
    }

    /// The snapshot failed: the shape is gone, and whoever waits for it is told why.
    pub fn fail(mut self, failure: Failure) {
        self.give_up(failure);
    }

    fn give_up(&mut self, failure: Failure) {
        self.is_over = true;
        self.shape.end(Gone::Failed(failure));
        self.inner.followed().delete(self.shape.id, &self.inner);
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_up(Failure { is_refusal: false, message: "it was given up".into() });
        }
    }
}
