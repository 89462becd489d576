//! Response body on its way from the upstream to the client.
//!
//! Invariant: dropping an incomplete body closes its connection. A body that fails before its end
//! yields an error, never a normal end. Exception: a body with neither length nor chunked coding
//! ends when the upstream closes the connection, so an early close can't be detected.
//! Enforced by: the body owns the connection. A live stream's socket is detached from hyper, to
//! free hyper's buffers (`head_io.rs`).

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::chunked::{ChunkError, ChunkOutput, ChunkedDecoder};
use super::upload::UploadProgress;
use super::upstream::UpstreamPool;
use super::upstream_connection::UpstreamConnection;
use super::upstream_error::UploadFault;

/// Maximum bytes per read. An idle stream has no buffer.
const READ_BYTES: usize = 16 * 1024;

/// A response body and the connection that it is read from.
#[derive(Debug)]
pub(crate) enum Download {
    /// Read by hyper. The connection returns to the pool afterwards.
    Pooled(PooledDownload),
    /// A live stream, read directly from the socket.
    Direct(DirectDownload),
}

/// Why a response body failed before its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// hyper failed to read the body.
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    /// The socket failed.
    #[error("the upstream's connection failed")]
    Io(#[from] io::Error),
    /// The chunked coding is malformed.
    #[error("the upstream's chunked coding is malformed")]
    Chunk(#[from] ChunkError),
    /// The connection closed before the end of the body.
    #[error("the upstream closed the connection before the end of its stream")]
    Closed,
    /// The client sent no bytes of the request's body for too long.
    #[error("the client stopped sending its request body")]
    RequestStalled,
    /// The client's request body failed before its end.
    #[error("the client's request body failed before its end")]
    RequestBroken,
    /// An operator ended the stream.
    #[error("an operator ended the stream")]
    Ended,
}

impl DownloadError {
    /// Returns whether the client's request body is the cause, not the upstream.
    pub(crate) fn is_clients_fault(&self) -> bool {
        match self {
            DownloadError::RequestStalled | DownloadError::RequestBroken => true,
            DownloadError::Hyper(_)
            | DownloadError::Io(_)
            | DownloadError::Chunk(_)
            | DownloadError::Closed
            | DownloadError::Ended => false,
        }
    }
}

impl Download {
    /// Creates the body of a response with this status. The connection of a 101 doesn't return to
    /// the pool.
    pub(crate) async fn new(
        status: StatusCode,
        incoming: Incoming,
        connection: Box<UpstreamConnection>,
        pool: Arc<UpstreamPool>,
        upload: Arc<UploadProgress>,
    ) -> Download {
        let mut pooled = PooledDownload { incoming, connection: Some(connection), pool, upload };
        if pooled.incoming.is_end_stream() && status != StatusCode::SWITCHING_PROTOCOLS {
            poll_fn(|cx| {
                pooled.return_connection(cx);
                Poll::Ready(())
            })
            .await;
        }
        Download::Pooled(pooled)
    }

    /// Returns the socket of a 101. `None` if part of the request isn't sent; then the connection
    /// is closed.
    pub(crate) fn into_upgraded(self) -> Option<DetachedSocket> {
        match self {
            Download::Pooled(PooledDownload { connection: Some(connection), .. })
                if connection.is_request_sent() =>
            {
                Some(connection.into_detached())
            }
            Download::Pooled(_) | Download::Direct(_) => None,
        }
    }

    /// Detaches the socket from hyper, if the whole request is sent and the end of the body can be
    /// detected without hyper. Otherwise returns `self` unchanged.
    ///
    /// Call it before the body is polled: hyper has then read no byte of the body.
    pub(crate) fn detach_from_hyper(self, headers: &HeaderMap) -> Download {
        let framing = match framing(headers) {
            Some(framing) => framing,
            None => return self,
        };
        match self {
            Download::Pooled(PooledDownload { connection: Some(connection), incoming, pool, upload }) => {
                if connection.is_ended() || !connection.is_request_sent() || incoming.is_end_stream() {
                    let connection = Some(connection);
                    return Download::Pooled(PooledDownload { incoming, connection, pool, upload });
                }
                let DetachedSocket { socket, unread, permit } = connection.into_detached();
                Download::Direct(DirectDownload { socket, unread, framing, _permit: permit, ended: false })
            }
            other @ (Download::Pooled(_) | Download::Direct(_)) => other,
        }
    }
}

/// Socket of an upstream connection without hyper.
#[derive(Debug)]
pub(crate) struct DetachedSocket {
    pub(crate) socket: TcpStream,
    /// Bytes behind the response head that were read.
    pub(crate) unread: Bytes,
    /// Permit of the connection pool.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Returns how the end of a body without a length is detected. `None`: only hyper can read the
/// body.
fn framing(headers: &HeaderMap) -> Option<BodyFraming> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) if headers.contains_key(CONTENT_LENGTH) => None,
        (None, _) => Some(BodyFraming::UntilClose),
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Some(BodyFraming::Chunked(ChunkedDecoder::new()))
        }
        (Some(_), _) => None,
    }
}

/// A body that hyper reads over a pooled connection.
#[derive(Debug)]
pub(crate) struct PooledDownload {
    incoming: Incoming,
    /// `None` once the connection was returned or has failed.
    connection: Option<Box<UpstreamConnection>>,
    pool: Arc<UpstreamPool>,
    /// Progress of the request's body, which may fail after the response head.
    upload: Arc<UploadProgress>,
}

impl PooledDownload {
    /// Returns the connection to the pool after a complete response. Closes it if it can't take
    /// another request.
    fn return_connection(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take()
            && connection.is_ready(cx)
        {
            self.pool.put_back(connection);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        let mut driven = false;
        loop {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are dropped: the gate removes `Trailer`, which announces them.
                    let Ok(data) = frame.into_data() else { continue };
                    if self.incoming.is_end_stream() {
                        self.return_connection(cx);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(Some(Err(error))) => {
                    self.connection = None;
                    // hyper closes the connection if the upload fails.
                    let error = match self.upload.fault() {
                        None => DownloadError::Hyper(error),
                        Some(UploadFault::Stalled(_)) => DownloadError::RequestStalled,
                        Some(UploadFault::Broken) => DownloadError::RequestBroken,
                    };
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => {
                    self.return_connection(cx);
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

/// A live stream that is read from its socket without hyper.
#[derive(Debug)]
pub(crate) struct DirectDownload {
    socket: TcpStream,
    /// Bytes that were read and not yet decoded.
    unread: Bytes,
    framing: BodyFraming,
    /// Permit of the connection pool.
    _permit: OwnedSemaphorePermit,
    /// Whether the body has failed, or the upstream has closed the connection.
    ended: bool,
}

/// How the end of a body without a length is detected.
#[derive(Debug, Clone, Copy)]
enum BodyFraming {
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl DirectDownload {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        loop {
            match self.decode() {
                Ok(ChunkOutput::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(ChunkOutput::More) => {}
                Ok(ChunkOutput::End) => return Poll::Ready(None),
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
            match ready!(self.poll_read(cx)) {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    return Poll::Ready(match self.framing {
                        BodyFraming::Chunked(_) => Some(Err(DownloadError::Closed)),
                        BodyFraming::UntilClose => None,
                    });
                }
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }

    fn decode(&mut self) -> Result<ChunkOutput, ChunkError> {
        if self.ended {
            return Ok(ChunkOutput::End);
        }
        match &mut self.framing {
            BodyFraming::Chunked(chunked) => {
                let decoded = chunked.decode(&mut self.unread)?;
                if self.unread.is_empty() {
                    self.unread = Bytes::new(); // an empty view would keep its allocation alive
                }
                Ok(decoded)
            }
            BodyFraming::UntilClose if self.unread.is_empty() => Ok(ChunkOutput::More),
            BodyFraming::UntilClose => Ok(ChunkOutput::Data(std::mem::take(&mut self.unread))),
        }
    }

    /// Reads more bytes. Returns false if the upstream has closed the connection.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        self.unread = Bytes::copy_from_slice(buffer.filled());
        Poll::Ready(Ok(!buffer.filled().is_empty()))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || matches!(&self.framing, BodyFraming::Chunked(chunked) if chunked.is_done())
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
            Download::Pooled(pooled) => pooled.poll_frame(cx),
            Download::Direct(direct) => direct.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Download::Pooled(pooled) => pooled.incoming.is_end_stream(),
            Download::Direct(direct) => direct.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Download::Pooled(pooled) => pooled.incoming.size_hint(),
            Download::Direct(_) => SizeHint::default(),
        }
    }
}
