//! Client connection after an upgrade: bytes in both directions, without HTTP.
//!
//! Invariant: bytes that arrived behind the request's head are read first. A client that accepts no
//! bytes for `write_timeout` causes an error.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::hyper::transport::Transport;
use crate::stall_timer::StallTimer;

/// Client connection that a [`ConnectionUpgrade`](crate::ConnectionUpgrade) hands to the service.
///
/// Writes fail with `TimedOut` if the client accepts no bytes for `write_timeout`.
pub struct UpgradedIo {
    socket: ClientSocket,
    /// Bytes that the client sent behind its request.
    unread: Bytes,
    stall: StallTimer,
    write_timeout: Duration,
}

/// Socket of a client, plain or after a handshake.
pub(crate) enum ClientSocket {
    Plain(TcpStream),
    Transport(Box<dyn Transport>),
}

impl UpgradedIo {
    pub(crate) fn new(socket: ClientSocket, unread: Bytes, write_timeout: Duration) -> UpgradedIo {
        UpgradedIo { socket, unread, stall: StallTimer::default(), write_timeout }
    }

    /// Makes the drop of a plain connection a reset, so that what was sent doesn't look complete.
    ///
    /// TLS needs no reset: without its closing alert, the client detects the loss.
    pub fn reset_on_drop(&self) {
        if let ClientSocket::Plain(stream) = &self.socket {
            // Fails only if the client has disconnected.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for UpgradedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let count = self.unread.len().min(room.remaining());
            room.put_slice(&self.unread.split_to(count));
            if self.unread.is_empty() {
                self.unread = Bytes::new(); // frees its memory
            }
            return Poll::Ready(Ok(()));
        }
        match &mut self.socket {
            ClientSocket::Plain(stream) => Pin::new(stream).poll_read(cx, room),
            ClientSocket::Transport(transport) => Pin::new(transport).poll_read(cx, room),
        }
    }
}

impl AsyncWrite for UpgradedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let outcome = match &mut this.socket {
            ClientSocket::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ClientSocket::Transport(transport) => Pin::new(transport).poll_write(cx, bytes),
        };
        this.stall.bound_write(cx, outcome, this.write_timeout)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let outcome = match &mut this.socket {
            ClientSocket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            ClientSocket::Transport(transport) => Pin::new(transport).poll_flush(cx),
        };
        this.stall.bound_write(cx, outcome, this.write_timeout)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let outcome = match &mut this.socket {
            ClientSocket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ClientSocket::Transport(transport) => Pin::new(transport).poll_shutdown(cx),
        };
        this.stall.bound_write(cx, outcome, this.write_timeout)
    }
}

impl fmt::Debug for UpgradedIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradedIo").field("unread", &self.unread.len()).finish_non_exhaustive()
    }
}
