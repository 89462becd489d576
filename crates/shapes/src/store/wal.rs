//! Write-ahead log (WAL): segments of framed records, one after the other.
//!
//! Invariant: all records before a successful [`WalWriter::sync`] survive a crash, in order.
//! Enforced by: a segment and its name are durable before the first record is written to it. The
//! next segment is created only after the last one was synced. No process appends to a segment
//! that another process created.
//!
//! Only the torn end of the last segment is truncated. The meaning of a record that is not whole
//! depends on its position:
//! - Before the durable position of the [head](super::writer_head), or in a segment with a
//!   successor: the WAL is damaged, and refused.
//! - After the durable position, in the last segment: the record was never acknowledged, and the
//!   WAL ends there. Whole records may follow, because a disk may write the pages of one append in
//!   any order. After a power failure the head may be old or missing. Then damage to the last
//!   segment can't be distinguished from such an append.

#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;

use super::OpenError;
use super::disk::{Disk, DiskFile};
use super::frame;
use super::record::Record;
use super::shape_files;

/// Directory of the segments.
pub(crate) const DIR: &str = "wal";

/// First bytes of every segment.
const MAGIC: &[u8; 16] = b"forebay wal 001\n";

/// First bytes of every segment of any version.
const MAGIC_PREFIX: &[u8] = b"forebay wal ";

/// Bytes of a segment that are read at once, unless a record is larger.
const WINDOW_BYTES: usize = 1 << 20;

/// Returns the path of a segment within the storage directory.
pub(crate) fn segment_path(segment: u64) -> String {
    format!("{DIR}/{segment:016x}")
}

/// Position in the WAL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WalPosition {
    pub(crate) segment: u64,
    /// Byte within the segment.
    pub(crate) at: u64,
}

impl WalPosition {
    /// Returns the position of a segment's first record.
    pub(crate) fn start(segment: u64) -> Self {
        WalPosition { segment, at: MAGIC.len() as u64 }
    }
}

/// Writer of the last segment.
#[derive(Debug)]
pub(crate) struct WalWriter {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    position: WalPosition,
}

impl WalWriter {
    /// Creates a segment. Its name and its magic bytes are durable when this returns.
    pub(crate) fn create(disk: Arc<dyn Disk>, segment: u64) -> io::Result<Self> {
        let path = segment_path(segment);
        let begin = |file: &dyn DiskFile| {
            file.write_all_at(MAGIC, 0)?;
            file.sync_data()?;
            disk.sync_dir(DIR)
        };
        let file = disk.create(&path)?;
        if let Err(error) = begin(&*file) {
            // The caller may retry later. Until then, no segment without magic bytes may stay.
            let _removed = disk.remove(&path);
            return Err(error);
        }
        Ok(WalWriter { disk, file, position: WalPosition::start(segment) })
    }

    /// Continues in a new segment. After an error the caller may retry.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        *self = WalWriter::create(Arc::clone(&self.disk), self.position.segment + 1)?;
        Ok(())
    }

    /// Returns the position of the next record.
    pub(crate) fn position(&self) -> WalPosition {
        self.position
    }

    /// Appends bytes without a sync. After an error the caller may retry: the retry overwrites what
    /// was written.
    pub(crate) fn append(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.file.write_all_vectored_at(parts, self.position.at)?;
        self.position.at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Makes all appended bytes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Returns the numbers of all segments, in order.
pub(crate) fn segments(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let names = disk.list(DIR)?;
    Ok(names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).collect())
}

/// Returns whether any segment has a record.
pub(crate) fn has_records(disk: &dyn Disk) -> Result<bool, OpenError> {
    for segment in segments(disk)? {
        let records = WalRecords::open(disk, WalPosition::start(segment), None)?;
        if let Some(mut records) = records
            && records.next()?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Iterator over the records of a segment. Reads [`WINDOW_BYTES`] at a time.
#[derive(Debug)]
pub(crate) struct WalRecords {
    file: Arc<dyn DiskFile>,
    segment: u64,
    /// End of the last record that was returned.
    at: u64,
    /// End of the bytes to read.
    end: u64,
    /// Bytes that were read from `at` on.
    window: Bytes,
}

impl WalRecords {
    /// Opens a segment to read records from `from` up to byte `to`. Returns `None` if the segment
    /// doesn't exist.
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
        let has_magic = magic == MAGIC;
        if !has_magic && magic.len() == MAGIC.len() && magic.starts_with(MAGIC_PREFIX) {
            let what = format!("it begins with {:?}", String::from_utf8_lossy(&magic));
            return Err(OpenError::Unreadable { file: segment_path(from.segment), what });
        }
        // The magic bytes are synced before the first record is written.
        if !has_magic && len > MAGIC.len() as u64 {
            return Err(OpenError::Damaged { file: "the write-ahead log" });
        }
        let end = if has_magic { to.map_or(len, |to| to.min(len)) } else { 0 };
        Ok(Some(WalRecords { file, segment: from.segment, at: from.at, end, window: Bytes::new() }))
    }

    /// Returns the next record, or `None` if no other whole record follows. Fails if this version
    /// can't decode the record.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, OpenError> {
        loop {
            let next = frame::read_frame(&self.window).map_err(|unknown| OpenError::Unreadable {
                file: segment_path(self.segment),
                what: format!("{unknown} at byte {}", self.at),
            })?;
            if let Some((record, length)) = next {
                self.window = self.window.slice(length..);
                self.at += length as u64;
                return Ok(Some(record));
            }
            let (missing, left) =
                (frame::framed_length(&self.window) > self.window.len(), self.end.saturating_sub(self.at));
            let wanted = left.min(frame::framed_length(&self.window).max(WINDOW_BYTES) as u64);
            if !missing || wanted <= self.window.len() as u64 {
                return Ok(None);
            }
            self.window = shape_files::read_range(&*self.file, self.at, self.at + wanted)?.into();
        }
    }

    /// Returns the end of the last record that was returned, in bytes of the segment.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Returns whether the last returned record ends at the end of the bytes to read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.end
    }
}

/// Removes the bytes after the last whole record of the last segment. All other segments are whole.
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

/// Writes all whole records from `from` on again, and syncs them. Returns the end of the WAL.
///
/// After a failed sync, records can be read that are not on the disk, and a second sync wouldn't
/// write them. If `from` is `None`, there is no head: the machine was restarted since the last
/// write. Then all readable bytes are on the disk, and nothing is written.
///
/// Writes nothing if the WAL is damaged, or has a record that this version can't decode.
pub(crate) fn rewrite_unsynced(
    disk: &dyn Disk,
    from: Option<WalPosition>,
) -> Result<Option<WalPosition>, OpenError> {
    let segments_read = read_through(disk, from.unwrap_or_default())?;
    for (start, records) in segments_read.iter().filter(|_| from.is_some()) {
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
    Ok(segments_read.last().map(|(start, records)| WalPosition { segment: start.segment, at: records.at() }))
}

/// Fails if the WAL has a record from `from` on that this version can't decode. Ignores all other
/// errors, which recovery handles: the WAL may not exist yet, or another process is writing to it.
pub(crate) fn check_readable(disk: &dyn Disk, from: WalPosition) -> Result<(), OpenError> {
    match read_through(disk, from) {
        Err(error @ OpenError::Unreadable { .. }) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Reads the WAL from `from` on. Returns the start of each segment, and its iterator after the last
/// whole record. Fails if a segment with a successor is not whole.
fn read_through(disk: &dyn Disk, from: WalPosition) -> Result<Vec<(WalPosition, WalRecords)>, OpenError> {
    let mut segments_read: Vec<(WalPosition, WalRecords)> = Vec::new();
    for segment in segments(disk)?.into_iter().filter(|segment| *segment >= from.segment) {
        let start = WalPosition::start(segment).max(from);
        if let Some(mut records) = WalRecords::open(disk, start, None)? {
            if segments_read.last().is_some_and(|(_, before)| !before.is_at_end()) {
                return Err(OpenError::Damaged { file: "the write-ahead log" });
            }
            while records.next()?.is_some() {}
            records.window = Bytes::new();
            segments_read.push((start, records));
        }
    }
    Ok(segments_read)
}
