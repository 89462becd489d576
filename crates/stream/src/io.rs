//! The socket, as hyper sees it.
//!
//! Invariant: what was read before hyper came is read again first; a client that takes nothing for `write_timeout` is an
//! error; `Meter::unflushed` is true whenever hyper may hold bytes that the socket has not taken.
//! Kept by, for the last: hyper's flush writes until its buffer is empty, and only then flushes the socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::meter::Meter;
use crate::stall::Stall;

#[derive(Debug)]
pub(crate) struct Io {
    /// Shared with those who watch whether the client leaves; see `handover.rs`.
    stream: Arc<TcpStream>,
    /// What was read before hyper came.
    heard: Bytes,
    meter: Arc<Meter>,
    stall: Stall,
    write_timeout: Duration,
}

impl Io {
    pub(crate) fn new(stream: TcpStream, heard: Bytes, meter: Arc<Meter>, write_timeout: Duration) -> Io {
        Io { stream: Arc::new(stream), heard, meter, stall: Stall::default(), write_timeout }
    }

    pub(crate) fn stream(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    pub(crate) fn into_stream(self) -> Arc<TcpStream> {
        self.stream
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.meter.unflushed.set(true);
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

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.heard.is_empty() {
            let count = self.heard.len().min(buf.remaining());
            buf.put_slice(&self.heard.split_to(count));
            if self.heard.is_empty() {
                self.heard = Bytes::new(); // with its memory
            }
            self.meter.hear();
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            // SAFETY: nothing is uninitialised; the socket only writes bytes.
            match read_once(&self.stream, unsafe { buf.as_mut() }) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(count) => {
                    // SAFETY: the socket has just written so many bytes there.
                    unsafe { buf.advance(count) };
                    self.meter.hear();
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// Reads what there is. If that is less than there is room for, it was all, and the socket isn't readable until it says so again: hyper looks
/// once more after each request, which would else be a call that finds nothing. A client's end is never forgotten by that.
pub(crate) fn read_once(stream: &TcpStream, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    let mut all = None;
    let read = stream.try_io(Interest::READABLE, || {
        let count = SockRef::from(stream).recv(room)?;
        all = Some(count).filter(|count| (1..room.len()).contains(count));
        // By this error `try_io` hears that the socket isn't readable.
        if all.is_some() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    });
    all.map_or(read, Ok)
}

impl Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.meter.unflushed.set(false);
        Poll::Ready(Ok(()))
    }

    /// hyper calls it when all that it was given is written, and not after an error.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = SockRef::from(&*self.stream);
        if self.meter.resets.get() {
            socket.set_linger(None)?;
            self.meter.resets.set(false);
        }
        match socket.shutdown(Shutdown::Write) {
            // The client was first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            done => Poll::Ready(done),
        }
    }
}
