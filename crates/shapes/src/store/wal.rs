//! The write-ahead log: segments of framed records, one after the other.
//!
//! Invariant: what [`Wal::sync`] has returned for is there after a crash, all of it, in order.
//! Kept by: a segment is made, with its name, before anything is written to it; the next one begins only after the last was synced.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::files;

pub(crate) const DIR: &str = "wal";

/// Begins every segment.
const MAGIC: &[u8; 16] = b"forebay wal 001\n";

pub(crate) fn path(segment: u64) -> String {
    format!("{DIR}/{segment:016x}")
}

/// A place in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) at: u64,
}

impl Place {
    /// Before everything in a segment.
    pub(crate) fn start(segment: u64) -> Self {
        Place { segment, at: MAGIC.len() as u64 }
    }
}

/// The segment that is written.
#[derive(Debug)]
pub(crate) struct Wal {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    place: Place,
}

impl Wal {
    pub(crate) fn begin(disk: Arc<dyn Disk>, segment: u64) -> io::Result<Self> {
        let file = disk.create(&path(segment))?;
        file.write_all_at(MAGIC, 0)?;
        file.sync_data()?;
        disk.sync_dir(DIR)?;
        Ok(Wal { disk, file, place: Place::start(segment) })
    }

    /// Goes on in the next segment.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        *self = Wal::begin(Arc::clone(&self.disk), self.place.segment + 1)?;
        Ok(())
    }

    /// Where the next record goes.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// May be tried again after an error: it begins where it began before.
    pub(crate) fn append(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.file.write_all_vectored_at(parts, self.place.at)?;
        self.place.at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The segments that are there, in order.
pub(crate) fn segments(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let names = disk.list(DIR)?;
    Ok(names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).collect())
}

/// The bytes of a segment from a place on, up to `to`; `None`: there is no such segment.
pub(crate) fn read(disk: &dyn Disk, from: Place, to: Option<u64>) -> io::Result<Option<Bytes>> {
    let file = match disk.open(&path(from.segment)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = file.len()?;
    let to = to.map_or(len, |to| to.min(len));
    if to <= from.at {
        return Ok(Some(Bytes::new()));
    }
    let begins_well = files::read(&*file, 0, (MAGIC.len() as u64).min(len))? == MAGIC;
    Ok(Some(if begins_well { files::read(&*file, from.at, to)?.into() } else { Bytes::new() }))
}
