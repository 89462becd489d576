//! Files of shapes: a bounded cache of open files, and the number of bytes that are not in files
//! yet.
//!
//! Lock order: `open` and `bases` are never held together.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile};
use crate::encode::offset_of;
use crate::offset::Offset;

/// Kind of a shape's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileKind {
    Snapshot,
    /// The log from this position on.
    Log(u64),
    /// The merged messages before this position.
    Past(u64),
}

/// Cache of open files. Closes the least recently used one when it is full.
#[derive(Debug)]
pub(crate) struct ShapeFiles {
    disk: Arc<dyn Disk>,
    /// Maximum number of open files.
    limit: usize,
    open: Mutex<OpenFiles>,
    /// Start of each log file that doesn't start at 0, by shape.
    bases: Mutex<HashMap<u64, u64>>,
    /// Bytes of all shapes that are not in files.
    unwritten: AtomicU64,
}

/// The open files, each with the number of its last use.
#[derive(Debug, Default)]
struct OpenFiles {
    files: HashMap<(u64, FileKind), (Arc<dyn DiskFile>, u64)>,
    /// Number of uses so far.
    clock: u64,
}

/// Directory of the shapes' files.
pub(crate) const DIR: &str = "shapes";

/// Returns the path of a shape's file within the storage directory.
pub(crate) fn file_path(shape: u64, kind: FileKind) -> String {
    format!("{DIR}/{}", file_name(shape, kind))
}

/// Returns the name of a shape's file.
pub(crate) fn file_name(shape: u64, kind: FileKind) -> String {
    match kind {
        FileKind::Snapshot => format!("{shape:016x}.snapshot"),
        FileKind::Log(0) => format!("{shape:016x}.log"),
        FileKind::Log(base) => format!("{shape:016x}.{base:x}.log"),
        FileKind::Past(base) => format!("{shape:016x}.{base:x}.past"),
    }
}

/// Returns the id of the shape that a file belongs to.
pub(crate) fn shape_of_file(name: &str) -> Option<u64> {
    u64::from_str_radix(name.split('.').next()?, 16).ok()
}

/// Returns the files that a shape may have if its log file starts at `base`.
pub(crate) fn file_kinds(base: u64) -> [FileKind; 3] {
    [FileKind::Snapshot, FileKind::Log(base), FileKind::Past(base)]
}

impl ShapeFiles {
    /// Returns a cache of at most `limit` open files.
    pub(crate) fn new(disk: Arc<dyn Disk>, limit: usize) -> Self {
        let (open, bases, unwritten) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        ShapeFiles { disk, limit: limit.max(1), open, bases, unwritten }
    }

    /// Returns the bytes of all shapes that are not in files.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Updates the sum after the unwritten bytes of one shape changed from `before` to `after`.
    pub(crate) fn update_unwritten(&self, before: u64, after: u64) {
        self.unwritten.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Creates a file, or empties an existing one.
    pub(crate) fn create(&self, shape: u64, kind: FileKind) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(&file_path(shape, kind))?;
        self.cache((shape, kind), &file);
        Ok(file)
    }

    /// Opens an existing file, or returns it from the cache.
    pub(crate) fn open(&self, shape: u64, kind: FileKind) -> io::Result<Arc<dyn DiskFile>> {
        self.cached_or(shape, kind, |path| self.disk.open(path))
    }

    /// Opens a file for writing. Creates it if it is missing.
    ///
    /// The writer thread and a checkpoint may write the same new file at once. They write the same
    /// bytes, so neither may empty the file.
    pub(crate) fn open_or_create(&self, shape: u64, kind: FileKind) -> io::Result<Arc<dyn DiskFile>> {
        self.cached_or(shape, kind, |path| self.disk.open_or_create(path))
    }

    /// Returns a file from the cache, or opens it.
    fn cached_or(
        &self,
        shape: u64,
        kind: FileKind,
        open_file: impl FnOnce(&str) -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut open = self.open.lock();
            open.clock += 1;
            let clock = open.clock;
            if let Some((file, used)) = open.files.get_mut(&(shape, kind)) {
                *used = clock;
                return Ok(Arc::clone(file));
            }
        }
        let file = open_file(&file_path(shape, kind))?;
        self.cache((shape, kind), &file);
        Ok(file)
    }

    /// Closes all files of a shape.
    pub(crate) fn close(&self, shape: u64) {
        let mut open = self.open.lock();
        open.files.retain(|(owner, _), _| *owner != shape);
    }

    /// Closes and removes all files of a shape.
    pub(crate) fn remove(&self, shape: u64) {
        self.close(shape);
        let base = self.bases.lock().remove(&shape);
        file_kinds(base.unwrap_or(0)).into_iter().for_each(|kind| self.remove_file(shape, kind));
    }

    /// Removes a file if it exists. A file that can't be removed now is removed as an orphan at the
    /// next start.
    pub(crate) fn remove_file(&self, shape: u64, kind: FileKind) {
        self.open.lock().files.remove(&(shape, kind));
        let _removed = self.disk.remove(&file_path(shape, kind));
    }

    /// Sets the start of a shape's log file.
    pub(crate) fn set_log_base(&self, shape: u64, base: u64) {
        self.bases.lock().insert(shape, base);
    }

    /// Adds an open file, and closes the least recently used one if the cache is full.
    fn cache(&self, key: (u64, FileKind), file: &Arc<dyn DiskFile>) {
        let mut open = self.open.lock();
        if open.files.len() >= self.limit {
            // This is rare and the limit is small, so a sorted list isn't worth it.
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
            oldest.into_iter().for_each(|oldest| drop(open.files.remove(&oldest)));
        }
        open.clock += 1;
        let clock = open.clock;
        open.files.insert(key, (Arc::clone(file), clock));
    }
}

/// Reads the bytes between two positions. Fails if the file is shorter.
pub(crate) fn read_range(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(to - from).map_err(io::Error::other)?];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], from + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => done += more,
        }
    }
    Ok(bytes)
}

/// Returns the start of the first message after `offset`, by binary search: a log is sorted by
/// offset.
///
/// `from` must be the start of a message. `to` must be the end of a message, or lie within the last
/// bytes of one.
pub(crate) fn seek(file: &dyn DiskFile, mut from: u64, to: u64, offset: Offset) -> io::Result<u64> {
    // Invariant: messages that start before `from` are at or before `offset`. Messages that start
    // at or after `after` are not.
    let mut after = to;
    while from < after {
        let middle = from + (after - from) / 2;
        let start = if middle == from { from } else { line_end(file, middle - 1, after)? };
        if start >= after {
            after = middle;
            continue;
        }
        let end = line_end(file, start, to)?;
        let found = offset_of(&read_range(file, start.max(end.saturating_sub(OFFSET_BYTES)), end)?);
        if found.is_some_and(|found| found <= offset) {
            from = end;
        } else {
            after = start;
        }
    }
    Ok(from)
}

/// Bytes at the end of a message that contain its offset, even with the longest numbers.
const OFFSET_BYTES: u64 = 128;

/// Returns the position after the next line break, or `to`. Needs little memory even for a long
/// line.
fn line_end(file: &dyn DiskFile, mut from: u64, to: u64) -> io::Result<u64> {
    let mut size = 1024;
    while from < to {
        let bytes = read_range(file, from, to.min(from + size))?;
        if let Some(at) = memchr::memchr(b'\n', &bytes) {
            return Ok(from + at as u64 + 1);
        }
        from += bytes.len() as u64;
        size = (size * 4).min(64 * 1024);
    }
    Ok(to)
}
