//! Proxied connection: two sockets, two lanes, and the forwarding of bytes.
//!
//! Invariant: no function here waits, so all can run under the proxy's lock. An operation that
//! would block registers the task's waker.

use std::io::{self, Read};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::CloseKind;
use super::lane::{DirectionFaults, Lane, LaneAction};

const READ_BYTES: usize = 16 * 1024;
/// Maximum number of reads that empty a socket before it is closed.
const MAX_DRAINED_READS: usize = 256;

/// Connection through the proxy.
#[derive(Debug)]
pub(super) struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    lanes: [Lane; 2],
    timers: [Option<Pin<Box<Sleep>>>; 2],
    /// Waker of the connection's task.
    waker: Option<Waker>,
}

/// Result of [`ProxiedConnection::forward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardResult {
    /// Nothing can be forwarded now; the task will be woken.
    Pending,
    /// The last byte before a truncation has been forwarded.
    Truncated,
    /// One side was reset.
    Broken,
    /// Both sides have ended their streams.
    Finished,
}

impl ProxiedConnection {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> ProxiedConnection {
        // Disables Nagle's algorithm: tests check times and byte counts.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        ProxiedConnection { client, server, lanes: Default::default(), timers: [None, None], waker: None }
    }

    pub(super) fn half_close(&mut self, lane: usize) {
        if !self.lanes[lane].is_closed() {
            self.lanes[lane].close();
            shutdown_write([&self.server, &self.client][lane]);
        }
    }

    /// Closes both sockets and wakes the task.
    pub(super) fn close(self, kind: CloseKind) {
        for stream in [&self.client, &self.server] {
            close(&SockRef::from(stream), kind);
        }
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }

    pub(super) fn wake(&self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }

    /// Forwards all bytes that the faults allow, in both directions.
    pub(super) fn forward(
        &mut self,
        faults: &mut [DirectionFaults; 2],
        forwarded_bytes: &mut [u64; 2],
        cx: &mut Context<'_>,
    ) -> ForwardResult {
        self.waker = Some(cx.waker().clone());
        let sockets = [(&self.client, &self.server), (&self.server, &self.client)];
        for (lane, (from, to)) in sockets.into_iter().enumerate() {
            let mut forwarder = LaneForwarder {
                lane: &mut self.lanes[lane],
                faults: &mut faults[lane],
                timer: &mut self.timers[lane],
                forwarded_bytes: &mut forwarded_bytes[lane],
            };
            match forwarder.run(from, to, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => return ForwardResult::Truncated,
                Poll::Ready(Err(_)) => return ForwardResult::Broken,
            }
        }
        if self.lanes.iter().all(Lane::is_finished) {
            ForwardResult::Finished
        } else {
            ForwardResult::Pending
        }
    }
}

/// Closes a socket. The caller drops it afterwards.
///
/// For FIN, unread bytes are discarded first: dropping a socket with unread bytes sends RST.
pub(super) fn close(socket: &SockRef<'_>, kind: CloseKind) {
    match kind {
        CloseKind::Rst => {
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
        CloseKind::Fin => {
            let _ = socket.shutdown(Shutdown::Write);
            let mut socket = &**socket;
            for _ in 0..MAX_DRAINED_READS {
                if !matches!(socket.read(&mut [0; READ_BYTES]), Ok(1..)) {
                    return;
                }
            }
        }
    }
}

fn shutdown_write(stream: &TcpStream) {
    // Fails if the peer has reset the connection; the next read reports it.
    let _ = SockRef::from(stream).shutdown(Shutdown::Write);
}

/// Forwards the bytes of one lane.
struct LaneForwarder<'a> {
    lane: &'a mut Lane,
    faults: &'a mut DirectionFaults,
    timer: &'a mut Option<Pin<Box<Sleep>>>,
    forwarded_bytes: &'a mut u64,
}

impl LaneForwarder<'_> {
    /// Returns ready if a truncation is due, or if a socket failed.
    fn run(&mut self, from: &TcpStream, to: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let read = self.read(from, cx)?;
            let wrote = self.write(to, cx)?;
            if self.faults.truncate_after == Some(0) {
                return Poll::Ready(Ok(()));
            }
            if read.is_pending() && wrote.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Returns pending if there is nothing to read, or the lane takes no input.
    fn read(&mut self, from: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; READ_BYTES];
        while self.lane.takes_input(self.faults) {
            std::task::ready!(from.poll_read_ready(cx))?;
            match from.try_read(&mut buffer) {
                Ok(0) => self.lane.record_end(Instant::now()),
                Ok(count) => self.lane.push(&buffer[..count], Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            }
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Returns pending if there is nothing to write, or nothing may be forwarded yet.
    fn write(&mut self, to: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let now = Instant::now();
            match self.lane.next(self.faults, now) {
                LaneAction::Nothing => return Poll::Pending,
                LaneAction::Close => {
                    self.lane.close();
                    shutdown_write(to);
                    return Poll::Ready(Ok(()));
                }
                LaneAction::Wait(until) => {
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                    timer.as_mut().reset(until);
                    std::task::ready!(timer.as_mut().poll(cx));
                }
                LaneAction::Write(bytes) => {
                    std::task::ready!(to.poll_write_ready(cx))?;
                    match to.try_write(bytes) {
                        Ok(count) => {
                            *self.forwarded_bytes += u64::try_from(count).expect("a usize fits in a u64");
                            self.lane.record_written(count, self.faults, now);
                            return Poll::Ready(Ok(()));
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
        }
    }
}
