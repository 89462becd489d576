//! A connection while hyper has it: HTTP/1.1 requests and responses, or HTTP/2.
//!
//! Invariant: whatever the client does or leaves undone, the connection ends: each wait for the client has a deadline, and
//! so has each write.
//! Kept by: the meter tells after each poll what is waited for; writes are bounded in `io.rs`, and the requests of an HTTP/2
//! connection, which share its socket, each by its own clock (`exchange.rs`).
//! A live stream ends this phase: the socket is taken out of hyper once nothing of an earlier response is left in it.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use crate::Peer;
use crate::bounds::{Answers, Streamed};
use crate::brief::{self, Ended};
use crate::config::ServeConfig;
use crate::exchange::{self, Late};
use crate::farewell::{Farewell, Leave};
use crate::handover::{H1, Hand, Handover};
use crate::head;
use crate::io::Io;
use crate::lean::Taken;
use crate::meter::{Meter, Phase};
use crate::preface::{First, Speaks, judge, leans_to_http2};
use crate::registry::Registry;
use crate::server::Shared;
use crate::stats::Stats;
use crate::wrapped::serve_wrapped;

/// How long a client that was refused may go on sending before the connection is closed.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// And how much.
const LINGER_BYTES: usize = 256 * 1024;

const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
pub(crate) const SHUTTING_DOWN: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: text/plain\r\n\
      content-length: 29\r\nconnection: close\r\n\r\nThis server is shutting down.";

/// Serves a connection until it ends, or until a stream takes its socket.
pub(crate) async fn serve<S, B>(
    stream: TcpStream,
    peer: Peer,
    service: S,
    shared: Arc<Shared>,
) -> Option<Taken<B>>
where
    S: Answers<B>,
    B: Streamed + Send + 'static,
{
    let head_by = Instant::now() + shared.config.header_read_timeout;
    if let Some(wrap) = shared.wrap.clone() {
        serve_wrapped(wrap.wrap(stream), peer, service, head_by, &shared).await;
        return None;
    }
    let (speaks, first) = meet(&stream, head_by, &shared).await?;
    let mut service = service;
    let (stream, heard, head_by) = match speaks {
        Speaks::Http1 => match brief::serve(stream, first.heard(), peer, &mut service, &shared).await {
            Ended::Over => return None,
            Ended::Closing(stream) => {
                linger(&stream).await;
                return None;
            }
            Ended::Taken(taken) => return Some(taken),
            Ended::ForHyper { stream, heard, since } => {
                let head_by = since.map_or(head_by, |since| since + shared.config.header_read_timeout);
                (stream, heard, head_by)
            }
        },
        Speaks::Http2 | Speaks::Unknown => (stream, Bytes::copy_from_slice(first.heard()), head_by),
    };
    let meter = Arc::new(Meter::default());
    let io = Io::new(stream, heard, Arc::clone(&meter), shared.config.write_timeout);
    let stats = shared.stats.clone();
    let handover = |h1| Handover { service, peer, meter: Arc::clone(&meter), stats, h1 };
    match speaks {
        Speaks::Http2 => {
            let service = handover(None);
            let stream = Arc::clone(io.stream());
            let conn = shared.http2.serve_connection(io, service);
            if serve_http2(Box::new(conn), &meter, &shared).await {
                linger(&stream).await; // else frames that nobody reads any more would reset the last response
            }
            None
        }
        Speaks::Http1 | Speaks::Unknown => {
            let hand = Hand::new();
            let service = handover(Some(H1 { hand: Arc::clone(&hand), stream: Arc::clone(io.stream()) }));
            let conn = shared.http1.serve_connection(io, service);
            serve_http1(Box::new(conn), hand, &meter, head_by, &shared).await
        }
    }
}

/// Waits for the bytes that tell the protocol. Until then a connection is nothing but its socket and a timer.
async fn meet(stream: &TcpStream, head_by: Instant, shared: &Shared) -> Option<(Speaks, First)> {
    let mut first = First::default();
    let mut late = pin!(sleep_until(head_by));
    let mut grace_ended = pin!(shared.grace_ended());
    let says = loop {
        tokio::select! {
            biased;
            ready = stream.readable() => ready.ok()?,
            () = &mut late => {
                shared.stats.counters().header_timeouts.up();
                break TIMED_OUT;
            }
            () = &mut grace_ended => break SHUTTING_DOWN,
        }
        match first.fill(stream) {
            Ok(0) => return None,
            Ok(_) => match judge(first.heard()) {
                Speaks::Unknown => {}
                known => return Some((known, first)),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    };
    let begun = first.heard();
    if !begun.is_empty() && !leans_to_http2(begun) {
        refuse(stream, says).await;
    }
    None
}

/// Tells a client why its incomplete head gets no other answer.
async fn refuse(stream: &TcpStream, says: &[u8]) {
    let _ = stream.try_write(says); // the client may be gone
    linger(stream).await;
}

type Http1<S, B> = http1::Connection<Io, Handover<S, B>>;

async fn serve_http1<S, B>(
    mut conn: Box<Http1<S, B>>,
    hand: Arc<Hand<B>>,
    meter: &Meter,
    head_by: Instant,
    shared: &Shared,
) -> Option<Taken<B>>
where
    S: Answers<B>,
    B: Streamed + Send + 'static,
{
    let (mut farewell, mut waits) = (Farewell::new(shared), Waits::for_first_head());
    let mut deadline = pin!(sleep_until(head_by));
    let mut is_idle = false;
    let end = poll_fn(|cx| {
        farewell.begin(meter, cx);
        if let Poll::Ready(done) = Pin::new(&mut *conn).poll(cx) {
            return Poll::Ready(Http1End::Done(done));
        }
        if !hand.is_empty() && !meter.unflushed.get() {
            return Poll::Ready(Http1End::Taken);
        }
        if let Poll::Ready(phase) = waits.poll(meter, &shared.config, deadline.as_mut(), cx) {
            return Poll::Ready(Http1End::Late(phase));
        }
        match farewell.poll(meter, cx) {
            Poll::Ready(Leave::InHead) => return Poll::Ready(Http1End::ShutDown),
            Poll::Ready(leave @ (Leave::AfterAnswer | Leave::Idle)) => {
                is_idle = leave == Leave::Idle;
                Pin::new(&mut *conn).graceful_shutdown();
                cx.waker().wake_by_ref();
            }
            Poll::Pending => {}
        }
        Poll::Pending
    })
    .await;

    // hyper's state ends here. The hand is emptied first: dropping a response that nobody takes is the service's code.
    let (response, parts) = (hand.take(), conn.into_parts());
    let (discarded, stream) = (parts.read_buf.len(), parts.io.into_stream());
    drop((parts.read_buf, parts.service));
    match end {
        Http1End::Taken => {
            let (head, body) = response?.into_parts();
            // Nobody else holds the socket: only a body that went to hyper would, and this one didn't.
            let stream = Arc::into_inner(stream)?;
            Some(Taken { stream, head: head::encode(&head, &head::date()), body, discarded })
        }
        Http1End::Late(phase) => {
            count_late(phase, shared);
            // Nothing of an earlier response is unwritten then, or the phase were another.
            if phase == Phase::Head {
                refuse(&stream, TIMED_OUT).await;
            }
            None
        }
        Http1End::ShutDown => {
            refuse(&stream, SHUTTING_DOWN).await;
            None
        }
        Http1End::Done(done) => {
            let answered = done.map_or_else(|error| count_error(&error, shared), |()| !is_idle);
            if answered {
                linger(&stream).await;
            }
            None
        }
    }
}

/// How hyper's part of an HTTP/1 connection ended.
pub(crate) enum Http1End {
    Done(hyper::Result<()>),
    /// A live response is in the hand.
    Taken,
    /// The client kept us waiting.
    Late(Phase),
    /// The drain's grace ended in the middle of a head.
    ShutDown,
}

type Http2<I, S, B> = http2::Connection<I, Handover<S, B>, RequestTasks>;

/// Serves until the connection ends; true if that was in order.
pub(crate) async fn serve_http2<I, S, B>(
    mut conn: Box<Http2<I, S, B>>,
    meter: &Meter,
    shared: &Shared,
) -> bool
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: Answers<B>,
    B: Streamed + Send + 'static,
{
    let mut draining = pin!(shared.drain_begun());
    let mut waits = Waits::for_idle();
    let mut deadline = pin!(sleep(Duration::ZERO));
    let done = poll_fn(|cx| {
        if let Poll::Ready(done) = Pin::new(&mut *conn).poll(cx) {
            return Poll::Ready(Some(done));
        }
        meter.driven_by(cx.waker());
        let idle = waits.poll(meter, &shared.config, deadline.as_mut(), cx).is_ready();
        if idle && waits.ending {
            return Poll::Ready(None); // the client doesn't answer to GOAWAY
        }
        if idle || (!waits.ending && draining.as_mut().poll(cx).is_ready()) {
            waits.ending = true;
            deadline.as_mut().reset(Instant::now() + LINGER);
            Pin::new(&mut *conn).graceful_shutdown();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    if let Some(Err(error)) = &done {
        count_error(error, shared);
    }
    done.is_some_and(|done| done.is_ok())
}

/// The deadline of what is waited for now.
pub(crate) struct Waits {
    /// The wait that the deadline is for.
    seen: (Phase, u32),
    /// Of HTTP/2 only idle times are bounded here: its requests have their own clocks.
    only_idle: bool,
    /// The connection has been told to end: its idle time is [`LINGER`].
    ending: bool,
}

impl Waits {
    /// The first head of an HTTP/1 connection has been waited for since it was accepted.
    pub(crate) fn for_first_head() -> Waits {
        Waits { seen: (Phase::Head, 0), only_idle: false, ending: false }
    }

    fn for_idle() -> Waits {
        Waits { seen: (Phase::Busy, 0), only_idle: true, ending: false }
    }

    /// Ready, with what was waited for, when that took too long.
    pub(crate) fn poll(
        &mut self,
        meter: &Meter,
        config: &ServeConfig,
        mut deadline: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Phase> {
        let (phase, turn) = meter.phase();
        let (phase, limit) = match phase {
            Phase::Head if !self.only_idle => (phase, config.header_read_timeout),
            // A wrapped connection may have said nothing yet: the first head is waited for all the same.
            Phase::Idle if !self.only_idle && turn == 0 => (Phase::Head, config.header_read_timeout),
            Phase::Body if !self.only_idle => (phase, config.body_read_timeout),
            Phase::Idle | Phase::Head if self.ending => (Phase::Idle, LINGER),
            Phase::Idle | Phase::Head => (Phase::Idle, config.idle_timeout),
            Phase::Body | Phase::Busy => {
                self.seen = (Phase::Busy, turn);
                return Poll::Pending;
            }
        };
        if self.seen != (phase, turn) {
            self.seen = (phase, turn);
            deadline.as_mut().reset(Instant::now() + limit);
        }
        deadline.poll(cx).map(|()| phase)
    }
}

pub(crate) fn count_late(phase: Phase, shared: &Shared) {
    match phase {
        Phase::Head => shared.stats.counters().header_timeouts.up(),
        Phase::Body => shared.stats.counters().body_timeouts.up(),
        Phase::Idle | Phase::Busy => {}
    }
}

/// True if the client was answered with why.
pub(crate) fn count_error(error: &hyper::Error, shared: &Shared) -> bool {
    tracing::debug!(%error, "a connection failed");
    let counters = shared.stats.counters();
    if error.is_parse_too_large() {
        counters.oversized_heads.up();
    } else if error.is_parse() {
        counters.bad_requests.up();
    } else if timed_out(error) {
        counters.slow_clients.up();
    }
    error.is_parse()
}

fn timed_out(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        source = error.source();
    }
    false
}

/// Reads and throws away what the client still sends, for a short while: closing with bytes unread resets the connection,
/// and the client could lose the answer.
async fn linger(stream: &TcpStream) {
    let discard = async {
        let (mut heard, mut total) = ([0; 1024], 0);
        while total < LINGER_BYTES && stream.readable().await.is_ok() {
            match stream.try_read(&mut heard) {
                Ok(0) => return,
                Ok(count) => total += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = SockRef::from(stream).shutdown(Shutdown::Write); // fails only if the client is gone
    let _ = timeout(LINGER, discard).await;
}

/// Where hyper runs the requests of HTTP/2 connections.
#[derive(Debug, Clone)]
pub(crate) struct RequestTasks {
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: Arc<ServeConfig>,
    pub(crate) stats: Stats,
}

impl<F> Executor<F> for RequestTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, request: F) {
        let entry =
            self.registry.enter(usize::MAX).expect("there is no limit here: each connection has its own");
        let place = entry.place();
        let (config, stats) = (Arc::clone(&self.config), self.stats.clone());
        let task = tokio::spawn(async move {
            let _entry = entry;
            match exchange::run(request, &config).await {
                Some(Late::Taking) => stats.counters().slow_clients.up(),
                Some(Late::Sending) => stats.counters().body_timeouts.up(),
                None => {}
            }
        });
        self.registry.keep(place, task.abort_handle());
    }
}
