//! Checkpoints: what makes the log short.
//!
//! Invariant: a segment is removed only when all that its records say is durable elsewhere. Kept by: what a catalog counts of the shapes' files
//! is synced before the catalog is written, and that before the segments that it covers go.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::catalog::Catalog;
use super::compaction::{self, Compacted};
use super::files;
use super::record::{CatalogHead, Kept};
use super::wal;
use crate::registry::{StoreInner, lock};
use crate::shape::state::SequenceKind;
use crate::shape::{Shape, ShapePhase};

/// Everything as it was when a segment began.
pub(crate) struct Checkpoint {
    catalog: Catalog,
    shapes: Vec<Arc<Shape>>,
}

impl Checkpoint {
    /// Not inside of a transaction: what is staged isn't in it.
    pub(crate) fn capture(inner: &StoreInner, segment: u64) -> Self {
        let mut registry = inner.registry_mut();
        let shapes: Vec<_> = registry.shapes().cloned().collect();
        let kept: Vec<Kept> = shapes.iter().map(|shape| shape.keep()).collect();
        registry.forget_unused_tables();
        let head = CatalogHead {
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
        Checkpoint { catalog: Catalog { head, tables, shapes: kept }, shapes }
    }

    pub(crate) fn write(mut self, inner: &StoreInner) -> io::Result<()> {
        for (shape, kept) in self.shapes.iter().zip(&self.catalog.shapes) {
            spill(inner, shape, kept.snapshot.as_ref().map_or(0, |snapshot| snapshot.len), kept.log.len)?;
        }
        let long = self.shapes.iter().zip(&mut self.catalog.shapes);
        let compacted: Vec<Compacted> =
            long.filter_map(|(shape, kept)| compaction::compact(inner, shape, kept)).collect();
        // Nothing comes to the old files until the shapes have their new ones.
        let files_stay = lock(&inner.relieving);
        if let Err(error) = self.publish(inner, &compacted) {
            compacted.into_iter().for_each(|compacted| compacted.give_up(inner));
            return Err(error);
        }
        // What the catalog before this one still named, this one doesn't.
        let garbage = std::mem::take(&mut *lock(&inner.garbage));
        compacted.into_iter().for_each(|compacted| compacted.take_effect(inner));
        drop(files_stay);
        for segment in wal::segments(&*inner.disk)? {
            if segment < self.catalog.head.segment {
                inner.disk.remove(&wal::path(segment))?;
            }
        }
        garbage.into_iter().for_each(|(shape, kind)| inner.files.remove_one(shape, kind));
        Ok(())
    }

    /// All that takes room. After an error the catalog is the one from before.
    fn publish(&self, inner: &StoreInner, compacted: &[Compacted]) -> io::Result<()> {
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
pub(crate) fn remove_orphans(inner: &StoreInner, but: &HashSet<u64>) -> io::Result<()> {
    let names = |shape: &Arc<Shape>| {
        let (id, base) = (shape.id, shape.lock().log.base());
        files::kinds(base).map(|kind| files::name(id, kind))
    };
    let known: HashSet<String> = inner.registry().shapes().flat_map(names).collect();
    for name in inner.disk.list(files::DIR)? {
        if !known.contains(&name) && files::owner(&name).is_none_or(|shape| !but.contains(&shape)) {
            inner.disk.remove(&format!("{}/{name}", files::DIR))?;
        }
    }
    Ok(())
}

/// Memory has too much that isn't in files. Who may write writes it; who may not finds what another has written.
pub(crate) fn relieve(inner: &StoreInner, may_write: bool) -> io::Result<()> {
    let shapes: Vec<_> = inner.registry().shapes().cloned().collect();
    let _files_stay = lock(&inner.relieving);
    for shape in shapes {
        if may_write {
            spill(inner, &shape, u64::MAX, u64::MAX)?;
        } else {
            PARTS.into_iter().for_each(|part| find_written(inner, &shape, part));
        }
    }
    Ok(())
}

const PARTS: [SequenceKind; 2] = [SequenceKind::Snapshot, SequenceKind::Log];

/// Writes what a shape has in memory to its files, up to these lengths.
fn spill(inner: &StoreInner, shape: &Shape, snapshot: u64, log: u64) -> io::Result<()> {
    for (part, up_to) in PARTS.into_iter().zip([snapshot, log]) {
        let (kind, base, (from, pieces)) = {
            let state = shape.lock();
            match (&state.phase, part) {
                (ShapePhase::Gone(_), _) | (ShapePhase::Filling, SequenceKind::Snapshot) => continue,
                (ShapePhase::Filling | ShapePhase::Complete, _) => {
                    let strand = state.strand(part);
                    (state.kind(part), strand.base(), strand.unwritten(up_to))
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
        shape.change(|state| state.strand_mut(part).wrote(at));
    }
    if shape.gone().is_some() {
        // It may have been deleted before the file was made.
        inner.files.remove(shape.id);
    }
    Ok(())
}

/// Lets go of what is in a file, byte for byte.
fn find_written(inner: &StoreInner, shape: &Shape, part: SequenceKind) {
    let (kind, base, (mut at, pieces)) = {
        let state = shape.lock();
        let strand = state.strand(part);
        (state.kind(part), strand.base(), strand.unwritten(u64::MAX))
    };
    if pieces.is_empty() {
        return;
    }
    let Ok(file) = inner.files.open(shape.id, kind) else { return };
    for piece in pieces {
        let end = at + piece.len() as u64;
        if !files::read(&*file, at - base, end - base).is_ok_and(|bytes| bytes == piece) {
            break;
        }
        at = end;
    }
    shape.change(|state| state.strand_mut(part).wrote(at));
}
