//! Catch-up: reads a shape's log for one event stream, up to where its subscription begins.
//!
//! Invariant: every message after the client's offset comes once, in order. At each up-to-date the
//! client has rows that the table had between two commits.
//! Enforced by: up-to-date follows only the end of a transaction, and none is sent within the merged
//! part of the log. Merging moves updates to later ones, so only the end of that part is a state of
//! the table. A goal that has come to lie within it is replaced by a later one.
//! Progress: a slow client gets an up-to-date about every [`PAUSE`], where the log allows one. A
//! stream that is cut has then still brought its client forward.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_shapes::encode::{last_commit, last_offset};
use forebay_shapes::{LogPage, Offset, Shape, Shapes};
use forebay_stream::Tail;
use memchr::memrchr;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::counted::{self, Counted};
use super::events::{Live, seen_with, up_to_date, write_event, write_events};

/// Interval between two up-to-dates of a client that catches up. Each makes the client show its rows.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads what the log has after an offset.
pub(super) struct CatchUp {
    shape: Arc<Shape>,
    shapes: Shapes,
    /// The last message that was read, or the offset that was asked for.
    read: Offset,
    /// What is left of the page that is being read.
    page: Option<LogPage>,
    goal: Goal,
    /// Whether messages were read that no up-to-date followed.
    is_open: bool,
    /// The time of the last up-to-date, or of the beginning.
    settled: Instant,
    /// When the stream's time is over.
    ends: Instant,
}

/// Where the subscription begins.
struct Goal {
    /// The end of the log, as a position and as an offset.
    to: u64,
    last: Offset,
    /// What up-to-date says there.
    seen: u64,
    tail: Tail,
}

/// Some events, and what comes then.
pub(super) struct Piece {
    pub(super) events: Bytes,
    pub(super) next: Next,
}

pub(super) enum Next {
    /// More of the log. Some: the events end with an up-to-date that says this position.
    More(CatchUp, Option<u64>),
    /// The goal is reached. The client has all before this position; the tail has what follows.
    Follow(u64, Tail),
}

impl Goal {
    /// Subscribes. `None`: the shape is gone, or the store is unusable.
    fn new(shape: &Shape, shapes: &Shapes) -> Option<Goal> {
        // Before the subscription: all that it doesn't cover is in the log.
        let seen = shapes.seen();
        let (tail, end) = shape.attach(Live::new, Live::subscribe)?;
        // After it: a listener that comes later isn't told that it has ended.
        if shapes.unusable().is_some() {
            return None;
        }
        Some(Goal { to: end.to, last: end.last, seen: seen_with(end.last, seen), tail })
    }
}

impl CatchUp {
    /// Subscribes, to read what is there after an offset. From `ends` on, the next end of a
    /// transaction gets an up-to-date. `None`: the shape is gone.
    pub(super) fn new(shape: Arc<Shape>, shapes: Shapes, after: Offset, ends: Instant) -> Option<CatchUp> {
        let goal = Goal::new(&shape, &shapes)?;
        let settled = Instant::now();
        Some(CatchUp { shape, shapes, read: after, page: None, goal, is_open: false, settled, ends })
    }

    /// Whether there is anything to read.
    pub(super) fn is_behind(&self) -> bool {
        self.read < self.goal.last
    }

    /// Reads the next piece.
    pub(super) async fn next(mut self) -> io::Result<Piece> {
        let mut events = BytesMut::new();
        let read = self.messages().await;
        let read = read.inspect_err(|error| self.shapes.heal(&self.shape, error))?;
        let Some((messages, is_merged)) = read else {
            if self.is_open {
                write_event(&mut events, &up_to_date(self.goal.seen));
            }
            let next = Next::Follow(self.goal.seen, self.goal.tail);
            return Ok(Piece { events: events.freeze(), next });
        };
        let now = Instant::now();
        let is_due = now >= self.ends.min(self.settled + PAUSE);
        let commit = if is_due && !is_merged { last_commit(&messages) } else { None };
        let end = commit.map_or(messages.len(), |(end, _)| end);
        let messages = messages.slice(..end);
        self.read = last_offset(&messages).ok_or(io::ErrorKind::InvalidData)?;
        self.page.iter_mut().for_each(|page| page.from += end as u64);
        write_events(&mut events, &[messages]);
        self.is_open = commit.is_none();
        let seen = commit.map(|(_, lsn)| seen_with(Offset::new(lsn, 0), 0));
        if let Some(seen) = seen {
            write_event(&mut events, &up_to_date(seen));
            self.settled = now;
        }
        Ok(Piece { events: events.freeze(), next: Next::More(self, seen) })
    }

    /// Reads some whole messages, and returns whether they are of the merged part. `None`: the goal
    /// is reached.
    async fn messages(&mut self) -> io::Result<Option<(Bytes, bool)>> {
        loop {
            let page = match self.page.filter(|page| page.from < page.to) {
                Some(page) => page,
                None => match self.next_page().await? {
                    Some(page) => *self.page.insert(page),
                    None => return Ok(None),
                },
            };
            match read_messages(&self.shape, &page).await {
                Ok(messages) => return Ok(Some((messages, page.merged_to.is_some()))),
                // Its file may be gone; what it had is elsewhere.
                Err(_) if self.shape.is_merged_since(&page) => self.page = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// Finds the part of the log that comes next, not beyond the goal. `None`: the goal is reached.
    async fn next_page(&mut self) -> io::Result<Option<LogPage>> {
        if !self.is_behind() {
            return Ok(None);
        }
        let after = self.read;
        let mut page = match self.shape.log_after_at_once(after) {
            Some(page) => page,
            None => {
                let seeking = Arc::clone(&self.shape);
                spawn_blocking(move || seeking.log_after(after)).await.map_err(io::Error::other)??
            }
        };
        match page.merged_to {
            None => page.to = page.to.min(self.goal.to),
            Some(end) if end > self.goal.last => {
                let gone = || io::Error::new(io::ErrorKind::NotFound, "the shape is gone");
                self.goal = Goal::new(&self.shape, &self.shapes).ok_or_else(gone)?;
            }
            Some(_) => {}
        }
        // Between the snapshot and a log without messages, say.
        Ok((page.from < page.to).then_some(page))
    }
}

/// Reads about a piece of whole messages of a page, and at least one.
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
