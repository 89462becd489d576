//! A shape's log as server-sent events.
//!
//! Invariant: a stream has every message after the offset that it was asked for, once, in order.
//! Up-to-date comes only between transactions, and the offset that it tells is after all that was
//! sent and before whatever comes. A stream ends only after an up-to-date, or before its first
//! message. Any other end breaks it: the client drops messages that no up-to-date followed.
//! Enforced by: a stream subscribes before it reads what is there (`catch_up.rs`); what was published
//! since comes by its subscription. A stream that falls behind reads from the log again. When its
//! time is over, it ends with the next up-to-date; its token's end breaks it.
//! Bounds: a topic keeps `KEPT` transactions of `KEPT_BYTES` for all streams of a shape together, and all of them what `counted.rs`
//! says; what is larger is read from the log, piece by piece.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_replication::AwakeGuard;
use forebay_shapes::{LogListener, Offset, Shape, ShapeStreamGuard, Shapes};
use forebay_stream::{Tail, Topic};
use http_body::Body as _;
use memchr::memchr;
use tokio::time::{Instant, Sleep, sleep_until};

use super::catch_up::{CatchUp, Next, Piece};
use super::counted::{self, Counted};

/// How many transactions are kept for streams that are a little behind.
const KEPT: usize = 64;
/// And how much of them.
const KEPT_BYTES: usize = 1024 * 1024;
/// Larger ones are read from the log.
const LARGEST: usize = 256 * 1024;

const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// A shape's changes, for all its streams.
#[derive(Debug)]
pub(crate) struct Live {
    topic: Topic,
}

impl Live {
    pub(super) fn new() -> Self {
        Live { topic: Topic::bounded(KEPT, KEPT_BYTES) }
    }

    pub(super) fn subscribe(&self) -> Tail {
        self.topic.subscribe().direct()
    }
}

impl LogListener for Live {
    fn published(&self, messages: &[Bytes], _last: Offset, seen: u64) -> bool {
        let bytes: usize = messages.iter().map(Bytes::len).sum();
        if self.topic.subscribers() == 0 || bytes > LARGEST || counted::total() + bytes > counted::MAX_BYTES {
            self.topic.close();
            return false;
        }
        let mut event = BytesMut::with_capacity(bytes + bytes / 32 + 128);
        write_events(&mut event, messages);
        write_event(&mut event, &up_to_date(seen));
        self.topic.publish_marked(Counted::bytes(event.freeze()), seen);
        true
    }

    fn ended(&self) {
        self.topic.close();
    }
}

/// The control message.
pub(crate) fn up_to_date(seen: u64) -> Bytes {
    format!("{{\"headers\":{{\"control\":\"up-to-date\",\"global_last_seen_lsn\":\"{seen}\"}}}}").into()
}

/// Whole messages with their separators; where one ends and the next begins need not be where the pieces do.
pub(super) fn write_events(out: &mut BytesMut, messages: &[Bytes]) {
    let mut is_start = true;
    for piece in messages {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            if is_start {
                out.put_slice(b"data: ");
            }
            let line = memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            out.put_slice(&rest[..line]);
            is_start = rest[line - 1] == b'\n';
            if is_start {
                // The separator is a comma and the line's end.
                out.truncate(out.len() - 2);
                out.put_slice(b"\n\n");
            }
            rest = &rest[line..];
        }
    }
}

pub(super) fn write_event(out: &mut BytesMut, message: &[u8]) {
    out.put_slice(b"data: ");
    out.put_slice(message);
    out.put_slice(b"\n\n");
}

/// What up-to-date tells after a message, if this was seen before: a position after both, and
/// before whatever comes.
pub(crate) fn seen_with(last: Offset, seen: u64) -> u64 {
    seen.max(last.lsn + 1)
}

/// How long a stream goes on, and what it says meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The interval between keep-alives of a silent stream.
    pub(crate) keep_alive: Duration,
    /// After so long, it ends with its next up-to-date.
    pub(crate) lasts: Duration,
    /// The end of the client's token. Nothing is sent after it.
    pub(crate) until: Option<Instant>,
}

/// One stream.
pub(crate) struct Events {
    shape: Arc<Shape>,
    shapes: Shapes,
    /// What the last up-to-date said, or the offset that was asked for. What was sent of a tail, the
    /// tail knows.
    settled: Offset,
    /// Whether the client lacks an up-to-date: it was behind when it came, or messages were sent
    /// since the last one.
    is_open: bool,
    state: State,
    keep_alive: Duration,
    /// When it had its last event of the log, or keep-alive.
    heard: Instant,
    /// From when on it ends, unless it is open.
    ends: Instant,
    /// When it breaks, though it is open; not before `ends`.
    breaks: Option<Instant>,
    /// Not after the next keep-alive, nor the end. An event leaves it alone: most alarms would be put off before they ring.
    alarm: Pin<Box<Sleep>>,
    /// While somebody listens, the database is followed.
    _awake: Option<AwakeGuard>,
    _watching: ShapeStreamGuard,
}

enum State {
    /// Reads what is in the log already, up to where the subscription begins.
    Reading(Pin<Box<dyn Future<Output = io::Result<Piece>> + Send>>),
    Following(Tail),
    Over,
}

impl Events {
    /// `None`: the shape is gone, or the store is unusable.
    pub(crate) fn new(
        shape: Arc<Shape>,
        shapes: Shapes,
        after: Offset,
        times: Times,
        awake: Option<AwakeGuard>,
    ) -> Option<Self> {
        let now = Instant::now();
        let Times { keep_alive, lasts, until: breaks } = times;
        let ends = breaks.map_or(now + lasts, |breaks| breaks.min(now + lasts));
        let alarm = Box::pin(sleep_until(ends.min(now + keep_alive)));
        let _watching = shape.watch();
        let mut events = Events {
            shape,
            shapes,
            settled: after,
            is_open: false,
            state: State::Over,
            keep_alive,
            heard: now,
            ends,
            breaks,
            alarm,
            _awake: awake,
            _watching,
        };
        events.is_open = events.subscribe()?;
        Some(events)
    }

    /// From the last up-to-date on. Whether the client is behind; `None`: the shape is gone, or the
    /// store is unusable.
    fn subscribe(&mut self) -> Option<bool> {
        self.state = State::Over;
        let (shape, shapes) = (Arc::clone(&self.shape), self.shapes.clone());
        let catch_up = CatchUp::new(shape, shapes, self.settled, self.ends)?;
        let is_behind = catch_up.is_behind();
        self.state = State::Reading(Box::pin(catch_up.next()));
        Some(is_behind)
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::Reading(reading) => match reading.as_mut().poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => {
                        self.state = State::Over;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(Ok(piece)) => {
                        // Also while there is always more: a slow client must not outlive its token.
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
                    // It fell behind, or a transaction was too large, or the shape is gone.
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

    /// Goes on after a piece of the log: what of it is sent.
    fn take(&mut self, piece: Piece) -> Bytes {
        self.heard = Instant::now();
        let (state, seen) = match piece.next {
            Next::More(catch_up, seen) => (State::Reading(Box::pin(catch_up.next())), seen),
            Next::Follow(seen, tail) => (State::Following(tail), Some(seen)),
        };
        self.settled = seen.map_or(self.settled, |seen| Offset::new(seen, 0));
        self.is_open = seen.is_none();
        // A stream whose time was over while it was open has no alarm for that.
        let is_over = !self.is_open && self.heard >= self.ends;
        self.state = if is_over { State::Over } else { state };
        piece.events
    }

    /// Ends the stream if it is time: properly, or with an error that breaks it.
    fn end(&mut self) -> Option<Option<io::Result<Bytes>>> {
        let now = Instant::now();
        let is_time = match self.is_open {
            true => self.breaks.is_some_and(|breaks| now >= breaks),
            false => now >= self.ends,
        };
        is_time.then(|| {
            self.state = State::Over;
            self.is_open.then(|| Err(io::Error::new(io::ErrorKind::TimedOut, "the client's token expired")))
        })
    }

    /// A keep-alive, or the end, when it is time.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            if let Some(end) = self.end() {
                return Poll::Ready(end);
            }
            if let State::Following(tail) = &self.state
                && let Some(last) = tail.last()
            {
                self.heard = self.heard.max(last.at);
            }
            let now = Instant::now();
            let is_due = now >= self.heard + self.keep_alive;
            if is_due {
                self.heard = now;
            }
            let next = self.heard + self.keep_alive;
            let end = if self.is_open && now >= self.ends { self.breaks } else { Some(self.ends) };
            self.alarm.as_mut().reset(end.map_or(next, |end| end.min(next)));
            if is_due {
                // Registers the alarm again.
                if self.alarm.as_mut().poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
                return Poll::Ready(Some(Ok(Bytes::from_static(KEEP_ALIVE))));
            }
        }
    }
}
