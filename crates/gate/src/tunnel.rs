//! Tunnel: copies bytes between a client and the upstream after an upgrade.
//!
//! Invariant: bytes pass unchanged and in order, in both directions, until both sides have ended,
//! one side is lost, or no byte has passed for `idle_timeout`. The end of one side is passed on as
//! a half-close, and the other direction continues.
//! Enforced by: each direction is a [`Flow`], whose end shuts down the other side's writes.
//!
//! Bounds: at most [`READ_BYTES`] per direction are read and not yet written. While they wait, the
//! tunnel doesn't read from their sender. An idle tunnel has no buffer.

use std::future::Future as _;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use forebay_stream::{ConnectionUpgrade, UpgradedIo};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

use super::download::DetachedSocket;

/// Maximum bytes per read. The buffer is on the stack.
const READ_BYTES: usize = 16 * 1024;

/// Maximum reads of one direction per poll, so that the other direction gets its turn.
const READS_PER_POLL: usize = 16;

/// Both sides of an upgraded connection.
#[derive(Debug)]
pub(crate) struct Tunnel {
    upgrade: ConnectionUpgrade,
    /// `None` until the client has its 101.
    client: Option<UpgradedIo>,
    upstream: TcpStream,
    /// Permit of the connection pool.
    _permit: OwnedSemaphorePermit,
    to_upstream: Flow,
    to_client: Flow,
    /// A write to the upstream failed. What the upstream sent before is still passed on.
    upstream_write_failed: bool,
    idle_timeout: Duration,
    idle_timer: Pin<Box<Sleep>>,
    last_progress: Instant,
}

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TunnelEnd {
    /// Both sides ended.
    Closed,
    /// No byte passed for the idle timeout.
    Idle,
    /// The client's connection failed.
    ClientLost,
    /// The upstream's connection failed.
    UpstreamLost,
    /// The gate aborted the tunnel: at the drain deadline, at its exit, or because an operator
    /// ended the stream.
    Aborted,
}

impl TunnelEnd {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            TunnelEnd::Closed => "closed",
            TunnelEnd::Idle => "idle",
            TunnelEnd::ClientLost => "client_lost",
            TunnelEnd::UpstreamLost => "upstream_lost",
            TunnelEnd::Aborted => "aborted",
        }
    }
}

impl Tunnel {
    /// Creates the tunnel of a 101. `upgrade` hands it the client's connection.
    pub(crate) fn new(
        upgrade: ConnectionUpgrade,
        upstream: DetachedSocket,
        idle_timeout: Duration,
    ) -> Tunnel {
        let DetachedSocket { socket, unread, permit } = upstream;
        Tunnel {
            upgrade,
            client: None,
            upstream: socket,
            _permit: permit,
            to_upstream: Flow::default(),
            to_client: Flow { unsent: unread, ..Flow::default() },
            upstream_write_failed: false,
            idle_timeout,
            idle_timer: Box::pin(sleep(idle_timeout)),
            last_progress: Instant::now(),
        }
    }

    /// Returns whether the tunnel got the client's connection.
    pub(crate) fn has_client(&self) -> bool {
        self.client.is_some()
    }

    /// Returns the bytes that were written to the upstream, and to the client.
    pub(crate) fn passed_bytes(&self) -> (u64, u64) {
        (self.to_upstream.passed, self.to_client.passed)
    }

    /// Copies what is available. Resolves when the tunnel has ended.
    ///
    /// If one side is lost, the other side's connection is reset when the tunnel is dropped, so
    /// that it doesn't look complete.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TunnelEnd> {
        if self.client.is_none() {
            self.client = self.upgrade.take();
        }
        let Some(client) = &mut self.client else { return Poll::Ready(TunnelEnd::ClientLost) };
        let before = (self.to_upstream.passed, self.to_client.passed);
        let to_client = self.to_client.poll(&mut self.upstream, client, cx);
        let to_upstream = match self.upstream_write_failed {
            true => Poll::Ready(Err(FlowFailure::Sink)),
            false => self.to_upstream.poll(client, &mut self.upstream, cx),
        };
        // Bytes that the upstream sent before it closed are passed on before the tunnel ends.
        let is_upstream_closed = matches!(to_upstream, Poll::Ready(Err(FlowFailure::Sink)));
        if is_upstream_closed && to_client.is_pending() && self.to_client.has_yielded {
            self.upstream_write_failed = true;
            self.last_progress = Instant::now();
            return Poll::Pending;
        }
        let end = match (to_upstream, to_client) {
            (Poll::Ready(Err(FlowFailure::Sink)), _) if self.to_client.is_ended() => TunnelEnd::Closed,
            (_, Poll::Ready(Err(FlowFailure::Sink))) if self.to_upstream.is_ended() => TunnelEnd::Closed,
            (Poll::Ready(Err(FlowFailure::Sink)), _) | (_, Poll::Ready(Err(FlowFailure::Source))) => {
                client.reset_on_drop();
                TunnelEnd::UpstreamLost
            }
            (Poll::Ready(Err(FlowFailure::Source)), _) | (_, Poll::Ready(Err(FlowFailure::Sink))) => {
                // Fails only if the upstream has disconnected.
                let _ = SockRef::from(&self.upstream).set_linger(Some(Duration::ZERO));
                TunnelEnd::ClientLost
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => TunnelEnd::Closed,
            (Poll::Pending, _) | (_, Poll::Pending) => {
                if self.passed_bytes() != before {
                    self.last_progress = Instant::now();
                }
                return self.poll_idle(cx);
            }
        };
        Poll::Ready(end)
    }

    /// Resolves when no byte has passed for the idle timeout. The timer is only moved when it
    /// fires.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<TunnelEnd> {
        loop {
            ready!(self.idle_timer.as_mut().poll(cx));
            let due = self.last_progress + self.idle_timeout;
            if due <= Instant::now() {
                return Poll::Ready(TunnelEnd::Idle);
            }
            self.idle_timer.as_mut().reset(due);
        }
    }
}

/// One direction of a tunnel.
#[derive(Debug, Default)]
struct Flow {
    /// Bytes that were read and not yet written.
    unsent: Bytes,
    state: FlowState,
    /// Bytes that were written.
    passed: u64,
    /// The last poll ended after [`READS_PER_POLL`] reads, and the task is woken to continue.
    has_yielded: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FlowState {
    #[default]
    Open,
    /// The source has ended. The sink's writes are shut down once nothing is unsent.
    Ending,
    Ended,
}

/// Which side of a flow failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowFailure {
    Source,
    Sink,
}

impl Flow {
    fn is_ended(&self) -> bool {
        self.state == FlowState::Ended
    }

    /// Copies what is available. Resolves once the source has ended and the sink is shut down.
    fn poll(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
        sink: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), FlowFailure>> {
        self.has_yielded = false;
        let mut reads = 0;
        loop {
            while !self.unsent.is_empty() {
                let written = ready!(Pin::new(&mut *sink).poll_write(cx, &self.unsent));
                let count = written.map_err(|_failed| FlowFailure::Sink)?;
                if count == 0 {
                    return Poll::Ready(Err(FlowFailure::Sink));
                }
                self.unsent.advance(count);
                self.passed += count as u64;
            }
            self.unsent = Bytes::new(); // an empty view would keep its allocation alive
            match self.state {
                FlowState::Open if reads == READS_PER_POLL => {
                    self.has_yielded = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                FlowState::Open => match self.poll_read(source, cx) {
                    Poll::Ready(Ok(())) => reads += 1,
                    Poll::Ready(Err(_failed)) => return Poll::Ready(Err(FlowFailure::Source)),
                    Poll::Pending => {
                        // TLS may hold written bytes back until a flush.
                        let flushed = ready!(Pin::new(&mut *sink).poll_flush(cx));
                        flushed.map_err(|_failed| FlowFailure::Sink)?;
                        return Poll::Pending;
                    }
                },
                FlowState::Ending => {
                    let shut_down = ready!(Pin::new(&mut *sink).poll_shutdown(cx));
                    shut_down.map_err(|_failed| FlowFailure::Sink)?;
                    self.state = FlowState::Ended;
                }
                FlowState::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads bytes, or the source's end.
    fn poll_read(
        &mut self,
        source: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(source).poll_read(cx, &mut buffer))?;
        if buffer.filled().is_empty() {
            self.state = FlowState::Ending;
        }
        self.unsent = Bytes::copy_from_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn at_most_one_read_waits_for_the_sink() {
        let (mut source, mut sender) = duplex(4 * READ_BYTES);
        let (mut sink, mut receiver) = duplex(100);
        sender.write_all(&[7; 3 * READ_BYTES]).await.unwrap();
        let (mut flow, mut cx) = (Flow::default(), Context::from_waker(Waker::noop()));
        assert!(flow.poll(&mut source, &mut sink, &mut cx).is_pending());
        assert_eq!((flow.passed, flow.unsent.len()), (100, READ_BYTES - 100));
        assert!(flow.poll(&mut source, &mut sink, &mut cx).is_pending(), "the sink is full");
        assert_eq!((flow.passed, flow.unsent.len()), (100, READ_BYTES - 100));
        let mut received = [0; 100];
        receiver.read_exact(&mut received).await.unwrap();
        assert!(flow.poll(&mut source, &mut sink, &mut cx).is_pending());
        assert_eq!((flow.passed, flow.unsent.len()), (200, READ_BYTES - 200));
    }

    #[tokio::test]
    async fn a_source_that_never_pauses_yields_to_the_other_direction() {
        let (mut source, mut sink) = (tokio::io::repeat(7), tokio::io::sink());
        let (mut flow, mut cx) = (Flow::default(), Context::from_waker(Waker::noop()));
        for turn in 1..=3 {
            assert!(flow.poll(&mut source, &mut sink, &mut cx).is_pending());
            assert!(flow.has_yielded);
            assert_eq!(flow.passed, (turn * READS_PER_POLL * READ_BYTES) as u64);
        }
    }

    #[tokio::test]
    async fn the_end_of_the_source_follows_its_last_byte() {
        let (mut source, mut sender) = duplex(1024);
        let (mut sink, mut receiver) = duplex(10);
        sender.write_all(&[7; 500]).await.unwrap();
        sender.shutdown().await.unwrap();
        let mut flow = Flow { unsent: Bytes::from_static(b"first"), ..Flow::default() };
        let mut received = Vec::new();
        let flowing = poll_fn(|cx| flow.poll(&mut source, &mut sink, cx));
        let (done, read) = tokio::join!(flowing, receiver.read_to_end(&mut received));
        assert_eq!((done, read.unwrap()), (Ok(()), 505));
        assert!(received.starts_with(b"first") && received[5..].iter().all(|&byte| byte == 7));
        assert!(flow.is_ended());
    }

    #[tokio::test]
    async fn the_failed_side_is_known() {
        let (mut source, mut sender) = duplex(10);
        let (mut sink, receiver) = duplex(10);
        drop(receiver);
        sender.write_all(b"lost").await.unwrap();
        let failed = poll_fn(|cx| Flow::default().poll(&mut source, &mut sink, cx)).await;
        assert_eq!(failed, Err(FlowFailure::Sink));
    }
}
