//! Socket wrapper that lets hyper read a response head, and withholds the body until its reader is
//! chosen.
//!
//! Invariant: between a head and [`HeadIoControl::read_all`], hyper has read no byte of the body.
//! So the socket can be detached and read directly from the first byte of the body.
//! Enforced by: every read is scanned for the end of the head, by the rules of hyper's parser,
//! before hyper receives it.
//!
//! hyper keeps 16 KiB of buffers per connection. An idle stream doesn't need them.

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

/// Maximum bytes per read. The buffer is on the stack.
const READ_BYTES: usize = 16 * 1024;

/// The socket that hyper reads from and writes to.
pub(crate) struct HeadIo {
    socket: TcpStream,
    /// Bytes that were read beyond the head.
    withheld: Bytes,
    scan: HeadScanner,
    control: Arc<HeadIoControl>,
}

/// Controls a [`HeadIo`] while hyper owns the socket. `UpstreamConnection` holds it.
#[derive(Debug, Default)]
pub(crate) struct HeadIoControl {
    /// A [`ReadMode`].
    mode: AtomicU8,
    /// Whether hyper has more to write than the socket accepted.
    unsent: AtomicBool,
    /// Whether any byte arrived from the upstream since the request began.
    answered: AtomicBool,
}

/// Which bytes hyper receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum ReadMode {
    /// Delivers bytes up to the end of the next head.
    Head = 0,
    /// Delivers nothing: the head is complete.
    Withhold = 1,
    /// Delivers everything.
    All = 2,
}

impl HeadIoControl {
    /// Lets hyper read the body.
    pub(crate) fn read_all(&self) {
        self.mode.store(ReadMode::All as u8, Ordering::Relaxed);
    }

    /// Lets hyper read up to the end of the next response head.
    pub(crate) fn expect_head(&self) {
        self.mode.store(ReadMode::Head as u8, Ordering::Relaxed);
    }

    /// Returns whether the kernel has accepted all bytes that hyper wrote.
    pub(crate) fn is_sent(&self) -> bool {
        !self.unsent.load(Ordering::Relaxed)
    }

    /// Records that a request begins and that no byte of its response has arrived.
    pub(crate) fn begin_request(&self) {
        self.answered.store(false, Ordering::Relaxed);
    }

    /// Returns whether any byte arrived since the request began. Interim responses count.
    pub(crate) fn has_response_bytes(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    fn mode(&self) -> ReadMode {
        match self.mode.load(Ordering::Relaxed) {
            0 => ReadMode::Head,
            1 => ReadMode::Withhold,
            _ => ReadMode::All,
        }
    }
}

impl HeadIo {
    pub(crate) fn new(socket: TcpStream, control: Arc<HeadIoControl>) -> HeadIo {
        HeadIo { socket, withheld: Bytes::new(), scan: HeadScanner::default(), control }
    }

    /// Returns the socket, and the body bytes that were read.
    pub(crate) fn into_parts(self) -> (TcpStream, Bytes) {
        (self.socket, self.withheld)
    }

    /// Delivers the bytes of the head to hyper and withholds the rest.
    fn deliver(&mut self, input: &[u8], cursor: &mut ReadBufCursor<'_>) {
        if !input.is_empty() {
            self.control.answered.store(true, Ordering::Relaxed);
        }
        let end = match self.control.mode() {
            ReadMode::All => input.len(),
            ReadMode::Head => match self.scan.find_end(input) {
                Some(end) => {
                    self.control.mode.store(ReadMode::Withhold as u8, Ordering::Relaxed);
                    end
                }
                None => input.len(),
            },
            ReadMode::Withhold => 0,
        };
        cursor.put_slice(&input[..end]);
        if end < input.len() {
            self.withheld = Bytes::copy_from_slice(&input[end..]);
        }
    }

    /// Records whether a write was complete, and whether response bytes arrived before it failed.
    fn record_write(&self, written: &Poll<io::Result<usize>>, offered: usize) {
        let all = matches!(written, Poll::Ready(Ok(count)) if *count == offered);
        self.control.unsent.store(!all, Ordering::Relaxed);
        // hyper stops reading after a failed write, although the upstream may have responded before
        // it closed.
        if matches!(written, Poll::Ready(Err(_))) && self.has_unread() {
            self.control.answered.store(true, Ordering::Relaxed);
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
        if this.control.mode() == ReadMode::Withhold {
            // No waker is needed: after `read_all`, the caller polls the connection.
            return Poll::Pending;
        }
        let room = cursor.remaining().min(READ_BYTES);
        if !this.withheld.is_empty() {
            let input = this.withheld.split_to(room.min(this.withheld.len()));
            let rest = std::mem::take(&mut this.withheld);
            this.deliver(&input, &mut cursor);
            if !rest.is_empty() {
                this.withheld = join(&this.withheld, rest);
            }
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut bytes[..room]);
        ready!(Pin::new(&mut this.socket).poll_read(cx, &mut buffer))?;
        this.deliver(buffer.filled(), &mut cursor);
        Poll::Ready(Ok(()))
    }
}

fn join(first: &Bytes, second: Bytes) -> Bytes {
    if first.is_empty() { second } else { [&first[..], &second[..]].concat().into() }
}

impl Write for HeadIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.record_write(&written, bytes.len());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, pieces);
        self.record_write(&written, pieces.iter().map(|piece| piece.len()).sum());
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

/// Finds the end of a response head: an empty line after the status line. Lines may end in LF
/// without CR, and empty lines before the status line are skipped. hyper's parser has the same
/// rules.
#[derive(Debug, Default)]
struct HeadScanner {
    position: LinePosition,
    /// Start of the status line, such as `HTTP/1.1 103`. It shows whether the head is interim, so
    /// that another head follows.
    start: [u8; 12],
    start_length: u8,
}

/// Position of the scanner within the lines of a head.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LinePosition {
    #[default]
    BeforeHead,
    InLine,
    AfterLf,
    AfterLfCr,
}

impl HeadScanner {
    /// Returns the number of bytes that belong to heads, if the final head ends in `input`.
    fn find_end(&mut self, input: &[u8]) -> Option<usize> {
        for (at, &byte) in input.iter().enumerate() {
            let ended = self.step(byte);
            if ended {
                let interim = self.is_interim();
                *self = HeadScanner::default();
                if !interim {
                    return Some(at + 1);
                }
            }
        }
        None
    }

    /// Reads one byte. Returns whether the head ends with it.
    fn step(&mut self, byte: u8) -> bool {
        if self.position == LinePosition::BeforeHead && matches!(byte, b'\r' | b'\n') {
            return false;
        }
        if let Some(slot) = self.start.get_mut(usize::from(self.start_length)) {
            *slot = byte;
            self.start_length += 1;
        }
        let (position, ended) = match (self.position, byte) {
            (LinePosition::AfterLf | LinePosition::AfterLfCr, b'\n') => (LinePosition::BeforeHead, true),
            (LinePosition::AfterLf, b'\r') => (LinePosition::AfterLfCr, false),
            (LinePosition::BeforeHead | LinePosition::InLine, b'\n') => (LinePosition::AfterLf, false),
            (
                LinePosition::BeforeHead
                | LinePosition::InLine
                | LinePosition::AfterLf
                | LinePosition::AfterLfCr,
                _,
            ) => (LinePosition::InLine, false),
        };
        self.position = position;
        ended
    }

    /// Returns whether the head is interim: 1xx, except 101. After 101, no other head follows.
    fn is_interim(&self) -> bool {
        let code = &self.start[9..12];
        self.start_length == 12 && code[0] == b'1' && code != b"101"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns where the heads end if the text arrives in pieces of `piece` bytes.
    fn end(text: &str, piece: usize) -> Option<usize> {
        let (mut scan, mut before) = (HeadScanner::default(), 0);
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
        fn no_input_panics_the_scanner(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            HeadScanner::default().find_end(&bytes);
        }
    }
}
