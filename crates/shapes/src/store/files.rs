//! The files of shapes: opened when they are needed, and not too many at once; and how much isn't in them yet.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::disk::{Disk, DiskFile};
use crate::encode::offset_of;
use crate::offset::Offset;

/// Which of a shape's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Snapshot,
    /// The log from a position on.
    Log(u64),
    /// What was before that position, merged.
    Past(u64),
}

/// Open files, the least recently used of which is closed for another.
#[derive(Debug)]
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    limit: usize,
    open: Mutex<Open>,
    /// Where logs begin that don't begin at 0.
    bases: Mutex<HashMap<u64, u64>>,
    unwritten: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<(u64, Kind), (Arc<dyn DiskFile>, u64)>,
    /// Counts the uses.
    clock: u64,
}

pub(crate) const DIR: &str = "shapes";

pub(crate) fn path(shape: u64, kind: Kind) -> String {
    format!("{DIR}/{}", name(shape, kind))
}

pub(crate) fn name(shape: u64, kind: Kind) -> String {
    match kind {
        Kind::Snapshot => format!("{shape:016x}.snapshot"),
        Kind::Log(0) => format!("{shape:016x}.log"),
        Kind::Log(base) => format!("{shape:016x}.{base:x}.log"),
        Kind::Past(base) => format!("{shape:016x}.{base:x}.past"),
    }
}

/// Whose file has this name.
pub(crate) fn owner(name: &str) -> Option<u64> {
    u64::from_str_radix(name.split('.').next()?, 16).ok()
}

/// The files that a shape may have, if its log begins there.
pub(crate) fn kinds(base: u64) -> [Kind; 3] {
    [Kind::Snapshot, Kind::Log(base), Kind::Past(base)]
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, limit: usize) -> Self {
        let (open, bases, unwritten) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Files { disk, limit: limit.max(1), open, bases, unwritten }
    }

    /// How many bytes of all shapes wait to be written.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Of some shape, so many bytes waited, and so many do now.
    pub(crate) fn count(&self, before: u64, after: u64) {
        self.unwritten.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn create(&self, shape: u64, kind: Kind) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(&path(shape, kind))?;
        self.remember((shape, kind), &file);
        Ok(file)
    }

    pub(crate) fn open(&self, shape: u64, kind: Kind) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.clock += 1;
            let clock = open.clock;
            if let Some((file, used)) = open.files.get_mut(&(shape, kind)) {
                *used = clock;
                return Ok(Arc::clone(file));
            }
        }
        let file = self.disk.open(&path(shape, kind))?;
        self.remember((shape, kind), &file);
        Ok(file)
    }

    /// To write to: made if it isn't there.
    pub(crate) fn open_or_create(&self, shape: u64, kind: Kind) -> io::Result<Arc<dyn DiskFile>> {
        match self.open(shape, kind) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(shape, kind),
            done => done,
        }
    }

    pub(crate) fn close(&self, shape: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.files.retain(|(owner, _), _| *owner != shape);
    }

    pub(crate) fn remove(&self, shape: u64) {
        self.close(shape);
        let base = self.bases.lock().unwrap_or_else(PoisonError::into_inner).remove(&shape);
        kinds(base.unwrap_or(0)).into_iter().for_each(|kind| self.remove_one(shape, kind));
    }

    /// It may not be there. One that can't be removed now is found at the next start.
    pub(crate) fn remove_one(&self, shape: u64, kind: Kind) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).files.remove(&(shape, kind));
        let _gone = self.disk.remove(&path(shape, kind));
    }

    /// The log of a shape begins there from now on.
    pub(crate) fn rebase(&self, shape: u64, base: u64) {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner).insert(shape, base);
    }

    fn remember(&self, key: (u64, Kind), file: &Arc<dyn DiskFile>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.files.len() >= self.limit {
            // Rare, and the limit is small: not worth a list in order.
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
            oldest.into_iter().for_each(|oldest| drop(open.files.remove(&oldest)));
        }
        open.clock += 1;
        let clock = open.clock;
        open.files.insert(key, (Arc::clone(file), clock));
    }
}

/// Reads all of a part of a file.
pub(crate) fn read(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<Vec<u8>> {
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

/// Where the first message after `offset` begins. A log is its own index: it is in the order of its offsets.
///
/// `from` begins a message; `to` ends one, but for its last bytes, perhaps.
pub(crate) fn seek(file: &dyn DiskFile, mut from: u64, to: u64, offset: Offset) -> io::Result<u64> {
    // Messages before `from` are passed over; those from `after` on aren't.
    let mut after = to;
    while from < after {
        let middle = from + (after - from) / 2;
        let start = if middle == from { from } else { line_end(file, middle - 1, after)? };
        if start >= after {
            after = middle;
            continue;
        }
        let end = line_end(file, start, to)?;
        let place = offset_of(&read(file, start.max(end.saturating_sub(PLACE_BYTES)), end)?);
        if place.is_some_and(|place| place <= offset) {
            from = end;
        } else {
            after = start;
        }
    }
    Ok(from)
}

/// A message's place is in its last bytes: these are enough, with the longest numbers.
const PLACE_BYTES: u64 = 128;

/// The position after the next line break, or `to`. However long the line is, it takes little memory.
fn line_end(file: &dyn DiskFile, mut from: u64, to: u64) -> io::Result<u64> {
    let mut size = 1024;
    while from < to {
        let bytes = read(file, from, to.min(from + size))?;
        if let Some(at) = memchr::memchr(b'\n', &bytes) {
            return Ok(from + at as u64 + 1);
        }
        from += bytes.len() as u64;
        size = (size * 4).min(64 * 1024);
    }
    Ok(to)
}
