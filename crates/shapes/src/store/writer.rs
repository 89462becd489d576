//! Writing the store.
//!
//! Invariant: a record is synced, then applied, then acknowledged, in the order of the log. Kept by: one thread does it.
//! A checkpoint makes the log short: in its own thread, while the writer goes on in the next segment.

use std::any::Any;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use super::OpenError;
use super::checkpoint::{self, Checkpoint};
use super::disk::DiskFile;
use super::files;
use super::head::Head;
use super::queue::{Job, Queue};
use super::reading::{self, Reading};
use super::record::{self, Note, Record};
use super::wal::{self, Place, Wal};
use crate::registry::{StoreInner, lock};

/// What this process does with the store.
pub(crate) enum Mode {
    /// It reads what another writes, and has come this far.
    Reading(Option<Reading>),
    Writing {
        thread: JoinHandle<Option<Reading>>,
        _lock: Box<dyn Any + Send>,
    },
    /// It couldn't write, and doesn't know what is on the disk.
    Failed,
}

impl Default for Mode {
    fn default() -> Self {
        Mode::Reading(None)
    }
}

/// How long to wait for room on a full disk.
const FULL_PAUSE: Duration = if cfg!(test) { Duration::from_millis(2) } else { Duration::from_secs(1) };

/// Where several shapes are made at a time, how long one waits for others to be synced with it: that takes longer, and more, than the rest of
/// making it. One alone never waits, and neither do changes.
const PATIENCE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(5) };

/// Recovers, and starts the writer.
pub(crate) fn begin(inner: &Arc<StoreInner>) -> Result<(), OpenError> {
    let mut mode = lock(&inner.mode);
    if let Some(failure) = lock(&inner.failure).clone() {
        return Err(failure.into());
    }
    let Mode::Reading(reading) = &mut *mode else { return Ok(()) };
    let disk = &*inner.disk;
    disk.make_dir(wal::DIR)?;
    disk.make_dir(files::DIR)?;
    disk.sync_dir("")?;
    let right = disk.try_lock()?.ok_or(OpenError::Locked)?;
    let head = Head::read(disk);
    // First what is known to be durable, and then the rest of the log: what this version can't read
    // is refused before anything is written.
    if head.is_some() {
        reading::advance(inner, reading, head)?;
    }
    // What is read can be seen: it has to be durable, and whoever comes after a kill in the middle
    // of this has to see it, too.
    if let Some(durable) = wal::secure(disk, head.map(|head| head.durable))? {
        let head = Head { durable, ..head.unwrap_or_default() };
        head.write(&*Head::file(disk)?).or_else(unless_full)?;
    }
    reading::advance(inner, reading, None)?;
    inner.abandon();
    let incomplete = inner.forget_incomplete();
    inner.registry_mut().forget_unused_tables();
    let deleted = inner.unlogged_deletions();
    if let Some(reading) = reading {
        wal::cut(disk, reading.place)?;
    }
    let segment = wal::segments(disk)?.last().map_or(0, |last| last + 1);
    let wal = Wal::begin(Arc::clone(&inner.disk), segment)?;
    let is_new = reading.is_none();
    let has_news = reading.is_some_and(|reading| reading.place > Place::start(reading.catalog));
    let reading = reading.get_or_insert(Reading { place: wal.place(), catalog: segment });
    // The catalog has the format. A version that raises it writes a whole checkpoint here, also if
    // there is a catalog: before the first record of a new kind can be in the log.
    if is_new {
        Checkpoint::capture(inner, segment).write_catalog(inner)?;
    }
    reading.place = wal.place();
    // A crash before their deletion is in the log would bring them back, and they would need their files.
    checkpoint::remove_orphans(inner, &deleted)?;
    inner.follow_all();
    let queue = Arc::new(Queue::default());
    for id in deleted.into_iter().chain(incomplete) {
        let record = Record::Note(Note::Delete { id }, Bytes::new());
        queue.push(Job { record, done: None, checkpoint: false });
    }
    let (head_file, catalog) = (Head::file(disk)?, reading.catalog);
    let mut writer = Writer {
        inner: Arc::clone(inner),
        queue: Arc::clone(&queue),
        wal,
        head_file,
        catalog,
        checkpoint: None,
    };
    writer.tell_head()?;
    let run = move || writer.run(has_news);
    let thread = thread::Builder::new().name("forebay-store".into()).spawn(run)?;
    *inner.queue.write().unwrap_or_else(PoisonError::into_inner) = queue;
    *mode = Mode::Writing { thread, _lock: right };
    *inner.turn.write().unwrap_or_else(PoisonError::into_inner) += 1;
    inner.is_writing.store(true, Ordering::Release);
    Ok(())
}

/// Ends the writer, once it has written everything, and gives the lock back.
pub(crate) fn end(inner: &Arc<StoreInner>) {
    let mut mode = lock(&inner.mode);
    {
        let _nobody_writes = inner.turn.write().unwrap_or_else(PoisonError::into_inner);
        inner.is_writing.store(false, Ordering::Release);
    }
    inner.queue().close();
    *mode = match mem::take(&mut *mode) {
        Mode::Writing { thread, _lock } => match thread.join() {
            Ok(Some(reading)) => Mode::Reading(Some(reading)),
            Ok(None) | Err(_) => Mode::Failed,
        },
        other => other,
    };
    // They never will be complete, and their numbers may be another writer's.
    inner.forget_incomplete();
}

struct Writer {
    inner: Arc<StoreInner>,
    queue: Arc<Queue>,
    wal: Wal,
    head_file: Arc<dyn DiskFile>,
    /// The first segment that the catalog doesn't cover.
    catalog: u64,
    checkpoint: Option<(u64, JoinHandle<io::Result<()>>)>,
}

impl Writer {
    /// Begins with a checkpoint, if it is worth it. Returns where it ended, unless it failed.
    fn run(mut self, with_checkpoint: bool) -> Option<Reading> {
        let alarm = Alarm { inner: Arc::clone(&self.inner), queue: Arc::clone(&self.queue) };
        let mut done = if with_checkpoint { self.spawn_checkpoint().map(|()| true) } else { Ok(true) };
        let mut patience = Duration::ZERO;
        while let Ok(true) = done
            && let Some(jobs) = self.queue.take(patience)
        {
            let is_crowd = jobs.iter().filter(|job| job.done.is_some()).count() > 1;
            patience = if is_crowd { PATIENCE } else { Duration::ZERO };
            done = self.write(jobs);
        }
        let last = self.end_checkpoint(true);
        let ended = done.and(last);
        if let Err(error) = &ended {
            self.inner.fail(&error.to_string());
        }
        drop(alarm);
        ended.ok().map(|()| Reading { place: self.wal.place(), catalog: self.catalog })
    }

    /// `false`: there was no room, and it is closed.
    fn write(&mut self, jobs: Vec<Job>) -> io::Result<bool> {
        let mut heads = Vec::new();
        let mut frames = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let from = heads.len();
            let text = record::frame(&job.record, &mut heads);
            frames.push((from, heads.len(), text));
        }
        let parts = frames.iter().flat_map(|(from, to, text)| [&heads[*from..*to], &text[..]]);
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect();
        if !when_there_is_room(&self.inner, &self.queue, || self.wal.append(&parts))? {
            // Nobody was told that it is durable, and it comes again.
            return Ok(false);
        }
        self.wal.sync()?;
        self.tell_head()?;
        let wants_checkpoint = jobs.iter().any(|job| job.checkpoint);
        let mut done = Vec::new();
        for job in jobs {
            self.inner.apply(&job.record);
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
            // Whoever asked may have gone.
            let _told = done.send(());
        }
        self.make_room()?;
        Ok(true)
    }

    /// In memory, and in the log.
    fn make_room(&mut self) -> io::Result<()> {
        if self.inner.files.unwritten() > self.inner.config.unwritten_bytes {
            let relieve = || checkpoint::relieve(&self.inner, true);
            let _has_room = when_there_is_room(&self.inner, &self.queue, relieve)?;
        }
        self.end_checkpoint(false)?;
        if self.wal.place().at > self.inner.config.wal_bytes {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    /// Not having told is no loss: readers come later.
    fn tell_head(&mut self) -> io::Result<()> {
        let head = Head { durable: self.wal.place(), catalog: self.catalog };
        head.write(&*self.head_file).or_else(unless_full)
    }

    fn begin_checkpoint(&mut self) -> io::Result<()> {
        // The parts of a transaction stay in one segment with its commit.
        if self.inner.is_inside() || self.checkpoint.is_some() {
            return Ok(());
        }
        let before = self.wal.place();
        self.wal.rotate().or_else(unless_full)?;
        if self.wal.place().segment == before.segment {
            return Ok(());
        }
        self.spawn_checkpoint()?;
        self.tell_head()
    }

    /// Of everything before the segment, in which nothing is.
    fn spawn_checkpoint(&mut self) -> io::Result<()> {
        let segment = self.wal.place().segment;
        let checkpoint = Checkpoint::capture(&self.inner, segment);
        let inner = Arc::clone(&self.inner);
        let write = move || checkpoint.write(&inner);
        let thread = thread::Builder::new().name("forebay-checkpoint".into()).spawn(write)?;
        self.checkpoint = Some((segment, thread));
        self.end_checkpoint(self.inner.config.waits_for_checkpoints)
    }

    /// Takes note of a checkpoint that is done; waits for it if told to.
    fn end_checkpoint(&mut self, wait: bool) -> io::Result<()> {
        let ended = self.checkpoint.take_if(|(_, thread)| wait || thread.is_finished());
        let Some((segment, thread)) = ended else { return Ok(()) };
        match thread.join() {
            Ok(Ok(())) => self.catalog = segment,
            // Without room the log only grows; the next one may have some.
            Ok(Err(error)) => unless_full(error)?,
            Err(_) => return Err(io::Error::other("a checkpoint panicked")),
        }
        self.tell_head()?;
        // After the end nothing can be deleted.
        if let Some(limit) =
            self.inner.config.max_bytes.filter(|_| self.inner.is_writing.load(Ordering::Acquire))
        {
            self.inner.evict_bytes(limit);
        }
        Ok(())
    }
}

impl Drop for Writer {
    /// After it, another may write: a checkpoint that is under way has to end first.
    fn drop(&mut self) {
        if let Some((_, thread)) = self.checkpoint.take() {
            let _ended = thread.join();
        }
    }
}

/// Tries until the disk isn't full; `false`: it is closed before that.
fn when_there_is_room(
    inner: &StoreInner,
    queue: &Queue,
    mut attempt: impl FnMut() -> io::Result<()>,
) -> io::Result<bool> {
    loop {
        match attempt() {
            Ok(()) => {
                inner.is_full.store(false, Ordering::Relaxed);
                return Ok(true);
            }
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                if !inner.is_full.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "the disk is full: nothing is taken from the database until there is room"
                    );
                }
                if queue.pause(FULL_PAUSE) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn unless_full(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::StorageFull { Ok(()) } else { Err(error) }
}

/// However the writer ends: nobody waits for it any longer.
struct Alarm {
    inner: Arc<StoreInner>,
    queue: Arc<Queue>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.inner.fail("its writer panicked");
        }
        self.queue.abandon();
    }
}
