//! The actor: one task that owns the socket of one link.
//!
//! Invariant: requests leave and are answered in order, reading and writing go on at the same time, and no caller's code
//! runs here. Everybody who is open when the link ends, for whatever reason, is told why.
//! Kept by: the cores decide ([`Link`], [`Pipeline`]); [`Worker::apply`] is the only place that carries out a transition.
//! Dropping the worker, as a runtime does when it shuts down, answers everybody with `Cancelled`.
//! Not here: what replies mean, who waits and where.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep};

use crate::client::Shared;
use crate::connect::{Connected, Dialer, Dialing, Io};
use crate::core::backoff::Dice;
use crate::core::link::{Effect, Event, Link, Policy};
use crate::core::pipeline::{Pipeline, Received, Request};
use crate::error::{Loss, RequestError};
use crate::inbox::Held;
use crate::slot::Slot;
use crate::status::Status;

/// Rounds of writing and reading before others in the runtime get their turn.
const ROUNDS: usize = 16;

pub(crate) struct Worker {
    shared: Arc<Shared>,
    generation: u64,
    link: Link,
    policy: Policy,
    dice: Dice,
    dialer: Dialer,
    dialing: Option<Dialing>,
    io: Option<Box<dyn Io>>,
    pipeline: Pipeline<Arc<Slot>>,
    /// What the last parse asked for, so that a large reply gets a large buffer.
    need: usize,
    last_error: Option<Loss>,
    last_read: Instant,
    timer: Pin<Box<Sleep>>,
    /// When `timer` will wake us, at the latest when `due` wants it.
    armed: Option<Instant>,
    /// The earliest moment at which something depends on the time.
    due: Option<Instant>,
    close_wished: bool,
    /// The batch at hand has had its chance to grow.
    yielded: bool,
    unflushed: bool,
    requests: Vec<Request<Arc<Slot>>>,
    bytes: Vec<u8>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, dialer: Dialer, generation: u64) -> Self {
        let now = Instant::now();
        let mut worker = Worker {
            policy: Policy {
                reconnect: shared.config.reconnect.clone(),
                close_timeout: shared.config.close_timeout,
            },
            pipeline: Pipeline::new(shared.config.limits, shared.config.subscriber_only),
            shared,
            generation,
            link: Link::Init,
            dice: Dice::random(),
            dialer,
            dialing: None,
            io: None,
            need: 0,
            last_error: None,
            last_read: now,
            timer: Box::pin(tokio::time::sleep_until(now)),
            armed: None,
            due: None,
            close_wished: false,
            yielded: false,
            unflushed: false,
            requests: Vec::new(),
            bytes: Vec::new(),
        };
        worker.apply(Event::Start, now);
        worker
    }

    /// Carries out one event: the transition, its effects, and then what everybody else may know of it.
    fn apply(&mut self, event: Event, now: Instant) {
        let before = self.link;
        let mut effects = Vec::new();
        self.link = before.step(event, now.into_std(), &self.policy, &mut self.dice, &mut effects);
        if self.link == before {
            return;
        }
        self.gate();
        let mut give_up = false;
        for effect in effects {
            match effect {
                Effect::Dial => self.dialing = Some((self.dialer)()),
                Effect::Hangup => (self.dialing, self.io) = (None, None),
                Effect::FailOpen => self.fail_open(RequestError::Lost(self.last_loss()), now),
                Effect::CancelOpen => self.fail_open(self.closed(), now),
                Effect::GiveUp => give_up = true,
            }
        }
        self.want(self.link.wakes_at().map(Instant::from_std));
        self.announce(before);
        if give_up {
            self.apply(Event::Close, now);
        }
    }

    /// Opens or shuts the inbox, as the state wants it.
    fn gate(&self) {
        match self.link {
            Link::Connecting | Link::Open | Link::Reconnecting { .. } => self.shared.inbox.open(),
            Link::Failed { until, .. } => {
                self.shared.inbox.shut(RequestError::Rejected { last_error: self.last_loss(), retry_at: until });
            }
            Link::Init | Link::Closing { .. } | Link::Closed => self.shared.inbox.shut(self.closed()),
        }
    }

    /// The one place that logs and publishes transitions. A closed link lets go of the client first: whoever reads of it
    /// may start the next one.
    fn announce(&self, before: Link) {
        let (from, to) = (before.state(), self.link.state());
        match (&self.link, &self.last_error) {
            (Link::Failed { attempt, .. }, Some(error)) => {
                tracing::warn!(%from, %to, attempt, reason = error.as_str(), %error, "link changed state");
            }
            _ => tracing::info!(%from, %to, "link changed state"),
        }
        if self.link == Link::Closed {
            self.shared.ended();
        }
        self.shared.journal.record(Status {
            state: to,
            generation: self.generation,
            reconnects: self.link.attempt(),
            last_error: self.last_error.clone(),
            retry_at: if let Link::Failed { until, .. } = self.link { until } else { None },
        });
    }

    fn last_loss(&self) -> Loss {
        self.last_error.clone().unwrap_or(Loss::Closed)
    }

    fn closed(&self) -> RequestError {
        RequestError::Closed { last_error: self.last_error.clone() }
    }

    fn lose(&mut self, loss: Loss, now: Instant) {
        self.last_error = Some(loss);
        self.apply(Event::Lost, now);
    }

    /// Answers everybody with `error`, those included who got in just before the inbox was shut.
    fn fail_open(&mut self, error: RequestError, now: Instant) {
        self.visit(None, now);
        let mut failed = 0;
        self.pipeline.fail_all(|slot| {
            slot.answer(Err(error.clone()));
            failed += 1;
        });
        self.shared.counters.failures.add(failed);
        (self.need, self.unflushed, self.yielded) = (0, false, false);
    }

    /// Takes what callers left; true if there was anything. With `sleeper`, prepares to sleep if there wasn't.
    fn visit(&mut self, sleeper: Option<&Waker>, now: Instant) -> bool {
        let held = Held { requests: self.pipeline.len(), unsent_bytes: self.pipeline.unsent().len() };
        let wishes = self.shared.inbox.take(held, &mut self.requests, &mut self.bytes, sleeper);
        self.close_wished |= wishes.close;
        if self.requests.is_empty() {
            return wishes.close;
        }
        self.shared.counters.requests.add(self.requests.len() as u64);
        if let Some(timeout) = self.pipeline.accept(&mut self.requests, &mut self.bytes, now.into_std()) {
            let stall = self.shared.config.stall_timeout.unwrap_or(timeout);
            self.want(Some(now + timeout.min(stall)));
        }
        true
    }

    /// Notes that something depends on the time at `at`.
    fn want(&mut self, at: Option<Instant>) {
        self.due = [self.due, at].into_iter().flatten().min();
    }

    fn poll_dial(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(dialing) = &mut self.dialing else { return false };
        let Poll::Ready(result) = dialing.as_mut().poll(cx) else { return false };
        self.dialing = None;
        match result {
            Ok(Connected { io, received, resp3 }) => {
                self.io = Some(io);
                self.pipeline.forget_unsent();
                self.pipeline.input(0).extend_from_slice(&received);
                self.last_read = now;
                self.shared.counters.connections.add(1);
                self.shared.connected(resp3);
                self.apply(Event::Connected, now);
                self.parse(now);
            }
            Err(error) => self.lose(Loss::Connect(Arc::new(error)), now),
        }
        true
    }

    /// Writes what there is; true if anything moved.
    fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(io) = &mut self.io else { return false };
        let mut moved = false;
        while !self.pipeline.unsent().is_empty() {
            match Pin::new(&mut **io).poll_write(cx, self.pipeline.unsent()) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.lose(Loss::Closed, now);
                    return true;
                }
                Poll::Ready(Ok(count)) => {
                    self.pipeline.wrote(count);
                    self.shared.counters.bytes_sent.add(count as u64);
                    (moved, self.unflushed) = (true, true);
                }
                Poll::Ready(Err(error)) => {
                    self.lose(Loss::Io(Arc::new(error)), now);
                    return true;
                }
            }
        }
        if self.unflushed
            && let Poll::Ready(result) = Pin::new(&mut **io).poll_flush(cx)
        {
            self.unflushed = false;
            if let Err(error) = result {
                self.lose(Loss::Io(Arc::new(error)), now);
            }
        }
        moved
    }

    /// Reads once and hands out what is whole; true if anything came.
    fn read(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(io) = &mut self.io else { return false };
        let read = pin!(io.read_buf(self.pipeline.input(self.need))).poll(cx);
        match read {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.lose(Loss::Closed, now),
            Poll::Ready(Err(error)) => self.lose(Loss::Io(Arc::new(error)), now),
            Poll::Ready(Ok(count)) => {
                self.shared.counters.bytes_received.add(count as u64);
                self.last_read = now;
                self.parse(now);
            }
        }
        true
    }

    fn parse(&mut self, now: Instant) {
        let shared = &self.shared;
        let (mut answers, mut pushes) = (0, 0);
        let parsed = self.pipeline.receive(|received| match received {
            Received::Answer(slot, replies) => {
                slot.answer(Ok(replies));
                answers += 1;
            }
            Received::Push(push) => {
                shared.topics.deliver(push);
                pushes += 1;
            }
        });
        shared.counters.answers.add(answers);
        if pushes > 0 {
            shared.counters.pushes.add(pushes);
        }
        match parsed {
            Ok(need) => self.need = need,
            Err(error) => self.lose(Loss::Protocol(error), now),
        }
    }

    /// Does what the time asks for; true if it was time for anything.
    fn tick(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        let mut expired = 0;
        self.pipeline.expire(now.into_std(), |slot, after| {
            slot.answer(Err(RequestError::Deadline { after }));
            expired += 1;
        });
        self.shared.counters.deadlines.add(expired);
        if self.stalled_at().is_some_and(|at| now >= at) {
            self.lose(Loss::Stalled(now - self.last_read), now);
        }
        self.apply(Event::Tick, now);
        let deadline = self.pipeline.next_deadline();
        let times = [deadline, self.link.wakes_at()].map(|at| at.map(Instant::from_std));
        self.due = times.into_iter().chain([self.stalled_at()]).flatten().min();
        true
    }

    /// When the silence of the server will have lasted too long.
    fn stalled_at(&self) -> Option<Instant> {
        let limit = self.shared.config.stall_timeout?;
        let oldest = Instant::from_std(self.pipeline.oldest_sent()?);
        Some(self.last_read.max(oldest) + limit)
    }

    /// Sets the timer; true if it has fired already. While requests come and go the timer stays where it is and may wake
    /// us for nothing, so it is set once per deadline and not once per request.
    fn arm(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(due) = self.due else { return false };
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

    /// One round of everything; true if anything moved, `Pending` to let callers add to the batch first.
    fn round(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<bool> {
        let found = self.visit(None, now);
        if std::mem::take(&mut self.close_wished) {
            self.apply(Event::Close, now);
        }
        let mut moved = self.tick(now) | self.poll_dial(cx, now);
        // With one request open its caller waits; with more of them, others are about to add to the batch.
        if found && !self.yielded && self.pipeline.len() > 1 && self.io.is_some() {
            self.yielded = true;
            return Poll::Pending;
        }
        self.yielded = false;
        moved |= self.write(cx, now);
        moved |= self.read(cx, now);
        if let Link::Closing { .. } = self.link
            && self.pipeline.is_empty()
        {
            self.apply(Event::Drained, now);
        }
        Poll::Ready(found | moved)
    }
}

impl Future for Worker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &mut *self;
        let now = Instant::now();
        for _ in 0..ROUNDS {
            let Poll::Ready(moved) = worker.round(cx, now) else { break };
            if let Link::Closed = worker.link {
                return Poll::Ready(());
            }
            if moved {
                continue;
            }
            if worker.arm(cx) {
                break;
            }
            if !worker.visit(Some(cx.waker()), now) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.link != Link::Closed {
            let before = std::mem::replace(&mut self.link, Link::Closed);
            self.shared.inbox.shut(RequestError::Cancelled);
            self.fail_open(RequestError::Cancelled, self.last_read);
            self.announce(before);
        }
    }
}
