//! Direct delivery: tasks that encode new events, and write them to the sockets of waiting tails.
//!
//! Invariant: after an event is published, every waiting tail is either written to or woken.
//! Enforced by: a dropped [`DeliveryTask`], for example at the runtime's end, wakes all tails.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::live::direct_writes::DirectWrite;
use crate::live::event_ring::{EventContent, EventRing};
use crate::live::tail::{LastEvent, TailProgress};
use crate::live::topic::TopicShared;

/// Slots per task; further tasks run in parallel.
pub(super) const SLOTS_PER_TASK: usize = 128;
/// Maximum writes of one poll, before other tasks run.
const WRITES_PER_TURN: usize = 32;
/// Events that a delivery holds. Tails further behind are woken and read from the ring.
pub(super) const RECENT_EVENTS: usize = 4;

/// Where the delivery tasks of a topic run.
pub(super) enum DeliveryRuntime {
    /// The topic was created outside of a runtime: its tails are woken instead.
    None,
    /// The runtime in which the topic was created.
    Tokio(Handle),
    /// Threads of `loom`, one for each delivery.
    #[cfg(all(test, forebay_loom))]
    Loom,
}

/// The last events of a topic.
pub(crate) struct RecentEvents {
    /// Number of the event that follows them.
    next: u64,
    events: Vec<Bytes>,
    last: LastEvent,
}

/// Writes recent events to the sockets of a range of slots.
pub(super) struct DeliveryTask {
    pub(super) shared: Arc<TopicShared>,
    /// Slots that are not handled yet.
    pub(super) slots: Range<usize>,
}

impl DeliveryRuntime {
    /// Returns the runtime of the calling thread.
    pub(super) fn current() -> DeliveryRuntime {
        Handle::try_current().map_or(DeliveryRuntime::None, DeliveryRuntime::Tokio)
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, DeliveryRuntime::None)
    }

    /// Runs a delivery. Without a runtime, all waiting tails are woken.
    pub(super) fn spawn(&self, task: DeliveryTask) {
        match self {
            DeliveryRuntime::None => drop(task),
            DeliveryRuntime::Tokio(runtime) => drop(runtime.spawn(task.run())),
            #[cfg(all(test, forebay_loom))]
            DeliveryRuntime::Loom => drop(loom::thread::spawn(|| loom::future::block_on(task.run()))),
        }
    }
}

impl RecentEvents {
    /// Returns the last events, up to the first one that isn't encoded. Another delivery follows
    /// for that one, or its tails were woken.
    pub(super) fn of(ring: &EventRing) -> Option<RecentEvents> {
        let (mut events, mut last) = (Vec::with_capacity(RECENT_EVENTS), None);
        for event in ring.last(RECENT_EVENTS) {
            let EventContent::Encoded(bytes) = &event.content else { break };
            events.push(bytes.clone());
            last = Some(event.last);
        }
        let left_out = ring.len().min(RECENT_EVENTS) - events.len();
        Some(RecentEvents { next: ring.next() - left_out as u64, events, last: last? })
    }

    /// Returns the events after `progress`, or `None` if some of them are not held here.
    pub(crate) fn after(&self, progress: &TailProgress) -> Option<&[Bytes]> {
        let behind = usize::try_from(self.next.saturating_sub(progress.next)).ok()?;
        let from = self.events.len().checked_sub(behind)?;
        Some(&self.events[from..])
    }

    /// Advances `progress` past all of these events.
    pub(crate) fn mark_delivered(&self, progress: &mut TailProgress) {
        if progress.next < self.next {
            *progress = TailProgress { next: self.next, last: Some(self.last) };
        }
    }
}

impl DeliveryTask {
    /// Delivers to all tails that wait now.
    pub(super) async fn run(mut self) {
        self.split();
        self.deliver_all().await;
    }

    /// Encodes new events, keeps the first range of slots, and spawns tasks for the others.
    fn split(&mut self) {
        let mut state = self.shared.lock_encoded();
        state.delivery_pending = false;
        let all = state.waiting.len();
        drop(state);
        self.slots = 0..all.min(SLOTS_PER_TASK);
        for from in (SLOTS_PER_TASK..all).step_by(SLOTS_PER_TASK) {
            let slots = from..all.min(from + SLOTS_PER_TASK);
            tokio::spawn(DeliveryTask { shared: Arc::clone(&self.shared), slots }.deliver_all());
        }
    }

    async fn deliver_all(mut self) {
        self.deliver_some();
        while !self.slots.is_empty() {
            tokio::task::yield_now().await;
            self.deliver_some();
        }
    }

    fn deliver_some(&mut self) {
        let slots = self.slots.start..self.slots.end.min(self.slots.start + WRITES_PER_TURN);
        let state = self.shared.lock_encoded();
        let Some(recent) = RecentEvents::of(&state.ring) else { return self.slots = 0..0 };
        let waiting = slots.clone().map(|slot| state.waiting.get(slot).and_then(Option::as_ref));
        let tails: Vec<_> =
            waiting.map(|waiter| waiter.map(|waiter| (waiter.tail, waiter.writes.clone()))).collect();
        drop(state);
        for (slot, tail) in slots.zip(tails) {
            let written = match tail {
                None => DirectWrite::Done, // no tail waits in this slot
                Some((tail, Some(writes))) => writes.write_events(tail, &recent),
                Some((_, None)) => DirectWrite::WakeTask,
            };
            if written == DirectWrite::WakeTask {
                self.shared.wake(slot);
            }
            self.slots.start = slot + 1;
        }
    }
}

impl Drop for DeliveryTask {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            let mut state = self.shared.state.lock();
            state.delivery_pending = false;
            self.shared.wake_all(state);
        }
    }
}
