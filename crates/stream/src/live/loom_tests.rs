//! Tests of topics, tails and direct writes under `loom`: every order of their lock operations,
//! with a bound on preemptions (`script/loom`).

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use loom::future::block_on;
use loom::thread;

use crate::h1::socket_writer::SocketWriter;
use crate::h1::write_batch::WriteBatch;
use crate::live::delivery::DeliveryRuntime;
use crate::live::direct_writes::{DirectWrites, SocketState, StreamSocket, WriterState};
use crate::live::tail::{Tail, TailLagged};
use crate::live::topic::Topic;

/// Chunk after which nothing may be written.
const LAST: &str = "last";

/// What a client has received. Its lock isn't one of `loom`, so no other lock is taken under it.
#[derive(Debug, Clone, Default)]
struct TestClient(Arc<Mutex<ReceivedChunks>>);

#[derive(Debug, Default)]
struct ReceivedChunks {
    chunks: Vec<String>,
    /// Woken by the next chunk.
    waker: Option<Waker>,
}

impl TestClient {
    /// Receives chunks, each of which is a line with its size and a line of data.
    fn receive(&self, bytes: &[u8]) {
        let lines: Vec<&str> = std::str::from_utf8(bytes).unwrap().split_terminator("\r\n").collect();
        let mut received = self.0.lock().unwrap();
        assert_ne!(received.chunks.last().map(String::as_str), Some(LAST), "written after the last chunk");
        received.chunks.extend(lines.chunks(2).map(|chunk| chunk[1].to_owned()));
        let waker = received.waker.take();
        drop(received);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits until `count` chunks were received.
    fn wait_for(&self, count: u64) {
        block_on(poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut received = self.0.lock().unwrap();
            let former = received.waker.replace(waker);
            let is_complete = received.chunks.len() as u64 >= count;
            drop(received);
            drop(former);
            if is_complete { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    /// Returns all chunks.
    fn into_chunks(self) -> Vec<String> {
        let received = std::mem::take(&mut *self.0.lock().unwrap());
        received.chunks
    }
}

/// Socket that records what is written to it.
#[derive(Debug)]
pub(crate) struct RecordedSocket {
    client: TestClient,
    /// The next write is not accepted.
    is_full: bool,
}

impl RecordedSocket {
    /// Writes a batch, and returns a writer with what was not accepted.
    pub(crate) fn write(&mut self, batch: &mut WriteBatch) -> SocketWriter {
        let bytes: Vec<u8> = batch.take_unsent(0).into_iter().flatten().collect();
        if bytes.is_empty() {
            return SocketWriter::default();
        }
        if std::mem::take(&mut self.is_full) {
            return SocketWriter::with_unsent(bytes.into());
        }
        self.client.receive(&bytes);
        SocketWriter::default()
    }
}

/// A live stream: its socket, and a body that subscribes again when its tail falls behind.
struct TestStream {
    topic: Topic,
    writes: DirectWrites,
    socket: StreamSocket,
    tail: Tail,
}

impl TestStream {
    fn new(topic: &Topic, client: &TestClient, is_full: bool) -> TestStream {
        let (topic, writes) = (topic.clone(), DirectWrites::new());
        let recorded = RecordedSocket { client: client.clone(), is_full };
        let socket =
            StreamSocket::connect(writes.clone(), SocketState::Recorded(recorded), SocketWriter::default());
        let tail = topic.subscribe().direct(&writes);
        TestStream { topic, writes, socket, tail }
    }

    /// Polls the stream as its task does; resolves when the topic is closed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut writer = self.socket.lock();
        flush(&mut writer);
        loop {
            match self.tail.poll_event(cx) {
                Poll::Ready(Some(Ok(event))) => write(&mut writer, &event),
                Poll::Ready(Some(Err(TailLagged { .. }))) => {
                    // As an event stream does: the events in between are read from the log.
                    let next = self.tail.last().map_or(0, |last| last.mark + 1);
                    self.tail = self.topic.subscribe().direct(&self.writes);
                    (next..self.tail.progress.next).for_each(|event| write(&mut writer, &text(event)));
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Writes what a topic has left unsent.
fn flush(writer: &mut WriterState) {
    let SocketState::Recorded(socket) = &writer.socket else { panic!("the stream has its socket") };
    writer.output.take_unsent().iter().for_each(|unsent| socket.client.receive(unsent));
}

fn write(writer: &mut WriterState, event: &Bytes) {
    let SocketState::Recorded(socket) = &mut writer.socket else { panic!("the stream has its socket") };
    socket.is_full = false;
    let mut batch = WriteBatch::default();
    batch.push_chunk(event);
    socket.write(&mut batch);
}

/// Returns a topic whose deliveries run in threads of `loom`.
fn test_topic(capacity: usize) -> Topic {
    let mut topic = Topic::new(capacity);
    Arc::get_mut(&mut topic.shared).expect("a new topic has one handle").runtime = DeliveryRuntime::Loom;
    topic
}

/// Returns the text of event number `event`, which is also its mark.
fn text(event: u64) -> Bytes {
    event.to_string().into()
}

fn publish(topic: &Topic, event: u64) {
    topic.publish_marked(text(event), event);
}

fn event(tail: &mut Tail) -> Option<Result<Bytes, TailLagged>> {
    block_on(poll_fn(|cx| tail.poll_event(cx)))
}

#[test]
fn a_tail_that_goes_to_sleep_misses_no_event_and_no_close() {
    loom::model(|| {
        let topic = test_topic(4);
        let mut tail = topic.subscribe();
        let publishing = topic.clone();
        let publisher = thread::spawn(move || {
            publish(&publishing, 0);
            publishing.close();
        });
        assert_eq!(event(&mut tail), Some(Ok(text(0))));
        assert_eq!(event(&mut tail), None);
        publisher.join().unwrap();
    });
}

#[test]
fn an_event_published_during_a_close_is_yielded_or_dropped_and_the_tail_ends() {
    loom::model(|| {
        let topic = test_topic(4);
        let mut tail = topic.subscribe();
        let (publishing, closing) = (topic.clone(), topic.clone());
        let publisher = thread::spawn(move || publish(&publishing, 0));
        let closer = thread::spawn(move || closing.close());
        let first = event(&mut tail);
        assert!(first.is_none() || (first == Some(Ok(text(0))) && event(&mut tail).is_none()));
        publisher.join().unwrap();
        closer.join().unwrap();
    });
}

#[test]
fn a_tail_dropped_while_it_is_woken_leaves_no_waker_and_others_are_woken() {
    loom::model(|| {
        let topic = test_topic(4);
        let (mut tail, mut other) = (topic.subscribe(), topic.subscribe());
        let publishing = topic.clone();
        let publisher = thread::spawn(move || publish(&publishing, 0));
        block_on(poll_fn(|cx| {
            let _any = tail.poll_event(cx);
            Poll::Ready(())
        }));
        drop(tail); // with its waker, or `loom` reports a leak
        assert_eq!(event(&mut other), Some(Ok(text(0))));
        publisher.join().unwrap();
        assert_eq!(topic.subscribers(), 1);
    });
}

#[test]
fn a_deferred_event_is_encoded_once_for_concurrent_tails() {
    loom::model(|| {
        let (topic, encoded) = (test_topic(4), Arc::new(AtomicUsize::new(0)));
        let (mut tail, mut other) = (topic.subscribe(), topic.subscribe());
        let counted = Arc::clone(&encoded);
        let reader = thread::spawn(move || event(&mut other));
        topic.publish_deferred(1, 0, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            text(0)
        });
        assert_eq!(event(&mut tail), Some(Ok(text(0))));
        assert_eq!(reader.join().unwrap(), Some(Ok(text(0))));
        assert_eq!((encoded.load(Ordering::Relaxed), Arc::strong_count(&encoded)), (1, 1));
    });
}

/// Publishes `events` events to a stream whose task runs in another thread. Checks that the client
/// receives each of them once and in order, before the topic is closed.
fn check_stream(capacity: usize, events: u64, is_full: bool) {
    loom::model(move || {
        let (topic, client) = (test_topic(capacity), TestClient::default());
        let mut stream = TestStream::new(&topic, &client, is_full);
        let task = thread::spawn(move || block_on(poll_fn(|cx| stream.poll(cx))));
        (0..events).for_each(|event| publish(&topic, event));
        client.wait_for(events);
        topic.close();
        task.join().unwrap();
        let expected: Vec<String> = (0..events).map(|event| event.to_string()).collect();
        assert_eq!(client.into_chunks(), expected);
    });
}

#[test]
fn events_written_by_deliveries_and_by_the_task_are_neither_doubled_nor_lost() {
    check_stream(4, 2, false);
}

#[test]
fn events_that_a_socket_does_not_accept_are_neither_doubled_nor_lost() {
    check_stream(4, 2, true);
}

#[test]
fn a_stream_that_falls_behind_continues_without_a_gap() {
    check_stream(1, 2, false);
}

#[test]
fn a_delivery_writes_nothing_after_the_body_has_ended() {
    loom::model(|| {
        let (topic, client) = (test_topic(4), TestClient::default());
        let mut stream = TestStream::new(&topic, &client, false);
        let publisher = thread::spawn(move || publish(&topic, 0));
        assert!(stream.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The tail stays alive: a body may keep it somewhere else.
        let mut writer = stream.socket.lock();
        stream.socket.end_direct_writes();
        write(&mut writer, &Bytes::from_static(LAST.as_bytes()));
        drop(writer);
        publisher.join().unwrap();
        let chunks = client.into_chunks();
        assert!(chunks == [LAST] || chunks == ["0", LAST], "{chunks:?}");
    });
}
