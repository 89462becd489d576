//! Checkpoints: write all state to the catalog and the shapes' files, then remove old WAL segments.
//!
//! Invariant: a segment is removed only when the effects of its records are durable elsewhere.
//! Enforced by: the shapes' files are synced before the catalog with their new lengths is written.
//! The segments that the catalog covers are removed last.
//! Lock order: `spill_lock`, then `garbage` or a shape.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::catalog::StoreCatalog;
use super::compaction::{self, CompactedLog};
use super::record::{CatalogHeader, CatalogShape};
use super::shape_files;
use super::wal;
use crate::registry::{StoreInner, lock};
use crate::shape::state::SequenceKind;
use crate::shape::{Shape, ShapePhase};

/// State of the store as of the start of a WAL segment.
pub(crate) struct StoreCheckpoint {
    catalog: StoreCatalog,
    /// The shapes of the catalog, in the same order.
    shapes: Vec<Arc<Shape>>,
}

impl StoreCheckpoint {
    /// Captures the state. Must not be called inside a transaction, because staged messages are not
    /// captured.
    pub(crate) fn capture(inner: &StoreInner, segment: u64) -> Self {
        let mut registry = inner.registry_mut();
        let shapes: Vec<_> = registry.shapes().cloned().collect();
        let catalog_shapes: Vec<CatalogShape> = shapes.iter().map(|shape| shape.to_catalog()).collect();
        registry.forget_unused_tables();
        let header = CatalogHeader {
            format: 0, // set when the catalog is written
            origin: registry.origin.clone(),
            lsn: inner.durable.load(Ordering::Acquire),
            seen: inner.seen(),
            next_id: registry.next_id,
            last_handle: registry.last_handle,
            segment,
            states: registry.baselines.take_for_catalog(),
        };
        let tables = registry.tables.iter().map(|(id, table)| (*id, Arc::clone(table))).collect();
        StoreCheckpoint { catalog: StoreCatalog { header, tables, shapes: catalog_shapes }, shapes }
    }

    /// Writes the shapes' files, compacts long logs, and writes the catalog. Then removes the WAL
    /// segments that the catalog covers, and the files that the previous compaction replaced.
    pub(crate) fn write(mut self, inner: &StoreInner) -> io::Result<()> {
        for (shape, catalog_shape) in self.shapes.iter().zip(&self.catalog.shapes) {
            spill(
                inner,
                shape,
                catalog_shape.snapshot.as_ref().map_or(0, |snapshot| snapshot.len),
                catalog_shape.log.len,
            )?;
        }
        let pairs = self.shapes.iter().zip(&mut self.catalog.shapes);
        let compacted: Vec<CompactedLog> = pairs
            .filter_map(|(shape, catalog_shape)| compaction::compact(inner, shape, catalog_shape))
            .collect();
        // No message is written to the old files until the shapes use the new ones.
        let spill_guard = lock(&inner.spill_lock);
        if let Err(error) = self.sync_and_write_catalog(inner, &compacted) {
            // After any other error, the new catalog may be on the disk, so the new files must
            // stay. The writer thread fails. The next writer removes the files that the catalog on
            // the disk doesn't refer to.
            if error.kind() == io::ErrorKind::StorageFull {
                compacted.into_iter().for_each(|compacted| compacted.discard(inner));
            }
            return Err(error);
        }
        // Old files that an earlier checkpoint replaced. Files that this one replaces are added
        // below, and stay until the next checkpoint.
        let garbage = std::mem::take(&mut *lock(&inner.garbage));
        compacted.into_iter().for_each(|compacted| compacted.install(inner));
        drop(spill_guard);
        for segment in wal::segments(&*inner.disk)? {
            if segment < self.catalog.header.segment {
                inner.disk.remove(&wal::segment_path(segment))?;
            }
        }
        garbage.into_iter().for_each(|(shape, kind)| inner.files.remove_file(shape, kind));
        Ok(())
    }

    /// Completes the new files of compacted logs, syncs all files, and writes the catalog.
    fn sync_and_write_catalog(&self, inner: &StoreInner, compacted: &[CompactedLog]) -> io::Result<()> {
        compacted.iter().try_for_each(|compacted| compacted.catch_up(inner))?;
        inner.disk.sync_everything()?;
        self.write_catalog(inner)
    }

    /// Writes only the catalog, which is all that a store without shapes needs.
    pub(crate) fn write_catalog(&self, inner: &StoreInner) -> io::Result<()> {
        self.catalog.write(&*inner.disk)
    }
}

/// Removes the files in `shapes/` that no known shape uses. They are left by a process that ended
/// while it created, merged or deleted a shape's files. Files of the shapes in `except` stay.
pub(crate) fn remove_orphans(inner: &StoreInner, except: &HashSet<u64>) -> io::Result<()> {
    let names = |shape: &Arc<Shape>| {
        let (id, base) = (shape.id, shape.lock().log.base());
        shape_files::file_kinds(base).map(|kind| shape_files::file_name(id, kind))
    };
    let known: HashSet<String> = inner.registry().shapes().flat_map(names).collect();
    for name in inner.disk.list(shape_files::DIR)? {
        if !known.contains(&name)
            && shape_files::shape_of_file(&name).is_none_or(|shape| !except.contains(&shape))
        {
            inner.disk.remove(&format!("{}/{name}", shape_files::DIR))?;
        }
    }
    Ok(())
}

/// Frees memory that holds messages. If `may_write`, writes all messages to files. Otherwise
/// releases only messages that another process, the writer, has written to files.
pub(crate) fn free_memory(inner: &StoreInner, may_write: bool) -> io::Result<()> {
    let shapes: Vec<_> = inner.registry().shapes().cloned().collect();
    let _spill_guard = lock(&inner.spill_lock);
    for shape in shapes {
        if may_write {
            spill(inner, &shape, u64::MAX, u64::MAX)?;
        } else {
            SEQUENCE_KINDS.into_iter().for_each(|part| release_written(inner, &shape, part));
        }
    }
    Ok(())
}

const SEQUENCE_KINDS: [SequenceKind; 2] = [SequenceKind::Snapshot, SequenceKind::Log];

/// Writes a shape's messages to its files, up to these lengths.
fn spill(inner: &StoreInner, shape: &Shape, snapshot: u64, log: u64) -> io::Result<()> {
    for (part, up_to) in SEQUENCE_KINDS.into_iter().zip([snapshot, log]) {
        let (kind, base, (from, pieces)) = {
            let state = shape.lock();
            match (&state.phase, part) {
                (ShapePhase::Gone(_), _) | (ShapePhase::Filling, SequenceKind::Snapshot) => continue,
                (ShapePhase::Filling | ShapePhase::Complete, _) => {
                    let sequence = state.sequence(part);
                    (state.kind(part), sequence.base(), sequence.unwritten(up_to))
                }
            }
        };
        if pieces.is_empty() {
            continue;
        }
        let (file, mut at) = (inner.files.open_or_create(shape.id, kind)?, from);
        for pieces in pieces.chunks(512) {
            let parts: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            file.write_all_vectored_at(&parts, at - base)?;
            at += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        }
        shape.change(|state| state.sequence_mut(part).mark_written(at));
    }
    if shape.gone().is_some() {
        // The shape may have been deleted before its file was created.
        inner.files.remove(shape.id);
    }
    Ok(())
}

/// Compares a shape's messages in memory with its file, and releases those that are in the file.
fn release_written(inner: &StoreInner, shape: &Shape, part: SequenceKind) {
    let (kind, base, (mut at, pieces)) = {
        let state = shape.lock();
        let sequence = state.sequence(part);
        (state.kind(part), sequence.base(), sequence.unwritten(u64::MAX))
    };
    if pieces.is_empty() {
        return;
    }
    let Ok(file) = inner.files.open(shape.id, kind) else { return };
    for piece in pieces {
        let end = at + piece.len() as u64;
        if !shape_files::read_range(&*file, at - base, end - base).is_ok_and(|bytes| bytes == piece) {
            break;
        }
        at = end;
    }
    shape.change(|state| state.sequence_mut(part).mark_written(at));
}
