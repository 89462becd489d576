//! Shape event stream: a shape's log as server-sent events.
//!
//! Invariant: a stream sends every message after the requested offset, once, in order. Up-to-date
//! is sent only between transactions, and its position is after everything sent and before
//! everything that follows. A stream ends only after an up-to-date, or before its first message.
//! At any other point, a stream that must end is aborted, and the client drops the messages that no
//! up-to-date followed.
//! Enforced by: a stream subscribes before it reads the log (`catch_up.rs`); later messages come
//! from its subscription. A stream that falls behind reads the log again. At its timeout, a stream
//! ends with the next up-to-date; the expiry of its token aborts it.
//! A topic keeps at most [`KEPT`] transactions and [`KEPT_BYTES`] for all streams of a shape
//! together, and all topics together at most `MAX_BYTES` of `buffered_bytes.rs`. Larger
//! transactions are read from the log in pieces. A transaction counts with the bytes of its
//! messages until it is formatted, and then with those of its events: 6 more for each message, and
//! about 100 for its up-to-date. While it is formatted, both count.
//! Lock order: a shape's lock (`forebay_shapes`) before its topic's. Transactions are formatted
//! outside both.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::AwakeGuard;
use forebay_shapes::{LogListener, Offset, Shape, ShapeStreamGuard, Shapes};
use forebay_stream::{DirectWrites, Tail, Topic};
use http_body::Body as _;
use memchr::memchr;
use tokio::time::{Instant, Sleep, sleep_until};

use super::buffered_bytes::{self, BufferedBytes, BufferedCount};
use super::catch_up::{CatchUp, CatchUpPiece, CatchUpStep};

/// Maximum number of transactions that a topic keeps for streams that are a little behind.
const KEPT: usize = 64;
/// Maximum bytes that a topic keeps, when a transaction is added.
const KEPT_BYTES: usize = 1024 * 1024;
/// Largest transaction, in bytes of its messages, that is sent through the topic. Streams read
/// larger ones from the log.
const MAX_TRANSACTION_BYTES: usize = 256 * 1024;

const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The topic of a shape: sends each transaction to all its streams.
///
/// The store's writer thread calls it under the shape's lock, so it only hands the messages over.
/// The topic's delivery, or the first stream that needs the transaction, formats it once for all.
#[derive(Debug)]
pub(crate) struct ShapeTopic {
    topic: Topic,
}

impl ShapeTopic {
    pub(super) fn new() -> Self {
        ShapeTopic { topic: Topic::bounded(KEPT, KEPT_BYTES) }
    }

    /// Subscribes a stream, whose socket the topic may write to through `writes`.
    pub(super) fn subscribe(&self, writes: &DirectWrites) -> Tail {
        self.topic.subscribe().direct(writes)
    }
}

impl LogListener for ShapeTopic {
    fn published(&self, messages: &[Bytes], _last: Offset, seen: u64) -> bool {
        let bytes: usize = messages.iter().map(Bytes::len).sum();
        if self.topic.subscribers() == 0
            || bytes > MAX_TRANSACTION_BYTES
            || buffered_bytes::total() + bytes > buffered_bytes::MAX_BYTES
        {
            self.topic.close();
            return false;
        }
        let transaction =
            TransactionMessages { messages: messages.into(), bytes, seen, _count: BufferedCount::new(bytes) };
        self.topic.publish_deferred(bytes, seen, move || transaction.to_events());
        true
    }

    fn ended(&self) {
        self.topic.close();
    }
}

/// Messages of a transaction, until they are formatted as events.
struct TransactionMessages {
    messages: Box<[Bytes]>,
    bytes: usize,
    /// LSN of the up-to-date that follows the messages.
    seen: u64,
    _count: BufferedCount,
}

impl TransactionMessages {
    /// Returns the messages and the up-to-date as server-sent events.
    fn to_events(&self) -> Bytes {
        let mut events = Vec::with_capacity(self.bytes + self.bytes / 32 + 128);
        write_events(&mut events, &self.messages);
        write_up_to_date(&mut events, self.seen);
        BufferedBytes::count(events)
    }
}

const UP_TO_DATE_START: &[u8] = br#"{"headers":{"control":"up-to-date","global_last_seen_lsn":""#;
const UP_TO_DATE_END: &[u8] = br#""}}"#;

/// Returns the up-to-date control message of a position.
pub(crate) fn up_to_date(seen: u64) -> Bytes {
    [UP_TO_DATE_START, itoa::Buffer::new().format(seen).as_bytes(), UP_TO_DATE_END].concat().into()
}

/// Writes the up-to-date of a position as an event.
pub(super) fn write_up_to_date(out: &mut Vec<u8>, seen: u64) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(UP_TO_DATE_START);
    out.extend_from_slice(itoa::Buffer::new().format(seen).as_bytes());
    out.extend_from_slice(UP_TO_DATE_END);
    out.extend_from_slice(b"\n\n");
}

/// Writes messages with their separators as events. Pieces may begin and end within a message.
pub(super) fn write_events(out: &mut Vec<u8>, messages: &[Bytes]) {
    let mut is_start = true;
    for piece in messages {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            if is_start {
                out.extend_from_slice(b"data: ");
            }
            let line = memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            out.extend_from_slice(&rest[..line]);
            is_start = rest[line - 1] == b'\n';
            if is_start {
                // The separator is a comma and a line feed.
                out.truncate(out.len() - 2);
                out.extend_from_slice(b"\n\n");
            }
            rest = &rest[line..];
        }
    }
}

/// Returns the position for an up-to-date after the message `last`, when the log was read up to
/// `seen`. It is after both, and before everything that follows.
pub(crate) fn seen_with(last: Offset, seen: u64) -> u64 {
    seen.max(last.lsn + 1)
}

/// Timeouts of an event stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamTimeouts {
    /// Interval of keep-alives on a silent stream.
    pub(crate) keep_alive: Duration,
    /// Duration after which the stream ends with its next up-to-date.
    pub(crate) ends_after: Duration,
    /// Expiry of the client's token. Nothing is sent after it.
    pub(crate) until: Option<Instant>,
}

/// Where the events of a stream come from.
#[derive(Debug, Clone)]
pub(crate) struct StreamSource {
    pub(crate) shape: Arc<Shape>,
    pub(crate) shapes: Shapes,
    /// Permission for the shape's topic to write to the stream's socket. The response's extensions
    /// have a clone.
    pub(crate) writes: DirectWrites,
}

/// The event stream of one client.
pub(crate) struct ShapeEventStream {
    source: StreamSource,
    /// Offset up to which the client has every change, as of the last read of the log. While the
    /// stream follows the tail, the tail has the newer position.
    settled: Offset,
    /// Whether the client needs an up-to-date: it was behind at the start, or messages were sent
    /// since the last one.
    is_open: bool,
    state: State,
    keep_alive: Duration,
    /// Time of the last event from the log, or keep-alive.
    last_sent: Instant,
    /// From this time on, the stream ends as soon as `is_open` is false.
    ends: Instant,
    /// At this time the stream is aborted if `is_open` is true. Not before `ends`.
    aborts: Option<Instant>,
    /// Why the stream is aborted at `aborts`.
    abort_reason: &'static str,
    /// Timer that fires at the next keep-alive or end, or earlier. An event doesn't reset it: on a
    /// busy stream most resets would be wasted.
    alarm: Pin<Box<Sleep>>,
    /// Keeps the manager awake while the stream is open.
    _awake: Option<AwakeGuard>,
    _watching: ShapeStreamGuard,
}

enum State {
    /// Reads the log up to where the subscription begins.
    Reading(Pin<Box<dyn Future<Output = io::Result<CatchUpPiece>> + Send>>),
    Following(Tail),
    Ended,
}

impl ShapeEventStream {
    /// Subscribes to a shape. `None`: the shape was removed, or the store is unusable.
    pub(crate) fn new(
        source: StreamSource,
        after: Offset,
        timeouts: StreamTimeouts,
        awake: Option<AwakeGuard>,
    ) -> Option<Self> {
        let now = Instant::now();
        let StreamTimeouts { keep_alive, ends_after, until: aborts } = timeouts;
        let ends = aborts.map_or(now + ends_after, |aborts| aborts.min(now + ends_after));
        let alarm = Box::pin(sleep_until(ends.min(now + keep_alive)));
        let _watching = source.shape.watch();
        let mut events = ShapeEventStream {
            source,
            settled: after,
            is_open: false,
            state: State::Ended,
            keep_alive,
            last_sent: now,
            ends,
            aborts,
            abort_reason: "the client's token expired",
            alarm,
            _awake: awake,
            _watching,
        };
        events.is_open = events.subscribe()?;
        Some(events)
    }

    /// Subscribes, and reads the log from the last up-to-date on. Returns whether the client is
    /// behind. `None`: the shape was removed, or the store is unusable.
    fn subscribe(&mut self) -> Option<bool> {
        self.state = State::Ended;
        let catch_up = CatchUp::new(self.source.clone(), self.settled, self.ends)?;
        let is_behind = catch_up.is_behind();
        self.state = State::Reading(Box::pin(catch_up.next()));
        Some(is_behind)
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Reading(reading) => match reading.as_mut().poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => {
                        self.state = State::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(Ok(piece)) => {
                        // Checked at each piece: a client that always has more to read must not
                        // outlive its token.
                        if let Some(end) = self.end() {
                            return Poll::Ready(end);
                        }
                        let events = self.take(piece);
                        if !events.is_empty() {
                            return Poll::Ready(Some(Ok(events)));
                        }
                    }
                },
                State::Following(tail) => match Pin::new(&mut *tail).poll_frame(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(end) = self.end() {
                            return Poll::Ready(end);
                        }
                        return Poll::Ready(Some(Ok(frame.into_data().unwrap_or_default())));
                    }
                    // The stream fell behind, a transaction was too large, or the shape was
                    // removed.
                    Poll::Ready(Some(Err(_)) | None) => {
                        if let Some(last) = tail.last() {
                            self.settled = Offset::new(last.mark, 0);
                        }
                        self.subscribe();
                    }
                },
            }
        }
        self.poll_alarm(cx)
    }

    /// Advances the state after a piece of the log, and returns the bytes to send.
    fn take(&mut self, piece: CatchUpPiece) -> Bytes {
        self.last_sent = Instant::now();
        let (state, seen) = match piece.next {
            CatchUpStep::More(catch_up, seen) => (State::Reading(Box::pin(catch_up.next())), seen),
            CatchUpStep::Follow(seen, tail) => (State::Following(tail), Some(seen)),
        };
        self.settled = seen.map_or(self.settled, |seen| Offset::new(seen, 0));
        self.is_open = seen.is_none();
        // If `ends` passed while `is_open` was true, the timer doesn't fire for it any more.
        let is_over = !self.is_open && self.last_sent >= self.ends;
        self.state = if is_over { State::Ended } else { state };
        piece.events
    }

    /// Ends the stream with the next poll, as if the client's token expired now: cleanly after an
    /// up-to-date, and otherwise by an abort.
    pub(crate) fn end_early(&mut self) {
        let now = Instant::now();
        (self.ends, self.aborts) = (now, Some(now));
        self.abort_reason = "an operator ended the stream";
        self.alarm.as_mut().reset(now);
    }

    /// Ends the stream if it is due: `Some(None)` ends it cleanly, `Some(Some(Err))` aborts it.
    fn end(&mut self) -> Option<Option<io::Result<Bytes>>> {
        let now = Instant::now();
        let is_time = match self.is_open {
            true => self.aborts.is_some_and(|aborts| now >= aborts),
            false => now >= self.ends,
        };
        is_time.then(|| {
            self.state = State::Ended;
            self.is_open.then(|| Err(io::Error::new(io::ErrorKind::TimedOut, self.abort_reason)))
        })
    }

    /// Returns a keep-alive or the end, if one is due.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            if let Some(end) = self.end() {
                return Poll::Ready(end);
            }
            if let State::Following(tail) = &self.state
                && let Some(last) = tail.last()
            {
                self.last_sent = self.last_sent.max(last.at);
            }
            let now = Instant::now();
            let is_due = now >= self.last_sent + self.keep_alive;
            if is_due {
                self.last_sent = now;
            }
            let next = self.last_sent + self.keep_alive;
            let end = if self.is_open && now >= self.ends { self.aborts } else { Some(self.ends) };
            self.alarm.as_mut().reset(end.map_or(next, |end| end.min(next)));
            if is_due {
                // Registers the waker with the timer again.
                if self.alarm.as_mut().poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
                return Poll::Ready(Some(Ok(Bytes::from_static(KEEP_ALIVE))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_transaction_in_pieces_is_formatted_as_one_event_for_each_message() {
        let (topic, mut cx) = (ShapeTopic::new(), Context::from_waker(Waker::noop()));
        let mut tail = topic.subscribe(&DirectWrites::new());
        let pieces = ["{\"a\":1},\n{\"b\"", ":2}", ",\n"].map(|piece| Bytes::from_static(piece.as_bytes()));
        assert!(topic.published(&pieces, Offset::FIRST, 9));
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut tail).poll_frame(&mut cx) else {
            panic!("the event was published")
        };
        let up_to_date = String::from_utf8(up_to_date(9).to_vec()).unwrap();
        assert_eq!(up_to_date, r#"{"headers":{"control":"up-to-date","global_last_seen_lsn":"9"}}"#);
        let events = format!("data: {{\"a\":1}}\n\ndata: {{\"b\":2}}\n\ndata: {up_to_date}\n\n");
        assert_eq!(frame.into_data().unwrap(), events);
        drop(tail);
        assert!(!topic.published(&pieces, Offset::FIRST, 10), "no stream is left");
    }
}
