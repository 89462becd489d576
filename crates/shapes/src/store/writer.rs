//! Writing the store, and reading it: who does what, and when.
//!
//! Invariant: a record is synced, then applied, then acknowledged, in the order of the log. Kept by: one thread does it.
//! A checkpoint makes the log short: in its own thread, while the writer goes on in the next segment.

use std::any::Any;
use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::OpenError;
use super::catalog::Catalog;
use super::disk::DiskFile;
use super::files::{self, Kind};
use super::head::Head;
use super::queue::{Job, Queue};
use super::record::{self, CatalogHead, Kept, Record};
use super::wal::{self, Place, Wal};
use crate::shape::Shape;
use crate::shapes::{Inner, lock};

/// What this process does with the store.
pub(crate) enum Mode {
    /// It reads what another writes, and has come this far.
    Reading(Option<Place>),
    Writing {
        thread: JoinHandle<Place>,
        _lock: Box<dyn Any + Send>,
    },
}

impl Default for Mode {
    fn default() -> Self {
        Mode::Reading(None)
    }
}

/// How long to wait for room on a full disk.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Recovers, and starts the writer.
pub(crate) fn begin(inner: &Arc<Inner>) -> Result<(), OpenError> {
    let mut mode = lock(&inner.mode);
    let Mode::Reading(place) = &mut *mode else { return Ok(()) };
    let disk = &*inner.disk;
    disk.make_dir(wal::DIR)?;
    disk.make_dir(files::DIR)?;
    disk.sync_dir("")?;
    let right = disk.try_lock()?.ok_or(OpenError::Locked)?;
    read_on(inner, place, None)?;
    inner.abandon_all();
    inner.forget_incomplete();
    let segment = wal::segments(disk)?.last().map_or(0, |last| last + 1);
    let wal = Wal::begin(Arc::clone(&inner.disk), segment)?;
    Checkpoint::capture(inner, segment).write(inner)?;
    remove_orphans(inner)?;
    inner.follow_all();
    let head_file = Head::file(disk)?;
    let queue = Arc::new(Queue::default());
    let mut writer = Writer {
        inner: Arc::clone(inner),
        queue: Arc::clone(&queue),
        wal,
        head_file,
        catalog: segment,
        is_inside: false,
        checkpoint: None,
    };
    writer.tell_head()?;
    let thread = std::thread::Builder::new().name("forebay-store".into()).spawn(move || writer.run())?;
    *inner.queue.write().unwrap_or_else(PoisonError::into_inner) = queue;
    *mode = Mode::Writing { thread, _lock: right };
    inner.is_writing.store(true, Ordering::Release);
    Ok(())
}

/// Ends the writer, once it has written everything, and gives the lock back.
pub(crate) fn end(inner: &Arc<Inner>) {
    let mut mode = lock(&inner.mode);
    inner.is_writing.store(false, Ordering::Release);
    let queue = Arc::clone(&inner.queue.read().unwrap_or_else(PoisonError::into_inner));
    queue.close();
    *mode = match std::mem::take(&mut *mode) {
        // A writer that panicked has left everything as after a kill: it is read again from the start.
        Mode::Writing { thread, _lock } => Mode::Reading(thread.join().ok()),
        // It has ended already, and the place where it did must not be lost.
        reading @ Mode::Reading(_) => reading,
    };
}

/// Reads what is durable, up to where the writer says.
pub(crate) fn refresh(inner: &Arc<Inner>) -> Result<(), OpenError> {
    let mut mode = lock(&inner.mode);
    let Mode::Reading(place) = &mut *mode else { return Ok(()) };
    match Head::read(&*inner.disk) {
        Some(head) => read_on(inner, place, Some(head)),
        // Nobody has written since the machine started. The catalog is good for reading.
        None if place.is_none() => load_catalog(inner, place),
        None => Ok(()),
    }
}

/// Applies the log from where we are, to its end or to what is durable.
fn read_on(inner: &Inner, place: &mut Option<Place>, head: Option<Head>) -> Result<(), OpenError> {
    let disk = &*inner.disk;
    let overtaken = |place: &Place, head: &Head| head.catalog > place.segment;
    if place.is_none() || head.is_some_and(|head| place.as_ref().is_some_and(|place| overtaken(place, &head)))
    {
        load_catalog(inner, place)?;
    }
    let Some(mut at) = *place else { return Ok(()) };
    loop {
        let limit = head.filter(|head| head.durable.segment == at.segment).map(|head| head.durable.at);
        if head.is_some_and(|head| head.durable.segment < at.segment) {
            break;
        }
        let Some(mut bytes) = wal::read(disk, at, limit)? else {
            break;
        };
        while let Some((record, length)) = record::next(&bytes) {
            inner.apply(&record);
            let _read = bytes.split_to(length);
            at.at += length as u64;
        }
        *place = Some(at);
        // A segment that isn't whole is the last one: what follows it was never acknowledged.
        if !bytes.is_empty() || limit.is_some() || !wal::segments(disk)?.contains(&(at.segment + 1)) {
            break;
        }
        inner.abandon_all();
        at = Place::start(at.segment + 1);
        *place = Some(at);
    }
    if let Some(head) = head {
        inner.durable.fetch_max(head.lsn, Ordering::AcqRel);
    }
    Ok(())
}

fn load_catalog(inner: &Inner, place: &mut Option<Place>) -> Result<(), OpenError> {
    let Some(Catalog { head, tables, shapes }) = Catalog::read(&*inner.disk)? else {
        // A store from before its first catalog: whatever its log has is from the start.
        *place = wal::segments(&*inner.disk).ok().and_then(|all| all.first().copied()).map(Place::start);
        return Ok(());
    };
    {
        let mut registry = inner.registry_mut();
        for table in tables {
            registry.tables_mut().insert(table.fingerprint(), table);
        }
        registry.origin = head.origin;
        registry.next_id = registry.next_id.max(head.next_id);
        registry.last_handle = registry.last_handle.max(head.last_handle);
    }
    let kept: HashSet<u64> = shapes.iter().map(|kept| kept.id).collect();
    let gone: Vec<_> =
        inner.registry().shapes().map(|shape| shape.id).filter(|id| !kept.contains(id)).collect();
    gone.into_iter().for_each(|id| inner.forget(id));
    shapes.iter().for_each(|kept| inner.load(kept));
    inner.durable.fetch_max(head.lsn, Ordering::AcqRel);
    inner.set_seen(head.seen);
    *place = Some(Place::start(head.segment));
    Ok(())
}

/// Files of shapes that nobody knows: they were being made, or deleted, when the process ended.
fn remove_orphans(inner: &Inner) -> io::Result<()> {
    let known: HashSet<u64> = inner.registry().shapes().map(|shape| shape.id).collect();
    for name in inner.disk.list(files::DIR)? {
        if files::owner(&name).is_none_or(|id| !known.contains(&id)) {
            inner.disk.remove(&format!("{}/{name}", files::DIR))?;
        }
    }
    Ok(())
}

struct Writer {
    inner: Arc<Inner>,
    queue: Arc<Queue>,
    wal: Wal,
    head_file: Arc<dyn DiskFile>,
    /// The first segment that the catalog doesn't cover.
    catalog: u64,
    /// Inside of a transaction: its parts must stay in one segment with its commit.
    is_inside: bool,
    checkpoint: Option<(u64, JoinHandle<io::Result<()>>)>,
}

impl Writer {
    fn run(mut self) -> Place {
        while let Some(jobs) = self.queue.take() {
            if let Err(error) = self.write(jobs) {
                self.inner.fail(&error.to_string());
                self.queue.close();
                break;
            }
        }
        let _last = self.end_checkpoint(true);
        self.wal.place()
    }

    fn write(&mut self, jobs: Vec<Job>) -> io::Result<()> {
        let mut heads = Vec::new();
        let mut frames = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let from = heads.len();
            let text = record::frame(&job.record, &mut heads);
            frames.push((from, heads.len(), text));
        }
        let parts = frames.iter().flat_map(|(from, to, text)| [&heads[*from..*to], &text[..]]);
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect();
        if !self.append(&parts)? {
            // Closed while the disk is full: nobody was told that it is durable, and it comes again.
            return Ok(());
        }
        self.wal.sync()?;
        self.tell_head()?;
        let mut wants_checkpoint = false;
        let mut done = Vec::new();
        for job in jobs {
            match &job.record {
                Record::Part(_) => self.is_inside = true,
                Record::Commit(_, commit) if commit.end > 0 => self.is_inside = false,
                Record::Commit(..) | Record::Note(..) => {}
            }
            self.inner.apply(&job.record);
            wants_checkpoint |= job.checkpoint;
            done.extend(job.done);
        }
        if let Some(tell) = &*lock(&self.inner.on_durable) {
            tell(self.inner.durable.load(Ordering::Acquire));
        }
        if wants_checkpoint {
            self.end_checkpoint(true)?;
            self.begin_checkpoint()?;
            self.end_checkpoint(true)?;
        }
        for done in done {
            let _nobody_waits = done.send(());
        }
        if self.inner.unwritten.load(Ordering::Relaxed) > self.inner.config.unwritten_bytes {
            let shapes: Vec<_> = self.inner.registry().shapes().cloned().collect();
            shapes.iter().try_for_each(|shape| spill(&self.inner, shape, u64::MAX, u64::MAX))?;
        }
        self.end_checkpoint(false)?;
        if self.wal.place().at > self.inner.config.wal_bytes {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    /// Writes, and waits for room if the disk is full; `false`: it is closed before there is any.
    fn append(&mut self, parts: &[IoSlice<'_>]) -> io::Result<bool> {
        loop {
            match self.wal.append(parts) {
                Ok(()) => {
                    self.inner.is_full.store(false, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    if !self.inner.is_full.swap(true, Ordering::Relaxed) {
                        tracing::error!(
                            "the disk is full: nothing is taken from the database until there is room"
                        );
                    }
                    if self.queue.pause(FULL_PAUSE) {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn tell_head(&mut self) -> io::Result<()> {
        let lsn = self.inner.durable.load(Ordering::Acquire);
        Head { durable: self.wal.place(), catalog: self.catalog, lsn }.write(&*self.head_file)
    }

    fn begin_checkpoint(&mut self) -> io::Result<()> {
        if self.is_inside || self.checkpoint.is_some() {
            return Ok(());
        }
        self.wal.rotate()?;
        let segment = self.wal.place().segment;
        let checkpoint = Checkpoint::capture(&self.inner, segment);
        let inner = Arc::clone(&self.inner);
        let write = move || checkpoint.write(&inner);
        let thread = std::thread::Builder::new().name("forebay-checkpoint".into()).spawn(write)?;
        self.checkpoint = Some((segment, thread));
        self.tell_head()
    }

    /// Takes note of a checkpoint that is done; waits for it if told to.
    fn end_checkpoint(&mut self, wait: bool) -> io::Result<()> {
        if let Some((segment, thread)) = self.checkpoint.take_if(|(_, thread)| wait || thread.is_finished()) {
            match thread.join() {
                Ok(Ok(())) => self.catalog = segment,
                // Without room the log only grows; the next one may have some.
                Ok(Err(error)) if error.kind() == io::ErrorKind::StorageFull => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(io::Error::other("a checkpoint panicked")),
            }
            self.tell_head()?;
            if let Some(limit) = self.inner.config.max_bytes {
                self.inner.evict_bytes(limit);
            }
        }
        Ok(())
    }
}

/// Everything as it was when a segment began.
struct Checkpoint {
    catalog: Catalog,
    shapes: Vec<Arc<Shape>>,
}

impl Checkpoint {
    fn capture(inner: &Inner, segment: u64) -> Self {
        let mut registry = inner.registry_mut();
        let shapes: Vec<_> = registry.shapes().cloned().collect();
        let used: HashSet<u64> = shapes.iter().map(|shape| shape.definition().table.fingerprint()).collect();
        registry.tables_mut().retain(|fingerprint, _| used.contains(fingerprint));
        let tables = registry.tables_mut().values().cloned().collect();
        let head = CatalogHead {
            format: 0,
            origin: registry.origin.clone(),
            lsn: inner.durable.load(Ordering::Acquire),
            seen: inner.seen(),
            next_id: registry.next_id,
            last_handle: registry.last_handle,
            segment,
        };
        let kept: Vec<Kept> = shapes.iter().map(|shape| shape.keep()).collect();
        Checkpoint { catalog: Catalog { head, tables, shapes: kept }, shapes }
    }

    fn write(&self, inner: &Inner) -> io::Result<()> {
        for (shape, kept) in self.shapes.iter().zip(&self.catalog.shapes) {
            let snapshot = kept.snapshot.as_ref().map_or(0, |snapshot| snapshot.len);
            spill(inner, shape, snapshot, kept.log.len)?;
        }
        inner.disk.sync_everything()?;
        self.catalog.write(&*inner.disk)?;
        for segment in wal::segments(&*inner.disk)? {
            if segment < self.catalog.head.segment {
                inner.disk.remove(&wal::path(segment))?;
            }
        }
        Ok(())
    }
}

/// Writes what a shape has in memory to its files, up to these lengths.
fn spill(inner: &Inner, shape: &Shape, snapshot: u64, log: u64) -> io::Result<()> {
    for (kind, up_to) in [(Kind::Snapshot, snapshot), (Kind::Log, log)] {
        let (mut at, pieces) = shape.lock().strand(kind).unwritten(up_to);
        if pieces.is_empty() {
            continue;
        }
        if shape.gone().is_some() {
            continue;
        }
        let file = inner.files.open_or_create(shape.id, kind)?;
        for pieces in pieces.chunks(512) {
            let parts: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            file.write_all_vectored_at(&parts, at)?;
            at += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        }
        let mut state = shape.lock();
        let strand = state.strand_mut(kind);
        let before = strand.written();
        strand.wrote(at);
        let wrote = strand.written().saturating_sub(before);
        drop(state);
        let _before = inner
            .unwritten
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_sub(wrote)));
    }
    Ok(())
}
