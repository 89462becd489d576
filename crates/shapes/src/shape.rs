//! Shape: the readers' view of a snapshot and a log.
//!
//! Invariant: readable bytes are durable, except those of an incomplete snapshot. Readable bytes
//! change only when the old part of a log is merged. A client that reads the merged log from any
//! offset has the same rows at the end. If the process ends before the snapshot is complete, the
//! shape is removed and its handle isn't used again.
//! Enforced by: messages are published only after their record is synced to the WAL.

pub(crate) mod state;

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::sync::Notify;

use self::state::ShapeState;
pub(crate) use self::state::{CatalogMatch, ShapePhase};
use crate::definition::ShapeDefinition;
use crate::encode::RowEncoder;
use crate::filter::Filter;
use crate::lock_order::{LockRank, RankedGuard, RankedMutex};
use crate::offset::Offset;
use crate::store::message_sequence::{ByteLocation, MessageSequence, SeekResult};
use crate::store::shape_files::{self, FileKind, ShapeFiles};

/// Shape: a filtered view of a table. When it is removed from the store, methods that wait fail
/// with [`ShapeGone`]. Other methods still return the bytes that are in memory, and fail for bytes
/// whose file is deleted.
pub struct Shape {
    pub(crate) id: u64,
    handle: String,
    definition: ShapeDefinition,
    pub(crate) filter: Option<Filter>,
    pub(crate) encoder: Arc<RowEncoder>,
    files: Arc<ShapeFiles>,
    state: RankedMutex<ShapeState>,
    /// Wakes tasks that wait for new readable bytes or for the end of the shape.
    changed: Notify,
    /// Value of the registry's use counter at the last use.
    pub(crate) used: AtomicU64,
    /// Number of open streams that wait for changes.
    streams: AtomicU32,
}

/// Open stream of a shape. The shape counts it until drop.
#[derive(Debug)]
pub struct ShapeStreamGuard(Arc<Shape>);

impl Drop for ShapeStreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a shape can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeGone {
    /// It was deleted: clients start over with a new shape.
    #[error("the shape was deleted")]
    Deleted,
    /// The snapshot failed.
    #[error("its snapshot failed: {0}")]
    Failed(SnapshotFailure),
}

/// Error of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFailure {
    /// Whether a retry would fail again, because the clause causes the error.
    pub is_refusal: bool,
    /// Text for the client.
    pub message: Arc<str>,
}

impl fmt::Display for SnapshotFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Chunk of a snapshot, in byte positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotChunk {
    /// The chunk is incomplete: more rows follow.
    Open {
        /// Position of its first byte.
        from: u64,
        /// End of its readable bytes.
        to: u64,
    },
    /// The chunk is complete.
    Closed {
        /// Position of its first byte.
        from: u64,
        /// Position after its last byte.
        to: u64,
    },
    /// The snapshot has no chunk with this index: the log follows.
    None,
}

/// Page of a log: whole messages up to the end of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPage {
    /// File that the positions refer to.
    file: FileKind,
    /// Position of its first byte.
    pub from: u64,
    /// Position after its last byte.
    pub to: u64,
    /// Offset of its last message. For an empty page: the last offset of the log.
    pub last: Offset,
    /// Whether the log currently ends here.
    pub is_end: bool,
    /// For a page of the merged part of the log: the end of that part. Merging combines several
    /// updates of a row. So until a client has read to this end, it may have rows that the table
    /// never had at the same time.
    pub merged_to: Option<Offset>,
}

impl LogPage {
    /// Returns an empty page after an offset.
    pub fn empty(last: Offset) -> Self {
        LogPage { file: FileKind::Log(0), from: 0, to: 0, last, is_end: true, merged_to: None }
    }
}

/// Receives new messages of a log, in order and without gaps, until [`ended`](Self::ended). The
/// methods may be called under the shape's lock, so they must be fast and must not use the shape.
pub trait LogListener: Any + Send + Sync + fmt::Debug {
    /// Receives whole transactions. The offset `<seen>_0` is after all of them and before every
    /// later one. Returns `false` to be detached.
    fn published(&self, messages: &[Bytes], last: Offset, seen: u64) -> bool;

    /// Notifies that no more messages follow. The shape is gone, the store is unusable, or the next
    /// messages are only in the shape's file and must be read there.
    fn ended(&self);
}

impl Shape {
    pub(crate) fn new(
        id: u64,
        handle: String,
        definition: ShapeDefinition,
        filter: Option<Filter>,
        encoder: Arc<RowEncoder>,
        files: Arc<ShapeFiles>,
    ) -> Self {
        let state = ShapeState {
            phase: ShapePhase::Filling,
            snapshot: MessageSequence::default(),
            log: MessageSequence::empty_log(),
            past: Vec::new(),
            seen: None,
            rows_end: None,
            is_settled: false,
            held_from: None,
            listener: None,
        };
        let (state, changed, used) =
            (RankedMutex::new(LockRank::Shape, state), Notify::new(), AtomicU64::new(0));
        let streams = AtomicU32::new(0);
        Shape { id, handle, definition, filter, encoder, files, state, changed, used, streams }
    }

    /// Returns the handle, which identifies the shape forever.
    pub fn handle(&self) -> &str {
        &self.handle
    }

    /// Returns the definition.
    pub fn definition(&self) -> &ShapeDefinition {
        &self.definition
    }

    /// Returns its parsed where clause; `None`: all rows.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// Returns whether the log waits for verdicts of Postgres.
    pub fn is_held(&self) -> bool {
        self.lock().held_from.is_some()
    }

    /// Returns the encoder of its rows.
    pub fn encoder(&self) -> &RowEncoder {
        &self.encoder
    }

    /// Returns why the shape can't be read; `None`: it can.
    pub fn gone(&self) -> Option<ShapeGone> {
        match &self.lock().phase {
            ShapePhase::Filling | ShapePhase::Complete => None,
            ShapePhase::Gone(gone) => Some(gone.clone()),
        }
    }

    /// Waits until a chunk of the snapshot has begun, and returns it.
    ///
    /// # Errors
    /// If the shape is gone.
    pub async fn snapshot_chunk(&self, index: u64) -> Result<SnapshotChunk, ShapeGone> {
        self.wait(|state| {
            let chunks = state.snapshot.chunks();
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let from = index.checked_sub(1).map_or(Some(0), |before| Some(chunks.get(before)?.end));
            match (from, chunks.get(index)) {
                (Some(from), Some(chunk)) => Some(SnapshotChunk::Closed { from, to: chunk.end }),
                (_, None) if state.phase == ShapePhase::Complete => Some(SnapshotChunk::None),
                (Some(from), None) => {
                    let to = state.snapshot.len();
                    (to > from).then_some(SnapshotChunk::Open { from, to })
                }
                (None, _) => None,
            }
        })
        .await
    }

    /// Returns whether the chunk that begins at `from` contains rows, not only the snapshot-end
    /// message.
    pub fn has_rows(&self, from: u64) -> bool {
        self.lock().rows_end.is_none_or(|end| from < end)
    }

    /// Waits until the snapshot can be read beyond a position, or is complete.
    ///
    /// # Errors
    /// If the shape is gone.
    pub async fn wait_for_snapshot_after(&self, beyond: u64) -> Result<(), ShapeGone> {
        self.wait(|state| {
            (state.snapshot.len() > beyond || state.phase == ShapePhase::Complete).then_some(())
        })
        .await
    }

    /// Waits until the snapshot is complete.
    ///
    /// # Errors
    /// If the shape is gone.
    pub async fn wait_until_complete(&self) -> Result<(), ShapeGone> {
        self.wait(|state| (state.phase == ShapePhase::Complete).then_some(())).await
    }

    /// Returns the page of the log after `offset`, up to the end of a chunk. May read a file.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn log_after(&self, offset: Offset) -> io::Result<LogPage> {
        loop {
            let (base, page) = self.try_log_after(offset);
            match page {
                Ok(Some(page)) => return Ok(page),
                // The log was merged meanwhile, and the old files may be deleted.
                Ok(None) | Err(_) if self.lock().log.base() != base => {}
                Ok(None) => unreachable!("a log that was not merged meanwhile has a page after each offset"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the page as [`log_after`](Self::log_after) does; `None`: a file must be read for it.
    pub fn log_after_at_once(&self, offset: Offset) -> Option<LogPage> {
        let state = self.lock();
        if state.past.last().is_some_and(|past| past.last > offset) {
            return None;
        }
        match state.log.seek(offset) {
            SeekResult::At(from) => state.log_page(from),
            SeekResult::InFile(..) => None,
        }
    }

    /// Returns the page, and the base for which it is valid: the position at which the log file
    /// begins. A merge increases it.
    fn try_log_after(&self, offset: Offset) -> (u64, io::Result<Option<LogPage>>) {
        let (base, past, merged_to, sought) = {
            let state = self.lock();
            let after = state.past.partition_point(|chunk| chunk.last <= offset);
            let before = after.checked_sub(1).map(|before| state.past[before]);
            let past = state.past.get(after).map(|chunk| (before, *chunk));
            let merged_to = state.past.last().map(|chunk| chunk.last);
            (state.log.base(), past, merged_to, state.log.seek(offset))
        };
        let seek = |kind, from, to| shape_files::seek(&*self.files.open(self.id, kind)?, from, to, offset);
        let page = if let Some((before, chunk)) = past {
            let file = FileKind::Past(base);
            let from = match before {
                None if offset <= Offset::SNAPSHOT_END => Ok(0),
                Some(before) if before.last == offset => Ok(before.end),
                before => seek(file, before.map_or(0, |before| before.end), chunk.end),
            };
            let (to, last, is_end) = (chunk.end, chunk.last, false);
            from.map(|from| Some(LogPage { file, from, to, last, is_end, merged_to }))
        } else {
            let from = match sought {
                SeekResult::At(from) => Ok(from),
                SeekResult::InFile(from, to) => {
                    seek(FileKind::Log(base), from - base, to - base).map(|from| base + from)
                }
            };
            from.map(|from| self.lock().log_page(from))
        };
        (base, page)
    }

    /// Returns the readable length of the snapshot, in bytes.
    pub fn snapshot_end(&self) -> u64 {
        self.lock().snapshot.len()
    }

    /// Returns the offset of the last message of the log.
    pub fn log_end(&self) -> Offset {
        self.lock().log.last()
    }

    /// Waits until the log has a message after `offset`.
    ///
    /// # Errors
    /// If the shape is gone.
    pub async fn wait_for_log_after(&self, offset: Offset) -> Result<(), ShapeGone> {
        self.wait(|state| (state.log.last() > offset).then_some(())).await
    }

    /// Reads a byte range of the snapshot. Blocks on disk.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn read_snapshot(&self, from: u64, to: u64) -> io::Result<Vec<Bytes>> {
        let found = self.lock().snapshot.locate(from, to);
        self.read(FileKind::Snapshot, 0, found)
    }

    /// Reads a byte range of a page of the log. Blocks on disk.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn read_log(&self, page: &LogPage, from: u64, to: u64) -> io::Result<Vec<Bytes>> {
        let FileKind::Log(before) = page.file else {
            return self.read(page.file, 0, ByteLocation { file: Some((from, to)), pieces: Vec::new() });
        };
        let state = self.lock();
        let base = state.log.base();
        if from < base && from < to {
            // The old file of a log that was merged since is kept until the next checkpoint.
            drop(state);
            return self.read(page.file, before, ByteLocation { file: Some((from, to)), pieces: Vec::new() });
        }
        let found = state.log.locate(from.max(base), to.max(base));
        drop(state);
        self.read(FileKind::Log(base), base, found)
    }

    /// Returns whether the log was merged after `page` was found. Then the page's file may be
    /// deleted.
    pub fn is_merged_since(&self, page: &LogPage) -> bool {
        let base = self.lock().log.base();
        !matches!(page.file, FileKind::Log(before) | FileKind::Past(before) if before == base)
    }

    /// Attaches a listener: uses the current one, or creates one, and calls `with` on it. Returns
    /// the result and an empty page at the end of the log; the listener receives all later
    /// messages. `None`: the shape is gone.
    pub fn attach<L: LogListener, R>(
        &self,
        make: impl FnOnce() -> L,
        with: impl FnOnce(&L) -> R,
    ) -> Option<(R, LogPage)> {
        let mut state = self.lock();
        if matches!(state.phase, ShapePhase::Gone(_)) {
            return None;
        }
        let current = state.listener.clone().map(|listener| listener as Arc<dyn Any + Send + Sync>);
        let listener = match current.map(Arc::downcast::<L>) {
            Some(Ok(listener)) => listener,
            Some(Err(_)) | None => {
                let listener = Arc::new(make());
                state.listener = Some(Arc::clone(&listener) as Arc<dyn LogListener>);
                listener
            }
        };
        let (file, end) = (FileKind::Log(state.log.base()), state.log.len());
        let last = state.log.last();
        let end = LogPage { file, from: end, to: end, last, is_end: true, merged_to: None };
        Some((with(&listener), end))
    }

    /// Counts an open stream until the guard is dropped.
    pub fn watch(self: &Arc<Self>) -> ShapeStreamGuard {
        self.streams.fetch_add(1, Ordering::Relaxed);
        ShapeStreamGuard(Arc::clone(self))
    }

    /// Returns the number of open streams.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the size on disk in bytes, including bytes that are yet to be written.
    pub fn bytes(&self) -> u64 {
        let state = self.lock();
        let past = state.past.last().map_or(0, |chunk| chunk.end);
        state.snapshot.len() + past + state.log.len() - state.log.base()
    }

    /// Reads the parts of a range from file and memory. `base` is the log position at which the
    /// file begins.
    fn read(&self, kind: FileKind, base: u64, found: ByteLocation) -> io::Result<Vec<Bytes>> {
        let mut bytes = Vec::with_capacity(found.pieces.len() + 1);
        if let Some((from, to)) = found.file {
            bytes.push(
                shape_files::read_range(&*self.files.open(self.id, kind)?, from - base, to - base)?.into(),
            );
        }
        bytes.extend(found.pieces);
        Ok(bytes)
    }

    /// Waits until `ready` returns a value. Fails if the shape is gone.
    async fn wait<T>(&self, mut ready: impl FnMut(&ShapeState) -> Option<T>) -> Result<T, ShapeGone> {
        let mut check = || {
            let state = self.lock();
            match &state.phase {
                ShapePhase::Gone(gone) => Some(Err(gone.clone())),
                ShapePhase::Filling | ShapePhase::Complete => ready(&state).map(Ok),
            }
        };
        loop {
            // First without registering a waiter: with many waiters, registration costs more than
            // this check.
            if let Some(found) = check() {
                return found;
            }
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // From here on, no notification is missed.
            if let Some(found) = check() {
                return found;
            }
            changed.await;
        }
    }

    pub(crate) fn lock(&self) -> RankedGuard<MutexGuard<'_, ShapeState>> {
        self.state.lock()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape").field("handle", &self.handle).finish_non_exhaustive()
    }
}
