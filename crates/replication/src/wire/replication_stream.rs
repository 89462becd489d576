//! Replication stream: reads CopyBoth frames from a walsender, and sends standby status updates.
//!
//! Invariants: a frame is borrowed from the read buffer and returned once. Reading never waits for
//! a write, and writing never waits for a read. All futures are cancel safe.
//! Enforced by: the buffer, the outbox and the timer hold all state; futures hold none.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay_pgoutput::{Frame, StandbyStatusUpdate};
use forebay_reservoir::PostgresStream;
use postgres_protocol::message::backend;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, Sleep, sleep_until};

use super::channel::{Channel, ReplicationTransport, log_notice, poll_fill, server_error};
use super::error::WireError;
use super::pace::{LONG_COALESCE_WINDOW, LOW_WATER_BYTES, ReadPacer};
use super::read_buffer::{BufferedMessages, RawMessage, ReadBuffer};
use super::status_outbox::StatusOutbox;
use super::{CLOSE_TIMEOUT, TERMINATE};

/// Maximum frame size: 1 GiB for a row, which is Postgres' limit, and 64 KiB for the message around
/// it.
const MAX_FRAME_BYTES: usize = (1 << 30) + (1 << 16);
/// `CopyDone`: tag and length.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];

/// A stream in CopyBoth mode.
#[derive(Debug)]
pub(crate) struct ReplicationStream<S = PostgresStream> {
    stream: S,
    input: ReadBuffer,
    outbox: StatusOutbox,
    address: String,
    pacer: ReadPacer,
    /// Whether `SO_RCVLOWAT` is raised, so that only larger amounts wake the task.
    is_low_water_raised: bool,
    /// Whether the socket supports `SO_RCVLOWAT`; a Unix socket doesn't.
    has_low_water: bool,
    /// Whether the wait for the next read has started.
    is_waiting: bool,
    /// Time of the last read, until its coalesce window was computed.
    read_at: Option<Instant>,
    /// Whether a coalesce window is running.
    is_coalescing: bool,
    timer: Pin<Box<Sleep>>,
}

impl<S: ReplicationTransport> ReplicationStream<S> {
    /// Takes over a channel with the bytes that it has already read.
    pub(super) fn new(channel: Channel<S>) -> Self {
        let Channel { stream, mut input, address, .. } = channel;
        input.set_limit(MAX_FRAME_BYTES);
        ReplicationStream {
            stream,
            input,
            outbox: StatusOutbox::new(),
            address,
            pacer: ReadPacer::new(),
            is_low_water_raised: false,
            has_low_water: true,
            is_waiting: false,
            read_at: None,
            is_coalescing: false,
            timer: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Sets the maximum frame size. Default: [`MAX_FRAME_BYTES`].
    #[cfg_attr(not(test), expect(dead_code, reason = "used by tests only"))]
    pub(crate) fn limit_frames(&mut self, bytes: usize) {
        self.input.set_limit(bytes);
    }

    /// Waits until [`ReplicationStream::split`] has a message. Writes pending status updates
    /// meanwhile.
    ///
    /// # Errors
    /// Fails if the connection is lost, or a frame is too long.
    pub(crate) async fn readable(&mut self) -> Result<(), WireError> {
        while !self.input.has_message()? {
            poll_fn(|cx| self.poll_fill(cx)).await?;
        }
        Ok(())
    }

    /// Returns the received frames, and a sender for status updates meanwhile.
    pub(crate) fn split(&mut self) -> (Frames<'_>, StatusSender<'_, S>) {
        let ReplicationStream { input, pacer, address, .. } = self;
        let frames = Frames { messages: input.messages(), pacer, address };
        (frames, StatusSender { stream: &mut self.stream, outbox: &mut self.outbox })
    }

    /// Sends pending status updates, `CopyDone` and `Terminate`, and waits up to a second for the
    /// server to close the connection. Discards further frames.
    pub(crate) async fn close(self) {
        let ReplicationStream { mut stream, mut outbox, .. } = self;
        let closing = async {
            // Fails on a Unix socket, where it was never raised.
            let _unsupported = stream.set_low_water(1);
            poll_fn(|cx| outbox.poll_send(&mut stream, cx)).await?;
            stream.write_all(&[COPY_DONE, TERMINATE].concat()).await?;
            stream.flush().await?;
            stream.shutdown_and_wait().await;
            std::io::Result::Ok(())
        };
        // A timeout and a lost connection are ignored: the socket is dropped anyway.
        let _timeout_or_lost = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }

    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.input.size()
    }

    #[cfg(test)]
    pub(super) fn is_low_water_raised(&self) -> bool {
        self.is_low_water_raised
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        if let Poll::Ready(Err(error)) = self.outbox.poll_send(&mut self.stream, cx) {
            return Poll::Ready(Err(WireError::Lost(error)));
        }
        if self.poll_coalesce(cx).is_pending() {
            return Poll::Pending;
        }
        loop {
            if let Poll::Ready(read) = poll_fill(&mut self.stream, &mut self.input, cx) {
                self.is_waiting = false;
                self.read_at = Some(Instant::now());
                return Poll::Ready(read.map(drop));
            }
            if !self.is_waiting {
                self.is_waiting = true;
                let delay = self.pacer.backlog_delay().filter(|_| self.has_low_water);
                self.raise_low_water(delay.is_some());
                if let Some(delay) = delay {
                    self.timer.as_mut().reset(Instant::now() + delay);
                }
            }
            if !self.is_low_water_raised || self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // Lowering it wakes the task at once if bytes are there, or else with the next byte.
            self.raise_low_water(false);
        }
    }

    /// Returns pending during a coalesce window.
    fn poll_coalesce(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(read_at) = self.read_at.take()
            && let Some(window) = self.pacer.coalesce_window()
        {
            let until = read_at + window;
            self.is_coalescing = Instant::now() < until;
            if self.is_coalescing {
                self.timer.as_mut().reset(until);
                // In a burst of transactions, each would wake the runtime before the window ends.
                self.raise_low_water(window == LONG_COALESCE_WINDOW && self.has_low_water);
            }
        }
        if self.is_coalescing {
            ready!(self.timer.as_mut().poll(cx));
            self.is_coalescing = false;
            self.raise_low_water(false);
        }
        Poll::Ready(())
    }

    /// Raises `SO_RCVLOWAT`, or resets it to 1.
    fn raise_low_water(&mut self, raised: bool) {
        if self.is_low_water_raised == raised {
            return;
        }
        let bytes = if raised { LOW_WATER_BYTES } else { 1 };
        match self.stream.set_low_water(bytes) {
            Ok(()) => self.is_low_water_raised = raised,
            Err(_) => (self.is_low_water_raised, self.has_low_water) = (false, false),
        }
    }
}

/// Complete frames, in the order of arrival. Reading a frame consumes it.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    messages: BufferedMessages<'a>,
    pacer: &'a mut ReadPacer,
    address: &'a str,
}

impl<'a> Frames<'a> {
    /// Returns the next frame; `None` if no complete one is buffered. After an error, every call
    /// returns it again.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Result<Frame<'a>, WireError>> {
        loop {
            let message = match self.messages.peek() {
                Ok(message) => message?,
                Err(error) => return Some(Err(error)),
            };
            if message.tag == backend::COPY_DATA_TAG {
                return Some(match Frame::decode(message.body) {
                    Ok(frame) => {
                        if let Frame::XLogData { clock, payload, .. } = frame {
                            self.pacer.record(clock, payload);
                        }
                        self.messages.consume(message);
                        Ok(frame)
                    }
                    Err(error) => Err(WireError::protocol(error.to_string())),
                });
            }
            if let Err(error) = handle_other(message, self.address) {
                return Some(Err(error));
            }
            self.messages.consume(message);
        }
    }
}

/// Handles messages other than frames.
#[cold]
fn handle_other(message: RawMessage<'_>, address: &str) -> Result<(), WireError> {
    match message.tag {
        backend::NOTICE_RESPONSE_TAG => {
            log_notice(message.body, address);
            Ok(())
        }
        backend::PARAMETER_STATUS_TAG | backend::NOTIFICATION_RESPONSE_TAG => Ok(()),
        backend::ERROR_RESPONSE_TAG => Err(WireError::Server(server_error(message.body))),
        // A server that shuts down sends CommandComplete.
        backend::COPY_DONE_TAG | backend::COMMAND_COMPLETE_TAG => Err(WireError::Ended),
        tag => Err(WireError::protocol(format!("a message 0x{tag:02x} in a replication stream"))),
    }
}

/// Sends status updates while frames are being read.
#[derive(Debug)]
pub(crate) struct StatusSender<'a, S = PostgresStream> {
    stream: &'a mut S,
    outbox: &'a mut StatusOutbox,
}

impl<S: ReplicationTransport> StatusSender<'_, S> {
    /// Sends a status update without waiting. If the socket is full, the newest status is written
    /// later, by another call or by [`ReplicationStream::readable`].
    ///
    /// # Errors
    /// Fails if the connection is lost.
    pub(crate) async fn send(&mut self, status: StandbyStatusUpdate) -> Result<(), WireError> {
        self.outbox.put(status);
        let sent = poll_fn(|cx| Poll::Ready(self.outbox.poll_send(self.stream, cx))).await;
        match sent {
            Poll::Ready(Err(error)) => Err(WireError::Lost(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }
}
