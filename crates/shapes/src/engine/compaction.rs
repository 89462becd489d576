//! Compaction of long logs: merges the old part into a new file. The log continues in a file that
//! starts after that part.
//!
//! Invariant: a client that reads from any offset gets the same rows before and after. Positions
//! after the merged part stay the same.
//! Enforced by: [`merge`] combines only updates. The new files are synced before the catalog that
//! refers to them is written. The shape uses the new files after that. The old files stay until the
//! next catalog, because clients may be reading them.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use crate::config::StoreConfig;
use crate::encode::{LAST, MORE, merge, offset_of};
use crate::offset::Offset;
use crate::shape::Shape;
use crate::store::Store;
use crate::store::disk::DiskFile;
use crate::store::message_sequence::ClosedChunk;
use crate::store::record::{CatalogLog, CatalogShape};
use crate::store::shape_files::{self, FileKind, ShapeFiles};

/// Size of the window in which updates of the same row are merged, in bytes.
const MERGE_WINDOW_BYTES: usize = if cfg!(test) { 4 << 10 } else { 32 << 20 };
/// Bytes that are read or written at once.
const COPY_BYTES: u64 = 1 << 20;
/// Number of closed chunks at the end of a log that are not merged: clients that catch up read
/// them, and caches hold them.
const RECENT_CHUNKS: usize = 2;

/// New files of a shape's log, not yet in use.
pub(crate) struct CompactedLog {
    shape: Arc<Shape>,
    /// Start of the old log file.
    base: u64,
    /// Catalog entry of the log in the new files.
    log: CatalogLog,
}

/// Writes new files if the log is long, and updates `catalog_shape`. If the log is not long, or
/// after an error, returns `None`, and `catalog_shape` is unchanged.
pub(crate) fn compact(
    store: &Store,
    shape: &Arc<Shape>,
    catalog_shape: &mut CatalogShape,
) -> Option<CompactedLog> {
    let base = merge_target(&catalog_shape.log, &store.config)?;
    match write_files(store, shape.id, &catalog_shape.log, base) {
        Ok(log) => {
            let compacted =
                CompactedLog { shape: Arc::clone(shape), base: catalog_shape.log.base, log: log.clone() };
            catalog_shape.log = log;
            Some(compacted)
        }
        Err(error) => {
            if error.kind() != io::ErrorKind::Interrupted && shape.gone().is_none() {
                tracing::warn!(shape = shape.handle(), %error, "log compaction failed");
            }
            log_files(base).into_iter().for_each(|kind| store.files.remove_file(shape.id, kind));
            None
        }
    }
}

/// Returns the position up to which a log should be merged, or `None` if it isn't long enough.
fn merge_target(log: &CatalogLog, config: &StoreConfig) -> Option<u64> {
    let old = log.chunks.len().checked_sub(RECENT_CHUNKS + 1)?;
    let base = log.chunks[old].0;
    let past = log.past.last().map_or(0, |chunk| chunk.0);
    let min_bytes = config.compact_bytes.max(past);
    (config.compact_bytes > 0 && base - log.base >= min_bytes).then_some(base)
}

/// Returns the files of a log that starts at `base`.
fn log_files(base: u64) -> [FileKind; 2] {
    [FileKind::Log(base), FileKind::Past(base)]
}

/// Writes the merged file and the new log file, without a sync. Returns the new log.
fn write_files(store: &Store, shape: u64, log: &CatalogLog, base: u64) -> io::Result<CatalogLog> {
    let old = store.files.open(shape, FileKind::Log(log.base))?;
    let mut past =
        PastWriter::new(store.files.create(shape, FileKind::Past(base))?, store.config.chunk_bytes);
    let mut window = Vec::new();
    let merged = log.past.last().map_or(0, |chunk| chunk.0);
    let before = if merged > 0 { Some(store.files.open(shape, FileKind::Past(log.base))?) } else { None };
    let parts = before.iter().map(|before| (before, 0, merged)).chain([(&old, 0, base - log.base)]);
    for (file, mut at, to) in parts {
        while at < to {
            let until = to.min(at + COPY_BYTES);
            window.extend(shape_files::read_range(&**file, at, until)?);
            at = until;
            if window.len() >= MERGE_WINDOW_BYTES {
                // A shutdown must not wait for a long merge.
                if !store.role.is_writing() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                past.merge(&mut window)?;
            }
        }
    }
    past.merge(&mut window)?;
    let past = past.finish()?;
    copy_range(&*old, base - log.base, &*store.files.create(shape, FileKind::Log(base))?, 0, log.len - base)?;
    let chunks = log.chunks.iter().copied().filter(|chunk| chunk.0 > base).collect();
    Ok(CatalogLog {
        len: log.len,
        last: log.last,
        chunks,
        base,
        past: past.into_iter().map(ClosedChunk::to_catalog).collect(),
    })
}

fn copy_range(from: &dyn DiskFile, at: u64, to: &dyn DiskFile, target: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let piece = COPY_BYTES.min(len - done);
        to.write_all_at(&shape_files::read_range(from, at + done, at + done + piece)?, target + done)?;
        done += piece;
    }
    Ok(())
}

impl CompactedLog {
    /// Copies the bytes that were added to the old log file since [`compact`]. The caller must
    /// prevent further writes to the old file.
    pub(crate) fn catch_up(&self, files: &ShapeFiles) -> io::Result<()> {
        let CompactedLog { shape, base: before, log } = self;
        let copied = || {
            let old = files.open(shape.id, FileKind::Log(*before))?;
            let new = files.open(shape.id, FileKind::Log(log.base))?;
            let written = shape.lock().log.written();
            copy_range(&*old, log.len - before, &*new, log.len - log.base, written.saturating_sub(log.len))
        };
        match copied() {
            Err(_) if shape.gone().is_some() => Ok(()),
            copied => copied,
        }
    }

    /// Makes the shape use the new files. The catalog must refer to them. Returns the old files,
    /// which clients may still be reading.
    pub(crate) fn install(self, files: &ShapeFiles) -> [(u64, FileKind); 2] {
        self.shape.apply_merge(&self.log);
        let old = log_files(self.base).map(|kind| (self.shape.id, kind));
        if self.shape.gone().is_some() {
            // The shape may have been deleted before its files were created.
            self.discard(files);
        }
        old
    }

    /// Removes the new files. No catalog refers to them.
    pub(crate) fn discard(self, files: &ShapeFiles) {
        log_files(self.log.base).into_iter().for_each(|kind| files.remove_file(self.shape.id, kind));
    }
}

/// Writer of the merged file, `ID.BASE.past`.
struct PastWriter {
    file: Arc<dyn DiskFile>,
    chunk_bytes: u64,
    /// Bytes in the file.
    written: u64,
    /// Messages that are not in the file yet.
    unwritten: Vec<u8>,
    chunks: Vec<ClosedChunk>,
    /// The newest message and its offset. It waits for the next message: if that one belongs to
    /// another transaction, this message gets the ending [`LAST`].
    pending: Option<(Offset, Vec<u8>)>,
}

impl PastWriter {
    fn new(file: Arc<dyn DiskFile>, chunk_bytes: u64) -> Self {
        PastWriter { file, chunk_bytes, written: 0, unwritten: Vec::new(), chunks: Vec::new(), pending: None }
    }

    /// Merges the whole messages of a window, and removes them from it.
    fn merge(&mut self, window: &mut Vec<u8>) -> io::Result<()> {
        let Some(end) = memchr::memrchr(b'\n', window) else { return Ok(()) };
        for message in merge(&window[..=end]).ok_or(io::ErrorKind::InvalidData)? {
            let offset = offset_of(&message).ok_or(io::ErrorKind::InvalidData)?;
            if let Some((before, mut pending)) = self.pending.replace((offset, message.into_owned())) {
                if before.lsn != offset.lsn && pending.ends_with(MORE) {
                    pending.truncate(pending.len() - MORE.len());
                    pending.extend_from_slice(LAST);
                }
                self.push(&pending, before)?;
            }
        }
        window.drain(..=end);
        Ok(())
    }

    fn push(&mut self, message: &[u8], offset: Offset) -> io::Result<()> {
        self.unwritten.extend_from_slice(message);
        let end = self.written + self.unwritten.len() as u64;
        if end - self.chunks.last().map_or(0, |chunk| chunk.end) >= self.chunk_bytes {
            self.chunks.push(ClosedChunk { end, last: offset });
        }
        if self.unwritten.len() as u64 >= COPY_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.unwritten, self.written)?;
        self.written += self.unwritten.len() as u64;
        self.unwritten.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<ClosedChunk>> {
        if let Some((offset, pending)) = self.pending.take() {
            self.push(&pending, offset)?;
            let end = self.written + self.unwritten.len() as u64;
            if self.chunks.last().is_none_or(|chunk| chunk.end < end) {
                self.chunks.push(ClosedChunk { end, last: offset });
            }
        }
        self.flush()?;
        Ok(self.chunks)
    }
}
