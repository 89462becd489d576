//! Socket of a live stream that a topic may write to.
//!
//! Waking a task for an event costs a sixth of the write itself, because the task's memory is in no
//! CPU cache. So a stream that waits for its topic delegates writes: the topic's delivery task
//! writes new events to the socket, and the stream's task keeps sleeping.
//!
//! Invariant: no event is written twice or left out.
//! Enforced by: the writer's lock is held for every write. A topic writes only while there is a
//! [`WriteDelegation`] and nothing is unsent, and records its progress there. The tail takes the
//! delegation back whenever it is polled. A delegation names its tail, so others can't use it.
//! In every other case the topic wakes the stream's task, which continues from that progress.
//!
//! Lock order: writer state, then topic. The writer's lock is held while the body is polled.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;

use crate::h1::socket_writer::{SocketWriter, WriteFailure};
use crate::h1::write_batch::WriteBatch;
use crate::live::delivery::RecentEvents;
use crate::live::tail::TailProgress;

/// Socket of a live stream and its writer.
#[derive(Debug)]
pub(crate) struct DirectSocket {
    pub(crate) stream: TcpStream,
    writer: Mutex<WriterState>,
}

/// State of the socket's writer, guarded by one lock.
#[derive(Debug)]
pub(crate) struct WriterState {
    pub(crate) output: SocketWriter,
    delegation: Option<WriteDelegation>,
    /// Failure of a write by the topic.
    pub(crate) failure: Option<WriteFailure>,
}

/// Permission for a topic to write the next events of a tail.
#[derive(Debug)]
struct WriteDelegation {
    tail: TailId,
    progress: TailProgress,
}

/// Identifies a tail in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TailId(u64);

/// Stream whose body the current thread polls.
struct PolledStream {
    socket: Arc<DirectSocket>,
    delegation: Option<WriteDelegation>,
}

thread_local! {
    /// Set while a thread polls the body of a live stream. Thread-local, because bodies may be
    /// wrapped in others that can't pass a socket on to the tail.
    static POLLED_STREAM: RefCell<Option<PolledStream>> = const { RefCell::new(None) };
}

/// Clears `POLLED_STREAM` when the poll ends, also by a panic.
struct PolledStreamGuard;

impl DirectSocket {
    pub(crate) fn new(stream: TcpStream, output: SocketWriter) -> DirectSocket {
        DirectSocket { stream, writer: Mutex::new(WriterState { output, delegation: None, failure: None }) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.writer.lock()
    }

    /// Polls the stream's body. Its tail may take the delegation and make a new one.
    pub(crate) fn poll_body<R>(self: &Arc<Self>, writer: &mut WriterState, poll: impl FnOnce() -> R) -> R {
        POLLED_STREAM
            .set(Some(PolledStream { socket: Arc::clone(self), delegation: writer.delegation.take() }));
        let _guard = PolledStreamGuard;
        let polled = poll();
        writer.delegation = POLLED_STREAM.take().and_then(|polled_stream| polled_stream.delegation);
        polled
    }

    /// Writes the events if `tail` has delegated writes. Returns false if the task must be woken.
    pub(crate) fn write_events(&self, tail: TailId, recent: &RecentEvents) -> bool {
        let Some(mut writer) = self.writer.try_lock() else { return false };
        let WriterState { output, delegation, failure } = &mut *writer;
        let Some(delegation) =
            delegation.as_mut().filter(|delegation| delegation.tail == tail && failure.is_none())
        else {
            return false;
        };
        if !output.is_empty() {
            return true; // the task continues after the unsent bytes
        }
        let Some(events) = recent.after(&delegation.progress) else { return false };
        let mut batch = WriteBatch::take_spare();
        for event in events {
            if batch.is_full() {
                return false;
            }
            batch.push_chunk(event);
        }
        match output.write(&self.stream, &mut batch) {
            Ok(()) => {
                batch.recycle();
                recent.mark_delivered(&mut delegation.progress);
                output.is_empty()
            }
            Err(error) => {
                *failure = Some(error);
                false
            }
        }
    }
}

impl TailId {
    pub(crate) fn new() -> TailId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        TailId(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl WriterState {
    /// Revokes the delegation, since the body is dropped.
    pub(crate) fn revoke(&mut self) {
        self.delegation = None;
    }
}

impl Drop for PolledStreamGuard {
    fn drop(&mut self) {
        POLLED_STREAM.take();
    }
}

/// Takes back the delegation of `tail` from the stream that this thread polls.
pub(crate) fn take_delegation(tail: TailId) -> Option<TailProgress> {
    // Fails in a thread that ends, which may still drop a tail.
    let taken = POLLED_STREAM.try_with(|polled_stream| {
        let mut polled_stream = polled_stream.borrow_mut();
        polled_stream.as_mut()?.delegation.take_if(|delegation| delegation.tail == tail)
    });
    Some(taken.ok()??.progress)
}

/// Delegates writes to the socket of the stream that this thread polls.
///
/// Returns `None` if no live stream is polled, or another tail has delegated its writes.
pub(crate) fn delegate_writes(tail: TailId, progress: TailProgress) -> Option<Arc<DirectSocket>> {
    POLLED_STREAM.with_borrow_mut(|polled_stream| {
        let PolledStream { socket, delegation } = polled_stream.as_mut()?;
        delegation.is_none().then(|| {
            *delegation = Some(WriteDelegation { tail, progress });
            Arc::clone(socket)
        })
    })
}
