//! The store's history takes effect.
//!
//! Invariant: what can be read is what the log says, applied in its order. Kept by: [`StoreInner::apply`] is the only way in, for the writer, for
//! recovery, and for those who read beside a writer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::catalog::Catalog;
use super::record::{Changes, Commit, Kept, Note, Record};
use crate::definition::{ShapeDefinition, TableSchema};
use crate::offset::Offset;
use crate::registry::{StoreInner, lock, time_of};

impl StoreInner {
    /// A record of the log takes effect: it is durable.
    pub(crate) fn apply(&self, record: &Record) {
        match record {
            Record::Part(changes) => {
                if changes.is_first {
                    self.abandon();
                }
                self.stage(changes);
                lock(&self.staged).extend(changes.touches.iter().map(|touch| touch.shape));
            }
            Record::Commit(changes, commit) => self.commit(changes, commit),
            Record::Note(note, bytes) => self.apply_note(note, bytes),
        }
    }

    fn stage(&self, changes: &Changes) {
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

    fn commit(&self, changes: &Changes, commit: &Commit) {
        // One that comes late isn't in the order of the others, and leaves alone what is staged.
        let is_late = commit.end == 0;
        if changes.is_first && !is_late {
            self.abandon();
        }
        self.stage(changes);
        if !is_late {
            lock(&self.staged).clear();
        }
        let seen = self.seen().max(changes.lsn.saturating_add(1));
        self.durable.fetch_max(commit.end, Ordering::AcqRel);
        let here = changes.touches.iter().map(|touch| touch.shape);
        {
            let registry = self.registry();
            let shapes = here.chain(commit.earlier.iter().copied()).filter_map(|id| registry.by_id(id));
            shapes.for_each(|shape| shape.publish(seen, self.config.chunk_bytes));
        }
        // After all shapes have it: what is seen is nowhere yet to come.
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
                // Lock order: `deleted`, then the registry. A shape that this process deleted before its creation came to
                // the log must not come back until its deletion does: clients would be sent to it.
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
                self.forget_files(*id);
                self.confirm_deletion(*id);
            }
            Note::Reset { origin, lsn, below } => {
                self.abandon();
                self.followed().forget_recent();
                let ids: Vec<_> =
                    self.registry().shapes().map(|shape| shape.id).filter(|id| id < below).collect();
                ids.into_iter().for_each(|id| self.forget_files(id));
                self.registry_mut().origin = Some(origin.clone());
                self.durable.store(*lsn, Ordering::Release);
                // The next commit may begin where this history does.
                self.seen.store(lsn.saturating_sub(1).max(1), Ordering::Release);
                self.progressed.notify_waiters();
            }
            Note::Adopt { origin } => self.registry_mut().origin = Some(origin.clone()),
            Note::Catalog(_) | Note::Shape(_) | Note::End { .. } => {}
        }
    }

    /// A shape can't be found any more, nor are its files needed.
    fn forget_files(&self, id: u64) {
        self.forget(id);
        if self.is_writing.load(Ordering::Acquire) {
            self.files.remove(id);
        }
    }

    /// Whether some shape has parts of a transaction that isn't committed.
    pub(crate) fn is_inside(&self) -> bool {
        !lock(&self.staged).is_empty()
    }

    /// What was staged is no transaction.
    pub(crate) fn abandon(&self) {
        let staged = std::mem::take(&mut *lock(&self.staged));
        let registry = self.registry();
        let shapes = staged.iter().filter_map(|id| registry.by_id(*id));
        shapes.for_each(|shape| shape.change(|state| state.log.abandon()));
    }

    /// Everything is as a catalog has it, which was made after all that was read.
    pub(crate) fn load(&self, catalog: &Catalog) {
        self.abandon();
        self.followed().forget_recent();
        {
            let mut registry = self.registry_mut();
            registry.tables.extend(catalog.tables.iter().cloned());
            registry.origin = catalog.head.origin.clone();
            registry.next_id = registry.next_id.max(catalog.head.next_id);
            registry.last_handle = registry.last_handle.max(catalog.head.last_handle);
        }
        self.forget_missing(catalog, u64::MAX);
        catalog.shapes.iter().for_each(|kept| self.load_shape(kept));
        self.registry_mut().baselines.load(&catalog.head.states);
        self.durable.store(catalog.head.lsn, Ordering::Release);
        self.seen.store(catalog.head.seen, Ordering::Release);
        self.progressed.notify_waiters();
    }

    fn load_shape(&self, kept: &Kept) {
        let known = self.registry().by_id(kept.id).cloned();
        if let Some(shape) = known {
            if shape.handle() == kept.handle && shape.skip_to(kept) {
                return;
            }
            // Somebody put other files there.
            self.forget(kept.id);
        }
        let mut registry = self.registry_mut();
        let Some(table) = registry.tables.get(&kept.table).cloned() else { return };
        let definition = ShapeDefinition { table, choice: kept.choice.clone() };
        let Ok(filter) = definition.filter() else { return };
        let shape = self.make(kept.id, kept.handle.clone(), definition, filter);
        shape.load(kept);
        registry.add(Arc::new(shape));
    }

    /// Everything is known already; what the catalog covers is in files by now, or gone.
    pub(crate) fn release(&self, catalog: &Catalog) {
        self.forget_missing(catalog, catalog.head.next_id);
        let registry = self.registry();
        for kept in &catalog.shapes {
            if let Some(shape) = registry.by_id(kept.id) {
                shape.wrote(kept);
            }
        }
    }

    /// Of the shapes before this one, those that a catalog hasn't.
    fn forget_missing(&self, catalog: &Catalog, below: u64) {
        let kept: HashSet<u64> = catalog.shapes.iter().map(|kept| kept.id).collect();
        let is_missing = |id: &u64| *id < below && !kept.contains(id);
        let missing: Vec<_> = self.registry().shapes().map(|shape| shape.id).filter(is_missing).collect();
        missing.into_iter().for_each(|id| self.forget(id));
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }
}
