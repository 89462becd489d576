//! Accepting, refusing, draining.
//!
//! Invariant: at most `max_connections` are open, and after the drain none is.
//! Kept by: each task holds an entry of the registry; those left at the deadline are aborted.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tower_service::Service;

use crate::Peer;
use crate::backlog::{accept_rest, is_of_one_connection};
use crate::bounds::{Answers, Streamed};
use crate::config::ServeConfig;
use crate::connection::Connection;
use crate::error::BoxError;
use crate::incoming::Incoming;
use crate::ordinary::RequestTasks;
use crate::registry::Registry;
use crate::stats::Stats;
use crate::wrap::Wrap;

/// The least that hyper's buffers may be bounded to, and enough to write with.
const MIN_BUFFER: usize = 64 * 1024;
/// hyper's own limit, for which it needs no allocation.
const HEADERS_ON_STACK: usize = 100;
/// Without a descriptor for the next connection, how long until one may be free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For aborted tasks to be dropped by their runtime.
const ABORTING: Duration = Duration::from_secs(1);

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\
                          connection: close\r\n\r\n";

/// Serves HTTP/1.1, and HTTP/2 by prior knowledge, on one listener.
#[derive(Debug)]
pub struct Server<S> {
    listener: TcpListener,
    service: S,
    shared: Arc<Shared>,
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Connections that were open when the shutdown began, or in the listener's backlog.
    pub open: usize,
    /// Those of them that were cut because they were still open at the deadline.
    pub cut: usize,
    /// From the beginning of the shutdown to its end.
    pub took: Duration,
}

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<ServeConfig>,
    pub(crate) stats: Stats,
    draining: watch::Sender<bool>,
    pub(crate) http1: http1::Builder,
    pub(crate) http2: http2::Builder<RequestTasks>,
    pub(crate) connections: Arc<Registry>,
    /// Those of HTTP/2 run in tasks of their own.
    pub(crate) requests: Arc<Registry>,
    pub(crate) wrap: Option<Arc<dyn Wrap>>,
}

impl<S, B> Server<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    /// A server of what `listener` accepts. Every request goes to a clone of `service`, with the peer's address as
    /// [`Peer`] in its extensions.
    pub fn new(listener: TcpListener, service: S, config: ServeConfig) -> Server<S> {
        Server { listener, service, shared: Arc::new(Shared::new(config)) }
    }

    /// Wraps every connection before anything is read from it.
    pub fn wrapped(mut self, wrap: Arc<dyn Wrap>) -> Server<S> {
        let shared = Arc::get_mut(&mut self.shared).expect("a server that isn't running shares nothing");
        shared.wrap = Some(wrap);
        self
    }

    /// A handle on the counters, which outlives the server.
    pub fn stats(&self) -> Stats {
        self.shared.stats.clone()
    }

    /// Serves until `shutdown` resolves, then drains: the listener accepts what is in its backlog and closes, connections
    /// without a request close after `drain_grace`, requests and streams may go on for `drain_timeout`, and what is left is cut.
    ///
    /// Its connections are tasks of the runtime that polls this; dropped instead of drained, it leaves them running.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Server { listener, service, shared } = self;
        let (mut shutdown, mut outage) = (pin!(shutdown), Outage::default());
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        if let Some(failures) = outage.end() {
                            tracing::info!(failures, "connections are accepted again");
                        }
                        start(stream, Peer(peer), &service, &shared);
                    }
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        shared.stats.counters().accept_errors.up();
                        if outage.begins() {
                            tracing::warn!(%error, "no connection can be accepted");
                        }
                        tokio::select! {
                            biased;
                            () = &mut shutdown => break,
                            () = sleep(ACCEPT_PAUSE) => {}
                        }
                    }
                },
            }
        }
        let (began, mut open) = shared.begin_drain();
        accept_rest(listener, |stream, peer| {
            open += 1;
            start(stream, Peer(peer), &service, &shared);
        })
        .await;
        drop(service);
        shared.drain(began, open).await
    }
}

/// The times in a row that accepting failed. Only the first is told, and their number at the end.
#[derive(Debug, Default)]
struct Outage {
    failures: u64,
}

impl Outage {
    /// One more; true if it is the first.
    fn begins(&mut self) -> bool {
        self.failures += 1;
        self.failures == 1
    }

    /// How many there were, if there were any.
    fn end(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.failures)).filter(|&failures| failures > 0)
    }
}

fn start<S, B>(stream: TcpStream, peer: Peer, service: &S, shared: &Arc<Shared>)
where
    S: Answers<B>,
    B: Streamed + Send + 'static,
{
    let Some(entry) = shared.connections.enter(shared.config.max_connections) else {
        shared.stats.counters().refused.up();
        // Inside of what it is wrapped in nobody would understand us, and a handshake costs more than a refusal should.
        if shared.wrap.is_none() {
            refuse(&stream);
        }
        return;
    };
    if let Err(error) = prepare(&stream, &shared.config) {
        tracing::debug!(%error, "a socket takes no options"); // the client is gone; its task finds that out
    }
    let place = entry.place();
    let connection = Connection::new(stream, peer, service.clone(), Arc::clone(shared), entry);
    let task = tokio::spawn(connection);
    shared.connections.keep(place, task.abort_handle());
}

/// Says why, if that is possible at once, and lets the socket go.
fn refuse(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    // What the client has sent already is read, for an unread byte would turn the close into a reset.
    let mut heard = [const { std::mem::MaybeUninit::uninit() }; 4096];
    let _ = socket.recv(&mut heard);
    let _ = socket.send(TOO_MANY);
    let _ = socket.shutdown(std::net::Shutdown::Write);
}

fn prepare(stream: &TcpStream, config: &ServeConfig) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    if let Some(idle) = config.tcp_keepalive {
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle))?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(config.tcp_user_timeout)?;
    Ok(())
}

impl Shared {
    pub(crate) fn new(config: ServeConfig) -> Shared {
        let (config, stats) = (Arc::new(config), Stats::default());
        let requests = Arc::new(Registry::default());
        let buffer = config.max_header_bytes.max(MIN_BUFFER);
        let mut http1 = http1::Builder::new();
        http1.header_read_timeout(None).max_buf_size(buffer).max_header_size(config.max_header_bytes);
        if config.max_headers != HEADERS_ON_STACK {
            http1.max_headers(config.max_headers);
        }
        let tasks = RequestTasks {
            registry: Arc::clone(&requests),
            config: Arc::clone(&config),
            stats: stats.clone(),
        };
        let mut http2 = http2::Builder::new(tasks);
        http2
            .max_concurrent_streams(config.max_h2_requests)
            .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(MIN_BUFFER);
        Shared {
            config,
            stats,
            draining: watch::Sender::new(false),
            http1,
            http2,
            connections: Arc::new(Registry::default()),
            requests,
            wrap: None,
        }
    }

    /// Resolves when the server has begun to drain.
    pub(crate) async fn drain_begun(&self) {
        // It can't fail: the sender is here.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns how long a connection without a request stays open during a drain.
    pub(crate) fn drain_grace(&self) -> Duration {
        self.config.drain_grace.min(self.config.drain_timeout / 2)
    }

    /// Resolves when a drain has gone on for its grace.
    pub(crate) async fn grace_ended(&self) {
        self.drain_begun().await;
        sleep(self.drain_grace()).await;
    }

    /// Tells all connections; returns when that was, and how many there are.
    pub(crate) fn begin_drain(&self) -> (Instant, usize) {
        let (began, open) = (Instant::now(), self.connections.len());
        tracing::info!(open, "draining");
        self.draining.send_replace(true);
        (began, open)
    }

    async fn drain(&self, began: Instant, open: usize) -> Summary {
        let finished = timeout_at(began + self.config.drain_timeout, self.emptied()).await;
        let cut = if finished.is_ok() { 0 } else { self.cut().await };
        let summary = Summary { open, cut, took: began.elapsed() };
        tracing::info!(open, cut, took = ?summary.took, "drained");
        summary
    }

    async fn cut(&self) -> usize {
        let cut = self.connections.abort_all();
        self.requests.abort_all();
        if timeout_at(Instant::now() + ABORTING, self.emptied()).await.is_err() {
            tracing::error!(left = self.connections.len(), "aborted tasks go on running");
        }
        cut
    }

    async fn emptied(&self) {
        self.connections.emptied().await;
        self.requests.emptied().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_that_vanishes_is_bounded_by_probes_and_by_the_user_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        prepare(&accepted, &ServeConfig::default()).unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(30)));
    }

    #[test]
    fn an_outage_is_told_once_when_it_begins_and_once_when_it_ends() {
        let mut outage = Outage::default();
        assert_eq!(outage.end(), None);
        assert_eq!([outage.begins(), outage.begins(), outage.begins()], [true, false, false]);
        assert_eq!((outage.end(), outage.end()), (Some(3), None));
        assert!(outage.begins(), "the next one is news");
    }
}
