//! Writer thread: appends records to the WAL, syncs, applies and acknowledges them.
//!
//! Invariant: each record is synced, then applied, then acknowledged, in the order of the WAL.
//! Enforced by: a single thread does all of it.
//! A checkpoint removes old WAL segments. It runs in its own thread while the writer continues in
//! the next segment.
//! Lock order: `mode`, then `turn`; `mode` is held during the whole start and end of the writer.

use std::any::Any;
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use super::OpenError;
use super::checkpoint::{self, StoreCheckpoint};
use super::disk::DiskFile;
use super::frame;
use super::record::{Note, Record};
use super::replay::{self, ReplayPosition};
use super::shape_files;
use super::wal::{self, WalPosition, WalWriter};
use super::write_queue::{WriteJob, WriteQueue};
use super::writer_head::WriterHead;
use crate::registry::{StoreInner, lock};

/// Role of this process for the storage directory.
pub(crate) enum StoreMode {
    /// It follows another writer. `None` until a catalog was read.
    Reading(Option<ReplayPosition>),
    /// The writer thread runs, and this process holds the lock of the directory.
    Writing { thread: JoinHandle<Option<ReplayPosition>>, _lock: Box<dyn Any + Send> },
    /// A write failed. The state of the disk is unknown.
    Failed,
}

impl Default for StoreMode {
    fn default() -> Self {
        StoreMode::Reading(None)
    }
}

/// Interval between attempts to write to a full disk.
const DISK_FULL_RETRY: Duration = if cfg!(test) { Duration::from_millis(2) } else { Duration::from_secs(1) };

/// Maximum time that a batch waits for more shape creations, so that one sync serves all of them.
/// The sync takes most of the time of a creation. Applies only if the last batch had several
/// waiters. A batch with changes of a transaction never waits.
const BATCH_WINDOW: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(5) };

/// Locks the directory, recovers the WAL, and starts the writer thread. Does nothing if this
/// process writes already.
///
/// Fails before it changes a file if this version can't read the directory.
pub(crate) fn begin(inner: &Arc<StoreInner>) -> Result<(), OpenError> {
    let mut mode = lock(&inner.mode);
    if let Some(failure) = lock(&inner.failure).clone() {
        return Err(failure.into());
    }
    let StoreMode::Reading(replayed) = &mut *mode else { return Ok(()) };
    let disk = &*inner.disk;
    disk.make_dir(wal::DIR)?;
    disk.make_dir(shape_files::DIR)?;
    disk.sync_dir("")?;
    let directory_lock = disk.try_lock()?.ok_or(OpenError::Locked)?;
    let head = WriterHead::read(disk);
    // Apply the durable records, then read the catalog and the rest of the WAL: what this version
    // can't decode is refused before anything is written.
    if head.is_some() {
        replay::advance(inner, replayed, head)?;
    }
    // The last writer may have been killed after it wrote a new catalog and before it wrote the
    // head.
    replay::load_catalog(inner, replayed)?;
    // Applied records are visible, so they must be durable. If this process is killed during
    // recovery, its successor must see them, too.
    if let Some(durable) = wal::rewrite_unsynced(disk, head.map(|head| head.durable))? {
        let head = WriterHead { durable, ..head.unwrap_or_default() };
        head.write(&*WriterHead::open_or_create(disk)?).or_else(ignore_full)?;
    }
    replay::advance(inner, replayed, None)?;
    inner.abandon_staged();
    let incomplete = inner.forget_incomplete();
    inner.registry_mut().forget_unused_tables();
    let deleted = inner.unlogged_deletions();
    if let Some(replayed) = replayed {
        wal::truncate_after(disk, replayed.position)?;
    }
    let segment = wal::segments(disk)?.last().map_or(0, |last| last + 1);
    let wal = WalWriter::create(Arc::clone(&inner.disk), segment)?;
    let is_new = replayed.is_none();
    let has_records =
        replayed.is_some_and(|replayed| replayed.position > WalPosition::start(replayed.catalog));
    let replayed = replayed.get_or_insert(ReplayPosition { position: wal.position(), catalog: segment });
    // The catalog states the format of the directory. A version that raises the format must write
    // a whole checkpoint here, even if there is a catalog. Otherwise the WAL could get a record of
    // a new kind under the old format.
    if is_new {
        StoreCheckpoint::capture(inner, segment).write_catalog(inner)?;
    }
    replayed.position = wal.position();
    // The files of deleted shapes stay until their deletion is in the WAL. A crash before that
    // brings the shapes back.
    checkpoint::remove_orphans(inner, &deleted)?;
    inner.follow_all();
    let queue = Arc::new(WriteQueue::default());
    for id in deleted.into_iter().chain(incomplete) {
        let record = Record::Note(Note::Delete { id }, Bytes::new());
        queue.push(WriteJob { record, done: None, checkpoint: false });
    }
    let (head_file, catalog_segment) = (WriterHead::open_or_create(disk)?, replayed.catalog);
    let mut writer = StoreWriter {
        inner: Arc::clone(inner),
        queue: Arc::clone(&queue),
        wal,
        head_file,
        catalog_segment,
        checkpoint: None,
    };
    writer.write_head()?;
    let run = move || writer.run(has_records);
    let thread = thread::Builder::new().name("forebay-store".into()).spawn(run)?;
    *inner.queue.write().unwrap_or_else(PoisonError::into_inner) = queue;
    *mode = StoreMode::Writing { thread, _lock: directory_lock };
    *inner.turn.write().unwrap_or_else(PoisonError::into_inner) += 1;
    inner.is_writing.store(true, Ordering::Release);
    Ok(())
}

/// Stops the writer thread after it has written all queued records, and unlocks the directory. On a
/// full disk the queued records are dropped.
pub(crate) fn end(inner: &Arc<StoreInner>) {
    let mut mode = lock(&inner.mode);
    {
        let _no_writes = inner.turn.write().unwrap_or_else(PoisonError::into_inner);
        inner.is_writing.store(false, Ordering::Release);
    }
    inner.queue().close();
    *mode = match mem::take(&mut *mode) {
        StoreMode::Writing { thread, _lock } => match thread.join() {
            Ok(Some(replayed)) => StoreMode::Reading(Some(replayed)),
            Ok(None) | Err(_) => StoreMode::Failed,
        },
        other => other,
    };
    // These snapshots can't be completed any more, and another writer may use the same ids.
    inner.forget_incomplete();
}

/// State of the writer thread.
struct StoreWriter {
    inner: Arc<StoreInner>,
    queue: Arc<WriteQueue>,
    wal: WalWriter,
    head_file: Arc<dyn DiskFile>,
    /// First WAL segment that the catalog doesn't cover.
    catalog_segment: u64,
    /// The running checkpoint: the first segment that it doesn't cover, and its thread.
    checkpoint: Option<(u64, JoinHandle<io::Result<()>>)>,
}

impl StoreWriter {
    /// Writes batches until the queue is closed; first starts a checkpoint if `with_checkpoint`.
    /// Returns the position where it ended, or `None` if it failed.
    fn run(mut self, with_checkpoint: bool) -> Option<ReplayPosition> {
        let exit_guard = WriterExitGuard { inner: Arc::clone(&self.inner), queue: Arc::clone(&self.queue) };
        let mut done = if with_checkpoint { self.spawn_checkpoint().map(|()| true) } else { Ok(true) };
        let mut batch_window = Duration::ZERO;
        while let Ok(true) = done
            && let Some(jobs) = self.queue.take_batch(batch_window)
        {
            let has_several_waiters = jobs.iter().filter(|job| job.done.is_some()).count() > 1;
            batch_window = if has_several_waiters { BATCH_WINDOW } else { Duration::ZERO };
            done = self.write(jobs);
        }
        let last = self.end_checkpoint(true);
        let ended = done.and(last);
        if let Err(error) = &ended {
            self.inner.fail(&error.to_string());
        }
        drop(exit_guard);
        ended.ok().map(|()| ReplayPosition { position: self.wal.position(), catalog: self.catalog_segment })
    }

    /// Writes a batch. Returns `false` if the queue was closed while the disk was full.
    fn write(&mut self, jobs: Vec<WriteJob>) -> io::Result<bool> {
        let mut frame_bytes = Vec::new();
        let mut frames = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let from = frame_bytes.len();
            let text = frame::write_frame(&job.record, &mut frame_bytes);
            frames.push((from, frame_bytes.len(), text));
        }
        let parts = frames.iter().flat_map(|(from, to, text)| [&frame_bytes[*from..*to], &text[..]]);
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect();
        if !retry_while_full(&self.inner, &self.queue, || self.wal.append(&parts))? {
            // The batch was not acknowledged, so Postgres sends its changes again.
            return Ok(false);
        }
        self.wal.sync()?;
        self.write_head()?;
        let needs_checkpoint = jobs.iter().any(|job| job.checkpoint);
        let mut done = Vec::new();
        for job in jobs {
            self.inner.apply(&job.record);
            done.extend(job.done);
        }
        if let Some(on_durable) = &*lock(&self.inner.on_durable) {
            on_durable(self.inner.durable.load(Ordering::Acquire));
        }
        if needs_checkpoint {
            self.end_checkpoint(true)?;
            self.begin_checkpoint()?;
            self.end_checkpoint(true)?;
        }
        for done in done {
            // The receiver may have been dropped.
            let _sent = done.send(());
        }
        self.free_memory_and_wal()?;
        Ok(true)
    }

    /// Writes messages to the shapes' files, and starts a checkpoint, if either is due.
    fn free_memory_and_wal(&mut self) -> io::Result<()> {
        if self.inner.files.unwritten() > self.inner.config.unwritten_bytes {
            let free_memory = || checkpoint::free_memory(&self.inner, true);
            let _has_room = retry_while_full(&self.inner, &self.queue, free_memory)?;
        }
        self.end_checkpoint(false)?;
        if self.wal.position().at > self.inner.config.wal_bytes {
            self.begin_checkpoint()?;
        }
        Ok(())
    }

    /// Writes the head file. A full disk is ignored: readers then see the records later.
    fn write_head(&mut self) -> io::Result<()> {
        let head = WriterHead { durable: self.wal.position(), catalog: self.catalog_segment };
        head.write(&*self.head_file).or_else(ignore_full)
    }

    /// Continues in a new segment and starts a checkpoint. Does nothing if a checkpoint runs, a
    /// transaction is open, or the disk is full.
    fn begin_checkpoint(&mut self) -> io::Result<()> {
        // All parts of a transaction are in the same segment as its commit.
        if self.inner.is_inside_transaction() || self.checkpoint.is_some() {
            return Ok(());
        }
        let before = self.wal.position();
        self.wal.rotate().or_else(ignore_full)?;
        if self.wal.position().segment == before.segment {
            return Ok(());
        }
        self.spawn_checkpoint()?;
        self.write_head()
    }

    /// Starts a checkpoint of all records before the current segment, which must be empty.
    fn spawn_checkpoint(&mut self) -> io::Result<()> {
        let segment = self.wal.position().segment;
        let checkpoint = StoreCheckpoint::capture(&self.inner, segment);
        let inner = Arc::clone(&self.inner);
        let write = move || checkpoint.write(&inner);
        let thread = thread::Builder::new().name("forebay-checkpoint".into()).spawn(write)?;
        self.checkpoint = Some((segment, thread));
        self.end_checkpoint(self.inner.config.waits_for_checkpoints)
    }

    /// Collects the result of a finished checkpoint, and deletes shapes beyond `max_bytes`. Waits
    /// for a running checkpoint if `wait`.
    fn end_checkpoint(&mut self, wait: bool) -> io::Result<()> {
        let ended = self.checkpoint.take_if(|(_, thread)| wait || thread.is_finished());
        let Some((segment, thread)) = ended else { return Ok(()) };
        match thread.join() {
            Ok(Ok(())) => self.catalog_segment = segment,
            // On a full disk the WAL keeps its segments until a later checkpoint succeeds.
            Ok(Err(error)) => ignore_full(error)?,
            Err(_) => return Err(io::Error::other("a checkpoint panicked")),
        }
        self.write_head()?;
        // Shapes can't be deleted after the writer has ended.
        if let Some(limit) =
            self.inner.config.max_bytes.filter(|_| self.inner.is_writing.load(Ordering::Acquire))
        {
            self.inner.evict_bytes(limit);
        }
        Ok(())
    }
}

impl Drop for StoreWriter {
    /// Waits for a running checkpoint, because another process may write afterwards.
    fn drop(&mut self) {
        if let Some((_, thread)) = self.checkpoint.take() {
            let _ended = thread.join();
        }
    }
}

/// Repeats `attempt` while the disk is full. Returns `false` if the queue is closed before an
/// attempt succeeds.
fn retry_while_full(
    inner: &StoreInner,
    queue: &WriteQueue,
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
                    tracing::error!("disk full: replication paused");
                }
                if queue.wait_closed(DISK_FULL_RETRY) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Turns the error of a full disk into success.
fn ignore_full(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::StorageFull { Ok(()) } else { Err(error) }
}

/// Abandons the queue when the writer thread ends, even by a panic, so that no waiter hangs.
struct WriterExitGuard {
    inner: Arc<StoreInner>,
    queue: Arc<WriteQueue>,
}

impl Drop for WriterExitGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.inner.fail("its writer panicked");
        }
        self.queue.abandon();
    }
}
