//! What a start-up gets: a connected socket, encrypted already where it should be.

use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, poll_fn, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect};
use tokio_rustls::client::TlsStream;

use super::binding;
use super::socket::Socket;

/// A connection to a server on which nothing was said yet, encrypted where it should be.
pub struct PostgresStream {
    socket: Socket,
    /// Around the same socket; `None`: it stays plain.
    tls: Option<Box<TlsStream<Socket>>>,
}

impl PostgresStream {
    pub(super) fn plain(socket: Socket) -> Self {
        PostgresStream { socket, tls: None }
    }

    pub(super) fn encrypted(socket: Socket, tls: TlsStream<Socket>) -> Self {
        PostgresStream { socket, tls: Some(Box::new(tls)) }
    }

    /// For whoever waits for the end when the stream is gone.
    pub(super) fn socket(&self) -> Socket {
        self.socket.clone()
    }

    /// Whether what is said can't be read on the way.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// What an authentication is bound to (RFC 5929): `None` without TLS, and where no hash is defined for the server's
    /// certificate.
    pub fn tls_server_end_point(&self) -> Option<Vec<u8>> {
        let certificate = self.tls.as_ref()?.get_ref().1.peer_certificates()?.first()?;
        binding::server_end_point(certificate)
    }

    /// How many bytes must have come before whoever waits to read is woken (`SO_RCVLOWAT`); 1 unless told. Lowering it
    /// wakes them if there is that much. With TLS, encrypted bytes are counted.
    ///
    /// # Errors
    /// When there is no such thing: on a Unix socket.
    pub fn set_receive_low_water(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_receive_low_water(bytes)
    }

    /// Says that nothing more will come, and resolves when the server has closed its end or the connection is broken; what
    /// still comes is thrown away. Nothing limits how long that takes.
    pub async fn hang_up(mut self) {
        // It fails only when there is nobody to tell.
        let _gone = poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await;
        self.socket.closed_by_peer().await;
    }

    fn io(self: Pin<&mut Self>) -> Pin<&mut dyn Io> {
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

/// The TLS handshake as tokio-postgres sees it: there is nothing left to do.
pub(super) struct Done;

impl TlsConnect<PostgresStream> for Done {
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

trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

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
