//! TCP socket adapter for hyper.
//!
//! Invariant: bytes read before hyper took over are read first. A client that accepts no bytes for
//! `write_timeout` causes an error. `ConnectionActivity::unflushed` is true whenever hyper may hold
//! bytes that the socket hasn't accepted.
//! Enforced by (the last one): hyper flushes the socket only when its own buffer is empty.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::config::HttpServerConfig;
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::oversized_head::OversizedHeadResponse;
use crate::socket::read_available;
use crate::stall_timer::StallTimer;

/// TCP socket with a write timeout, for hyper.
#[derive(Debug)]
pub(crate) struct HyperSocket {
    /// Shared with bodies that watch for the client's disconnect; see `service_adapter.rs`.
    stream: Arc<TcpStream>,
    /// Bytes that were read before hyper took over.
    prefix: Bytes,
    activity: Arc<ConnectionActivity>,
    stall: StallTimer,
    write_timeout: Duration,
    oversized_head: OversizedHeadResponse,
}

impl HyperSocket {
    pub(crate) fn new(
        stream: TcpStream,
        prefix: Bytes,
        activity: Arc<ConnectionActivity>,
        config: &HttpServerConfig,
    ) -> HyperSocket {
        HyperSocket {
            stream: Arc::new(stream),
            prefix,
            activity,
            stall: StallTimer::default(),
            write_timeout: config.write_timeout,
            oversized_head: OversizedHeadResponse::new(config),
        }
    }

    pub(crate) fn stream(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    /// Returns the socket, and the bytes that hyper hasn't read.
    pub(crate) fn into_parts(self) -> (Arc<TcpStream>, Bytes) {
        (self.stream, self.prefix)
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.activity.unflushed.set(true);
        loop {
            match self.stream.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    ready!(self.stall.poll(cx, self.write_timeout));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    self.stall.progress();
                    return Poll::Ready(Ok(count));
                }
            }
        }
    }
}

impl HyperSocket {
    /// Writes the replacement of hyper's bytes, if there is one. Then all of hyper's `len` bytes
    /// count as written.
    fn poll_replace(
        &mut self,
        cx: &mut Context<'_>,
        first: &[u8],
        len: usize,
    ) -> Option<Poll<io::Result<usize>>> {
        while let Some(rest) = self.oversized_head.replacement(first, &self.activity) {
            match self.poll_write_with(cx, |stream| stream.try_write(&rest)) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(count)) if self.oversized_head.written(count) => {
                    return Some(Poll::Ready(Ok(len)));
                }
                Poll::Ready(Ok(_)) => {}
                unfinished => return Some(unfinished),
            }
        }
        None
    }
}

impl Read for HyperSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefix.is_empty() {
            let count = self.prefix.len().min(buf.remaining());
            buf.put_slice(&self.prefix.split_to(count));
            if self.prefix.is_empty() {
                self.prefix = Bytes::new(); // frees its memory
            }
            self.activity.bytes_received();
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            // SAFETY: the socket only writes initialised bytes.
            match read_available(&self.stream, unsafe { buf.as_mut() }) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(count) => {
                    // SAFETY: the socket has initialised `count` bytes.
                    unsafe { buf.advance(count) };
                    self.activity.bytes_received();
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Write for HyperSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_replace(cx, bytes, bytes.len()) {
            Some(replaced) => replaced,
            None => self.poll_write_with(cx, |stream| stream.try_write(bytes)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (first, len) =
            (slices.first().map_or(&[][..], |first| first), slices.iter().map(|slice| slice.len()).sum());
        match self.poll_replace(cx, first, len) {
            Some(replaced) => replaced,
            None => self.poll_write_with(cx, |stream| stream.try_write_vectored(slices)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.activity.unflushed.set(false);
        self.activity.has_response.set(false);
        Poll::Ready(Ok(()))
    }

    /// hyper calls this after everything is written, and not after an error.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = SockRef::from(&*self.stream);
        if self.activity.reset_on_drop.get() {
            socket.set_linger(None)?;
            self.activity.reset_on_drop.set(false);
        }
        match socket.shutdown(Shutdown::Write) {
            // The client has closed already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            done => Poll::Ready(done),
        }
    }
}
