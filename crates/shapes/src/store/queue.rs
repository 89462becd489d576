//! What waits for the writer.
//!
//! Bounded by whoever fills it: the follower waits for [`room`](Queue::room) between batches; what shapes and their deletion add is small.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::record::Record;

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) record: Record,
    /// Told when it is durable and applied; dropped if that will never be.
    pub(crate) done: Option<oneshot::Sender<()>>,
    /// Whether a checkpoint is to be made before that.
    pub(crate) checkpoint: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    drained: Notify,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    bytes: usize,
    closed: bool,
}

impl Queue {
    /// After the end it is dropped.
    pub(crate) fn push(&self, job: Job) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.bytes += job.record.bytes();
        state.jobs.push(job);
        if state.jobs.len() == 1 {
            self.filled.notify_one();
        }
    }

    /// Everything that is there, once there is something; `None`: it is closed, and nothing is left.
    pub(crate) fn take(&self) -> Option<Vec<Job>> {
        let mut state = self.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes = 0;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.drained.notify_waiters();
        Some(jobs)
    }

    /// Waits until less than `limit` bytes wait.
    pub(crate) async fn room(&self, limit: usize) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            {
                let state = self.lock();
                if state.bytes < limit || state.closed {
                    return;
                }
            }
            drained.await;
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.drained.notify_waiters();
    }

    /// Waits a while, or until it is closed; returns whether it is.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let state = self.lock();
        let waited = self.filled.wait_timeout_while(state, time, |state| !state.closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn bytes(&self) -> usize {
        match self {
            Record::Part(changes) | Record::Commit(changes, _) => {
                changes.text.len() + 64 * changes.touches.len()
            }
            Record::Note(_, bytes) => bytes.len() + 256,
        }
    }
}
