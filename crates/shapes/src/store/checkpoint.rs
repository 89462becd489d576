//! Checkpoints: what makes the log short.
//!
//! Invariant: a segment is removed only when all that its records say is durable elsewhere. Kept by: what a catalog counts of the shapes' files
//! is synced before the catalog is written, and that before the segments that it covers go.

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
use crate::shape::keeping::Part;
use crate::shape::{Phase, Shape};

/// Everything as it was when a segment began.
pub(crate) struct StoreCheckpoint {
    catalog: StoreCatalog,
    shapes: Vec<Arc<Shape>>,
}

impl StoreCheckpoint {
    /// Not inside of a transaction: what is staged isn't in it.
    pub(crate) fn capture(inner: &StoreInner, segment: u64) -> Self {
        let mut registry = inner.registry_mut();
        let shapes: Vec<_> = registry.shapes().cloned().collect();
        let kept: Vec<CatalogShape> = shapes.iter().map(|shape| shape.keep()).collect();
        registry.forget_unused_tables();
        let header = CatalogHeader {
            format: 0,
            origin: registry.origin.clone(),
            lsn: inner.durable.load(Ordering::Acquire),
            seen: inner.seen(),
            next_id: registry.next_id,
            last_handle: registry.last_handle,
            segment,
            states: registry.baselines.keep(),
        };
        let tables = registry.tables.iter().map(|(id, table)| (*id, Arc::clone(table))).collect();
        StoreCheckpoint { catalog: StoreCatalog { header, tables, shapes: kept }, shapes }
    }

    pub(crate) fn write(mut self, inner: &StoreInner) -> io::Result<()> {
        for (shape, kept) in self.shapes.iter().zip(&self.catalog.shapes) {
            spill(inner, shape, kept.snapshot.as_ref().map_or(0, |snapshot| snapshot.len), kept.log.len)?;
        }
        let long = self.shapes.iter().zip(&mut self.catalog.shapes);
        let compacted: Vec<CompactedLog> =
            long.filter_map(|(shape, kept)| compaction::compact(inner, shape, kept)).collect();
        // Nothing comes to the old files until the shapes have their new ones.
        let files_stay = lock(&inner.relieving);
        if let Err(error) = self.sync_and_write_catalog(inner, &compacted) {
            compacted.into_iter().for_each(|compacted| compacted.discard(inner));
            return Err(error);
        }
        // What the catalog before this one still named, this one doesn't.
        let garbage = std::mem::take(&mut *lock(&inner.garbage));
        compacted.into_iter().for_each(|compacted| compacted.install(inner));
        drop(files_stay);
        for segment in wal::segments(&*inner.disk)? {
            if segment < self.catalog.header.segment {
                inner.disk.remove(&wal::segment_path(segment))?;
            }
        }
        garbage.into_iter().for_each(|(shape, kind)| inner.files.remove_file(shape, kind));
        Ok(())
    }

    /// All that takes room. After an error the catalog is the one from before.
    fn sync_and_write_catalog(&self, inner: &StoreInner, compacted: &[CompactedLog]) -> io::Result<()> {
        compacted.iter().try_for_each(|compacted| compacted.catch_up(inner))?;
        inner.disk.sync_everything()?;
        self.write_catalog(inner)
    }

    /// All that there is to write of a store without shapes.
    pub(crate) fn write_catalog(&self, inner: &StoreInner) -> io::Result<()> {
        self.catalog.write(&*inner.disk)
    }
}

/// Files that nobody knows: they were being made, merged or deleted when the process ended. Those of some shapes stay for now.
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

/// Memory has too much that isn't in files. Who may write writes it; who may not finds what another has written.
pub(crate) fn free_memory(inner: &StoreInner, may_write: bool) -> io::Result<()> {
    let shapes: Vec<_> = inner.registry().shapes().cloned().collect();
    let _files_stay = lock(&inner.relieving);
    for shape in shapes {
        if may_write {
            spill(inner, &shape, u64::MAX, u64::MAX)?;
        } else {
            PARTS.into_iter().for_each(|part| release_written(inner, &shape, part));
        }
    }
    Ok(())
}

const PARTS: [Part; 2] = [Part::Snapshot, Part::Log];

/// Writes what a shape has in memory to its files, up to these lengths.
fn spill(inner: &StoreInner, shape: &Shape, snapshot: u64, log: u64) -> io::Result<()> {
    for (part, up_to) in PARTS.into_iter().zip([snapshot, log]) {
        let (kind, base, (from, pieces)) = {
            let state = shape.lock();
            match (&state.phase, part) {
                (Phase::Gone(_), _) | (Phase::Filling, Part::Snapshot) => continue,
                (Phase::Filling | Phase::Complete, _) => {
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
        // It may have been deleted before the file was made.
        inner.files.remove(shape.id);
    }
    Ok(())
}

/// Lets go of what is in a file, byte for byte.
fn release_written(inner: &StoreInner, shape: &Shape, part: Part) {
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
