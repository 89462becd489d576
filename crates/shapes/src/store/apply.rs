//! Application of records and catalogs to the state in memory.
//!
//! Invariant: the visible state is that of the WAL's records, applied in order.
//! Enforced by: [`StoreInner::apply`] is the only way to apply a record, for the writer, for
//! recovery, and for processes that read while another one writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::catalog::StoreCatalog;
use super::record::{CatalogShape, CommitRecord, Note, Record, TransactionPart};
use crate::definition::{ShapeDefinition, TableSchema};
use crate::offset::Offset;
use crate::registry::{StoreInner, lock, time_of};

impl StoreInner {
    /// Applies a durable record.
    pub(crate) fn apply(&self, record: &Record) {
        match record {
            Record::Part(changes) => {
                if changes.is_first {
                    self.abandon_staged();
                }
                self.stage_changes(changes);
                lock(&self.staged).extend(changes.touches.iter().map(|touch| touch.shape));
            }
            Record::Commit(changes, commit) => self.apply_commit(changes, commit),
            Record::Note(note, bytes) => self.apply_note(note, bytes),
        }
    }

    /// Stages the messages of a part in the logs of its shapes.
    fn stage_changes(&self, changes: &TransactionPart) {
        let registry = self.registry();
        for touch in &changes.touches {
            let Some(shape) = registry.by_id(touch.shape) else { continue };
            shape.change(|state| {
                for range in &touch.ranges {
                    let bytes = changes.text.slice(range.from as usize..range.to as usize);
                    state.log.stage(bytes, Offset::new(changes.lsn, range.last_op), self.config.chunk_bytes);
                }
            });
        }
    }

    /// Stages the last part, and publishes the transaction in all its shapes.
    fn apply_commit(&self, changes: &TransactionPart, commit: &CommitRecord) {
        // A late commit is out of order. It leaves staged parts of other transactions alone.
        let is_late = commit.end == 0;
        if changes.is_first && !is_late {
            self.abandon_staged();
        }
        self.stage_changes(changes);
        if !is_late {
            lock(&self.staged).clear();
        }
        let seen = self.seen().max(changes.lsn.saturating_add(1));
        self.durable.fetch_max(commit.end, Ordering::AcqRel);
        let touched = changes.touches.iter().map(|touch| touch.shape);
        {
            let registry = self.registry();
            let shapes = touched.chain(commit.earlier.iter().copied()).filter_map(|id| registry.by_id(id));
            shapes.for_each(|shape| shape.publish(seen, self.config.chunk_bytes));
        }
        // After all shapes published: `seen` states that the transaction is visible in all of them.
        self.seen.fetch_max(seen, Ordering::AcqRel);
        self.progressed.notify_waiters();
    }

    fn apply_note(&self, note: &Note, bytes: &Bytes) {
        match note {
            Note::Advance { lsn } => {
                self.durable.fetch_max(*lsn, Ordering::AcqRel);
                self.progressed.notify_waiters();
            }
            Note::Table { id, table } => {
                let is_writing = self.is_writing.load(Ordering::Acquire);
                let mut registry = self.registry_mut();
                if let Some(state) = &table.state {
                    registry.baselines.log(table.oid, state, is_writing);
                }
                registry.tables.insert(*id, Arc::new(TableSchema::clone(table)));
            }
            Note::Create { id, handle, table, choice } => {
                // Lock order: `deleted`, then the registry. This process may have deleted the shape
                // before its creation was in the WAL. The shape must not come back before its
                // deletion is applied, because clients would find it.
                let deleted = lock(&self.deleted);
                let is_deleted = self.is_writing.load(Ordering::Acquire) && deleted.contains(id);
                let mut registry = self.registry_mut();
                registry.next_id = registry.next_id.max(id + 1);
                registry.last_handle = registry.last_handle.max(time_of(handle).unwrap_or(0));
                let Some(table) = registry.tables.get(table).cloned() else { return };
                if !is_deleted && registry.by_id(*id).is_none_or(|known| known.handle() != handle) {
                    let definition = ShapeDefinition { table, choice: choice.clone() };
                    if let Ok(filter) = definition.filter() {
                        registry.add(Arc::new(self.make(*id, handle.clone(), definition, filter)));
                    }
                }
            }
            Note::Complete(completed) => {
                let shape = self.registry().by_id(completed.id).cloned();
                if let Some(shape) = shape {
                    shape.complete_with(completed, bytes.clone());
                }
            }
            Note::Delete { id } => {
                self.forget_with_files(*id);
                self.confirm_deletion(*id);
            }
            Note::Reset { origin, lsn, below } => {
                self.abandon_staged();
                self.followed().forget_recent();
                let ids: Vec<_> =
                    self.registry().shapes().map(|shape| shape.id).filter(|id| id < below).collect();
                ids.into_iter().for_each(|id| self.forget_with_files(id));
                self.registry_mut().origin = Some(origin.clone());
                self.durable.store(*lsn, Ordering::Release);
                // The first commit of the new history may be at `lsn` itself.
                self.seen.store(lsn.saturating_sub(1).max(1), Ordering::Release);
                self.progressed.notify_waiters();
            }
            Note::Adopt { origin } => self.registry_mut().origin = Some(origin.clone()),
            Note::Catalog(_) | Note::Shape(_) | Note::End { .. } => {}
        }
    }

    /// Removes a shape. Removes its files, too, if this process writes.
    fn forget_with_files(&self, id: u64) {
        self.forget(id);
        if self.is_writing.load(Ordering::Acquire) {
            self.files.remove(id);
        }
    }

    /// Returns whether a shape has staged parts of an uncommitted transaction.
    pub(crate) fn is_inside_transaction(&self) -> bool {
        !lock(&self.staged).is_empty()
    }

    /// Removes the staged parts of a transaction from all shapes.
    pub(crate) fn abandon_staged(&self) {
        let staged = std::mem::take(&mut *lock(&self.staged));
        let registry = self.registry();
        let shapes = staged.iter().filter_map(|id| registry.by_id(*id));
        shapes.for_each(|shape| shape.change(|state| state.log.abandon()));
    }

    /// Replaces the state by a catalog that is newer than all applied records.
    pub(crate) fn load_catalog(&self, catalog: &StoreCatalog) {
        self.abandon_staged();
        self.followed().forget_recent();
        {
            let mut registry = self.registry_mut();
            registry.tables.extend(catalog.tables.iter().cloned());
            registry.origin = catalog.header.origin.clone();
            registry.next_id = registry.next_id.max(catalog.header.next_id);
            registry.last_handle = registry.last_handle.max(catalog.header.last_handle);
        }
        self.forget_missing(catalog, u64::MAX);
        catalog.shapes.iter().for_each(|shape| self.load_shape(shape));
        self.registry_mut().baselines.load(&catalog.header.states);
        self.durable.store(catalog.header.lsn, Ordering::Release);
        self.seen.store(catalog.header.seen, Ordering::Release);
        self.progressed.notify_waiters();
    }

    /// Adds a shape of the catalog, or advances it if it is known.
    fn load_shape(&self, catalog_shape: &CatalogShape) {
        let known = self.registry().by_id(catalog_shape.id).cloned();
        if let Some(shape) = known {
            if shape.handle() == catalog_shape.handle && shape.skip_to(catalog_shape) {
                return;
            }
            // The directory was replaced: this id is another shape now.
            self.forget(catalog_shape.id);
        }
        let mut registry = self.registry_mut();
        let Some(table) = registry.tables.get(&catalog_shape.table).cloned() else { return };
        let definition = ShapeDefinition { table, choice: catalog_shape.choice.clone() };
        let Ok(filter) = definition.filter() else { return };
        let shape = self.make(catalog_shape.id, catalog_shape.handle.clone(), definition, filter);
        shape.load(catalog_shape);
        registry.add(Arc::new(shape));
    }

    /// Releases messages that a catalog covers from memory, because they are in files. Removes
    /// shapes that the catalog doesn't have. All records before the catalog must be applied.
    pub(crate) fn release_covered(&self, catalog: &StoreCatalog) {
        self.forget_missing(catalog, catalog.header.next_id);
        let registry = self.registry();
        for catalog_shape in &catalog.shapes {
            if let Some(shape) = registry.by_id(catalog_shape.id) {
                shape.mark_written(catalog_shape);
            }
        }
    }

    /// Removes the shapes with an id below `below` that the catalog doesn't have.
    fn forget_missing(&self, catalog: &StoreCatalog, below: u64) {
        let present: HashSet<u64> = catalog.shapes.iter().map(|shape| shape.id).collect();
        let is_missing = |id: &u64| *id < below && !present.contains(id);
        let missing: Vec<_> = self.registry().shapes().map(|shape| shape.id).filter(is_missing).collect();
        missing.into_iter().for_each(|id| self.forget(id));
    }

    /// Returns the LSN for which `<seen>_0` is after all visible messages and before all later
    /// ones.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }
}
