//! Writer of a client's socket, with a queue of unsent bytes.
//!
//! Invariant: bytes leave in order; a client that accepts no bytes for the write timeout yields
//! [`WriteFailure::TimedOut`].
//! Memory: none while nothing is unsent.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::h1::write_batch::{MAX_SLICES, WriteBatch, advance};
use crate::stall_timer::StallTimer;

/// Maximum writes of one poll, before other tasks run.
pub(crate) const WRITES_PER_POLL: usize = 8;

/// Writes batches to a socket and queues unsent bytes.
#[derive(Debug, Default)]
pub(crate) struct SocketWriter {
    /// Bytes that the socket didn't accept yet.
    unsent: VecDeque<Bytes>,
    stall: StallTimer,
}

/// Why nothing more can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFailure {
    /// The client closed or reset the connection.
    ClientClosed,
    /// The client accepted no bytes for the write timeout.
    TimedOut,
}

impl SocketWriter {
    /// Creates a writer with bytes to be written.
    pub(crate) fn with_unsent(unsent: Bytes) -> SocketWriter {
        SocketWriter { unsent: VecDeque::from([unsent]), stall: StallTimer::default() }
    }

    /// Takes the unsent bytes, to be written with a batch.
    pub(crate) fn take_unsent(&mut self) -> VecDeque<Bytes> {
        std::mem::take(&mut self.unsent)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Writes a batch and empties it. Nothing may be unsent before.
    pub(crate) fn write(&mut self, stream: &TcpStream, batch: &mut WriteBatch) -> Result<(), WriteFailure> {
        debug_assert!(self.is_empty(), "unsent bytes come first");
        if batch.len() == 0 {
            return Ok(());
        }
        let written = match batch.as_slice() {
            // `send` without tokio's readiness check, whose state is rarely in the CPU's cache.
            Some(text) => SockRef::from(stream).send(text),
            None => {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let used = batch.fill_slices(&mut slices);
                stream.try_write_vectored(&slices[..used])
            }
        };
        self.unsent = batch.take_unsent(accepted_bytes(written)?);
        Ok(())
    }

    /// Writes unsent bytes; pending while the socket accepts no more.
    pub(crate) fn poll_flush(
        &mut self,
        stream: &TcpStream,
        write_timeout: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WriteFailure>> {
        while !self.unsent.is_empty() {
            match stream.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_disconnected)) => return Poll::Ready(Err(WriteFailure::ClientClosed)),
                Poll::Pending => {
                    ready!(self.stall.poll(cx, write_timeout));
                    return Poll::Ready(Err(WriteFailure::TimedOut));
                }
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let used = self.unsent.len().min(MAX_SLICES);
            slices.iter_mut().zip(&self.unsent).for_each(|(slice, bytes)| *slice = IoSlice::new(bytes));
            match accepted_bytes(stream.try_write_vectored(&slices[..used])) {
                Ok(0) => {}
                Ok(count) => {
                    advance(&mut self.unsent, count);
                    self.stall.progress();
                }
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
        self.unsent = VecDeque::new(); // frees its memory
        Poll::Ready(Ok(()))
    }
}

/// Returns the number of accepted bytes, 0 if the socket is full; any error is a disconnect.
fn accepted_bytes(written: io::Result<usize>) -> Result<usize, WriteFailure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(_disconnected) => Err(WriteFailure::ClientClosed),
        Ok(count) => Ok(count),
    }
}
