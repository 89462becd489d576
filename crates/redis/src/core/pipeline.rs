//! Pipeline: matches replies to requests in FIFO order.
//!
//! Invariant: requests are completed in the order in which they were accepted, each exactly once,
//! and their bytes are sent in that order. An abandoned request still consumes its reply, so the
//! next request cannot get it. A request abandoned before its first byte was sent is never sent.
//! Enforced by: `open` is the only record of requests. Only [`Pipeline::receive`],
//! [`Pipeline::expire`] and [`Pipeline::fail_all`] hand out a sink, by value.
//! Out of scope: sockets, wakers and the meaning of replies.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::echo_probe::ProbeVerdict;
pub(crate) use super::expected_replies::ExpectedReplies;
use super::frame::{FrameKind, FrameStep, Framer, ProtocolError, ReplyLimits};
use super::refusal::{ServerRefusal, error_text, errors_inside};

/// Destination of a request's result.
pub(crate) trait ReplySink {
    /// Returns true if no caller waits for the result.
    fn is_abandoned(&self) -> bool;
}

/// A submitted request. Its encoded bytes are passed separately.
#[derive(Debug)]
pub(crate) struct PipelineRequest<S> {
    pub(crate) sink: S,
    pub(crate) expect: ExpectedReplies,
    pub(crate) bytes: usize,
    pub(crate) timeout: Option<Duration>,
}

/// The replies to one request. Each part holds whole replies: each is contiguous in memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replies {
    pub(crate) first: Bytes,
    pub(crate) rest: Vec<Bytes>,
}

/// Output of [`Pipeline::receive`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PipelineOutput<S> {
    Completed(S, Replies),
    Push(Bytes),
}

/// How far [`Pipeline::receive`] parsed the received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParseProgress {
    /// The maximum number of requests was completed; the buffer may hold more replies.
    LimitReached,
    /// All complete replies are parsed; at least `need` more bytes are missing.
    All { need: usize },
}

/// Whether a request has all its replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestProgress {
    NeedsMore,
    Complete,
}

/// Whether a request was sent when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendState {
    Unsent,
    /// At least one byte was sent, so the server may have run it.
    Begun,
}

#[derive(Debug)]
struct OpenRequest<S> {
    /// `None` after the deadline has passed.
    sink: Option<S>,
    expect: ExpectedReplies,
    /// Position of the request's first byte in the stream of all accepted bytes.
    start: u64,
    bytes: usize,
    /// When the request was accepted.
    since: Instant,
    timeout: Option<Duration>,
}

impl<S: ReplySink> OpenRequest<S> {
    fn is_abandoned(&self) -> bool {
        self.sink.as_ref().is_none_or(S::is_abandoned)
    }

    fn deadline(&self) -> Option<Instant> {
        self.since.checked_add(self.sink.as_ref().and(self.timeout)?)
    }
}

pub(crate) struct Pipeline<S> {
    open: VecDeque<OpenRequest<S>>,
    /// Bytes to send; those before `out_at` are sent.
    out: Vec<u8>,
    out_at: usize,
    /// Total bytes accepted and sent. Their difference is the unsent part of `out`.
    accepted: u64,
    sent: u64,
    /// Received bytes. The first `complete_len` bytes are complete replies to the oldest request.
    input: BytesMut,
    /// The previous input buffer. Callers may still hold slices of it.
    spare: BytesMut,
    complete_len: usize,
    /// True if a large reply was split off `input`. The buffer is then replaced, so that its memory
    /// is freed with the reply.
    oversized: bool,
    /// Replies to the oldest request that were already split off `input`.
    parts: Vec<Bytes>,
    /// Refusal among the replies to the oldest request so far.
    refusal: Option<ServerRefusal>,
    /// Refusal that ends the connection, if a completed request got one.
    unfit: Option<ServerRefusal>,
    framer: Framer,
    limits: ReplyLimits,
    /// True for RESP2 subscribers, whose messages arrive as arrays.
    arrays_are_pushes: bool,
}

// In tests these bounds are small, so that random histories reach every branch.

/// Maximum capacity that an emptied buffer keeps for the next batch.
const KEEP_BYTES: usize = if cfg!(test) { 200 } else { 1 << 20 };
/// Capacity requested for one read.
pub(crate) const READ_BYTES: usize = if cfg!(test) { 64 } else { 64 << 10 };
/// Minimum free space for a read; below it the buffer is grown or swapped before the next read.
const MIN_READ_BYTES: usize = if cfg!(test) { 16 } else { 4 << 10 };

impl<S: ReplySink> Pipeline<S> {
    pub(crate) fn new(limits: ReplyLimits, arrays_are_pushes: bool) -> Self {
        Pipeline {
            open: VecDeque::new(),
            out: Vec::new(),
            out_at: 0,
            accepted: 0,
            sent: 0,
            input: BytesMut::new(),
            spare: BytesMut::new(),
            complete_len: 0,
            oversized: false,
            parts: Vec::new(),
            refusal: None,
            unfit: None,
            framer: Framer::new(limits),
            limits,
            arrays_are_pushes,
        }
    }

    /// Moves the requests and their bytes into the pipeline. Leaves both vectors empty. Returns the
    /// shortest timeout among the requests.
    pub(crate) fn accept(
        &mut self,
        requests: &mut Vec<PipelineRequest<S>>,
        bytes: &mut Vec<u8>,
        now: Instant,
    ) -> Option<Duration> {
        let mut shortest: Option<Duration> = None;
        for PipelineRequest { sink, expect, bytes, timeout } in requests.drain(..) {
            if let Some(timeout) = timeout {
                shortest = Some(shortest.map_or(timeout, |shortest| shortest.min(timeout)));
            }
            self.open.push_back(OpenRequest {
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

    /// Returns the number of open requests, including abandoned ones.
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

    /// Returns the buffer to read into, with room for a read. `need` is what the last
    /// [`receive`](Self::receive) reported. The buffer at most doubles: its size follows received
    /// bytes, not announced lengths.
    pub(crate) fn input(&mut self, need: usize) -> &mut BytesMut {
        let (held, room) = (self.input.len(), self.input.capacity() - self.input.len());
        if room < MIN_READ_BYTES {
            if held > MIN_READ_BYTES {
                self.input.reserve(need.clamp(READ_BYTES, held.max(READ_BYTES)));
            } else {
                self.swap_buffers();
            }
        }
        &mut self.input
    }

    /// Continues in the previous buffer if callers have released it, otherwise in a new one.
    fn swap_buffers(&mut self) {
        if !self.spare.try_reclaim(READ_BYTES) {
            self.spare = BytesMut::with_capacity(READ_BYTES);
        }
        self.spare.extend_from_slice(&self.input);
        std::mem::swap(&mut self.input, &mut self.spare);
        self.spare.clear();
    }

    /// Emits every complete result and push message, but at most `max_completed` results.
    pub(crate) fn receive(
        &mut self,
        mut max_completed: usize,
        mut emit: impl FnMut(PipelineOutput<S>),
    ) -> Result<ParseProgress, ProtocolError> {
        loop {
            if max_completed == 0 && !self.input.is_empty() {
                self.stash_complete_replies();
                return Ok(ParseProgress::LimitReached);
            }
            let step = match self.framer.next(&self.input)? {
                FrameStep::Frame(FrameKind::Reply | FrameKind::HasErrors, range)
                    if self.arrays_are_pushes && self.input[range.start] == b'*' =>
                {
                    FrameStep::Frame(FrameKind::Push, range)
                }
                step => step,
            };
            match step {
                FrameStep::Need(need) => {
                    self.stash_complete_replies();
                    if std::mem::take(&mut self.oversized) {
                        self.input = BytesMut::from(&self.input[..]);
                    }
                    self.check_invariants();
                    return Ok(ParseProgress::All { need });
                }
                FrameStep::Frame(FrameKind::Push, range) => {
                    self.stash_complete_replies();
                    let push = self.split_front(range.len());
                    if let Some(sink) = self.confirm(&push) {
                        emit(PipelineOutput::Completed(sink, Replies::default()));
                    }
                    emit(PipelineOutput::Push(push));
                }
                FrameStep::Frame(
                    kind @ (FrameKind::Reply | FrameKind::Error | FrameKind::HasErrors),
                    range,
                ) => {
                    if self.count_reply(kind, range)? == RequestProgress::Complete {
                        max_completed = max_completed.saturating_sub(1);
                        let replies = self.take_replies();
                        if let Some(sink) = self.open.pop_front().and_then(|front| front.sink) {
                            emit(PipelineOutput::Completed(sink, replies));
                        }
                    }
                }
            }
        }
    }

    /// Counts a reply towards the oldest request.
    #[inline]
    fn count_reply(
        &mut self,
        kind: FrameKind,
        range: Range<usize>,
    ) -> Result<RequestProgress, ProtocolError> {
        let front = self.open.front_mut().ok_or(ProtocolError::UnexpectedReply)?;
        let progress = match &mut front.expect {
            ExpectedReplies::Replies(left) if *left > 1 => {
                *left -= 1;
                RequestProgress::NeedsMore
            }
            // Push messages confirm a subscription; a reply in their place is an error.
            ExpectedReplies::Replies(_) | ExpectedReplies::Confirmations(..) => RequestProgress::Complete,
            ExpectedReplies::Verified(left, probe) => match probe.classify(*left, &self.input[range.clone()])
            {
                ProbeVerdict::Reply => {
                    *left -= 1;
                    RequestProgress::NeedsMore
                }
                ProbeVerdict::Probe => {
                    self.drop_probe_reply(range);
                    return Ok(RequestProgress::NeedsMore);
                }
                ProbeVerdict::Verified => {
                    self.drop_probe_reply(range);
                    self.record_unfit();
                    return Ok(RequestProgress::Complete);
                }
                ProbeVerdict::OutOfSync => return Err(ProtocolError::OutOfSync),
            },
        };
        self.complete_len = range.end;
        if kind != FrameKind::Reply {
            self.record_refusals(range);
        }
        if progress == RequestProgress::Complete && self.refusal.is_some() {
            self.record_unfit();
        }
        Ok(progress)
    }

    /// Removes the reply to a probe, which the caller does not get.
    fn drop_probe_reply(&mut self, range: Range<usize>) {
        self.stash_complete_replies();
        self.split_front(range.len());
    }

    #[cold]
    fn record_refusals(&mut self, range: Range<usize>) {
        let reply = &self.input[range];
        let texts = error_text(reply).into_iter().chain(errors_inside(reply));
        for refusal in texts.filter_map(ServerRefusal::parse) {
            // Among several refusals of one request, one that ends the connection takes precedence.
            if !self.refusal.is_some_and(ServerRefusal::ends_connection) {
                self.refusal = Some(refusal);
            }
        }
    }

    /// Records a refusal that ends the connection. Called when the oldest request has all its
    /// replies.
    fn record_unfit(&mut self) {
        if let Some(refusal) = self.refusal.take().filter(|refusal| refusal.ends_connection()) {
            self.unfit = Some(refusal);
        }
    }

    /// Removes and returns the refusal that ends the connection, if a completed request got one.
    pub(crate) fn take_unfit(&mut self) -> Option<ServerRefusal> {
        self.unfit.take()
    }

    /// Emits the sinks of requests whose deadline has passed, with their timeouts. Their replies
    /// will be discarded.
    pub(crate) fn expire(&mut self, now: Instant, mut emit: impl FnMut(S, Duration)) {
        for open in &mut self.open {
            if let (Some(deadline), Some(timeout)) = (open.deadline(), open.timeout)
                && deadline <= now
                && let Some(sink) = open.sink.take()
            {
                emit(sink, timeout);
            }
        }
        self.remove_abandoned_unsent();
    }

    /// Returns the earliest deadline. Iterates over all open requests.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.open.iter().filter_map(OpenRequest::deadline).min()
    }

    /// Returns when the oldest request with a deadline was accepted, if all its bytes are sent.
    pub(crate) fn oldest_sent(&self) -> Option<Instant> {
        let oldest = self.open.iter().find(|open| open.timeout.is_some())?;
        let all_sent = oldest.start + oldest.bytes as u64 <= self.sent;
        all_sent.then_some(oldest.since)
    }

    /// Removes abandoned requests of which no byte was sent.
    pub(crate) fn remove_abandoned_unsent(&mut self) {
        let first = self.open.partition_point(|open| open.start < self.sent);
        if !self.open.range(first..).any(OpenRequest::is_abandoned) {
            return;
        }
        let base = self.sent - self.out_at as u64; // position of out[0] in the accepted bytes
        let removable_from = (self.open[first].start - base) as usize;
        let mut kept = Vec::with_capacity(self.out.len() - self.out_at);
        kept.extend_from_slice(&self.out[self.out_at..removable_from]);
        let mut start = self.open[first].start;
        for mut open in self.open.split_off(first) {
            let from = (open.start - base) as usize;
            if !open.is_abandoned() {
                kept.extend_from_slice(&self.out[from..from + open.bytes]);
                open.start = start;
                start += open.bytes as u64;
                self.open.push_back(open);
            }
        }
        self.out = kept;
        self.out_at = 0;
        self.accepted = start;
        self.check_invariants();
    }

    /// Emits the sink of every open request and resets the pipeline.
    pub(crate) fn fail_all(&mut self, mut emit: impl FnMut(S, SendState)) {
        let (open, sent) = (std::mem::take(&mut self.open), self.sent);
        *self = Pipeline::new(self.limits, self.arrays_are_pushes);
        for OpenRequest { sink, start, .. } in open {
            if let Some(sink) = sink {
                emit(sink, if start < sent { SendState::Begun } else { SendState::Unsent });
            }
        }
    }

    /// Counts a push message towards the oldest request, if that request waits for this kind.
    /// Returns the request's sink if this was its last confirmation.
    fn confirm(&mut self, push: &[u8]) -> Option<S> {
        let front = self.open.front_mut()?;
        let ExpectedReplies::Confirmations(left, kind) = &mut front.expect else { return None };
        if push_kind(push) != Some(kind.as_bytes()) {
            return None;
        }
        *left = left.saturating_sub(1);
        if *left > 0 {
            return None;
        }
        self.open.pop_front().and_then(|front| front.sink)
    }

    fn split_front(&mut self, count: usize) -> Bytes {
        self.oversized |= count > KEEP_BYTES;
        self.framer.consumed(count);
        self.input.split_to(count).freeze()
    }

    fn split_complete(&mut self) -> Bytes {
        let count = std::mem::take(&mut self.complete_len);
        self.split_front(count)
    }

    /// Splits complete replies of an unfinished request off `input`, so that they are never copied.
    fn stash_complete_replies(&mut self) {
        if self.complete_len > 0 {
            let part = self.split_complete();
            self.parts.push(part);
        }
    }

    fn take_replies(&mut self) -> Replies {
        if self.parts.is_empty() {
            return Replies { first: self.split_complete(), rest: Vec::new() };
        }
        self.stash_complete_replies();
        let mut parts = std::mem::take(&mut self.parts);
        Replies { first: parts.remove(0), rest: parts }
    }

    fn check_invariants(&self) {
        debug_assert_eq!(
            self.accepted - self.sent,
            self.unsent().len() as u64,
            "unsent bytes are the accepted bytes that were not sent"
        );
        debug_assert!(self.open.back().is_none_or(|last| last.start + last.bytes as u64 == self.accepted));
    }
}

/// Returns the first element of a push message: `message`, `subscribe`, `invalidate` …
pub(crate) fn push_kind(push: &[u8]) -> Option<&[u8]> {
    use super::frame::{AnnouncedLength, header};
    let start = push.iter().position(|&byte| byte == b'\n')? + 1;
    match push.get(start)? {
        b'$' => {
            let header = header(push, start, b'$').ok()??;
            let AnnouncedLength::Known(length) = header.length else { return None };
            push.get(header.end..header.end + length as usize)
        }
        b'+' => {
            let line = &push[start + 1..];
            line.get(..memchr::memchr(b'\r', line)?)
        }
        _ => None,
    }
}
