//! Tests of topics, tails and direct writes under `loom`: every order of their lock operations, with
//! a bound on preemptions (`script/loom`).

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use loom::future::block_on;
use loom::thread;

use crate::h1::socket_writer::SocketWriter;
use crate::h1::write_batch::WriteBatch;
use crate::live::direct_writes::{DirectWrites, SocketState, StreamSocket, WriterState};
use crate::live::tail::{Tail, TailLagged};
use crate::live::topic::Topic;

/// Chunk after which nothing may be written.
const LAST: &str = "last";

/// What a client has received, one entry for each chunk.
type ReceivedChunks = Arc<Mutex<Vec<String>>>;

/// Socket that records the chunks that are written to it.
#[derive(Debug, Default)]
pub(super) struct RecordedSocket {
    received: ReceivedChunks,
    /// The next write is not accepted.
    is_full: bool,
}

impl RecordedSocket {
    /// Writes a batch, and returns a writer with what was not accepted.
    pub(super) fn write(&mut self, batch: &mut WriteBatch) -> SocketWriter {
        let bytes: Vec<u8> = batch.take_unsent(0).into_iter().flatten().collect();
        if bytes.is_empty() {
            return SocketWriter::default();
        }
        if std::mem::take(&mut self.is_full) {
            return SocketWriter::with_unsent(bytes.into());
        }
        self.accept(&bytes);
        SocketWriter::default()
    }

    /// Splits the bytes into chunks, each of which is a line with its size and a line of data.
    fn accept(&self, bytes: &[u8]) {
        let text = std::str::from_utf8(bytes).unwrap();
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        let mut received = self.received.lock().unwrap();
        assert_ne!(received.last().map(String::as_str), Some(LAST), "written after the last chunk");
        received.extend(lines.chunks(2).map(|chunk| chunk[1].to_owned()));
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
    fn new(topic: &Topic, received: &ReceivedChunks, is_full: bool) -> TestStream {
        let (topic, writes) = (topic.clone(), DirectWrites::new());
        let recorded = RecordedSocket { received: Arc::clone(received), is_full };
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
    writer.output.take_unsent().iter().for_each(|unsent| socket.accept(unsent));
}

fn write(writer: &mut WriterState, event: &Bytes) {
    let SocketState::Recorded(socket) = &mut writer.socket else { panic!("the stream has its socket") };
    socket.is_full = false;
    let mut batch = WriteBatch::default();
    batch.push_chunk(event);
    socket.write(&mut batch);
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
        let topic = Topic::new(4);
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
        let topic = Topic::new(4);
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
        let topic = Topic::new(4);
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
        let (topic, encoded) = (Topic::new(4), Arc::new(AtomicUsize::new(0)));
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

/// Runs a stream to the end of its topic, while another thread publishes `events` events, and checks
/// that the client has each of them once and in order.
fn check_stream(capacity: usize, events: u64, is_full: bool) {
    loom::model(move || {
        let (topic, received) = (Topic::new(capacity), ReceivedChunks::default());
        let mut stream = TestStream::new(&topic, &received, is_full);
        let publisher = thread::spawn(move || {
            (0..events).for_each(|event| publish(&topic, event));
            topic.close();
        });
        block_on(poll_fn(|cx| stream.poll(cx)));
        publisher.join().unwrap();
        let expected: Vec<String> = (0..events).map(|event| event.to_string()).collect();
        assert_eq!(*received.lock().unwrap(), expected);
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
        let (topic, received) = (Topic::new(4), ReceivedChunks::default());
        let mut stream = TestStream::new(&topic, &received, false);
        let publisher = thread::spawn(move || publish(&topic, 0));
        assert!(stream.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The tail stays alive: a body may keep it somewhere else.
        let mut writer = stream.socket.lock();
        stream.socket.end_direct_writes();
        write(&mut writer, &Bytes::from_static(LAST.as_bytes()));
        drop(writer);
        publisher.join().unwrap();
        let chunks = received.lock().unwrap().clone();
        assert!(chunks == [LAST] || chunks == ["0", LAST], "{chunks:?}");
    });
}
