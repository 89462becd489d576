//! Reading the store: what is there at the start, and what another process writes meanwhile.
//!
//! Invariant: a reader has applied the log up to its place, each record once, from a catalog on. Kept by: a place only moves forward, past what
//! was applied, or to where a newer catalog says that the log goes on.
//! A record that can't be understood, and a log that ends before what is durable, are errors: no
//! reader takes them for the end of the log.

use std::io;
use std::sync::Arc;

use super::OpenError;
use super::catalog::{self, Catalog};
use super::checkpoint;
use super::head::Head;
use super::wal::{self, Place, Records};
use super::writer::Mode;
use crate::registry::{StoreInner, lock};

/// How far a process has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Everything before it was applied.
    pub(crate) place: Place,
    /// The first segment that the last catalog doesn't cover: what is before it is in the shapes' files.
    pub(crate) catalog: u64,
}

/// Reads what is there at the start. Fails also if the log has a record that this version can't
/// read after what is known to be durable: the next writer has to read it.
pub(crate) fn open(inner: &Arc<StoreInner>) -> Result<(), OpenError> {
    refresh(inner)?;
    let durable = Head::read(&*inner.disk).unwrap_or_default().durable;
    wal::check_readable(&*inner.disk, durable)
}

/// Reads what is durable, up to where the writer says.
pub(crate) fn refresh(inner: &Arc<StoreInner>) -> Result<(), OpenError> {
    let mut mode = lock(&inner.mode);
    let Mode::Reading(reading) = &mut *mode else { return Ok(()) };
    match Head::read(&*inner.disk) {
        Some(head) => advance(inner, reading, Some(head)),
        // Nobody has written since the machine started. The catalog is good for reading.
        None if reading.is_none() => load(inner, reading),
        None => Ok(()),
    }
}

/// Applies the log from where we are, to what is durable, or without a head to its end.
pub(crate) fn advance(
    inner: &StoreInner,
    reading: &mut Option<Reading>,
    head: Option<Head>,
) -> Result<(), OpenError> {
    let (disk, mut most) = (&*inner.disk, inner.config.unwritten_bytes);
    // Whoever is about to write has no use for what a writer may not have come to say.
    if reading.is_none_or(|reading| head.is_none_or(|head| head.catalog > reading.catalog)) {
        load(inner, reading)?;
    }
    while let Some(Reading { place, .. }) = *reading {
        let limit = match head {
            Some(head) if head.durable.segment < place.segment => break,
            Some(head) if head.durable.segment == place.segment => Some(head.durable.at),
            Some(_) | None => None,
        };
        let Some(mut records) = Records::open(disk, place, limit)? else {
            // It was removed, so a catalog covers it, though the writer hasn't said so yet.
            load(inner, reading)?;
            if reading.is_some_and(|reading| reading.place > place) {
                continue;
            }
            return Err(OpenError::Damaged { file: "the log" });
        };
        while let Some(record) = records.next()? {
            inner.apply(&record);
            reading.iter_mut().for_each(|reading| reading.place.at = records.at());
            if inner.files.unwritten() > most {
                checkpoint::relieve(inner, head.is_none())?;
                most = inner.files.unwritten() + inner.config.unwritten_bytes;
            }
        }
        // What is durable is whole, and so is a segment with a successor: the writer has synced it,
        // or cut it after its last record.
        let is_last = limit.is_some() || !wal::segments(disk)?.contains(&(place.segment + 1));
        let is_whole = limit.map_or(is_last || records.is_at_end(), |durable| records.at() >= durable);
        if !is_whole {
            return Err(OpenError::Damaged { file: "the log" });
        }
        if is_last {
            break;
        }
        reading.iter_mut().for_each(|reading| reading.place = Place::start(place.segment + 1));
    }
    Ok(())
}

/// Reads the catalog, and goes on from there if it is ahead.
fn load(inner: &StoreInner, reading: &mut Option<Reading>) -> Result<(), OpenError> {
    let Some(catalog) = Catalog::read(&*inner.disk)? else {
        return no_catalog(inner);
    };
    let segment = catalog.head.segment;
    match reading {
        Some(reading) if reading.place.segment >= segment => {
            inner.release(&catalog);
            reading.catalog = segment;
        }
        Some(_) | None => {
            inner.load(&catalog);
            *reading = Some(Reading { place: Place::start(segment), catalog: segment });
        }
    }
    Ok(())
}

/// A store has one before it has anything else.
fn no_catalog(inner: &StoreInner) -> Result<(), OpenError> {
    let disk = &*inner.disk;
    match wal::segments(disk) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        segments => drop(segments?),
    }
    // Looked for again: somebody may have begun the store meanwhile.
    if wal::has_records(disk, 0)? && Catalog::read(disk)?.is_none() {
        return Err(OpenError::Damaged { file: catalog::NAME });
    }
    Ok(())
}
