//! HTTP server: accepts connections, refuses those beyond the limit, and drains on shutdown.
//!
//! Invariant: at most `max_connections` connections are open; after the drain none is open.
//! Enforced by: each connection task holds a [`TaskRegistry`] entry; the drain aborts all tasks
//! that are left at its deadline.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use socket2::SockRef;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tower_service::Service;

use crate::ClientAddr;
use crate::backlog::{drain_backlog, is_per_connection};
use crate::config::HttpServerConfig;
use crate::connection_task::ConnectionTask;
use crate::error::BodyError;
use crate::hyper::http2::RequestTasks;
use crate::hyper::transport::Handshake;
use crate::incoming::Incoming;
use crate::service::{HttpService, ResponseBody};
use crate::socket::set_socket_options;
use crate::stats::ServerStats;
use crate::task_registry::TaskRegistry;

/// Minimum for the limits of hyper's buffers, in bytes: enough for large writes.
const MIN_BUFFER: usize = 64 * 1024;
/// hyper's default header limit; with this value hyper parses headers on the stack.
const HEADERS_ON_STACK: usize = 100;
/// Pause after a failed `accept`, usually because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time for the runtime to drop aborted tasks.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\
                          connection: close\r\n\r\n";

/// HTTP server on one listener: HTTP/1.1, and HTTP/2 with prior knowledge (h2c).
#[derive(Debug)]
pub struct HttpServer<S> {
    listener: TcpListener,
    service: S,
    context: Arc<ServerContext>,
}

/// Result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainSummary {
    /// Connections open when the shutdown began, including those in the listener's backlog.
    pub open: usize,
    /// Connections aborted because they were still open at the drain deadline.
    pub cut: usize,
    /// Duration of the drain.
    pub took: Duration,
}

/// State shared by all connections of a server.
#[derive(Debug)]
pub(crate) struct ServerContext {
    pub(crate) config: Arc<HttpServerConfig>,
    pub(crate) stats: ServerStats,
    draining: watch::Sender<bool>,
    pub(crate) http1: http1::Builder,
    pub(crate) http2: http2::Builder<RequestTasks>,
    pub(crate) connections: Arc<TaskRegistry>,
    /// Tasks of HTTP/2 requests; each request runs in its own task.
    pub(crate) requests: Arc<TaskRegistry>,
    pub(crate) handshake: Option<Arc<dyn Handshake>>,
}

impl<S, B> HttpServer<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    /// Creates a server for the connections that `listener` accepts.
    ///
    /// A clone of `service` handles every request, with [`ClientAddr`] in the request's extensions.
    pub fn new(listener: TcpListener, service: S, config: HttpServerConfig) -> HttpServer<S> {
        HttpServer { listener, service, context: Arc::new(ServerContext::new(config)) }
    }

    /// Runs `handshake` on every accepted connection before any HTTP is read.
    pub fn with_handshake(mut self, handshake: Arc<dyn Handshake>) -> HttpServer<S> {
        let context = Arc::get_mut(&mut self.context).expect("the context is not shared before `run`");
        context.handshake = Some(handshake);
        self
    }

    /// Returns a handle to the counters; it stays valid after the server has ended.
    pub fn stats(&self) -> ServerStats {
        self.context.stats.clone()
    }

    /// Serves until `shutdown` resolves, then drains and returns the result.
    ///
    /// The drain accepts the listener's backlog and closes the listener. Connections without a
    /// request close after `drain_grace`. Requests and streams may continue for `drain_timeout`;
    /// then they are aborted.
    ///
    /// Connections are tasks of the current runtime. If this future is dropped, they keep running.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> DrainSummary {
        let HttpServer { listener, service, context } = self;
        let (mut shutdown, mut outage) = (pin!(shutdown), AcceptOutage::default());
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        if let Some(failures) = outage.recover() {
                            tracing::info!(failures, "accepting connections resumed");
                        }
                        spawn_connection(stream, ClientAddr(peer), &service, &context);
                    }
                    Err(error) if is_per_connection(&error) => {}
                    Err(error) => {
                        context.stats.counters().accept_errors.increment();
                        if outage.record_failure() == 1 {
                            tracing::warn!(%error, "accepting connections failed");
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
        let (began, mut open) = context.begin_drain();
        drain_backlog(listener, |stream, peer| {
            open += 1;
            spawn_connection(stream, ClientAddr(peer), &service, &context);
        })
        .await;
        drop(service);
        context.drain(began, open).await
    }
}

/// Consecutive `accept` failures. Only the first failure and the recovery are logged.
#[derive(Debug, Default)]
struct AcceptOutage {
    failures: u64,
}

impl AcceptOutage {
    /// Counts a failure; returns the number of failures in this outage.
    fn record_failure(&mut self) -> u64 {
        self.failures += 1;
        self.failures
    }

    /// Ends the outage; returns the number of failures if there were any.
    fn recover(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.failures)).filter(|&failures| failures > 0)
    }
}

fn spawn_connection<S, B>(stream: TcpStream, peer: ClientAddr, service: &S, context: &Arc<ServerContext>)
where
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let Some(entry) = context.connections.register(context.config.max_connections) else {
        context.stats.counters().refused.increment();
        // A TLS client could not read a plain response, and a handshake costs too much here.
        if context.handshake.is_none() {
            refuse(&stream);
        }
        return;
    };
    if let Err(error) = set_socket_options(&stream, &context.config) {
        // The client has disconnected; the connection's task notices that.
        tracing::debug!(%error, "socket options not set");
    }
    let slot = entry.slot();
    let connection = ConnectionTask::new(stream, peer, service.clone(), Arc::clone(context), entry);
    let task = tokio::spawn(connection);
    context.connections.set_handle(slot, task.abort_handle());
}

/// Sends a 503 if the socket takes it at once, then shuts down the write side.
fn refuse(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    // Closing with unread bytes would reset the connection, so pending input is read first.
    let mut discarded = [const { std::mem::MaybeUninit::uninit() }; 4096];
    let _ = socket.recv(&mut discarded);
    let _ = socket.send(TOO_MANY_CONNECTIONS_RESPONSE);
    let _ = socket.shutdown(std::net::Shutdown::Write);
}

impl ServerContext {
    pub(crate) fn new(config: HttpServerConfig) -> ServerContext {
        let (config, stats) = (Arc::new(config), ServerStats::default());
        let requests = Arc::new(TaskRegistry::default());
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
        ServerContext {
            config,
            stats,
            draining: watch::Sender::new(false),
            http1,
            http2,
            connections: Arc::new(TaskRegistry::default()),
            requests,
            handshake: None,
        }
    }

    /// Waits until the server has begun to drain.
    pub(crate) async fn drain_started(&self) {
        // The sender lives in `self`, so this never fails.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns how long a connection without a request stays open during a drain.
    pub(crate) fn drain_grace(&self) -> Duration {
        self.config.drain_grace.min(self.config.drain_timeout / 2)
    }

    /// Waits until the server drains and `drain_grace` has elapsed.
    pub(crate) async fn drain_grace_elapsed(&self) {
        self.drain_started().await;
        sleep(self.drain_grace()).await;
    }

    /// Notifies all connections; returns the start time and the number of open connections.
    pub(crate) fn begin_drain(&self) -> (Instant, usize) {
        let (began, open) = (Instant::now(), self.connections.len());
        tracing::info!(open, "drain started");
        self.draining.send_replace(true);
        (began, open)
    }

    async fn drain(&self, began: Instant, open: usize) -> DrainSummary {
        let finished = timeout_at(began + self.config.drain_timeout, self.wait_empty()).await;
        let cut = if finished.is_ok() { 0 } else { self.abort_remaining().await };
        let summary = DrainSummary { open, cut, took: began.elapsed() };
        tracing::info!(open, cut, took = ?summary.took, "drain finished");
        summary
    }

    async fn abort_remaining(&self) -> usize {
        let cut = self.connections.abort_all();
        self.requests.abort_all();
        if timeout_at(Instant::now() + ABORT_TIMEOUT, self.wait_empty()).await.is_err() {
            tracing::error!(left = self.connections.len(), "aborted tasks still running");
        }
        cut
    }

    async fn wait_empty(&self) {
        self.connections.wait_empty().await;
        self.requests.wait_empty().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accept_outage_is_logged_once_when_it_begins_and_once_when_it_ends() {
        let mut outage = AcceptOutage::default();
        assert_eq!(outage.recover(), None);
        assert_eq!([outage.record_failure(), outage.record_failure(), outage.record_failure()], [1, 2, 3]);
        assert_eq!((outage.recover(), outage.recover()), (Some(3), None));
        assert_eq!(outage.record_failure(), 1, "a new outage is logged again");
    }
}
