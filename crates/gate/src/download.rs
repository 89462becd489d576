//! The upstream's body on its way to the client.
//!
//! Invariant: whoever drops it closes the connection that it comes over, unless the body was complete; and a body that
//! breaks off ends with an error, never with an end.
//! Kept by: it owns the connection. A live stream's is taken out of hyper, for its buffers (`head_io.rs`).

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::chunked::{ChunkError, Chunked, Decoded};
use super::connection::Connection;
use super::upstream::Pool;

/// At most so much is read at once; an idle stream has no buffer at all.
const READ_BYTES: usize = 16 * 1024;

/// A response's body, with the connection that it comes over.
#[derive(Debug)]
pub(crate) enum Download {
    /// Read by hyper; the connection may serve again.
    Whole(Whole),
    /// A live stream.
    Lean(Lean),
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// hyper couldn't read it.
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    /// The socket failed.
    #[error("the upstream's connection failed")]
    Io(#[from] io::Error),
    /// The chunked coding is broken.
    #[error("the upstream's stream is not what it says")]
    Chunk(#[from] ChunkError),
    /// It ended before its end.
    #[error("the upstream closed the connection in the midst of its stream")]
    Closed,
}

impl Download {
    pub(crate) async fn new(incoming: Incoming, connection: Box<Connection>, pool: Arc<Pool>) -> Download {
        let mut whole = Whole { incoming, connection: Some(connection), pool };
        if whole.incoming.is_end_stream() {
            poll_fn(|cx| {
                whole.settle(cx);
                Poll::Ready(())
            })
            .await;
        }
        Download::Whole(whole)
    }

    /// Takes the connection out of hyper, if it can be: all of the request is sent, and nothing of the body was read.
    pub(crate) fn lean(self, headers: &HeaderMap) -> Download {
        let coding = match coding(headers) {
            Some(coding) => coding,
            None => return self,
        };
        match self {
            Download::Whole(Whole { connection: Some(connection), incoming, pool }) => {
                if !connection.is_sent() || incoming.is_end_stream() {
                    return Download::Whole(Whole { connection: Some(connection), incoming, pool });
                }
                let (socket, unread, permit) = connection.into_parts();
                Download::Lean(Lean { socket, unread, coding, _permit: permit, ended: false })
            }
            other @ (Download::Whole(_) | Download::Lean(_)) => other,
        }
    }
}

/// How the end of a body without a length is known.
fn coding(headers: &HeaderMap) -> Option<Coding> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) if headers.contains_key(CONTENT_LENGTH) => None,
        (None, _) => Some(Coding::UntilClose),
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Some(Coding::Chunked(Chunked::new()))
        }
        (Some(_), _) => None,
    }
}

#[derive(Debug)]
pub(crate) struct Whole {
    incoming: Incoming,
    /// None once it went back, or broke.
    connection: Option<Box<Connection>>,
    pool: Arc<Pool>,
}

impl Whole {
    /// The response is complete: the connection goes back if it can take another request, and ends if not.
    fn settle(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take()
            && connection.is_ready(cx)
        {
            self.pool.put_back(connection);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut driven = false;
        loop {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers belong to one connection here, as `Trailer` does.
                    let Ok(data) = frame.into_data() else { continue };
                    if self.incoming.is_end_stream() {
                        self.settle(cx);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(Some(Err(error))) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => {
                    self.settle(cx);
                    return Poll::Ready(None);
                }
                Poll::Pending if driven => return Poll::Pending,
                Poll::Pending => {
                    driven = true;
                    if let Some(connection) = &mut self.connection {
                        connection.drive_body(cx);
                    }
                }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lean {
    socket: TcpStream,
    /// Read and not yet decoded.
    unread: Bytes,
    coding: Coding,
    _permit: OwnedSemaphorePermit,
    ended: bool,
}

#[derive(Debug, Clone, Copy)]
enum Coding {
    Chunked(Chunked),
    UntilClose,
}

impl Lean {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        loop {
            match self.decode() {
                Ok(Decoded::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Decoded::More) => {}
                Ok(Decoded::End) => return Poll::Ready(None),
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
            match ready!(self.poll_read(cx)) {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    return Poll::Ready(match self.coding {
                        Coding::Chunked(_) => Some(Err(DownloadError::Closed)),
                        Coding::UntilClose => None,
                    });
                }
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }

    fn decode(&mut self) -> Result<Decoded, ChunkError> {
        if self.ended {
            return Ok(Decoded::End);
        }
        match &mut self.coding {
            Coding::Chunked(chunked) => {
                let decoded = chunked.decode(&mut self.unread)?;
                if self.unread.is_empty() {
                    self.unread = Bytes::new(); // an empty view would keep its memory alive
                }
                Ok(decoded)
            }
            Coding::UntilClose if self.unread.is_empty() => Ok(Decoded::More),
            Coding::UntilClose => Ok(Decoded::Data(std::mem::take(&mut self.unread))),
        }
    }

    /// False at the end of what the upstream sends.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        self.unread = Bytes::copy_from_slice(buffer.filled());
        Poll::Ready(Ok(!buffer.filled().is_empty()))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || matches!(&self.coding, Coding::Chunked(chunked) if chunked.is_done())
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = DownloadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        match &mut *self {
            Download::Whole(whole) => whole.poll_frame(cx).map(|frame| frame.map(|frame| Ok(frame?))),
            Download::Lean(lean) => lean.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Download::Whole(whole) => whole.incoming.is_end_stream(),
            Download::Lean(lean) => lean.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Download::Whole(whole) => whole.incoming.size_hint(),
            Download::Lean(_) => SizeHint::default(),
        }
    }
}
