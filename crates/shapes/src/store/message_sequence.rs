//! Append-only sequence of one shape's messages: its snapshot or its log.
//!
//! Invariant: the first `len` bytes are visible, are whole messages, and never change. The bytes
//! after them are staged: [`publish`](MessageSequence::publish) makes them visible,
//! [`abandon`](MessageSequence::abandon) removes them.
//! The first `written` bytes are in the sequence's file, the others in `tail`. Written bytes may
//! still be staged.
//! Out of scope: file access and locks.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

use super::record::{CatalogLog, CompletedSnapshot};
use crate::encode::{LAST, MORE, offset_of};
use crate::offset::Offset;

/// Messages of a snapshot or a log.
#[derive(Debug, Default)]
pub(crate) struct MessageSequence {
    /// Position at which the file starts. Messages before it are in the merged file.
    base: u64,
    /// End of the bytes that are in the file.
    written: u64,
    /// Offset of the last message in the file. The end of that message may still be in `tail`.
    written_last: Offset,
    /// Bytes that are not in the file.
    tail: VecDeque<TailPiece>,
    /// End of the staged bytes.
    end: u64,
    /// Offset of the last staged message.
    end_last: Offset,
    /// End of the visible bytes.
    len: u64,
    /// Offset of the last visible message.
    last: Offset,
    /// Closed chunks from `base` on, staged ones included.
    chunks: Vec<ClosedChunk>,
}

/// Consecutive bytes in memory.
#[derive(Debug)]
struct TailPiece {
    bytes: Bytes,
    /// Position after its last byte.
    end: u64,
    /// Offset of its last message.
    last: Offset,
}

/// A closed chunk. It is the same for every client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClosedChunk {
    /// Position after its last byte.
    pub(crate) end: u64,
    /// Offset of its last message.
    pub(crate) last: Offset,
}

impl ClosedChunk {
    /// Returns the chunk as the catalog stores it.
    pub(crate) fn to_catalog(self) -> (u64, u64, u64) {
        (self.end, self.last.lsn, self.last.op)
    }
}

impl From<(u64, u64, u64)> for ClosedChunk {
    fn from((end, lsn, op): (u64, u64, u64)) -> Self {
        ClosedChunk { end, last: Offset::new(lsn, op) }
    }
}

/// Where a range of bytes is: first in the file, then in memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteLocation {
    /// Start and end of the part in the file.
    pub(crate) file: Option<(u64, u64)>,
    pub(crate) pieces: Vec<Bytes>,
}

/// Where a message starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SeekResult {
    /// The message starts at this position.
    At(u64),
    /// The message is in the file, between these positions.
    InFile(u64, u64),
}

impl MessageSequence {
    /// Returns a log without messages. Its last offset is [`Offset::SNAPSHOT_END`].
    pub(crate) fn empty_log() -> Self {
        let last = Offset::SNAPSHOT_END;
        MessageSequence { last, end_last: last, ..MessageSequence::default() }
    }

    /// Returns the log of a shape in the catalog. All its bytes are in the file.
    pub(crate) fn from_catalog(log: &CatalogLog) -> Self {
        let last = Offset::new(log.last.0, log.last.1);
        MessageSequence {
            base: log.base,
            written: log.len,
            written_last: last,
            end: log.len,
            end_last: last,
            len: log.len,
            last,
            chunks: log.chunks.iter().copied().map(ClosedChunk::from).collect(),
            tail: VecDeque::new(),
        }
    }

    /// Returns a complete snapshot. `bytes` is empty if the snapshot is in its file.
    pub(crate) fn from_snapshot(snapshot: &CompletedSnapshot, bytes: Bytes) -> Self {
        let last = |chunk: usize| Offset::new(0, chunk as u64);
        let chunks = snapshot
            .chunks
            .iter()
            .enumerate()
            .map(|(index, end)| ClosedChunk { end: *end, last: last(index) });
        let mut sequence = MessageSequence { chunks: chunks.collect(), ..MessageSequence::default() };
        (sequence.end, sequence.len) = (snapshot.len, snapshot.len);
        if bytes.len() as u64 == snapshot.len && !bytes.is_empty() {
            sequence.tail.push_back(TailPiece { bytes, end: snapshot.len, last: Offset::FIRST });
        } else {
            sequence.written = snapshot.len;
        }
        sequence
    }

    /// Returns the end of the visible bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the position at which the file starts.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Returns the end of the bytes that are in the file.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Moves the start of the file to `base`, which must be the end of a written chunk. The
    /// messages before it are in the merged file now.
    pub(crate) fn rebase(&mut self, base: u64) {
        debug_assert!(self.base <= base && base <= self.written.min(self.len));
        self.chunks.drain(..self.chunks.partition_point(|chunk| chunk.end <= base));
        self.base = base;
    }

    /// Returns the offset of the last visible message.
    pub(crate) fn last(&self) -> Offset {
        self.last
    }

    /// Returns the closed chunks that are visible.
    pub(crate) fn chunks(&self) -> &[ClosedChunk] {
        &self.chunks[..self.chunks.partition_point(|chunk| chunk.end <= self.len)]
    }

    /// Returns the visible log as the catalog stores it.
    pub(crate) fn to_catalog(&self) -> CatalogLog {
        let chunks = self.chunks().iter().copied().map(ClosedChunk::to_catalog).collect();
        let last = (self.last.lsn, self.last.op);
        CatalogLog { len: self.len, last, chunks, base: self.base, past: Vec::new() }
    }

    /// Stages whole messages of a log. `last` is the offset of the last one.
    pub(crate) fn stage(&mut self, bytes: Bytes, last: Offset, chunk_bytes: u64) {
        let start = self.end;
        self.push(bytes.clone(), last);
        while let Some(end) = self.chunk_end(start, &bytes, chunk_bytes) {
            let line_start = memchr::memrchr(b'\n', &bytes[..end - 1]).map_or(0, |at| at + 1);
            let chunk_last = offset_of(&bytes[line_start..end]).unwrap_or(last);
            self.chunks.push(ClosedChunk { end: start + end as u64, last: chunk_last });
        }
    }

    /// Marks the last staged message as the last of its transaction.
    pub(crate) fn finish_transaction(&mut self, chunk_bytes: u64) {
        if self.end == self.len {
            return;
        }
        let closed = self.chunks.last().is_some_and(|chunk| chunk.end == self.end);
        self.retract(MORE.len() as u64);
        self.push(Bytes::from_static(LAST), self.end_last);
        let (end, last) = (self.end, self.end_last);
        if closed {
            self.chunks.last_mut().into_iter().for_each(|chunk| chunk.end = end);
        } else if end - self.chunk_start() >= chunk_bytes {
            self.chunks.push(ClosedChunk { end, last });
        }
    }

    /// Makes all staged messages visible.
    pub(crate) fn publish(&mut self) {
        (self.len, self.last) = (self.end, self.end_last);
    }

    /// Removes all staged messages.
    pub(crate) fn abandon(&mut self) {
        self.retract(self.end - self.len);
        self.end_last = self.last;
        self.written_last = self.written_last.min(self.last);
        let visible = self.chunks().len();
        self.chunks.truncate(visible);
    }

    /// Appends messages of a snapshot, which are visible at once. If `in_file`, the caller has
    /// written them to the file.
    pub(crate) fn append_rows(&mut self, bytes: Bytes, in_file: bool, chunk_bytes: u64) {
        let start = self.end;
        self.push(bytes.clone(), Offset::FIRST);
        while let Some(end) = self.chunk_end(start, &bytes, chunk_bytes) {
            let last = Offset::new(0, self.chunks.len() as u64);
            self.chunks.push(ClosedChunk { end: start + end as u64, last });
        }
        if in_file {
            self.mark_written(self.end);
        }
        self.len = self.end;
    }

    /// Closes the open chunk of a snapshot, unless it is empty.
    pub(crate) fn close_chunk(&mut self) {
        let last = Offset::new(0, self.chunks.len() as u64);
        if self.end > self.chunk_start() {
            self.chunks.push(ClosedChunk { end: self.end, last });
        }
    }

    /// Returns where the bytes of a visible range are.
    pub(crate) fn locate(&self, from: u64, to: u64) -> ByteLocation {
        debug_assert!(from <= to && to <= self.len, "{from}..{to} of {}", self.len);
        let file = (from < self.written.min(to)).then(|| (from, self.written.min(to)));
        let from = from.max(self.written);
        let first = self.tail.partition_point(|piece| piece.end <= from);
        let pieces = self.tail.range(first..).take_while(|piece| piece.end - (piece.bytes.len() as u64) < to);
        let cut = |piece: &TailPiece| {
            let start = piece.end - piece.bytes.len() as u64;
            let (from, to) = (from.max(start) - start, to.min(piece.end) - start);
            piece.bytes.slice(from as usize..to as usize)
        };
        ByteLocation { file, pieces: pieces.map(cut).filter(|piece| !piece.is_empty()).collect() }
    }

    /// Returns where the first message after `offset` starts.
    pub(crate) fn seek(&self, offset: Offset) -> SeekResult {
        if offset >= self.last {
            return SeekResult::At(self.len);
        }
        if offset <= Offset::SNAPSHOT_END {
            return SeekResult::At(self.base);
        }
        if self.written == 0 || self.written_last <= offset {
            let after = self.tail.partition_point(|piece| piece.last <= offset);
            // In logs of former versions the last transaction may have no messages.
            let Some(piece) = self.tail.get(after) else { return SeekResult::At(self.len) };
            let start = piece.end - piece.bytes.len() as u64;
            return SeekResult::At(start + skip(&piece.bytes, offset) as u64);
        }
        // Staged bytes of the file may be overwritten while it is read.
        let (chunks, written) = (self.chunks(), self.written.min(self.len));
        let after = chunks.partition_point(|chunk| chunk.last <= offset);
        let to = chunks.get(after).map_or(written, |chunk| chunk.end.min(written));
        match after.checked_sub(1).map(|before| chunks[before]) {
            Some(chunk) if chunk.last == offset => SeekResult::At(chunk.end),
            before => SeekResult::InFile(before.map_or(self.base, |chunk| chunk.end), to),
        }
    }

    /// Returns the bytes up to `up_to` that are not in the file, and their position.
    pub(crate) fn unwritten(&self, up_to: u64) -> (u64, Vec<Bytes>) {
        let pieces = self.tail.iter().take_while(|piece| piece.end <= up_to);
        (self.written, pieces.map(|piece| piece.bytes.clone()).collect())
    }

    /// Releases the bytes up to `up_to` from memory, because they are in the file.
    pub(crate) fn mark_written(&mut self, up_to: u64) {
        while let Some(piece) = self.tail.pop_front_if(|piece| piece.end <= up_to) {
            (self.written, self.written_last) = (piece.end, piece.last);
        }
        if self.tail.is_empty() {
            self.tail.shrink_to_fit();
        }
    }

    /// Returns the number of bytes that are not in the file.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.end - self.written
    }

    /// Returns the index in `bytes` after the message that closes the open chunk. Returns `None` if
    /// the chunk stays open. `start` is the position of the first byte.
    fn chunk_end(&self, start: u64, bytes: &[u8], chunk_bytes: u64) -> Option<usize> {
        let reached = (self.chunk_start() + chunk_bytes.max(1)).saturating_sub(start + 1);
        let reached = usize::try_from(reached).ok().filter(|at| *at < bytes.len())?;
        Some(reached + memchr::memchr(b'\n', &bytes[reached..])? + 1)
    }

    fn chunk_start(&self) -> u64 {
        self.chunks.last().map_or(self.base, |chunk| chunk.end)
    }

    fn push(&mut self, bytes: Bytes, last: Offset) {
        self.end += bytes.len() as u64;
        self.end_last = last;
        if !bytes.is_empty() {
            self.tail.push_back(TailPiece { bytes, end: self.end, last });
        }
    }

    /// Removes staged bytes from the end. If they are in the file, they will be overwritten.
    fn retract(&mut self, mut bytes: u64) {
        self.end -= bytes;
        while bytes > 0
            && let Some(piece) = self.tail.back_mut()
        {
            let taken = bytes.min(piece.bytes.len() as u64);
            piece.bytes.truncate(piece.bytes.len() - taken as usize);
            piece.end -= taken;
            bytes -= taken;
            if piece.bytes.is_empty() {
                self.tail.pop_back();
            }
        }
        self.written -= bytes;
    }
}

/// Returns the length of the messages at or before `offset`.
fn skip(bytes: &[u8], offset: Offset) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| at + end + 1);
        if offset_of(&bytes[at..end]).is_none_or(|found| found > offset) {
            break;
        }
        at = end;
    }
    at
}
