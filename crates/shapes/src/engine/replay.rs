//! Replay of the catalog and the WAL, at the start and while another process writes.
//!
//! Invariant: a reader has applied a catalog, and each record from there up to its position once.
//! Enforced by: a position only moves forward, past the applied record or to the segment of a newer
//! catalog.
//! A record that this version can't decode, and a WAL that ends before the durable position, are
//! errors. They are never treated as the end of the WAL.
//! The lock of the mode is held during a whole replay.

use std::io;

use super::apply::{self, VisibleChanges};
use super::{ShapeEngine, checkpoint};
use crate::store::OpenError;
use crate::store::catalog::{self, StoreCatalog};
use crate::store::wal::{self, WalPosition, WalRecords};
use crate::store::writer_head::WriterHead;
use crate::store::writer_role::{ReplayPosition, StoreMode};

/// Replays the store when a process starts. Also fails if a record after the durable position can't
/// be decoded, because the next writer has to read it.
pub(crate) fn open(engine: &ShapeEngine) -> Result<(), OpenError> {
    refresh(engine)?;
    let disk = &*engine.store.disk;
    let durable = WriterHead::read(disk).unwrap_or_default().durable;
    wal::check_readable(disk, durable)
}

/// Replays the records that became durable since the last call. Does nothing while this process
/// writes.
pub(crate) fn refresh(engine: &ShapeEngine) -> Result<(), OpenError> {
    let mut mode = engine.store.role.mode();
    let StoreMode::Reading(replayed) = &mut *mode else { return Ok(()) };
    match WriterHead::read(&*engine.store.disk) {
        Some(head) => advance(engine, replayed, Some(head)),
        // No process has written since the machine started, or the head is being written. Which
        // records are durable is unknown, so only the catalog is read.
        None if replayed.is_none() => load_catalog(engine, replayed),
        None => Ok(()),
    }
}

/// Applies records from `replayed` up to the durable position of `head`. Without a head, applies
/// them up to the end of the WAL; the caller has read the catalog with [`load_catalog`].
pub(crate) fn advance(
    engine: &ShapeEngine,
    replayed: &mut Option<ReplayPosition>,
    head: Option<WriterHead>,
) -> Result<(), OpenError> {
    let store = &engine.store;
    let (disk, mut spill_limit) = (&*store.disk, store.config.unwritten_bytes);
    let mut visible = VisibleChanges::default();
    if replayed.is_none_or(|replayed| head.is_some_and(|head| head.catalog > replayed.catalog)) {
        load_catalog(engine, replayed)?;
    }
    while let Some(ReplayPosition { position, .. }) = *replayed {
        let limit = match head {
            Some(head) if head.durable.segment < position.segment => break,
            Some(head) if head.durable.segment == position.segment => Some(head.durable.at),
            Some(_) | None => None,
        };
        let Some(mut records) = WalRecords::open(disk, position, limit)? else {
            // The segment was removed, so a catalog covers it, although the head doesn't show it
            // yet.
            load_catalog(engine, replayed)?;
            if replayed.is_some_and(|replayed| replayed.position > position) {
                continue;
            }
            return Err(OpenError::Damaged { file: "the write-ahead log" });
        };
        while let Some(record) = records.next()? {
            apply::apply(engine, &record, &mut visible);
            engine.notify(&mut visible);
            replayed.iter_mut().for_each(|replayed| replayed.position.at = records.at());
            if store.files.unwritten() > spill_limit {
                match head {
                    // Recovery: this process holds the lock of the directory.
                    None => checkpoint::write_and_release(engine)?,
                    Some(_) => checkpoint::release_written(engine),
                }
                spill_limit = store.files.unwritten() + store.config.unwritten_bytes;
            }
        }
        // Durable records are whole. A segment with a successor is whole, too: the writer synced it
        // or truncated it after its last record.
        let is_last = limit.is_some() || !wal::segments(disk)?.contains(&(position.segment + 1));
        let is_whole = limit.map_or(is_last || records.is_at_end(), |durable| records.at() >= durable);
        if !is_whole {
            return Err(OpenError::Damaged { file: "the write-ahead log" });
        }
        if is_last {
            break;
        }
        replayed.iter_mut().for_each(|replayed| replayed.position = WalPosition::start(position.segment + 1));
    }
    Ok(())
}

/// Reads the catalog. If its segment is ahead of `replayed`, loads it and continues from there.
/// Otherwise only releases the messages that the catalog covers from memory.
pub(crate) fn load_catalog(
    engine: &ShapeEngine,
    replayed: &mut Option<ReplayPosition>,
) -> Result<(), OpenError> {
    let Some(catalog) = StoreCatalog::read(&*engine.store.disk)? else {
        return check_without_catalog(engine);
    };
    let segment = catalog.header.segment;
    match replayed {
        Some(replayed) if replayed.position.segment >= segment => {
            apply::release_covered(engine, &catalog);
            replayed.catalog = segment;
        }
        Some(_) | None => {
            let mut visible = VisibleChanges::default();
            apply::load_catalog(engine, &catalog, &mut visible);
            engine.notify(&mut visible);
            *replayed = Some(ReplayPosition { position: WalPosition::start(segment), catalog: segment });
        }
    }
    Ok(())
}

/// Fails if the WAL has records although there is no catalog: a writer creates the catalog first.
fn check_without_catalog(engine: &ShapeEngine) -> Result<(), OpenError> {
    let disk = &*engine.store.disk;
    match wal::segments(disk) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        segments => drop(segments?),
    }
    // Reads the catalog again: a writer may have created the store since the first read.
    if wal::has_records(disk)? && StoreCatalog::read(disk)?.is_none() {
        return Err(OpenError::Damaged { file: catalog::FILE_NAME });
    }
    Ok(())
}
