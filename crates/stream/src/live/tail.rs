//! Tail: the response body that yields a topic's events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Instant;

use crate::live::direct_writes::{DirectWrites, TailId};
use crate::live::event_ring::EventContent;
use crate::live::topic::{TopicShared, WaitingTail};

/// Response body that yields the events published after its subscription.
#[derive(Debug)]
pub struct Tail {
    pub(super) shared: Arc<TopicShared>,
    pub(super) id: TailId,
    pub(super) progress: TailProgress,
    /// Index of its entry in the topic's `waiting`.
    pub(super) slot: u32,
    /// Set if the topic may write events to the socket.
    pub(super) writes: Option<DirectWrites>,
    pub(super) ended: bool,
}

/// Last event that a tail has yielded, or that was written for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastEvent {
    /// Mark given to [`Topic::publish_marked`](crate::Topic::publish_marked).
    pub mark: u64,
    /// Time of publication.
    pub at: Instant,
}

/// Position of a tail in its topic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TailProgress {
    /// Number of the next event.
    pub(super) next: u64,
    pub(super) last: Option<LastEvent>,
}

/// The tail fell behind: the ring no longer holds the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fell {behind} events behind a topic that keeps {capacity}")]
pub struct TailLagged {
    /// Events that the tail hadn't yielded.
    pub behind: u64,
    /// Events that the topic keeps.
    pub capacity: usize,
}

impl Tail {
    /// Allows the topic to write events to the stream's socket without polling the body.
    ///
    /// `writes` must be in the extensions of the same response. Use it only if the response body
    /// passes the tail's events on unchanged. A body that inspects events, or changes them, must
    /// not use it.
    ///
    /// With four or more direct tails, tasks of the runtime in which the topic was created write
    /// the events, so that runtime must keep running.
    pub fn direct(mut self, writes: &DirectWrites) -> Tail {
        self.take_back_writes();
        if self.writes.replace(writes.clone()).is_none() {
            self.shared.state.lock().direct += 1;
        }
        self
    }

    /// Takes back delegated writes, with the progress that the topic has made.
    fn take_back_writes(&mut self) {
        let delegated = self.writes.as_ref().and_then(|writes| writes.delegation().take_back(self.id));
        self.progress = delegated.unwrap_or(self.progress);
    }

    /// Returns the last event that was yielded, or written before the last poll.
    pub fn last(&self) -> Option<LastEvent> {
        self.progress.last
    }

    /// Returns the next event; `None` at the end.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TailLagged>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut delegation = self.writes.as_ref().map(DirectWrites::delegation);
        if let Some(progress) = delegation.as_mut().and_then(|delegation| delegation.take_back(self.id)) {
            self.progress = progress;
        }
        let mut state = self.shared.state.lock();
        let behind = state.ring.next() - self.progress.next;
        if behind == 0 && !state.closed {
            let is_delegated =
                delegation.as_mut().is_some_and(|delegation| delegation.delegate(self.id, self.progress));
            let writes = self.writes.as_ref().filter(|_| is_delegated);
            let waiter = &mut state.waiting[self.slot as usize];
            let is_registered = waiter.as_ref().is_some_and(|waiter| waiter.matches(cx.waker(), writes));
            let new = (!is_registered).then(|| WaitingTail {
                tail: self.id,
                waker: cx.waker().clone(),
                writes: writes.cloned(),
            });
            let former = new.and_then(|new| waiter.replace(new));
            drop((state, delegation));
            drop(former); // outside the locks, as in `Drop`
            return Poll::Pending;
        }
        let number = self.progress.next;
        let Some(event) = state.ring.get(number) else {
            self.ended = true;
            let lagged = TailLagged { behind, capacity: state.ring.capacity() };
            return Poll::Ready((behind > 0).then_some(Err(lagged)));
        };
        self.progress = TailProgress { next: number + 1, last: Some(event.last) };
        let content = event.content.clone();
        drop((state, delegation));
        Poll::Ready(Some(Ok(match content {
            EventContent::Encoded(bytes) => bytes,
            EventContent::Deferred(event) => self.shared.encode(number, &event),
        })))
    }
}

impl Body for Tail {
    type Data = Bytes;
    type Error = TailLagged;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TailLagged>>> {
        self.poll_event(cx).map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.take_back_writes();
        let mut state = self.shared.state.lock();
        let waiter = state.waiting[self.slot as usize].take();
        state.direct -= usize::from(self.writes.is_some());
        state.free.push(self.slot);
        if state.free.len() == state.waiting.len() {
            (state.waiting, state.free) = (Vec::new(), Vec::new());
        }
        drop(state);
        drop(waiter); // may drop a task and run its code, so not under the lock
    }
}
