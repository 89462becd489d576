//! The whole life of a connection: which state it is in, who is open, what is due.
//!
//! Invariant: everybody who is let in is answered exactly once; when the link leaves the states in which requests may be
//! open, everybody is answered with the reason before anyone reads of the change.
//! Kept by: [`Connection::apply`] is the only way from one state to the next: it shuts the gate, carries out the effects,
//! answers those who slipped in before the gate was shut, and announces the new state last.
//! Not here: the socket and the inbox, which stand behind [`Shell`].

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::backoff::Dice;
use super::frame::Limits;
use super::link::{Effect, Event, Link, Policy, State};
use super::pipeline::{Parsed, Pipeline, Received, Replies, Request, Sink};
use crate::error::{Loss, RequestError};
use crate::status::Status;

/// What the rules need done. The worker does it; tests write it down.
pub(crate) trait Shell<S> {
    /// Start to connect.
    fn dial(&mut self);
    /// Let go of the socket, or of the dial under way.
    fn hangup(&mut self);
    /// Let requests in, or from now on reject them with this error.
    fn gate(&mut self, shut: Option<RequestError>);
    /// Take what was let in before the gate was shut.
    fn take_late(&mut self, requests: &mut Vec<Request<S>>, bytes: &mut Vec<u8>);
    fn answer(&mut self, sink: S, answer: Result<Replies, RequestError>);
    fn push(&mut self, push: Bytes);
    /// Tell everybody who watches.
    fn announce(&mut self, from: State, status: Status);
}

/// What a connection is told once.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) arrays_are_pushes: bool,
    /// A refusal that says so ends the connection.
    pub(crate) leave_unfit_server: bool,
    pub(crate) generation: u64,
}

/// With fewer requests open than this there is little to overlap.
const WORTH_HALVING: usize = 4;

pub(crate) struct Connection<S> {
    rules: Rules,
    dice: Dice,
    link: Link,
    pipeline: Pipeline<S>,
    /// What the last parse asked for, so that a large reply gets a large buffer.
    need: usize,
    /// Part of what came is handed out; see [`received`](Self::received).
    paused: bool,
    last_error: Option<Loss>,
    last_read: Instant,
    due: Option<Instant>,
}

impl<S: Sink> Connection<S> {
    pub(crate) fn new(rules: Rules, dice: Dice, now: Instant) -> Self {
        let pipeline = Pipeline::new(rules.limits, rules.arrays_are_pushes);
        Connection {
            rules,
            dice,
            link: Link::Init,
            pipeline,
            need: 0,
            paused: false,
            last_error: None,
            last_read: now,
            due: None,
        }
    }

    pub(crate) fn start(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        self.apply(Event::Start, now, shell);
    }

    /// Takes requests and their bytes over; both lists come back empty.
    pub(crate) fn accept(&mut self, requests: &mut Vec<Request<S>>, bytes: &mut Vec<u8>, now: Instant) {
        if let Some(timeout) = self.pipeline.accept(requests, bytes, now) {
            let stall = self.rules.stall_timeout.unwrap_or(timeout);
            self.want(now.checked_add(timeout.min(stall)));
        }
    }

    /// Dial and handshake are done; `received` is what the server sent beyond them.
    pub(crate) fn connected(&mut self, received: &[u8], now: Instant, shell: &mut impl Shell<S>) {
        self.pipeline.forget_unsent();
        self.pipeline.input(0).extend_from_slice(received);
        self.apply(Event::Connected, now, shell);
        self.received(now, shell);
    }

    /// The dial failed, or the connection broke. Only the first report of a loss tells its reason.
    pub(crate) fn lost(&mut self, loss: Loss, now: Instant, shell: &mut impl Shell<S>) {
        self.resume(now, shell); // what has come is still worth something
        if !matches!(self.link, Link::Failed { .. } | Link::Closed) {
            let event = if let Loss::Unfit(_) = loss { Event::Unfit } else { Event::Lost };
            self.last_error = Some(loss);
            self.apply(event, now, shell);
        }
    }

    /// What may be written now.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.pipeline.unsent()
    }

    pub(crate) fn wrote(&mut self, count: usize) {
        self.pipeline.wrote(count);
    }

    /// Where to read into.
    pub(crate) fn input(&mut self) -> &mut BytesMut {
        self.pipeline.input(self.need)
    }

    /// Bytes were read into [`input`](Self::input). With many requests open, half as many answers are handed out at first, so
    /// that the server has work again from their callers while the rest is handed out; until then it
    /// [`is_paused`](Self::is_paused).
    pub(crate) fn received(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        self.last_read = now;
        let open = self.pipeline.len();
        self.hand_out(if open < WORTH_HALVING { usize::MAX } else { open / 2 }, now, shell);
    }

    /// Hands out the second half, if there is one.
    pub(crate) fn resume(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        if self.paused {
            self.hand_out(usize::MAX, now, shell);
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    fn hand_out(&mut self, answers: usize, now: Instant, shell: &mut impl Shell<S>) {
        let parsed = self.pipeline.receive(answers, |received| match received {
            Received::Answer(sink, replies) => shell.answer(sink, Ok(replies)),
            Received::Push(push) => shell.push(push),
        });
        self.paused = parsed == Ok(Parsed::Some);
        match parsed {
            Ok(Parsed::Some) => {}
            Ok(Parsed::All { need }) => self.need = need,
            Err(error) => self.lost(Loss::Protocol(error), now, shell),
        }
        self.leave_unfit(now, shell);
        self.finish_closing(now, shell);
    }

    /// Ends the connection if the server has shown that it can't serve. What has come from it is handed out first; while
    /// the owner closes, what is in flight may finish.
    fn leave_unfit(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        if let Some(refusal) = self.pipeline.take_unfit()
            && self.rules.leave_unfit_server
            && let Link::Open { .. } = self.link
        {
            self.lost(Loss::Unfit(refusal), now, shell);
        }
    }

    pub(crate) fn close(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        self.apply(Event::Close, now, shell);
        self.finish_closing(now, shell);
    }

    /// When [`tick`](Self::tick) must be called.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Does what the time asks for, if it is time for anything.
    pub(crate) fn tick(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.resume(now, shell); // an answer that has come is in time
        self.pipeline.expire(now, |sink, after| shell.answer(sink, Err(RequestError::Deadline { after })));
        if self.stalled_at().is_some_and(|at| now >= at) {
            self.lost(Loss::Stalled(now - self.last_read), now, shell);
        }
        self.apply(Event::Tick, now, shell);
        self.finish_closing(now, shell);
        self.due = [self.pipeline.next_deadline(), self.link.wakes_at(), self.stalled_at()]
            .into_iter()
            .flatten()
            .min();
    }

    pub(crate) fn open_requests(&self) -> usize {
        self.pipeline.len()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.link == Link::Closed
    }

    /// The owner is going away: everybody is told, now.
    pub(crate) fn cancel(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        if !self.is_closed() {
            let before = std::mem::replace(&mut self.link, Link::Closed);
            shell.gate(Some(RequestError::Cancelled));
            shell.hangup();
            self.fail_open(RequestError::Cancelled, RequestError::Cancelled, now, shell);
            shell.announce(before.state(), self.status());
        }
    }

    fn apply(&mut self, event: Event, now: Instant, shell: &mut impl Shell<S>) {
        let before = self.link;
        let mut effects = Vec::new();
        self.link = before.step(event, now, &self.rules.policy, &mut self.dice, &mut effects);
        if self.link == before {
            return;
        }
        shell.gate(self.shut());
        let mut give_up = false;
        for effect in effects {
            match effect {
                Effect::Dial => shell.dial(),
                Effect::Hangup => shell.hangup(),
                Effect::FailOpen => {
                    let unsent = self.shut().expect("a link that fails its requests lets none in");
                    self.fail_open(RequestError::Lost(self.last_loss()), unsent, now, shell);
                }
                Effect::CancelOpen => self.fail_open(self.closed(), self.closed(), now, shell),
                Effect::GiveUp => give_up = true,
            }
        }
        self.want(self.link.wakes_at());
        shell.announce(before.state(), self.status());
        if give_up {
            self.apply(Event::Close, now, shell);
        }
    }

    /// Why the gate is shut in this state, if it is.
    fn shut(&self) -> Option<RequestError> {
        match self.link {
            Link::Connecting | Link::Open { .. } | Link::Reconnecting { .. } => None,
            Link::Failed { until, .. } => {
                Some(RequestError::Rejected { last_error: self.last_loss(), retry_at: until })
            }
            Link::Init | Link::Closing { .. } | Link::Closed => Some(self.closed()),
        }
    }

    fn finish_closing(&mut self, now: Instant, shell: &mut impl Shell<S>) {
        if let Link::Closing { .. } = self.link
            && self.pipeline.is_empty()
        {
            self.apply(Event::Drained, now, shell);
        }
    }

    /// Answers everybody, those included who got in just before the gate was shut: with `begun` if a byte of the request
    /// has left, with `unsent` if not.
    fn fail_open(
        &mut self,
        begun: RequestError,
        unsent: RequestError,
        now: Instant,
        shell: &mut impl Shell<S>,
    ) {
        let (mut requests, mut bytes) = (Vec::new(), Vec::new());
        shell.take_late(&mut requests, &mut bytes);
        self.pipeline.accept(&mut requests, &mut bytes, now);
        self.pipeline
            .fail_all(|sink, left| shell.answer(sink, Err(if left { &begun } else { &unsent }.clone())));
        (self.need, self.paused) = (0, false);
    }

    /// When the silence of the server will have lasted too long.
    fn stalled_at(&self) -> Option<Instant> {
        self.last_read.max(self.pipeline.oldest_sent()?).checked_add(self.rules.stall_timeout?)
    }

    /// Notes that something depends on the time at `at`.
    fn want(&mut self, at: Option<Instant>) {
        self.due = [self.due, at].into_iter().flatten().min();
    }

    fn closed(&self) -> RequestError {
        RequestError::Closed { last_error: self.last_error.clone() }
    }

    fn last_loss(&self) -> Loss {
        self.last_error.clone().unwrap_or(Loss::Closed)
    }

    fn status(&self) -> Status {
        Status {
            state: self.link.state(),
            generation: self.rules.generation,
            reconnects: self.link.attempt(),
            last_error: self.last_error.clone(),
            retry_at: if let Link::Failed { until, .. } = self.link { until } else { None },
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
