//! Connection core: link state, open requests and timers of one connection, without any I/O.
//!
//! Invariant: every accepted request is completed exactly once. When the link enters a state that
//! rejects requests, every open request fails before the new state is published.
//! Enforced by: [`ConnectionCore::apply`] is the only transition. It rejects new requests, performs
//! the effects, fails requests that arrived before the rejection, and publishes the new state last.
//! Out of scope: the socket and the inbox; see [`EffectHandler`].

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use super::frame::ReplyLimits;
use super::link::{Effect, Event, LinkPolicy, LinkState, State};
use super::pipeline::{
    ParseProgress, Pipeline, PipelineOutput, PipelineRequest, Replies, ReplySink, SendState,
};
use crate::error::{ConnectionLoss, RequestError};
use crate::status::Status;

/// I/O that the core requests. The worker performs it; tests record it.
pub(crate) trait EffectHandler<S> {
    /// Starts to connect.
    fn dial(&mut self);
    /// Drops the socket, or the dial in progress.
    fn hangup(&mut self);
    /// Rejects new requests with this error, or accepts requests again if it is `None`.
    fn set_rejection(&mut self, rejection: Option<RequestError>);
    /// Takes the requests that were submitted before the rejection was set.
    fn take_remaining(&mut self, requests: &mut Vec<PipelineRequest<S>>, bytes: &mut Vec<u8>);
    fn complete(&mut self, sink: S, result: Result<Replies, RequestError>);
    fn push(&mut self, push: Bytes);
    /// Publishes a transition to watchers and to the log.
    fn publish_status(&mut self, from: State, status: Status);
}

/// Immutable settings of a connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSettings {
    pub(crate) policy: LinkPolicy,
    pub(crate) limits: ReplyLimits,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) arrays_are_pushes: bool,
    /// True if a refusal may end the connection; see
    /// [`ServerRefusal::ends_connection`](super::refusal::ServerRefusal::ends_connection).
    pub(crate) leave_unfit_server: bool,
    pub(crate) generation: u64,
}

/// Minimum number of open requests for which replies are dispatched in two halves.
const MIN_OPEN_TO_SPLIT: usize = 4;

pub(crate) struct ConnectionCore<S> {
    settings: ConnectionSettings,
    rng: Rng,
    link: LinkState,
    pipeline: Pipeline<S>,
    /// Missing bytes that the last parse reported, so that a large reply gets a large buffer.
    need: usize,
    /// True while a part of the received replies is not dispatched; see
    /// [`received`](Self::received).
    paused: bool,
    last_error: Option<ConnectionLoss>,
    /// When bytes were last received.
    last_read: Instant,
    /// When [`tick`](Self::tick) must be called next.
    due: Option<Instant>,
}

impl<S: ReplySink> ConnectionCore<S> {
    pub(crate) fn new(settings: ConnectionSettings, rng: Rng, now: Instant) -> Self {
        let pipeline = Pipeline::new(settings.limits, settings.arrays_are_pushes);
        ConnectionCore {
            settings,
            rng,
            link: LinkState::Init,
            pipeline,
            need: 0,
            paused: false,
            last_error: None,
            last_read: now,
            due: None,
        }
    }

    pub(crate) fn start(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        self.apply(Event::Start, now, handler);
    }

    /// Moves the requests and their bytes into the pipeline. Leaves both vectors empty.
    pub(crate) fn accept(
        &mut self,
        requests: &mut Vec<PipelineRequest<S>>,
        bytes: &mut Vec<u8>,
        now: Instant,
    ) {
        if let Some(timeout) = self.pipeline.accept(requests, bytes, now) {
            let stall = self.settings.stall_timeout.unwrap_or(timeout);
            self.wake_by(now.checked_add(timeout.min(stall)));
        }
    }

    /// Handles a completed dial and handshake. `received` holds the bytes that followed the
    /// handshake.
    pub(crate) fn connected(&mut self, received: &[u8], now: Instant, handler: &mut impl EffectHandler<S>) {
        self.pipeline.remove_abandoned_unsent();
        self.pipeline.input(0).extend_from_slice(received);
        self.apply(Event::Connected, now, handler);
        self.received(now, handler);
    }

    /// Handles a failed dial or a broken connection. Only the first report of a loss sets the
    /// reason.
    pub(crate) fn lost(&mut self, loss: ConnectionLoss, now: Instant, handler: &mut impl EffectHandler<S>) {
        self.resume(now, handler); // replies that have arrived are still valid
        if !matches!(self.link, LinkState::Failed { .. } | LinkState::Closed) {
            let event = if let ConnectionLoss::Unfit(_) = loss { Event::Unfit } else { Event::Lost };
            self.last_error = Some(loss);
            self.apply(event, now, handler);
        }
    }

    /// Returns the bytes to write.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.pipeline.unsent()
    }

    pub(crate) fn wrote(&mut self, count: usize) {
        self.pipeline.wrote(count);
    }

    /// Returns the buffer to read into.
    pub(crate) fn input(&mut self) -> &mut BytesMut {
        self.pipeline.input(self.need)
    }

    /// Handles bytes that were read into [`input`](Self::input).
    ///
    /// With many requests open, this dispatches half as many replies first. Their callers can then
    /// send new requests while the second half is dispatched. Until then the core
    /// [`is_paused`](Self::is_paused).
    pub(crate) fn received(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        self.last_read = now;
        let open = self.pipeline.len();
        self.dispatch(if open < MIN_OPEN_TO_SPLIT { usize::MAX } else { open / 2 }, now, handler);
    }

    /// Dispatches the second half of the replies, if there is one.
    pub(crate) fn resume(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        if self.paused {
            self.dispatch(usize::MAX, now, handler);
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    fn dispatch(&mut self, max_completed: usize, now: Instant, handler: &mut impl EffectHandler<S>) {
        let parsed = self.pipeline.receive(max_completed, |received| match received {
            PipelineOutput::Completed(sink, replies) => handler.complete(sink, Ok(replies)),
            PipelineOutput::Push(push) => handler.push(push),
        });
        self.paused = parsed == Ok(ParseProgress::LimitReached);
        match parsed {
            Ok(ParseProgress::LimitReached) => {}
            Ok(ParseProgress::All { need }) => self.need = need,
            Err(error) => self.lost(ConnectionLoss::Protocol(error), now, handler),
        }
        self.leave_unfit(now, handler);
        self.finish_closing(now, handler);
    }

    /// Ends the connection if a refusal has shown that the server is unfit. Received replies are
    /// dispatched first. A client that is closing keeps the connection, so that requests in flight
    /// can finish.
    fn leave_unfit(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        if let Some(refusal) = self.pipeline.take_unfit()
            && self.settings.leave_unfit_server
            && let LinkState::Open { .. } = self.link
        {
            self.lost(ConnectionLoss::Unfit(refusal), now, handler);
        }
    }

    pub(crate) fn close(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        self.apply(Event::Close, now, handler);
        self.finish_closing(now, handler);
    }

    /// Returns the time at which [`tick`](Self::tick) must be called.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Expires deadlines, detects a stalled server and advances the link, if `due` has passed.
    pub(crate) fn tick(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.resume(now, handler); // a reply that has arrived is in time
        self.pipeline
            .expire(now, |sink, after| handler.complete(sink, Err(RequestError::Deadline { after })));
        if self.stalled_at().is_some_and(|at| now >= at) {
            self.lost(ConnectionLoss::Stalled(now - self.last_read), now, handler);
        }
        self.apply(Event::Tick, now, handler);
        self.finish_closing(now, handler);
        self.due = [self.pipeline.next_deadline(), self.link.wakes_at(), self.stalled_at()]
            .into_iter()
            .flatten()
            .min();
    }

    pub(crate) fn open_requests(&self) -> usize {
        self.pipeline.len()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.link == LinkState::Closed
    }

    /// Closes the link at once, because the client is aborted or the worker is dropped. Every open
    /// request fails with `Cancelled`.
    pub(crate) fn cancel(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        if !self.is_closed() {
            let before = std::mem::replace(&mut self.link, LinkState::Closed);
            handler.set_rejection(Some(RequestError::Cancelled));
            handler.hangup();
            self.fail_open_requests(RequestError::Cancelled, RequestError::Cancelled, now, handler);
            handler.publish_status(before.state(), self.status());
        }
    }

    fn apply(&mut self, event: Event, now: Instant, handler: &mut impl EffectHandler<S>) {
        let before = self.link;
        let mut effects = Vec::new();
        self.link = before.step(event, now, &self.settings.policy, &mut self.rng, &mut effects);
        if self.link == before {
            return;
        }
        handler.set_rejection(self.rejection());
        let mut give_up = false;
        for effect in effects {
            match effect {
                Effect::Dial => handler.dial(),
                Effect::Hangup => handler.hangup(),
                Effect::FailOpen => {
                    let unsent_error =
                        self.rejection().expect("a link that fails its open requests rejects new ones");
                    self.fail_open_requests(RequestError::Lost(self.last_loss()), unsent_error, now, handler);
                }
                Effect::CancelOpen => {
                    self.fail_open_requests(self.closed_error(), self.closed_error(), now, handler)
                }
                Effect::GiveUp => give_up = true,
            }
        }
        self.wake_by(self.link.wakes_at());
        handler.publish_status(before.state(), self.status());
        if give_up {
            self.apply(Event::Close, now, handler);
        }
    }

    /// Returns the error for requests that are rejected in this state, or `None` if requests are
    /// accepted.
    fn rejection(&self) -> Option<RequestError> {
        match self.link {
            LinkState::Connecting | LinkState::Open { .. } | LinkState::Reconnecting { .. } => None,
            LinkState::Failed { until, .. } => {
                Some(RequestError::Rejected { last_error: self.last_loss(), retry_at: until })
            }
            LinkState::Init | LinkState::Closing { .. } | LinkState::Closed => Some(self.closed_error()),
        }
    }

    fn finish_closing(&mut self, now: Instant, handler: &mut impl EffectHandler<S>) {
        if let LinkState::Closing { .. } = self.link
            && self.pipeline.is_empty()
        {
            self.apply(Event::Drained, now, handler);
        }
    }

    /// Fails every open request, including those submitted just before the rejection was set.
    /// Requests of which a byte was sent get `sent_error`, the others get `unsent_error`.
    fn fail_open_requests(
        &mut self,
        sent_error: RequestError,
        unsent_error: RequestError,
        now: Instant,
        handler: &mut impl EffectHandler<S>,
    ) {
        let (mut requests, mut bytes) = (Vec::new(), Vec::new());
        handler.take_remaining(&mut requests, &mut bytes);
        self.pipeline.accept(&mut requests, &mut bytes, now);
        self.pipeline.fail_all(|sink, send_state| {
            let error = match send_state {
                SendState::Begun => &sent_error,
                SendState::Unsent => &unsent_error,
            };
            handler.complete(sink, Err(error.clone()));
        });
        (self.need, self.paused) = (0, false);
    }

    /// Returns the time at which the server counts as stalled.
    fn stalled_at(&self) -> Option<Instant> {
        self.last_read.max(self.pipeline.oldest_sent()?).checked_add(self.settings.stall_timeout?)
    }

    /// Schedules a [`tick`](Self::tick) at `at` or earlier.
    fn wake_by(&mut self, at: Option<Instant>) {
        self.due = [self.due, at].into_iter().flatten().min();
    }

    fn closed_error(&self) -> RequestError {
        RequestError::Closed { last_error: self.last_error.clone() }
    }

    fn last_loss(&self) -> ConnectionLoss {
        self.last_error.clone().unwrap_or(ConnectionLoss::Closed)
    }

    fn status(&self) -> Status {
        Status {
            state: self.link.state(),
            generation: self.settings.generation,
            reconnects: self.link.attempt(),
            last_error: self.last_error.clone(),
            retry_at: if let LinkState::Failed { until, .. } = self.link { until } else { None },
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
