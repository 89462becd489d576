//! Checkpoints: write all state to the catalog and the shapes' files, then remove old WAL segments.
//!
//! Invariant: a segment is removed only when the effects of its records are durable elsewhere.
//! Enforced by: the shapes' files are synced before the catalog with their new lengths is written.
//! The segments that the catalog covers are removed last.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::sync::Arc;

use super::ShapeEngine;
use super::compaction::{self, CompactedLog};
use crate::shape::state::SequenceKind;
use crate::shape::{Shape, ShapePhase};
use crate::store::catalog::StoreCatalog;
use crate::store::record::{CatalogHeader, CatalogShape};
use crate::store::{disk, shape_files, wal};

/// State of the store as of the start of a WAL segment.
pub(crate) struct StoreCheckpoint {
    catalog: StoreCatalog,
    /// The shapes of the catalog, in the same order.
    shapes: Vec<Arc<Shape>>,
}

impl StoreCheckpoint {
    /// Captures the state. Must not be called inside a transaction, because staged messages are not
    /// captured.
    pub(crate) fn capture(engine: &ShapeEngine, segment: u64) -> Self {
        let mut index = engine.registry.write();
        let shapes: Vec<_> = index.shapes().cloned().collect();
        let catalog_shapes: Vec<CatalogShape> = shapes.iter().map(|shape| shape.to_catalog()).collect();
        index.forget_unused_tables();
        let header = CatalogHeader {
            format: 0, // set when the catalog is written
            origin: engine.store.progress.origin(),
            lsn: engine.store.progress.durable(),
            seen: engine.store.progress.seen(),
            next_id: index.next_id,
            last_handle: index.last_handle,
            segment,
            states: index.baselines.for_catalog(),
        };
        let tables = index.tables.iter().map(|(id, table)| (*id, Arc::clone(table))).collect();
        StoreCheckpoint { catalog: StoreCatalog { header, tables, shapes: catalog_shapes }, shapes }
    }

    /// Writes the shapes' files, compacts long logs, and writes the catalog. Then removes the WAL
    /// segments that the catalog covers, and the files that the previous compaction replaced.
    pub(crate) fn write(mut self, engine: &ShapeEngine) -> io::Result<()> {
        let store = &engine.store;
        for (shape, catalog_shape) in self.shapes.iter().zip(&self.catalog.shapes) {
            spill(
                engine,
                shape,
                catalog_shape.snapshot.as_ref().map_or(0, |snapshot| snapshot.len),
                catalog_shape.log.len,
            )?;
        }
        let pairs = self.shapes.iter().zip(&mut self.catalog.shapes);
        let compacted: Vec<CompactedLog> = pairs
            .filter_map(|(shape, catalog_shape)| compaction::compact(store, shape, catalog_shape))
            .collect();
        // No message is written to the old files until the shapes use the new ones.
        let mut replaced_files = store.replaced_files.lock();
        if let Err(error) = self.sync_and_write_catalog(engine, &compacted) {
            // After any other error, the new catalog may be on the disk, so the new files must
            // stay. The writer thread fails. The next writer removes the files that the catalog on
            // the disk doesn't refer to.
            if disk::is_full(&error) {
                compacted.into_iter().for_each(|compacted| compacted.discard(&store.files));
            }
            return Err(error);
        }
        // Old files that an earlier checkpoint replaced. Files that this one replaces are added
        // below, and stay until the next checkpoint.
        let garbage = std::mem::take(&mut *replaced_files);
        for compacted in compacted {
            replaced_files.extend(compacted.install(&store.files));
        }
        drop(replaced_files);
        for segment in wal::segments(&*store.disk)? {
            if segment < self.catalog.header.segment {
                store.disk.remove(&wal::segment_path(segment))?;
            }
        }
        garbage.into_iter().for_each(|(shape, kind)| store.files.remove_file(shape, kind));
        Ok(())
    }

    /// Completes the new files of compacted logs, syncs all files, and writes the catalog.
    fn sync_and_write_catalog(&self, engine: &ShapeEngine, compacted: &[CompactedLog]) -> io::Result<()> {
        compacted.iter().try_for_each(|compacted| compacted.catch_up(&engine.store.files))?;
        engine.store.disk.sync_everything()?;
        self.write_catalog(engine)
    }

    /// Writes only the catalog, which is all that a store without shapes needs.
    pub(crate) fn write_catalog(&self, engine: &ShapeEngine) -> io::Result<()> {
        self.catalog.write(&*engine.store.disk)
    }
}

/// Removes the files in `shapes/` that no known shape uses. They are left by a process that ended
/// while it created, merged or deleted a shape's files. Files of the shapes in `except` stay.
pub(crate) fn remove_orphans(engine: &ShapeEngine, except: &HashSet<u64>) -> io::Result<()> {
    let names = |shape: &Arc<Shape>| {
        let (id, base) = (shape.id, shape.lock().log.base());
        shape_files::file_kinds(base).map(|kind| shape_files::file_name(id, kind))
    };
    let known: HashSet<String> = engine.registry.read().shapes().flat_map(names).collect();
    for name in engine.store.disk.list(shape_files::DIR)? {
        if !known.contains(&name)
            && shape_files::shape_of_file(&name).is_none_or(|shape| !except.contains(&shape))
        {
            engine.store.disk.remove(&format!("{}/{name}", shape_files::DIR))?;
        }
    }
    Ok(())
}

/// Frees the memory of messages: writes them to the shapes' files.
pub(crate) fn write_and_release(engine: &ShapeEngine) -> io::Result<()> {
    let shapes = engine.registry.shapes();
    let _no_replacement = engine.store.replaced_files.lock();
    shapes.iter().try_for_each(|shape| spill(engine, shape, u64::MAX, u64::MAX))
}

/// Frees the memory of messages that another process, the writer, has written to files.
pub(crate) fn release_written(engine: &ShapeEngine) {
    for shape in engine.registry.shapes() {
        SEQUENCE_KINDS.into_iter().for_each(|part| release_sequence(engine, &shape, part));
    }
}

const SEQUENCE_KINDS: [SequenceKind; 2] = [SequenceKind::Snapshot, SequenceKind::Log];

/// Writes a shape's messages to its files, up to these lengths.
fn spill(engine: &ShapeEngine, shape: &Shape, snapshot: u64, log: u64) -> io::Result<()> {
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
        let (file, mut at) = (engine.store.files.open_or_create(shape.id, kind)?, from);
        for pieces in pieces.chunks(512) {
            let parts: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            file.write_all_vectored_at(&parts, at - base)?;
            at += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        }
        shape.change(|state| state.sequence_mut(part).mark_written(at));
    }
    if shape.gone().is_some() {
        // The shape may have been deleted before its file was created.
        engine.store.files.remove(shape.id);
    }
    Ok(())
}

/// Compares a shape's messages in memory with its file, and releases those that are in the file.
fn release_sequence(engine: &ShapeEngine, shape: &Shape, part: SequenceKind) {
    let (kind, base, (mut at, pieces)) = {
        let state = shape.lock();
        let sequence = state.sequence(part);
        (state.kind(part), sequence.base(), sequence.unwritten(u64::MAX))
    };
    if pieces.is_empty() {
        return;
    }
    let Ok(file) = engine.store.files.open(shape.id, kind) else { return };
    for piece in pieces {
        let end = at + piece.len() as u64;
        if !shape_files::read_range(&*file, at - base, end - base).is_ok_and(|bytes| bytes == piece) {
            break;
        }
        at = end;
    }
    shape.change(|state| state.sequence_mut(part).mark_written(at));
}
