//! Registry of the shapes of a store: lookup, creation, eviction and deletion.
//!
//! Invariant: a handle is used for one shape only.
//! Enforced by: the time in a new handle is above the time in all earlier ones. The WAL has all
//! handles, and the catalog has the newest time.
//! Lock order: `mode`, then `turn`, then `followed`, then `deleted`, then `registry`, then the lock
//! of a shape.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use crate::baselines::Baselines;
use crate::config::StoreConfig;
use crate::creation::ShapeCreation;
use crate::definition::{ReplicaMode, ShapeDefinition, TableSchema};
use crate::encode::RowEncoder;
use crate::filter::Filter;
use crate::follow::FollowedShapes;
use crate::row_keys::{self, KeyBudget, KeyCounts};
use crate::shape::{Shape, ShapeGone, ShapePhase};
use crate::shapes::{CreateError, StoreFailure};
use crate::store::disk::Disk;
use crate::store::record::{Note, Record};
use crate::store::shape_files::{FileKind, ShapeFiles};
use crate::store::write_queue::{WriteJob, WriteQueue};
use crate::store::writer::StoreMode;
use crate::store::{OpenError, StoreUnusable};

/// Callback for each new durable position.
type DurableCallback = Box<dyn Fn(u64) + Send + Sync>;

/// Table fingerprint, indexes of the shown columns, and whether messages contain all columns.
type LayoutKey = (u64, Vec<usize>, bool);

/// State of a store, shared by its handles, its creations and its writer thread.
pub(crate) struct StoreInner {
    pub(crate) config: StoreConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) files: Arc<ShapeFiles>,
    registry: RwLock<Registry>,
    /// Shapes that are matched with changes.
    followed: Mutex<FollowedShapes>,
    /// Row encoders, shared by shapes with equal columns.
    layouts: Mutex<HashMap<LayoutKey, Weak<RowEncoder>>>,
    /// Queue of the writer thread. Closed while this process doesn't write.
    pub(crate) queue: RwLock<Arc<WriteQueue>>,
    pub(crate) mode: Mutex<StoreMode>,
    pub(crate) is_writing: AtomicBool,
    /// Writer turn: how many times this process has begun to write. A creation holds a read guard
    /// while it writes files; the end of writing waits for all guards.
    pub(crate) turn: RwLock<u64>,
    /// Position up to which everything is durable.
    pub(crate) durable: AtomicU64,
    /// LSN such that the offset `<seen>_0` is after all visible changes and before all later ones.
    pub(crate) seen: AtomicU64,
    /// Wakes the tasks that wait for `durable` or `seen`.
    pub(crate) progressed: Notify,
    pub(crate) on_durable: Mutex<Option<DurableCallback>>,
    /// Ids of the shapes that have parts of a transaction without its commit.
    pub(crate) staged: Mutex<HashSet<u64>>,
    /// Old files of logs that were merged. The checkpoint that writes the next catalog removes
    /// them.
    pub(crate) garbage: Mutex<Vec<(u64, FileKind)>>,
    /// Ids of deleted shapes whose deletion isn't in the WAL yet.
    pub(crate) deleted: Mutex<HashSet<u64>>,
    /// Ids of shapes whose logs removed one of several equal rows. Found when writing begins, and
    /// deleted as soon as this process can write.
    inexact: Mutex<Vec<u64>>,
    pub(crate) key_budget: Arc<KeyBudget>,
    /// Held while messages are written to shapes' files to free memory, and while a checkpoint
    /// replaces such files.
    pub(crate) spill_lock: Mutex<()>,
    /// Whether the disk is full.
    pub(crate) is_full: AtomicBool,
    pub(crate) failure: Mutex<Option<StoreFailure>>,
    pub(crate) failed: Notify,
    /// Index into [`UNUSABLE`] plus 1; 0: usable.
    unusable: AtomicU8,
    /// Counts uses of shapes, to find the least recently used one.
    clock: AtomicU64,
}

const UNUSABLE: [StoreUnusable; 2] = [StoreUnusable::OtherVersion, StoreUnusable::Damaged];

/// Index of all shapes of a store.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    by_id: HashMap<u64, Arc<Shape>>,
    by_handle: HashMap<String, u64>,
    /// Ids by fingerprint of the definition, newest last.
    by_definition: HashMap<u64, Vec<u64>>,
    /// Tables by fingerprint, with which the WAL refers to them.
    pub(crate) tables: HashMap<u64, Arc<TableSchema>>,
    pub(crate) baselines: Baselines,
    /// Name of the followed database history.
    pub(crate) origin: Option<String>,
    pub(crate) next_id: u64,
    /// Time in the newest handle, in microseconds.
    pub(crate) last_handle: u64,
}

impl StoreInner {
    pub(crate) fn new(disk: Arc<dyn Disk>, config: StoreConfig) -> Self {
        let files = Arc::new(ShapeFiles::new(Arc::clone(&disk), config.open_files));
        StoreInner {
            config,
            disk,
            files,
            registry: RwLock::default(),
            followed: Mutex::default(),
            layouts: Mutex::default(),
            queue: RwLock::new(Arc::new(WriteQueue::new_closed())),
            mode: Mutex::default(),
            is_writing: AtomicBool::new(false),
            turn: RwLock::new(0),
            durable: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            progressed: Notify::new(),
            on_durable: Mutex::default(),
            staged: Mutex::default(),
            garbage: Mutex::default(),
            deleted: Mutex::default(),
            inexact: Mutex::default(),
            key_budget: Arc::default(),
            spill_lock: Mutex::default(),
            is_full: AtomicBool::new(false),
            failure: Mutex::default(),
            failed: Notify::new(),
            unusable: AtomicU8::new(0),
            clock: AtomicU64::new(1),
        }
    }

    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn followed(&self) -> MutexGuard<'_, FollowedShapes> {
        lock(&self.followed)
    }

    pub(crate) fn queue(&self) -> Arc<WriteQueue> {
        Arc::clone(&self.queue.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues a record for the writer thread.
    pub(crate) fn enqueue(&self, record: Record) {
        self.queue().push(WriteJob { record, done: None, checkpoint: false });
    }

    /// Queues a record. The receiver completes when the record is durable, and with `checkpoint`
    /// when the checkpoint has ended.
    pub(crate) fn submit(&self, record: Record, checkpoint: bool) -> oneshot::Receiver<()> {
        let (done, durable) = oneshot::channel();
        self.queue().push(WriteJob { record, done: Some(done), checkpoint });
        durable
    }

    /// Records a fatal error of the writer.
    pub(crate) fn fail(&self, why: &str) {
        tracing::error!(why, "store failed");
        *lock(&self.failure) = Some(StoreFailure(why.into()));
        self.failed.notify_waiters();
    }

    /// Returns why the directory is unusable.
    pub(crate) fn unusable(&self) -> Option<StoreUnusable> {
        let which = usize::from(self.unusable.load(Ordering::Acquire)).checked_sub(1)?;
        UNUSABLE.get(which).copied()
    }

    /// Marks the store unusable if the error makes it so, and detaches the listeners of all shapes:
    /// nothing is served any more.
    pub(crate) fn mark_unusable_if(&self, error: &OpenError) {
        let Some(which) = UNUSABLE.iter().position(|unusable| error.unusable() == Some(*unusable)) else {
            return;
        };
        self.unusable.store(which as u8 + 1, Ordering::Release);
        let shapes: Vec<_> = self.registry().shapes().cloned().collect();
        shapes.iter().for_each(|shape| shape.interrupt());
    }

    pub(crate) fn mark_usable(&self) {
        self.unusable.store(0, Ordering::Release);
    }

    /// Marks a shape as used now.
    pub(crate) fn touch(&self, shape: &Shape) {
        shape.touch(self.clock.fetch_add(1, Ordering::Relaxed));
    }

    /// Returns the shape of a definition. Creates it if it doesn't exist.
    pub(crate) fn create(
        self: &Arc<Self>,
        definition: ShapeDefinition,
        micros: u64,
    ) -> Result<(Arc<Shape>, Option<ShapeCreation>), CreateError> {
        let turn = *self.turn().ok_or(CreateError::ReadOnly)?;
        let filter = definition.filter()?;
        // Held until the shape is registered, so that its table's state stays the baseline.
        let mut followed = self.followed();
        followed.apply_catalog_state(&definition.table, self);
        let mut registry = self.registry_mut();
        if let Some(shape) = registry.same(&definition) {
            self.touch(&shape);
            return Ok((shape, None));
        }
        registry.last_handle = micros.max(registry.last_handle + 1);
        let handle = format!("{}-{}", definition.fingerprint(), registry.last_handle);
        let (id, table) = (registry.next_id, definition.table.fingerprint());
        registry.next_id += 1;
        let shape = Arc::new(self.make(id, handle.clone(), definition, filter));
        self.touch(&shape);
        let described = &shape.definition().table;
        let is_baseline = described.state.is_some() && registry.baselines.get(described.oid).is_none();
        if is_baseline || !registry.tables.contains_key(&table) {
            self.log_table(described);
        }
        let choice = shape.definition().choice.clone();
        self.enqueue(Record::Note(Note::Create { id, handle, table, choice }, Bytes::new()));
        registry.add(Arc::clone(&shape));
        drop((registry, followed));
        // After registration: of several concurrent creations, the last one counts all shapes.
        self.evict(self.config.max_shapes.max(1));
        Ok((Arc::clone(&shape), Some(ShapeCreation::new(Arc::clone(self), shape, turn))))
    }

    /// Makes a table's state its baseline. Does nothing if the table has no shapes.
    pub(crate) fn set_baseline(&self, table: &TableSchema) {
        let mut registry = self.registry_mut();
        if let Some(state) = &table.state
            && registry.baselines.has_shapes(table.oid)
        {
            registry.baselines.set(table.oid, state);
            // Queued under the registry lock, so that the WAL has baselines in the order of the
            // calls.
            self.log_table(table);
        }
    }

    fn log_table(&self, table: &TableSchema) {
        let note = Note::Table { id: table.fingerprint(), table: Box::new(table.clone()) };
        self.enqueue(Record::Note(note, Bytes::new()));
    }

    /// Builds a shape without registering it. `filter` is the parsed clause of the definition.
    pub(crate) fn make(
        &self,
        id: u64,
        handle: String,
        definition: ShapeDefinition,
        filter: Option<Filter>,
    ) -> Shape {
        let is_full = definition.choice.replica == ReplicaMode::Full;
        let key = (definition.table.fingerprint(), definition.selected(), is_full);
        let mut layouts = lock(&self.layouts);
        let layout = layouts.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let layout = Arc::new(definition.layout());
            layouts.retain(|_, layout| layout.strong_count() > 0);
            layouts.insert(key, Arc::downgrade(&layout));
            layout
        });
        drop(layouts);
        Shape::new(id, handle, definition, filter, layout, Arc::clone(&self.files))
    }

    /// Deletes the least recently used shapes until at most `count` are left.
    fn evict(&self, count: usize) {
        let mut shapes: Vec<_> = {
            let registry = self.registry();
            if registry.by_id.len() <= count {
                return;
            }
            registry.shapes().map(|shape| (shape.used.load(Ordering::Relaxed), shape.id)).collect()
        };
        shapes.sort_unstable();
        let mut followed = self.followed();
        let excess = shapes.len() - count;
        shapes.iter().take(excess).for_each(|(_, shape)| followed.delete(*shape, self));
    }

    /// Deletes the least recently used shapes until the others take at most `limit` bytes.
    pub(crate) fn evict_bytes(&self, limit: u64) {
        let used = |shape: &Arc<Shape>| (shape.used.load(Ordering::Relaxed), Arc::clone(shape));
        // `used` is copied, because it may change during the sort.
        let mut shapes: Vec<_> = self.registry().shapes().map(used).collect();
        let mut total: u64 = shapes.iter().map(|(_, shape)| shape.bytes()).sum();
        if total <= limit {
            return;
        }
        shapes.sort_unstable_by_key(|(used, shape)| (*used, shape.id));
        let mut followed = self.followed();
        for (_, shape) in shapes {
            if total <= limit {
                break;
            }
            total = total.saturating_sub(shape.bytes());
            followed.delete(shape.id, self);
        }
    }

    /// Returns the ids of all shapes of a table, followed or not.
    pub(crate) fn shapes_of(&self, oid: u32) -> Vec<u64> {
        let registry = self.registry();
        let of_table = registry.shapes().filter(|shape| shape.definition().table.oid == oid);
        of_table.map(|shape| shape.id).collect()
    }

    /// Returns a guard of the current writer turn; `None`: this process doesn't write.
    pub(crate) fn turn(&self) -> Option<RwLockReadGuard<'_, u64>> {
        let turn = self.turn.read().unwrap_or_else(PoisonError::into_inner);
        self.is_writing.load(Ordering::Acquire).then_some(turn)
    }

    /// Deletes a shape: at once in this process, and in other processes when they read the record
    /// in the WAL.
    pub(crate) fn delete(&self, id: u64) {
        lock(&self.deleted).insert(id);
        self.enqueue(Record::Note(Note::Delete { id }, Bytes::new()));
        self.forget(id);
    }

    /// Confirms that the deletion of a shape is in the WAL.
    pub(crate) fn confirm_deletion(&self, id: u64) {
        lock(&self.deleted).remove(&id);
    }

    /// Returns the ids of shapes whose deletion isn't in the WAL: the disk was full, or writing
    /// ended. Skips ids that another shape has by now.
    pub(crate) fn unlogged_deletions(&self) -> HashSet<u64> {
        let mut deleted = lock(&self.deleted);
        let registry = self.registry();
        deleted.retain(|id| registry.by_id(*id).is_none());
        deleted.clone()
    }

    /// Removes a shape from the registry and ends its readers.
    pub(crate) fn forget(&self, id: u64) {
        let shape = self.registry_mut().remove(id);
        if let Some(shape) = shape {
            self.files.close(id);
            shape.end(ShapeGone::Deleted);
        }
    }

    /// Removes a shape from the registry, unless another shape has its id.
    pub(crate) fn forget_if_same(&self, shape: &Arc<Shape>) {
        if self.registry().by_id(shape.id).is_some_and(|known| Arc::ptr_eq(known, shape)) {
            self.forget(shape.id);
        }
    }

    /// Removes all shapes without a complete snapshot. Returns their ids.
    pub(crate) fn forget_incomplete(&self) -> Vec<u64> {
        let incomplete = |shape: &&Arc<Shape>| shape.lock().phase != ShapePhase::Complete;
        let ids: Vec<_> = self.registry().shapes().filter(incomplete).map(|shape| shape.id).collect();
        ids.iter().for_each(|id| self.forget(*id));
        ids
    }

    /// Clears the followed shapes, then follows all complete ones. Blocks on disk if some tables
    /// have no primary key.
    pub(crate) fn follow_all(&self) {
        let shapes: Vec<_> = self.registry().shapes().cloned().collect();
        let (mut complete, mut bytes) = (Vec::new(), row_keys::MAX_READ_TOTAL);
        // Cleared before keys are counted again, so that the old counts return their reservations.
        self.followed().clear(self.durable.load(Ordering::Acquire));
        for shape in shapes {
            let Some(seen) = shape.lock().seen.clone() else { continue };
            let keys = shape.definition().table.key.is_empty().then(|| {
                KeyCounts::read(&shape, &self.key_budget, &mut bytes).unwrap_or_else(|| {
                    // A release that didn't count keys wrote the shape. It is deleted as soon as
                    // this process writes.
                    lock(&self.inexact).push(shape.id);
                    KeyCounts::uncounted()
                })
            });
            complete.push((shape, seen, keys));
        }
        let mut followed = self.followed();
        followed.clear(self.durable.load(Ordering::Acquire));
        complete.into_iter().for_each(|(shape, seen, keys)| followed.add_complete(shape, seen, keys));
    }

    /// Deletes the shapes whose logs removed one of several equal rows.
    pub(crate) fn delete_inexact(&self) {
        let inexact = std::mem::take(&mut *lock(&self.inexact));
        if self.is_writing.load(Ordering::Acquire) {
            let mut followed = self.followed();
            inexact.into_iter().for_each(|shape| followed.delete(shape, self));
        }
    }
}

impl Registry {
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.by_id.values()
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<&Arc<Shape>> {
        self.by_id.get(&id)
    }

    pub(crate) fn by_handle(&self, handle: &str) -> Option<Arc<Shape>> {
        self.by_id.get(self.by_handle.get(handle)?).cloned()
    }

    /// Returns the shape with this definition. Skips shapes whose snapshot failed: such a shape is
    /// marked as gone before it is removed from the registry.
    pub(crate) fn same(&self, definition: &ShapeDefinition) -> Option<Arc<Shape>> {
        let same = self.by_definition.get(&definition.fingerprint())?;
        let mut shapes = same.iter().rev().filter_map(|id| self.by_id.get(id));
        shapes.find(|shape| shape.definition() == definition && shape.gone().is_none()).cloned()
    }

    pub(crate) fn add(&mut self, shape: Arc<Shape>) {
        let table = Arc::clone(&shape.definition().table);
        self.baselines.add_shape(table.oid, shape.id, table.state.as_ref());
        self.tables.entry(table.fingerprint()).or_insert(table);
        self.by_handle.insert(shape.handle().to_owned(), shape.id);
        self.by_definition.entry(shape.definition().fingerprint()).or_default().push(shape.id);
        self.by_id.insert(shape.id, shape);
    }

    /// Removes tables without shapes. The next shape of such a table adds the table to the WAL
    /// again.
    pub(crate) fn forget_unused_tables(&mut self) {
        let used: HashSet<u64> =
            self.by_id.values().map(|shape| shape.definition().table.fingerprint()).collect();
        self.tables.retain(|id, _| used.contains(id));
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Shape>> {
        let shape = self.by_id.remove(&id)?;
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
}

/// Returns the creation time that a handle ends with, in microseconds.
pub(crate) fn time_of(handle: &str) -> Option<u64> {
    handle.rsplit_once('-').and_then(|(_, time)| time.parse().ok())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for StoreInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreInner").field("dir", &self.config.dir).finish_non_exhaustive()
    }
}
