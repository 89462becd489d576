//! Writer thread: appends records to the WAL, syncs, applies and acknowledges them.
//!
//! Invariant: each record is synced, then applied, then acknowledged, in the order of the WAL.
//! Enforced by: a single thread does all of it.
//! A checkpoint removes old WAL segments. It runs in its own thread while the writer continues in
//! the next segment.
//! The lock of the mode is held during the whole start and end of the writer.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::mem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use super::apply::{self, VisibleChanges};
use super::checkpoint::{self, StoreCheckpoint};
use super::{ShapeEngine, replay};
use crate::store::catalog::{self, StoreCatalog};
use crate::store::disk::{self, Disk, DiskFile};
use crate::store::record::{Note, Record};
use crate::store::wal::{self, WalPosition, WalWriter};
use crate::store::write_queue::{AfterWrite, WriteJob, WriteQueue};
use crate::store::writer_head::WriterHead;
use crate::store::writer_role::{ReplayPosition, StoreMode};
use crate::store::{OpenError, frame, shape_files};

/// Interval between attempts to write to a full disk.
const DISK_FULL_RETRY: Duration = if cfg!(test) { Duration::from_millis(2) } else { Duration::from_secs(1) };

/// Maximum time that a batch waits for more shape creations, so that one sync serves all of them.
/// The sync takes most of the time of a creation. Applies only if the last batch had several
/// waiters. A batch with changes of a transaction never waits.
const BATCH_WINDOW: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(5) };

/// Locks the directory, recovers the WAL, and starts the writer thread. Does nothing if this
/// process writes already.
///
/// Returns the shapes that the caller must delete: see [`ShapeEngine::follow_all`].
///
/// Fails before it changes a file if this version can't read the directory.
pub(crate) fn begin(engine: &Arc<ShapeEngine>) -> Result<Vec<u64>, OpenError> {
    let store = &engine.store;
    let mut mode = store.role.mode();
    if let Some(failure) = store.health.failure() {
        return Err(failure.into());
    }
    let StoreMode::Reading(replayed) = &mut *mode else { return Ok(Vec::new()) };
    let disk = &*store.disk;
    disk.make_dir(wal::DIR)?;
    disk.make_dir(shape_files::DIR)?;
    disk.sync_dir("")?;
    let directory_lock = disk.try_lock()?.ok_or(OpenError::Locked)?;
    recover(engine, replayed)?;
    let incomplete = engine.forget_incomplete();
    engine.registry.write().forget_unused_tables();
    let deleted = unlogged_deletions(engine);
    {
        // A shape without a snapshot is never continued, and transactions after the start of its
        // hold may be acknowledged by now.
        let index = engine.registry.read();
        store.progress.retain_holds(|id| index.by_id(id).is_some() || deleted.contains(&id));
    }
    if let Some(replayed) = replayed {
        wal::truncate_after(disk, replayed.position)?;
    }
    let segment = wal::segments(disk)?.last().map_or(0, |last| last + 1);
    let wal = WalWriter::create(Arc::clone(&store.disk), segment)?;
    let is_new = replayed.is_none();
    let has_records =
        replayed.is_some_and(|replayed| replayed.position > WalPosition::start(replayed.catalog));
    let replayed = replayed.get_or_insert(ReplayPosition { position: wal.position(), catalog: segment });
    if is_new {
        StoreCheckpoint::capture(engine, segment).write_catalog(engine)?;
    } else {
        raise_format(disk)?;
    }
    replayed.position = wal.position();
    // The files of deleted shapes stay until their deletion is in the WAL. A crash before that
    // brings the shapes back.
    checkpoint::remove_orphans(engine, &deleted)?;
    let inexact = engine.follow_all();
    let queue = Arc::new(WriteQueue::default());
    for id in deleted.into_iter().chain(incomplete) {
        let record = Record::Note(Note::Delete { id }, Bytes::new());
        queue.push(WriteJob { record, done: None, after: AfterWrite::Nothing });
    }
    let (head_file, catalog_segment) = (WriterHead::open_or_create(disk)?, replayed.catalog);
    let mut writer = StoreWriter {
        engine: Arc::clone(engine),
        queue: Arc::clone(&queue),
        wal,
        head_file,
        catalog_segment,
        checkpoint: None,
        visible: VisibleChanges::default(),
    };
    writer.write_head()?;
    let run = move || writer.run(has_records);
    let thread = thread::Builder::new().name("forebay-store".into()).spawn(run)?;
    *mode = StoreMode::Writing { thread, _lock: directory_lock };
    store.role.begin_turn(queue);
    Ok(inexact)
}

/// Rewrites a catalog of an older format in this version's. The catalog states the format of the
/// directory, and the WAL must not get a record of a new kind under an older one.
///
/// The catalog covers the same segments as before, so no message is written, and a nearly full disk
/// suffices.
pub(crate) fn raise_format(disk: &dyn Disk) -> Result<(), OpenError> {
    if StoreCatalog::read_format(disk)?.is_some_and(|format| format < catalog::FORMAT)
        && let Some(catalog) = StoreCatalog::read(disk)?
    {
        catalog.write(disk)?;
    }
    Ok(())
}

/// Applies all records of the WAL. What this version can't decode is refused before anything is
/// written.
fn recover(engine: &ShapeEngine, replayed: &mut Option<ReplayPosition>) -> Result<(), OpenError> {
    let disk = &*engine.store.disk;
    let head = WriterHead::read(disk);
    // The durable records first, then the catalog and the rest of the WAL.
    if head.is_some() {
        replay::advance(engine, replayed, head)?;
    }
    // The last writer may have been killed after it wrote a new catalog and before it wrote the
    // head.
    replay::load_catalog(engine, replayed)?;
    // Applied records are visible, so they must be durable. If this process is killed during
    // recovery, its successor must see them, too.
    if let Some(durable) = wal::rewrite_unsynced(disk, head.map(|head| head.durable))? {
        let head = WriterHead { durable, ..head.unwrap_or_default() };
        head.write(&*WriterHead::open_or_create(disk)?).or_else(ignore_full)?;
    }
    replay::advance(engine, replayed, None)?;
    apply::abandon_staged(engine);
    Ok(())
}

/// Returns the ids of shapes whose deletion isn't in the WAL: the disk was full, or writing ended.
/// Skips ids that another shape has by now.
fn unlogged_deletions(engine: &ShapeEngine) -> HashSet<u64> {
    let mut deletions = engine.store.unlogged_deletions.lock();
    let index = engine.registry.read();
    deletions.retain(|id| index.by_id(*id).is_none());
    deletions.clone()
}

/// Stops the writer thread after it has written all queued records, and unlocks the directory. On a
/// full disk the queued records are dropped.
pub(crate) fn end(engine: &ShapeEngine) {
    let mut mode = engine.store.role.mode();
    engine.store.role.end_turn();
    *mode = match mem::take(&mut *mode) {
        StoreMode::Writing { thread, _lock } => match thread.join() {
            Ok(Some(replayed)) => StoreMode::Reading(Some(replayed)),
            Ok(None) | Err(_) => StoreMode::Failed,
        },
        other => other,
    };
    // These snapshots can't be completed any more, and another writer may use the same ids.
    engine.forget_incomplete();
}

/// State of the writer thread.
struct StoreWriter {
    engine: Arc<ShapeEngine>,
    queue: Arc<WriteQueue>,
    wal: WalWriter,
    head_file: Arc<dyn DiskFile>,
    /// First WAL segment that the catalog doesn't cover.
    catalog_segment: u64,
    /// The running checkpoint: the first segment that it doesn't cover, and its thread.
    checkpoint: Option<(u64, JoinHandle<io::Result<()>>)>,
    /// What a record made visible. Empty between records; kept for its capacity.
    visible: VisibleChanges,
}

/// Whether an attempt succeeded, or was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    Done,
    /// The queue was closed while the disk was full.
    Closed,
}

/// How to treat a checkpoint that is still running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunningCheckpoint {
    Await,
    LeaveRunning,
}

impl StoreWriter {
    /// Writes batches until the queue is closed; first starts a checkpoint if `with_checkpoint`.
    /// Returns the position where it ended, or `None` if it failed.
    fn run(mut self, with_checkpoint: bool) -> Option<ReplayPosition> {
        let exit_guard = WriterExitGuard { engine: Arc::clone(&self.engine), queue: Arc::clone(&self.queue) };
        let started = if with_checkpoint { self.spawn_checkpoint() } else { Ok(()) };
        let written = started.and_then(|()| self.write_batches());
        let ended = written.and(self.end_checkpoint(RunningCheckpoint::Await));
        if let Err(error) = &ended {
            self.engine.store.health.fail(&error.to_string());
        }
        drop(exit_guard);
        ended.ok().map(|()| ReplayPosition { position: self.wal.position(), catalog: self.catalog_segment })
    }

    fn write_batches(&mut self) -> io::Result<()> {
        let mut batch_window = Duration::ZERO;
        while let Some(jobs) = self.queue.take_batch(batch_window) {
            let has_several_waiters = jobs.iter().filter(|job| job.done.is_some()).count() > 1;
            batch_window = if has_several_waiters { BATCH_WINDOW } else { Duration::ZERO };
            match self.write(jobs)? {
                WriteOutcome::Done => {}
                WriteOutcome::Closed => break,
            }
        }
        Ok(())
    }

    /// Writes a batch, then applies and acknowledges it.
    fn write(&mut self, jobs: Vec<WriteJob>) -> io::Result<WriteOutcome> {
        if self.append(&jobs)? == WriteOutcome::Closed {
            // The batch was not acknowledged, so Postgres sends its changes again.
            return Ok(WriteOutcome::Closed);
        }
        self.wal.sync()?;
        self.write_head()?;
        let needs_checkpoint = jobs.iter().any(|job| job.after == AfterWrite::Checkpoint);
        let mut done = Vec::new();
        for job in jobs {
            apply::apply(&self.engine, &job.record, &mut self.visible);
            self.engine.notify(&mut self.visible);
            done.extend(job.done);
        }
        self.queue.finish_batch();
        self.engine.store.progress.report_durable();
        if needs_checkpoint {
            self.end_checkpoint(RunningCheckpoint::Await)?;
            self.begin_checkpoint()?;
            self.end_checkpoint(RunningCheckpoint::Await)?;
        }
        for done in done {
            // The receiver may have been dropped.
            let _sent = done.send(());
        }
        self.free_memory_and_wal()?;
        Ok(WriteOutcome::Done)
    }

    /// Appends the records of a batch to the WAL.
    fn append(&mut self, jobs: &[WriteJob]) -> io::Result<WriteOutcome> {
        let mut frame_bytes = Vec::new();
        let mut frames = Vec::with_capacity(jobs.len());
        for job in jobs {
            let from = frame_bytes.len();
            let text = frame::write_frame(&job.record, &mut frame_bytes);
            frames.push((from, frame_bytes.len(), text));
        }
        let parts = frames.iter().flat_map(|(from, to, text)| [&frame_bytes[*from..*to], &text[..]]);
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).map(IoSlice::new).collect();
        retry_while_full(&self.engine, &self.queue, || self.wal.append(&parts))
    }

    /// Writes messages to the shapes' files, and starts a checkpoint, if either is due.
    fn free_memory_and_wal(&mut self) -> io::Result<()> {
        if self.engine.store.files.unwritten() > self.engine.store.config.unwritten_bytes {
            let free_memory = || checkpoint::write_and_release(&self.engine);
            let _outcome = retry_while_full(&self.engine, &self.queue, free_memory)?;
        }
        self.end_checkpoint(RunningCheckpoint::LeaveRunning)?;
        if self.wal.position().at > self.engine.store.config.wal_bytes {
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
        if self.engine.store.is_inside_transaction() || self.checkpoint.is_some() {
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
        let checkpoint = StoreCheckpoint::capture(&self.engine, segment);
        let engine = Arc::clone(&self.engine);
        let write = move || checkpoint.write(&engine);
        let thread = thread::Builder::new().name("forebay-checkpoint".into()).spawn(write)?;
        self.checkpoint = Some((segment, thread));
        self.end_checkpoint(match self.engine.store.config.waits_for_checkpoints {
            true => RunningCheckpoint::Await,
            false => RunningCheckpoint::LeaveRunning,
        })
    }

    /// Collects the result of a finished checkpoint, and deletes shapes beyond `max_bytes`.
    fn end_checkpoint(&mut self, running: RunningCheckpoint) -> io::Result<()> {
        let is_awaited = running == RunningCheckpoint::Await;
        let ended = self.checkpoint.take_if(|(_, thread)| is_awaited || thread.is_finished());
        let Some((segment, thread)) = ended else { return Ok(()) };
        match thread.join() {
            Ok(Ok(())) => self.catalog_segment = segment,
            // On a full disk the WAL keeps its segments until a later checkpoint succeeds.
            Ok(Err(error)) => ignore_full(error)?,
            Err(_) => return Err(io::Error::other("a checkpoint panicked")),
        }
        self.write_head()?;
        // Shapes can't be deleted after the writer has ended.
        let limit = self.engine.store.config.max_bytes.filter(|_| self.engine.store.role.is_writing());
        limit.into_iter().for_each(|limit| self.engine.evict_bytes(limit));
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

/// Repeats `attempt` while the disk is full and the queue is open.
fn retry_while_full(
    engine: &ShapeEngine,
    queue: &WriteQueue,
    mut attempt: impl FnMut() -> io::Result<()>,
) -> io::Result<WriteOutcome> {
    loop {
        match attempt() {
            Ok(()) => {
                engine.store.health.mark_not_full();
                return Ok(WriteOutcome::Done);
            }
            Err(error) if disk::is_full(&error) => {
                engine.store.health.mark_full();
                if queue.wait_closed(DISK_FULL_RETRY) {
                    return Ok(WriteOutcome::Closed);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Turns the error of a full disk into success.
fn ignore_full(error: io::Error) -> io::Result<()> {
    if disk::is_full(&error) { Ok(()) } else { Err(error) }
}

/// Abandons the queue when the writer thread ends, even by a panic, so that no waiter hangs.
struct WriterExitGuard {
    engine: Arc<ShapeEngine>,
    queue: Arc<WriteQueue>,
}

impl Drop for WriterExitGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            self.engine.store.health.fail("its writer panicked");
        }
        self.queue.abandon();
    }
}
