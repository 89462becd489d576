//! Writer role: whether this process writes to the storage directory, and its queue.
//!
//! Invariant: outside the writer thread, files are written only under a guard of the writer turn
//! ([`WriterRole::turn`]). The end of writing waits for all guards.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{MutexGuard, RwLock, RwLockReadGuard};
use tokio::sync::oneshot;

use super::record::Record;
use super::wal::WalPosition;
use super::write_queue::{AfterWrite, WriteJob, WriteQueue};
use crate::lock_order::{LockRank, RankedGuard, RankedMutex, RankedRwLock};

/// Role of this process for the storage directory.
#[derive(Debug)]
pub(crate) struct WriterRole {
    mode: RankedMutex<StoreMode>,
    is_writing: AtomicBool,
    /// Writer turn: how many times this process has begun to write.
    turn: RankedRwLock<u64>,
    /// Queue of the writer thread. Closed while this process doesn't write.
    queue: RwLock<Arc<WriteQueue>>,
}

/// What this process does with the storage directory.
pub(crate) enum StoreMode {
    /// It follows another writer. `None` until a catalog was read.
    Reading(Option<ReplayPosition>),
    /// The writer thread runs, and this process holds the lock of the directory.
    Writing { thread: JoinHandle<Option<ReplayPosition>>, _lock: Box<dyn Any + Send> },
    /// A write failed. The state of the disk is unknown.
    Failed,
}

/// How far a process has replayed the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplayPosition {
    /// End of the applied records.
    pub(crate) position: WalPosition,
    /// First segment that the last catalog doesn't cover. Messages before it are in the shapes'
    /// files.
    pub(crate) catalog: u64,
}

/// Guard of a writer turn. While it is held, this process may write files.
pub(crate) type TurnGuard<'a> = RankedGuard<RwLockReadGuard<'a, u64>>;

impl WriterRole {
    /// Locks the mode. Held during a whole replay, and while writing begins or ends.
    pub(crate) fn mode(&self) -> RankedGuard<MutexGuard<'_, StoreMode>> {
        self.mode.lock()
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::Acquire)
    }

    /// Returns a guard of the current writer turn; `None`: this process doesn't write.
    pub(crate) fn turn(&self) -> Option<TurnGuard<'_>> {
        let turn = self.turn.read();
        self.is_writing().then_some(turn)
    }

    /// Begins a writer turn. From now on, records are queued for the writer thread of `queue`.
    pub(crate) fn begin_turn(&self, queue: Arc<WriteQueue>) {
        *self.queue.write() = queue;
        *self.turn.write() += 1;
        self.is_writing.store(true, Ordering::Release);
    }

    /// Ends the writer turn, after all its guards are dropped. Closes the queue.
    pub(crate) fn end_turn(&self) {
        {
            let _no_guards = self.turn.write();
            self.is_writing.store(false, Ordering::Release);
        }
        self.queue().close();
    }

    pub(crate) fn queue(&self) -> Arc<WriteQueue> {
        Arc::clone(&self.queue.read())
    }

    /// Queues a record for the writer thread. Drops it if this process doesn't write.
    pub(crate) fn enqueue(&self, record: Record) {
        self.queue().push(WriteJob { record, done: None, after: AfterWrite::Nothing });
    }

    /// Queues a record. The receiver completes when the record is durable and `after` is done.
    pub(crate) fn submit(&self, record: Record, after: AfterWrite) -> oneshot::Receiver<()> {
        let (done, durable) = oneshot::channel();
        self.queue().push(WriteJob { record, done: Some(done), after });
        durable
    }
}

impl Default for WriterRole {
    fn default() -> Self {
        WriterRole {
            mode: RankedMutex::new(LockRank::Mode, StoreMode::default()),
            is_writing: AtomicBool::new(false),
            turn: RankedRwLock::new(LockRank::Turn, 0),
            queue: RwLock::new(Arc::new(WriteQueue::new_closed())),
        }
    }
}

impl Default for StoreMode {
    fn default() -> Self {
        StoreMode::Reading(None)
    }
}

impl std::fmt::Debug for StoreMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StoreMode::Reading(_) => "Reading",
            StoreMode::Writing { .. } => "Writing",
            StoreMode::Failed => "Failed",
        })
    }
}
