//! The socket under a connection: one descriptor, seen by two.
//!
//! A protocol's client owns the stream it is given and drops it once it has said goodbye. Whoever closes a connection must
//! see the server's end close after that, so both hold the same socket.
//!
//! Invariant: only one of them reads: the connection's task until it has ended, then whoever waits for the end.
//!
//! What counts as the server's close is its FIN, or a RST: its kernel has no process for the connection any more. That the
//! kernel on this side gave up is none; see [`Socket::closed_by_peer`].

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

/// A connected socket; clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Socket(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wire: Wire,
    options: TcpOptions,
    /// Whether the kernel gave the connection up though the server's host answers: the process there doesn't read.
    unread: AtomicBool,
}

#[derive(Debug)]
enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What is set on a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TcpOptions {
    pub(super) keepalive: Option<Keepalive>,
    pub(super) user_timeout: Option<Duration>,
}

/// Probes on an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keepalive {
    pub(super) idle: Duration,
    pub(super) interval: Duration,
    pub(super) count: u32,
}

/// Runs the same expression for both kinds.
macro_rules! wire {
    ($socket:expr, $stream:ident => $what:expr) => {
        match &$socket.0.wire {
            Wire::Tcp($stream) => $what,
            Wire::Unix($stream) => $what,
        }
    };
}

impl Socket {
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
        Ok(Socket::new(Wire::Tcp(stream), options))
    }

    pub(super) async fn unix(path: &Path) -> io::Result<Self> {
        let wire = Wire::Unix(UnixStream::connect(path).await?);
        Ok(Socket::new(wire, TcpOptions { keepalive: None, user_timeout: None }))
    }

    fn new(wire: Wire, options: TcpOptions) -> Self {
        Socket(Arc::new(Shared { wire, options, unread: AtomicBool::new(false) }))
    }

    /// Resolves when the other side has closed its end (FIN or RST); what still comes is thrown away.
    ///
    /// Also resolves when the kernel has given up on a host that was silent for all of `tcp_user_timeout` or the keepalives:
    /// after a failover that host is gone. It doesn't if the kernel gave up on a host that answers, where only the process
    /// doesn't read: that process is still there.
    pub(super) async fn closed_by_peer(&self) {
        let mut rest = [0; 1024];
        loop {
            // Not `poll_read_ready`, which has room for one task: one that was aborted may have polled last.
            let read = match wire!(self, stream => stream.readable().await) {
                Ok(()) => wire!(self, stream => stream.try_read(&mut rest)),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.note(&error);
                    break;
                }
            }
        }
        if self.0.unread.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Looks at an error as it comes: the kernel tells it once, and after that the socket looks as if the server had closed it.
    fn note(&self, error: &io::Error) {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        if matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable) && self.host_answers() {
            self.0.unread.store(true, Ordering::Relaxed);
        }
    }

    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.note(error))
    }

    /// Whether the host has acknowledged anything lately, though not all that it should. While a process reads nothing, its
    /// host answers the probes of a full window; the kernel gives up after `tcp_user_timeout` all the same.
    #[cfg(target_os = "linux")]
    fn host_answers(&self) -> bool {
        let (Wire::Tcp(stream), Some(timeout)) = (&self.0.wire, self.0.options.user_timeout) else {
            return false;
        };
        // SAFETY: a tcp_info is made of integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).expect("a tcp_info is short");
        // SAFETY: the descriptor is open as long as `stream` is; the kernel writes at most `length` bytes to `info`.
        let got = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        // Probes come ever later. The last one is answered after about half of the timeout, unless that is a second or less;
        // a silent host has answered none.
        got == 0 && Duration::from_millis(info.tcpi_last_ack_recv.into()) < timeout * 3 / 4
    }

    #[cfg(not(target_os = "linux"))]
    fn host_answers(&self) -> bool {
        false
    }

    /// Says that nothing more will come, and waits as [`Socket::closed_by_peer`] does.
    pub(super) async fn hang_up(&self) {
        // It fails only when there is nobody to tell.
        let _gone = wire!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write));
        self.closed_by_peer().await;
    }

    /// How many bytes must have come before whoever waits to read is woken. Lowering it wakes them if there is that much.
    pub(super) fn set_receive_low_water(&self, bytes: usize) -> io::Result<()> {
        // The kernel takes it of a Unix socket, too, but wakes for every byte all the same.
        let Wire::Tcp(stream) = &self.0.wire else { return Err(io::ErrorKind::Unsupported.into()) };
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let length = libc::socklen_t::try_from(size_of_val(&bytes)).expect("an int is short");
        // SAFETY: the descriptor is open as long as `stream` is, and the value is an int of that length that outlives the
        // call.
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

    /// Reads what is there. A read that leaves room has taken all of it, so that the next one waits for the kernel's word
    /// instead of asking in vain; as tokio's own does, for whom we share the socket too much.
    fn try_read(&self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let (room, mut taken) = (buf.remaining(), 0);
        let read = wire!(self, stream => stream.try_io(Interest::READABLE, || {
            taken = stream.try_read_buf(buf)?;
            // In the same call, so that what comes meanwhile isn't forgotten.
            if taken > 0 && taken < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        }));
        if taken > 0 { Ok(()) } else { read }
    }

    fn try_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(wire!(self, stream => stream.poll_write_ready(cx)))?;
            // One part alone is cheaper to send than to gather, and is what clients mostly have.
            let written = match parts {
                [bytes] => wire!(self, stream => stream.try_write(bytes)),
                parts => wire!(self, stream => stream.try_write_vectored(parts)),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(self.noted(result)),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(wire!(self, stream => stream.poll_read_ready(cx)))?;
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(self.noted(result)),
            }
        }
    }
}

impl AsyncWrite for Socket {
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
        let result = wire!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write));
        Poll::Ready(match result {
            // The server was first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }
}
