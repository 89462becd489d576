//! All shapes of a store: found, made, deleted; and the store's history, applied to them.
//!
//! Invariant: what is registered here is what the store's log says, applied in its order. Kept by: [`Inner::apply`] is the only way in, for
//! the writer, for recovery, and for those who read beside a writer.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};

use crate::creation::Creation;
use crate::definition::{Definition, Table};
use crate::encode::{Layout, last_place};
use crate::filter::FilterError;
use crate::follow::{Followed, Follower};
use crate::offset::Offset;
use crate::shape::{Gone, Phase, Shape};
use crate::store::disk::{Disk, RealDisk};
use crate::store::files::Files;
use crate::store::queue::{Job, Queue};
use crate::store::record::{Changes, Kept, Note, Record};
use crate::store::strand::Strand;
use crate::store::writer::Mode;
use crate::store::{OpenError, writer};

/// How a store is kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Where. Made if it isn't there.
    pub dir: PathBuf,
    /// A chunk closes with the message that reaches this size: 10 MiB, as clients and caches expect.
    pub chunk_bytes: u64,
    /// How many shapes there may be; the least recently used goes for another. 100,000.
    pub max_shapes: usize,
    /// How much they may take on disk together; the least recently used go. `None`: as much as there is.
    pub max_bytes: Option<u64>,
    /// Messages that are only in memory and in the log are written to the shapes' files beyond this: 64 MiB.
    pub unwritten_bytes: u64,
    /// The log is made short beyond this: 256 MiB, which are read again in a second or two.
    pub wal_bytes: u64,
    /// How many of the shapes' files are open at once: 512.
    pub open_files: usize,
    /// A snapshot up to this size goes through the log, and needs no sync of its own: 256 KiB.
    pub small_snapshot_bytes: usize,
    /// How much of the stream is held for a shape whose snapshot is about to begin: 16 MiB. With more, it is given up.
    pub held_bytes: usize,
    /// How much waits to be written: 16 MiB. With more, the stream waits.
    pub queued_bytes: usize,
}

impl StoreConfig {
    /// In this directory, with everything else as documented.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        StoreConfig {
            dir: dir.into(),
            chunk_bytes: 10 << 20,
            max_shapes: 100_000,
            max_bytes: None,
            unwritten_bytes: 64 << 20,
            wal_bytes: 256 << 20,
            open_files: 512,
            small_snapshot_bytes: 256 << 10,
            held_bytes: 16 << 20,
            queued_bytes: 16 << 20,
        }
    }
}

/// All shapes of a store. Cheap to clone.
#[derive(Clone)]
pub struct Shapes {
    pub(crate) inner: Arc<Inner>,
}

/// What a store follows, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// As it was given to [`Shapes::reset`] or [`Shapes::adopt`].
    pub origin: String,
    /// Everything up to here is durable.
    pub lsn: u64,
}

/// Why a shape can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Somebody else writes to the store, or nobody does.
    #[error("this instance doesn't write to the store")]
    ReadOnly,
    /// Its clause can't be used.
    #[error(transparent)]
    Clause(#[from] FilterError),
}

/// The store can't be written, and so nothing goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store can't be written: {0}")]
pub struct StoreFailure(pub(crate) Arc<str>);

/// By table, columns, and whether rows are shown in full.
type Layouts = HashMap<(u64, Vec<usize>, bool), Weak<Layout>>;

type OnDurable = Box<dyn Fn(u64) + Send + Sync>;

pub(crate) struct Inner {
    pub(crate) config: StoreConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) files: Arc<Files>,
    registry: RwLock<Registry>,
    followed: Mutex<Followed>,
    layouts: Mutex<Layouts>,
    /// Where the writer takes from; closed while nobody writes.
    pub(crate) queue: RwLock<Arc<Queue>>,
    pub(crate) mode: Mutex<Mode>,
    pub(crate) is_writing: AtomicBool,
    pub(crate) durable: AtomicU64,
    /// The offset `<seen>_0` is after everything visible, and before whatever comes.
    seen: AtomicU64,
    pub(crate) on_durable: Mutex<Option<OnDurable>>,
    /// Bytes that are in no shape's file.
    pub(crate) unwritten: AtomicU64,
    pub(crate) is_full: AtomicBool,
    failure: Mutex<Option<StoreFailure>>,
    failed: Notify,
    progressed: Notify,
    clock: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    by_id: HashMap<u64, Arc<Shape>>,
    by_handle: HashMap<String, u64>,
    /// By the fingerprints of their definitions, the newest last.
    by_definition: HashMap<u64, Vec<u64>>,
    /// Tables by their fingerprints.
    tables: HashMap<u64, Arc<Table>>,
    pub(crate) origin: Option<String>,
    pub(crate) next_id: u64,
    /// The time in the last handle, so that none is used twice.
    pub(crate) last_handle: u64,
}

impl Shapes {
    /// Opens a store to read what is there. Blocks for the disk.
    ///
    /// # Errors
    /// When it isn't one that this program can read.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        std::fs::create_dir_all(&config.dir)?;
        let disk = RealDisk::open(config.dir.clone(), false)?;
        Shapes::on(Arc::new(disk), config)
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, config: StoreConfig) -> Result<Self, OpenError> {
        let files = Arc::new(Files::new(Arc::clone(&disk), config.open_files));
        let queue = Queue::default();
        queue.close();
        let inner = Inner {
            config,
            disk,
            files,
            registry: RwLock::default(),
            followed: Mutex::default(),
            layouts: Mutex::default(),
            queue: RwLock::new(Arc::new(queue)),
            mode: Mutex::default(),
            is_writing: AtomicBool::new(false),
            durable: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            on_durable: Mutex::default(),
            unwritten: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            failure: Mutex::default(),
            failed: Notify::new(),
            progressed: Notify::new(),
            clock: AtomicU64::new(1),
        };
        let inner = Arc::new(inner);
        writer::refresh(&inner)?;
        Ok(Shapes { inner })
    }

    /// Takes the right to write: whatever the log has is recovered, and shapes without a whole snapshot go. Blocks for the disk. Returns how far
    /// the store has come; `None`: it has followed nothing yet.
    ///
    /// # Errors
    /// When another process writes, or the disk fails.
    pub fn begin_writing(&self) -> Result<Option<Position>, OpenError> {
        writer::begin(&self.inner)?;
        Ok(self.position())
    }

    /// Gives the right to write back, once what is queued is durable. Blocks for the disk. Goes on to read.
    pub fn end_writing(&self) {
        writer::end(&self.inner);
    }

    /// Reads what another process has written meanwhile. Blocks for the disk. Does nothing while this one writes.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn refresh(&self) -> Result<(), OpenError> {
        writer::refresh(&self.inner)
    }

    /// How far it has come.
    pub fn position(&self) -> Option<Position> {
        let origin = self.inner.registry().origin.clone()?;
        Some(Position { origin, lsn: self.inner.durable.load(Ordering::Acquire) })
    }

    /// The offset `<seen>_0` is after everything that can be read, and before whatever comes.
    pub fn seen(&self) -> u64 {
        self.inner.seen.load(Ordering::Acquire)
    }

    /// Whether an offset lies beyond everything that can be read.
    pub fn is_beyond(&self, offset: Offset) -> bool {
        offset.lsn > self.inner.durable.load(Ordering::Acquire).max(self.seen())
    }

    /// Waits until more can be read than now.
    pub async fn progress(&self) {
        let before = self.inner.durable.load(Ordering::Acquire);
        loop {
            let progressed = self.inner.progressed.notified();
            tokio::pin!(progressed);
            progressed.as_mut().enable();
            if self.inner.durable.load(Ordering::Acquire) != before {
                return;
            }
            progressed.await;
        }
    }

    /// Forgets everything, and follows `origin` from `lsn` on. Returns when that is durable.
    ///
    /// # Errors
    /// When nobody writes any more.
    pub async fn reset(&self, origin: String, lsn: u64) -> Result<(), CreateError> {
        let done = {
            let mut followed = self.inner.followed();
            *followed = Followed::default();
            self.inner.submit(Record::Note(Note::Reset { origin, lsn }, Bytes::new()))
        };
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Follows the same history under another name. Returns when that is durable.
    ///
    /// # Errors
    /// When nobody writes any more.
    pub async fn adopt(&self, origin: String) -> Result<(), CreateError> {
        let done = self.inner.submit(Record::Note(Note::Adopt { origin }, Bytes::new()));
        done.await.map_err(|_| CreateError::ReadOnly)
    }

    /// Nothing concerns any shape up to here.
    pub fn advance(&self, lsn: u64) {
        self.inner.enqueue(Record::Note(Note::Advance { lsn }, Bytes::new()));
    }

    /// Whoever is to hear what is durable.
    pub fn on_durable(&self, tell: impl Fn(u64) + Send + Sync + 'static) {
        *lock(&self.inner.on_durable) = Some(Box::new(tell));
    }

    /// Waits until there is room for more.
    pub async fn room(&self) {
        let queue = Arc::clone(&self.inner.queue.read().unwrap_or_else(PoisonError::into_inner));
        queue.room(self.inner.config.queued_bytes).await;
    }

    /// Who takes the stream in. One at a time.
    pub fn follower(&self) -> Follower {
        Follower::new(Arc::clone(&self.inner))
    }

    /// The shape with this handle.
    pub fn find(&self, handle: &str) -> Option<Arc<Shape>> {
        let shape = self.inner.registry().by_handle(handle)?;
        self.inner.touch(&shape);
        Some(shape)
    }

    /// The shape that is defined so.
    pub fn find_same(&self, definition: &Definition) -> Option<Arc<Shape>> {
        let shape = self.inner.registry().same(definition)?;
        self.inner.touch(&shape);
        Some(shape)
    }

    /// The shape that is defined so, and, if it was made for that, the duty to fill it. `micros`: the time since 1970, for its handle.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn find_or_create(
        &self,
        definition: Definition,
        micros: u64,
    ) -> Result<(Arc<Shape>, Option<Creation>), CreateError> {
        if let Some(shape) = self.find_same(&definition) {
            return Ok((shape, None));
        }
        self.inner.create(definition, micros)
    }

    /// Deletes a shape, for good. `false`: it was gone.
    pub fn delete(&self, handle: &str) -> bool {
        // The lock comes first: what is decided under it is queued in its order.
        let mut followed = self.inner.followed();
        let Some(shape) = self.inner.registry().by_handle(handle) else { return false };
        followed.delete(shape.id, &self.inner);
        true
    }

    /// Deletes the shapes of a table.
    pub fn delete_table(&self, oid: u32) {
        self.inner.followed().delete_table(oid, &self.inner);
    }

    /// A table is so now: its shapes that can't go on with it are deleted.
    pub fn refit(&self, table: &Table) {
        self.inner.followed().refit(table, &self.inner);
    }

    /// All shapes, in no order.
    pub fn all(&self) -> Vec<Arc<Shape>> {
        self.inner.registry().by_id.values().cloned().collect()
    }

    /// Whether the disk is full: nothing is acknowledged, and what is there is served.
    pub fn is_full(&self) -> bool {
        self.inner.is_full.load(Ordering::Relaxed)
    }

    /// Whether this process writes.
    pub fn is_writing(&self) -> bool {
        self.inner.is_writing.load(Ordering::Acquire)
    }

    /// Waits until the store fails for good: then the process should end, since nobody knows what is on its disk.
    pub async fn failed(&self) -> StoreFailure {
        loop {
            let failed = self.inner.failed.notified();
            tokio::pin!(failed);
            failed.as_mut().enable();
            if let Some(failure) = lock(&self.inner.failure).clone() {
                return failure;
            }
            failed.await;
        }
    }

    /// Makes the next start quick: returns when the log is short.
    ///
    /// # Errors
    /// When nobody writes any more.
    pub async fn checkpoint(&self) -> Result<(), CreateError> {
        let lsn = self.inner.durable.load(Ordering::Acquire);
        let (done, told) = oneshot::channel();
        let record = Record::Note(Note::Advance { lsn }, Bytes::new());
        let job = Job { record, done: Some(done), checkpoint: true };
        self.inner.queue.read().unwrap_or_else(PoisonError::into_inner).push(job);
        told.await.map_err(|_| CreateError::ReadOnly)
    }
}

impl Inner {
    pub(crate) fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registry_mut(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn followed(&self) -> MutexGuard<'_, Followed> {
        lock(&self.followed)
    }

    pub(crate) fn enqueue(&self, record: Record) {
        self.queue.read().unwrap_or_else(PoisonError::into_inner).push(Job {
            record,
            done: None,
            checkpoint: false,
        });
    }

    /// Tells when it is durable.
    pub(crate) fn submit(&self, record: Record) -> oneshot::Receiver<()> {
        let (done, told) = oneshot::channel();
        let job = Job { record, done: Some(done), checkpoint: false };
        self.queue.read().unwrap_or_else(PoisonError::into_inner).push(job);
        told
    }

    pub(crate) fn fail(&self, why: &str) {
        tracing::error!(why, "the store can't be written");
        *lock(&self.failure) = Some(StoreFailure(why.into()));
        self.failed.notify_waiters();
    }

    fn touch(&self, shape: &Shape) {
        shape.touch(self.clock.fetch_add(1, Ordering::Relaxed));
    }

    fn create(
        self: &Arc<Self>,
        definition: Definition,
        micros: u64,
    ) -> Result<(Arc<Shape>, Option<Creation>), CreateError> {
        if !self.is_writing.load(Ordering::Acquire) {
            return Err(CreateError::ReadOnly);
        }
        definition.filter()?;
        self.evict(self.config.max_shapes.saturating_sub(1));
        let mut registry = self.registry_mut();
        if let Some(shape) = registry.same(&definition) {
            return Ok((shape, None));
        }
        registry.last_handle = micros.max(registry.last_handle + 1);
        let handle = format!("{}-{}", definition.fingerprint(), registry.last_handle);
        let (id, table) = (registry.next_id, definition.table.fingerprint());
        registry.next_id += 1;
        let shape = Arc::new(self.make(id, handle.clone(), definition)?);
        self.touch(&shape);
        if !registry.tables.contains_key(&table) {
            let table = Table::clone(&shape.definition().table);
            self.enqueue(Record::Note(Note::Table { table }, Bytes::new()));
        }
        let choice = shape.definition().choice.clone();
        self.enqueue(Record::Note(Note::Create { id, handle, table, choice }, Bytes::new()));
        registry.add(Arc::clone(&shape));
        Ok((Arc::clone(&shape), Some(Creation::new(Arc::clone(self), shape))))
    }

    /// Lets the least recently used go until there are no more than this.
    fn evict(&self, count: usize) {
        let mut shapes: Vec<_> = {
            let registry = self.registry();
            if registry.by_id.len() <= count {
                return;
            }
            registry.by_id.values().map(|shape| (shape.used.load(Ordering::Relaxed), shape.id)).collect()
        };
        shapes.sort_unstable();
        let mut followed = self.followed();
        let excess = shapes.len() - count;
        shapes.iter().take(excess).for_each(|(_, shape)| followed.delete(*shape, self));
    }

    /// Lets the least recently used go until the others fit in the limit.
    pub(crate) fn evict_bytes(&self, limit: u64) {
        let mut shapes: Vec<_> = self.registry().by_id.values().cloned().collect();
        shapes.sort_unstable_by_key(|shape| shape.used.load(Ordering::Relaxed));
        let mut total: u64 = shapes.iter().map(|shape| shape.bytes()).sum();
        let mut followed = self.followed();
        for shape in shapes {
            if total <= limit {
                break;
            }
            total -= shape.bytes();
            followed.delete(shape.id, self);
        }
    }

    fn make(&self, id: u64, handle: String, definition: Definition) -> Result<Shape, FilterError> {
        let is_full = definition.choice.replica == crate::definition::Replica::Full;
        let key = (definition.table.fingerprint(), definition.selected(), is_full);
        let mut layouts = lock(&self.layouts);
        let layout = layouts.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let layout = Arc::new(definition.layout());
            layouts.retain(|_, layout| layout.strong_count() > 0);
            layouts.insert(key, Arc::downgrade(&layout));
            layout
        });
        drop(layouts);
        Shape::new(id, handle, definition, layout, Arc::clone(&self.files))
    }

    /// A record of the log takes effect: it is durable.
    pub(crate) fn apply(&self, record: &Record) {
        match record {
            Record::Part(changes) => self.stage(changes),
            Record::Commit(changes, commit) => {
                self.stage(changes);
                let seen = self.seen().max(changes.lsn + 1);
                self.durable.fetch_max(commit.end, Ordering::AcqRel);
                let here = changes.touches.iter().map(|touch| touch.shape);
                let registry = self.registry();
                for shape in here.chain(commit.earlier.iter().copied()) {
                    if let Some(shape) = registry.by_id.get(&shape) {
                        shape.lock().log.finish(self.config.chunk_bytes);
                        shape.publish(seen);
                    }
                }
                // After all shapes have it: what is seen is nowhere yet to come.
                self.seen.fetch_max(seen, Ordering::AcqRel);
                self.progressed.notify_waiters();
            }
            Record::Note(note, bytes) => self.apply_note(note, bytes),
        }
    }

    fn stage(&self, changes: &Changes) {
        let registry = self.registry();
        for touch in &changes.touches {
            let Some(shape) = registry.by_id.get(&touch.shape) else { continue };
            let mut state = shape.lock();
            let last = Offset::new(changes.lsn, touch.last_op);
            for (index, (from, to)) in touch.ranges.iter().enumerate() {
                let bytes = changes.text.slice(*from as usize..*to as usize);
                self.unwritten.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // Whoever seeks inside of the transaction goes by where each range ends, not by where all of them do.
                let is_last = index + 1 == touch.ranges.len();
                let last = if is_last { last } else { last_place(&bytes).unwrap_or(last) };
                state.log.stage(bytes, last, self.config.chunk_bytes);
            }
        }
    }

    fn apply_note(&self, note: &Note, bytes: &Bytes) {
        match note {
            Note::Advance { lsn } => {
                self.durable.fetch_max(*lsn, Ordering::AcqRel);
                self.progressed.notify_waiters();
            }
            Note::Table { table } => {
                self.registry_mut().tables.insert(table.fingerprint(), Arc::new(table.clone()));
            }
            Note::Create { id, handle, table, choice } => {
                let mut registry = self.registry_mut();
                registry.next_id = registry.next_id.max(id + 1);
                let micros = handle.rsplit('-').next().and_then(|micros| micros.parse().ok()).unwrap_or(0);
                registry.last_handle = registry.last_handle.max(micros);
                let Some(table) = registry.tables.get(table).cloned() else { return };
                if !registry.by_id.contains_key(id) {
                    let definition = Definition { table, choice: choice.clone() };
                    if let Ok(shape) = self.make(*id, handle.clone(), definition) {
                        registry.add(Arc::new(shape));
                    }
                }
            }
            Note::Complete(completed) => {
                let shape = self.registry().by_id.get(&completed.id).cloned();
                if let Some(shape) = shape {
                    shape.complete_with(completed, bytes.clone());
                    self.unwritten.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            }
            Note::Delete { id } => self.forget_files(*id),
            Note::Reset { origin, lsn } => {
                let ids: Vec<_> = self.registry().by_id.keys().copied().collect();
                ids.into_iter().for_each(|id| self.forget_files(id));
                self.registry_mut().origin = Some(origin.clone());
                self.durable.store(*lsn, Ordering::Release);
                // The next commit may begin where this history does.
                self.seen.store(lsn.saturating_sub(1).max(1), Ordering::Release);
            }
            Note::Adopt { origin } => self.registry_mut().origin = Some(origin.clone()),
            Note::Catalog(_) | Note::Shape(_) | Note::End { .. } => {}
        }
    }

    /// A shape can't be found any more.
    pub(crate) fn forget(&self, id: u64) {
        let shape = self.registry_mut().remove(id);
        if let Some(shape) = shape {
            let state = shape.lock();
            let waiting = state.log.waiting() + state.snapshot.waiting();
            drop(state);
            let _before = self
                .unwritten
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_sub(waiting)));
            shape.end(Gone::Deleted);
        }
    }

    /// Nor are its files needed.
    fn forget_files(&self, id: u64) {
        self.forget(id);
        if self.is_writing.load(Ordering::Acquire) {
            self.files.remove(id);
        }
    }

    /// As a catalog has it; what is known already stays, but for what has been written meanwhile.
    pub(crate) fn load(&self, kept: &Kept) {
        let known = self.registry().by_id.get(&kept.id).cloned();
        if let Some(shape) = known {
            let mut state = shape.lock();
            if state.log.len() >= kept.log.len {
                state.log.wrote(kept.log.len);
                state.snapshot.wrote(kept.snapshot.as_ref().map_or(0, |snapshot| snapshot.len));
                return;
            }
            // It was overtaken: the files have what was missed.
            state.log = Strand::kept(&kept.log);
            drop(state);
            if let Some(completed) = &kept.snapshot {
                shape.complete_with(completed, Bytes::new());
            }
            return shape.notify();
        }
        let mut registry = self.registry_mut();
        let Some(table) = registry.tables.get(&kept.table).cloned() else { return };
        let definition = Definition { table, choice: kept.choice.clone() };
        let Ok(shape) = self.make(kept.id, kept.handle.clone(), definition) else { return };
        shape.lock().log = Strand::kept(&kept.log);
        if let Some(completed) = &kept.snapshot {
            shape.complete_with(completed, Bytes::new());
        }
        registry.add(Arc::new(shape));
    }

    /// Everything complete is followed; nothing else is.
    pub(crate) fn follow_all(&self) {
        let mut followed = self.followed();
        *followed = Followed::default();
        for shape in self.registry().by_id.values() {
            let seen = shape.lock().seen.clone();
            if let Some(seen) = seen {
                followed.add_complete(Arc::clone(shape), seen);
            }
        }
    }

    /// What was staged is no transaction.
    pub(crate) fn abandon_all(&self) {
        self.registry().by_id.values().for_each(|shape| shape.lock().log.abandon());
    }

    /// Shapes whose snapshot will never be complete.
    pub(crate) fn forget_incomplete(&self) {
        let incomplete = |shape: &&Arc<Shape>| shape.lock().phase != Phase::Complete;
        let ids: Vec<_> = self.registry().by_id.values().filter(incomplete).map(|shape| shape.id).collect();
        ids.into_iter().for_each(|id| self.forget(id));
    }

    pub(crate) fn set_seen(&self, seen: u64) {
        self.seen.fetch_max(seen, Ordering::AcqRel);
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }
}

impl Registry {
    fn by_handle(&self, handle: &str) -> Option<Arc<Shape>> {
        self.by_id.get(self.by_handle.get(handle)?).cloned()
    }

    fn same(&self, definition: &Definition) -> Option<Arc<Shape>> {
        let same = self.by_definition.get(&definition.fingerprint())?;
        let shapes = same.iter().rev().filter_map(|id| self.by_id.get(id));
        shapes.into_iter().find(|shape| shape.definition() == definition).cloned()
    }

    fn add(&mut self, shape: Arc<Shape>) {
        let table = Arc::clone(&shape.definition().table);
        self.tables.entry(table.fingerprint()).or_insert(table);
        self.by_handle.insert(shape.handle().to_owned(), shape.id);
        self.by_definition.entry(shape.definition().fingerprint()).or_default().push(shape.id);
        self.by_id.insert(shape.id, shape);
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Shape>> {
        let shape = self.by_id.remove(&id)?;
        self.by_handle.remove(shape.handle());
        let fingerprint = shape.definition().fingerprint();
        if let Some(same) = self.by_definition.get_mut(&fingerprint) {
            same.retain(|other| *other != id);
            if same.is_empty() {
                self.by_definition.remove(&fingerprint);
            }
        }
        Some(shape)
    }

    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.by_id.values()
    }

    pub(crate) fn tables_mut(&mut self) -> &mut HashMap<u64, Arc<Table>> {
        &mut self.tables
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("dir", &self.config.dir).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shapes").field("dir", &self.inner.config.dir).finish_non_exhaustive()
    }
}
