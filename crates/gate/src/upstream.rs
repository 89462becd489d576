//! The upstream: where it is, its pool of connections, and why it gave no response.
//!
//! Invariant: at most `max_connections` are open, idle ones included; at most `max_idle` wait, none for longer than
//! `idle_timeout`. A request is sent at most twice, and a second time only if its connection was a kept one and either
//! nothing of it was sent, or it may be repeated (RFC 9110, 9.2.2): the method is idempotent, there is no body, and the
//! connection ended before a byte of a response came.
//! Kept by: every connection owns a permit of the pool; [`Upstream::send`] decides about the second try, in one place.
//!
//! The pool is our own and small, rather than hyper-util's client, for what `connection.rs` promises: a request drives
//! its connection itself, and so cancelling is dropping a value. It also tells the five ways to fail apart, and whether
//! the upstream had begun to answer, which hyper's errors don't.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response};
use serde::Serialize;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout, timeout_at};

use super::connection::{Connection, ExchangeError};
use super::download::Download;
use super::failure::UpstreamError;
use super::idle::Idle;
use super::upload::Upload;

/// A dead host is noticed by probes after so long, in the midst of a silent stream.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// What was sent and not acknowledged for so long ends a connection.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Where the upstream is, and the bounds of talking to it.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Host and port, as in the URL.
    pub authority: Authority,
    /// From the start of a dial to its end, name included.
    pub connect_timeout: Duration,
    /// From the end of the request to the head of the response.
    pub response_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How many may wait.
    pub max_idle: usize,
    /// How many may be open in all.
    pub max_connections: usize,
}

impl UpstreamConfig {
    /// Settings for this host and port, with the defaults of `forebay gate`.
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

/// The upstream; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    pool: Arc<Pool>,
    /// The upstream's own name, for requests that bring none.
    host: HeaderValue,
}

#[derive(Debug)]
pub(crate) struct Pool {
    config: UpstreamConfig,
    idle: Mutex<Idle<Box<Connection>>>,
    permits: Arc<Semaphore>,
    dials: AtomicU64,
    reuses: AtomicU64,
    retries: AtomicU64,
}

/// What the pool has done and holds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct UpstreamStats {
    /// Connections open now, idle ones included.
    pub open: usize,
    /// Connections that wait for a request.
    pub idle: usize,
    /// Connections made.
    pub dials: u64,
    /// Requests that found one waiting.
    pub reuses: u64,
    /// Requests that were sent again, since the kept connection closed before a byte of a response.
    pub retries: u64,
}

impl Upstream {
    /// Needs a tokio runtime to be entered: a task ends what has waited too long.
    pub(crate) fn new(config: UpstreamConfig) -> Upstream {
        let host = HeaderValue::from_str(config.authority.as_str()).unwrap_or(HeaderValue::from_static(""));
        let idle_timeout = config.idle_timeout;
        let pool = Arc::new(Pool {
            idle: Mutex::new(Idle::new(config.max_idle, idle_timeout)),
            permits: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            dials: AtomicU64::new(0),
            reuses: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            config,
        });
        let swept = Arc::downgrade(&pool);
        tokio::spawn(async move {
            loop {
                sleep((idle_timeout / 2).max(Duration::from_millis(10))).await;
                let Some(pool) = swept.upgrade() else { return };
                let over = pool.idle().sweep(Instant::now());
                drop(over); // closes sockets, after the lock
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
            idle: pool.idle().len(),
            dials: pool.dials.load(Ordering::Relaxed),
            reuses: pool.reuses.load(Ordering::Relaxed),
            retries: pool.retries.load(Ordering::Relaxed),
        }
    }

    /// Sends a request and waits for the head of its response. Dropping the future, or the body later, cancels the
    /// request by closing its connection.
    pub(crate) async fn send(
        &self,
        mut request: Request<Upload>,
    ) -> Result<Response<Download>, UpstreamError> {
        if let Some(connection) = self.pool.take_idle().await {
            let again = is_repeatable(&request).then(|| repeat(&request));
            match self.exchange(connection, request).await {
                Ok(response) => return Ok(response),
                Err(error) => request = unsent(error, again)?,
            }
            self.pool.retries.fetch_add(1, Ordering::Relaxed);
        }
        let connection = Box::new(self.pool.dial().await?);
        self.exchange(connection, request).await.map_err(UpstreamError::from)
    }

    async fn exchange(
        &self,
        mut connection: Box<Connection>,
        request: Request<Upload>,
    ) -> Result<Response<Download>, ExchangeError> {
        let progress = request.body().progress();
        let response = connection.exchange(request, &progress, self.pool.config.response_timeout).await?;
        let (parts, incoming) = response.into_parts();
        let download = Download::new(incoming, connection, Arc::clone(&self.pool)).await;
        Ok(Response::from_parts(parts, download))
    }
}

/// Returns the request that may be sent once more: what never left, or what the upstream may get twice and has not begun
/// to answer. A kept connection that closes in silence has most likely closed before it read the request.
fn unsent(error: ExchangeError, again: Option<Request<Upload>>) -> Result<Request<Upload>, UpstreamError> {
    match error {
        ExchangeError::Unsent(request) => Ok(*request),
        error if error.is_unanswered() => again.ok_or(UpstreamError::from(error)),
        error => Err(error.into()),
    }
}

/// Idempotent, and without a body that would be gone (RFC 9110, 9.2.2).
fn is_repeatable(request: &Request<Upload>) -> bool {
    let method = request.method();
    (method.is_idempotent() && method != Method::TRACE) && request.body().is_empty()
}

fn repeat(request: &Request<Upload>) -> Request<Upload> {
    let mut again = Request::new(Upload::empty());
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.headers_mut() = request.headers().clone();
    again
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle<Box<Connection>>> {
        self.idle.lock().expect("no user of the pool panics under its lock")
    }

    pub(super) fn put_back(&self, connection: Box<Connection>) {
        let left = self.idle().put(connection, Instant::now());
        drop(left); // closes a socket, after the lock
    }

    /// One that is still open, as far as can be known without asking.
    async fn take_idle(&self) -> Option<Box<Connection>> {
        poll_fn(|cx| {
            loop {
                let taken = self.idle().take(Instant::now());
                let Some(mut connection) = taken else { return Poll::Ready(None) };
                if connection.is_ready(cx) {
                    self.reuses.fetch_add(1, Ordering::Relaxed);
                    return Poll::Ready(Some(connection));
                }
            }
        })
        .await
    }

    async fn dial(&self) -> Result<Connection, UpstreamError> {
        let permit = self.permit()?;
        self.dials.fetch_add(1, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + self.config.connect_timeout;
        let addresses = timeout_at(deadline, lookup_host((self.config.host(), self.config.port()))).await;
        let addresses = addresses.map_err(|_| UpstreamError::ConnectTimeout)?;
        let addresses: Vec<SocketAddr> = addresses.map_err(UpstreamError::of_resolving)?.collect();
        let socket = connect(&addresses, deadline).await?;
        Connection::start(socket, permit).await.map_err(UpstreamError::Response)
    }

    /// Idle connections make room before anybody is refused.
    fn permit(&self) -> Result<OwnedSemaphorePermit, UpstreamError> {
        let mut permit = Arc::clone(&self.permits).try_acquire_owned();
        if permit.is_err() {
            let left = self.idle().make_room(Instant::now());
            drop(left); // closes sockets, after the lock
            permit = Arc::clone(&self.permits).try_acquire_owned();
        }
        permit.map_err(|_| UpstreamError::Busy { max: self.config.max_connections })
    }
}

/// Tries the addresses in the order in which they are resolved. Each may take an equal part of the time that is left, so
/// that one which is silent doesn't keep the gate from the next. Says the first failure that is the upstream's.
async fn connect(
    addresses: &[SocketAddr],
    deadline: tokio::time::Instant,
) -> Result<TcpStream, UpstreamError> {
    let nowhere = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut failure = None;
    for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let part = deadline.saturating_duration_since(tokio::time::Instant::now())
            / u32::try_from(left).unwrap_or(u32::MAX);
        let error = match timeout(part, open(*address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => UpstreamError::of_dialling(error),
            Err(_) => UpstreamError::ConnectTimeout,
        };
        if !failure.as_ref().is_some_and(UpstreamError::is_upstreams_fault) {
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or(UpstreamError::Connect(nowhere)))
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    prepare(&socket)?;
    Ok(socket)
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
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

    /// A listener whose backlog is full: the kernel drops what comes, as a firewall would.
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
    async fn a_silent_address_leaves_time_for_the_next() {
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
