//! Direct writes: a topic writes events to the socket of a stream that waits for them.
//!
//! Waking a task for an event costs a sixth of the write itself, because the task's memory is in no
//! CPU cache. So a tail that waits for its topic delegates writes: the topic's delivery task writes
//! new events to the socket, and the stream's task keeps sleeping. The service passes the same
//! [`DirectWrites`] to the tail and, in the response's extensions, to the server.
//!
//! Invariant: no event is written twice or left out.
//! Enforced by: the writer's lock is held for every write. A topic writes only while the tail has
//! delegated writes ([`WriteDelegation::Delegated`]) and nothing is unsent. It records the tail's
//! progress there, under the delegation's lock. The tail takes the delegation back whenever it is
//! polled. A delegation names its tail, so others can't use it. In every other case the topic wakes
//! the stream's task, which continues from that progress.
//!
//! Lock order: writer, then delegation, then topic. The stream's task holds the writer's lock while
//! it polls the body; the tail then takes the other two. A delivery task takes the first two.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpStream;

use crate::h1::socket_writer::{SocketWriter, WriteFailure};
use crate::h1::write_batch::WriteBatch;
use crate::live::delivery::RecentEvents;
use crate::live::tail::TailProgress;
use crate::sync::{Mutex, MutexGuard};

/// Permission for a topic to write events to the socket of one live response.
///
/// Create one for each response. Pass it to [`Tail::direct`](crate::Tail::direct), and insert a
/// clone into the response's extensions, next to [`LiveBody`](crate::LiveBody):
///
/// ```
/// use forebay_stream::{DirectWrites, LiveBody, Tail, Topic};
/// use http::Response;
///
/// fn stream(topic: &Topic) -> Response<Tail> {
///     let writes = DirectWrites::new();
///     let mut response = Response::new(topic.subscribe().direct(&writes));
///     response.extensions_mut().insert(LiveBody);
///     response.extensions_mut().insert(writes);
///     response
/// }
/// # assert!(stream(&Topic::new(1)).extensions().get::<DirectWrites>().is_some());
/// ```
///
/// The server connects it to the socket when the stream starts, and disconnects it at the end. If
/// hyper writes the response (HTTP/2, TLS), or another server does, it is never connected. Then
/// the topic wakes the tail for each event.
#[derive(Debug, Clone, Default)]
pub struct DirectWrites {
    shared: Arc<DirectSocket>,
}

/// Socket that a stream's task and a topic write to.
#[derive(Debug, Default)]
pub(crate) struct DirectSocket {
    writer: Mutex<WriterState>,
    delegation: Mutex<WriteDelegation>,
}

/// State of the socket's writer, guarded by one lock.
#[derive(Debug, Default)]
pub(crate) struct WriterState {
    pub(crate) socket: SocketState,
    pub(crate) output: SocketWriter,
    /// Failure of a write by the topic.
    pub(crate) failure: Option<WriteFailure>,
}

/// Socket of a [`DirectWrites`].
#[derive(Debug, Default)]
pub(crate) enum SocketState {
    /// No stream has started.
    #[default]
    Unused,
    Open(TcpStream),
    /// The stream has ended.
    Closed,
    /// Stands for an open socket where `loom` runs.
    #[cfg(all(test, forebay_loom))]
    Recorded(super::loom_tests::RecordedSocket),
}

/// Who writes the next events to the socket.
#[derive(Debug, Default)]
pub(crate) enum WriteDelegation {
    /// No topic may write: no stream has started, or its body has ended.
    #[default]
    Unavailable,
    /// The stream's task writes.
    Available,
    /// The topic writes the events of this tail.
    Delegated { tail: TailId, progress: TailProgress },
}

/// Identifies a tail in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TailId(u64);

/// Result of a write by the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a stream that isn't woken in time loses events"]
pub(crate) enum DirectWrite {
    /// The events are written, or the stream's task is about to continue by itself.
    Done,
    /// The stream's task must be woken: it writes the events.
    WakeTask,
}

/// The socket of a live stream, owned by its task. Dropping it closes the socket, even if clones of
/// its [`DirectWrites`] exist.
#[derive(Debug)]
pub(crate) struct StreamSocket(DirectWrites);

impl DirectWrites {
    /// Creates a permission that isn't connected to a socket.
    pub fn new() -> DirectWrites {
        DirectWrites::default()
    }

    pub(super) fn delegation(&self) -> MutexGuard<'_, WriteDelegation> {
        self.shared.delegation.lock()
    }

    pub(super) fn is_same(&self, other: &DirectWrites) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Writes the events if `tail` has delegated writes.
    pub(super) fn write_events(&self, tail: TailId, recent: &RecentEvents) -> DirectWrite {
        let Some(mut writer) = self.shared.writer.try_lock() else { return DirectWrite::WakeTask };
        let mut delegation = self.delegation();
        let Some(progress) = delegation.progress_of(tail) else { return DirectWrite::WakeTask };
        if !writer.output.is_empty() {
            return DirectWrite::Done; // the task continues after the unsent bytes
        }
        let Some(events) = recent.after(progress) else { return DirectWrite::WakeTask };
        let mut batch = WriteBatch::take_spare();
        for event in events {
            if batch.is_full() {
                return DirectWrite::WakeTask;
            }
            batch.push_chunk(event);
        }
        match writer.write(&mut batch) {
            Ok(()) => {
                batch.recycle();
                recent.mark_delivered(progress);
                if writer.output.is_empty() { DirectWrite::Done } else { DirectWrite::WakeTask }
            }
            Err(failure) => {
                writer.failure = Some(failure);
                DirectWrite::WakeTask
            }
        }
    }
}

impl WriterState {
    /// Writes a batch and empties it. Nothing may be unsent before.
    fn write(&mut self, batch: &mut WriteBatch) -> Result<(), WriteFailure> {
        match (&mut self.socket, self.failure) {
            (_, Some(failure)) => Err(failure),
            (SocketState::Open(stream), None) => self.output.write(stream, batch),
            (SocketState::Unused | SocketState::Closed, None) => Err(WriteFailure::ClientClosed),
            #[cfg(all(test, forebay_loom))]
            (SocketState::Recorded(socket), None) => {
                self.output = socket.write(batch);
                Ok(())
            }
        }
    }
}

impl WriteDelegation {
    /// Delegates writes to the topic of `tail`. Returns false if no live stream has the socket, or
    /// another tail has delegated its writes.
    pub(super) fn delegate(&mut self, tail: TailId, progress: TailProgress) -> bool {
        let is_available = matches!(self, WriteDelegation::Available);
        if is_available {
            *self = WriteDelegation::Delegated { tail, progress };
        }
        is_available
    }

    /// Takes back the delegation of `tail`, and returns the tail's progress.
    pub(super) fn take_back(&mut self, tail: TailId) -> Option<TailProgress> {
        let progress = *self.progress_of(tail)?;
        *self = WriteDelegation::Available;
        Some(progress)
    }

    fn progress_of(&mut self, of: TailId) -> Option<&mut TailProgress> {
        match self {
            WriteDelegation::Delegated { tail, progress } if *tail == of => Some(progress),
            WriteDelegation::Unavailable | WriteDelegation::Available | WriteDelegation::Delegated { .. } => {
                None
            }
        }
    }
}

impl TailId {
    pub(super) fn new() -> TailId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        TailId(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl StreamSocket {
    /// Connects `writes` to the socket of a stream that starts. Bytes of `output` are written
    /// first.
    pub(crate) fn new(writes: DirectWrites, stream: TcpStream, output: SocketWriter) -> StreamSocket {
        StreamSocket::connect(writes, SocketState::Open(stream), output)
    }

    pub(super) fn connect(writes: DirectWrites, socket: SocketState, output: SocketWriter) -> StreamSocket {
        let mut writer = writes.shared.writer.lock();
        if !matches!(writer.socket, SocketState::Unused) {
            // The service has inserted one permission into two responses.
            drop(writer);
            return StreamSocket::connect(DirectWrites::new(), socket, output);
        }
        *writer = WriterState { socket, output, failure: None };
        *writes.delegation() = WriteDelegation::Available;
        drop(writer);
        StreamSocket(writes)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.0.shared.writer.lock()
    }

    /// Ends direct writes, because the body has ended. The caller holds the writer's lock, so the
    /// topic writes nothing after the last chunk.
    pub(crate) fn end_direct_writes(&self) {
        *self.0.delegation() = WriteDelegation::Unavailable;
    }
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        let mut writer = self.lock();
        self.end_direct_writes();
        *writer = WriterState { socket: SocketState::Closed, ..WriterState::default() };
    }
}
