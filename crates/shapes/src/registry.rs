//! The shapes that there are: found, made, let go.
//!
//! Invariant: a handle is given once. Kept by: its time is above that of every one before, of which the store's log has the last.
//! Order of locks: the turn, then what is followed, then the registry, then a shape.

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
use crate::follow::Followed;
use crate::row_keys::{self, KeyBudget, KeyCounts};
use crate::shape::{Phase, Shape, ShapeGone};
use crate::shapes::{CreateError, StoreFailure};
use crate::store::disk::Disk;
use crate::store::record::{Note, Record};
use crate::store::shape_files::{FileKind, ShapeFiles};
use crate::store::write_queue::{WriteJob, WriteQueue};
use crate::store::writer::StoreMode;
use crate::store::{OpenError, StoreUnusable};

type OnDurable = Box<dyn Fn(u64) + Send + Sync>;

/// The table, the columns that are shown, and whether rows are shown in full.
type LayoutKey = (u64, Vec<usize>, bool);

/// What all who have to do with a store share.
pub(crate) struct StoreInner {
    pub(crate) config: StoreConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) files: Arc<ShapeFiles>,
    registry: RwLock<Registry>,
    followed: Mutex<Followed>,
    layouts: Mutex<HashMap<LayoutKey, Weak<RowEncoder>>>,
    /// Where the writer takes from; closed while nobody writes.
    pub(crate) queue: RwLock<Arc<WriteQueue>>,
    pub(crate) mode: Mutex<StoreMode>,
    pub(crate) is_writing: AtomicBool,
    /// How many times this process has begun to write. Whoever writes beside the writer holds it, so that nobody does after the end.
    pub(crate) turn: RwLock<u64>,
    pub(crate) durable: AtomicU64,
    /// The offset `<seen>_0` is after everything visible, and before whatever comes.
    pub(crate) seen: AtomicU64,
    pub(crate) progressed: Notify,
    pub(crate) on_durable: Mutex<Option<OnDurable>>,
    /// Shapes that have parts of a transaction whose commit is yet to come.
    pub(crate) staged: Mutex<HashSet<u64>>,
    /// Files of logs that were merged: needed until another catalog is there.
    pub(crate) garbage: Mutex<Vec<(u64, FileKind)>>,
    /// Shapes that were deleted, though the log doesn't say so yet.
    pub(crate) deleted: Mutex<HashSet<u64>>,
    /// Shapes that turned out to be wrong before anything could be written.
    inexact: Mutex<Vec<u64>>,
    pub(crate) key_budget: Arc<KeyBudget>,
    /// Held while the files of shapes are written beside a checkpoint.
    pub(crate) relieving: Mutex<()>,
    pub(crate) is_full: AtomicBool,
    pub(crate) failure: Mutex<Option<StoreFailure>>,
    pub(crate) failed: Notify,
    /// Which of [`UNUSABLE`] holds, counted from 1; 0: none.
    unusable: AtomicU8,
    clock: AtomicU64,
}

const UNUSABLE: [StoreUnusable; 2] = [StoreUnusable::OtherVersion, StoreUnusable::Damaged];

#[derive(Debug, Default)]
pub(crate) struct Registry {
    by_id: HashMap<u64, Arc<Shape>>,
    by_handle: HashMap<String, u64>,
    /// By the fingerprints of their definitions, the newest last.
    by_definition: HashMap<u64, Vec<u64>>,
    /// Tables, as the log names them.
    pub(crate) tables: HashMap<u64, Arc<TableSchema>>,
    pub(crate) baselines: Baselines,
    pub(crate) origin: Option<String>,
    pub(crate) next_id: u64,
    /// The time in the last handle, so that none is used twice.
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
            relieving: Mutex::default(),
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

    pub(crate) fn followed(&self) -> MutexGuard<'_, Followed> {
        lock(&self.followed)
    }

    pub(crate) fn queue(&self) -> Arc<WriteQueue> {
        Arc::clone(&self.queue.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn enqueue(&self, record: Record) {
        self.queue().push(WriteJob { record, done: None, checkpoint: false });
    }

    /// Tells when it is durable, and so does a checkpoint, if one is wanted.
    pub(crate) fn submit(&self, record: Record, checkpoint: bool) -> oneshot::Receiver<()> {
        let (done, told) = oneshot::channel();
        self.queue().push(WriteJob { record, done: Some(done), checkpoint });
        told
    }

    pub(crate) fn fail(&self, why: &str) {
        tracing::error!(why, "the store can't be written");
        *lock(&self.failure) = Some(StoreFailure(why.into()));
        self.failed.notify_waiters();
    }

    pub(crate) fn unusable(&self) -> Option<StoreUnusable> {
        let which = usize::from(self.unusable.load(Ordering::Acquire)).checked_sub(1)?;
        UNUSABLE.get(which).copied()
    }

    /// If the directory can't be used, nothing is served any more: streams that wait for changes
    /// end.
    pub(crate) fn judge(&self, error: &OpenError) {
        let Some(which) = UNUSABLE.iter().position(|unusable| error.unusable() == Some(*unusable)) else {
            return;
        };
        self.unusable.store(which as u8 + 1, Ordering::Release);
        let shapes: Vec<_> = self.registry().shapes().cloned().collect();
        shapes.iter().for_each(|shape| shape.interrupt());
    }

    pub(crate) fn usable_again(&self) {
        self.unusable.store(0, Ordering::Release);
    }

    pub(crate) fn touch(&self, shape: &Shape) {
        shape.touch(self.clock.fetch_add(1, Ordering::Relaxed));
    }

    pub(crate) fn create(
        self: &Arc<Self>,
        definition: ShapeDefinition,
        micros: u64,
    ) -> Result<(Arc<Shape>, Option<ShapeCreation>), CreateError> {
        let turn = *self.turn().ok_or(CreateError::ReadOnly)?;
        let filter = definition.filter()?;
        // Held until the shape is there: its table's state stays the baseline.
        let mut followed = self.followed();
        followed.rebase(&definition.table, self);
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
        // After it is there: of several that come at once, the last sees them all.
        self.evict(self.config.max_shapes.max(1));
        Ok((Arc::clone(&shape), Some(ShapeCreation::new(Arc::clone(self), shape, turn))))
    }

    /// A table's state becomes its baseline, if it has shapes: all of them are right as of it.
    pub(crate) fn set_baseline(&self, table: &TableSchema) {
        let mut registry = self.registry_mut();
        if let Some(state) = &table.state
            && registry.baselines.has_shapes(table.oid)
        {
            registry.baselines.set(table.oid, state);
            // Queued under the lock: the log has baselines in the order in which they were set.
            self.log_table(table);
        }
    }

    fn log_table(&self, table: &TableSchema) {
        let note = Note::Table { id: table.fingerprint(), table: Box::new(table.clone()) };
        self.enqueue(Record::Note(note, Bytes::new()));
    }

    /// `filter`: the definition's.
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

    /// Lets the least recently used go until there are no more than this.
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

    /// Lets the least recently used go until the others fit in the limit.
    pub(crate) fn evict_bytes(&self, limit: u64) {
        let used = |shape: &Arc<Shape>| (shape.used.load(Ordering::Relaxed), Arc::clone(shape));
        // They are used meanwhile: what they are sorted by must stay.
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

    /// The shapes of a table, followed or not.
    pub(crate) fn shapes_of(&self, oid: u32) -> Vec<u64> {
        let registry = self.registry();
        let of_table = registry.shapes().filter(|shape| shape.definition().table.oid == oid);
        of_table.map(|shape| shape.id).collect()
    }

    /// The turn that this is, while it lasts; `None`: nobody writes, or somebody else.
    pub(crate) fn turn(&self) -> Option<RwLockReadGuard<'_, u64>> {
        let turn = self.turn.read().unwrap_or_else(PoisonError::into_inner);
        self.is_writing.load(Ordering::Acquire).then_some(turn)
    }

    /// A shape goes: for this process at once, for others and the next start when the log says so.
    pub(crate) fn delete(&self, id: u64) {
        lock(&self.deleted).insert(id);
        self.enqueue(Record::Note(Note::Delete { id }, Bytes::new()));
        self.forget(id);
    }

    /// The log says that a shape is gone.
    pub(crate) fn is_deleted(&self, id: u64) {
        lock(&self.deleted).remove(&id);
    }

    /// Shapes whose deletion never came to the log, because there was no room, or nobody wrote any more. What has such a number now is another's.
    pub(crate) fn left_to_delete(&self) -> HashSet<u64> {
        let mut deleted = lock(&self.deleted);
        let registry = self.registry();
        deleted.retain(|id| registry.by_id(*id).is_none());
        deleted.clone()
    }

    /// A shape can't be found any more.
    pub(crate) fn forget(&self, id: u64) {
        let shape = self.registry_mut().remove(id);
        if let Some(shape) = shape {
            self.files.close(id);
            shape.end(ShapeGone::Deleted);
        }
    }

    /// The same, unless there is another in its place.
    pub(crate) fn forget_this(&self, shape: &Arc<Shape>) {
        if self.registry().by_id(shape.id).is_some_and(|known| Arc::ptr_eq(known, shape)) {
            self.forget(shape.id);
        }
    }

    /// Shapes whose snapshot will never be complete. Returns which they were.
    pub(crate) fn forget_incomplete(&self) -> Vec<u64> {
        let incomplete = |shape: &&Arc<Shape>| shape.lock().phase != Phase::Complete;
        let ids: Vec<_> = self.registry().shapes().filter(incomplete).map(|shape| shape.id).collect();
        ids.iter().for_each(|id| self.forget(*id));
        ids
    }

    /// Everything complete is followed; nothing else is. Blocks for the disk if there are tables
    /// without a primary key.
    pub(crate) fn follow_all(&self) {
        let shapes: Vec<_> = self.registry().shapes().cloned().collect();
        let (mut complete, mut bytes) = (Vec::new(), row_keys::MAX_READ_TOTAL);
        // Keys that were counted before give their room back.
        self.followed().clear(self.durable.load(Ordering::Acquire));
        for shape in shapes {
            let Some(seen) = shape.lock().seen.clone() else { continue };
            let keys = shape.definition().table.key.is_empty().then(|| {
                KeyCounts::read(&shape, &self.key_budget, &mut bytes).unwrap_or_else(|| {
                    // Of a release that didn't count. It goes as soon as something can be written.
                    lock(&self.inexact).push(shape.id);
                    KeyCounts::unknown()
                })
            });
            complete.push((shape, seen, keys));
        }
        let mut followed = self.followed();
        followed.clear(self.durable.load(Ordering::Acquire));
        complete.into_iter().for_each(|(shape, seen, keys)| followed.add_complete(shape, seen, keys));
    }

    /// Deletes the shapes whose clients lack rows that had an equal one.
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

    /// Returns the shape with this definition. One whose snapshot failed is gone before it is removed: it is left out.
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

    /// The log has to name them again for the next shape of theirs.
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

/// When a shape was made, which is the end of its handle.
pub(crate) fn time_of(handle: &str) -> Option<u64> {
    handle.rsplit_once('-').and_then(|(_, time)| time.parse().ok())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for StoreInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("dir", &self.config.dir).finish_non_exhaustive()
    }
}
