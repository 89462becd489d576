//! What waits for the writer.
//!
//! Bounded by whoever fills it: the follower waits for [`room`](Queue::room) between batches; what shapes and their deletion add is small.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::record::Record;

/// So many bytes wait for no more: whoever waits for room may have changes.
const URGENT_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) record: Record,
    /// Told when it is durable and applied; dropped if that will never be.
    pub(crate) done: Option<oneshot::Sender<()>>,
    /// Whether a checkpoint is to be made before that.
    pub(crate) checkpoint: bool,
}

#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    drained: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: Vec<WriteJob>,
    /// One of them can't wait for more.
    is_urgent: bool,
    bytes: usize,
    is_closed: bool,
    /// Nothing is taken for now: tests decide what is written together.
    is_held: bool,
    /// Whether somebody waits to take.
    is_idle: bool,
    /// Somebody waits for that: a test.
    idle_is_awaited: bool,
}

impl WriteQueue {
    /// One that takes nothing.
    pub(crate) fn new_closed() -> Self {
        let queue = WriteQueue::default();
        queue.close();
        queue
    }

    /// After the end it is dropped.
    pub(crate) fn push(&self, job: WriteJob) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        state.bytes += job.record.bytes();
        let is_urgent = job.is_urgent() || state.bytes > URGENT_BYTES;
        let became_urgent = is_urgent && !std::mem::replace(&mut state.is_urgent, true);
        state.jobs.push(job);
        let wakes_writer = state.jobs.len() == 1 || became_urgent;
        // Whoever is woken needs the lock at once.
        drop(state);
        if wakes_writer {
            self.changed.notify_all();
        }
    }

    /// Everything that is there, once there is something, and what comes in so much time after that; changes end that time. `None`: it is
    /// closed, and nothing is left.
    pub(crate) fn take_batch(&self, window: Duration) -> Option<Vec<WriteJob>> {
        let mut state = self.lock();
        while state.jobs.is_empty() || (state.is_held && !state.is_closed) {
            if state.is_closed {
                return None;
            }
            state.is_idle = true;
            if std::mem::take(&mut state.idle_is_awaited) {
                self.changed.notify_all();
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !window.is_zero() {
            let waited =
                self.changed.wait_timeout_while(state, window, |state| !state.is_urgent && !state.is_closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_idle = false;
        state.is_urgent = false;
        state.bytes = 0;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.drained.notify_waiters();
        Some(jobs)
    }

    /// Waits until less than `limit` bytes wait.
    pub(crate) async fn wait_for_room(&self, limit: usize) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            {
                let state = self.lock();
                if state.bytes < limit || state.is_closed {
                    return;
                }
            }
            drained.await;
        }
    }

    /// What is there is still taken; nothing more is.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
        self.drained.notify_waiters();
    }

    /// Nobody takes any more: whoever waits for a job is told so.
    pub(crate) fn abandon(&self) {
        let jobs = {
            let mut state = self.lock();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.changed.notify_all();
        self.drained.notify_waiters();
    }

    /// Waits a while, or until it is closed; returns whether it is.
    pub(crate) fn wait_closed(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, timeout, |state| !state.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl WriteQueue {
    /// From now on nothing is taken.
    pub(crate) fn hold(&self) {
        self.lock().is_held = true;
    }

    /// Lets everything be taken, and waits until all of it is done.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        state.is_held = false;
        self.changed.notify_all();
        while !(state.is_closed || state.is_idle && state.jobs.is_empty()) {
            state.idle_is_awaited = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl WriteJob {
    /// Clients wait for changes as soon as they are committed.
    fn is_urgent(&self) -> bool {
        matches!(self.record, Record::Part(_) | Record::Commit(..))
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

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use bytes::Bytes;

    use super::*;
    use crate::store::record::{CommitRecord, Note, TransactionPart};

    fn job(bytes: usize) -> (WriteJob, oneshot::Receiver<()>) {
        let (done, durable) = oneshot::channel();
        let record = Record::Note(Note::Advance { lsn: 1 }, Bytes::from(vec![0; bytes]));
        (WriteJob { record, done: Some(done), checkpoint: false }, durable)
    }

    fn is_ready(future: &mut (impl Future + Unpin)) -> bool {
        std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn there_is_room_until_too_much_waits_and_again_when_it_was_taken() {
        let queue = WriteQueue::default();
        queue.push(job(500).0);
        assert!(is_ready(&mut pin!(queue.wait_for_room(1000))));
        queue.push(job(500).0);
        let mut room = pin!(queue.wait_for_room(1000));
        assert!(!is_ready(&mut room));
        assert_eq!(queue.take_batch(Duration::ZERO).unwrap().len(), 2);
        assert!(is_ready(&mut room));
    }

    #[test]
    fn what_waits_when_it_is_closed_is_taken_and_what_comes_then_is_dropped() {
        let queue = WriteQueue::default();
        queue.push(job(1).0);
        queue.close();
        let (late, mut durable) = job(1);
        queue.push(late);
        assert!(durable.try_recv().is_err());
        assert_eq!(queue.take_batch(Duration::ZERO).unwrap().len(), 1);
        assert!(queue.take_batch(Duration::ZERO).is_none());
        assert!(queue.wait_closed(Duration::from_secs(3600)));
    }

    #[test]
    fn notes_wait_for_one_another_and_changes_for_nobody() {
        let for_ever = Duration::from_secs(3600);
        let queue = WriteQueue::default();
        let commit = || WriteJob {
            record: Record::Commit(TransactionPart::default(), CommitRecord { end: 1, earlier: Vec::new() }),
            done: None,
            checkpoint: false,
        };
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| queue.take_batch(for_ever).unwrap().len());
            (0..3).for_each(|_| queue.push(job(1).0));
            queue.push(commit());
            assert_eq!(taking.join().unwrap(), 4);
        });
        queue.push(commit());
        assert_eq!(queue.take_batch(for_ever).unwrap().len(), 1);
        queue.push(job(1).0);
        assert_eq!(queue.take_batch(Duration::from_millis(1)).unwrap().len(), 1);
        queue.push(job(URGENT_BYTES).0);
        assert_eq!(queue.take_batch(for_ever).unwrap().len(), 1);
        queue.push(job(1).0);
        queue.close();
        assert_eq!(queue.take_batch(for_ever).unwrap().len(), 1);
    }

    #[test]
    fn who_waits_for_an_abandoned_queue_is_told_so() {
        let queue = WriteQueue::default();
        let (one, mut durable) = job(5000);
        queue.push(one);
        let mut room = pin!(queue.wait_for_room(1000));
        assert!(!is_ready(&mut room) && !is_ready(&mut durable));
        queue.abandon();
        assert!(is_ready(&mut room) && is_ready(&mut durable));
        assert!(queue.take_batch(Duration::ZERO).is_none());
    }
}
