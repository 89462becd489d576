//! The upstream: where it is, its pool of connections, and why it gave no response.
//!
//! Invariant: at most `max_connections` are open, idle ones included; at most `max_idle` wait, none for longer than
//! `idle_timeout`. A request is sent once, unless its connection is known to have closed without taking it.
//! Kept by: every connection owns a permit of the pool; [`Upstream::send`] decides about the second try, in one place.
//!
//! The pool is our own and small, rather than hyper-util's client, for what `connection.rs` promises: a request drives
//! its connection itself, and so cancelling is dropping a value. It also tells the five ways to fail apart, and never
//! repeats a request that an upstream may have begun.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout_at};

use super::connection::{Connection, Download, ExchangeError};
use super::idle::Idle;
use super::upload::{Upload, UploadError};

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
    /// Requests that were sent again, since the waiting connection had closed.
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
    pub(crate) async fn send(&self, mut request: Request<Upload>) -> Result<Response<Download>, UpstreamError> {
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
        let mut download = Download::new(incoming, connection, Arc::clone(&self.pool));
        download.settle_if_ended().await;
        Ok(Response::from_parts(parts, download))
    }
}

/// The request that may be sent once more: what never left, or what does no harm twice.
fn unsent(error: ExchangeError, again: Option<Request<Upload>>) -> Result<Request<Upload>, UpstreamError> {
    match error {
        ExchangeError::Unsent(request) => Ok(*request),
        error if error.is_closed() => again.ok_or(UpstreamError::from(error)),
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
                match taken {
                    None => return Poll::Ready(None),
                    Some(mut connection) if connection.is_ready(cx) => {
                        self.reuses.fetch_add(1, Ordering::Relaxed);
                        return Poll::Ready(Some(connection));
                    }
                    Some(closed) => drop(closed),
                }
            }
        })
        .await
    }

    async fn dial(&self) -> Result<Connection, UpstreamError> {
        let permit = self.permit()?;
        self.dials.fetch_add(1, Ordering::Relaxed);
        let deadline = tokio::time::Instant::now() + self.config.connect_timeout;
        let socket = timeout_at(deadline, self.connect()).await;
        let socket = socket.map_err(|_| UpstreamError::ConnectTimeout)??;
        Connection::start(socket, permit).await.map_err(UpstreamError::Response)
    }

    /// Idle connections make room before anybody is refused.
    fn permit(&self) -> Result<OwnedSemaphorePermit, UpstreamError> {
        let mut permit = Arc::clone(&self.permits).try_acquire_owned();
        if permit.is_err() {
            let spare = self.idle().take(Instant::now());
            drop(spare);
            permit = Arc::clone(&self.permits).try_acquire_owned();
        }
        permit.map_err(|_| UpstreamError::Busy { max: self.config.max_connections })
    }

    /// Tries the addresses in the order in which they are resolved.
    async fn connect(&self) -> Result<TcpStream, UpstreamError> {
        let addresses = lookup_host((self.config.host(), self.config.port())).await;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses.map_err(UpstreamError::Resolve)? {
            match TcpStream::connect(address).await {
                Ok(socket) => {
                    prepare(&socket).map_err(UpstreamError::Connect)?;
                    return Ok(socket);
                }
                Err(error) => last = error,
            }
        }
        Err(UpstreamError::Connect(last))
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// Why there is no response. What the client may read of it is [`UpstreamError::message`]; the rest is for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the upstream's name does not resolve: {0}")]
    Resolve(#[source] io::Error),
    #[error("the upstream can't be reached: {0}")]
    Connect(#[source] io::Error),
    #[error("the upstream did not accept a connection in time")]
    ConnectTimeout,
    #[error("all {max} connections to the upstream are in use")]
    Busy { max: usize },
    #[error("the upstream closed the connection before it answered")]
    Closed,
    #[error("the upstream gave no head of a response in time")]
    ResponseTimeout,
    #[error("the upstream's answer is no HTTP response: {0}")]
    Response(#[source] hyper::Error),
    #[error("{0}")]
    Upload(UploadFault),
}

/// The client's part in a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadFault {
    Stalled(Duration),
    Broken,
}

impl std::fmt::Display for UploadFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UploadFault::Stalled(idle) => write!(f, "the client sent nothing of its body for {idle:?}"),
            UploadFault::Broken => f.write_str("the client's body broke off"),
        }
    }
}

impl UpstreamError {
    /// The reason's name in logs, metrics and the client's `error` member.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            UpstreamError::Resolve(_) => "upstream_unresolved",
            UpstreamError::Connect(_) => "upstream_unreachable",
            UpstreamError::ConnectTimeout => "upstream_connect_timeout",
            UpstreamError::Busy { .. } => "upstream_busy",
            UpstreamError::Closed => "upstream_closed",
            UpstreamError::ResponseTimeout => "upstream_response_timeout",
            UpstreamError::Response(_) => "upstream_bad_response",
            UpstreamError::Upload(UploadFault::Stalled(_)) => "request_stalled",
            UpstreamError::Upload(UploadFault::Broken) => "request_broken",
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            UpstreamError::Resolve(_)
            | UpstreamError::Connect(_)
            | UpstreamError::Closed
            | UpstreamError::Response(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::ConnectTimeout | UpstreamError::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
            UpstreamError::Upload(UploadFault::Stalled(_)) => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::Upload(UploadFault::Broken) => StatusCode::BAD_REQUEST,
        }
    }

    /// What the client may know: what happened, not where.
    pub(crate) fn message(&self) -> String {
        match self {
            UpstreamError::Resolve(_) | UpstreamError::Connect(_) => "The service behind this gate can't be reached.",
            UpstreamError::ConnectTimeout => "The service behind this gate did not accept a connection in time.",
            UpstreamError::Busy { .. } => "This gate has no free connection to the service behind it.",
            UpstreamError::Closed => "The service behind this gate closed the connection before it answered.",
            UpstreamError::ResponseTimeout => "The service behind this gate did not begin to answer in time.",
            UpstreamError::Response(_) => "The service behind this gate gave an answer that is no HTTP.",
            UpstreamError::Upload(fault) => match fault {
                UploadFault::Stalled(idle) => {
                    return format!("Nothing of the request's body came for {} s.", idle.as_secs_f32());
                }
                UploadFault::Broken => "The request's body broke off.",
            },
        }
        .to_owned()
    }
}

impl From<ExchangeError> for UpstreamError {
    fn from(error: ExchangeError) -> UpstreamError {
        let closed = error.is_closed();
        match error {
            ExchangeError::Timeout => UpstreamError::ResponseTimeout,
            ExchangeError::Unsent(_) => UpstreamError::Closed,
            ExchangeError::Failed(error) => match upload_fault(&error) {
                Some(fault) => UpstreamError::Upload(fault),
                None if closed => UpstreamError::Closed,
                None => UpstreamError::Response(error),
            },
        }
    }
}

fn upload_fault(error: &(dyn std::error::Error + 'static)) -> Option<UploadFault> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<UploadError>() {
            Some(UploadError::Stalled(idle)) => return Some(UploadFault::Stalled(*idle)),
            Some(UploadError::Broken(_)) => return Some(UploadFault::Broken),
            None => cause = error.source(),
        }
    }
    None
}
