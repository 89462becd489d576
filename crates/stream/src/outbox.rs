//! What is on its way to a client whose socket we write to ourselves.
//!
//! Invariant: bytes leave in the order in which they came; a client that takes nothing for its time is [`Lost::Slow`].
//! Memory: none while nothing is unsent.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::chunk::{Batch, SLICES, advance};
use crate::stall::Stall;

/// Writes in one turn, before others in the runtime get theirs.
pub(crate) const WRITES: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// What the socket didn't take.
    unsent: VecDeque<Bytes>,
    stall: Stall,
}

/// Why nothing more can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The client closed or reset the connection.
    Left,
    /// The client took nothing for too long.
    Slow,
}

impl Outbox {
    /// One with something to be written.
    pub(crate) fn with(unsent: Bytes) -> Outbox {
        Outbox { unsent: VecDeque::from([unsent]), stall: Stall::default() }
    }

    /// What is unsent, to be written in another way.
    pub(crate) fn take(&mut self) -> VecDeque<Bytes> {
        std::mem::take(&mut self.unsent)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Writes a batch, of which nothing is left, to a socket that has nothing unsent before it.
    pub(crate) fn write(&mut self, stream: &TcpStream, batch: &mut Batch) -> Result<(), Lost> {
        debug_assert!(self.is_empty(), "what is unsent comes first");
        if batch.len() == 0 {
            return Ok(());
        }
        let written = match batch.as_slice() {
            // Without asking tokio, whose memory of this socket is in no cache: a full one says so itself.
            Some(text) => SockRef::from(stream).send(text),
            None => {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let used = batch.fill(&mut slices);
                stream.try_write_vectored(&slices[..used])
            }
        };
        self.unsent = batch.take_unsent(taken(written)?);
        Ok(())
    }

    /// Writes what is unsent; pending while the socket takes no more.
    pub(crate) fn poll(
        &mut self,
        stream: &TcpStream,
        write_timeout: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Lost>> {
        while !self.unsent.is_empty() {
            match stream.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_gone)) => return Poll::Ready(Err(Lost::Left)),
                Poll::Pending => {
                    ready!(self.stall.poll(cx, write_timeout));
                    return Poll::Ready(Err(Lost::Slow));
                }
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = self.unsent.len().min(SLICES);
            slices.iter_mut().zip(&self.unsent).for_each(|(slice, bytes)| *slice = IoSlice::new(bytes));
            match taken(stream.try_write_vectored(&slices[..used])) {
                Ok(0) => {}
                Ok(count) => {
                    advance(&mut self.unsent, count);
                    self.stall.progress();
                }
                Err(lost) => return Poll::Ready(Err(lost)),
            }
        }
        self.unsent = VecDeque::new(); // with its memory
        Poll::Ready(Ok(()))
    }
}

/// How much a write took: nothing if the socket is full. Any error means that the client is gone.
fn taken(written: io::Result<usize>) -> Result<usize, Lost> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(_gone) => Err(Lost::Left),
        Ok(count) => Ok(count),
    }
}
