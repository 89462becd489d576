//! Whose reply comes next.
//!
//! Invariant: requests are answered in the order in which they were accepted, each exactly once, and their bytes leave in
//! that order. A request nobody waits for any more still takes its reply off the stream, so the one behind it can't get
//! it; one that died before its first byte left is never sent.
//! Kept by: `open` is the only record of requests, and only [`Pipeline::receive`], [`Pipeline::expire`] and
//! [`Pipeline::fail_all`] give a sink away, by value.
//! Not here: sockets, wakers, the meaning of replies.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::frame::{Framer, Kind, Limits, ProtocolError, Step};
use super::refusal::{Refusal, error_text, errors_inside};
use super::sentinel::{Judged, Sentinel};

/// Where an answer goes. The pipeline knows nothing else of it.
pub(crate) trait Sink {
    /// True when nobody waits for the answer any more.
    fn abandoned(&self) -> bool;
}

/// A request as its caller submits it; its bytes travel beside it.
#[derive(Debug)]
pub(crate) struct Request<S> {
    pub(crate) sink: S,
    pub(crate) expect: Expect,
    pub(crate) bytes: usize,
    pub(crate) timeout: Option<Duration>,
}

/// What answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// This many replies; at least one.
    Replies(u32),
    /// This many push messages of a kind, as SUBSCRIBE gets them, or one error reply.
    Confirmations(u32, &'static str),
    /// This many replies, and after them that of a sentinel, which the caller doesn't get.
    Verified(u32, Sentinel),
}

impl Expect {
    /// Likewise, with a sentinel after it, if there is one.
    pub(crate) fn verified_by(self, sentinel: Option<Sentinel>) -> Self {
        match (self, sentinel) {
            (Expect::Replies(count), Some(sentinel)) => Expect::Verified(count, sentinel),
            (Expect::Replies(_) | Expect::Confirmations(..) | Expect::Verified(..), _) => self,
        }
    }
}

/// The replies to one request. Each part holds whole replies, so a reply is always one piece of memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replies {
    pub(crate) first: Bytes,
    pub(crate) rest: Vec<Bytes>,
}

/// What [`Pipeline::receive`] found in the bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received<S> {
    Answer(S, Replies),
    Push(Bytes),
}

/// How far [`Pipeline::receive`] got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// As many answers as were asked for; there may be more.
    Some,
    /// Everything that is whole; at least `need` bytes are missing.
    All { need: usize },
}

#[derive(Debug)]
struct Open<S> {
    /// `None` once the deadline has answered it.
    sink: Option<S>,
    expect: Expect,
    /// Place of its first byte in everything that was ever accepted.
    start: u64,
    bytes: usize,
    since: Instant,
    timeout: Option<Duration>,
}

impl<S: Sink> Open<S> {
    fn dead(&self) -> bool {
        self.sink.as_ref().is_none_or(S::abandoned)
    }

    fn deadline(&self) -> Option<Instant> {
        self.since.checked_add(self.sink.as_ref().and(self.timeout)?)
    }
}

pub(crate) struct Pipeline<S> {
    open: VecDeque<Open<S>>,
    /// Bytes to send; those before `out_at` are sent.
    out: Vec<u8>,
    out_at: usize,
    /// Bytes accepted and sent since the beginning; their difference is what `out` still holds.
    accepted: u64,
    sent: u64,
    /// Bytes received; the first `whole` of them are whole replies to the oldest request.
    input: BytesMut,
    /// The buffer before `input`: callers may still hold slices of it.
    spare: BytesMut,
    whole: usize,
    /// A large reply was cut off `input`, whose buffer would otherwise come back to us once the caller is done with it.
    oversized: bool,
    /// Replies to the oldest request that were cut off `input` already.
    parts: Vec<Bytes>,
    /// Why the server refused the last command of the oldest request that it refused.
    refused: Option<Refusal>,
    /// An answered request was refused in a way that ends the connection.
    unfit: Option<Refusal>,
    framer: Framer,
    limits: Limits,
    /// RESP2 sends a subscriber its messages as arrays.
    arrays_are_pushes: bool,
}

// In tests these are small, so that random histories get around every corner.
/// Beyond this an emptied buffer is given back instead of kept for the next batch.
const KEEP_BYTES: usize = if cfg!(test) { 200 } else { 1 << 20 };
/// One read asks for this much.
pub(crate) const READ_BYTES: usize = if cfg!(test) { 64 } else { 64 << 10 };
/// With less room than this left in the buffer, the next read gets a new one.
const MIN_READ_BYTES: usize = if cfg!(test) { 16 } else { 4 << 10 };

impl<S: Sink> Pipeline<S> {
    pub(crate) fn new(limits: Limits, arrays_are_pushes: bool) -> Self {
        Pipeline {
            open: VecDeque::new(),
            out: Vec::new(),
            out_at: 0,
            accepted: 0,
            sent: 0,
            input: BytesMut::new(),
            spare: BytesMut::new(),
            whole: 0,
            oversized: false,
            parts: Vec::new(),
            refused: None,
            unfit: None,
            framer: Framer::new(limits),
            limits,
            arrays_are_pushes,
        }
    }

    /// Takes requests and their bytes over; both lists come back empty. Gives the shortest timeout among them.
    pub(crate) fn accept(
        &mut self,
        requests: &mut Vec<Request<S>>,
        bytes: &mut Vec<u8>,
        now: Instant,
    ) -> Option<Duration> {
        let mut shortest: Option<Duration> = None;
        for Request { sink, expect, bytes, timeout } in requests.drain(..) {
            if let Some(timeout) = timeout {
                shortest = Some(shortest.map_or(timeout, |shortest| shortest.min(timeout)));
            }
            self.open.push_back(Open {
                sink: Some(sink),
                expect,
                start: self.accepted,
                bytes,
                since: now,
                timeout,
            });
            self.accepted += bytes as u64;
        }
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, bytes);
        } else {
            self.out.extend_from_slice(bytes);
            bytes.clear();
            bytes.shrink_to(KEEP_BYTES);
        }
        self.check_invariants();
        shortest
    }

    /// Requests that are not answered yet, those that nobody waits for included.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.out_at..]
    }

    pub(crate) fn wrote(&mut self, count: usize) {
        self.out_at += count;
        self.sent += count as u64;
        if self.out_at == self.out.len() {
            self.out_at = 0;
            self.out.clear();
            self.out.shrink_to(KEEP_BYTES);
        }
        self.check_invariants();
    }

    /// The buffer to read into, with room for a read. `need` is what the last [`receive`](Self::receive) asked for; the
    /// buffer at most doubles, so that it follows what came and not what was announced.
    pub(crate) fn input(&mut self, need: usize) -> &mut BytesMut {
        let (held, room) = (self.input.len(), self.input.capacity() - self.input.len());
        if room < MIN_READ_BYTES {
            if held > MIN_READ_BYTES {
                self.input.reserve(need.clamp(READ_BYTES, held.max(READ_BYTES)));
            } else {
                self.turn_over();
            }
        }
        &mut self.input
    }

    /// Goes on in the buffer before this one, which the callers are done with by now, or else in a new one.
    fn turn_over(&mut self) {
        if !self.spare.try_reclaim(READ_BYTES) {
            self.spare = BytesMut::with_capacity(READ_BYTES);
        }
        self.spare.extend_from_slice(&self.input);
        std::mem::swap(&mut self.input, &mut self.spare);
        self.spare.clear();
    }

    /// Gives out every answer and push message that is whole, but at most so many answers.
    pub(crate) fn receive(
        &mut self,
        mut answers: usize,
        mut emit: impl FnMut(Received<S>),
    ) -> Result<Parsed, ProtocolError> {
        loop {
            if answers == 0 && !self.input.is_empty() {
                self.cut_part();
                return Ok(Parsed::Some);
            }
            let step = match self.framer.next(&self.input)? {
                Step::Frame(Kind::Reply | Kind::HasErrors, range)
                    if self.arrays_are_pushes && self.input[range.start] == b'*' =>
                {
                    Step::Frame(Kind::Push, range)
                }
                step => step,
            };
            match step {
                Step::Need(need) => {
                    self.cut_part();
                    if std::mem::take(&mut self.oversized) {
                        self.input = BytesMut::from(&self.input[..]);
                    }
                    self.check_invariants();
                    return Ok(Parsed::All { need });
                }
                Step::Frame(Kind::Push, range) => {
                    self.cut_part();
                    let push = self.cut(range.len());
                    if let Some(sink) = self.confirm(&push) {
                        emit(Received::Answer(sink, Replies::default()));
                    }
                    emit(Received::Push(push));
                }
                Step::Frame(kind @ (Kind::Reply | Kind::Error | Kind::HasErrors), range) => {
                    if self.count_reply(kind, range)? {
                        answers = answers.saturating_sub(1);
                        let replies = self.take_replies();
                        if let Some(sink) = self.open.pop_front().and_then(|front| front.sink) {
                            emit(Received::Answer(sink, replies));
                        }
                    }
                }
            }
        }
    }

    /// Counts a reply towards the oldest request; true when that was its last.
    #[inline]
    fn count_reply(&mut self, kind: Kind, range: Range<usize>) -> Result<bool, ProtocolError> {
        let front = self.open.front_mut().ok_or(ProtocolError::Unasked)?;
        let last = match &mut front.expect {
            Expect::Replies(left) if *left > 1 => {
                *left -= 1;
                false
            }
            // A subscription is confirmed by push messages; a reply in their place is its refusal.
            Expect::Replies(_) | Expect::Confirmations(..) => true,
            Expect::Verified(left, sentinel) => match sentinel.judge(*left, &self.input[range.clone()]) {
                Judged::Reply => {
                    *left -= 1;
                    false
                }
                judged @ (Judged::Sentinel | Judged::Verified) => {
                    self.cut_part();
                    self.cut(range.len());
                    let last = judged == Judged::Verified;
                    if last {
                        self.note_unfit();
                    }
                    return Ok(last);
                }
                Judged::OutOfStep => return Err(ProtocolError::OutOfStep),
            },
        };
        self.whole = range.end;
        if kind != Kind::Reply {
            self.note_refusals(range);
        }
        if last && self.refused.is_some() {
            self.note_unfit();
        }
        Ok(last)
    }

    #[cold]
    fn note_refusals(&mut self, range: Range<usize>) {
        let reply = &self.input[range];
        let texts = error_text(reply).into_iter().chain(errors_inside(reply));
        for refusal in texts.filter_map(Refusal::of) {
            // Of several in one request, one that ends the connection counts.
            if !self.refused.is_some_and(Refusal::ends_connection) {
                self.refused = Some(refusal);
            }
        }
    }

    /// The oldest request has all its replies.
    fn note_unfit(&mut self) {
        if let Some(refusal) = self.refused.take().filter(|refusal| refusal.ends_connection()) {
            self.unfit = Some(refusal);
        }
    }

    /// Why the server can't serve this connection, if a request that is answered by now has shown that.
    pub(crate) fn take_unfit(&mut self) -> Option<Refusal> {
        self.unfit.take()
    }

    /// Gives out the sinks of requests whose deadline has passed, each with its timeout; their replies will be dropped.
    pub(crate) fn expire(&mut self, now: Instant, mut emit: impl FnMut(S, Duration)) {
        for open in &mut self.open {
            if let (Some(deadline), Some(timeout)) = (open.deadline(), open.timeout)
                && deadline <= now
                && let Some(sink) = open.sink.take()
            {
                emit(sink, timeout);
            }
        }
        self.forget_unsent();
    }

    /// The next moment at which [`expire`](Self::expire) has something to do. Walks all open requests.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.open.iter().filter_map(Open::deadline).min()
    }

    /// Since when the oldest request with a deadline has waited with all its bytes sent.
    pub(crate) fn oldest_sent(&self) -> Option<Instant> {
        let oldest = self.open.iter().find(|open| open.timeout.is_some())?;
        let all_sent = oldest.start + oldest.bytes as u64 <= self.sent;
        all_sent.then_some(oldest.since)
    }

    /// Takes back requests that nobody waits for and of which no byte has left.
    pub(crate) fn forget_unsent(&mut self) {
        let first = self.open.partition_point(|open| open.start < self.sent);
        if !self.open.range(first..).any(Open::dead) {
            return;
        }
        let base = self.sent - self.out_at as u64; // place of out[0] in everything accepted
        let begun = (self.open[first].start - base) as usize;
        let mut kept = Vec::with_capacity(self.out.len() - self.out_at);
        kept.extend_from_slice(&self.out[self.out_at..begun]);
        let mut place = self.open[first].start;
        for mut open in self.open.split_off(first) {
            let from = (open.start - base) as usize;
            if !open.dead() {
                kept.extend_from_slice(&self.out[from..from + open.bytes]);
                open.start = place;
                place += open.bytes as u64;
                self.open.push_back(open);
            }
        }
        self.out = kept;
        self.out_at = 0;
        self.accepted = place;
        self.check_invariants();
    }

    /// The connection is gone: gives out everybody who waits, with whether a byte of the request had left, and starts
    /// afresh.
    pub(crate) fn fail_all(&mut self, mut emit: impl FnMut(S, bool)) {
        let (open, sent) = (std::mem::take(&mut self.open), self.sent);
        *self = Pipeline::new(self.limits, self.arrays_are_pushes);
        for Open { sink, start, .. } in open {
            if let Some(sink) = sink {
                emit(sink, start < sent);
            }
        }
    }

    /// Counts a push message towards the oldest request, if it waits for this kind; its sink when that was the last.
    fn confirm(&mut self, push: &[u8]) -> Option<S> {
        let front = self.open.front_mut()?;
        let Expect::Confirmations(left, kind) = &mut front.expect else { return None };
        if push_kind(push) != Some(kind.as_bytes()) {
            return None;
        }
        *left = left.saturating_sub(1);
        if *left > 0 {
            return None;
        }
        self.open.pop_front().and_then(|front| front.sink)
    }

    fn cut(&mut self, count: usize) -> Bytes {
        self.oversized |= count > KEEP_BYTES;
        self.framer.consumed(count);
        self.input.split_to(count).freeze()
    }

    fn cut_whole(&mut self) -> Bytes {
        let count = std::mem::take(&mut self.whole);
        self.cut(count)
    }

    /// Moves the whole replies to an unfinished request out of the way, so that they are never copied.
    fn cut_part(&mut self) {
        if self.whole > 0 {
            let part = self.cut_whole();
            self.parts.push(part);
        }
    }

    fn take_replies(&mut self) -> Replies {
        if self.parts.is_empty() {
            return Replies { first: self.cut_whole(), rest: Vec::new() };
        }
        self.cut_part();
        let mut parts = std::mem::take(&mut self.parts);
        Replies { first: parts.remove(0), rest: parts }
    }

    fn check_invariants(&self) {
        debug_assert_eq!(
            self.accepted - self.sent,
            self.unsent().len() as u64,
            "unsent bytes are those accepted, not sent"
        );
        debug_assert!(self.open.back().is_none_or(|last| last.start + last.bytes as u64 == self.accepted));
    }
}

/// The first word of a push message: `message`, `subscribe`, `invalidate` …
pub(crate) fn push_kind(push: &[u8]) -> Option<&[u8]> {
    use super::frame::{Length, header};
    let start = push.iter().position(|&byte| byte == b'\n')? + 1;
    match push.get(start)? {
        b'$' => {
            let header = header(push, start, b'$').ok()??;
            let Length::Known(length) = header.length else { return None };
            push.get(header.end..header.end + length as usize)
        }
        b'+' => {
            let line = &push[start + 1..];
            line.get(..memchr::memchr(b'\r', line)?)
        }
        _ => None,
    }
}
