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
const ROUNDS: usize = 16;

pub(crate) struct Worker {
    connection: Connection<Arc<Slot>>,
    outside: Outside,
    timer: Pin<Box<Sleep>>,
    /// When `timer` will wake us, at the latest when the connection's time is due.
    armed: Option<Instant>,
    /// The batch at hand has had its chance to grow.
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
            yielded: false,
            unflushed: false,
            requests: Vec::new(),
            bytes: Vec::new(),
        };
        worker.connection.start(now.into_std(), &mut worker.outside);
        worker
    }

    /// One round of everything; true if anything moved, `Pending` to let callers add to the batch first.
    fn round(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<bool> {
        let found = self.visit(None, now);
        let mut moved = self.connection.tick(now.into_std(), &mut self.outside);
        moved |= self.poll_dial(cx, now);
        // With one request open its caller waits; with more of them, others are about to add to the batch.
        if found && !self.yielded && self.connection.open_requests() > 1 && self.outside.io.is_some() {
            self.yielded = true;
            return Poll::Pending;
        }
        self.yielded = false;
        moved |= self.write(cx, now);
        moved |= self.read(cx, now);
        Poll::Ready(found | moved)
    }

    /// Takes what callers left; true if there was anything. With `sleeper`, prepares to sleep if there wasn't.
    fn visit(&mut self, sleeper: Option<&Waker>, now: Instant) -> bool {
        let held =
            Held { requests: self.connection.open_requests(), unsent_bytes: self.connection.unsent().len() };
        let shared = &self.outside.shared;
        let wishes = shared.inbox.take(held, &mut self.requests, &mut self.bytes, sleeper);
        let found = !self.requests.is_empty();
        if found {
            shared.counters.requests.add(self.requests.len() as u64);
            self.connection.accept(&mut self.requests, &mut self.bytes, now.into_std());
        }
        if wishes.close {
            self.connection.close(now.into_std(), &mut self.outside);
        }
        found | wishes.close
    }

    fn poll_dial(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(dialing) = &mut self.outside.dialing else { return false };
        let Poll::Ready(result) = dialing.as_mut().poll(cx) else { return false };
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
        true
    }

    /// Writes what there is; true if anything moved.
    fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut moved = false;
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
            moved = true;
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
        moved
    }

    /// Reads once and hands out what is whole; true if anything came.
    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(io) = &mut self.outside.io else { return false };
        let Poll::Ready(read) = pin!(io.read_buf(self.connection.input())).poll(cx) else { return false };
        match read {
            Ok(0) => self.lost(Loss::Closed, now),
            Ok(count) => {
                self.outside.shared.counters.bytes_received.add(count as u64);
                self.connection.received(now.into_std(), &mut self.outside);
            }
            Err(error) => self.lost(Loss::Io(Arc::new(error)), now),
        }
        true
    }

    fn lost(&mut self, loss: Loss, now: Instant) {
        self.connection.lost(loss, now.into_std(), &mut self.outside);
    }

    /// Sets the timer; true if it has fired already. While requests come and go the timer stays where it is and may wake
    /// us for nothing, so it is set once per deadline and not once per request.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(due) = self.connection.due().map(Instant::from_std) else { return false };
        if self.armed.is_none_or(|armed| due < armed) {
            self.armed = Some(due);
            self.timer.as_mut().reset(due);
        }
        let fired = self.timer.as_mut().poll(cx).is_ready();
        if fired {
            self.armed = None;
        }
        fired
    }
}

impl Future for Worker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &mut *self;
        let now = Instant::now();
        let mut idle = false;
        for _ in 0..ROUNDS {
            let Poll::Ready(moved) = worker.round(cx, now) else { break };
            if worker.connection.is_closed() {
                return Poll::Ready(());
            }
            if moved {
                continue;
            }
            if worker.arm(cx) {
                break;
            }
            if !worker.visit(Some(cx.waker()), now) {
                idle = true;
                break;
            }
        }
        worker.outside.count();
        if !idle {
            cx.waker().wake_by_ref();
        }
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

    /// The one place that logs and publishes transitions. A closed link lets go of the client first: whoever reads of it
    /// may start the next one.
    fn announce(&mut self, from: State, status: Status) {
        let to = status.state;
        match (to, &status.last_error) {
            (State::Failed, Some(error)) => {
                let (attempt, reason) = (status.reconnects, error.as_str());
                tracing::warn!(%from, %to, attempt, reason, %error, "link changed state");
            }
            _ => tracing::info!(%from, %to, "link changed state"),
        }
        if to == State::Closed {
            self.shared.ended();
        }
        self.shared.journal.record(status);
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
