//! Messages of one shape that only get more: its snapshot, or its log.
//!
//! Invariant: the first `len` bytes are visible, whole messages, and never change. What lies behind them is staged: it becomes visible by
//! [`publish`](Strand::publish) or goes by [`abandon`](Strand::abandon).
//! Where the bytes are: the first `written` in the strand's file, the others in `tail`. What was written may be staged still.
//! Not here: files, locks.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

use super::record::{Completed, KeptLog};
use crate::encode::{LAST, MORE, offset_of};
use crate::offset::Offset;

#[derive(Debug, Default)]
pub(crate) struct Strand {
    /// What was before this position isn't here any more. The file begins with it.
    base: u64,
    written: u64,
    /// The last message of which the file has something.
    written_last: Offset,
    tail: VecDeque<Piece>,
    /// The end of what is staged, and its last message.
    end: u64,
    end_last: Offset,
    len: u64,
    last: Offset,
    chunks: Vec<Chunk>,
}

#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    end: u64,
    last: Offset,
}

/// A closed chunk: the same for every client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) end: u64,
    pub(crate) last: Offset,
}

impl Chunk {
    pub(crate) fn keep(self) -> (u64, u64, u64) {
        (self.end, self.last.lsn, self.last.op)
    }
}

impl From<(u64, u64, u64)> for Chunk {
    fn from((end, lsn, op): (u64, u64, u64)) -> Self {
        Chunk { end, last: Offset::new(lsn, op) }
    }
}

/// Where to find some bytes: first in the file, up to a position, then here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) file: Option<(u64, u64)>,
    pub(crate) pieces: Vec<Bytes>,
}

/// Where a message is to be looked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    At(u64),
    /// In the file, between these positions.
    InFile(u64, u64),
}

impl Strand {
    /// A log without messages: it ends where every snapshot does.
    pub(crate) fn log() -> Self {
        let last = Offset::SNAPSHOT_END;
        Strand { last, end_last: last, ..Strand::default() }
    }

    /// A log, as a catalog has it.
    pub(crate) fn kept(log: &KeptLog) -> Self {
        let last = Offset::new(log.last.0, log.last.1);
        Strand {
            base: log.base,
            written: log.len,
            written_last: last,
            end: log.len,
            end_last: last,
            len: log.len,
            last,
            chunks: log.chunks.iter().copied().map(Chunk::from).collect(),
            tail: VecDeque::new(),
        }
    }

    /// A snapshot that is complete; its bytes, if it has no file.
    pub(crate) fn completed(snapshot: &Completed, bytes: Bytes) -> Self {
        let last = |chunk: usize| Offset::new(0, chunk as u64);
        let chunks =
            snapshot.chunks.iter().enumerate().map(|(index, end)| Chunk { end: *end, last: last(index) });
        let mut strand = Strand { chunks: chunks.collect(), ..Strand::default() };
        (strand.end, strand.len) = (snapshot.len, snapshot.len);
        if bytes.len() as u64 == snapshot.len && !bytes.is_empty() {
            strand.tail.push_back(Piece { bytes, end: snapshot.len, last: Offset::FIRST });
        } else {
            strand.written = snapshot.len;
        }
        strand
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// How much the file has, from the base on.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// What is before this position, in the file and at the end of a chunk, is elsewhere from now on.
    pub(crate) fn rebase(&mut self, base: u64) {
        debug_assert!(self.base <= base && base <= self.written.min(self.len));
        self.chunks.drain(..self.chunks.partition_point(|chunk| chunk.end <= base));
        self.base = base;
    }

    /// The offset of the last visible message.
    pub(crate) fn last(&self) -> Offset {
        self.last
    }

    /// The chunks that are closed and visible.
    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks[..self.chunks.partition_point(|chunk| chunk.end <= self.len)]
    }

    pub(crate) fn keep(&self) -> KeptLog {
        let chunks = self.chunks().iter().copied().map(Chunk::keep).collect();
        let last = (self.last.lsn, self.last.op);
        KeptLog { len: self.len, last, chunks, base: self.base, past: Vec::new() }
    }

    /// Whole messages of a log; `last` is the offset of the last of them.
    pub(crate) fn stage(&mut self, bytes: Bytes, last: Offset, chunk_bytes: u64) {
        let start = self.end;
        self.push(bytes.clone(), last);
        while let Some(end) = self.chunk_end(start, &bytes, chunk_bytes) {
            let line_start = memchr::memrchr(b'\n', &bytes[..end - 1]).map_or(0, |at| at + 1);
            let place = offset_of(&bytes[line_start..end]).unwrap_or(last);
            self.chunks.push(Chunk { end: start + end as u64, last: place });
        }
    }

    /// The last staged message is the last of its transaction, and says so from now on.
    pub(crate) fn finish(&mut self, chunk_bytes: u64) {
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
            self.chunks.push(Chunk { end, last });
        }
    }

    pub(crate) fn publish(&mut self) {
        (self.len, self.last) = (self.end, self.end_last);
    }

    /// What is staged never was.
    pub(crate) fn abandon(&mut self) {
        self.retract(self.end - self.len);
        self.end_last = self.last;
        self.written_last = self.written_last.min(self.last);
        let visible = self.chunks().len();
        self.chunks.truncate(visible);
    }

    /// Messages of a snapshot, visible at once. `in_file`: they were written there already.
    pub(crate) fn append_rows(&mut self, bytes: Bytes, in_file: bool, chunk_bytes: u64) {
        let start = self.end;
        self.push(bytes.clone(), Offset::FIRST);
        while let Some(end) = self.chunk_end(start, &bytes, chunk_bytes) {
            let last = Offset::new(0, self.chunks.len() as u64);
            self.chunks.push(Chunk { end: start + end as u64, last });
        }
        if in_file {
            self.wrote(self.end);
        }
        self.len = self.end;
    }

    /// A chunk of a snapshot ends here, unless one just has.
    pub(crate) fn close_chunk(&mut self) {
        let last = Offset::new(0, self.chunks.len() as u64);
        if self.end > self.chunk_start() {
            self.chunks.push(Chunk { end: self.end, last });
        }
    }

    /// The bytes between two positions, which must be visible.
    pub(crate) fn find(&self, from: u64, to: u64) -> Found {
        debug_assert!(from <= to && to <= self.len, "{from}..{to} of {}", self.len);
        let file = (from < self.written.min(to)).then(|| (from, self.written.min(to)));
        let from = from.max(self.written);
        let first = self.tail.partition_point(|piece| piece.end <= from);
        let pieces = self.tail.range(first..).take_while(|piece| piece.end - (piece.bytes.len() as u64) < to);
        let cut = |piece: &Piece| {
            let start = piece.end - piece.bytes.len() as u64;
            let (from, to) = (from.max(start) - start, to.min(piece.end) - start);
            piece.bytes.slice(from as usize..to as usize)
        };
        Found { file, pieces: pieces.map(cut).filter(|piece| !piece.is_empty()).collect() }
    }

    /// Where the first message after `offset` begins.
    pub(crate) fn seek(&self, offset: Offset) -> Sought {
        if offset >= self.last {
            return Sought::At(self.len);
        }
        if offset <= Offset::SNAPSHOT_END {
            return Sought::At(self.base);
        }
        if self.written == 0 || self.written_last <= offset {
            let after = self.tail.partition_point(|piece| piece.last <= offset);
            // Former versions may have logged a transaction without a message as the last one.
            let Some(piece) = self.tail.get(after) else { return Sought::At(self.len) };
            let start = piece.end - piece.bytes.len() as u64;
            return Sought::At(start + skip(&piece.bytes, offset) as u64);
        }
        // What is staged may be written over while the file is read.
        let (chunks, written) = (self.chunks(), self.written.min(self.len));
        let after = chunks.partition_point(|chunk| chunk.last <= offset);
        let to = chunks.get(after).map_or(written, |chunk| chunk.end.min(written));
        match after.checked_sub(1).map(|before| chunks[before]) {
            Some(chunk) if chunk.last == offset => Sought::At(chunk.end),
            before => Sought::InFile(before.map_or(self.base, |chunk| chunk.end), to),
        }
    }

    /// What is to be written to the file, up to a position, and where it goes there.
    pub(crate) fn unwritten(&self, up_to: u64) -> (u64, Vec<Bytes>) {
        let pieces = self.tail.iter().take_while(|piece| piece.end <= up_to);
        (self.written, pieces.map(|piece| piece.bytes.clone()).collect())
    }

    /// The file has everything up to here.
    pub(crate) fn wrote(&mut self, up_to: u64) {
        while let Some(piece) = self.tail.pop_front_if(|piece| piece.end <= up_to) {
            (self.written, self.written_last) = (piece.end, piece.last);
        }
        if self.tail.is_empty() {
            self.tail.shrink_to_fit();
        }
    }

    /// How many bytes wait to be written.
    pub(crate) fn waiting(&self) -> u64 {
        self.end - self.written
    }

    /// Where in `bytes`, which begin at `start`, the message ends that closes the open chunk.
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
            self.tail.push_back(Piece { bytes, end: self.end, last });
        }
    }

    /// Takes staged bytes back, those that were written already as well: they will be written over.
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

/// How many bytes the messages take that are at or before `offset`.
fn skip(bytes: &[u8], offset: Offset) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| at + end + 1);
        if offset_of(&bytes[at..end]).is_none_or(|place| place > offset) {
            break;
        }
        at = end;
    }
    at
}
