//! Connection worker: the task that owns the socket of one link.
//!
//! Invariant: the worker reads and writes concurrently, and runs no caller's code.
//! Enforced by: [`ConnectionCore`] decides; the worker only polls the socket, the inbox and the
//! timer, and performs the core's effects. An abort fails every open request with `Cancelled`, and
//! so does dropping the worker, as a runtime does on shutdown.
//! Out of scope: decoding of replies; see `reply/`.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep};

use crate::client::ClientShared;
use crate::connect::{ConnectionIo, DialFuture, Dialer, EstablishedConnection};
use crate::core::connection::{ConnectionCore, ConnectionSettings, EffectHandler};
use crate::core::link::{LinkPolicy, State};
use crate::core::pipeline::PipelineRequest;
use crate::error::{ConnectionLoss, RequestError};
use crate::inbox::{CloseRequest, WorkerLoad};
use crate::reply_slot::{RequestResult, SharedReplySlot};
use crate::status::Status;

/// Rounds of writing and reading before the task yields to the runtime.
const ROUNDS_PER_POLL: usize = 4;
/// Bytes that are written without waiting for more. The system call is then a small part of the
/// cost.
const MIN_BATCH_BYTES: usize = 1024;
/// Maximum reads in one round.
const READS_PER_ROUND: usize = 8;

pub(crate) struct ConnectionWorker {
    connection: ConnectionCore<SharedReplySlot>,
    shell: WorkerShell,
    timer: Pin<Box<Sleep>>,
    /// When `timer` fires; never later than the core's `due`.
    armed: Option<Instant>,
    /// True if taken requests are not written yet.
    has_new_requests: bool,
    /// True if the task has already yielded once to let the batch grow.
    yielded: bool,
    unflushed: bool,
    requests: Vec<PipelineRequest<SharedReplySlot>>,
    bytes: Vec<u8>,
}

/// The I/O side of the worker.
struct WorkerShell {
    shared: Arc<ClientShared>,
    dialer: Dialer,
    dialing: Option<DialFuture>,
    io: Option<Box<dyn ConnectionIo>>,
    replies: u64,
    deadlines: u64,
    failures: u64,
    pushes: u64,
}

/// What the worker found in the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InboxContent {
    Empty,
    /// Requests, a request to end the connection, or both.
    Taken,
}

/// How far the worker has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketRead {
    /// The socket has nothing to read, or the connection is lost.
    Drained,
    MayHaveMore,
}

impl ConnectionWorker {
    pub(crate) fn new(shared: Arc<ClientShared>, dialer: Dialer, generation: u64) -> Self {
        let (config, now) = (&shared.config, Instant::now());
        let settings = ConnectionSettings {
            policy: LinkPolicy { reconnect: config.reconnect.clone(), close_timeout: config.close_timeout },
            limits: config.limits,
            stall_timeout: config.stall_timeout,
            arrays_are_pushes: config.subscriber_only,
            // Without reconnection, leaving the server would close the client. A dedicated
            // connection reconnects at its next call.
            leave_unfit_server: config.leave_unfit_server && (config.reconnect.is_some() || config.dedicated),
            generation,
        };
        let mut worker = ConnectionWorker {
            connection: ConnectionCore::new(settings, fastrand::Rng::new(), now.into_std()),
            shell: WorkerShell {
                shared,
                dialer,
                dialing: None,
                io: None,
                replies: 0,
                deadlines: 0,
                failures: 0,
                pushes: 0,
            },
            timer: Box::pin(tokio::time::sleep_until(now)),
            armed: None,
            has_new_requests: false,
            yielded: false,
            unflushed: false,
            requests: Vec::new(),
            bytes: Vec::new(),
        };
        worker.connection.start(now.into_std(), &mut worker.shell);
        worker
    }

    /// Returns true, once, if a small batch should wait for more requests.
    ///
    /// With one open request its caller waits, so it is written at once. With several, other
    /// callers are about to add requests.
    fn waits_for_batch(&mut self, now: Instant) -> bool {
        let small = self.connection.unsent().len() < MIN_BATCH_BYTES;
        let may_grow =
            self.has_new_requests && small && self.connection.open_requests() > 1 && self.shell.io.is_some();
        if may_grow && !self.yielded {
            self.yielded = true;
            return true;
        }
        if may_grow {
            self.take_submitted(None, now);
        }
        (self.has_new_requests, self.yielded) = (false, false);
        false
    }

    /// Takes submitted requests and the close request. If there are none, stores `sleeper`, if
    /// given, for the next submission.
    fn take_submitted(&mut self, sleeper: Option<&Waker>, now: Instant) -> InboxContent {
        let load = WorkerLoad {
            requests: self.connection.open_requests(),
            unsent_bytes: self.connection.unsent().len(),
        };
        let shared = &self.shell.shared;
        let close = shared.inbox.take(load, &mut self.requests, &mut self.bytes, sleeper);
        let content = match (self.requests.is_empty(), close) {
            (true, CloseRequest::None) => InboxContent::Empty,
            (false, _) | (true, CloseRequest::Requested | CloseRequest::Aborted) => InboxContent::Taken,
        };
        if !self.requests.is_empty() {
            self.has_new_requests = true;
            shared.counters.requests.add(self.requests.len() as u64);
            self.connection.accept(&mut self.requests, &mut self.bytes, now.into_std());
        }
        match close {
            CloseRequest::None => {}
            CloseRequest::Requested => self.connection.close(now.into_std(), &mut self.shell),
            CloseRequest::Aborted => self.connection.cancel(now.into_std(), &mut self.shell),
        }
        content
    }

    fn poll_dial(&mut self, cx: &mut Context<'_>, now: Instant) {
        let Some(dialing) = &mut self.shell.dialing else { return };
        let Poll::Ready(result) = dialing.as_mut().poll(cx) else { return };
        self.shell.dialing = None;
        match result {
            Ok(EstablishedConnection { io, received, version }) => {
                self.shell.io = Some(io);
                self.unflushed = false;
                self.shell.shared.counters.connections.add(1);
                self.shell.shared.on_connected(version);
                self.connection.connected(&received, now.into_std(), &mut self.shell);
            }
            Err(error) => self.lost(ConnectionLoss::Connect(Arc::new(error)), now),
        }
    }

    /// Writes until everything is sent or the socket is full.
    fn write(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(io) = &mut self.shell.io
            && !self.connection.unsent().is_empty()
            && let Poll::Ready(written) = Pin::new(&mut **io).poll_write(cx, self.connection.unsent())
        {
            match written {
                Ok(0) => self.lost(ConnectionLoss::Closed, now),
                Ok(count) => {
                    self.connection.wrote(count);
                    self.shell.shared.counters.bytes_sent.add(count as u64);
                    self.unflushed = true;
                }
                Err(error) => self.lost(ConnectionLoss::Io(Arc::new(error)), now),
            }
        }
        if self.unflushed
            && let Some(io) = &mut self.shell.io
            && let Poll::Ready(flushed) = Pin::new(&mut **io).poll_flush(cx)
        {
            self.unflushed = false;
            if let Err(error) = flushed {
                self.lost(ConnectionLoss::Io(Arc::new(error)), now);
            }
        }
    }

    /// Reads and dispatches replies, until the socket is empty or others must run.
    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> SocketRead {
        self.connection.resume(now.into_std(), &mut self.shell);
        for _ in 0..READS_PER_ROUND {
            let Some(io) = &mut self.shell.io else { return SocketRead::Drained };
            let Poll::Ready(read) = pin!(io.read_buf(self.connection.input())).poll(cx) else {
                return SocketRead::Drained;
            };
            match read {
                Ok(0) => self.lost(ConnectionLoss::Closed, now),
                Ok(count) => {
                    self.shell.shared.counters.bytes_received.add(count as u64);
                    self.connection.received(now.into_std(), &mut self.shell);
                    if self.connection.is_paused() {
                        return SocketRead::MayHaveMore;
                    }
                }
                Err(error) => self.lost(ConnectionLoss::Io(Arc::new(error)), now),
            }
        }
        SocketRead::MayHaveMore
    }

    fn lost(&mut self, loss: ConnectionLoss, now: Instant) {
        self.connection.lost(loss, now.into_std(), &mut self.shell);
    }

    /// Sets the timer to the core's `due`. A timer that fires earlier is kept, although it may find
    /// nothing due. So the timer is not set again for each request.
    fn arm_timer(&mut self, cx: &mut Context<'_>, now: Instant) {
        let Some(due) = self.connection.due().map(Instant::from_std) else { return };
        if self.armed.is_none_or(|armed| due < armed || armed <= now) {
            self.armed = Some(due);
            self.timer.as_mut().reset(due);
            // Polled once to register the waker, outside the task's cooperative budget.
            if pin!(unconstrained(self.timer.as_mut())).poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }
}

impl Future for ConnectionWorker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &mut *self;
        let now = Instant::now();
        if worker.shell.shared.inbox.is_aborted() {
            // Before anything else is written or dispatched.
            worker.connection.cancel(now.into_std(), &mut worker.shell);
            return Poll::Ready(());
        }
        if worker.connection.is_paused() {
            // Requests that callers of the first half submitted meanwhile.
            worker.take_submitted(None, now);
        }
        for _ in 0..ROUNDS_PER_POLL {
            worker.connection.tick(now.into_std(), &mut worker.shell);
            worker.poll_dial(cx, now);
            if worker.waits_for_batch(now) {
                break;
            }
            worker.write(cx, now);
            let read = worker.read(cx, now);
            if worker.connection.is_closed() {
                return Poll::Ready(());
            }
            worker.arm_timer(cx, now);
            if worker.connection.is_paused() {
                worker.yielded = true; // the batch grows until the next poll
                break;
            }
            // Sleeps only if there is nothing to read and nothing was submitted.
            if read == SocketRead::Drained
                && worker.take_submitted(Some(cx.waker()), now) == InboxContent::Empty
            {
                worker.shell.count();
                return Poll::Pending;
            }
        }
        worker.shell.count();
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for ConnectionWorker {
    fn drop(&mut self) {
        // The runtime may have dropped its clock; cancelling does not depend on the time.
        self.connection.cancel(std::time::Instant::now(), &mut self.shell);
        self.shell.count();
    }
}

impl WorkerShell {
    /// Adds this poll's counts to the shared counters.
    fn count(&mut self) {
        let counters = &self.shared.counters;
        counters.replies.add(std::mem::take(&mut self.replies));
        counters.deadlines.add(std::mem::take(&mut self.deadlines));
        counters.failures.add(std::mem::take(&mut self.failures));
        counters.pushes.add(std::mem::take(&mut self.pushes));
    }
}

impl EffectHandler<SharedReplySlot> for WorkerShell {
    fn dial(&mut self) {
        self.dialing = Some((self.dialer)());
    }

    fn hangup(&mut self) {
        (self.dialing, self.io) = (None, None);
    }

    fn set_rejection(&mut self, rejection: Option<RequestError>) {
        self.shared.inbox.set_rejection(rejection);
    }

    fn take_remaining(&mut self, requests: &mut Vec<PipelineRequest<SharedReplySlot>>, bytes: &mut Vec<u8>) {
        self.shared.inbox.take_remaining(requests, bytes);
        self.shared.counters.requests.add(requests.len() as u64);
    }

    fn complete(&mut self, slot: SharedReplySlot, result: RequestResult) {
        match &result {
            Ok(_) => self.replies += 1,
            Err(RequestError::Deadline { .. }) => self.deadlines += 1,
            Err(_) => self.failures += 1,
        }
        slot.complete(result);
    }

    fn push(&mut self, push: Bytes) {
        self.pushes += 1;
        self.shared.topics.deliver(push);
    }

    /// Logs and publishes a transition. No other code does.
    fn publish_status(&mut self, from: State, status: Status) {
        let to = status.state;
        match (to, &status.last_error) {
            (State::Failed, Some(error)) => {
                let (attempt, reason) = (status.reconnects, error.as_str());
                tracing::warn!(%from, %to, attempt, reason, %error, "link changed state");
            }
            _ => tracing::info!(%from, %to, "link changed state"),
        }
        #[cfg(feature = "metrics")]
        if (from, to) == (State::Reconnecting, State::Open) {
            self.shared.metrics.reconnects.increment(1);
        }
        match to {
            State::Closed => self.shared.on_closed(status),
            _ => self.shared.journal.record(status),
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
