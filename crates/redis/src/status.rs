//! What the connection is doing, for whoever wants to watch.
//!
//! Bounds: the journal keeps the last 64 changes. A watcher that falls behind further misses the oldest ones and goes on
//! with those that are kept; the newest is never lost.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_core::Stream;

use crate::core::link::State;
use crate::error::Loss;

/// The state of a client's connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// Where it is.
    pub state: State,
    /// Which link this is: 1 after the first connect, one more each time a closed client connects again.
    pub generation: u64,
    /// Tries since the connection was last open.
    pub reconnects: u32,
    /// What ended the connection, or the last try, most recently; kept after it was mended.
    pub last_error: Option<Loss>,
    /// In [`State::Failed`]: when the next try starts.
    pub retry_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Journal(Mutex<Entries>);

#[derive(Debug)]
struct Entries {
    changes: VecDeque<Status>,
    /// Number of the first entry that is kept.
    first: u64,
    /// Of the watchers that wait, by their number.
    wakers: HashMap<u64, Waker>,
    watchers: u64,
}

const KEPT: usize = 64;

impl Journal {
    pub(crate) fn new() -> Self {
        let initial =
            Status { state: State::Init, generation: 0, reconnects: 0, last_error: None, retry_at: None };
        Journal(Mutex::new(Entries {
            changes: VecDeque::from([initial]),
            first: 0,
            wakers: HashMap::new(),
            watchers: 0,
        }))
    }

    pub(crate) fn current(&self) -> Status {
        self.lock().changes.back().expect("the journal is never empty").clone()
    }

    pub(crate) fn record(&self, status: Status) {
        let mut entries = self.lock();
        if entries.changes.len() == KEPT {
            entries.changes.pop_front();
            entries.first += 1;
        }
        entries.changes.push_back(status);
        let wakers = std::mem::take(&mut entries.wakers);
        drop(entries);
        wakers.into_values().for_each(Waker::wake);
    }

    /// Follows the changes, the current state first.
    pub(crate) fn follow(self: &Arc<Self>) -> Changes {
        let mut entries = self.lock();
        entries.watchers += 1;
        let next = entries.first + entries.changes.len() as u64 - 1;
        Changes { journal: self.clone(), watcher: entries.watchers, next }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The states of a connection, the current one first, then each change. Never ends: a closed client can connect again.
#[derive(Debug)]
pub struct Changes {
    journal: Arc<Journal>,
    watcher: u64,
    next: u64,
}

impl Changes {
    /// Waits for the next change.
    pub async fn next(&mut self) -> Status {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Waits until the connection is in `state`, and says how it got there.
    pub async fn wait_for(&mut self, state: State) -> Status {
        loop {
            let status = self.next().await;
            if status.state == state {
                return status;
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let mut entries = self.journal.lock();
        self.next = self.next.max(entries.first);
        let index = (self.next - entries.first) as usize;
        if let Some(status) = entries.changes.get(index) {
            self.next += 1;
            return Poll::Ready(status.clone());
        }
        entries.wakers.insert(self.watcher, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.journal.lock().wakers.remove(&self.watcher);
    }
}

impl Stream for Changes {
    type Item = Status;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        self.get_mut().poll(cx).map(Some)
    }
}

/// Counts since the client was made, over all its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Requests handed to the worker.
    pub requests: u64,
    /// Answers handed to callers or dropped because nobody waited.
    pub answers: u64,
    /// Push messages received.
    pub pushes: u64,
    /// Requests that ran into their deadline.
    pub deadlines: u64,
    /// Requests that failed because the connection was lost or closed.
    pub failures: u64,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
    /// Connections made.
    pub connections: u64,
    /// Requests open now.
    pub open_requests: usize,
}

/// The counters behind [`Stats`]; only the worker writes them, once per batch.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: Counter,
    pub(crate) answers: Counter,
    pub(crate) pushes: Counter,
    pub(crate) deadlines: Counter,
    pub(crate) failures: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) connections: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(std::sync::atomic::AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn stats(&self, open_requests: usize) -> Stats {
        Stats {
            requests: self.requests.get(),
            answers: self.answers.get(),
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
