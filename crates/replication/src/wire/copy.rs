//! The replication stream: frames come, statuses go.
//!
//! Invariants: a frame is borrowed from the buffer that it was read into, and given out once; reading never waits for what we
//! have to say, nor the other way round; a future that is dropped loses nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay_pgoutput::{Frame, StandbyStatusUpdate};
use forebay_reservoir::PostgresStream;
use postgres_protocol::message::backend;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, Sleep, sleep_until};

use super::channel::{Channel, Line, log_notice, poll_fill, server_error};
use super::error::WireError;
use super::input::{Input, Message, Messages};
use super::outbox::Outbox;
use super::pace::{LONG_BREATH, MUCH_BYTES, Pace};
use super::{GOODBYE, TERMINATE};

/// What Postgres can make of a row at most is a gigabyte; the rest is for what stands around it.
const MAX_FRAME_BYTES: usize = (1 << 30) + (1 << 16);
/// `CopyDone`: its tag and its length.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];

/// A replication stream.
#[derive(Debug)]
pub(crate) struct Copy<S = PostgresStream> {
    stream: S,
    input: Input,
    outbox: Outbox,
    address: String,
    pace: Pace,
    /// Whether the server's next words wake us only when there are many of them.
    is_mark_high: bool,
    /// Whether the kernel knows such a mark; not on a Unix socket.
    has_mark: bool,
    /// Whether it is decided for what we wait.
    is_waiting: bool,
    /// When something was read last, until a breath was drawn after it.
    read_at: Option<Instant>,
    is_breathing: bool,
    timer: Pin<Box<Sleep>>,
}

impl<S: Line> Copy<S> {
    /// What was read already belongs to the stream.
    pub(super) fn new(channel: Channel<S>) -> Self {
        let Channel { stream, mut input, address, .. } = channel;
        input.set_limit(MAX_FRAME_BYTES);
        Copy {
            stream,
            input,
            outbox: Outbox::new(),
            address,
            pace: Pace::new(),
            is_mark_high: false,
            has_mark: true,
            is_waiting: false,
            read_at: None,
            is_breathing: false,
            timer: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Refuses frames that are longer than this; a gigabyte and a bit unless told.
    #[cfg_attr(not(test), expect(dead_code, reason = "agreed on, and not asked for yet"))]
    pub(crate) fn limit_frames(&mut self, bytes: usize) {
        self.input.set_limit(bytes);
    }

    /// Waits until there is something for [`Copy::split`]. Meanwhile, it writes what is left of earlier answers.
    ///
    /// # Errors
    /// When the connection is lost, or a frame is too long to be taken.
    pub(crate) async fn filled(&mut self) -> Result<(), WireError> {
        while !self.input.has_message()? {
            poll_fn(|cx| self.poll_more(cx)).await?;
        }
        Ok(())
    }

    /// All whole frames that have come, and the way to answer meanwhile.
    pub(crate) fn split(&mut self) -> (Frames<'_>, Answer<'_, S>) {
        let Copy { input, pace, address, .. } = self;
        let frames = Frames { messages: input.messages(), pace, address };
        (frames, Answer { stream: &mut self.stream, outbox: &mut self.outbox })
    }

    /// Ends the stream and the connection: says so, after the last answer, and waits for the server to let go; a second at
    /// most. What still comes is thrown away.
    pub(crate) async fn close(self) {
        let Copy { mut stream, mut outbox, .. } = self;
        let closing = async {
            // A Unix socket has no mark.
            let _unmarked = stream.set_low_water(1);
            poll_fn(|cx| outbox.poll_send(&mut stream, cx)).await?;
            stream.write_all(&[COPY_DONE, TERMINATE].concat()).await?;
            stream.flush().await?;
            stream.hang_up().await;
            std::io::Result::Ok(())
        };
        // Whoever is gone already needs no goodbye, and for others there is no more time.
        let _late_or_gone = tokio::time::timeout(GOODBYE, closing).await;
    }

    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.input.size()
    }

    #[cfg(test)]
    pub(super) fn is_gathering(&self) -> bool {
        self.is_mark_high
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        if let Poll::Ready(Err(error)) = self.outbox.poll_send(&mut self.stream, cx) {
            return Poll::Ready(Err(WireError::Lost(error)));
        }
        if self.poll_breath(cx).is_pending() {
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
                let patience = self.pace.patience().filter(|_| self.has_mark);
                self.set_mark(patience.is_some());
                if let Some(patience) = patience {
                    self.timer.as_mut().reset(Instant::now() + patience);
                }
            }
            if !self.is_mark_high || self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // Lowering the mark wakes us if anything is there, and by the next byte otherwise.
            self.set_mark(false);
        }
    }

    /// Pending while what comes waits for more.
    fn poll_breath(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(read_at) = self.read_at.take()
            && let Some(breath) = self.pace.breath()
        {
            let until = read_at + breath;
            self.is_breathing = Instant::now() < until;
            if self.is_breathing {
                self.timer.as_mut().reset(until);
                // Where one transaction follows another, each of them would wake the runtime in vain.
                self.set_mark(breath == LONG_BREATH && self.has_mark);
            }
        }
        if self.is_breathing {
            ready!(self.timer.as_mut().poll(cx));
            self.is_breathing = false;
            self.set_mark(false);
        }
        Poll::Ready(())
    }

    fn set_mark(&mut self, high: bool) {
        if self.is_mark_high == high {
            return;
        }
        let bytes = if high { MUCH_BYTES } else { 1 };
        match self.stream.set_low_water(bytes) {
            Ok(()) => self.is_mark_high = high,
            Err(_) => (self.is_mark_high, self.has_mark) = (false, false),
        }
    }
}

/// Whole frames, in the order in which they came. Taking one consumes it.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    messages: Messages<'a>,
    pace: &'a mut Pace,
    address: &'a str,
}

impl<'a> Frames<'a> {
    /// The next frame. `None`: that was all for now; an error stays, and means that there won't be more.
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
                            self.pace.saw(clock, payload);
                        }
                        self.messages.consume(message);
                        Ok(frame)
                    }
                    Err(error) => Err(WireError::protocol(error.to_string())),
                });
            }
            if let Err(error) = aside(message, self.address) {
                return Some(Err(error));
            }
            self.messages.consume(message);
        }
    }
}

/// Deals with what stands between the frames.
#[cold]
fn aside(message: Message<'_>, address: &str) -> Result<(), WireError> {
    match message.tag {
        backend::NOTICE_RESPONSE_TAG => {
            log_notice(message.body, address);
            Ok(())
        }
        backend::PARAMETER_STATUS_TAG | backend::NOTIFICATION_RESPONSE_TAG => Ok(()),
        backend::ERROR_RESPONSE_TAG => Err(WireError::Server(server_error(message.body))),
        // The second is what a server says that shuts down.
        backend::COPY_DONE_TAG | backend::COMMAND_COMPLETE_TAG => Err(WireError::Ended),
        tag => Err(WireError::protocol(format!("a message 0x{tag:02x} in a replication stream"))),
    }
}

/// The way to the server while frames are read.
#[derive(Debug)]
pub(crate) struct Answer<'a, S = PostgresStream> {
    stream: &'a mut S,
    outbox: &'a mut Outbox,
}

impl<S: Line> Answer<'_, S> {
    /// Tells the server how far we are. It doesn't wait: where the server doesn't read, the newest status is written when
    /// it does, by a later call or by [`Copy::filled`].
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) async fn status(&mut self, status: StandbyStatusUpdate) -> Result<(), WireError> {
        self.outbox.put(status);
        let sent = poll_fn(|cx| Poll::Ready(self.outbox.poll_send(self.stream, cx))).await;
        match sent {
            Poll::Ready(Err(error)) => Err(WireError::Lost(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }
}
