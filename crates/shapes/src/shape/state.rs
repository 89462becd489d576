//! State of a shape: changed by the store's writer, by recovery and by shape creation.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{LogListener, LogPage, Shape, ShapeGone};
use crate::encode::snapshot_end;
use crate::store::message_sequence::{ClosedChunk, MessageSequence};
use crate::store::record::{CatalogLog, CatalogShape, CompletedSnapshot, SnapshotVisibility};
use crate::store::shape_files::FileKind;

/// Mutable state of a shape.
#[derive(Debug)]
pub(crate) struct ShapeState {
    pub(crate) phase: ShapePhase,
    pub(crate) snapshot: MessageSequence,
    pub(crate) log: MessageSequence,
    /// Chunks of the merged part of the log, which is before the log's base.
    pub(crate) past: Vec<ClosedChunk>,
    /// Transactions that the snapshot sees, once it is complete.
    pub(crate) seen: Option<SnapshotVisibility>,
    /// End of the snapshot's rows, in bytes, once it is known. The snapshot-end message follows it.
    pub(crate) rows_end: Option<u64>,
    /// Whether the snapshot is applied to the held transactions. Those that it sees are dropped;
    /// the others are queued for the WAL, or wait for verdicts of Postgres.
    pub(super) is_settled: bool,
    /// LSN of the commit from which on the shape is held: the log doesn't have this transaction and
    /// later ones yet.
    pub(crate) held_from: Option<u64>,
    pub(crate) listener: Option<Arc<dyn LogListener>>,
}

/// Phase in the life of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShapePhase {
    /// The snapshot isn't complete.
    Filling,
    Complete,
    Gone(ShapeGone),
}

/// Whether a catalog file describes the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum CatalogMatch {
    Same,
    /// Its log is shorter, so it belongs to another shape with the same id.
    Other,
}

/// Append-only part of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequenceKind {
    Snapshot,
    Log,
}

impl Shape {
    /// Loads the state from a catalog file.
    pub(crate) fn load(&self, catalog_shape: &CatalogShape) {
        self.change(|state| {
            state.log = MessageSequence::from_catalog(&catalog_shape.log);
            state.held_from = catalog_shape.held_from;
        });
        self.apply_merge(&catalog_shape.log);
        if let Some(completed) = &catalog_shape.snapshot {
            self.complete_with(completed, Bytes::new());
        }
    }

    /// Wakes all waiting readers.
    pub(crate) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Applies a change of the state, and updates the count of bytes that aren't in files yet.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut ShapeState) -> T) -> T {
        let mut state = self.lock();
        let before = state.unwritten_bytes();
        let done = change(&mut state);
        self.files.update_unwritten(before, state.unwritten_bytes());
        done
    }

    /// Makes the staged messages visible, and passes them to the listener. They are a whole
    /// transaction. `hold` changes the start of the shape's hold. The caller wakes the readers with
    /// [`notify`](Self::notify).
    ///
    /// The listener is called under the lock: a stream that attaches after the messages are
    /// readable must not get them from the listener, too.
    pub(crate) fn publish(&self, seen: u64, hold: Option<Option<u64>>, chunk_bytes: u64) {
        self.change(|state| {
            let from = state.log.len();
            if let Some(held_from) = hold {
                state.held_from = held_from;
            }
            state.log.finish_transaction(chunk_bytes);
            state.log.publish();
            if let Some(listener) = state.listener.take_if(|_| state.log.len() > from) {
                let found = state.log.locate(from, state.log.len());
                if found.file.is_some() {
                    // Only a transaction larger than `unwritten_bytes` is in a file before it is
                    // published.
                    listener.ended();
                } else if listener.published(&found.pieces, state.log.last(), state.seen_at_most(seen)) {
                    state.listener = Some(listener);
                }
            }
        });
    }

    /// Moves to the state of a catalog file that is ahead. The caller wakes the
    /// readers with [`notify`](Self::notify).
    pub(crate) fn skip_to(&self, catalog_shape: &CatalogShape) -> CatalogMatch {
        let listener = self.change(|state| {
            if state.log.len() > catalog_shape.log.len {
                return Err(());
            }
            let is_behind = state.log.len() < catalog_shape.log.len;
            state.held_from = catalog_shape.held_from;
            state.log = MessageSequence::from_catalog(&catalog_shape.log);
            state.apply_merge(&catalog_shape.log);
            Ok(state.listener.take_if(|_| is_behind))
        });
        let Ok(listener) = listener else { return CatalogMatch::Other };
        listener.into_iter().for_each(|listener| listener.ended());
        if let Some(completed) = &catalog_shape.snapshot {
            self.complete_with(completed, Bytes::new());
        }
        self.mark_written(catalog_shape);
        CatalogMatch::Same
    }

    /// Marks the bytes that are in files now.
    pub(crate) fn mark_written(&self, catalog_shape: &CatalogShape) {
        self.change(|state| {
            state.log.mark_written(catalog_shape.log.len);
            state.snapshot.mark_written(catalog_shape.snapshot.as_ref().map_or(0, |snapshot| snapshot.len));
        });
        self.apply_merge(&catalog_shape.log);
    }

    /// Sets the start of the log file and the chunks of the merged part, as the catalog has them.
    pub(crate) fn apply_merge(&self, log: &CatalogLog) {
        self.lock().apply_merge(log);
        if log.base > 0 {
            self.files.set_log_base(self.id, log.base);
        }
    }

    /// Returns the ends of the snapshot's chunks, without the snapshot-end message.
    pub(crate) fn row_chunks(&self) -> Vec<u64> {
        let state = self.lock();
        let end = state.rows_end.unwrap_or(u64::MAX);
        state.snapshot.chunks().iter().map(|chunk| chunk.end.min(end)).collect()
    }

    /// Returns whether a file is missing, or is shorter than the bytes that were written to it.
    /// Blocks on disk.
    pub(crate) fn is_lost(&self) -> bool {
        let (base, expected) = {
            let state = self.lock();
            if state.phase != ShapePhase::Complete {
                return false;
            }
            let (base, past) = (state.log.base(), state.past.last().map_or(0, |chunk| chunk.end));
            let log = state.log.written().saturating_sub(base);
            let parts = [
                (FileKind::Snapshot, state.snapshot.written()),
                (FileKind::Log(base), log),
                (FileKind::Past(base), past),
            ];
            (base, parts)
        };
        let has = |kind, bytes| {
            self.files.open(self.id, kind).and_then(|file| file.len()).is_ok_and(|len| len >= bytes)
        };
        let is_lost = expected.into_iter().any(|(kind, bytes)| bytes > 0 && !has(kind, bytes));
        // The shape may have been merged or deleted during the check.
        is_lost && self.lock().log.base() == base && self.gone().is_none()
    }

    /// Sets the commit from which on the shape is held; `None`: it isn't held.
    pub(crate) fn set_hold(&self, from: Option<u64>) {
        self.lock().held_from = from;
    }

    /// Returns the LSN such that the offset `<seen>_0` is after all readable messages and before
    /// all later ones. `seen` is that of the store, read before.
    pub(crate) fn seen_at_most(&self, seen: u64) -> u64 {
        self.lock().seen_at_most(seen)
    }

    /// Marks the snapshot as applied to the held transactions, and wakes the creation.
    pub(crate) fn mark_settled(&self) {
        self.lock().is_settled = true;
        self.notify();
    }

    /// Waits until the snapshot is applied to the held transactions.
    pub(crate) async fn wait_until_settled(&self) -> Result<(), ShapeGone> {
        self.wait(|state| state.is_settled.then_some(())).await
    }

    /// Completes the snapshot. `bytes` is its content, or empty if it is in a file.
    pub(crate) fn complete_with(&self, completed: &CompletedSnapshot, bytes: Bytes) {
        self.change(|state| {
            if matches!(state.phase, ShapePhase::Gone(_)) {
                return;
            }
            // One piece takes less memory than the many pieces of the creation.
            if state.snapshot.len() != completed.len || !bytes.is_empty() {
                state.snapshot = MessageSequence::from_snapshot(completed, bytes);
            }
            let end = snapshot_end(&completed.seen).len() as u64;
            state.rows_end = Some(completed.len.saturating_sub(end));
            state.seen = Some(completed.seen.clone());
            state.phase = ShapePhase::Complete;
        });
    }

    /// Marks the shape as gone. Wakes its readers and detaches its listener.
    pub(crate) fn end(&self, gone: ShapeGone) {
        let listener = self.change(|state| {
            if !matches!(state.phase, ShapePhase::Gone(_)) {
                state.phase = ShapePhase::Gone(gone);
            }
            state.listener.take()
        });
        listener.into_iter().for_each(|listener| listener.ended());
        self.notify();
    }

    /// Detaches the listener: its messages would come from a store that is unusable.
    pub(crate) fn interrupt(&self) {
        let listener = self.change(|state| state.listener.take());
        listener.into_iter().for_each(|listener| listener.ended());
    }

    /// Marks the shape as used. `use_number` is the number of this use in the registry.
    pub(crate) fn mark_used(&self, use_number: u64) {
        self.used.fetch_max(use_number, Ordering::Relaxed);
    }

    /// Returns the state for a catalog file.
    pub(crate) fn to_catalog(&self) -> CatalogShape {
        let state = self.lock();
        let mut log = state.log.to_catalog();
        log.past = state.past.iter().copied().map(ClosedChunk::to_catalog).collect();
        let snapshot = (state.phase == ShapePhase::Complete).then(|| CompletedSnapshot {
            id: self.id,
            seen: state.seen.clone().expect("a complete snapshot has a visibility"),
            len: state.snapshot.len(),
            chunks: state.snapshot.chunks().iter().map(|chunk| chunk.end).collect(),
        });
        CatalogShape {
            id: self.id,
            handle: self.handle.clone(),
            table: self.definition.table.fingerprint(),
            options: self.definition.options.clone(),
            snapshot,
            log,
            held_from: state.held_from,
        }
    }
}

impl ShapeState {
    /// Returns the number of bytes that the writer must write to files. An incomplete snapshot
    /// isn't counted: its [`ShapeCreation`](crate::ShapeCreation) writes it.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        match self.phase {
            ShapePhase::Filling => self.log.unwritten_bytes(),
            ShapePhase::Complete => self.log.unwritten_bytes() + self.snapshot.unwritten_bytes(),
            ShapePhase::Gone(_) => 0,
        }
    }

    /// Returns `seen` of the store, but at most the LSN before the commit from which on the shape
    /// is held.
    fn seen_at_most(&self, seen: u64) -> u64 {
        self.held_from.map_or(seen, |from| seen.min(from.saturating_sub(1)))
    }

    /// Returns the page of the log at a position, up to the end of a chunk; `None`: the position
    /// was merged.
    pub(crate) fn log_page(&self, from: u64) -> Option<LogPage> {
        let (base, len) = (self.log.base(), self.log.len());
        if from < base {
            return None;
        }
        let chunks = self.log.chunks();
        let end = match chunks.get(chunks.partition_point(|chunk| chunk.end <= from)) {
            Some(chunk) => *chunk,
            None => ClosedChunk { end: len, last: self.log.last() },
        };
        let file = FileKind::Log(base);
        let (to, last, is_end) = (end.end, end.last, end.end == len);
        Some(LogPage { file, from, to, last, is_end, merged_to: None })
    }

    fn apply_merge(&mut self, log: &CatalogLog) {
        if log.base >= self.log.base() {
            self.log.rebase(log.base);
            self.past = log.past.iter().copied().map(ClosedChunk::from).collect();
        }
    }

    pub(crate) fn sequence(&self, part: SequenceKind) -> &MessageSequence {
        match part {
            SequenceKind::Snapshot => &self.snapshot,
            SequenceKind::Log => &self.log,
        }
    }

    pub(crate) fn sequence_mut(&mut self, part: SequenceKind) -> &mut MessageSequence {
        match part {
            SequenceKind::Snapshot => &mut self.snapshot,
            SequenceKind::Log => &mut self.log,
        }
    }

    /// Returns the file to which a part is written.
    pub(crate) fn kind(&self, part: SequenceKind) -> FileKind {
        match part {
            SequenceKind::Snapshot => FileKind::Snapshot,
            SequenceKind::Log => FileKind::Log(self.log.base()),
        }
    }
}
