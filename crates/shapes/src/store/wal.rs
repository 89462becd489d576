//! The write-ahead log: segments of framed records, one after the other.
//!
//! Invariant: what [`Wal::sync`] has returned for is there after a crash, all of it, in order.
//! Kept by: a segment is made, with its name, before anything is written to it; the next one begins only after the last was synced, and
//! nobody writes to a segment that another process began.
//! Only the torn end of the last segment is cut. Where a record isn't whole:
//! - before what the [head](super::head) says to be durable, or in a segment that has a successor,
//!   the log is damaged, and refused;
//! - after that, the record was never acknowledged: the log ends there. Whole records may follow,
//!   since a disk may write the pages of one append in any order. After a power failure the head
//!   may be old, or gone; then damage to the last segment can't be told from such an append.

#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;

use super::OpenError;
use super::disk::{Disk, DiskFile};
use super::record::{self, Record};
use super::shape_files;

pub(crate) const DIR: &str = "wal";

/// Begins every segment.
const MAGIC: &[u8; 16] = b"forebay wal 001\n";

/// Begins every segment of every version.
const ANY_MAGIC: &[u8] = b"forebay wal ";

/// How much of a segment is read at once, unless a record is larger.
const WINDOW_BYTES: usize = 1 << 20;

pub(crate) fn segment_path(segment: u64) -> String {
    format!("{DIR}/{segment:016x}")
}

/// A place in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WalPosition {
    pub(crate) segment: u64,
    pub(crate) at: u64,
}

impl WalPosition {
    /// Before everything in a segment.
    pub(crate) fn start(segment: u64) -> Self {
        WalPosition { segment, at: MAGIC.len() as u64 }
    }
}

/// The segment that is written.
#[derive(Debug)]
pub(crate) struct WalWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    position: WalPosition,
}

impl WalWriter {
    pub(crate) fn create(disk: Arc<dyn Disk>, segment: u64) -> io::Result<Self> {
        let path = segment_path(segment);
        let begin = |file: &dyn DiskFile| {
            file.write_all_at(MAGIC, 0)?;
            file.sync_data()?;
            disk.sync_dir(DIR)
        };
        let file = disk.create(&path)?;
        if let Err(error) = begin(&*file) {
            // It may be tried again and again, while there is no room.
            let _removed = disk.remove(&path);
            return Err(error);
        }
        Ok(WalWriter { disk, file, position: WalPosition::start(segment) })
    }

    /// Goes on in the next segment. May be tried again after an error.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        *self = WalWriter::create(Arc::clone(&self.disk), self.position.segment + 1)?;
        Ok(())
    }

    /// Where the next record goes.
    pub(crate) fn position(&self) -> WalPosition {
        self.position
    }

    /// May be tried again after an error: it begins where it began before.
    pub(crate) fn append(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.file.write_all_vectored_at(parts, self.position.at)?;
        self.position.at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
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

/// Whether some segment from this one on has a record.
pub(crate) fn has_records(disk: &dyn Disk, from: u64) -> Result<bool, OpenError> {
    for segment in segments(disk)?.into_iter().filter(|segment| *segment >= from) {
        let records = WalRecords::open(disk, WalPosition::start(segment), None)?;
        if let Some(mut records) = records
            && records.next()?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The records of a segment, read a window at a time.
#[derive(Debug)]
pub(crate) struct WalRecords {
    file: Arc<dyn DiskFile>,
    segment: u64,
    at: u64,
    end: u64,
    window: Bytes,
}

impl WalRecords {
    /// From a place on, up to `to`; `None`: there is no such segment.
    pub(crate) fn open(
        disk: &dyn Disk,
        from: WalPosition,
        to: Option<u64>,
    ) -> Result<Option<Self>, OpenError> {
        let file = match disk.open(&segment_path(from.segment)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let len = file.len()?;
        let magic = shape_files::read_range(&*file, 0, len.min(MAGIC.len() as u64))?;
        let begins_well = magic == MAGIC;
        if !begins_well && magic.len() == MAGIC.len() && magic.starts_with(ANY_MAGIC) {
            let what = format!("it begins with {:?}", String::from_utf8_lossy(&magic));
            return Err(OpenError::Unreadable { file: segment_path(from.segment), what });
        }
        // It was there, and synced, before anything else was.
        if !begins_well && len > MAGIC.len() as u64 {
            return Err(OpenError::Damaged { file: "the log" });
        }
        let end = if begins_well { to.map_or(len, |to| to.min(len)) } else { 0 };
        Ok(Some(WalRecords { file, segment: from.segment, at: from.at, end, window: Bytes::new() }))
    }

    /// Returns the next one; `None`: there is no other whole one. Fails if this version doesn't
    /// understand it.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, OpenError> {
        loop {
            let next = record::read_frame(&self.window).map_err(|unknown| OpenError::Unreadable {
                file: segment_path(self.segment),
                what: format!("{unknown} at byte {}", self.at),
            })?;
            if let Some((record, length)) = next {
                self.window = self.window.slice(length..);
                self.at += length as u64;
                return Ok(Some(record));
            }
            let (missing, left) =
                (record::framed_length(&self.window) > self.window.len(), self.end.saturating_sub(self.at));
            let wanted = left.min(record::framed_length(&self.window).max(WINDOW_BYTES) as u64);
            if !missing || wanted <= self.window.len() as u64 {
                return Ok(None);
            }
            self.window = shape_files::read_range(&*self.file, self.at, self.at + wanted)?.into();
        }
    }

    /// The end of the last one.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Whether nothing is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.end
    }
}

/// Takes away what follows the last whole record of the last segment: a segment that isn't the last one is whole.
pub(crate) fn truncate_after(disk: &dyn Disk, end: WalPosition) -> io::Result<()> {
    match disk.open(&segment_path(end.segment)) {
        Ok(file) if file.len()? > end.at => {
            file.set_len(end.at)?;
            file.sync_data()
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes sure of what may have been written but never synced: whole records from a place on are written again, as they are, and synced.
/// After a sync that failed they can be read, but aren't on the disk, and another sync wouldn't bring them there. Without a place, the machine
/// has started since, and what can be read is on the disk. Returns where the log ends.
///
/// Writes nothing if the log is damaged, or has a record that this version can't read.
pub(crate) fn rewrite_unsynced(
    disk: &dyn Disk,
    from: Option<WalPosition>,
) -> Result<Option<WalPosition>, OpenError> {
    let passed = read_through(disk, from.unwrap_or_default())?;
    for (start, records) in passed.iter().filter(|_| from.is_some()) {
        let mut at = start.at;
        while at < records.at() {
            let bytes =
                shape_files::read_range(&*records.file, at, records.at().min(at + WINDOW_BYTES as u64))?;
            records.file.write_all_at(&bytes, at)?;
            at += bytes.len() as u64;
        }
        if at > start.at {
            records.file.sync_data()?;
        }
    }
    Ok(passed.last().map(|(start, records)| WalPosition { segment: start.segment, at: records.at() }))
}

/// Fails if the log has something from a place on that this version can't read. All other errors
/// are left to recovery: there may be no log yet, or another process is writing there.
pub(crate) fn check_readable(disk: &dyn Disk, from: WalPosition) -> Result<(), OpenError> {
    match read_through(disk, from) {
        Err(error @ OpenError::Unreadable { .. }) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Reads the log from a place on. Returns the segments: where reading began, and the records, all
/// of them passed. Fails if one that has a successor isn't whole.
fn read_through(disk: &dyn Disk, from: WalPosition) -> Result<Vec<(WalPosition, WalRecords)>, OpenError> {
    let mut passed: Vec<(WalPosition, WalRecords)> = Vec::new();
    for segment in segments(disk)?.into_iter().filter(|segment| *segment >= from.segment) {
        let start = WalPosition::start(segment).max(from);
        if let Some(mut records) = WalRecords::open(disk, start, None)? {
            if passed.last().is_some_and(|(_, before)| !before.is_at_end()) {
                return Err(OpenError::Damaged { file: "the log" });
            }
            while records.next()?.is_some() {}
            records.window = Bytes::new();
            passed.push((start, records));
        }
    }
    Ok(passed)
}
