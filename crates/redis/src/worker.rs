//! The actor: one task that owns the socket of one link.
//!
//! Invariant: reading and writing go on at the same time, and no caller's code runs here.
//! Kept by: the rules are [`Connection`]'s; this polls the socket, the inbox and the timer, and carries out what it says.
//! Dropping the worker, as a runtime does when it shuts down, answers everybody with `Cancelled`.
//! Not here: what replies mean, who waits and where.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep};

use crate::client::Shared;
use crate::connect::{Connected, Dialer, Dialing, Io};
use crate::core::backoff::Dice;
use crate::core::connection::{Connection, Rules, Shell};
use crate::core::link::{Policy, State};
use crate::core::pipeline::Request;
use crate::error::{Loss, RequestError};
use crate::inbox::Held;
use crate::slot::{Answer, Slot};
use crate::status::Status;

/// Rounds of writing and reading before others in the runtime get their turn.
const ROUNDS: usize = 4;
/// Bytes that need not wait for more: the system call is a small part of what they cost.
const WORTH_WRITING: usize = 1024;
/// Reads in one round.
const READS: usize = 8;

pub(crate) struct Worker {
    connection: Connection<Arc<Slot>>,
    outside: Outside,
    timer: Pin<Box<Sleep>>,
    /// When `timer` will wake us, at the latest when the connection's time is due.
    armed: Option<Instant>,
    /// Requests were taken that are not written yet.
    fresh: bool,
    /// They have had their chance to become more.
    yielded: bool,
    unflushed: bool,
    requests: Vec<Request<Arc<Slot>>>,
    bytes: Vec<u8>,
}

/// Everything around the rules.
struct Outside {
    shared: Arc<Shared>,
    dialer: Dialer,
    dialing: Option<Dialing>,
    io: Option<Box<dyn Io>>,
    answers: u64,
    deadlines: u64,
    failures: u64,
    pushes: u64,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, dialer: Dialer, generation: u64) -> Self {
        let (config, now) = (&shared.config, Instant::now());
        let rules = Rules {
            policy: Policy { reconnect: config.reconnect.clone(), close_timeout: config.close_timeout },
            limits: config.limits,
            stall_timeout: config.stall_timeout,
            arrays_are_pushes: config.subscriber_only,
            // A client that doesn't reconnect would be closed by it; a dedicated connection is made again by its next call.
            leave_unfit_server: config.leave_unfit_server && (config.reconnect.is_some() || config.dedicated),
            generation,
        };
        let mut worker = Worker {
            connection: Connection::new(rules, Dice::random(), now.into_std()),
            outside: Outside {
                shared,
                dialer,
                dialing: None,
                io: None,
                answers: 0,
                deadlines: 0,
                failures: 0,
                pushes: 0,
            },
            timer: Box::pin(tokio::time::sleep_until(now)),
            armed: None,
            fresh: false,
            yielded: false,
            unflushed: false,
            requests: Vec::new(),
            bytes: Vec::new(),
        };
        worker.connection.start(now.into_std(), &mut worker.outside);
        worker
    }

    /// With one request open its caller waits, so it is written at once. With more of them, others are about to add to a
    /// small batch: true, once, to let them.
    fn lets_batch_grow(&mut self, now: Instant) -> bool {
        let small = self.connection.unsent().len() < WORTH_WRITING;
        let crowded = self.fresh && small && self.connection.open_requests() > 1 && self.outside.io.is_some();
        if crowded && !self.yielded {
            self.yielded = true;
            return true;
        }
        if crowded {
            self.visit(None, now);
        }
        (self.fresh, self.yielded) = (false, false);
        false
    }

    /// Takes what callers left; true if there was anything. With `sleeper`, prepares to sleep if there wasn't.
    fn visit(&mut self, sleeper: Option<&Waker>, now: Instant) -> bool {
        let held =
            Held { requests: self.connection.open_requests(), unsent_bytes: self.connection.unsent().len() };
        let shared = &self.outside.shared;
        let close = shared.inbox.take(held, &mut self.requests, &mut self.bytes, sleeper);
        let found = !self.requests.is_empty();
        if found {
            self.fresh = true;
            shared.counters.requests.add(self.requests.len() as u64);
            self.connection.accept(&mut self.requests, &mut self.bytes, now.into_std());
        }
        if close {
            self.connection.close(now.into_std(), &mut self.outside);
        }
        found | close
    }

    fn poll_dial(&mut self, cx: &mut Context<'_>, now: Instant) {
        let Some(dialing) = &mut self.outside.dialing else { return };
        let Poll::Ready(result) = dialing.as_mut().poll(cx) else { return };
        self.outside.dialing = None;
        match result {
            Ok(Connected { io, received, resp3 }) => {
                self.outside.io = Some(io);
                self.unflushed = false;
                self.outside.shared.counters.connections.add(1);
                self.outside.shared.connected(resp3);
                self.connection.connected(&received, now.into_std(), &mut self.outside);
            }
            Err(error) => self.lost(Loss::Connect(Arc::new(error)), now),
        }
    }

    /// Writes what there is, until the socket is full.
    fn write(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(io) = &mut self.outside.io
            && !self.connection.unsent().is_empty()
            && let Poll::Ready(written) = Pin::new(&mut **io).poll_write(cx, self.connection.unsent())
        {
            match written {
                Ok(0) => self.lost(Loss::Closed, now),
                Ok(count) => {
                    self.connection.wrote(count);
                    self.outside.shared.counters.bytes_sent.add(count as u64);
                    self.unflushed = true;
                }
                Err(error) => self.lost(Loss::Io(Arc::new(error)), now),
            }
        }
        if self.unflushed
            && let Some(io) = &mut self.outside.io
            && let Poll::Ready(flushed) = Pin::new(&mut **io).poll_flush(cx)
        {
            self.unflushed = false;
            if let Err(error) = flushed {
                self.lost(Loss::Io(Arc::new(error)), now);
            }
        }
    }

    /// Reads and hands out what is whole, until the socket is empty; false if there may be more.
    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        self.connection.resume(now.into_std(), &mut self.outside);
        for _ in 0..READS {
            let Some(io) = &mut self.outside.io else { return true };
            let Poll::Ready(read) = pin!(io.read_buf(self.connection.input())).poll(cx) else { return true };
            match read {
                Ok(0) => self.lost(Loss::Closed, now),
                Ok(count) => {
                    self.outside.shared.counters.bytes_received.add(count as u64);
                    self.connection.received(now.into_std(), &mut self.outside);
                    if self.connection.is_paused() {
                        return false;
                    }
                }
                Err(error) => self.lost(Loss::Io(Arc::new(error)), now),
            }
        }
        false
    }

    fn lost(&mut self, loss: Loss, now: Instant) {
        self.connection.lost(loss, now.into_std(), &mut self.outside);
    }

    /// Sets the timer. While requests come and go it stays where it is and may wake us for nothing, so it is set once per
    /// deadline and not once per request.
    fn arm(&mut self, cx: &mut Context<'_>, now: Instant) {
        let Some(due) = self.connection.due().map(Instant::from_std) else { return };
        if self.armed.is_none_or(|armed| due < armed || armed <= now) {
            self.armed = Some(due);
            self.timer.as_mut().reset(due);
            // Polled once to leave our waker, which must not fail because the task has used up its budget.
            if pin!(unconstrained(self.timer.as_mut())).poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }
}

impl Future for Worker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &mut *self;
        let now = Instant::now();
        if worker.connection.is_paused() {
            worker.visit(None, now); // what the callers of the first half left meanwhile
        }
        for _ in 0..ROUNDS {
            worker.connection.tick(now.into_std(), &mut worker.outside);
            worker.poll_dial(cx, now);
            if worker.lets_batch_grow(now) {
                break;
            }
            worker.write(cx, now);
            let drained = worker.read(cx, now);
            if worker.connection.is_closed() {
                return Poll::Ready(());
            }
            worker.arm(cx, now);
            if worker.connection.is_paused() {
                worker.yielded = true; // the batch grows while we are away
                break;
            }
            // Only with nothing to read and nothing left by callers does it sleep.
            if drained && !worker.visit(Some(cx.waker()), now) {
                worker.outside.count();
                return Poll::Pending;
            }
        }
        worker.outside.count();
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The clock of the runtime may be gone already, and nothing here depends on it.
        self.connection.cancel(std::time::Instant::now(), &mut self.outside);
        self.outside.count();
    }
}

impl Outside {
    /// Adds up what this poll did.
    fn count(&mut self) {
        let counters = &self.shared.counters;
        counters.answers.add(std::mem::take(&mut self.answers));
        counters.deadlines.add(std::mem::take(&mut self.deadlines));
        counters.failures.add(std::mem::take(&mut self.failures));
        counters.pushes.add(std::mem::take(&mut self.pushes));
    }
}

impl Shell<Arc<Slot>> for Outside {
    fn dial(&mut self) {
        self.dialing = Some((self.dialer)());
    }

    fn hangup(&mut self) {
        (self.dialing, self.io) = (None, None);
    }

    fn gate(&mut self, shut: Option<RequestError>) {
        self.shared.inbox.gate(shut);
    }

    fn take_late(&mut self, requests: &mut Vec<Request<Arc<Slot>>>, bytes: &mut Vec<u8>) {
        self.shared.inbox.take_late(requests, bytes);
        self.shared.counters.requests.add(requests.len() as u64);
    }

    fn answer(&mut self, slot: Arc<Slot>, answer: Answer) {
        match &answer {
            Ok(_) => self.answers += 1,
            Err(RequestError::Deadline { .. }) => self.deadlines += 1,
            Err(_) => self.failures += 1,
        }
        slot.answer(answer);
    }

    fn push(&mut self, push: Bytes) {
        self.pushes += 1;
        self.shared.topics.deliver(push);
    }

    /// The one place that logs and publishes transitions.
    fn announce(&mut self, from: State, status: Status) {
        let to = status.state;
        match (to, &status.last_error) {
            (State::Failed, Some(error)) => {
                let (attempt, reason) = (status.reconnects, error.as_str());
                tracing::warn!(%from, %to, attempt, reason, %error, "link changed state");
            }
            _ => tracing::info!(%from, %to, "link changed state"),
        }
        match to {
            State::Closed => self.shared.ended(status),
            _ => self.shared.journal.record(status),
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
