//! What a connection may be wrapped in before a byte of HTTP is read: TLS, for one.
//!
//! Invariant: a wrapped connection has the same deadlines as another: the first head's time runs from when it was accepted, the handshake
//! included, and a client that takes nothing for `write_timeout` is an error.
//! Not here: TLS itself, of which this crate knows nothing; and the lean path, whose socket the kernel writes to. A wrapped stream takes the ordinary one.

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

use crate::meter::Meter;
use crate::stall::Stall;

/// Wraps connections; see [`Server::wrapped`](crate::Server::wrapped).
pub trait Wrap: fmt::Debug + Send + Sync + 'static {
    /// Shakes hands. It is given up after `header_read_timeout`.
    fn wrap(&self, stream: TcpStream) -> Wrapping;
}

/// A handshake.
pub type Wrapping = Pin<Box<dyn Future<Output = io::Result<Wrapped>> + Send>>;

/// A wrapped connection.
pub struct Wrapped {
    /// What is inside.
    pub io: Box<dyn Transport>,
    /// Whether both have agreed on HTTP/2.
    pub is_http2: bool,
}

/// Bytes both ways.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped").field("is_http2", &self.is_http2).finish_non_exhaustive()
    }
}

/// A wrapped connection, as hyper sees it.
pub(crate) struct WrappedIo {
    io: Box<dyn Transport>,
    meter: Arc<Meter>,
    stall: Stall,
    write_timeout: Duration,
}

impl WrappedIo {
    pub(crate) fn new(io: Box<dyn Transport>, meter: Arc<Meter>, write_timeout: Duration) -> Self {
        WrappedIo { io, meter, stall: Stall::default(), write_timeout }
    }

    pub(crate) fn into_transport(self) -> Box<dyn Transport> {
        self.io
    }

    /// While the client takes nothing, its time runs.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match outcome {
            Poll::Ready(done) => {
                self.stall.progress();
                Poll::Ready(done)
            }
            Poll::Pending => {
                ready!(self.stall.poll(cx, self.write_timeout));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl Read for WrappedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // SAFETY: nothing is uninitialised; `ReadBuf` only writes bytes.
        let mut room = ReadBuf::uninit(unsafe { buf.as_mut() });
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut room))?;
        let count = room.filled().len();
        // SAFETY: so many bytes were just written there.
        unsafe { buf.advance(count) };
        if count > 0 {
            self.meter.hear();
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for WrappedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.meter.unflushed.set(true);
        let outcome = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.bounded(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(cx);
        ready!(self.bounded(cx, outcome))?;
        self.meter.unflushed.set(false);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_shutdown(cx);
        self.bounded(cx, outcome)
    }
}
