//! Tests of topics, tails and direct delivery.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::h1::socket_writer::SocketWriter;
use crate::live::delivery::{RECENT_EVENTS, RecentEvents, SLOTS_PER_TASK};
use crate::live::direct_writes::{DirectWrite, StreamSocket};
use crate::live::tail::TailLagged;

/// Waker that counts its calls.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeCounter {
    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll(tail: &mut Tail, waker: &Waker) -> Poll<Option<Result<Bytes, TailLagged>>> {
    tail.poll_event(&mut Context::from_waker(waker))
}

fn event(text: &'static str) -> Poll<Option<Result<Bytes, TailLagged>>> {
    Poll::Ready(Some(Ok(Bytes::from_static(text.as_bytes()))))
}

/// A stream's socket, the permission to write to it, and its client's socket.
struct SocketPair {
    socket: StreamSocket,
    writes: DirectWrites,
    client: TcpStream,
}

async fn pair() -> SocketPair {
    let (stream, client) = connect().await;
    let writes = DirectWrites::new();
    let socket = StreamSocket::new(writes.clone(), stream, SocketWriter::default());
    SocketPair { socket, writes, client }
}

async fn connect() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, client)
}

/// Polls a tail as the stream's task does.
fn poll_on(socket: &StreamSocket, tail: &mut Tail) -> Poll<Option<Result<Bytes, TailLagged>>> {
    let _writer = socket.lock();
    poll(tail, Waker::noop())
}

fn deliver(tail: &Tail) -> DirectWrite {
    let recent = RecentEvents::of(&tail.shared.lock_encoded().ring).unwrap();
    tail.writes.as_ref().unwrap().write_events(tail.id, &recent)
}

async fn read(client: &mut TcpStream, count: usize) -> String {
    let mut read = vec![0; count];
    client.read_exact(&mut read).await.unwrap();
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_topic_writes_new_events_only_to_delegated_sockets() {
    let SocketPair { socket, writes, mut client } = pair().await;
    let (topic, other) = (Topic::new(2 * RECENT_EVENTS), Topic::new(8));
    let (mut tail, mut second) = (topic.subscribe().direct(&writes), other.subscribe().direct(&writes));
    topic.publish("early");
    assert_eq!(deliver(&tail), DirectWrite::WakeTask, "writes are not delegated");
    assert_eq!(poll_on(&socket, &mut tail), event("early"));
    assert!(poll_on(&socket, &mut tail).is_pending() && poll_on(&socket, &mut second).is_pending());
    topic.publish_marked("one", 7);
    topic.publish_marked("two", 8);
    other.publish("else");
    assert_eq!(deliver(&second), DirectWrite::WakeTask, "only one tail can delegate a socket");
    let writer = socket.lock();
    assert_eq!(deliver(&tail), DirectWrite::WakeTask, "the stream's task holds the lock");
    drop(writer);
    assert_eq!(deliver(&tail), DirectWrite::Done);
    assert_eq!(deliver(&tail), DirectWrite::Done, "nothing new to write");
    assert_eq!(read(&mut client, 16).await, "3\r\none\r\n3\r\ntwo\r\n");
    assert!(poll_on(&socket, &mut tail).is_pending(), "the tail continues after the written events");
    assert_eq!(tail.last().map(|last| last.mark), Some(8));

    // A tail behind by more events than a delivery holds must read the ring itself.
    let many: Vec<_> = (0..=RECENT_EVENTS).map(|number| number.to_string()).collect();
    many.iter().for_each(|text| topic.publish(text.clone()));
    assert_eq!(deliver(&tail), DirectWrite::WakeTask);
    for text in many {
        assert_eq!(poll_on(&socket, &mut tail), Poll::Ready(Some(Ok(text.into()))));
    }
    assert_eq!(deliver(&tail), DirectWrite::WakeTask, "writes are delegated only while the tail waits");

    // A body drops its tail and subscribes again.
    assert!(poll_on(&socket, &mut tail).is_pending());
    drop(tail);
    let mut next = topic.subscribe().direct(&writes);
    assert!(poll_on(&socket, &mut next).is_pending());
    topic.publish("again");
    assert_eq!(deliver(&next), DirectWrite::Done);
    assert_eq!(read(&mut client, 10).await, "5\r\nagain\r\n");
}

#[tokio::test]
async fn events_too_large_for_one_write_are_left_to_the_task() {
    let SocketPair { socket, writes, client: _client } = pair().await;
    let topic = Topic::new(2 * RECENT_EVENTS);
    let mut tail = topic.subscribe().direct(&writes);
    assert!(poll_on(&socket, &mut tail).is_pending());
    let large = Bytes::from(vec![b'x'; 64 << 10]);
    topic.publish(large.clone());
    topic.publish(large.clone());
    assert_eq!(deliver(&tail), DirectWrite::WakeTask);
    for _ in 0..2 {
        assert_eq!(poll_on(&socket, &mut tail), Poll::Ready(Some(Ok(large.clone()))));
    }
}

#[tokio::test]
async fn bytes_that_a_socket_does_not_accept_are_left_to_its_task() {
    let SocketPair { socket, writes, client } = pair().await;
    let topic = Topic::new(8);
    let mut tail = topic.subscribe().direct(&writes);
    assert!(poll_on(&socket, &mut tail).is_pending());
    let large = Bytes::from(vec![b'x'; 32 << 20]);
    topic.publish(large);
    assert_eq!(deliver(&tail), DirectWrite::WakeTask);
    assert!(!socket.lock().output.is_empty());
    topic.publish("next");
    assert_eq!(deliver(&tail), DirectWrite::Done, "the task continues after the unsent bytes");
    socket.lock().output.take_unsent();
    assert_eq!(poll_on(&socket, &mut tail), event("next"));

    assert!(poll_on(&socket, &mut tail).is_pending());
    drop(client);
    loop {
        // The first writes may succeed; the client's kernel answers them with a reset.
        topic.publish("too late");
        if deliver(&tail) == DirectWrite::WakeTask {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(socket.lock().failure.is_some());
}

#[tokio::test]
async fn a_tail_whose_stream_has_not_started_or_has_ended_is_woken() {
    let (topic, writes) = (Topic::new(8), DirectWrites::new());
    let mut tail = topic.subscribe().direct(&writes);
    let expect_wake = |tail: &mut Tail, text: &'static str| {
        assert!(poll(tail, Waker::noop()).is_pending());
        topic.publish(text);
        assert_eq!(deliver(tail), DirectWrite::WakeTask, "{text}");
        assert_eq!(poll(tail, Waker::noop()), event(text));
    };
    expect_wake(&mut tail, "before the stream");
    let (stream, mut client) = connect().await;
    let socket = StreamSocket::new(writes.clone(), stream, SocketWriter::default());
    assert!(poll_on(&socket, &mut tail).is_pending());
    socket.end_direct_writes();
    expect_wake(&mut tail, "after the last chunk");
    drop(socket);
    assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 0, "a kept permission keeps no socket");
    expect_wake(&mut tail, "after the stream");

    // A permission serves one stream only.
    let (stream, _client) = connect().await;
    let socket = StreamSocket::new(writes.clone(), stream, SocketWriter::default());
    assert!(poll_on(&socket, &mut tail).is_pending());
    expect_wake(&mut tail, "of another stream");
}

#[test]
fn tails_are_woken_when_the_topics_runtime_has_ended() {
    const TAILS: usize = SLOTS_PER_TASK + 2;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let topic = runtime.block_on(async { Topic::new(4) });
    let writes = DirectWrites::new();
    let mut tails: Vec<Tail> = (0..TAILS).map(|_| topic.subscribe().direct(&writes)).collect();
    let woken = Arc::new(WakeCounter::default());
    let waker = Waker::from(Arc::clone(&woken));
    let sleep =
        |tails: &mut [Tail]| tails.iter_mut().for_each(|tail| assert!(poll(tail, &waker).is_pending()));
    let expect_event = |tails: &mut [Tail], text| {
        tails.iter_mut().for_each(|tail| assert_eq!(poll(tail, &waker), event(text)));
    };
    sleep(&mut tails);
    topic.publish("by a task");
    assert_eq!(woken.times(), 0, "no delivery task has run");
    runtime.block_on(async {
        while woken.times() < TAILS {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(woken.times(), TAILS, "tails without a socket are woken");
    expect_event(&mut tails, "by a task");

    sleep(&mut tails);
    topic.publish("with its end");
    drop(runtime);
    assert_eq!(woken.times(), 2 * TAILS);
    expect_event(&mut tails, "with its end");

    sleep(&mut tails);
    topic.publish("after it");
    assert_eq!(woken.times(), 3 * TAILS);
    expect_event(&mut tails, "after it");
}

#[test]
fn large_events_evict_older_ones_but_never_themselves() {
    let topic = Topic::bounded(4, 10);
    let mut tails: Vec<Tail> = (0..3).map(|_| topic.subscribe()).collect();
    let waker = Waker::noop();
    topic.publish("0123");
    topic.publish("4567");
    assert_eq!(poll(&mut tails[0], waker), event("0123"));
    topic.publish("89");
    assert_eq!(poll(&mut tails[0], waker), event("4567"), "ten bytes are kept");
    topic.publish("a");
    assert_eq!(poll(&mut tails[1], waker), Poll::Ready(Some(Err(TailLagged { behind: 4, capacity: 4 }))));
    assert_eq!(poll(&mut tails[0], waker), event("89"));
    topic.publish("more than ten bytes");
    assert_eq!(poll(&mut tails[0], waker), Poll::Ready(Some(Err(TailLagged { behind: 2, capacity: 4 }))));
    let mut late = topic.subscribe();
    topic.publish("more than ten bytes, again");
    assert_eq!(poll(&mut late, waker), event("more than ten bytes, again"));
    assert_eq!(topic.shared.state.lock().ring.len(), 1);
}

/// Publishes a deferred event and counts in `encoded` how often it is encoded.
fn publish_deferred(topic: &Topic, text: &'static str, encoded: &Arc<AtomicUsize>) {
    let encoded = Arc::clone(encoded);
    topic.publish_deferred(text.len(), 7, move || {
        encoded.fetch_add(1, Ordering::Relaxed);
        Bytes::from_static(text.as_bytes())
    });
}

#[test]
fn a_deferred_event_is_encoded_once_and_not_by_its_publisher() {
    let (topic, encoded) = (Topic::new(4), Arc::new(AtomicUsize::new(0)));
    let mut tails = [topic.subscribe(), topic.subscribe()];
    publish_deferred(&topic, "one", &encoded);
    topic.publish("two");
    assert_eq!((encoded.load(Ordering::Relaxed), Arc::strong_count(&encoded)), (0, 2));
    for tail in &mut tails {
        assert_eq!(poll(tail, Waker::noop()), event("one"));
        assert_eq!(tail.last().map(|last| last.mark), Some(7));
        assert_eq!(poll(tail, Waker::noop()), event("two"));
    }
    assert_eq!((encoded.load(Ordering::Relaxed), Arc::strong_count(&encoded)), (1, 1));
}

#[tokio::test]
async fn deferred_events_that_no_tail_encodes_are_encoded_by_a_task() {
    let (topic, encoded) = (Topic::new(4 * MAX_DEFERRED), Arc::new(AtomicUsize::new(0)));
    let mut tail = topic.subscribe(); // reads nothing for now
    (0..MAX_DEFERRED).for_each(|_| publish_deferred(&topic, "event", &encoded));
    tokio::task::yield_now().await;
    assert_eq!(encoded.load(Ordering::Relaxed), 0);
    publish_deferred(&topic, "event", &encoded);
    while Arc::strong_count(&encoded) > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(encoded.load(Ordering::Relaxed), MAX_DEFERRED + 1);
    (0..=MAX_DEFERRED).for_each(|_| assert_eq!(poll(&mut tail, Waker::noop()), event("event")));
    assert_eq!(encoded.load(Ordering::Relaxed), MAX_DEFERRED + 1);
}

#[tokio::test]
async fn a_delivery_leaves_events_that_are_not_encoded_to_the_next_one() {
    let SocketPair { socket, writes, mut client } = pair().await;
    let (topic, encoded) = (Topic::new(8), Arc::new(AtomicUsize::new(0)));
    let mut tail = topic.subscribe().direct(&writes);
    assert!(poll_on(&socket, &mut tail).is_pending());
    topic.publish_marked("one", 1);
    publish_deferred(&topic, "two", &encoded);
    let recent = RecentEvents::of(&topic.shared.state.lock().ring).unwrap();
    assert_eq!(writes.write_events(tail.id, &recent), DirectWrite::Done);
    assert_eq!(deliver(&tail), DirectWrite::Done);
    assert_eq!(read(&mut client, 16).await, "3\r\none\r\n3\r\ntwo\r\n");
    assert!(poll_on(&socket, &mut tail).is_pending());
    assert_eq!((tail.last().map(|last| last.mark), encoded.load(Ordering::Relaxed)), (Some(7), 1));
}

#[test]
fn a_tail_yields_later_events_and_is_woken_once() {
    let (topic, woken) = (Topic::new(4), Arc::new(WakeCounter::default()));
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
fn a_tail_that_falls_too_far_behind_ends_with_lagged() {
    let topic = Topic::new(2);
    let (mut slow, mut slower) = (topic.subscribe(), topic.subscribe());
    let waker = Waker::noop();
    topic.publish("1");
    assert_eq!(poll(&mut slow, waker), event("1"));
    topic.publish("2");
    topic.publish("3");
    let lagged = TailLagged { behind: 3, capacity: 2 };
    assert_eq!(poll(&mut slower, waker), Poll::Ready(Some(Err(lagged))));
    assert_eq!(poll(&mut slower, waker), Poll::Ready(None));
    assert_eq!(poll(&mut slow, waker), event("2"));
    assert_eq!(lagged.to_string(), "fell 3 events behind a topic that keeps 2");
}

#[test]
fn tails_end_after_the_last_event_when_the_last_handle_is_dropped() {
    let (topic, woken) = (Topic::new(2), Arc::new(WakeCounter::default()));
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
fn a_dropped_tail_leaves_no_waker_and_the_last_one_no_memory() {
    let (topic, woken) = (Topic::new(1), Arc::new(WakeCounter::default()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut tails: Vec<_> = (0..300).map(|_| topic.subscribe()).collect();
    assert!(tails.iter_mut().all(|tail| poll(tail, &waker).is_pending()));
    tails.truncate(200);
    assert_eq!(topic.subscribers(), 200);
    topic.publish("to those that are left");
    assert_eq!(woken.times(), 200);
    drop(tails);
    assert_eq!((topic.subscribers(), topic.shared.state.lock().waiting.capacity()), (0, 0));
    drop(waker);
    assert_eq!(Arc::strong_count(&woken), 1);
}

#[test]
fn replacing_a_waker_that_owns_a_tail_of_the_same_topic_does_not_deadlock() {
    struct TailOwner {
        _other: Tail,
    }
    impl Wake for TailOwner {
        fn wake(self: Arc<Self>) {}
    }
    let topic = Topic::new(1);
    let (mut tail, other) = (topic.subscribe(), topic.subscribe());
    assert!(poll(&mut tail, &Waker::from(Arc::new(TailOwner { _other: other }))).is_pending());
    // In another thread, because a failure would be a deadlock.
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        assert!(poll(&mut tail, Waker::noop()).is_pending());
        done.send(topic.subscribers()).unwrap();
    });
    assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(20)), Ok(1));
}

proptest! {
    /// Each step publishes (0), subscribes (1), drops the oldest tail (2) or lets a tail catch up
    /// (3 and more).
    #[test]
    fn every_tail_yields_every_event_in_order_or_ends_with_lagged(
        steps in proptest::collection::vec(0_u8..8, 0..200),
        capacity in 1_usize..5,
    ) {
        let topic = Topic::new(capacity);
        let mut tails: Vec<(Tail, u64)> = Vec::new();
        let mut published = 0_u64;
        for step in steps {
            match step {
                0 => {
                    let text = published.to_string();
                    match published % 2 {
                        0 => topic.publish(text),
                        _ => topic.publish_deferred(text.len(), 0, move || text.clone().into()),
                    }
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
            prop_assert!(topic.shared.state.lock().ring.len() <= capacity);
        }
    }
}
