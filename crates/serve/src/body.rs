//! Response bodies: read from a shape's files while they are sent, never held as a whole.
//!
//! Invariant: a body that can't be read to its end is aborted. It never looks complete. No part of
//! a shape is read for a client whose token has expired.
//! Enforced by: each read ends at the expiry ([`MessageSource::expires_at`]), and its error aborts
//! the body. Pieces that were read before are sent.
//! At most one piece of a body is in memory. Pieces are smaller if many bytes are buffered for all
//! clients together (`buffered_bytes.rs`).

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_admission::EndSignal;
use forebay_shapes::encode::SEPARATOR;
use forebay_shapes::{LogPage, Shape, Shapes, SnapshotChunk};
use http_body::{Body, Frame, SizeHint};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::buffered_bytes::{self, BufferedBytes};
use super::protocol::encoding::ContentCoding;
use super::shape_event_stream::ShapeEventStream;
use super::token_verifier::before_expiry;

/// Largest body, in bytes, that is read at once on the calling thread. Its bytes are usually in
/// memory or in the page cache.
const MAX_INLINE_BYTES: u64 = 64 * 1024;

/// Largest body, in bytes, whose pieces are copied into one. Separate writes would cost more.
const MAX_JOINED_BYTES: usize = 2048;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Body of a response to a client.
#[derive(Debug)]
pub struct ShapeBody {
    content: BodyContent,
    /// Signal by which an operator ends the stream. `None` if the request has no permit, or once
    /// the stream ends by it.
    end: Option<EndSignal>,
}

/// Content of a response body.
pub(crate) enum BodyContent {
    /// The whole body.
    Whole(Bytes),
    /// The whole body, in pieces.
    Pieces(VecDeque<Bytes>),
    /// A part of a shape, read piece by piece.
    Streamed(Box<StreamedMessages>),
    /// Server-sent events.
    Events(Box<ShapeEventStream>),
}

/// A part of a shape as a JSON array of messages, read piece by piece.
pub(crate) struct StreamedMessages {
    state: State,
    /// Pieces that were read and not sent.
    ready: VecDeque<Bytes>,
    is_gzip: bool,
}

enum State {
    Reading(PendingRead),
    /// An operator ended the stream. The next poll fails.
    Aborted,
    Ended,
}

/// A read in flight. Returns the reader and the pieces.
type PendingRead = Pin<Box<dyn Future<Output = (PartReader, io::Result<Vec<Bytes>>)> + Send>>;

/// The shape whose messages a body contains.
#[derive(Debug, Clone)]
pub(crate) struct MessageSource {
    pub(crate) shapes: Shapes,
    pub(crate) shape: Arc<Shape>,
    /// When the client's token expires. `None`: there is no token, or it doesn't expire.
    pub(crate) expires_at: Option<Instant>,
}

impl MessageSource {
    fn read(&self, part: ShapePart, at: u64, until: u64) -> io::Result<Vec<Bytes>> {
        let read = match part {
            ShapePart::Snapshot(_) => self.shape.read_snapshot(at, until),
            ShapePart::Log(page) => self.shape.read_log(&page, at, until),
        };
        read.inspect_err(|error| self.shapes.heal(&self.shape, error))
    }
}

/// Reads a part of a shape.
struct PartReader {
    source: MessageSource,
    part: ShapePart,
    /// Position of the next byte.
    at: u64,
    /// Position of the end. `None`: the snapshot is still being written.
    to: Option<u64>,
    /// Bytes after the messages.
    end: Bytes,
    /// Compresses the body, if the client accepts gzip.
    encoder: Option<BodyEncoder>,
    is_over: bool,
}

/// Compresses a body, and flushes after each piece: a client that waits for a growing snapshot
/// receives every row that was read.
type BodyEncoder = GzEncoder<Vec<u8>>;

/// Which part of a shape is read.
#[derive(Debug, Clone, Copy)]
enum ShapePart {
    /// The snapshot's chunk of this index. It may still grow.
    Snapshot(u64),
    Log(LogPage),
}

impl BodyContent {
    pub(crate) fn empty() -> Self {
        BodyContent::Whole(Bytes::new())
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        BodyContent::Whole(bytes.into())
    }

    /// Returns whether the content is compressed.
    pub(crate) fn is_gzip(&self) -> bool {
        matches!(self, BodyContent::Streamed(messages) if messages.is_gzip)
    }

    /// Returns the snapshot's chunk of this index, from `at` to `to`. Without `to`, the chunk is
    /// still being written.
    pub(crate) fn snapshot(
        source: MessageSource,
        index: u64,
        (at, to): (u64, Option<u64>),
        coding: ContentCoding,
    ) -> io::Result<Self> {
        let (part, end) = (ShapePart::Snapshot(index), Bytes::from_static(b"]"));
        match (to, coding) {
            (Some(to), ContentCoding::Identity) if to - at <= MAX_INLINE_BYTES => {
                BodyContent::read(&source, part, (at, to), end)
            }
            _ => {
                let encoder = body_encoder(coding);
                Ok(PartReader { source, part, at, to, end, encoder, is_over: false }.into_content())
            }
        }
    }

    /// Returns messages of the log, followed by `after`. A small page isn't compressed: that would
    /// take longer than sending it.
    pub(crate) fn log(
        source: MessageSource,
        page: LogPage,
        after: Option<Bytes>,
        coding: ContentCoding,
    ) -> io::Result<Self> {
        let LogPage { from: at, to, .. } = page;
        let end = end_with(after);
        if to - at > MAX_INLINE_BYTES {
            let (part, to, encoder) = (ShapePart::Log(page), Some(to), body_encoder(coding));
            return Ok(PartReader { source, part, at, to, end, encoder, is_over: false }.into_content());
        }
        BodyContent::read(&source, ShapePart::Log(page), (at, to), end)
    }

    /// Returns the bytes of [`BodyContent::log`], for the response cache.
    pub(crate) fn log_bytes(
        source: &MessageSource,
        page: LogPage,
        after: Option<Bytes>,
    ) -> io::Result<Bytes> {
        Ok(join(&pieces(source, ShapePart::Log(page), (page.from, page.to), end_with(after))?))
    }

    /// Reads all messages of a range on the calling thread.
    fn read(source: &MessageSource, part: ShapePart, (at, to): (u64, u64), end: Bytes) -> io::Result<Self> {
        let pieces = pieces(source, part, (at, to), end)?;
        let is_short = pieces.iter().map(Bytes::len).sum::<usize>() <= MAX_JOINED_BYTES;
        Ok(if is_short { BodyContent::Whole(join(&pieces)) } else { BodyContent::Pieces(pieces) })
    }
}

/// Returns the bytes after the messages: the control message, if any, and the closing bracket.
fn end_with(after: Option<Bytes>) -> Bytes {
    match after {
        None => Bytes::from_static(b"]"),
        Some(control) => [&control[..], b"]"].concat().into(),
    }
}

/// Reads the messages of a range, as a JSON array.
fn pieces(
    source: &MessageSource,
    part: ShapePart,
    (at, to): (u64, u64),
    end: Bytes,
) -> io::Result<VecDeque<Bytes>> {
    let mut pieces: VecDeque<_> = source.read(part, at, to)?.into();
    pieces.push_front(Bytes::from_static(b"["));
    if end.len() == 1 {
        strip_separator(&mut pieces);
    }
    pieces.push_back(end);
    Ok(pieces)
}

fn join(pieces: &VecDeque<Bytes>) -> Bytes {
    let mut joined = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    joined.into()
}

/// Removes the last separator, which may span two pieces.
fn strip_separator(pieces: &mut VecDeque<Bytes>) {
    let mut left = SEPARATOR.len();
    while left > 0
        && let Some(last) = pieces.back_mut()
    {
        if last[..] == b"["[..] {
            return;
        }
        let taken = left.min(last.len());
        last.truncate(last.len() - taken);
        left -= taken;
        if last.is_empty() {
            pieces.pop_back();
        }
    }
}

impl PartReader {
    fn into_content(self) -> BodyContent {
        let (is_gzip, opening) = (self.encoder.is_some(), Bytes::from_static(b"["));
        let ready = if is_gzip { VecDeque::new() } else { [opening].into() };
        BodyContent::Streamed(Box::new(StreamedMessages {
            state: State::Reading(Box::pin(self.next())),
            ready,
            is_gzip,
        }))
    }

    /// Reads the next pieces; the very last piece is `end`. The separator after the last message is
    /// omitted unless a control message follows.
    async fn next(mut self) -> (Self, io::Result<Vec<Bytes>>) {
        let read = before_expiry(self.source.expires_at, self.read()).await;
        let read = read.unwrap_or_else(|expired| Err(io::Error::new(io::ErrorKind::TimedOut, expired)));
        (self, read)
    }

    async fn read(&mut self) -> io::Result<Vec<Bytes>> {
        let held_back = if self.end.len() == 1 { SEPARATOR.len() as u64 } else { 0 };
        loop {
            let readable = match (self.to, self.part) {
                (Some(to), _) => to,
                (None, ShapePart::Log(_)) => self.at,
                (None, ShapePart::Snapshot(index)) => {
                    match self.source.shape.snapshot_chunk(index).await.map_err(io::Error::other)? {
                        SnapshotChunk::Closed { to, .. } => {
                            self.to = Some(to);
                            to
                        }
                        SnapshotChunk::Open { to, .. } => to,
                        SnapshotChunk::None => return Err(io::ErrorKind::UnexpectedEof.into()),
                    }
                }
            };
            let until =
                readable.saturating_sub(held_back).max(self.at).min(self.at + buffered_bytes::read_size());
            if until > self.at {
                let (source, part, at) = (self.source.clone(), self.part, self.at);
                let mut encoder = self.encoder.take();
                let read = move || {
                    let pieces = source.read(part, at, until)?;
                    let pieces = match &mut encoder {
                        Some(encoder) => compress(encoder, &pieces)?,
                        None => pieces,
                    };
                    let pieces: Vec<_> = pieces.into_iter().map(BufferedBytes::count).collect();
                    io::Result::Ok((pieces, encoder))
                };
                let (pieces, encoder) = spawn_blocking(read).await.map_err(io::Error::other)??;
                (self.at, self.encoder) = (until, encoder);
                return Ok(pieces);
            }
            if self.to.is_some() {
                self.is_over = true;
                return match self.encoder.take() {
                    None => Ok(vec![self.end.clone()]),
                    Some(mut encoder) => {
                        encoder.write_all(&self.end)?;
                        Ok(vec![encoder.finish()?.into()])
                    }
                };
            }
            self.source.shape.wait_for_snapshot_after(self.at + held_back).await.map_err(io::Error::other)?;
        }
    }
}

/// Returns the encoder of a compressed body. It has the opening bracket. The fastest level saves
/// four fifths of the bytes that the best level saves, in a fraction of its time.
fn body_encoder(coding: ContentCoding) -> Option<BodyEncoder> {
    match coding {
        ContentCoding::Identity => None,
        ContentCoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(b"[").expect("a Vec accepts every write");
            Some(encoder)
        }
    }
}

fn compress(encoder: &mut BodyEncoder, pieces: &[Bytes]) -> io::Result<Vec<Bytes>> {
    for piece in pieces {
        encoder.write_all(piece)?;
    }
    encoder.flush()?;
    Ok(vec![std::mem::take(encoder.get_mut()).into()])
}

impl StreamedMessages {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let reading = match &mut self.state {
                State::Reading(reading) => reading,
                State::Aborted => {
                    self.state = State::Ended;
                    let aborted = io::Error::new(io::ErrorKind::Interrupted, "an operator ended the stream");
                    return Poll::Ready(Some(Err(aborted)));
                }
                State::Ended => return Poll::Ready(None),
            };
            let (reader, read) = ready!(reading.as_mut().poll(cx));
            self.state = match reader.is_over || read.is_err() {
                true => State::Ended,
                false => State::Reading(Box::pin(reader.next())),
            };
            match read {
                Ok(pieces) => self.ready.extend(pieces),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Drops what isn't sent, and fails with the next poll. A body that is sent stays complete.
    fn abort(&mut self) {
        let is_sent = matches!(self.state, State::Ended) && self.ready.is_empty();
        if !is_sent {
            self.ready.clear();
            self.state = State::Aborted;
        }
    }
}

impl ShapeBody {
    /// Creates a body that an operator can end with the signal.
    pub(crate) fn new(content: BodyContent, end: Option<EndSignal>) -> Self {
        ShapeBody { content, end }
    }

    pub(crate) fn whole(bytes: Bytes) -> Self {
        ShapeBody::new(BodyContent::whole(bytes), None)
    }
}

impl Body for ShapeBody {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.end.as_ref().is_some_and(|end| end.poll_sent(cx).is_ready()) {
            this.end = None;
            this.content.end_early();
        }
        Pin::new(&mut this.content).poll_frame(cx)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}

impl BodyContent {
    /// Ends the body before its time. What follows must not look complete if something is missing.
    fn end_early(&mut self) {
        match self {
            // These are in memory, and are sent as a whole.
            BodyContent::Whole(_) | BodyContent::Pieces(_) => {}
            BodyContent::Streamed(part) => part.abort(),
            BodyContent::Events(events) => events.end_early(),
        }
    }
}

impl Body for BodyContent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match self.get_mut() {
            BodyContent::Whole(bytes) => {
                Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()).map(Ok)
            }
            BodyContent::Pieces(pieces) => pieces.pop_front().map(Ok),
            BodyContent::Streamed(part) => ready!(part.poll(cx)).map(|piece| piece.map_err(BoxError::from)),
            BodyContent::Events(events) => ready!(events.poll(cx)).map(|piece| piece.map_err(BoxError::from)),
        };
        Poll::Ready(frame.map(|frame| frame.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            BodyContent::Whole(bytes) => bytes.is_empty(),
            BodyContent::Pieces(pieces) => pieces.is_empty(),
            BodyContent::Streamed(_) | BodyContent::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            BodyContent::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyContent::Pieces(pieces) => {
                SizeHint::with_exact(pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            BodyContent::Streamed(_) | BodyContent::Events(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for BodyContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyContent::Whole(_) => "Whole",
            BodyContent::Pieces(_) => "Pieces",
            BodyContent::Streamed(_) => "Streamed",
            BodyContent::Events(_) => "Events",
        })
    }
}
