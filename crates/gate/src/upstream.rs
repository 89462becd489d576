//! Upstream: its address, its connection pool, and the rule for sending a request again.
//!
//! Invariant: at most `max_connections` connections are open, idle ones included. At most
//! `max_idle` are idle. None is reused after `idle_timeout`.
//! Invariant: a request is sent at most twice. The second time is over a new connection, after a
//! reused one failed, and only in two cases: no byte of the request was sent; or the request is
//! repeatable and no byte of a response arrived. A repeatable request has an idempotent method
//! (RFC 9110, 9.2.2) and no body.
//! Enforced by: every connection owns a permit of the pool. Only [`Upstream::send`] decides to send
//! again.
//!
//! The pool replaces hyper-util's client because a request must drive its own connection, so that
//! dropping the request cancels it (`upstream_connection.rs`). The pool also reports more than
//! hyper's errors: the kind of a failure, and whether the upstream had begun to respond.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response};
use parking_lot::Mutex;
use serde::Serialize;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout, timeout_at};

use super::download::Download;
use super::idle_connections::IdleConnections;
use super::upload::Upload;
use super::upstream_connection::{ExchangeError, UpstreamConnection};
use super::upstream_error::UpstreamError;

/// Idle time after which keepalive probes start. They detect a dead host during a silent stream.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Maximum time that sent bytes may stay unacknowledged before the connection fails.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Address of the upstream, and the timeouts and bounds of its connections.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Host and port, as in the URL.
    pub authority: Authority,
    /// Time for one dial, name resolution included.
    pub connect_timeout: Duration,
    /// Time from the last progress of the upload to the response head. For a request without a
    /// body, it runs from the time of the request, so it includes the dial.
    pub response_timeout: Duration,
    /// Idle time after which a connection isn't reused. A task closes it soon afterwards.
    pub idle_timeout: Duration,
    /// Maximum number of idle connections.
    pub max_idle: usize,
    /// Maximum number of open connections, including idle ones.
    pub max_connections: usize,
}

impl UpstreamConfig {
    /// Returns settings for this host and port, with the defaults of `forebay gate`.
    pub fn new(authority: Authority) -> UpstreamConfig {
        UpstreamConfig {
            authority,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(4),
            max_idle: 256,
            max_connections: 16_384,
        }
    }

    fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(80)
    }
}

/// The upstream and its connection pool. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    pool: Arc<UpstreamPool>,
    /// The upstream's host and port: the `Host` header if the client's isn't preserved.
    host: HeaderValue,
}

/// Pool of connections to the upstream.
#[derive(Debug)]
pub(crate) struct UpstreamPool {
    config: UpstreamConfig,
    /// Connections are dropped, and so closed, outside the lock.
    idle: Mutex<IdleConnections<Box<UpstreamConnection>>>,
    /// One permit per open connection.
    permits: Arc<Semaphore>,
    dials: AtomicU64,
    reuses: AtomicU64,
    retries: AtomicU64,
}

/// Gauges and counters of the connection pool.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct UpstreamStats {
    /// Open connections, idle ones included.
    pub open: usize,
    /// Idle connections.
    pub idle: usize,
    /// Dials since the start, including failed ones.
    pub dials: u64,
    /// Requests that reused an idle connection.
    pub reuses: u64,
    /// Requests sent again because the reused connection closed before any byte of a response.
    pub retries: u64,
}

impl Upstream {
    /// Creates the pool, and spawns a task that closes expired idle connections. Must be called
    /// inside a tokio runtime.
    pub(crate) fn new(config: UpstreamConfig) -> Upstream {
        let host = HeaderValue::from_str(config.authority.as_str()).unwrap_or(HeaderValue::from_static(""));
        let idle_timeout = config.idle_timeout;
        let pool = Arc::new(UpstreamPool {
            idle: Mutex::new(IdleConnections::new(config.max_idle, idle_timeout)),
            permits: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            dials: AtomicU64::new(0),
            reuses: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            config,
        });
        let weak_pool = Arc::downgrade(&pool);
        tokio::spawn(async move {
            loop {
                sleep((idle_timeout / 2).max(Duration::from_millis(10))).await;
                let Some(pool) = weak_pool.upgrade() else { return };
                let expired = pool.idle.lock().remove_expired(Instant::now());
                drop(expired); // closes the sockets outside the lock
            }
        });
        Upstream { pool, host }
    }

    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    pub(crate) fn stats(&self) -> UpstreamStats {
        let pool = &self.pool;
        UpstreamStats {
            open: pool.config.max_connections.saturating_sub(pool.permits.available_permits()),
            idle: pool.idle.lock().len(),
            dials: pool.dials.load(Ordering::Relaxed),
            reuses: pool.reuses.load(Ordering::Relaxed),
            retries: pool.retries.load(Ordering::Relaxed),
        }
    }

    /// Sends a request and waits for the response head. Dropping the future, or later the body,
    /// closes the connection and so cancels the request.
    pub(crate) async fn send(
        &self,
        mut request: Request<Upload>,
    ) -> Result<Response<Download>, UpstreamError> {
        if let Some(connection) = self.pool.take_idle().await {
            let copy = is_repeatable(&request).then(|| copy_without_body(&request));
            match self.exchange(connection, request).await {
                Ok(response) => return Ok(response),
                Err(error) => request = request_to_resend(error, copy)?,
            }
            self.pool.retries.fetch_add(1, Ordering::Relaxed);
        }
        let connection = Box::new(self.pool.dial().await?);
        self.exchange(connection, request).await.map_err(UpstreamError::from)
    }

    async fn exchange(
        &self,
        mut connection: Box<UpstreamConnection>,
        request: Request<Upload>,
    ) -> Result<Response<Download>, ExchangeError> {
        let progress = request.body().progress();
        let response = connection.exchange(request, &progress, self.pool.config.response_timeout).await?;
        let (parts, incoming) = response.into_parts();
        let download =
            Download::new(parts.status, incoming, connection, Arc::clone(&self.pool), progress).await;
        Ok(Response::from_parts(parts, download))
    }
}

/// Returns the request to send again after an exchange failed: the request itself if no byte of it
/// was sent, or else its copy if no byte of a response arrived. In the second case the upstream
/// most likely closed the idle connection before it read the request.
///
/// # Errors
/// Returns the error of the exchange if the request must not be sent again.
fn request_to_resend(
    error: ExchangeError,
    copy: Option<Request<Upload>>,
) -> Result<Request<Upload>, UpstreamError> {
    match error {
        ExchangeError::Unsent(request) => Ok(*request),
        error if error.is_unanswered() => copy.ok_or(UpstreamError::from(error)),
        error => Err(error.into()),
    }
}

/// Returns whether a request is idempotent (RFC 9110, 9.2.2) and has no body. TRACE is excluded.
fn is_repeatable(request: &Request<Upload>) -> bool {
    let method = request.method();
    (method.is_idempotent() && method != Method::TRACE) && request.body().is_empty()
}

/// Copies a request that has no body.
fn copy_without_body(request: &Request<Upload>) -> Request<Upload> {
    let mut copy = Request::new(Upload::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

impl UpstreamPool {
    pub(super) fn put_back(&self, connection: Box<UpstreamConnection>) {
        let evicted = self.idle.lock().put(connection, Instant::now());
        drop(evicted); // closes the socket outside the lock
    }

    /// Returns an idle connection. Drops the idle connections that the upstream has closed.
    async fn take_idle(&self) -> Option<Box<UpstreamConnection>> {
        poll_fn(|cx| {
            loop {
                let taken = self.idle.lock().take(Instant::now());
                let Some(mut connection) = taken else { return Poll::Ready(None) };
                if connection.is_ready(cx) {
                    self.reuses.fetch_add(1, Ordering::Relaxed);
                    return Poll::Ready(Some(connection));
                }
            }
        })
        .await
    }

    async fn dial(&self) -> Result<UpstreamConnection, UpstreamError> {
        let permit = self.acquire_permit()?;
        self.dials.fetch_add(1, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + self.config.connect_timeout;
        let addresses = timeout_at(deadline, lookup_host((self.config.host(), self.config.port()))).await;
        let addresses = addresses.map_err(|_| UpstreamError::ConnectTimeout)?;
        let addresses: Vec<SocketAddr> = addresses.map_err(UpstreamError::from_resolve)?.collect();
        let socket = connect(&addresses, deadline).await?;
        UpstreamConnection::start(socket, permit).await.map_err(UpstreamError::Response)
    }

    /// Takes a permit for a new connection. While none is free, closes the expired idle
    /// connections, or else the oldest one, and tries again: another request may take the permit
    /// that a closed connection returns.
    fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, UpstreamError> {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return Ok(permit);
            }
            let evicted = self.idle.lock().make_room(Instant::now());
            if evicted.is_empty() {
                return Err(UpstreamError::Busy { max: self.config.max_connections });
            }
            drop(evicted); // closes the sockets outside the lock
        }
    }
}

/// Tries the addresses in the order of resolution. Each gets an equal part of the remaining time,
/// so an unresponsive address leaves time for the next.
///
/// # Errors
/// If all addresses fail, returns the first error that the upstream caused. If the upstream caused
/// none, returns the last error.
async fn connect(
    addresses: &[SocketAddr],
    deadline: tokio::time::Instant,
) -> Result<TcpStream, UpstreamError> {
    let no_address = io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
    let mut failure = None;
    for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let part = deadline.saturating_duration_since(tokio::time::Instant::now())
            / u32::try_from(left).unwrap_or(u32::MAX);
        let error = match timeout(part, open_socket(*address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => UpstreamError::from_dial(error),
            Err(_) => UpstreamError::ConnectTimeout,
        };
        if !failure.as_ref().is_some_and(UpstreamError::is_upstreams_fault) {
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or(UpstreamError::Connect(no_address)))
}

async fn open_socket(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    set_socket_options(&socket)?;
    Ok(socket)
}

fn set_socket_options(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// Returns a listener whose backlog is full. The kernel drops new connections, like a firewall.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut held = Vec::new();
        let connect = || TcpStream::connect(listener.local_addr().unwrap());
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(300), connect()).await {
            held.push(stream);
        }
        (listener, held)
    }

    #[tokio::test]
    async fn an_unresponsive_address_leaves_time_for_the_next() {
        let (silent, _held) = silent().await;
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [silent, alive] = [&silent, &alive].map(|listener| listener.local_addr().unwrap());
        let soon = || tokio::time::Instant::now() + Duration::from_secs(1);
        let socket = connect(&[silent, alive], soon()).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap(), alive);
        let error = connect(&[silent, silent], soon()).await.unwrap_err();
        assert!(matches!(error, UpstreamError::ConnectTimeout), "{error}");
    }
}
