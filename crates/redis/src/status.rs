//! Status of a connection, for watchers and metrics.
//!
//! Bounds: the journal keeps the last 64 changes. A watcher that falls further behind misses the
//! oldest ones, but never the newest.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_core::Stream;
use parking_lot::Mutex;

use crate::core::link::State;
use crate::error::ConnectionLoss;

/// Status of a client's connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// The state.
    pub state: State,
    /// Number of the link: 1 after the first connect, one more each time a closed client connects
    /// again.
    pub generation: u64,
    /// Attempts since the connection was last open.
    pub reconnects: u32,
    /// What most recently ended the connection or an attempt. Kept after a reconnection.
    pub last_error: Option<ConnectionLoss>,
    /// In [`State::Failed`]: when the next attempt starts.
    pub retry_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct StatusJournal(Mutex<JournalEntries>);

#[derive(Debug)]
struct JournalEntries {
    changes: VecDeque<Status>,
    /// Number of the oldest kept entry.
    first: u64,
    /// Wakers of waiting watchers, by watcher number.
    wakers: HashMap<u64, Waker>,
    watchers: u64,
}

const KEPT_CHANGES: usize = 64;

impl StatusJournal {
    pub(crate) fn new() -> Self {
        let initial =
            Status { state: State::Init, generation: 0, reconnects: 0, last_error: None, retry_at: None };
        StatusJournal(Mutex::new(JournalEntries {
            changes: VecDeque::from([initial]),
            first: 0,
            wakers: HashMap::new(),
            watchers: 0,
        }))
    }

    pub(crate) fn current(&self) -> Status {
        self.0.lock().changes.back().expect("the journal is never empty").clone()
    }

    /// Records a change and wakes the watchers.
    pub(crate) fn record(&self, status: Status) {
        self.append(status).notify();
    }

    /// Records a change. The watchers are woken by [`RecordedChange::notify`], which the calling
    /// function calls without a lock.
    pub(crate) fn append(&self, status: Status) -> RecordedChange {
        let mut entries = self.0.lock();
        let mut oldest = None;
        if entries.changes.len() == KEPT_CHANGES {
            oldest = entries.changes.pop_front();
            entries.first += 1;
        }
        entries.changes.push_back(status);
        RecordedChange { wakers: std::mem::take(&mut entries.wakers), _oldest: oldest }
    }

    /// Returns a stream that starts with the current status.
    pub(crate) fn follow(self: &Arc<Self>) -> StatusStream {
        let mut entries = self.0.lock();
        entries.watchers += 1;
        let next = entries.first + entries.changes.len() as u64 - 1;
        StatusStream { journal: self.clone(), watcher: entries.watchers, next }
    }
}

/// A recorded change whose watchers are not woken yet.
#[must_use]
pub(crate) struct RecordedChange {
    wakers: HashMap<u64, Waker>,
    /// The entry that this change replaced. Dropped here, because its error may hold one of the
    /// caller's TLS verifier.
    _oldest: Option<Status>,
}

impl RecordedChange {
    pub(crate) fn notify(self) {
        self.wakers.into_values().for_each(Waker::wake);
    }
}

/// Stream of a connection's status: the current one, then each change. Never ends, because a closed
/// client can connect again.
#[derive(Debug)]
pub struct StatusStream {
    journal: Arc<StatusJournal>,
    watcher: u64,
    next: u64,
}

impl StatusStream {
    /// Waits for the next change.
    pub async fn next(&mut self) -> Status {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits until the connection is in `state` and returns that status.
    pub async fn wait_for(&mut self, state: State) -> Status {
        loop {
            let status = self.next().await;
            if status.state == state {
                return status;
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        // Cloned before the lock, and dropped after it, because both may run arbitrary code.
        let waker = cx.waker().clone();
        let _previous;
        let mut entries = self.journal.0.lock();
        self.next = self.next.max(entries.first);
        let index = (self.next - entries.first) as usize;
        if let Some(status) = entries.changes.get(index) {
            self.next += 1;
            return Poll::Ready(status.clone());
        }
        _previous = entries.wakers.insert(self.watcher, waker);
        Poll::Pending
    }
}

impl Drop for StatusStream {
    fn drop(&mut self) {
        let _dropped_after_the_lock = self.journal.0.lock().wakers.remove(&self.watcher);
    }
}

impl Stream for StatusStream {
    type Item = Status;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        self.get_mut().poll(cx).map(Some)
    }
}

/// Counters since the client was created, over all its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientStats {
    /// Requests taken by the worker.
    pub requests: u64,
    /// Requests whose replies arrived, including abandoned requests.
    pub replies: u64,
    /// Push messages received.
    pub pushes: u64,
    /// Requests that missed their deadline.
    pub deadlines: u64,
    /// Requests that failed because the connection was lost or closed.
    pub failures: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Connections opened.
    pub connections: u64,
    /// Open requests.
    pub open_requests: usize,
}

/// The counters behind [`ClientStats`]. Only the worker updates them, once for each batch.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub(crate) requests: WorkerCounter,
    pub(crate) replies: WorkerCounter,
    pub(crate) pushes: WorkerCounter,
    pub(crate) deadlines: WorkerCounter,
    pub(crate) failures: WorkerCounter,
    pub(crate) bytes_sent: WorkerCounter,
    pub(crate) bytes_received: WorkerCounter,
    pub(crate) connections: WorkerCounter,
}

#[derive(Debug, Default)]
pub(crate) struct WorkerCounter(std::sync::atomic::AtomicU64);

impl WorkerCounter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl WorkerCounters {
    pub(crate) fn stats(&self, open_requests: usize) -> ClientStats {
        ClientStats {
            requests: self.requests.get(),
            replies: self.replies.get(),
            pushes: self.pushes.get(),
            deadlines: self.deadlines.get(),
            failures: self.failures.get(),
            bytes_sent: self.bytes_sent.get(),
            bytes_received: self.bytes_received.get(),
            connections: self.connections.get(),
            open_requests,
        }
    }
}
