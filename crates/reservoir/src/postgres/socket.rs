//! Socket of a connection, shared by the protocol client and the code that closes it.
//!
//! The client owns its stream and drops it after it has sent Terminate. `close` must then wait
//! until the server closes its end, so both share the socket.
//!
//! Invariant: one reader at a time: the connection's task until it ends, then the code that closes.
//!
//! A FIN or RST counts as the server's close: its kernel has no process for the connection any
//! more. A local timeout doesn't count; see [`PostgresSocket::closed_by_peer`].

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connected socket. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct PostgresSocket(Arc<SocketState>);

#[derive(Debug)]
struct SocketState {
    stream: RawStream,
    options: TcpOptions,
    /// Whether the kernel timed out although the host acknowledges: the server process doesn't
    /// read.
    peer_stalled: AtomicBool,
}

#[derive(Debug)]
enum RawStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Options of a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TcpOptions {
    pub(super) keepalive: Option<Keepalive>,
    pub(super) user_timeout: Option<Duration>,
}

/// TCP keepalive probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keepalive {
    pub(super) idle: Duration,
    pub(super) interval: Duration,
    pub(super) count: u32,
}

/// Evaluates the expression for the TCP or Unix stream.
macro_rules! with_stream {
    ($socket:expr, $stream:ident => $what:expr) => {
        match &$socket.0.stream {
            RawStream::Tcp($stream) => $what,
            RawStream::Unix($stream) => $what,
        }
    };
}

impl PostgresSocket {
    pub(super) async fn tcp(address: SocketAddr, options: TcpOptions) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_nodelay(true)?;
        if let Some(Keepalive { idle, interval, count }) = options.keepalive {
            let probes = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(count);
            socket.set_tcp_keepalive(&probes)?;
        }
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(options.user_timeout)?;
        Ok(PostgresSocket::new(RawStream::Tcp(stream), options))
    }

    pub(super) async fn unix(path: &Path) -> io::Result<Self> {
        let stream = RawStream::Unix(UnixStream::connect(path).await?);
        Ok(PostgresSocket::new(stream, TcpOptions { keepalive: None, user_timeout: None }))
    }

    fn new(stream: RawStream, options: TcpOptions) -> Self {
        PostgresSocket(Arc::new(SocketState { stream, options, peer_stalled: AtomicBool::new(false) }))
    }

    /// Waits until the peer has closed its end (FIN or RST); discards received bytes.
    ///
    /// Also resolves when the kernel has timed out on a silent host, as after a failover. It
    /// doesn't resolve if the kernel timed out although the host acknowledges: the server process
    /// still exists and doesn't read.
    pub(super) async fn closed_by_peer(&self) {
        let mut rest = [0; 1024];
        loop {
            // Not `poll_read_ready`: it keeps one waker, which may belong to an aborted task.
            let read = match with_stream!(self, stream => stream.readable().await) {
                Ok(()) => with_stream!(self, stream => stream.try_read(&mut rest)),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.inspect_error(&error);
                    break;
                }
            }
        }
        if self.0.peer_stalled.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Inspects each error when it occurs: the kernel reports it once, and then reads return EOF.
    fn inspect_error(&self, error: &io::Error) {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        if matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable) && self.host_acknowledges()
        {
            self.0.peer_stalled.store(true, Ordering::Relaxed);
        }
    }

    fn inspected<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.inspect_error(error))
    }

    /// Returns whether the host has acknowledged anything recently.
    ///
    /// While a process doesn't read, its host answers window probes. The kernel still gives up
    /// after `tcp_user_timeout`.
    #[cfg(target_os = "linux")]
    fn host_acknowledges(&self) -> bool {
        let (RawStream::Tcp(stream), Some(timeout)) = (&self.0.stream, self.0.options.user_timeout) else {
            return false;
        };
        // SAFETY: `tcp_info` consists of integers, so all zeroes is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).expect("a tcp_info is short");
        // SAFETY: `stream` keeps the descriptor open; the kernel writes at most `length` bytes to
        // `info`.
        let got = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        // The interval between probes grows. The last one is answered after about half of the
        // timeout, unless that is a second or less. A silent host has answered none.
        got == 0 && Duration::from_millis(info.tcpi_last_ack_recv.into()) < timeout * 3 / 4
    }

    #[cfg(not(target_os = "linux"))]
    fn host_acknowledges(&self) -> bool {
        false
    }

    /// Shuts down the write side and waits as [`PostgresSocket::closed_by_peer`] does.
    pub(super) async fn shutdown_and_wait(&self) {
        // It fails only if the socket is already closed.
        let _gone = with_stream!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write));
        self.closed_by_peer().await;
    }

    /// Sets how many bytes must be readable before a reader is woken (`SO_RCVLOWAT`).
    pub(super) fn set_receive_low_water(&self, bytes: usize) -> io::Result<()> {
        // The kernel accepts the option on a Unix socket, but ignores it.
        let RawStream::Tcp(stream) = &self.0.stream else { return Err(io::ErrorKind::Unsupported.into()) };
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let length = libc::socklen_t::try_from(size_of_val(&bytes)).expect("an int is short");
        // SAFETY: `stream` keeps the descriptor open, and `bytes` is an int of that length that
        // outlives the call.
        let set = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const bytes).cast(),
                length,
            )
        };
        match set {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads available bytes. A read that doesn't fill the buffer has emptied the socket, so
    /// readiness is cleared and the next read waits, as in tokio's own `poll_read`.
    fn try_read(&self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let (room, mut taken) = (buf.remaining(), 0);
        let read = with_stream!(self, stream => stream.try_io(Interest::READABLE, || {
            taken = stream.try_read_buf(buf)?;
            // In the same `try_io` call, so that bytes that arrive meanwhile aren't missed.
            if taken > 0 && taken < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        }));
        if taken > 0 { Ok(()) } else { read }
    }

    fn try_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(with_stream!(self, stream => stream.poll_write_ready(cx)))?;
            // Most writes have one part; `write` is cheaper than `writev`.
            let written = match parts {
                [bytes] => with_stream!(self, stream => stream.try_write(bytes)),
                parts => with_stream!(self, stream => stream.try_write_vectored(parts)),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(self.inspected(result)),
            }
        }
    }
}

impl AsyncRead for PostgresSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(with_stream!(self, stream => stream.poll_read_ready(cx)))?;
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(self.inspected(result)),
            }
        }
    }
}

impl AsyncWrite for PostgresSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.try_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.try_write(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = with_stream!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write));
        Poll::Ready(match result {
            // The server has closed first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }
}
