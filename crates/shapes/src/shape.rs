//! A shape: what it is, and what clients can read of it.
//!
//! Invariant: what can be read never changes and is durable, except of a snapshot that isn't complete: should the process end before it is,
//! the shape is gone, and its handle with it.
//! Kept by: only the store's writer publishes, after it has synced.

pub(crate) mod keeping;

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::definition::ShapeDefinition;
use crate::encode::RowEncoder;
use crate::filter::Filter;
use crate::offset::Offset;
use crate::store::message_sequence::{ByteLocation, ClosedChunk, MessageSequence, SeekResult};
use crate::store::record::SnapshotVisibility;
use crate::store::shape_files::{self, FileKind, ShapeFiles};

/// A shape. Whoever holds it can read it, though it may be gone for others.
pub struct Shape {
    pub(crate) id: u64,
    handle: String,
    definition: ShapeDefinition,
    pub(crate) filter: Option<Filter>,
    pub(crate) layout: Arc<RowEncoder>,
    files: Arc<ShapeFiles>,
    state: Mutex<State>,
    changed: Notify,
    /// When it was last asked for, as the registry counts.
    pub(crate) used: AtomicU64,
    /// Streams that wait for its changes.
    streams: AtomicU32,
}

/// A stream of a shape, which counts until it is dropped.
#[derive(Debug)]
pub struct ShapeStreamGuard(Arc<Shape>);

impl Drop for ShapeStreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) snapshot: MessageSequence,
    pub(crate) log: MessageSequence,
    /// What the log has before its base, merged.
    pub(crate) past: Vec<ClosedChunk>,
    pub(crate) seen: Option<SnapshotVisibility>,
    /// Where the rows of the snapshot end, once that is known: what follows says so.
    pub(crate) rows_end: Option<u64>,
    /// Whether it is decided what of the stream its snapshot has seen.
    is_settled: bool,
    pub(crate) listener: Option<Arc<dyn LogListener>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its snapshot isn't complete.
    Filling,
    Complete,
    Gone(ShapeGone),
}

/// Why a shape can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeGone {
    /// It was deleted, or rotated: clients start over with another.
    #[error("the shape was deleted")]
    Deleted,
    /// Its snapshot failed.
    #[error("its snapshot failed: {0}")]
    Failed(SnapshotFailure),
}

/// What happened to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFailure {
    /// Whether it would fail again: the clause is to blame.
    pub is_refusal: bool,
    /// In words for whoever asked.
    pub message: Arc<str>,
}

impl fmt::Display for SnapshotFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A chunk of the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotChunk {
    /// It begins here; what there is of it ends there, and more is to come.
    Open {
        /// Its first byte.
        from: u64,
        /// How far it can be read by now.
        to: u64,
    },
    /// It is from here to there.
    Closed {
        /// Its first byte.
        from: u64,
        /// The one after its last.
        to: u64,
    },
    /// There is none of that number: the log follows.
    None,
}

/// A part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPage {
    /// In which file its positions are.
    place: FileKind,
    /// Its first byte.
    pub from: u64,
    /// The one after its last.
    pub to: u64,
    /// The offset of its last message; of an empty page, where the log ends.
    pub last: Offset,
    /// Whether the log ends here, for now.
    pub is_end: bool,
    /// Of a page of the merged part of the log, where that part ends. Of several updates of a row
    /// it has only the last: before its end, a client may have rows that the table never had at
    /// once.
    pub merged_to: Option<Offset>,
}

impl LogPage {
    /// Nothing, after this offset.
    pub fn empty(last: Offset) -> Self {
        LogPage { place: FileKind::Log(0), from: 0, to: 0, last, is_end: true, merged_to: None }
    }
}

/// Hears of what becomes visible in a log, in order and without a gap, until it is told that it has ended. Called under the shape's lock: it
/// must be quick.
pub trait LogListener: Any + Send + Sync + fmt::Debug {
    /// Whole transactions. `seen`: the offset `<seen>_0` is after all of them, and before whatever comes. Returns whether it wants to hear more.
    fn published(&self, messages: &[Bytes], last: Offset, seen: u64) -> bool;

    /// It hears no more: the shape is gone, or what comes next is only in its file, and has to be read there.
    fn ended(&self);
}

impl Shape {
    pub(crate) fn new(
        id: u64,
        handle: String,
        definition: ShapeDefinition,
        filter: Option<Filter>,
        layout: Arc<RowEncoder>,
        files: Arc<ShapeFiles>,
    ) -> Self {
        let state = State {
            phase: Phase::Filling,
            snapshot: MessageSequence::default(),
            log: MessageSequence::empty_log(),
            past: Vec::new(),
            seen: None,
            rows_end: None,
            is_settled: false,
            listener: None,
        };
        let (state, changed, used) = (Mutex::new(state), Notify::new(), AtomicU64::new(0));
        let streams = AtomicU32::new(0);
        Shape { id, handle, definition, filter, layout, files, state, changed, used, streams }
    }

    /// Names it for ever.
    pub fn handle(&self) -> &str {
        &self.handle
    }

    /// What it is.
    pub fn definition(&self) -> &ShapeDefinition {
        &self.definition
    }

    /// How its rows are written.
    pub fn layout(&self) -> &RowEncoder {
        &self.layout
    }

    /// Why it can't be read, if so.
    pub fn gone(&self) -> Option<ShapeGone> {
        match &self.lock().phase {
            Phase::Filling | Phase::Complete => None,
            Phase::Gone(gone) => Some(gone.clone()),
        }
    }

    /// A chunk of the snapshot, once it has begun.
    ///
    /// # Errors
    /// When the shape is gone.
    pub async fn snapshot_chunk(&self, index: u64) -> Result<SnapshotChunk, ShapeGone> {
        self.wait(|state| {
            let chunks = state.snapshot.chunks();
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let from = index.checked_sub(1).map_or(Some(0), |before| Some(chunks.get(before)?.end));
            match (from, chunks.get(index)) {
                (Some(from), Some(chunk)) => Some(SnapshotChunk::Closed { from, to: chunk.end }),
                (_, None) if state.phase == Phase::Complete => Some(SnapshotChunk::None),
                (Some(from), None) => {
                    let to = state.snapshot.len();
                    (to > from).then_some(SnapshotChunk::Open { from, to })
                }
                (None, _) => None,
            }
        })
        .await
    }

    /// Whether a chunk of the snapshot that begins here has rows, and not only the snapshot's end.
    pub fn has_rows(&self, from: u64) -> bool {
        self.lock().rows_end.is_none_or(|end| from < end)
    }

    /// Waits until the snapshot can be read beyond a position, or is complete.
    ///
    /// # Errors
    /// When the shape is gone.
    pub async fn snapshot_grown(&self, beyond: u64) -> Result<(), ShapeGone> {
        self.wait(|state| (state.snapshot.len() > beyond || state.phase == Phase::Complete).then_some(()))
            .await
    }

    /// Waits until the snapshot is complete.
    ///
    /// # Errors
    /// When the shape is gone.
    pub async fn complete(&self) -> Result<(), ShapeGone> {
        self.wait(|state| (state.phase == Phase::Complete).then_some(())).await
    }

    /// The part of the log after `offset`, up to the end of a chunk. Reads the file if it must.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn log_after(&self, offset: Offset) -> io::Result<LogPage> {
        loop {
            let (base, page) = self.try_log_after(offset);
            match page {
                Ok(Some(page)) => return Ok(page),
                // What was before is merged by now, and its files may be gone.
                Ok(None) | Err(_) if self.lock().log.base() != base => {}
                Ok(None) => unreachable!("a log that stays as it is has a page after each offset"),
                Err(error) => return Err(error),
            }
        }
    }

    /// As [`log_after`](Self::log_after), if no file has to be read for it.
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

    /// With the log's base, for which it holds.
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
            let place = FileKind::Past(base);
            let from = match before {
                None if offset <= Offset::SNAPSHOT_END => Ok(0),
                Some(before) if before.last == offset => Ok(before.end),
                before => seek(place, before.map_or(0, |before| before.end), chunk.end),
            };
            let (to, last, is_end) = (chunk.end, chunk.last, false);
            from.map(|from| Some(LogPage { place, from, to, last, is_end, merged_to }))
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

    /// How far the snapshot can be read.
    pub fn snapshot_end(&self) -> u64 {
        self.lock().snapshot.len()
    }

    /// Where the log ends: its last offset.
    pub fn log_end(&self) -> Offset {
        self.lock().log.last()
    }

    /// Waits until the log goes beyond `offset`.
    ///
    /// # Errors
    /// When the shape is gone.
    pub async fn log_beyond(&self, offset: Offset) -> Result<(), ShapeGone> {
        self.wait(|state| (state.log.last() > offset).then_some(())).await
    }

    /// Reads a part of the snapshot. Blocks for the disk.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read_snapshot(&self, from: u64, to: u64) -> io::Result<Vec<Bytes>> {
        let found = self.lock().snapshot.locate(from, to);
        self.read(FileKind::Snapshot, 0, found)
    }

    /// Reads a part of a page of the log. Blocks for the disk.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read_log(&self, page: &LogPage, from: u64, to: u64) -> io::Result<Vec<Bytes>> {
        let FileKind::Log(before) = page.place else {
            return self.read(page.place, 0, ByteLocation { file: Some((from, to)), pieces: Vec::new() });
        };
        let state = self.lock();
        let base = state.log.base();
        if from < base && from < to {
            // What was merged since is still where it was, for a while.
            drop(state);
            return self.read(
                page.place,
                before,
                ByteLocation { file: Some((from, to)), pieces: Vec::new() },
            );
        }
        let found = state.log.locate(from.max(base), to.max(base));
        drop(state);
        self.read(FileKind::Log(base), base, found)
    }

    /// Returns whether the log was merged since a page of it was found: the page's file may be
    /// gone.
    pub fn is_merged_since(&self, page: &LogPage) -> bool {
        let base = self.lock().log.base();
        !matches!(page.place, FileKind::Log(before) | FileKind::Past(before) if before == base)
    }

    /// Attaches a listener: makes it unless there is one, and calls `with` on it. It hears of all
    /// that comes after the end of the log, which is returned. `None`: the shape is gone.
    pub fn attach<L: LogListener, R>(
        &self,
        make: impl FnOnce() -> L,
        with: impl FnOnce(&L) -> R,
    ) -> Option<(R, LogPage)> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Gone(_)) {
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
        let (place, end) = (FileKind::Log(state.log.base()), state.log.len());
        let last = state.log.last();
        let end = LogPage { place, from: end, to: end, last, is_end: true, merged_to: None };
        Some((with(&listener), end))
    }

    /// Counts one that waits for its changes, for as long as the answer lives.
    pub fn watch(self: &Arc<Self>) -> ShapeStreamGuard {
        self.streams.fetch_add(1, Ordering::Relaxed);
        ShapeStreamGuard(Arc::clone(self))
    }

    /// How many wait for its changes.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// How many bytes it has on disk, or will have.
    pub fn bytes(&self) -> u64 {
        let state = self.lock();
        let past = state.past.last().map_or(0, |chunk| chunk.end);
        state.snapshot.len() + past + state.log.len() - state.log.base()
    }

    /// `base`: the position that the file begins with.
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

    async fn wait<T>(&self, mut ready: impl FnMut(&State) -> Option<T>) -> Result<T, ShapeGone> {
        let mut look = || {
            let state = self.lock();
            match &state.phase {
                Phase::Gone(gone) => Some(Err(gone.clone())),
                Phase::Filling | Phase::Complete => ready(&state).map(Ok),
            }
        };
        loop {
            // Whoever needn't wait needn't join those who do: with many of them, that costs more than the look.
            if let Some(found) = look() {
                return found;
            }
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // From here on no change is missed.
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape").field("handle", &self.handle).finish_non_exhaustive()
    }
}
