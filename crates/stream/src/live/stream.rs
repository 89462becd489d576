//! Live stream: a task that owns a socket and the response body, and little else.
//!
//! Invariant: the client gets the head, whole chunks in order, and the last chunk only if the body
//! ended normally. The body is dropped as soon as it has ended or the client has disconnected.
//! Enforced by: one state, and one function that ends it. A panic in the body drops the stream and
//! its socket without the last chunk. Writes while the task sleeps: see `direct_writes.rs`.
//!
//! Bounds: at most 64 KiB and one chunk are taken from the body beyond what the socket accepts. A
//! client that accepts no bytes for `write_timeout`, or sends more than `max_discarded_bytes`, is
//! closed.
//! Memory: no buffer and no timer unless a write is blocked; `connection_task.rs` tests the size.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use pin_project_lite::pin_project;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::config::HttpServerConfig;
use crate::h1::socket_writer::{SocketWriter, WRITES_PER_POLL, WriteFailure};
use crate::h1::write_batch::WriteBatch;
use crate::live::direct_writes::{DirectWrites, SocketState, StreamSocket, WriterState};
use crate::service::ResponseBody;
use crate::stall_timer::StallTimer;
use crate::stats::{ServerCounters, ServerStats};

/// Time for the client to close its side after the last chunk.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

pin_project! {
    /// Future of a live stream.
    pub(crate) struct LiveStream<B> {
        #[pin]
        body: Option<B>,
        lifecycle: StreamLifecycle,
        socket: StreamSocket,
    }
}

/// Parts of a live stream, taken from the fast path or from hyper.
pub(crate) struct LiveStreamParts<B> {
    pub(crate) stream: TcpStream,
    pub(crate) head: Bytes,
    pub(crate) body: B,
    /// Bytes that the client sent after its request.
    pub(crate) discarded: usize,
    /// Permission to write that the service has inserted into the response's extensions.
    pub(crate) writes: Option<DirectWrites>,
}

/// State of a stream apart from its body and socket.
struct StreamLifecycle {
    /// Runs while the last chunk is sent and the client hasn't closed its side.
    lingering: StallTimer,
    discarded: usize,
    state: State,
    config: Arc<HttpServerConfig>,
    stats: ServerStats,
}

/// State of a live stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The head is queued, to be written with the first chunks.
    Starting,
    Streaming,
    /// The body is dropped. Unsent bytes are written, then the stream ends in this way.
    Ending(StreamEnd),
    /// Everything is written; waits until the client closes or `LINGER_TIMEOUT` has passed.
    Lingering,
    Ended,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The body ended normally.
    Completed,
    /// The body ended with an error.
    BodyFailed,
    /// The client closed or reset the connection.
    ClientClosed,
    /// The client accepted no bytes for `write_timeout`.
    WriteTimeout,
    /// The client sent more than `max_discarded_bytes`.
    ExcessInput,
    /// Aborted at the end of a drain, or by a panic in the body.
    Aborted,
}

impl<B> LiveStream<B> {
    pub(crate) fn new(
        parts: LiveStreamParts<B>,
        config: Arc<HttpServerConfig>,
        stats: ServerStats,
    ) -> LiveStream<B> {
        let LiveStreamParts { stream, head, body, discarded, writes } = parts;
        stats.counters().live_started.increment();
        stats.counters().live_streams.increment();
        let (lingering, state) = (StallTimer::default(), State::Starting);
        let lifecycle = StreamLifecycle { lingering, discarded, state, config, stats };
        LiveStream {
            body: Some(body),
            lifecycle,
            socket: StreamSocket::new(writes.unwrap_or_default(), stream, SocketWriter::with_unsent(head)),
        }
    }
}

impl<B: ResponseBody> Future for LiveStream<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let mut writer = this.socket.lock();
        let end = ready!(poll_stream(this.body.as_mut(), this.lifecycle, this.socket, &mut writer, cx));
        this.body.set(None);
        this.socket.end_direct_writes();
        this.lifecycle.end(end);
        Poll::Ready(())
    }
}

fn poll_stream<B: ResponseBody>(
    mut body: Pin<&mut Option<B>>,
    lifecycle: &mut StreamLifecycle,
    socket: &StreamSocket,
    writer: &mut WriterState,
    cx: &mut Context<'_>,
) -> Poll<StreamEnd> {
    let WriterState { socket: SocketState::Open(stream), output, failure: None } = writer else {
        let failure = writer.failure.unwrap_or(WriteFailure::ClientClosed);
        return Poll::Ready(failure.into());
    };
    for _ in 0..WRITES_PER_POLL {
        if let Poll::Ready(end) = lifecycle.poll_client(stream, cx) {
            return Poll::Ready(end);
        }
        match lifecycle.state {
            State::Starting | State::Streaming => {
                if lifecycle.state == State::Streaming
                    && let Err(failure) =
                        ready!(output.poll_flush(stream, lifecycle.config.write_timeout, cx))
                {
                    return Poll::Ready(failure.into());
                }
                let mut batch = WriteBatch::take_spare();
                if lifecycle.state == State::Starting {
                    output.take_unsent().iter().for_each(|head| batch.push_raw(head));
                    lifecycle.state = State::Streaming;
                }
                let polled = fill_batch(body.as_mut(), &mut batch, cx);
                if let Poll::Ready(Some(end)) = polled {
                    lifecycle.state = State::Ending(end);
                    body.set(None);
                    socket.end_direct_writes();
                }
                if let Err(failure) = output.write(stream, &mut batch) {
                    // The batch isn't recycled, since it holds unsent bytes.
                    return Poll::Ready(failure.into());
                }
                batch.recycle();
                if polled.is_pending() && output.is_empty() {
                    return Poll::Pending;
                }
            }
            State::Ending(end) => {
                if let Err(failure) = ready!(output.poll_flush(stream, lifecycle.config.write_timeout, cx)) {
                    return Poll::Ready(failure.into());
                }
                if end != StreamEnd::Completed {
                    return Poll::Ready(end);
                }
                lifecycle.shut_down_writes(stream);
            }
            State::Lingering => {
                ready!(lifecycle.lingering.poll(cx, LINGER_TIMEOUT));
                return Poll::Ready(StreamEnd::Completed);
            }
            State::Ended => unreachable!("a stream is not polled after its end"),
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Moves available data into the batch; pending if the body has no more, `None` if it may have.
fn fill_batch<B: ResponseBody>(
    mut body: Pin<&mut Option<B>>,
    batch: &mut WriteBatch,
    cx: &mut Context<'_>,
) -> Poll<Option<StreamEnd>> {
    while let Some(streaming) = body.as_mut().as_pin_mut()
        && !batch.is_full()
    {
        match ready!(streaming.poll_frame(cx)) {
            Some(Ok(frame)) => {
                // Trailers are dropped: the head didn't announce them.
                frame.into_data().into_iter().for_each(|data| batch.push_chunk(&data));
            }
            Some(Err(error)) => {
                tracing::debug!(error = %error.into(), "stream body failed");
                return Poll::Ready(Some(StreamEnd::BodyFailed));
            }
            None => {
                batch.push_last();
                return Poll::Ready(Some(StreamEnd::Completed));
            }
        }
    }
    Poll::Ready(None)
}

impl StreamLifecycle {
    /// Resolves when the client has closed or sent too much. Input is discarded.
    fn poll_client(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<StreamEnd> {
        while let Poll::Ready(ready) = stream.poll_read_ready(cx) {
            if let Some(end) = ready.map_or(Some(self.client_closed()), |()| self.discard_input(stream)) {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    }

    #[cold]
    fn discard_input(&mut self, stream: &TcpStream) -> Option<StreamEnd> {
        let mut discarded = [0; 1024];
        match stream.try_read(&mut discarded) {
            Ok(0) => Some(self.client_closed()),
            Ok(count) => {
                self.discarded += count;
                (self.discarded > self.config.max_discarded_bytes).then_some(StreamEnd::ExcessInput)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_reset) => Some(self.client_closed()),
        }
    }

    /// Returns the end for a disconnect, which is normal after the last chunk.
    fn client_closed(&self) -> StreamEnd {
        if self.state == State::Lingering { StreamEnd::Completed } else { StreamEnd::ClientClosed }
    }

    /// Shuts down the write side and lets the client close first.
    ///
    /// Closing at once could reset the connection, and the client would lose unread data.
    fn shut_down_writes(&mut self, stream: &TcpStream) {
        // Fails only if the client has disconnected, which the next read notices.
        let _ = SockRef::from(stream).shutdown(Shutdown::Write);
        self.state = State::Lingering;
    }

    /// Ends the stream and counts the reason; called exactly once.
    fn end(&mut self, end: StreamEnd) {
        tracing::trace!(?end, "live stream ended");
        self.state = State::Ended;
        let counters = self.stats.counters();
        counters.live_streams.decrement();
        end.count(counters);
    }
}

impl Drop for StreamLifecycle {
    fn drop(&mut self) {
        match self.state {
            State::Starting | State::Streaming | State::Ending(_) => self.end(StreamEnd::Aborted),
            State::Lingering => self.end(StreamEnd::Completed),
            State::Ended => {}
        }
    }
}

impl From<WriteFailure> for StreamEnd {
    fn from(failure: WriteFailure) -> StreamEnd {
        match failure {
            WriteFailure::ClientClosed => StreamEnd::ClientClosed,
            WriteFailure::TimedOut => StreamEnd::WriteTimeout,
        }
    }
}

impl StreamEnd {
    fn count(self, counters: &ServerCounters) {
        match self {
            StreamEnd::Completed => counters.live_completed.increment(),
            StreamEnd::BodyFailed => counters.live_failed.increment(),
            StreamEnd::ClientClosed => counters.live_client_closed.increment(),
            StreamEnd::WriteTimeout => {
                counters.live_write_timeouts.increment();
                counters.slow_clients.increment();
            }
            StreamEnd::ExcessInput => counters.live_excess_input.increment(),
            StreamEnd::Aborted => counters.live_aborted.increment(),
        }
    }
}
