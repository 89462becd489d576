//! Application of records and catalogs to the state in memory.
//!
//! Invariant: the visible state is that of the WAL's records, applied in order.
//! Enforced by: [`apply`] is the only way to apply a record, for the writer, for recovery, and for
//! processes that read while another one writes.
//!
//! Nothing here wakes a reader. The functions collect what became visible, and the caller passes it
//! to [`ShapeEngine::notify`].

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use super::ShapeEngine;
use crate::definition::{ShapeDefinition, ShapeOptions, TableSchema};
use crate::offset::Offset;
use crate::registry::{ShapeIndex, time_of};
use crate::shape::{CatalogMatch, Shape};
use crate::store::catalog::StoreCatalog;
use crate::store::record::{CatalogShape, CommitRecord, Note, Record, TransactionPart};

/// What applied records made visible.
#[derive(Debug, Default)]
pub(crate) struct VisibleChanges {
    /// Shapes with new readable bytes.
    pub(super) shapes: Vec<Arc<Shape>>,
    /// The position of the store has changed.
    pub(super) has_progressed: bool,
    /// The history was replaced, or another process has written it. The recent transactions of the
    /// stream are obsolete.
    pub(super) is_other_history: bool,
}

/// Applies a durable record. Adds what becomes visible to `visible`.
pub(crate) fn apply(engine: &ShapeEngine, record: &Record, visible: &mut VisibleChanges) {
    match record {
        Record::Part(changes) => {
            if changes.is_first {
                abandon_staged(engine);
            }
            stage_changes(engine, changes);
            engine.store.staged.lock().extend(changes.touches.iter().map(|touch| touch.shape));
        }
        Record::Commit(changes, commit) => apply_commit(engine, changes, commit, visible),
        Record::Note(note, bytes) => apply_note(engine, note, bytes, visible),
    }
}

/// Stages the messages of a part in the logs of its shapes.
fn stage_changes(engine: &ShapeEngine, changes: &TransactionPart) {
    let (index, chunk_bytes) = (engine.registry.read(), engine.store.config.chunk_bytes);
    for touch in &changes.touches {
        let Some(shape) = index.by_id(touch.shape) else { continue };
        shape.change(|state| {
            for range in &touch.ranges {
                let bytes = changes.text.slice(range.from as usize..range.to as usize);
                state.log.stage(bytes, Offset::new(changes.lsn, range.last_op), chunk_bytes);
            }
        });
    }
}

/// Stages the last part, and publishes the transaction in all its shapes.
fn apply_commit(
    engine: &ShapeEngine,
    changes: &TransactionPart,
    commit: &CommitRecord,
    visible: &mut VisibleChanges,
) {
    // A late commit is out of order. It leaves staged parts of other transactions alone.
    if changes.is_first && !commit.is_late() {
        abandon_staged(engine);
    }
    stage_changes(engine, changes);
    if !commit.is_late() {
        engine.store.staged.lock().clear();
    }
    let progress = &engine.store.progress;
    let seen = progress.seen().max(changes.lsn.saturating_add(1));
    progress.advance_durable(commit.end);
    let touched = changes.touches.iter().map(|touch| touch.shape);
    {
        let index = engine.registry.read();
        let shapes = touched.chain(commit.earlier.iter().copied()).filter_map(|id| index.by_id(id));
        for shape in shapes {
            // The messages and the hold change together: no up-to-date states that the log has
            // messages that it hasn't.
            let hold = commit.holds.iter().find(|hold| hold.shape == shape.id);
            shape.publish(seen, hold.map(|hold| hold.start()), engine.store.config.chunk_bytes);
            visible.shapes.push(Arc::clone(shape));
        }
        for hold in &commit.holds {
            // A deleted shape is held until its deletion is in the WAL. Postgres repeats more
            // transactions then than are needed.
            if let Some(shape) = index.by_id(hold.shape) {
                shape.set_hold(hold.start());
                progress.set_hold(hold.shape, hold.start());
            }
        }
    }
    // After all shapes published: `seen` states that the transaction is visible in all of them.
    progress.advance_seen(seen);
    visible.has_progressed = true;
}

fn apply_note(engine: &ShapeEngine, note: &Note, bytes: &Bytes, visible: &mut VisibleChanges) {
    let (store, registry) = (&engine.store, &engine.registry);
    match note {
        Note::Advance { lsn } => {
            store.progress.advance_durable(*lsn);
            visible.has_progressed = true;
        }
        Note::Table { id, table } => {
            let is_writing = store.role.is_writing();
            let mut index = registry.write();
            if let Some(state) = &table.state {
                index.baselines.set_durable(table.oid, state, is_writing);
            }
            index.tables.insert(*id, Arc::new(TableSchema::clone(table)));
        }
        Note::Create { id, handle, table, options } => apply_creation(engine, *id, handle, *table, options),
        Note::Complete(completed) => {
            let shape = registry.read().by_id(completed.id).cloned();
            if let Some(shape) = shape {
                shape.complete_with(completed, bytes.clone());
                visible.shapes.push(shape);
            }
        }
        Note::Delete { id } => {
            forget_with_files(engine, *id);
            store.progress.set_hold(*id, None);
            store.unlogged_deletions.lock().remove(id);
        }
        Note::Reset { origin, lsn, below } => {
            abandon_staged(engine);
            let ids: Vec<_> =
                registry.read().shapes().map(|shape| shape.id).filter(|id| id < below).collect();
            ids.into_iter().for_each(|id| forget_with_files(engine, id));
            store.progress.clear_holds();
            store.progress.set_origin(Some(origin.clone()));
            // The first commit of the new history may be at `lsn` itself.
            store.progress.set(*lsn, lsn.saturating_sub(1).max(1));
            (visible.has_progressed, visible.is_other_history) = (true, true);
        }
        Note::Adopt { origin } => store.progress.set_origin(Some(origin.clone())),
        Note::Catalog(_) | Note::Shape(_) | Note::End { .. } => {}
    }
}

/// Adds a shape of the WAL. In the process that created it, the shape exists already.
fn apply_creation(engine: &ShapeEngine, id: u64, handle: &str, table: u64, options: &ShapeOptions) {
    // A shape may be deleted here before its creation is in the WAL. It must not come back before
    // its deletion is applied, because clients would be sent to it.
    let deletions = engine.store.unlogged_deletions.lock();
    let is_deleted = engine.store.role.is_writing() && deletions.contains(&id);
    let mut index = engine.registry.write();
    index.next_id = index.next_id.max(id + 1);
    index.last_handle = index.last_handle.max(time_of(handle).unwrap_or(0));
    let is_known = index.by_id(id).is_some_and(|known| known.handle() == handle);
    // A shape with the same id may have been dropped before its deletion was in the WAL.
    engine.store.progress.set_hold(id, None);
    if !is_deleted && !is_known {
        let shape = build(engine, &index, id, handle, table, options);
        shape.into_iter().for_each(|shape| index.add(Arc::new(shape)));
    }
}

/// Builds a shape of the WAL or of a catalog. Returns `None`, and logs it, if this version can't:
/// then the shape is dropped, and its clients start over.
fn build(
    engine: &ShapeEngine,
    index: &ShapeIndex,
    id: u64,
    handle: &str,
    table: u64,
    options: &ShapeOptions,
) -> Option<Shape> {
    let Some(table) = index.tables.get(&table).cloned() else {
        tracing::error!(handle, "shape dropped: the store doesn't have its table");
        return None;
    };
    let definition = ShapeDefinition { table, options: options.clone() };
    match definition.filter() {
        Ok(filter) => Some(engine.registry.build(id, handle.to_owned(), definition, filter)),
        Err(_) => {
            tracing::error!(handle, "shape dropped: this version doesn't support its where clause");
            None
        }
    }
}

/// Removes a shape. Removes its files, too, if this process writes.
fn forget_with_files(engine: &ShapeEngine, id: u64) {
    engine.forget(id);
    if engine.store.role.is_writing() {
        engine.store.files.remove(id);
    }
}

/// Removes the staged parts of a transaction from all shapes.
pub(super) fn abandon_staged(engine: &ShapeEngine) {
    let staged = std::mem::take(&mut *engine.store.staged.lock());
    if staged.is_empty() {
        return;
    }
    let index = engine.registry.read();
    let shapes = staged.iter().filter_map(|id| index.by_id(*id));
    shapes.for_each(|shape| shape.change(|state| state.log.abandon()));
}

/// Replaces the state by a catalog that is newer than all applied records.
pub(super) fn load_catalog(engine: &ShapeEngine, catalog: &StoreCatalog, visible: &mut VisibleChanges) {
    abandon_staged(engine);
    {
        let mut index = engine.registry.write();
        index.tables.extend(catalog.tables.iter().cloned());
        index.next_id = index.next_id.max(catalog.header.next_id);
        index.last_handle = index.last_handle.max(catalog.header.last_handle);
    }
    forget_missing(engine, catalog, u64::MAX);
    engine.store.progress.clear_holds();
    catalog.shapes.iter().for_each(|shape| load_shape(engine, shape, visible));
    engine.registry.write().baselines.load(&catalog.header.states);
    let progress = &engine.store.progress;
    progress.set_origin(catalog.header.origin.clone());
    progress.set(catalog.header.lsn, catalog.header.seen);
    (visible.has_progressed, visible.is_other_history) = (true, true);
}

/// Adds a shape of the catalog, or advances it if it is known.
fn load_shape(engine: &ShapeEngine, catalog_shape: &CatalogShape, visible: &mut VisibleChanges) {
    let CatalogShape { id, handle, table, options, held_from, .. } = catalog_shape;
    if held_from.is_some() {
        engine.store.progress.set_hold(*id, *held_from);
    }
    let known = engine.registry.read().by_id(*id).cloned();
    if let Some(shape) = known {
        if shape.handle() == handle && shape.skip_to(catalog_shape) == CatalogMatch::Same {
            visible.shapes.push(shape);
            return;
        }
        // The directory was replaced: this id is another shape now.
        engine.forget(*id);
    }
    let mut index = engine.registry.write();
    if let Some(shape) = build(engine, &index, *id, handle, *table, options) {
        shape.load(catalog_shape);
        index.add(Arc::new(shape));
    }
}

/// Releases messages that a catalog covers from memory, because they are in files. Removes shapes
/// that the catalog doesn't have. All records before the catalog must be applied.
pub(super) fn release_covered(engine: &ShapeEngine, catalog: &StoreCatalog) {
    forget_missing(engine, catalog, catalog.header.next_id);
    let index = engine.registry.read();
    for catalog_shape in &catalog.shapes {
        if let Some(shape) = index.by_id(catalog_shape.id) {
            shape.mark_written(catalog_shape);
        }
    }
}

/// Removes the shapes with an id below `below` that the catalog doesn't have.
fn forget_missing(engine: &ShapeEngine, catalog: &StoreCatalog, below: u64) {
    let present: HashSet<u64> = catalog.shapes.iter().map(|shape| shape.id).collect();
    let is_missing = |id: &u64| *id < below && !present.contains(id);
    let missing: Vec<_> = engine.registry.read().shapes().map(|shape| shape.id).filter(is_missing).collect();
    missing.into_iter().for_each(|id| engine.forget(id));
}
