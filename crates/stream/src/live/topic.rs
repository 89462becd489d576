//! Topic: one sequence of events for any number of streams.
//!
//! Invariant: a tail yields every event published after its subscription, in order and without a
//! gap, or ends with [`TailLagged`](crate::TailLagged).
//! Enforced by: events are numbered, and each tail keeps its next number. A tail checks for its
//! event and stores its waker under the lock under which events are published.
//! Bounds: those of the ring (`event_ring.rs`), which all tails share. A tail that falls further
//! behind ends with `TailLagged`.
//!
//! A [deferred](Topic::publish_deferred) event is encoded once, outside the topic's lock, by the
//! first tail or delivery task that needs it. At most [`MAX_DEFERRED`] events wait for that; then a
//! delivery task encodes them.
//!
//! With [`MIN_DIRECT_TAILS`] or more [direct](Tail::direct) tails, tasks write the events to the
//! sockets (`delivery.rs`) instead of waking the tails. Publishers never wait for that.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use crate::live::delivery::{DeliveryRuntime, DeliveryTask};
use crate::live::direct_writes::{DirectWrites, TailId};
use crate::live::event_ring::{DeferredEvent, EventContent, EventRing};
use crate::live::tail::{LastEvent, Tail, TailProgress};
use crate::sync::{Mutex, MutexGuard};

/// Publishes events to any number of [`Tail`]s.
///
/// Clones are handles to the same topic. The tails end after their last event when the topic is
/// [closed](Topic::close) or its last handle is dropped.
///
/// An event is the bytes that clients receive, for example an SSE event: `data: hello\n\n`.
pub struct Topic {
    pub(super) shared: Arc<TopicShared>,
}

/// State shared by a topic's handles, tails and delivery tasks.
pub(super) struct TopicShared {
    pub(super) runtime: DeliveryRuntime,
    pub(super) state: Mutex<State>,
}

/// Events and tails of a topic.
pub(super) struct State {
    pub(super) ring: EventRing,
    /// Waiting tails by slot.
    pub(super) waiting: Vec<Option<WaitingTail>>,
    pub(super) free: Vec<u32>,
    /// Number of direct tails.
    pub(super) direct: usize,
    /// A delivery task has been spawned and hasn't started.
    pub(super) delivery_pending: bool,
    handles: usize,
    pub(super) closed: bool,
}

/// Tail that waits for the next event.
pub(super) struct WaitingTail {
    pub(super) tail: TailId,
    pub(super) waker: Waker,
    /// Set if the tail has delegated writes.
    pub(super) writes: Option<DirectWrites>,
}

/// Wakers called between two acquisitions of the lock.
const WAKE_BATCH: usize = 128;
/// With fewer direct tails they are woken instead: at high event rates a few tails read larger
/// batches than a delivery task writes.
const MIN_DIRECT_TAILS: usize = if cfg!(all(test, forebay_loom)) { 1 } else { 4 };
/// Maximum events that wait for a tail to encode them: what a publisher has captured may use more
/// memory than its size says, for example as a part of a larger buffer.
const MAX_DEFERRED: usize = 16;

impl Topic {
    /// Creates a topic that keeps the last `capacity` events for tails that are behind.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn new(capacity: usize) -> Topic {
        Topic::bounded(capacity, usize::MAX)
    }

    /// Creates a topic that keeps at most `capacity` events and `max_bytes` bytes, but always the
    /// last event.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn bounded(capacity: usize, max_bytes: usize) -> Topic {
        let state = State {
            ring: EventRing::new(capacity, max_bytes),
            waiting: Vec::new(),
            free: Vec::new(),
            direct: 0,
            delivery_pending: false,
            handles: 1,
            closed: false,
        };
        let runtime = DeliveryRuntime::current();
        Topic { shared: Arc::new(TopicShared { runtime, state: Mutex::new(state) }) }
    }

    /// Publishes `event` to every tail. Never waits; does nothing after [`close`](Topic::close).
    pub fn publish(&self, event: impl Into<Bytes>) {
        self.publish_marked(event, 0);
    }

    /// Publishes `event` with a mark, which [`Tail::last`] returns.
    pub fn publish_marked(&self, event: impl Into<Bytes>, mark: u64) {
        self.publish_content(EventContent::Encoded(event.into()), mark);
    }

    /// Publishes an event that `encode` returns later, with a mark.
    ///
    /// The first tail or delivery task that needs the event calls `encode`, once. So a publisher
    /// that must not wait, or that holds a lock, doesn't encode. Until then, `size` bytes count for
    /// the topic's bound. `encode` must not use the topic.
    pub fn publish_deferred(
        &self,
        size: usize,
        mark: u64,
        encode: impl Fn() -> Bytes + Send + Sync + 'static,
    ) {
        self.publish_content(EventContent::deferred(size, encode), mark);
    }

    fn publish_content(&self, content: EventContent, mark: u64) {
        let last = LastEvent { mark, at: Instant::now() };
        let mut state = self.shared.state.lock();
        if state.closed || content.is_empty() {
            return;
        }
        state.ring.push(content, last);
        let needs_task = state.direct >= MIN_DIRECT_TAILS || state.ring.deferred() > MAX_DEFERRED;
        if !needs_task || self.shared.runtime.is_none() {
            self.shared.wake_all(state);
        } else if !std::mem::replace(&mut state.delivery_pending, true) {
            drop(state);
            let (shared, slots) = (Arc::clone(&self.shared), 0..usize::MAX);
            self.shared.runtime.spawn(DeliveryTask { shared, slots });
        }
    }

    /// Creates a tail that yields the events published from now on.
    pub fn subscribe(&self) -> Tail {
        let mut state = self.shared.state.lock();
        let slot = state.free.pop().unwrap_or_else(|| {
            state.waiting.push(None);
            u32::try_from(state.waiting.len() - 1).expect("a process has fewer than 2³² sockets")
        });
        let progress = TailProgress { next: state.ring.next(), last: None };
        let (shared, id) = (Arc::clone(&self.shared), TailId::new());
        Tail { shared, id, progress, slot, writes: None, ended: false }
    }

    /// Returns the number of tails.
    pub fn subscribers(&self) -> usize {
        let state = self.shared.state.lock();
        state.waiting.len() - state.free.len()
    }

    /// Closes the topic: the tails end after their last event.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        self.shared.wake_all(state);
    }
}

impl Clone for Topic {
    fn clone(&self) -> Self {
        self.shared.state.lock().handles += 1;
        Topic { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.handles -= 1;
        if state.handles == 0 {
            state.closed = true;
            self.shared.wake_all(state);
        }
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").field("subscribers", &self.subscribers()).finish_non_exhaustive()
    }
}

impl fmt::Debug for TopicShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicShared").finish_non_exhaustive()
    }
}

impl TopicShared {
    /// Returns the bytes of a deferred event, and stores them in the ring for other tails.
    pub(super) fn encode(&self, number: u64, event: &DeferredEvent) -> Bytes {
        let bytes = event.bytes();
        let replaced = self.state.lock().ring.set_encoded(number, bytes.clone());
        drop(replaced); // outside the lock: it may be what the publisher has captured
        bytes
    }

    /// Encodes all events that were published before this call, and returns the locked state.
    pub(super) fn lock_encoded(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let until = state.ring.next();
        while let Some((number, event)) = state.ring.deferred_before(until) {
            drop(state);
            self.encode(number, &event);
            drop(event);
            state = self.state.lock();
        }
        state
    }

    /// Wakes the tail that waits in `slot`.
    pub(super) fn wake(&self, slot: usize) {
        let waiter = self.state.lock().waiting.get_mut(slot).and_then(Option::take);
        waiter.into_iter().for_each(WaitingTail::wake);
    }

    /// Wakes all waiting tails, outside the lock and in batches.
    ///
    /// A tail that waits again meanwhile may be woken once more. None is missed: a tail that takes
    /// a slot already passed has checked the state after the change.
    pub(super) fn wake_all<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        let mut waiting = [const { None }; WAKE_BATCH];
        let mut from = 0;
        loop {
            let mut taken = 0;
            while from < state.waiting.len() && taken < WAKE_BATCH {
                if let Some(waiter) = state.waiting[from].take() {
                    waiting[taken] = Some(waiter);
                    taken += 1;
                }
                from += 1;
            }
            let done = from >= state.waiting.len();
            drop(state);
            waiting[..taken].iter_mut().filter_map(Option::take).for_each(WaitingTail::wake);
            if done {
                return;
            }
            state = self.state.lock();
        }
    }
}

impl WaitingTail {
    fn wake(self) {
        self.waker.wake();
    }

    /// Returns true if it holds the same task and the same permission to write.
    pub(super) fn matches(&self, waker: &Waker, writes: Option<&DirectWrites>) -> bool {
        let has_same_writes = match (&self.writes, writes) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        has_same_writes && self.waker.will_wake(waker)
    }
}

#[cfg(test)]
#[path = "topic_tests.rs"]
mod tests;
