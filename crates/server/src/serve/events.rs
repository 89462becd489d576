//! A shape's log as server-sent events.
//!
//! Invariant: a stream has every message after the offset that it was asked for, once, in order; up-to-date comes only between
//! transactions, and the offset that it tells is after all that was sent and before whatever comes.
//! Kept by: a stream subscribes before it reads what is there; what was published since comes by its subscription. One that falls behind
//! reads from the log again, from where it is.
//! Bounds: a topic keeps `KEPT` transactions of `KEPT_BYTES` for all streams of a shape together, and all of them what `counted.rs`
//! says; what is larger is read from the log, piece by piece.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_postgres::Awake;
use forebay_shapes::{Listener, LogPage, Offset, Shape, Shapes, Watching};
use forebay_stream::{Tail, Topic};
use http_body::Body as _;
use memchr::{memchr, memrchr};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Sleep, sleep_until};

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
    fn new() -> Self {
        Live { topic: Topic::bounded(KEPT, KEPT_BYTES) }
    }
}

impl Listener for Live {
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
fn write_events(out: &mut BytesMut, messages: &[Bytes]) {
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

fn write_event(out: &mut BytesMut, message: &[u8]) {
    out.put_slice(b"data: ");
    out.put_slice(message);
    out.put_slice(b"\n\n");
}

/// One stream.
pub(crate) struct Events {
    shape: Arc<Shape>,
    shapes: Shapes,
    /// Everything up to here was sent; what was sent of a tail, the tail knows.
    sent: Offset,
    state: State,
    keep_alive: Duration,
    /// When it had its last event of the log, or keep-alive.
    heard: Instant,
    ends_at: Instant,
    /// Not after the next keep-alive, nor the end. An event leaves it alone: most alarms would be put off before they ring.
    alarm: Pin<Box<Sleep>>,
    /// While somebody listens, the database is followed.
    _awake: Option<Awake>,
    _watching: Watching,
}

enum State {
    /// Reads what is in the log already, up to where the subscription begins.
    Reading(Pin<Box<dyn Future<Output = io::Result<Read>> + Send>>),
    Following(Tail),
    Over,
}

/// A piece of the log, and what comes then.
struct Read {
    event: Bytes,
    next: Next,
}

enum Next {
    /// More of the log: the rest of this page, and what follows.
    More(LogPage, Goal),
    Follow(Goal),
}

/// Where the subscription begins.
struct Goal {
    to: u64,
    last: Offset,
    seen: u64,
    tail: Tail,
}

/// What up-to-date tells after a message, if this was seen before: a position after both, and before whatever comes.
pub(crate) fn seen_with(last: Offset, seen: u64) -> u64 {
    seen.max(last.lsn + 1)
}

impl Events {
    /// `None`: the shape is gone, or the store is unusable.
    pub(crate) fn new(
        shape: Arc<Shape>,
        shapes: Shapes,
        after: Offset,
        keep_alive: Duration,
        lasts: Duration,
        awake: Option<Awake>,
    ) -> Option<Self> {
        let now = Instant::now();
        let alarm = Box::pin(sleep_until(now + keep_alive.min(lasts)));
        let ends_at = now + lasts;
        let _watching = shape.watch();
        let mut events = Events {
            shape,
            shapes,
            sent: after,
            state: State::Over,
            keep_alive,
            heard: now,
            ends_at,
            alarm,
            _awake: awake,
            _watching,
        };
        events.subscribe().then_some(events)
    }

    /// From what was sent last on. `false`: the shape is gone, or the store is unusable.
    fn subscribe(&mut self) -> bool {
        // Before the subscription: all that it doesn't cover is in the log.
        let seen = self.shapes.seen();
        let attached = self.shape.attach(Live::new, |live| live.topic.subscribe().direct());
        // After it: a listener that comes later isn't told that it has ended.
        let Some((tail, end)) = attached.filter(|_| self.shapes.unusable().is_none()) else {
            self.state = State::Over;
            return false;
        };
        let goal = Goal { to: end.to, last: end.last, seen: seen_with(end.last, seen), tail };
        let (shape, sent) = (Arc::clone(&self.shape), self.sent);
        self.state = State::Reading(Box::pin(begin(shape, sent, goal)));
        true
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let event = match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::Reading(reading) => match reading.as_mut().poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => {
                        self.state = State::Over;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(Ok(Read { event, next })) => {
                        self.heard = Instant::now();
                        self.state = match next {
                            Next::More(page, goal) => {
                                State::Reading(Box::pin(read_on(Arc::clone(&self.shape), page, goal)))
                            }
                            Next::Follow(goal) => {
                                self.sent = Offset::new(goal.seen, 0);
                                State::Following(goal.tail)
                            }
                        };
                        event
                    }
                },
                State::Following(tail) => match Pin::new(&mut *tail).poll_frame(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                    // It fell behind, or a transaction was too large, or the shape is gone.
                    Poll::Ready(Some(Err(_)) | None) => {
                        if let Some(last) = tail.last() {
                            self.sent = Offset::new(last.mark, 0);
                        }
                        self.subscribe();
                        continue;
                    }
                },
            };
            // Also while there is always more: a client that reads slowly must not keep what a token has opened.
            if Instant::now() >= self.ends_at {
                self.state = State::Over;
            } else if !event.is_empty() {
                return Poll::Ready(Some(Ok(event)));
            }
        }
        self.poll_alarm(cx)
    }

    /// A keep-alive, or the end, when it is time.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            if now >= self.ends_at {
                self.state = State::Over;
                return Poll::Ready(None);
            }
            if let State::Following(tail) = &self.state
                && let Some(last) = tail.last()
            {
                self.heard = self.heard.max(last.at);
            }
            let is_due = now >= self.heard + self.keep_alive;
            if is_due {
                self.heard = now;
            }
            self.alarm.as_mut().reset((self.heard + self.keep_alive).min(self.ends_at));
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

async fn begin(shape: Arc<Shape>, sent: Offset, goal: Goal) -> io::Result<Read> {
    let page = next_page(&shape, sent, &goal).await?;
    read_on(shape, page, goal).await
}

/// What comes after an offset, not beyond the goal.
async fn next_page(shape: &Arc<Shape>, after: Offset, goal: &Goal) -> io::Result<LogPage> {
    if after >= goal.last {
        return Ok(LogPage::empty(goal.last));
    }
    let mut page = match shape.log_after_at_once(after) {
        Some(page) => page,
        None => {
            let seeking = Arc::clone(shape);
            spawn_blocking(move || seeking.log_after(after)).await.map_err(io::Error::other)??
        }
    };
    if page.is_recent() {
        (page.to, page.last) = (page.to.min(goal.to), page.last.min(goal.last));
    }
    Ok(page)
}

async fn read_on(shape: Arc<Shape>, mut page: LogPage, goal: Goal) -> io::Result<Read> {
    let mut event = BytesMut::new();
    if page.from < page.to {
        let messages = read_messages(&shape, &page).await?;
        page.from += messages.len() as u64;
        write_events(&mut event, &[messages]);
        if page.from < page.to {
            return Ok(Read { event: event.freeze(), next: Next::More(page, goal) });
        }
        if page.last < goal.last {
            let page = next_page(&shape, page.last, &goal).await?;
            return Ok(Read { event: event.freeze(), next: Next::More(page, goal) });
        }
    }
    write_event(&mut event, &up_to_date(goal.seen));
    Ok(Read { event: event.freeze(), next: Next::Follow(goal) })
}

/// About a piece of whole messages of a page, and at least one.
async fn read_messages(shape: &Arc<Shape>, page: &LogPage) -> io::Result<Bytes> {
    let (page, mut bytes) = (*page, BytesMut::new());
    loop {
        let at = page.from + bytes.len() as u64;
        let until = page.to.min(at + counted::piece());
        let reading = Arc::clone(shape);
        let read = spawn_blocking(move || reading.read_log(&page, at, until)).await;
        let pieces = read.map_err(io::Error::other)??;
        pieces.iter().for_each(|piece| bytes.put_slice(piece));
        if let Some(end) = memrchr(b'\n', &bytes) {
            bytes.truncate(end + 1);
            return Ok(Counted::bytes(bytes.freeze()));
        }
        if until == page.to {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
