//! Catch-up: reads a shape's log for one event stream, up to where its subscription begins.
//!
//! Invariant: every message after the client's offset is sent once, in order. At each up-to-date,
//! the client's rows are those that the table had at one moment between two commits.
//! Enforced by: up-to-date follows only the end of a transaction, and none is sent within the
//! merged part of the log. That part has only the last of several updates of a row. Before its end,
//! the client may have rows that the table never had at the same time.
//! The goal is the end of the log when the stream subscribes. If the merged part later extends
//! beyond the goal, the stream subscribes again, and the goal is the new end.
//! Progress: a slow client gets an up-to-date about every [`UP_TO_DATE_INTERVAL`], where the log
//! allows one. So a client whose stream is cut has still made progress.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use forebay_shapes::encode::{last_commit, last_offset};
use forebay_shapes::{LogPage, Offset, Shape};
use forebay_stream::Tail;
use memchr::memrchr;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::buffered_bytes::{self, BufferedBytes};
use super::shape_event_stream::{ShapeTopic, StreamSource, seen_with, write_events, write_up_to_date};

/// Interval between two up-to-dates of a client that catches up. The client displays its rows at
/// each.
const UP_TO_DATE_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the log after an offset, up to where the stream's subscription begins.
pub(super) struct CatchUp {
    source: StreamSource,
    /// Offset of the last message that was read; at the start, the requested offset.
    read: Offset,
    /// The rest of the page that is being read.
    page: Option<LogPage>,
    goal: CatchUpGoal,
    /// Whether messages were read since the last up-to-date.
    is_open: bool,
    /// The time of the last up-to-date, or of the start.
    settled: Instant,
    /// From this time on, the stream ends at its next up-to-date.
    ends: Instant,
}

/// Where the subscription to the topic begins.
struct CatchUpGoal {
    /// Position of the end of the log, in bytes.
    to: u64,
    /// Offset of the last message of the log.
    last: Offset,
    /// LSN in the up-to-date message that is sent at the goal.
    seen: u64,
    tail: Tail,
}

/// Events from the log, and the next step.
pub(super) struct CatchUpPiece {
    pub(super) events: Bytes,
    pub(super) next: CatchUpStep,
}

/// What the stream does after a piece.
pub(super) enum CatchUpStep {
    /// Reads more of the log. `Some`: the events end with an up-to-date that has this LSN.
    More(CatchUp, Option<u64>),
    /// Follows the tail: the goal is reached. The client has every change before this LSN.
    Follow(u64, Tail),
}

impl CatchUpGoal {
    /// Subscribes to the shape. `None`: the shape was removed, or the store is unusable.
    fn new(source: &StreamSource) -> Option<CatchUpGoal> {
        let StreamSource { shape, shapes, writes } = source;
        // Read before subscribing: everything up to `seen` is in the log.
        let seen = shapes.seen_of(shape);
        let (tail, end) = shape.attach(ShapeTopic::new, |topic| topic.subscribe(writes))?;
        // Checked after subscribing: a store that became unusable earlier doesn't notify the new
        // subscription.
        if shapes.unusable().is_some() {
            return None;
        }
        Some(CatchUpGoal { to: end.to, last: end.last, seen: seen_with(end.last, seen), tail })
    }
}

impl CatchUp {
    /// Subscribes, and prepares to read the log after an offset. From the time `ends` on, an
    /// up-to-date is sent at the next end of a transaction. `None`: the shape was removed, or the
    /// store is unusable.
    pub(super) fn new(source: StreamSource, after: Offset, ends: Instant) -> Option<CatchUp> {
        let goal = CatchUpGoal::new(&source)?;
        let settled = Instant::now();
        Some(CatchUp { source, read: after, page: None, goal, is_open: false, settled, ends })
    }

    /// Returns whether the log has messages before the goal.
    pub(super) fn is_behind(&self) -> bool {
        self.read < self.goal.last
    }

    /// Reads the next piece.
    pub(super) async fn next(mut self) -> io::Result<CatchUpPiece> {
        let mut events = Vec::new();
        let read = self.messages().await;
        let read = read.inspect_err(|error| self.source.shapes.heal(&self.source.shape, error))?;
        let Some((messages, is_merged)) = read else {
            if self.is_open {
                write_up_to_date(&mut events, self.goal.seen);
            }
            let next = CatchUpStep::Follow(self.goal.seen, self.goal.tail);
            return Ok(CatchUpPiece { events: events.into(), next });
        };
        let now = Instant::now();
        let is_due = now >= self.ends.min(self.settled + UP_TO_DATE_INTERVAL);
        let commit = if is_due && !is_merged { last_commit(&messages) } else { None };
        let end = commit.map_or(messages.len(), |(end, _)| end);
        let messages = messages.slice(..end);
        self.read = last_offset(&messages).ok_or(io::ErrorKind::InvalidData)?;
        self.page.iter_mut().for_each(|page| page.from += end as u64);
        write_events(&mut events, &[messages]);
        self.is_open = commit.is_none();
        let seen = commit.map(|(_, lsn)| seen_with(Offset::new(lsn, 0), 0));
        if let Some(seen) = seen {
            write_up_to_date(&mut events, seen);
            self.settled = now;
        }
        Ok(CatchUpPiece { events: events.into(), next: CatchUpStep::More(self, seen) })
    }

    /// Reads whole messages. Returns them, and whether they come from the merged part of the log.
    /// `None`: the goal is reached.
    async fn messages(&mut self) -> io::Result<Option<(Bytes, bool)>> {
        loop {
            let page = match self.page.filter(|page| page.from < page.to) {
                Some(page) => page,
                None => match self.next_page().await? {
                    Some(page) => *self.page.insert(page),
                    None => return Ok(None),
                },
            };
            match read_messages(&self.source.shape, &page).await {
                Ok(messages) => return Ok(Some((messages, page.merged_to.is_some()))),
                // The log was merged meanwhile: the page's file may be deleted, and its messages
                // are in another.
                Err(_) if self.source.shape.is_merged_since(&page) => self.page = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next page of the log, up to the goal. `None`: the goal is reached.
    async fn next_page(&mut self) -> io::Result<Option<LogPage>> {
        if !self.is_behind() {
            return Ok(None);
        }
        let after = self.read;
        let mut page = match self.source.shape.log_after_at_once(after) {
            Some(page) => page,
            None => {
                let seeking = Arc::clone(&self.source.shape);
                spawn_blocking(move || seeking.log_after(after)).await.map_err(io::Error::other)??
            }
        };
        match page.merged_to {
            None => page.to = page.to.min(self.goal.to),
            Some(end) if end > self.goal.last => {
                let gone = || io::Error::new(io::ErrorKind::NotFound, "the shape is gone");
                self.goal = CatchUpGoal::new(&self.source).ok_or_else(gone)?;
            }
            Some(_) => {}
        }
        // A page can be empty, for instance between the snapshot and a log without messages.
        Ok((page.from < page.to).then_some(page))
    }
}

/// Reads whole messages of a page: about [`buffered_bytes::read_size`], and at least one message.
async fn read_messages(shape: &Arc<Shape>, page: &LogPage) -> io::Result<Bytes> {
    let (page, mut bytes) = (*page, BytesMut::new());
    loop {
        let at = page.from + bytes.len() as u64;
        let until = page.to.min(at + buffered_bytes::read_size());
        let reading = Arc::clone(shape);
        let read = spawn_blocking(move || reading.read_log(&page, at, until)).await;
        let pieces = read.map_err(io::Error::other)??;
        pieces.iter().for_each(|piece| bytes.put_slice(piece));
        if let Some(end) = memrchr(b'\n', &bytes) {
            bytes.truncate(end + 1);
            return Ok(BufferedBytes::count(bytes.freeze()));
        }
        if until == page.to {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
