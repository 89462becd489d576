//! What the store does to a shape.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{LogPage, Phase, Shape, ShapeGone, State};
use crate::creation::snapshot_end;
use crate::store::message_sequence::{ClosedChunk, MessageSequence};
use crate::store::record::{CatalogLog, CatalogShape, CompletedSnapshot};
use crate::store::shape_files::FileKind;

/// What only gets more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Snapshot,
    Log,
}

impl Shape {
    /// As a catalog has it.
    pub(crate) fn load(&self, kept: &CatalogShape) {
        self.change(|state| state.log = MessageSequence::from_catalog(&kept.log));
        self.merged(&kept.log);
        if let Some(completed) = &kept.snapshot {
            self.complete_with(completed, Bytes::new());
        }
    }

    /// Something can be read that couldn't before.
    pub(crate) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Changes what it has, and takes note of how much of it isn't in its files.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let before = state.waiting();
        let done = change(&mut state);
        self.files.update_unwritten(before, state.waiting());
        done
    }

    /// What was staged is a transaction, and becomes visible.
    pub(crate) fn publish(&self, seen: u64, chunk_bytes: u64) {
        self.change(|state| {
            let from = state.log.len();
            state.log.finish_transaction(chunk_bytes);
            state.log.publish();
            if let Some(listener) = state.listener.take_if(|_| state.log.len() > from) {
                let found = state.log.locate(from, state.log.len());
                if found.file.is_some() {
                    // Only a huge transaction was written before it was published.
                    listener.ended();
                } else if listener.published(&found.pieces, state.log.last(), seen) {
                    state.listener = Some(listener);
                }
            }
        });
        self.notify();
    }

    /// The files have more than was read: it goes on from there. `false`: they have less, and so they aren't this shape's.
    pub(crate) fn skip_to(&self, kept: &CatalogShape) -> bool {
        let listener = self.change(|state| {
            if state.log.len() > kept.log.len {
                return Err(());
            }
            let is_behind = state.log.len() < kept.log.len;
            state.log = MessageSequence::from_catalog(&kept.log);
            state.merged(&kept.log);
            Ok(state.listener.take_if(|_| is_behind))
        });
        let Ok(listener) = listener else { return false };
        listener.into_iter().for_each(|listener| listener.ended());
        if let Some(completed) = &kept.snapshot {
            self.complete_with(completed, Bytes::new());
        }
        self.wrote(kept);
        self.notify();
        true
    }

    /// So much of it is in its files.
    pub(crate) fn wrote(&self, kept: &CatalogShape) {
        self.change(|state| {
            state.log.mark_written(kept.log.len);
            state.snapshot.mark_written(kept.snapshot.as_ref().map_or(0, |snapshot| snapshot.len));
        });
        self.merged(&kept.log);
    }

    /// What is old of its log is merged, as far as it is.
    pub(crate) fn merged(&self, log: &CatalogLog) {
        self.lock().merged(log);
        if log.base > 0 {
            self.files.set_log_base(self.id, log.base);
        }
    }

    /// Where the chunks of the snapshot end, without its last message, which is no row.
    pub(crate) fn row_chunks(&self) -> Vec<u64> {
        let state = self.lock();
        let end = state.rows_end.unwrap_or(u64::MAX);
        state.snapshot.chunks().iter().map(|chunk| chunk.end.min(end)).collect()
    }

    /// Whether its files haven't all that was written to them.
    pub(crate) fn is_lost(&self) -> bool {
        let (base, expected) = {
            let state = self.lock();
            if state.phase != Phase::Complete {
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
        // It may have been merged, or deleted, while we looked.
        is_lost && self.lock().log.base() == base && self.gone().is_none()
    }

    pub(crate) fn settled(&self) {
        self.lock().is_settled = true;
        self.notify();
    }

    pub(crate) async fn until_settled(&self) -> Result<(), ShapeGone> {
        self.wait(|state| state.is_settled.then_some(())).await
    }

    /// Its snapshot is complete. `bytes`: it, unless it is in its file.
    pub(crate) fn complete_with(&self, completed: &CompletedSnapshot, bytes: Bytes) {
        self.change(|state| {
            if matches!(state.phase, Phase::Gone(_)) {
                return;
            }
            // What it was made of may be in many pieces; this is one.
            if state.snapshot.len() != completed.len || !bytes.is_empty() {
                state.snapshot = MessageSequence::from_snapshot(completed, bytes);
            }
            let end = snapshot_end(&completed.seen).len() as u64;
            state.rows_end = Some(completed.len.saturating_sub(end));
            state.seen = Some(completed.seen.clone());
            state.phase = Phase::Complete;
        });
        self.notify();
    }

    pub(crate) fn end(&self, gone: ShapeGone) {
        let listener = self.change(|state| {
            if !matches!(state.phase, Phase::Gone(_)) {
                state.phase = Phase::Gone(gone);
            }
            state.listener.take()
        });
        listener.into_iter().for_each(|listener| listener.ended());
        self.notify();
    }

    /// Its listener hears no more.
    pub(crate) fn interrupt(&self) {
        let listener = self.change(|state| state.listener.take());
        listener.into_iter().for_each(|listener| listener.ended());
    }

    pub(crate) fn touch(&self, clock: u64) {
        self.used.fetch_max(clock, Ordering::Relaxed);
    }

    /// As the catalog keeps it.
    pub(crate) fn keep(&self) -> CatalogShape {
        let state = self.lock();
        let mut log = state.log.to_catalog();
        log.past = state.past.iter().copied().map(ClosedChunk::to_catalog).collect();
        let snapshot = (state.phase == Phase::Complete).then(|| CompletedSnapshot {
            id: self.id,
            seen: state.seen.clone().expect("a complete snapshot has seen something"),
            len: state.snapshot.len(),
            chunks: state.snapshot.chunks().iter().map(|chunk| chunk.end).collect(),
        });
        CatalogShape {
            id: self.id,
            handle: self.handle.clone(),
            table: self.definition.table.fingerprint(),
            choice: self.definition.choice.clone(),
            snapshot,
            log,
        }
    }
}

impl State {
    /// How many bytes are to be written to its files. The snapshot's are its creation's concern until it is complete.
    pub(crate) fn waiting(&self) -> u64 {
        match self.phase {
            Phase::Filling => self.log.unwritten_bytes(),
            Phase::Complete => self.log.unwritten_bytes() + self.snapshot.unwritten_bytes(),
            Phase::Gone(_) => 0,
        }
    }

    /// The part of the log from a position on, up to the end of a chunk; `None`: that was merged.
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
        let place = FileKind::Log(base);
        let (to, last, is_end) = (end.end, end.last, end.end == len);
        Some(LogPage { place, from, to, last, is_end, merged_to: None })
    }

    fn merged(&mut self, log: &CatalogLog) {
        if log.base >= self.log.base() {
            self.log.rebase(log.base);
            self.past = log.past.iter().copied().map(ClosedChunk::from).collect();
        }
    }

    pub(crate) fn sequence(&self, part: Part) -> &MessageSequence {
        match part {
            Part::Snapshot => &self.snapshot,
            Part::Log => &self.log,
        }
    }

    pub(crate) fn sequence_mut(&mut self, part: Part) -> &mut MessageSequence {
        match part {
            Part::Snapshot => &mut self.snapshot,
            Part::Log => &mut self.log,
        }
    }

    /// Which file a part is written to.
    pub(crate) fn kind(&self, part: Part) -> FileKind {
        match part {
            Part::Snapshot => FileKind::Snapshot,
            Part::Log => FileKind::Log(self.log.base()),
        }
    }
}
