//! Registry: the index of all shapes of a store, with their tables and baselines.
//!
//! Invariant: a handle is used for one shape only.
//! Enforced by: the time in a new handle is above the time in all earlier ones. The WAL has all
//! handles, and the catalog has the newest time.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};

use crate::baselines::Baselines;
use crate::definition::{ReplicaMode, ShapeDefinition, TableSchema};
use crate::encode::RowEncoder;
use crate::filter::Filter;
use crate::lock_order::{LockRank, RankedGuard, RankedRwLock};
use crate::shape::{Shape, ShapePhase};
use crate::store::shape_files::ShapeFiles;

/// Table fingerprint, indexes of the shown columns, and the replica mode.
type EncoderKey = (u64, Vec<usize>, ReplicaMode);

/// All shapes of a store.
pub(crate) struct ShapeRegistry {
    index: RankedRwLock<ShapeIndex>,
    /// Row encoders, shared by shapes with equal columns.
    encoders: Mutex<HashMap<EncoderKey, Weak<RowEncoder>>>,
    files: Arc<ShapeFiles>,
    /// Counts uses of shapes, to find the least recently used one.
    uses: AtomicU64,
}

/// Index of all shapes of a store.
#[derive(Debug, Default)]
pub(crate) struct ShapeIndex {
    by_id: HashMap<u64, Arc<Shape>>,
    by_handle: HashMap<String, u64>,
    /// Ids by fingerprint of the definition, newest last.
    by_definition: HashMap<u64, Vec<u64>>,
    /// Memory of the clauses of all shapes, in bytes.
    clause_bytes: usize,
    /// Tables by fingerprint, with which the WAL refers to them.
    pub(crate) tables: HashMap<u64, Arc<TableSchema>>,
    pub(crate) baselines: Baselines,
    pub(crate) next_id: u64,
    /// Time in the newest handle, in microseconds.
    pub(crate) last_handle: u64,
}

impl ShapeRegistry {
    /// Returns a registry without shapes. Its shapes will read `files`.
    pub(crate) fn new(files: Arc<ShapeFiles>) -> Self {
        ShapeRegistry {
            index: RankedRwLock::new(LockRank::Registry, ShapeIndex::default()),
            encoders: Mutex::default(),
            files,
            uses: AtomicU64::new(1),
        }
    }

    pub(crate) fn read(&self) -> RankedGuard<RwLockReadGuard<'_, ShapeIndex>> {
        self.index.read()
    }

    pub(crate) fn write(&self) -> RankedGuard<RwLockWriteGuard<'_, ShapeIndex>> {
        self.index.write()
    }

    /// Builds a shape without adding it. `filter` is the parsed clause of the definition.
    pub(crate) fn build(
        &self,
        id: u64,
        handle: String,
        definition: ShapeDefinition,
        filter: Option<Filter>,
    ) -> Shape {
        let key = (definition.table.fingerprint(), definition.selected(), definition.options.replica);
        let mut encoders = self.encoders.lock();
        let encoder = encoders.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let encoder = Arc::new(definition.encoder());
            encoders.retain(|_, encoder| encoder.strong_count() > 0);
            encoders.insert(key, Arc::downgrade(&encoder));
            encoder
        });
        drop(encoders);
        Shape::new(id, handle, definition, filter, encoder, Arc::clone(&self.files))
    }

    /// Marks a shape as used now.
    pub(crate) fn mark_used(&self, shape: &Shape) {
        shape.mark_used(self.uses.fetch_add(1, Ordering::Relaxed));
    }

    /// Returns all shapes, unordered.
    pub(crate) fn shapes(&self) -> Vec<Arc<Shape>> {
        self.read().shapes().cloned().collect()
    }

    /// Returns the ids of all shapes of a table, followed or not.
    pub(crate) fn shapes_of(&self, oid: u32) -> Vec<u64> {
        let index = self.read();
        let of_table = index.shapes().filter(|shape| shape.definition().table.oid == oid);
        of_table.map(|shape| shape.id).collect()
    }

    /// Returns the ids of all shapes without a complete snapshot.
    pub(crate) fn incomplete_shapes(&self) -> Vec<u64> {
        let index = self.read();
        let incomplete = index.shapes().filter(|shape| shape.lock().phase != ShapePhase::Complete);
        incomplete.map(|shape| shape.id).collect()
    }

    /// Returns the least recently used shapes beyond `count`, and those without which the clauses
    /// of the others take at most `clause_bytes`: of these, shapes with long clauses come first.
    /// Never returns `newest`.
    pub(crate) fn excess_shapes(&self, count: usize, clause_bytes: usize, newest: u64) -> Vec<u64> {
        let (left, mut bytes);
        let mut shapes: Vec<_> = {
            let index = self.read();
            (left, bytes) = (index.by_id.len(), index.clause_bytes);
            if left <= count && bytes <= clause_bytes {
                return Vec::new();
            }
            let used =
                |shape: &Arc<Shape>| (shape.used.load(Ordering::Relaxed), shape.id, clause_bytes_of(shape));
            index.shapes().map(used).filter(|(_, id, _)| *id != newest).collect()
        };
        shapes.sort_unstable();
        let others = shapes.split_off(left.saturating_sub(count).min(shapes.len()));
        bytes -= shapes.iter().map(|(_, _, clause)| clause).sum::<usize>();
        // A long clause takes as much as thousands of short ones, so those with short ones go last.
        let is_long = |(_, _, clause): &(u64, u64, usize)| *clause > clause_bytes >> 10;
        let (long, short): (Vec<_>, Vec<_>) = others.into_iter().partition(is_long);
        for shape in long.into_iter().chain(short) {
            if bytes <= clause_bytes {
                break;
            }
            bytes -= shape.2;
            shapes.push(shape);
        }
        shapes.into_iter().map(|(_, id, _)| id).collect()
    }

    /// Returns the least recently used shapes without which the others take at most `limit` bytes.
    pub(crate) fn shapes_beyond_bytes(&self, limit: u64) -> Vec<u64> {
        // Copied: `used` changes meanwhile, and the sort needs stable keys.
        let used = |shape: Arc<Shape>| (shape.used.load(Ordering::Relaxed), shape.bytes(), shape.id);
        let mut shapes: Vec<_> = self.shapes().into_iter().map(used).collect();
        let mut total: u64 = shapes.iter().map(|(_, bytes, _)| bytes).sum();
        if total <= limit {
            return Vec::new();
        }
        shapes.sort_unstable_by_key(|(used, _, id)| (*used, *id));
        let is_needed = |(_, bytes, _): &&(u64, u64, u64)| {
            let is_beyond = total > limit;
            total = total.saturating_sub(*bytes);
            is_beyond
        };
        shapes.iter().take_while(is_needed).map(|(_, _, id)| *id).collect()
    }
}

impl ShapeIndex {
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.by_id.values()
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<&Arc<Shape>> {
        self.by_id.get(&id)
    }

    pub(crate) fn by_handle(&self, handle: &str) -> Option<Arc<Shape>> {
        self.by_id.get(self.by_handle.get(handle)?).cloned()
    }

    /// Returns the shape with this definition. Skips shapes whose snapshot failed: they are gone
    /// before they are removed.
    pub(crate) fn same(&self, definition: &ShapeDefinition) -> Option<Arc<Shape>> {
        let same = self.by_definition.get(&definition.fingerprint())?;
        let mut shapes = same.iter().rev().filter_map(|id| self.by_id.get(id));
        shapes.find(|shape| shape.definition() == definition && shape.gone().is_none()).cloned()
    }

    /// Returns whether the WAL has this table, with the details of its types.
    pub(crate) fn has_table(&self, fingerprint: u64, table: &TableSchema) -> bool {
        self.tables.get(&fingerprint).is_some_and(|known| known.types.has_same_details(&table.types))
    }

    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        let table = Arc::clone(&shape.definition().table);
        self.baselines.add_shape(table.oid, shape.id, table.state.as_ref());
        // The newest labels of enums: a change that makes shapes incorrect has deleted them.
        self.tables.insert(table.fingerprint(), table);
        self.by_handle.insert(shape.handle().to_owned(), shape.id);
        self.by_definition.entry(shape.definition().fingerprint()).or_default().push(shape.id);
        self.clause_bytes += clause_bytes_of(&shape);
        if let Some(replaced) = self.by_id.insert(shape.id, shape) {
            self.clause_bytes -= clause_bytes_of(&replaced);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Arc<Shape>> {
        let shape = self.by_id.remove(&id)?;
        self.clause_bytes -= clause_bytes_of(&shape);
        self.by_handle.remove(shape.handle());
        self.baselines.remove_shape(shape.definition().table.oid);
        let fingerprint = shape.definition().fingerprint();
        if let Some(same) = self.by_definition.get_mut(&fingerprint) {
            same.retain(|other| *other != id);
            if same.is_empty() {
                self.by_definition.remove(&fingerprint);
            }
        }
        Some(shape)
    }

    /// Removes tables without shapes. The next shape of such a table adds the table to the WAL
    /// again.
    pub(crate) fn forget_unused_tables(&mut self) {
        let used: HashSet<u64> =
            self.by_id.values().map(|shape| shape.definition().table.fingerprint()).collect();
        self.tables.retain(|id, _| used.contains(id));
    }
}

/// Returns the memory of a shape's clause, in bytes.
fn clause_bytes_of(shape: &Shape) -> usize {
    shape.filter.as_ref().map_or(0, Filter::memory)
}

/// Returns the creation time that a handle ends with, in microseconds.
pub(crate) fn time_of(handle: &str) -> Option<u64> {
    handle.rsplit_once('-').and_then(|(_, time)| time.parse().ok())
}

impl fmt::Debug for ShapeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShapeRegistry").finish_non_exhaustive()
    }
}
