//! A socket that gives hyper the head of a response, and holds the body back until it is known who shall read it.
//!
//! Invariant: between a head and [`Valve::open`], hyper has seen no byte of the body; so the socket can be taken from it
//! and read by somebody leaner, from the body's first byte on.
//! Kept by: what is read is scanned for the head's end, as hyper's parser would find it, before it is given on.
//!
//! hyper keeps 16 KiB of buffers for each connection, which a stream that is idle most of its life doesn't need.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// At most so much is read at once, and lies on the stack meanwhile.
const READ_BYTES: usize = 16 * 1024;

pub(crate) struct HeadIo {
    socket: TcpStream,
    /// What was read beyond the head.
    held: Bytes,
    scan: Scan,
    valve: Arc<Valve>,
}

/// Held by whoever owns the connection, while hyper owns the socket.
#[derive(Debug, Default)]
pub(crate) struct Valve {
    /// A [`Flow`].
    flow: AtomicU8,
    /// hyper has more to write than the socket took.
    unsent: AtomicBool,
    /// A byte came from the upstream since the request began.
    answered: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Flow {
    /// Up to the end of the next head.
    Head = 0,
    /// Nothing: the head has passed.
    Held = 1,
    /// Everything.
    Open = 2,
}

impl Valve {
    /// hyper reads the body.
    pub(crate) fn open(&self) {
        self.flow.store(Flow::Open as u8, Ordering::Relaxed);
    }

    /// The next thing to come is a head.
    pub(crate) fn reset(&self) {
        self.flow.store(Flow::Head as u8, Ordering::Relaxed);
    }

    /// Whether all of the request that hyper has begun to write is with the kernel.
    pub(crate) fn is_sent(&self) -> bool {
        !self.unsent.load(Ordering::Relaxed)
    }

    /// A request begins.
    pub(crate) fn begin_request(&self) {
        self.answered.store(false, Ordering::Relaxed);
    }

    /// Whether a byte came from the upstream since the request began, an interim response included.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    fn flow(&self) -> Flow {
        match self.flow.load(Ordering::Relaxed) {
            0 => Flow::Head,
            1 => Flow::Held,
            _ => Flow::Open,
        }
    }
}

impl HeadIo {
    pub(crate) fn new(socket: TcpStream, valve: Arc<Valve>) -> HeadIo {
        HeadIo { socket, held: Bytes::new(), scan: Scan::default(), valve }
    }

    /// The socket, and what was read of the body.
    pub(crate) fn into_parts(self) -> (TcpStream, Bytes) {
        (self.socket, self.held)
    }

    /// Gives on as much as the head has, and holds the rest.
    fn give(&mut self, input: &[u8], cursor: &mut ReadBufCursor<'_>) {
        if !input.is_empty() {
            self.valve.answered.store(true, Ordering::Relaxed);
        }
        let end = match self.valve.flow() {
            Flow::Open => input.len(),
            Flow::Head => match self.scan.find_end(input) {
                Some(end) => {
                    self.valve.flow.store(Flow::Held as u8, Ordering::Relaxed);
                    end
                }
                None => input.len(),
            },
            Flow::Held => 0,
        };
        cursor.put_slice(&input[..end]);
        if end < input.len() {
            self.held = Bytes::copy_from_slice(&input[end..]);
        }
    }

    fn note(&self, written: &Poll<io::Result<usize>>, offered: usize) {
        let all = matches!(written, Poll::Ready(Ok(count)) if *count == offered);
        self.valve.unsent.store(!all, Ordering::Relaxed);
        // hyper reads no more after a failed write, though the upstream may have answered before it closed.
        if matches!(written, Poll::Ready(Err(_))) && self.has_unread() {
            self.valve.answered.store(true, Ordering::Relaxed);
        }
    }

    fn has_unread(&self) -> bool {
        let peeked = SockRef::from(&self.socket).peek(&mut [MaybeUninit::uninit()]);
        peeked.is_ok_and(|count| count > 0)
    }
}

impl Read for HeadIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.valve.flow() == Flow::Held {
            return Poll::Pending; // whoever opens the valve polls the connection then
        }
        let room = cursor.remaining().min(READ_BYTES);
        if !this.held.is_empty() {
            let input = this.held.split_to(room.min(this.held.len()));
            let rest = std::mem::take(&mut this.held);
            this.give(&input, &mut cursor);
            if !rest.is_empty() {
                this.held = join(&this.held, rest);
            }
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut bytes[..room]);
        ready!(Pin::new(&mut this.socket).poll_read(cx, &mut buffer))?;
        this.give(buffer.filled(), &mut cursor);
        Poll::Ready(Ok(()))
    }
}

fn join(first: &Bytes, second: Bytes) -> Bytes {
    if first.is_empty() { second } else { [&first[..], &second[..]].concat().into() }
}

impl Write for HeadIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.note(&written, bytes.len());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, pieces);
        self.note(&written, pieces.iter().map(|piece| piece.len()).sum());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Finds where a head ends: an empty line, whose line ends may lack their CR, after a first line; empty lines before
/// that don't count. hyper's parser has the same rules.
#[derive(Debug, Default)]
struct Scan {
    place: Place,
    /// `HTTP/1.1 103`, to know interim heads, which another head follows.
    first: [u8; 12],
    first_length: u8,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    InLine,
    AfterLf,
    AfterLfCr,
}

impl Scan {
    /// The length of what belongs to heads, if the last of them ends here.
    fn find_end(&mut self, input: &[u8]) -> Option<usize> {
        for (at, &byte) in input.iter().enumerate() {
            let ended = self.step(byte);
            if ended {
                let interim = self.is_interim();
                *self = Scan::default();
                if !interim {
                    return Some(at + 1);
                }
            }
        }
        None
    }

    fn step(&mut self, byte: u8) -> bool {
        if self.place == Place::Before && matches!(byte, b'\r' | b'\n') {
            return false;
        }
        if let Some(place) = self.first.get_mut(usize::from(self.first_length)) {
            *place = byte;
            self.first_length += 1;
        }
        let (place, ended) = match (self.place, byte) {
            (Place::AfterLf | Place::AfterLfCr, b'\n') => (Place::Before, true),
            (Place::AfterLf, b'\r') => (Place::AfterLfCr, false),
            (Place::Before | Place::InLine, b'\n') => (Place::AfterLf, false),
            (Place::Before | Place::InLine | Place::AfterLf | Place::AfterLfCr, _) => (Place::InLine, false),
        };
        self.place = place;
        ended
    }

    /// 1xx, but for 101, after which there is no HTTP.
    fn is_interim(&self) -> bool {
        let code = &self.first[9..12];
        self.first_length == 12 && code[0] == b'1' && code != b"101"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Where the heads end, fed in pieces of so many bytes.
    fn end(text: &str, piece: usize) -> Option<usize> {
        let (mut scan, mut before) = (Scan::default(), 0);
        for piece in text.as_bytes().chunks(piece) {
            if let Some(end) = scan.find_end(piece) {
                return Some(before + end);
            }
            before += piece.len();
        }
        None
    }

    #[test]
    fn a_head_ends_with_the_empty_line() {
        for head in [
            "HTTP/1.1 200 OK\r\nA: b\r\n\r\n",
            "HTTP/1.1 200 OK\nA: b\n\n",
            "HTTP/1.1 200 OK\nA: b\r\n\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        ] {
            for piece in 1..head.len() {
                assert_eq!(
                    end(&format!("{head}body\r\n\r\n"), piece),
                    Some(head.len()),
                    "{head:?} by {piece}"
                );
            }
        }
        assert_eq!(end("HTTP/1.1 200 OK\r\nA: b\r\n", 5), None);
        assert_eq!(end("HTTP/1.1 200 OK\r\nA: b\rX\n\r", 5), None);
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            Scan::default().find_end(&bytes);
        }
    }
}
