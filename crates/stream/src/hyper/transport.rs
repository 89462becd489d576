//! Transports between TCP and HTTP, such as TLS.
//!
//! Invariant: a connection with a handshake has the same deadlines as a plain one. The time for the
//! first head starts at accept and includes the handshake. A client that accepts no bytes for
//! `write_timeout` causes an error.
//! Out of scope: TLS itself; the fast path and live tasks, which need a plain socket.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::config::HttpServerConfig;
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::oversized_head::OversizedHeadResponse;
use crate::stall_timer::StallTimer;

/// Performs a handshake on each accepted connection.
///
/// See [`HttpServer::with_handshake`](crate::HttpServer::with_handshake).
pub trait Handshake: fmt::Debug + Send + Sync + 'static {
    /// Performs the handshake. It is cancelled after `header_read_timeout`.
    fn handshake(&self, stream: TcpStream) -> HandshakeFuture;
}

/// Future of a handshake.
pub type HandshakeFuture = Pin<Box<dyn Future<Output = io::Result<NegotiatedTransport>> + Send>>;

/// Transport after a successful handshake.
pub struct NegotiatedTransport {
    /// Decrypted bytes in both directions.
    pub io: Box<dyn Transport>,
    /// True if both sides have agreed on HTTP/2.
    pub is_http2: bool,
}

/// Bidirectional byte stream.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl fmt::Debug for NegotiatedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NegotiatedTransport").field("is_http2", &self.is_http2).finish_non_exhaustive()
    }
}

/// Transport adapter for hyper.
pub(crate) struct TransportIo {
    io: Box<dyn Transport>,
    activity: Arc<ConnectionActivity>,
    stall: StallTimer,
    write_timeout: Duration,
    oversized_head: OversizedHeadResponse,
}

impl TransportIo {
    pub(crate) fn new(
        io: Box<dyn Transport>,
        activity: Arc<ConnectionActivity>,
        config: &HttpServerConfig,
    ) -> Self {
        let (write_timeout, oversized_head) = (config.write_timeout, OversizedHeadResponse::new(config));
        TransportIo { io, activity, stall: StallTimer::default(), write_timeout, oversized_head }
    }

    pub(crate) fn into_transport(self) -> Box<dyn Transport> {
        self.io
    }

    fn bound_write<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.stall.bound_write(cx, outcome, self.write_timeout)
    }
}

impl Read for TransportIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // SAFETY: `ReadBuf` only writes initialised bytes.
        let mut room = ReadBuf::uninit(unsafe { buf.as_mut() });
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut room))?;
        let count = room.filled().len();
        // SAFETY: `poll_read` has initialised `count` bytes.
        unsafe { buf.advance(count) };
        if count > 0 {
            self.activity.bytes_received();
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for TransportIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.activity.unflushed.set(true);
        let this = &mut *self;
        while let Some(rest) = this.oversized_head.replacement(bytes, &this.activity) {
            let outcome = Pin::new(&mut this.io).poll_write(cx, &rest);
            let count = ready!(this.bound_write(cx, outcome))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if this.oversized_head.written(count) {
                return Poll::Ready(Ok(bytes.len()));
            }
        }
        let outcome = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.bound_write(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(cx);
        ready!(self.bound_write(cx, outcome))?;
        self.activity.unflushed.set(false);
        self.activity.has_response.set(false);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_shutdown(cx);
        self.bound_write(cx, outcome)
    }
}
