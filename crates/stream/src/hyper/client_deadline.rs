//! Client deadlines of a hyper connection: for a head, for more of a body, and for idle time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};

use crate::config::HttpServerConfig;
use crate::hyper::activity::{ClientWait, ConnectionActivity};
use crate::server::ServerContext;
use crate::socket::LINGER_TIMEOUT;

/// Deadline for the current wait.
pub(crate) struct ClientDeadline {
    /// Wait for which the timer was set, and its generation.
    current: (ClientWait, u32),
    /// HTTP/2: only idle time is limited here; each request has its own deadlines.
    only_idle: bool,
    /// A graceful shutdown has begun; the idle limit is [`LINGER_TIMEOUT`].
    pub(crate) shutting_down: bool,
}

impl ClientDeadline {
    /// Creates the deadline of an HTTP/1 connection. The time for its first head starts at accept.
    pub(crate) fn for_first_head() -> ClientDeadline {
        ClientDeadline { current: (ClientWait::Head, 0), only_idle: false, shutting_down: false }
    }

    /// Creates the deadline of an HTTP/2 connection.
    pub(crate) fn for_idle() -> ClientDeadline {
        ClientDeadline { current: (ClientWait::Busy, 0), only_idle: true, shutting_down: false }
    }

    /// Resolves to the current wait when it has exceeded its limit.
    pub(crate) fn poll(
        &mut self,
        activity: &ConnectionActivity,
        config: &HttpServerConfig,
        mut deadline: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<ClientWait> {
        let (wait, generation) = activity.client_wait();
        let (wait, limit) = match wait {
            ClientWait::Head if !self.only_idle => (wait, config.header_read_timeout),
            // Before its first head a TLS connection may be idle: the limit of a head applies.
            ClientWait::Idle if !self.only_idle && generation == 0 => {
                (ClientWait::Head, config.header_read_timeout)
            }
            ClientWait::Body if !self.only_idle => (wait, config.body_read_timeout),
            ClientWait::Idle | ClientWait::Head if self.shutting_down => (ClientWait::Idle, LINGER_TIMEOUT),
            ClientWait::Idle | ClientWait::Head => (ClientWait::Idle, config.idle_timeout),
            ClientWait::Body | ClientWait::Busy => {
                self.current = (ClientWait::Busy, generation);
                return Poll::Pending;
            }
        };
        if self.current != (wait, generation) {
            self.current = (wait, generation);
            deadline.as_mut().reset(Instant::now() + limit);
        }
        deadline.poll(cx).map(|()| wait)
    }
}

pub(crate) fn count_timeout(wait: ClientWait, context: &ServerContext) {
    match wait {
        ClientWait::Head => context.stats.counters().header_timeouts.increment(),
        ClientWait::Body => context.stats.counters().body_timeouts.increment(),
        ClientWait::Idle | ClientWait::Busy => {}
    }
}

/// Whether hyper has answered a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorResponse {
    Sent,
    None,
}

/// Counts the error of a connection.
pub(crate) fn count_error(error: &hyper::Error, context: &ServerContext) -> ErrorResponse {
    tracing::debug!(%error, "connection failed");
    let counters = context.stats.counters();
    if error.is_parse_too_large() {
        counters.oversized_heads.increment();
    } else if error.is_parse() {
        counters.bad_requests.increment();
    } else if timed_out(error) {
        counters.slow_clients.increment();
    }
    if error.is_parse() { ErrorResponse::Sent } else { ErrorResponse::None }
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
