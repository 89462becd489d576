//! The files of shapes: opened when they are needed, and not too many at once.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::disk::{Disk, DiskFile};
use super::strand::{line, skip};
use crate::encode::place_of;
use crate::offset::Offset;

/// Which of a shape's two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Snapshot,
    Log,
}

/// Open files, the least recently used of which is closed for another.
#[derive(Debug)]
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    limit: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<(u64, Kind), (Arc<dyn DiskFile>, u64)>,
    /// Counts the uses.
    clock: u64,
}

pub(crate) const DIR: &str = "shapes";

pub(crate) fn path(shape: u64, kind: Kind) -> String {
    let kind = match kind {
        Kind::Snapshot => "snapshot",
        Kind::Log => "log",
    };
    format!("{DIR}/{shape:016x}.{kind}")
}

/// Whose file this is.
pub(crate) fn owner(name: &str) -> Option<u64> {
    u64::from_str_radix(name.split_once('.')?.0, 16).ok()
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, limit: usize) -> Self {
        Files { disk, limit: limit.max(1), open: Mutex::default() }
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

    pub(crate) fn remove(&self, shape: u64) {
        for kind in [Kind::Snapshot, Kind::Log] {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).files.remove(&(shape, kind));
            // It may have none. One that can't be removed now is found at the next start.
            let _gone = self.disk.remove(&path(shape, kind));
        }
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
/// `from` begins a message, `to` ends one, and so it is for all that is before and after.
pub(crate) fn seek(file: &dyn DiskFile, mut from: u64, mut to: u64, offset: Offset) -> io::Result<u64> {
    const LINEAR: u64 = 64 * 1024;
    // Messages begin before this.
    let mut unsure = to;
    while unsure.saturating_sub(from) > LINEAR {
        let middle = from + (unsure - from) / 2;
        let start = middle + read_line(file, middle, to)?.len() as u64;
        if start >= unsure {
            unsure = middle;
            continue;
        }
        let message = read_line(file, start, to)?;
        if place_of(&message).is_some_and(|place| place <= offset) {
            from = start + message.len() as u64;
        } else {
            (to, unsure) = (start, start);
        }
    }
    while from < to {
        let bytes = read(file, from, to.min(from + LINEAR))?;
        let skipped = skip(&bytes, offset);
        let stopped_at = line(&bytes[skipped..]);
        from += skipped as u64;
        if stopped_at.ends_with(b"\n") {
            return Ok(from);
        }
        if skipped == 0 {
            let message = read_line(file, from, to)?;
            if place_of(&message).is_none_or(|place| place > offset) {
                return Ok(from);
            }
            from += message.len() as u64;
        }
    }
    Ok(from)
}

/// From a position to the end of the line, or to `to`.
fn read_line(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<Vec<u8>> {
    let (mut bytes, mut size) = (Vec::new(), 4096_u64);
    loop {
        let start = from + bytes.len() as u64;
        let more = read(file, start, to.min(start + size))?;
        if let Some(end) = memchr::memchr(b'\n', &more) {
            bytes.extend_from_slice(&more[..=end]);
            return Ok(bytes);
        }
        if more.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&more);
        size *= 2;
    }
}
