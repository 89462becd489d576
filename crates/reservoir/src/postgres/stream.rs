//! Stream that a start-up gets: a connected socket with TLS already negotiated.

use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, poll_fn, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect};
use tokio_rustls::client::TlsStream;

use super::channel_binding;
use super::socket::PostgresSocket;

/// A new connection to a server, with TLS if required.
pub struct PostgresStream {
    socket: PostgresSocket,
    /// TLS on the same socket; `None` for a plain connection.
    tls: Option<Box<TlsStream<PostgresSocket>>>,
}

impl PostgresStream {
    pub(super) fn plain(socket: PostgresSocket) -> Self {
        PostgresStream { socket, tls: None }
    }

    pub(super) fn encrypted(socket: PostgresSocket, tls: TlsStream<PostgresSocket>) -> Self {
        PostgresStream { socket, tls: Some(Box::new(tls)) }
    }

    /// Returns the socket, to wait for its close after the stream is dropped.
    pub(super) fn socket(&self) -> PostgresSocket {
        self.socket.clone()
    }

    /// Returns whether the stream uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the channel binding (RFC 5929); `None` without TLS, or if no hash is defined for the
    /// server's certificate.
    pub fn tls_server_end_point(&self) -> Option<Vec<u8>> {
        let certificate = self.tls.as_ref()?.get_ref().1.peer_certificates()?.first()?;
        channel_binding::server_end_point(certificate)
    }

    /// Sets how many bytes must be readable before a reader is woken (`SO_RCVLOWAT`). Default: 1.
    /// With TLS, encrypted bytes count.
    ///
    /// # Errors
    /// Fails on a Unix socket, which doesn't support it.
    pub fn set_receive_low_water(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_receive_low_water(bytes)
    }

    /// Shuts down the write side and waits, without a timeout, until the server has closed its end
    /// or the connection is lost. Discards received bytes.
    pub async fn shutdown_and_wait(mut self) {
        // It fails only if the socket is already closed.
        let _gone = poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await;
        self.socket.closed_by_peer().await;
    }

    fn io(self: Pin<&mut Self>) -> Pin<&mut dyn StreamIo> {
        let this = self.get_mut();
        match &mut this.tls {
            None => Pin::new(&mut this.socket),
            Some(tls) => Pin::new(&mut **tls),
        }
    }
}

impl fmt::Debug for PostgresStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStream")
            .field("socket", &self.socket)
            .field("is_encrypted", &self.is_encrypted())
            .finish()
    }
}

/// TLS handshake for tokio-postgres that does nothing: TLS is already negotiated.
pub(super) struct HandshakeDone;

impl TlsConnect<PostgresStream> for HandshakeDone {
    type Stream = PostgresStream;
    type Error = Infallible;
    type Future = Ready<Result<PostgresStream, Infallible>>;

    fn connect(self, stream: PostgresStream) -> Self::Future {
        ready(Ok(stream))
    }
}

impl tokio_postgres::tls::TlsStream for PostgresStream {
    fn channel_binding(&self) -> ChannelBinding {
        self.tls_server_end_point().map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

trait StreamIo: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> StreamIo for T {}

impl AsyncRead for PostgresStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io().poll_read(cx, buf)
    }
}

impl AsyncWrite for PostgresStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.as_ref().map_or_else(|| self.socket.is_write_vectored(), |tls| tls.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_shutdown(cx)
    }
}
