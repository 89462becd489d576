//! Event ring: the last events of a topic.
//!
//! Invariant: the ring holds consecutive events, numbered from 0 in the order of publication.
//! Bounds: at most `capacity` events and `max_bytes` bytes, but always the last event. A deferred
//! event counts with the size that its publisher has given until it is encoded. Then it counts with
//! the size of its bytes. So the ring may exceed `max_bytes` by what encoding adds, until the next
//! event is pushed.
//! Out of scope: locks. Callers encode outside the topic's lock.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::live::tail::LastEvent;
use crate::sync::Mutex;

/// The last events of a topic.
#[derive(Default)]
pub(super) struct EventRing {
    capacity: usize,
    max_bytes: usize,
    events: VecDeque<PublishedEvent>,
    /// Bytes of all events in the ring.
    bytes: usize,
    /// Number of the next event.
    next: u64,
    /// Number of deferred events in the ring.
    deferred: usize,
}

/// Event with the data that tails report.
pub(super) struct PublishedEvent {
    pub(super) content: EventContent,
    pub(super) last: LastEvent,
}

/// Bytes of an event, or how to get them.
#[derive(Clone)]
pub(super) enum EventContent {
    Encoded(Bytes),
    Deferred(Arc<DeferredEvent>),
}

/// Event that is encoded when the first tail or delivery task needs it.
pub(super) struct DeferredEvent<F: ?Sized = dyn Fn() -> Bytes + Send + Sync> {
    /// Size in bytes that counts until the event is encoded.
    size: usize,
    /// The lock is held while the event is encoded, so it is encoded once.
    encoded: Mutex<Option<Bytes>>,
    encode: F,
}

impl EventRing {
    pub(super) fn new(capacity: usize, max_bytes: usize) -> EventRing {
        assert!(capacity > 0, "a topic keeps at least one event");
        EventRing { capacity, max_bytes, ..EventRing::default() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of events that are not encoded.
    pub(super) fn deferred(&self) -> usize {
        self.deferred
    }

    /// Appends an event, and removes the oldest ones beyond the bounds.
    pub(super) fn push(&mut self, content: EventContent, last: LastEvent) {
        self.bytes += content.len();
        while self.events.len() >= self.capacity || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.content.len();
            self.deferred -= usize::from(oldest.content.is_deferred());
        }
        self.deferred += usize::from(content.is_deferred());
        self.events.push_back(PublishedEvent { content, last });
        self.next += 1;
    }

    /// Returns the event of this number, if the ring holds it.
    pub(super) fn get(&self, number: u64) -> Option<&PublishedEvent> {
        self.events.get(self.index(number)?)
    }

    /// Returns the last events, oldest first.
    pub(super) fn last(&self, count: usize) -> impl DoubleEndedIterator<Item = &PublishedEvent> {
        self.events.range(self.len().saturating_sub(count)..)
    }

    /// Returns the oldest deferred event before the event of number `until`, with its number.
    pub(super) fn deferred_before(&self, until: u64) -> Option<(u64, Arc<DeferredEvent>)> {
        if self.deferred == 0 {
            return None;
        }
        let first = self.next - self.len() as u64;
        (first..until).zip(&self.events).find_map(|(number, event)| match &event.content {
            EventContent::Encoded(_) => None,
            EventContent::Deferred(deferred) => Some((number, Arc::clone(deferred))),
        })
    }

    /// Stores the bytes of a deferred event, unless it has left the ring. Returns what they
    /// replace, to be dropped outside the lock.
    pub(super) fn set_encoded(&mut self, number: u64, bytes: Bytes) -> Option<EventContent> {
        let index = self.index(number)?;
        let content = &mut self.events.get_mut(index)?.content;
        self.deferred -= usize::from(content.is_deferred());
        self.bytes = self.bytes - content.len() + bytes.len();
        Some(std::mem::replace(content, EventContent::Encoded(bytes)))
    }

    fn index(&self, number: u64) -> Option<usize> {
        let from_end = usize::try_from(self.next.checked_sub(number)?).ok()?;
        self.len().checked_sub(from_end)
    }
}

impl EventContent {
    pub(super) fn deferred(size: usize, encode: impl Fn() -> Bytes + Send + Sync + 'static) -> EventContent {
        EventContent::Deferred(Arc::new(DeferredEvent { size, encoded: Mutex::new(None), encode }))
    }

    /// Returns true if the event is known to have no bytes: an empty chunk would end the stream.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, EventContent::Encoded(bytes) if bytes.is_empty())
    }

    /// Returns the number of bytes that count for the ring's bound.
    fn len(&self) -> usize {
        match self {
            EventContent::Encoded(bytes) => bytes.len(),
            EventContent::Deferred(deferred) => deferred.size,
        }
    }

    fn is_deferred(&self) -> bool {
        matches!(self, EventContent::Deferred(_))
    }
}

impl DeferredEvent {
    /// Returns the event's bytes. Encodes it, or waits while another thread does.
    pub(super) fn bytes(&self) -> Bytes {
        self.encoded.lock().get_or_insert_with(|| (self.encode)()).clone()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn push(ring: &mut EventRing, content: EventContent) {
        ring.push(content, LastEvent { mark: 0, at: Instant::now() });
    }

    #[test]
    fn a_deferred_event_counts_with_its_size_until_it_is_encoded() {
        let mut ring = EventRing::new(3, 100);
        push(&mut ring, EventContent::deferred(60, || Bytes::from_static(&[b'x'; 70])));
        push(&mut ring, EventContent::deferred(20, || Bytes::from_static(b"short")));
        assert_eq!((ring.bytes, ring.deferred(), ring.len()), (80, 2, 2));
        let (number, first) = ring.deferred_before(ring.next()).unwrap();
        assert_eq!(number, 0);
        assert!(ring.set_encoded(number, first.bytes()).is_some());
        assert_eq!((ring.bytes, ring.deferred()), (90, 1));
        assert!(ring.deferred_before(1).is_none(), "the other one is later");
        push(&mut ring, EventContent::Encoded(Bytes::from_static(&[b'y'; 20])));
        assert_eq!((ring.bytes, ring.deferred(), ring.len()), (40, 1, 2));
        assert!(ring.set_encoded(0, Bytes::new()).is_none(), "it has left the ring");
        push(&mut ring, EventContent::deferred(200, Bytes::new));
        assert_eq!((ring.bytes, ring.deferred(), ring.len()), (200, 1, 1), "the last event stays");
        assert!(ring.get(3).is_some() && ring.get(2).is_none() && ring.get(4).is_none());
    }
}
