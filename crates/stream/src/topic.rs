//! One sequence of events for any number of streams.
//!
//! Invariant: a tail yields every event published after it subscribed, in order and without a gap, or ends with
//! [`Lagged`].
//! Kept by: events are numbered, and a tail knows the number that it wants next. A tail looks for its event and leaves its
//! waker under the same lock under which events are published, so none is missed.
//! Bounds: the ring holds `capacity` events, and `max_bytes` of them or the last one alone, once for all tails; a tail further
//! behind than that has lost some, and is told.
//! [Direct](Tail::direct) tails, unless they are few, aren't woken: tasks of the runtime bring them the news, and write to the sockets
//! that they have lent (`outlet.rs`). Who publishes never waits for that.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::outlet::{self, Outlet, TailId};

/// Publishes events to any number of [`Tail`]s. A clone is another handle of the same topic; when the last one is gone,
/// or with [`close`](Topic::close), the tails end once they have yielded everything.
///
/// An event is the bytes that clients get, an SSE event for one: `data: hello\n\n`.
pub struct Topic {
    shared: Arc<Shared>,
}

/// The body of one stream: what is published from its subscription on.
#[derive(Debug)]
pub struct Tail {
    shared: Arc<Shared>,
    id: TailId,
    progress: Progress,
    /// Where it leaves its waker.
    slot: u32,
    is_direct: bool,
    ended: bool,
}

/// The last event that a tail has yielded, or that was written for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// What its publisher said of it.
    pub mark: u64,
    /// When it was published.
    pub at: Instant,
}

/// How far a tail is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// The number of the event that it yields next.
    next: u64,
    last: Option<Last>,
}

/// A stream's client was too slow: events that it has not seen are gone from the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fell {behind} events behind a topic that keeps {capacity}")]
pub struct Lagged {
    /// How many events the tail had not yielded yet.
    pub behind: u64,
    /// How many are kept.
    pub capacity: usize,
}

struct Shared {
    capacity: usize,
    max_bytes: usize,
    /// The runtime that the topic was made in, if it was in one.
    home: Option<Handle>,
    state: Mutex<State>,
}

struct State {
    ring: VecDeque<Event>,
    /// Of all events in the ring.
    bytes: usize,
    /// The number of the next event to be published.
    next: u64,
    /// The tails that wait, by their slots.
    sleepers: Vec<Option<Sleeper>>,
    free: Vec<u32>,
    /// How many tails are direct.
    direct: usize,
    /// A delivery has been sent out, and not begun.
    is_coming: bool,
    handles: usize,
    closed: bool,
}

struct Event {
    bytes: Bytes,
    last: Last,
}

struct Sleeper {
    tail: TailId,
    waker: Waker,
    /// What it has lent.
    outlet: Option<Arc<Outlet>>,
}

/// The last events, for those who are not far behind.
pub(crate) struct News {
    /// The number of the event after them.
    next: u64,
    events: Vec<Bytes>,
    last: Last,
}

/// Brings the news to tails, in a task. If it can't, because its runtime ends, they are woken.
struct Delivery {
    shared: Arc<Shared>,
    /// Those that are left.
    slots: Range<usize>,
}

/// Wakers that are called with one lock; enough that the lock costs nothing beside them.
const WOKEN_AT_ONCE: usize = 128;
/// Fewer direct tails are woken at once: where many events come to few of them, they read more than a delivery has at hand.
const FEW: usize = 4;
/// Slots for one delivery; several go on side by side.
const SLOTS: usize = 128;
/// Writes in one turn of a delivery, before others in the runtime get theirs.
const WRITES: usize = 32;
/// Events that a delivery has at hand; who is further behind looks itself.
const AT_HAND: usize = 4;

impl Topic {
    /// A topic that keeps the last `capacity` events for tails that are behind.
    ///
    /// # Panics
    /// With a capacity of 0, which could deliver nothing.
    pub fn new(capacity: usize) -> Topic {
        Topic::bounded(capacity, usize::MAX)
    }

    /// As [`Topic::new`], for events of all sizes: it keeps no more than so many bytes, but always the last event.
    ///
    /// # Panics
    /// With a capacity of 0, which could deliver nothing.
    pub fn bounded(capacity: usize, max_bytes: usize) -> Topic {
        assert!(capacity > 0, "a topic keeps at least one event");
        let state = State {
            ring: VecDeque::new(),
            bytes: 0,
            next: 0,
            sleepers: Vec::new(),
            free: Vec::new(),
            direct: 0,
            is_coming: false,
            handles: 1,
            closed: false,
        };
        let home = Handle::try_current().ok();
        Topic { shared: Arc::new(Shared { capacity, max_bytes, home, state: Mutex::new(state) }) }
    }

    /// Hands `event` to every tail. Never waits; after [`close`](Topic::close) it does nothing.
    pub fn publish(&self, event: impl Into<Bytes>) {
        self.publish_marked(event, 0);
    }

    /// As [`publish`](Topic::publish), with a number by which the publisher knows the event: see [`Tail::last`].
    pub fn publish_marked(&self, event: impl Into<Bytes>, mark: u64) {
        let (bytes, last) = (event.into(), Last { mark, at: Instant::now() });
        let mut state = self.shared.lock();
        if state.closed || bytes.is_empty() {
            return;
        }
        state.bytes += bytes.len();
        while state.ring.len() >= self.shared.capacity || state.bytes > self.shared.max_bytes {
            let Some(oldest) = state.ring.pop_front() else { break };
            state.bytes -= oldest.bytes.len();
        }
        state.ring.push_back(Event { bytes, last });
        state.next += 1;
        match &self.shared.home {
            Some(home) if state.direct >= FEW => {
                if !std::mem::replace(&mut state.is_coming, true) {
                    drop(state);
                    let (shared, slots) = (Arc::clone(&self.shared), 0..usize::MAX);
                    home.spawn(Delivery { shared, slots }.begin());
                }
            }
            _ => self.shared.wake_all(state),
        }
    }

    /// The events from now on.
    pub fn subscribe(&self) -> Tail {
        let mut state = self.shared.lock();
        let slot = state.free.pop().unwrap_or_else(|| {
            state.sleepers.push(None);
            u32::try_from(state.sleepers.len() - 1).expect("a process has fewer than 2³² sockets")
        });
        let progress = Progress { next: state.next, last: None };
        let (shared, id) = (Arc::clone(&self.shared), TailId::new());
        Tail { shared, id, progress, slot, is_direct: false, ended: false }
    }

    /// How many tails there are.
    pub fn subscribers(&self) -> usize {
        let state = self.shared.lock();
        state.sleepers.len() - state.free.len()
    }

    /// Ends the tails, once they have yielded what was published.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.wake_all(state);
    }
}

impl Clone for Topic {
    fn clone(&self) -> Self {
        self.shared.lock().handles += 1;
        Topic { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
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

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever sleeps there.
    fn wake(&self, slot: usize) {
        let sleeper = self.lock().sleepers.get_mut(slot).and_then(Option::take);
        sleeper.into_iter().for_each(Sleeper::wake);
    }

    /// Calls the wakers outside the lock, some at a time. Tails that come back meanwhile may be woken once more for
    /// nothing, but none is left out: a slot that has been passed belongs to a tail that looked after the change.
    fn wake_all<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        let mut sleepers = [const { None }; WOKEN_AT_ONCE];
        let mut from = 0;
        loop {
            let mut taken = 0;
            while from < state.sleepers.len() && taken < WOKEN_AT_ONCE {
                if let Some(sleeper) = state.sleepers[from].take() {
                    sleepers[taken] = Some(sleeper);
                    taken += 1;
                }
                from += 1;
            }
            let done = from >= state.sleepers.len();
            drop(state);
            sleepers[..taken].iter_mut().filter_map(Option::take).for_each(Sleeper::wake);
            if done {
                return;
            }
            state = self.lock();
        }
    }
}

impl Sleeper {
    fn wake(self) {
        self.waker.wake();
    }

    /// Whether it is left for the same task, with the same socket.
    fn is(&self, waker: &Waker, outlet: Option<&Arc<Outlet>>) -> bool {
        self.waker.will_wake(waker) && self.outlet.as_ref().map(Arc::as_ptr) == outlet.map(Arc::as_ptr)
    }
}

impl News {
    fn of(state: &State) -> Option<News> {
        let last = state.ring.back()?.last;
        let events = state.ring.range(state.ring.len().saturating_sub(AT_HAND)..);
        Some(News { next: state.next, events: events.map(|event| event.bytes.clone()).collect(), last })
    }

    /// What comes after what a tail has; `None` if not all of it is here.
    pub(crate) fn since(&self, progress: &Progress) -> Option<&[Bytes]> {
        let behind = usize::try_from(self.next.saturating_sub(progress.next)).ok()?;
        let from = self.events.len().checked_sub(behind)?;
        Some(&self.events[from..])
    }

    /// It has all of them.
    pub(crate) fn tell(&self, progress: &mut Progress) {
        if progress.next < self.next {
            *progress = Progress { next: self.next, last: Some(self.last) };
        }
    }
}

impl Delivery {
    /// To all who are there now.
    async fn begin(mut self) {
        self.share();
        self.bring().await;
    }

    /// Leaves all but the first to others.
    fn share(&mut self) {
        let mut state = self.shared.lock();
        state.is_coming = false;
        let all = state.sleepers.len();
        drop(state);
        self.slots = 0..all.min(SLOTS);
        for from in (SLOTS..all).step_by(SLOTS) {
            let slots = from..all.min(from + SLOTS);
            tokio::spawn(Delivery { shared: Arc::clone(&self.shared), slots }.bring());
        }
    }

    async fn bring(mut self) {
        self.bring_to_some();
        while !self.slots.is_empty() {
            tokio::task::yield_now().await;
            self.bring_to_some();
        }
    }

    fn bring_to_some(&mut self) {
        let slots = self.slots.start..self.slots.end.min(self.slots.start + WRITES);
        let state = self.shared.lock();
        let Some(news) = News::of(&state) else { return self.slots = 0..0 };
        let sleepers = slots.clone().map(|slot| state.sleepers.get(slot).and_then(Option::as_ref));
        let tails: Vec<_> =
            sleepers.map(|sleeper| sleeper.map(|sleeper| (sleeper.tail, sleeper.outlet.clone()))).collect();
        drop(state);
        for (slot, tail) in slots.zip(tails) {
            match tail {
                None => {} // nobody sleeps here
                Some((tail, Some(outlet))) if outlet.deliver(tail, &news) => {}
                Some(_) => self.shared.wake(slot),
            }
            self.slots.start = slot + 1;
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            let mut state = self.shared.lock();
            state.is_coming = false;
            self.shared.wake_all(state);
        }
    }
}

impl Tail {
    /// Says that whoever yields what this tail does changes nothing of it: a stream that waits for the next event may have it
    /// written by the topic, without being polled. A body that looks at each event, or adds something to it, must not say so.
    ///
    /// From a few of them on, a task of the runtime in which the topic was made brings the news, so that has to run.
    pub fn direct(mut self) -> Tail {
        if !std::mem::replace(&mut self.is_direct, true) {
            self.shared.lock().direct += 1;
        }
        self
    }

    /// Of what has been yielded, or written for it before it was polled last.
    pub fn last(&self) -> Option<Last> {
        self.progress.last
    }

    /// The next event, `None` at the end.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lagged>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(progress) = outlet::take_back(self.id) {
            self.progress = progress;
        }
        let mut state = self.shared.lock();
        let behind = state.next - self.progress.next;
        if behind == 0 && !state.closed {
            let lends = self.is_direct.then(|| outlet::lend(self.id, self.progress));
            let outlet = lends.flatten();
            let sleeper = &mut state.sleepers[self.slot as usize];
            let is_there = sleeper.as_ref().is_some_and(|sleeper| sleeper.is(cx.waker(), outlet.as_ref()));
            let new = (!is_there).then(|| Sleeper { tail: self.id, waker: cx.waker().clone(), outlet });
            let former = new.and_then(|new| sleeper.replace(new));
            drop(state);
            drop(former); // as in `Drop`: not under the lock
            return Poll::Pending;
        }
        let kept = state.ring.len();
        let event = usize::try_from(behind).ok().and_then(|behind| kept.checked_sub(behind));
        match event.and_then(|place| state.ring.get(place)) {
            Some(event) => {
                self.progress = Progress { next: self.progress.next + 1, last: Some(event.last) };
                Poll::Ready(Some(Ok(event.bytes.clone())))
            }
            None => {
                self.ended = true;
                let lagged = Lagged { behind, capacity: self.shared.capacity };
                Poll::Ready((behind > 0).then_some(Err(lagged)))
            }
        }
    }
}

impl Body for Tail {
    type Data = Bytes;
    type Error = Lagged;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Lagged>>> {
        self.poll_event(cx).map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        outlet::take_back(self.id);
        let mut state = self.shared.lock();
        let sleeper = state.sleepers[self.slot as usize].take();
        state.direct -= usize::from(self.is_direct);
        state.free.push(self.slot);
        if state.free.len() == state.sleepers.len() {
            (state.sleepers, state.free) = (Vec::new(), Vec::new());
        }
        drop(state);
        drop(sleeper); // it may be the last hold on a task, whose drop is other people's code
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::outbox::Outbox;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn poll(tail: &mut Tail, waker: &Waker) -> Poll<Option<Result<Bytes, Lagged>>> {
        tail.poll_event(&mut Context::from_waker(waker))
    }

    fn event(text: &'static str) -> Poll<Option<Result<Bytes, Lagged>>> {
        Poll::Ready(Some(Ok(Bytes::from_static(text.as_bytes()))))
    }

    /// A stream's socket, and its client's.
    async fn pair() -> (Arc<Outlet>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        (Arc::new(Outlet::new(stream, Outbox::default())), client)
    }

    fn poll_lent(outlet: &Arc<Outlet>, tail: &mut Tail) -> Poll<Option<Result<Bytes, Lagged>>> {
        outlet.poll_body(&mut outlet.lock(), || poll(tail, Waker::noop()))
    }

    fn deliver(tail: &Tail, outlet: &Outlet) -> bool {
        let news = News::of(&tail.shared.lock()).unwrap();
        outlet.deliver(tail.id, &news)
    }

    async fn read(client: &mut TcpStream, count: usize) -> String {
        let mut read = vec![0; count];
        client.read_exact(&mut read).await.unwrap();
        String::from_utf8(read).unwrap()
    }

    #[tokio::test]
    async fn a_topic_writes_what_is_new_to_a_socket_that_it_was_lent_and_to_no_other() {
        let (outlet, mut client) = pair().await;
        let (topic, other) = (Topic::new(2 * AT_HAND), Topic::new(8));
        let (mut tail, mut second) = (topic.subscribe().direct(), other.subscribe().direct());
        topic.publish("early");
        assert!(!deliver(&tail, &outlet), "nobody has lent it anything");
        assert_eq!(poll_lent(&outlet, &mut tail), event("early"));
        assert!(poll_lent(&outlet, &mut tail).is_pending() && poll_lent(&outlet, &mut second).is_pending());
        topic.publish_marked("one", 7);
        topic.publish_marked("two", 8);
        other.publish("else");
        assert!(!deliver(&second, &outlet), "the second may not lend what the first has lent");
        let desk = outlet.lock();
        assert!(!deliver(&tail, &outlet), "its task writes");
        drop(desk);
        assert!(deliver(&tail, &outlet));
        assert!(deliver(&tail, &outlet), "there is nothing more to write");
        assert_eq!(read(&mut client, 16).await, "3\r\none\r\n3\r\ntwo\r\n");
        assert!(poll_lent(&outlet, &mut tail).is_pending(), "it knows what was written");
        assert_eq!(tail.last().map(|last| last.mark), Some(8));

        // Whoever is further behind than the news reach looks itself.
        let many: Vec<_> = (0..=AT_HAND).map(|number| number.to_string()).collect();
        many.iter().for_each(|text| topic.publish(text.clone()));
        assert!(!deliver(&tail, &outlet));
        for text in many {
            assert_eq!(poll_lent(&outlet, &mut tail), Poll::Ready(Some(Ok(text.into()))));
        }
        assert!(!deliver(&tail, &outlet), "nothing is lent until it waits again");

        // One after the other, as a body does that subscribes again.
        assert!(poll_lent(&outlet, &mut tail).is_pending());
        let mut next = outlet.poll_body(&mut outlet.lock(), || {
            drop(tail);
            topic.subscribe().direct()
        });
        assert!(poll_lent(&outlet, &mut next).is_pending());
        topic.publish("again");
        assert!(deliver(&next, &outlet));
        assert_eq!(read(&mut client, 10).await, "5\r\nagain\r\n");
    }

    #[tokio::test]
    async fn what_is_too_much_for_one_write_is_left_to_the_task() {
        let (outlet, _client) = pair().await;
        let topic = Topic::new(2 * AT_HAND);
        let mut tail = topic.subscribe().direct();
        assert!(poll_lent(&outlet, &mut tail).is_pending());
        let large = Bytes::from(vec![b'x'; 64 << 10]);
        topic.publish(large.clone());
        topic.publish(large.clone());
        assert!(!deliver(&tail, &outlet));
        for _ in 0..2 {
            assert_eq!(poll_lent(&outlet, &mut tail), Poll::Ready(Some(Ok(large.clone()))));
        }
    }

    #[tokio::test]
    async fn what_a_socket_does_not_take_is_left_to_its_task() {
        let (outlet, client) = pair().await;
        let topic = Topic::new(8);
        let mut tail = topic.subscribe().direct();
        assert!(poll_lent(&outlet, &mut tail).is_pending());
        let large = Bytes::from(vec![b'x'; 32 << 20]);
        topic.publish(large);
        assert!(!deliver(&tail, &outlet));
        assert!(!outlet.lock().outbox.is_empty());
        topic.publish("next");
        assert!(deliver(&tail, &outlet), "its task looks, when the rest is written");
        outlet.lock().outbox.take();
        assert_eq!(poll_lent(&outlet, &mut tail), event("next"));

        assert!(poll_lent(&outlet, &mut tail).is_pending());
        drop(client);
        outlet.stream.readable().await.unwrap();
        loop {
            // The first may still be taken, and makes the client's system say that nobody is there.
            topic.publish("too late");
            if !deliver(&tail, &outlet) {
                break;
            }
        }
        assert!(outlet.lock().lost.is_some());
    }

    #[tokio::test]
    async fn a_body_that_panics_leaves_no_socket_to_the_next() {
        let (outlet, _client) = pair().await;
        let topic = Topic::new(8);
        let panics = || outlet.poll_body(&mut outlet.lock(), || panic!("a body's own mistake"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        let mut tail = topic.subscribe().direct();
        assert!(poll(&mut tail, Waker::noop()).is_pending());
        topic.publish("one");
        assert!(!deliver(&tail, &outlet), "another's body was polled");
        assert_eq!(poll(&mut tail, Waker::noop()), event("one"));
    }

    #[test]
    fn tails_whose_runtime_is_gone_are_woken() {
        const CROWD: usize = SLOTS + 2;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let topic = runtime.block_on(async { Topic::new(4) });
        let mut tails: Vec<Tail> = (0..CROWD).map(|_| topic.subscribe().direct()).collect();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let sleep =
            |tails: &mut [Tail]| tails.iter_mut().for_each(|tail| assert!(poll(tail, &waker).is_pending()));
        let hear = |tails: &mut [Tail], text| {
            tails.iter_mut().for_each(|tail| assert_eq!(poll(tail, &waker), event(text)));
        };
        sleep(&mut tails);
        topic.publish("by a task");
        assert_eq!(woken.times(), 0, "nobody runs the tasks yet");
        runtime.block_on(async {
            while woken.times() < CROWD {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(woken.times(), CROWD, "none of them has a socket");
        hear(&mut tails, "by a task");

        sleep(&mut tails);
        topic.publish("with its end");
        drop(runtime);
        assert_eq!(woken.times(), 2 * CROWD);
        hear(&mut tails, "with its end");

        sleep(&mut tails);
        topic.publish("after it");
        assert_eq!(woken.times(), 3 * CROWD);
        hear(&mut tails, "after it");
    }

    #[test]
    fn large_events_push_older_ones_out_but_never_themselves() {
        let topic = Topic::bounded(4, 10);
        let mut tails: Vec<Tail> = (0..3).map(|_| topic.subscribe()).collect();
        let waker = Waker::noop();
        topic.publish("0123");
        topic.publish("4567");
        assert_eq!(poll(&mut tails[0], waker), event("0123"));
        topic.publish("89");
        assert_eq!(poll(&mut tails[0], waker), event("4567"), "ten bytes are kept");
        topic.publish("a");
        assert_eq!(poll(&mut tails[1], waker), Poll::Ready(Some(Err(Lagged { behind: 4, capacity: 4 }))));
        assert_eq!(poll(&mut tails[0], waker), event("89"));
        topic.publish("more than ten bytes");
        assert_eq!(poll(&mut tails[0], waker), Poll::Ready(Some(Err(Lagged { behind: 2, capacity: 4 }))));
        let mut late = topic.subscribe();
        topic.publish("more than ten bytes, again");
        assert_eq!(poll(&mut late, waker), event("more than ten bytes, again"));
        assert_eq!(topic.shared.lock().ring.len(), 1);
    }

    #[test]
    fn a_tail_yields_what_comes_after_it_and_is_woken_once() {
        let (topic, woken) = (Topic::new(4), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        topic.publish("before");
        let mut tail = topic.subscribe();
        assert!(poll(&mut tail, &waker).is_pending());
        topic.publish("one");
        topic.publish("two");
        assert_eq!(woken.times(), 1);
        assert_eq!(poll(&mut tail, &waker), event("one"));
        assert_eq!(poll(&mut tail, &waker), event("two"));
        assert!(poll(&mut tail, &waker).is_pending());
    }

    #[test]
    fn a_tail_that_falls_too_far_behind_is_told_and_ends() {
        let topic = Topic::new(2);
        let (mut slow, mut slower) = (topic.subscribe(), topic.subscribe());
        let waker = Waker::noop();
        topic.publish("1");
        assert_eq!(poll(&mut slow, waker), event("1"));
        topic.publish("2");
        topic.publish("3");
        let lagged = Lagged { behind: 3, capacity: 2 };
        assert_eq!(poll(&mut slower, waker), Poll::Ready(Some(Err(lagged))));
        assert_eq!(poll(&mut slower, waker), Poll::Ready(None));
        assert_eq!(poll(&mut slow, waker), event("2"));
        assert_eq!(lagged.to_string(), "fell 3 events behind a topic that keeps 2");
    }

    #[test]
    fn the_tails_end_with_the_last_handle_once_they_have_everything() {
        let (topic, woken) = (Topic::new(2), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut tail = topic.subscribe();
        let other = topic.clone();
        assert!(poll(&mut tail, &waker).is_pending());
        drop(topic);
        assert_eq!(woken.times(), 0);
        other.publish("last");
        drop(other);
        assert_eq!(poll(&mut tail, &waker), event("last"));
        assert_eq!(poll(&mut tail, &waker), Poll::Ready(None));
    }

    #[test]
    fn a_tail_that_is_dropped_leaves_no_waker_and_the_last_no_memory() {
        let (topic, woken) = (Topic::new(1), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut tails: Vec<_> = (0..300).map(|_| topic.subscribe()).collect();
        assert!(tails.iter_mut().all(|tail| poll(tail, &waker).is_pending()));
        tails.truncate(200);
        assert_eq!(topic.subscribers(), 200);
        topic.publish("to those that are left");
        assert_eq!(woken.times(), 200);
        drop(tails);
        assert_eq!((topic.subscribers(), topic.shared.lock().sleepers.capacity()), (0, 0));
        drop(waker);
        assert_eq!(Arc::strong_count(&woken), 1);
    }

    #[test]
    fn a_waker_whose_end_drops_a_tail_of_the_same_topic_may_be_replaced() {
        struct Owner {
            _other: Tail,
        }
        impl Wake for Owner {
            fn wake(self: Arc<Self>) {}
        }
        let topic = Topic::new(1);
        let (mut tail, other) = (topic.subscribe(), topic.subscribe());
        assert!(poll(&mut tail, &Waker::from(Arc::new(Owner { _other: other }))).is_pending());
        // In a thread of its own, since the failure would be a deadlock.
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            assert!(poll(&mut tail, Waker::noop()).is_pending());
            done.send(topic.subscribers()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(20)), Ok(1));
    }

    proptest! {
        /// Each step publishes (0), subscribes (1), drops the oldest tail (2) or lets a tail catch up (3 and more).
        #[test]
        fn every_tail_sees_every_event_in_order_or_hears_that_it_lagged(
            steps in proptest::collection::vec(0_u8..8, 0..200),
            capacity in 1_usize..5,
        ) {
            let topic = Topic::new(capacity);
            let mut tails: Vec<(Tail, u64)> = Vec::new();
            let mut published = 0_u64;
            for step in steps {
                match step {
                    0 => {
                        topic.publish(published.to_string());
                        published += 1;
                    }
                    1 => tails.push((topic.subscribe(), published)),
                    2 => drop((!tails.is_empty()).then(|| tails.remove(0))),
                    pick => {
                        let count = tails.len();
                        let Some((tail, next)) = tails.get_mut(usize::from(pick) % count.max(1)) else { continue };
                        while let Poll::Ready(found) = poll(tail, Waker::noop()) {
                            let Some(Ok(event)) = found else {
                                prop_assert!(tail.ended && published - *next > capacity as u64);
                                tails.remove(usize::from(pick) % count);
                                break;
                            };
                            prop_assert_eq!(event, next.to_string());
                            *next += 1;
                        }
                    }
                }
                prop_assert_eq!(topic.subscribers(), tails.len());
                prop_assert!(topic.shared.lock().ring.len() <= capacity);
            }
        }
    }
}
