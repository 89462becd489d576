//! One live stream, once it has left hyper: a socket, a body and little else.
//!
//! Invariant: the client gets the head, whole chunks in order, and the last chunk only if the body came to its own end.
//! The body is dropped as soon as it has ended or the client has left, whatever else is still to be done.
//! Kept by: one state, and one place that ends it. A panic in the body drops the stream, and with it the socket, without
//! the last chunk. What is written while the task sleeps is `outlet.rs`'s.
//! Bounds: 64 KiB are taken from the body beyond what the socket takes, and a chunk more; a client that takes nothing for
//! `write_timeout` is closed, as is one that sends more than `max_discarded_bytes`.
//! Memory: no buffer and no timer while nothing is blocked. `connection.rs` has a test of the size.

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

use crate::bounds::Streamed;
use crate::chunk::Batch;
use crate::config::ServeConfig;
use crate::outbox::{Lost, Outbox, WRITES};
use crate::outlet::{Desk, Outlet};
use crate::stall::Stall;
use crate::stats::{Counters, Stats};

/// How long a client that was sent everything may take to close its side.
const LINGER: Duration = Duration::from_secs(1);

pin_project! {
    /// A stream's whole future.
    pub(crate) struct Lean<B> {
        #[pin]
        body: Option<B>,
        socket: Socket,
        outlet: Arc<Outlet>,
    }
}

/// What was taken from hyper.
pub(crate) struct Taken<B> {
    pub(crate) stream: TcpStream,
    pub(crate) head: Bytes,
    pub(crate) body: B,
    /// Bytes that the client sent after its request.
    pub(crate) discarded: usize,
}

/// What only the task needs of its socket.
struct Socket {
    /// Runs while the client, which was sent everything, hasn't closed its side.
    lingering: Stall,
    discarded: usize,
    state: State,
    config: Arc<ServeConfig>,
    stats: Stats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The head is in the outbox, to be written with the first chunks.
    Starting,
    Streaming,
    /// The body is gone. What is unsent is written, then this happens.
    Ending(End),
    /// Everything is written; the client closes next, or the time is up.
    Lingering,
    Ended,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The body came to its end.
    Complete,
    /// The body ended with an error.
    Broken,
    /// The client closed or reset the connection.
    Left,
    /// The client took nothing for too long.
    Slow,
    /// The client sent too much.
    Chatty,
    /// Aborted at the end of a drain, or a panic in the body.
    Cut,
}

impl<B> Lean<B> {
    pub(crate) fn new(taken: Taken<B>, config: Arc<ServeConfig>, stats: Stats) -> Lean<B> {
        let Taken { stream, head, body, discarded } = taken;
        stats.counters().lean_total.up();
        stats.counters().lean_streams.up();
        let (lingering, state) = (Stall::default(), State::Starting);
        let socket = Socket { lingering, discarded, state, config, stats };
        Lean { body: Some(body), socket, outlet: Arc::new(Outlet::new(stream, Outbox::with(head))) }
    }
}

impl<B: Streamed> Future for Lean<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let mut desk = this.outlet.lock();
        let end = ready!(run(this.body.as_mut(), this.socket, this.outlet, &mut desk, cx));
        this.body.set(None);
        desk.recall();
        this.socket.end(end);
        Poll::Ready(())
    }
}

fn run<B: Streamed>(
    mut body: Pin<&mut Option<B>>,
    socket: &mut Socket,
    outlet: &Arc<Outlet>,
    desk: &mut Desk,
    cx: &mut Context<'_>,
) -> Poll<End> {
    if let Some(lost) = desk.lost {
        return Poll::Ready(lost.into());
    }
    let stream = &outlet.stream;
    for _ in 0..WRITES {
        if let Poll::Ready(end) = socket.poll_client(stream, cx) {
            return Poll::Ready(end);
        }
        match socket.state {
            State::Starting | State::Streaming => {
                if socket.state == State::Streaming
                    && let Err(lost) = ready!(desk.outbox.poll(stream, socket.config.write_timeout, cx))
                {
                    return Poll::Ready(lost.into());
                }
                let mut batch = Batch::of_this_thread();
                if socket.state == State::Starting {
                    desk.outbox.take().iter().for_each(|head| batch.push_raw(head));
                    socket.state = State::Streaming;
                }
                let polled = outlet.poll_body(desk, || gather(body.as_mut(), &mut batch, cx));
                if let Poll::Ready(Some(end)) = polled {
                    socket.state = State::Ending(end);
                    body.set(None);
                    desk.recall();
                }
                if let Err(lost) = desk.outbox.write(stream, &mut batch) {
                    // What a client that left didn't get is nobody else's.
                    return Poll::Ready(lost.into());
                }
                batch.keep();
                if polled.is_pending() && desk.outbox.is_empty() {
                    return Poll::Pending;
                }
            }
            State::Ending(end) => {
                if let Err(lost) = ready!(desk.outbox.poll(stream, socket.config.write_timeout, cx)) {
                    return Poll::Ready(lost.into());
                }
                if end != End::Complete {
                    return Poll::Ready(end);
                }
                socket.say_goodbye(stream);
            }
            State::Lingering => {
                ready!(socket.lingering.poll(cx, LINGER));
                return Poll::Ready(End::Complete);
            }
            State::Ended => unreachable!("a stream is not polled after its end"),
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Takes what the body has into the batch; pending if it has no more for now, and `None` if it may have.
fn gather<B: Streamed>(
    mut body: Pin<&mut Option<B>>,
    batch: &mut Batch,
    cx: &mut Context<'_>,
) -> Poll<Option<End>> {
    while let Some(streaming) = body.as_mut().as_pin_mut()
        && !batch.is_full()
    {
        match ready!(streaming.poll_frame(cx)) {
            Some(Ok(frame)) => {
                // Trailers were not announced, so there is no place for them.
                frame.into_data().into_iter().for_each(|data| batch.push_chunk(&data));
            }
            Some(Err(error)) => {
                tracing::debug!(error = %error.into(), "the body of a stream failed");
                return Poll::Ready(Some(End::Broken));
            }
            None => {
                batch.push_last();
                return Poll::Ready(Some(End::Complete));
            }
        }
    }
    Poll::Ready(None)
}

impl Socket {
    /// Watches for the client's end, and throws away what it says.
    fn poll_client(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<End> {
        while let Poll::Ready(ready) = stream.poll_read_ready(cx) {
            if let Some(end) = ready.map_or(Some(self.left()), |()| self.hear(stream)) {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    }

    #[cold]
    fn hear(&mut self, stream: &TcpStream) -> Option<End> {
        let mut heard = [0; 1024];
        match stream.try_read(&mut heard) {
            Ok(0) => Some(self.left()),
            Ok(count) => {
                self.discarded += count;
                (self.discarded > self.config.max_discarded_bytes).then_some(End::Chatty)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_reset) => Some(self.left()),
        }
    }

    /// A client that closes after the last chunk did not leave early.
    fn left(&self) -> End {
        if self.state == State::Lingering { End::Complete } else { End::Left }
    }

    /// Closing at once could reset the connection, and the client's system then throws away what it has not read yet; so
    /// the client closes first, if it does so soon.
    fn say_goodbye(&mut self, stream: &TcpStream) {
        // An error says that the client is gone, which the next look finds out.
        let _ = SockRef::from(stream).shutdown(Shutdown::Write);
        self.state = State::Lingering;
    }

    /// The one place where a stream ends.
    fn end(&mut self, end: End) {
        tracing::trace!(?end, "a lean stream ended");
        self.state = State::Ended;
        let counters = self.stats.counters();
        counters.lean_streams.down();
        end.count(counters);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        match self.state {
            State::Starting | State::Streaming | State::Ending(_) => self.end(End::Cut),
            State::Lingering => self.end(End::Complete),
            State::Ended => {}
        }
    }
}

impl From<Lost> for End {
    fn from(lost: Lost) -> End {
        match lost {
            Lost::Left => End::Left,
            Lost::Slow => End::Slow,
        }
    }
}

impl End {
    fn count(self, counters: &Counters) {
        match self {
            End::Complete => counters.lean_complete.up(),
            End::Broken => counters.lean_broken.up(),
            End::Left => counters.lean_left.up(),
            End::Slow => {
                counters.lean_slow.up();
                counters.slow_clients.up();
            }
            End::Chatty => counters.lean_chatty.up(),
            End::Cut => counters.lean_cut.up(),
        }
    }
}
