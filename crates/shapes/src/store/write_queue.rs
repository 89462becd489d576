//! Queue of records for the writer thread.
//!
//! Bound: `queued_bytes` of records that are queued or being written, plus one batch of the
//! replication stream. The consumer of the stream waits for
//! [`Shapes::wait_for_room`](crate::Shapes::wait_for_room) after each batch. Creations and
//! deletions of shapes add records without waiting. The largest ones have a small snapshot
//! (`small_snapshot_bytes`), or the changes that were held for a shape (`held_bytes`).
//! While a batch is written, its encoded ranges take memory, too: at most as much as the ranges.
//! Lock order: the queue's mutex is taken last.

use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::queue_sync::{Condvar, Mutex};
use super::record::{Record, ShapeTouch, TransactionPart};

/// A batch with more bytes than this is taken at once, because the consumer of the stream may be
/// waiting for room.
const URGENT_BYTES: usize = 1 << 20;

/// A record for the writer thread.
#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) record: Record,
    /// Notified when the record is durable and applied. Dropped if the record will never be
    /// written.
    pub(crate) done: Option<oneshot::Sender<()>>,
    pub(crate) after: AfterWrite,
}

/// What the writer does after it has written a record, before it notifies `done`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterWrite {
    Nothing,
    Checkpoint,
}

/// Queue of records. Any thread adds records, and the writer thread takes them in batches.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    state: Mutex<QueueState>,
    /// Notified when a first or an urgent job is added, and when the queue is closed.
    changed: Condvar,
    /// Notified when a batch is written, and when the queue is closed.
    drained: Notify,
}

/// State of the queue, behind its mutex.
#[derive(Debug, Default)]
struct QueueState {
    jobs: Vec<WriteJob>,
    /// Whether the batch must not wait for more jobs.
    is_urgent: bool,
    /// Size of the queued records, in bytes.
    bytes: usize,
    /// Size of the batch that was taken last, in bytes; 0 once it is written.
    bytes_being_written: usize,
    is_closed: bool,
    /// Tests only: no batch is taken, so that the test decides what is written together.
    is_held: bool,
    /// Whether the writer thread waits for jobs.
    is_idle: bool,
    /// Whether a test waits for `is_idle`.
    idle_is_awaited: bool,
}

impl WriteQueue {
    /// Returns a queue that drops all jobs.
    pub(crate) fn new_closed() -> Self {
        let queue = WriteQueue::default();
        queue.close();
        queue
    }

    /// Adds a job. Drops it if the queue is closed.
    pub(crate) fn push(&self, job: WriteJob) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.bytes += job.record.bytes();
        let is_urgent = job.is_urgent() || state.bytes > URGENT_BYTES;
        let became_urgent = is_urgent && !std::mem::replace(&mut state.is_urgent, true);
        state.jobs.push(job);
        let wakes_writer = state.jobs.len() == 1 || became_urgent;
        // The woken thread needs the lock at once.
        drop(state);
        if wakes_writer {
            self.changed.notify_all();
        }
    }

    /// Waits for a first job and returns all jobs. Waits up to `window` for more jobs, unless an
    /// urgent one is queued. Returns `None` if the queue is closed and empty.
    ///
    /// The batch counts towards the bound until [`finish_batch`](Self::finish_batch).
    pub(crate) fn take_batch(&self, window: Duration) -> Option<Vec<WriteJob>> {
        let mut state = self.state.lock();
        while state.jobs.is_empty() || (state.is_held && !state.is_closed) {
            if state.is_closed {
                return None;
            }
            state.is_idle = true;
            if std::mem::take(&mut state.idle_is_awaited) {
                self.changed.notify_all();
            }
            self.changed.wait(&mut state);
        }
        if !window.is_zero() {
            let until = Instant::now() + window;
            self.changed.wait_while_until(&mut state, |state| !state.is_urgent && !state.is_closed, until);
        }
        state.is_idle = false;
        state.is_urgent = false;
        state.bytes_being_written = std::mem::take(&mut state.bytes);
        Some(std::mem::take(&mut state.jobs))
    }

    /// Frees the room of the batch that was taken last. The writer calls it when the batch is
    /// written and its records are dropped.
    pub(crate) fn finish_batch(&self) {
        self.state.lock().bytes_being_written = 0;
        self.drained.notify_waiters();
    }

    /// Waits until fewer than `limit` bytes are queued or being written, or the queue is closed.
    pub(crate) async fn wait_for_room(&self, limit: usize) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            {
                let state = self.state.lock();
                if state.bytes + state.bytes_being_written < limit || state.is_closed {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Closes the queue. Queued jobs are still taken; new ones are dropped.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
        self.drained.notify_waiters();
    }

    /// Closes the queue and drops all jobs, which notifies their waiters.
    pub(crate) fn abandon(&self) {
        let jobs = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.changed.notify_all();
        self.drained.notify_waiters();
    }

    /// Waits until the queue is closed, at most `timeout`. Returns whether it is closed.
    pub(crate) fn wait_closed(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.is_closed, timeout);
        state.is_closed
    }
}

#[cfg(test)]
impl WriteQueue {
    /// Stops batches from being taken.
    pub(crate) fn hold(&self) {
        self.state.lock().is_held = true;
    }

    /// Lets batches be taken again, and waits until all jobs are done.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.is_held = false;
        self.changed.notify_all();
        while !(state.is_closed || state.is_idle && state.jobs.is_empty()) {
            state.idle_is_awaited = true;
            self.changed.wait(&mut state);
        }
    }
}

impl WriteJob {
    /// Returns whether the record has changes of a transaction, for which clients wait.
    fn is_urgent(&self) -> bool {
        matches!(self.record, Record::Part(_) | Record::Commit(..))
    }
}

impl Record {
    /// Returns the approximate size of the record in memory.
    fn bytes(&self) -> usize {
        match self {
            Record::Part(changes) => changes.bytes(),
            Record::Commit(changes, commit) => changes.bytes() + size_of::<u64>() * commit.earlier.capacity(),
            Record::Note(_, bytes) => bytes.len() + 256,
        }
    }
}

impl TransactionPart {
    fn bytes(&self) -> usize {
        self.text.len() + self.touches.iter().map(ShapeTouch::bytes).sum::<usize>()
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests;

#[cfg(all(test, not(forebay_loom)))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use bytes::Bytes;

    use super::*;
    use crate::store::record::{CommitRecord, MessageRange, Note};

    fn job(bytes: usize) -> (WriteJob, oneshot::Receiver<()>) {
        let (done, durable) = oneshot::channel();
        let record = Record::Note(Note::Advance { lsn: 1 }, Bytes::from(vec![0; bytes]));
        (WriteJob { record, done: Some(done), after: AfterWrite::Nothing }, durable)
    }

    fn is_ready(future: &mut (impl Future + Unpin)) -> bool {
        std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_full_queue_has_room_again_after_its_batch_is_written() {
        let queue = WriteQueue::default();
        queue.push(job(500).0);
        assert!(is_ready(&mut pin!(queue.wait_for_room(1000))));
        queue.push(job(500).0);
        let mut room = pin!(queue.wait_for_room(1000));
        assert!(!is_ready(&mut room));
        assert_eq!(queue.take_batch(Duration::ZERO).unwrap().len(), 2);
        assert!(!is_ready(&mut room), "the batch is being written");
        queue.finish_batch();
        assert!(is_ready(&mut room));
    }

    #[test]
    fn what_is_queued_and_what_is_being_written_share_one_bound() {
        let queue = WriteQueue::default();
        queue.push(job(500).0);
        assert_eq!(queue.take_batch(Duration::ZERO).unwrap().len(), 1);
        assert!(is_ready(&mut pin!(queue.wait_for_room(1000))));
        queue.push(job(500).0);
        let mut room = pin!(queue.wait_for_room(1000));
        assert!(!is_ready(&mut room));
        queue.finish_batch();
        assert!(is_ready(&mut room));
    }

    #[test]
    fn the_ranges_of_a_record_count_as_its_text_does() {
        let queue = WriteQueue::default();
        let touch = ShapeTouch { shape: 1, ranges: vec![MessageRange::default(); 1000] };
        let changes = TransactionPart { touches: vec![touch], ..TransactionPart::default() };
        let record = Record::Part(changes);
        queue.push(WriteJob { record, done: None, after: AfterWrite::Nothing });
        assert!(!is_ready(&mut pin!(queue.wait_for_room(1000 * size_of::<MessageRange>()))));
    }

    #[test]
    fn a_closed_queue_returns_its_jobs_and_drops_new_ones() {
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
    fn notes_wait_for_a_batch_and_changes_do_not() {
        let for_ever = Duration::from_secs(3600);
        let queue = WriteQueue::default();
        let commit = || WriteJob {
            record: Record::Commit(
                TransactionPart::default(),
                CommitRecord { end: 1, ..CommitRecord::default() },
            ),
            done: None,
            after: AfterWrite::Nothing,
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
    fn abandoning_a_queue_notifies_all_waiters() {
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
