//! Long logs are made short: what is old is merged into another file, and the log goes on in one that begins after it.
//!
//! Invariant: what a client reads from any offset on leads it to the same rows, before and after; positions in the log stay what they are.
//! Kept by: see [`merge`]. The new files are synced before the catalog that names them is written; only then the shape takes them. The old ones
//! stay until the next catalog, for those who are reading them.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::DiskFile;
use super::files::{self, Kind};
use super::record::{Kept, KeptLog};
use super::strand::Chunk;
use crate::config::StoreConfig;
use crate::encode::{LAST, MORE, merge, offset_of};
use crate::offset::Offset;
use crate::registry::{StoreInner, lock};
use crate::shape::Shape;

/// Changes are merged that are less than this apart.
const WINDOW: usize = if cfg!(test) { 4 << 10 } else { 32 << 20 };
const PIECE: u64 = 1 << 20;
/// Clients that are about to catch up read these, and caches have them.
const RECENT_CHUNKS: usize = 2;

/// New files of a shape's log.
pub(crate) struct Compacted {
    shape: Arc<Shape>,
    /// Where the log began before.
    base: u64,
    log: KeptLog,
}

/// Writes new files if the log is long, and says so in `kept`. Without them, everything stays as it is.
pub(crate) fn compact(inner: &StoreInner, shape: &Arc<Shape>, kept: &mut Kept) -> Option<Compacted> {
    let base = due(&kept.log, &inner.config)?;
    match write(inner, shape.id, &kept.log, base) {
        Ok(log) => {
            let compacted = Compacted { shape: Arc::clone(shape), base: kept.log.base, log: log.clone() };
            kept.log = log;
            Some(compacted)
        }
        Err(error) => {
            if error.kind() != io::ErrorKind::Interrupted && shape.gone().is_none() {
                tracing::warn!(shape = shape.handle(), %error, "a long log could not be made short");
            }
            new_files(base).into_iter().for_each(|kind| inner.files.remove_one(shape.id, kind));
            None
        }
    }
}

/// Up to where a log is to be merged.
fn due(log: &KeptLog, config: &StoreConfig) -> Option<u64> {
    let old = log.chunks.len().checked_sub(RECENT_CHUNKS + 1)?;
    let base = log.chunks[old].0;
    let past = log.past.last().map_or(0, |chunk| chunk.0);
    let enough = config.compact_bytes.max(past);
    (config.compact_bytes > 0 && base - log.base >= enough).then_some(base)
}

fn new_files(base: u64) -> [Kind; 2] {
    [Kind::Log(base), Kind::Past(base)]
}

fn write(inner: &StoreInner, shape: u64, log: &KeptLog, base: u64) -> io::Result<KeptLog> {
    let old = inner.files.open(shape, Kind::Log(log.base))?;
    let mut past = Past::new(inner.files.create(shape, Kind::Past(base))?, inner.config.chunk_bytes);
    let mut window = Vec::new();
    let merged = log.past.last().map_or(0, |chunk| chunk.0);
    let before = if merged > 0 { Some(inner.files.open(shape, Kind::Past(log.base))?) } else { None };
    let parts = before.iter().map(|before| (before, 0, merged)).chain([(&old, 0, base - log.base)]);
    for (file, mut at, to) in parts {
        while at < to {
            let until = to.min(at + PIECE);
            window.extend(files::read(&**file, at, until)?);
            at = until;
            if window.len() >= WINDOW {
                // Whoever waits for the end isn't kept waiting.
                if !inner.is_writing.load(Ordering::Acquire) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                past.merge(&mut window)?;
            }
        }
    }
    past.merge(&mut window)?;
    let past = past.finish()?;
    copy(&*old, base - log.base, &*inner.files.create(shape, Kind::Log(base))?, 0, log.len - base)?;
    let chunks = log.chunks.iter().copied().filter(|chunk| chunk.0 > base).collect();
    Ok(KeptLog {
        len: log.len,
        last: log.last,
        chunks,
        base,
        past: past.into_iter().map(Chunk::keep).collect(),
    })
}

fn copy(from: &dyn DiskFile, at: u64, to: &dyn DiskFile, target: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let piece = PIECE.min(len - done);
        to.write_all_at(&files::read(from, at + done, at + done + piece)?, target + done)?;
        done += piece;
    }
    Ok(())
}

impl Compacted {
    /// What was written to the old file meanwhile is written to the new one, too. From here on nobody may write to it.
    pub(crate) fn catch_up(&self, inner: &StoreInner) -> io::Result<()> {
        let Compacted { shape, base: before, log } = self;
        let copied = || {
            let old = inner.files.open(shape.id, Kind::Log(*before))?;
            let new = inner.files.open(shape.id, Kind::Log(log.base))?;
            let written = shape.lock().log.written();
            copy(&*old, log.len - before, &*new, log.len - log.base, written.saturating_sub(log.len))
        };
        match copied() {
            Err(_) if shape.gone().is_some() => Ok(()),
            copied => copied,
        }
    }

    /// The catalog names the new files.
    pub(crate) fn take_effect(self, inner: &StoreInner) {
        self.shape.merged(&self.log);
        lock(&inner.garbage).extend(new_files(self.base).map(|kind| (self.shape.id, kind)));
        if self.shape.gone().is_some() {
            // It may have been deleted before the files were made.
            self.give_up(inner);
        }
    }

    /// Nobody will name the new files.
    pub(crate) fn give_up(self, inner: &StoreInner) {
        new_files(self.log.base).into_iter().for_each(|kind| inner.files.remove_one(self.shape.id, kind));
    }
}

/// Writes what is merged.
struct Past {
    file: Arc<dyn DiskFile>,
    chunk_bytes: u64,
    /// What the file has.
    written: u64,
    unwritten: Vec<u8>,
    chunks: Vec<Chunk>,
    /// The last message. It is the last of its transaction if the next one is of another.
    held: Option<(Offset, Vec<u8>)>,
}

impl Past {
    fn new(file: Arc<dyn DiskFile>, chunk_bytes: u64) -> Self {
        Past { file, chunk_bytes, written: 0, unwritten: Vec::new(), chunks: Vec::new(), held: None }
    }

    /// Takes the whole messages of a window.
    fn merge(&mut self, window: &mut Vec<u8>) -> io::Result<()> {
        let Some(end) = memchr::memrchr(b'\n', window) else { return Ok(()) };
        for message in merge(&window[..=end]).ok_or(io::ErrorKind::InvalidData)? {
            let place = offset_of(&message).ok_or(io::ErrorKind::InvalidData)?;
            if let Some((before, mut held)) = self.held.replace((place, message.into_owned())) {
                if before.lsn != place.lsn && held.ends_with(MORE) {
                    held.truncate(held.len() - MORE.len());
                    held.extend_from_slice(LAST);
                }
                self.push(&held, before)?;
            }
        }
        window.drain(..=end);
        Ok(())
    }

    fn push(&mut self, message: &[u8], place: Offset) -> io::Result<()> {
        self.unwritten.extend_from_slice(message);
        let end = self.written + self.unwritten.len() as u64;
        if end - self.chunks.last().map_or(0, |chunk| chunk.end) >= self.chunk_bytes {
            self.chunks.push(Chunk { end, last: place });
        }
        if self.unwritten.len() as u64 >= PIECE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.unwritten, self.written)?;
        self.written += self.unwritten.len() as u64;
        self.unwritten.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<Chunk>> {
        if let Some((place, held)) = self.held.take() {
            self.push(&held, place)?;
            let end = self.written + self.unwritten.len() as u64;
            if self.chunks.last().is_none_or(|chunk| chunk.end < end) {
                self.chunks.push(Chunk { end, last: place });
            }
        }
        self.flush()?;
        Ok(self.chunks)
    }
}
