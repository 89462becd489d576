//! Reading the store: what is there at the start, and what another process writes meanwhile.
//!
//! Invariant: a reader has applied the log up to its place, each record once, from a catalog on. Kept by: a place only moves forward, past what
//! was applied, or to where a newer catalog says that the log goes on.
//! A record that can't be understood, and a log that ends before what is durable, are errors: no
//! reader takes them for the end of the log.

use std::io;
use std::sync::Arc;

use super::OpenError;
use super::catalog::{self, StoreCatalog};
use super::checkpoint;
use super::wal::{self, WalPosition, WalRecords};
use super::writer::StoreMode;
use super::writer_head::WriterHead;
use crate::registry::{StoreInner, lock};

/// How far a process has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplayPosition {
    /// Everything before it was applied.
    pub(crate) position: WalPosition,
    /// The first segment that the last catalog doesn't cover: what is before it is in the shapes' files.
    pub(crate) catalog: u64,
}

/// Reads what is there at the start. Fails also if the log has a record that this version can't
/// read after what is known to be durable: the next writer has to read it.
pub(crate) fn open(inner: &Arc<StoreInner>) -> Result<(), OpenError> {
    refresh(inner)?;
    let durable = WriterHead::read(&*inner.disk).unwrap_or_default().durable;
    wal::check_readable(&*inner.disk, durable)
}

/// Reads what is durable, up to where the writer says.
pub(crate) fn refresh(inner: &Arc<StoreInner>) -> Result<(), OpenError> {
    let mut mode = lock(&inner.mode);
    let StoreMode::Reading(reading) = &mut *mode else { return Ok(()) };
    match WriterHead::read(&*inner.disk) {
        Some(head) => advance(inner, reading, Some(head)),
        // Nobody has written since the machine started. The catalog is good for reading.
        None if reading.is_none() => load_catalog(inner, reading),
        None => Ok(()),
    }
}

/// Applies the log from where we are, to what is durable, or without a head to its end.
pub(crate) fn advance(
    inner: &StoreInner,
    reading: &mut Option<ReplayPosition>,
    head: Option<WriterHead>,
) -> Result<(), OpenError> {
    let (disk, mut spill_limit) = (&*inner.disk, inner.config.unwritten_bytes);
    // Whoever is about to write has no use for what a writer may not have come to say.
    if reading.is_none_or(|reading| head.is_none_or(|head| head.catalog > reading.catalog)) {
        load_catalog(inner, reading)?;
    }
    while let Some(ReplayPosition { position, .. }) = *reading {
        let limit = match head {
            Some(head) if head.durable.segment < position.segment => break,
            Some(head) if head.durable.segment == position.segment => Some(head.durable.at),
            Some(_) | None => None,
        };
        let Some(mut records) = WalRecords::open(disk, position, limit)? else {
            // It was removed, so a catalog covers it, though the writer hasn't said so yet.
            load_catalog(inner, reading)?;
            if reading.is_some_and(|reading| reading.position > position) {
                continue;
            }
            return Err(OpenError::Damaged { file: "the log" });
        };
        while let Some(record) = records.next()? {
            inner.apply(&record);
            reading.iter_mut().for_each(|reading| reading.position.at = records.at());
            if inner.files.unwritten() > spill_limit {
                checkpoint::free_memory(inner, head.is_none())?;
                spill_limit = inner.files.unwritten() + inner.config.unwritten_bytes;
            }
        }
        // What is durable is whole, and so is a segment with a successor: the writer has synced it,
        // or cut it after its last record.
        let is_last = limit.is_some() || !wal::segments(disk)?.contains(&(position.segment + 1));
        let is_whole = limit.map_or(is_last || records.is_at_end(), |durable| records.at() >= durable);
        if !is_whole {
            return Err(OpenError::Damaged { file: "the log" });
        }
        if is_last {
            break;
        }
        reading.iter_mut().for_each(|reading| reading.position = WalPosition::start(position.segment + 1));
    }
    Ok(())
}

/// Reads the catalog, and goes on from there if it is ahead.
fn load_catalog(inner: &StoreInner, reading: &mut Option<ReplayPosition>) -> Result<(), OpenError> {
    let Some(catalog) = StoreCatalog::read(&*inner.disk)? else {
        return check_without_catalog(inner);
    };
    let segment = catalog.header.segment;
    match reading {
        Some(reading) if reading.position.segment >= segment => {
            inner.release_covered(&catalog);
            reading.catalog = segment;
        }
        Some(_) | None => {
            inner.load_catalog(&catalog);
            *reading = Some(ReplayPosition { position: WalPosition::start(segment), catalog: segment });
        }
    }
    Ok(())
}

/// A store has one before it has anything else.
fn check_without_catalog(inner: &StoreInner) -> Result<(), OpenError> {
    let disk = &*inner.disk;
    match wal::segments(disk) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        segments => drop(segments?),
    }
    // Looked for again: somebody may have begun the store meanwhile.
    if wal::has_records(disk, 0)? && StoreCatalog::read(disk)?.is_none() {
        return Err(OpenError::Damaged { file: catalog::FILE_NAME });
    }
    Ok(())
}
