//! HTTP/2 connections served by hyper.
//!
//! Invariant: every connection ends, even if the client stalls.
//! Enforced by: [`ClientDeadline`] bounds idle connections; `h2_exchange.rs` bounds each request
//! and response; `hyper_socket.rs` bounds writes to the socket.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::http2;
use tokio::time::{Instant, sleep};

use crate::config::HttpServerConfig;
use crate::hyper::activity::ConnectionActivity;
use crate::hyper::client_deadline::{ClientDeadline, count_error};
use crate::hyper::h2_exchange::{self, ExchangeTimeout};
use crate::hyper::service_adapter::ServiceAdapter;
use crate::server::ServerContext;
use crate::service::{HttpService, ResponseBody};
use crate::socket::LINGER_TIMEOUT;
use crate::stats::ServerStats;
use crate::task_registry::TaskRegistry;

/// Connection of hyper for HTTP/2.
type Http2<I, S, B> = http2::Connection<I, ServiceAdapter<S, B>, RequestTasks>;

/// How an HTTP/2 connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Http2End {
    /// Both sides have finished.
    Finished,
    /// hyper failed, or the client ignored a GOAWAY.
    Failed,
}

/// Serves until the connection ends.
pub(crate) async fn serve_http2<I, S, B>(
    mut conn: Box<Http2<I, S, B>>,
    activity: &ConnectionActivity,
    context: &ServerContext,
) -> Http2End
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: HttpService<B>,
    B: ResponseBody + Send + 'static,
{
    let mut draining = pin!(context.drain_started());
    let mut client_deadline = ClientDeadline::for_idle();
    let mut deadline = pin!(sleep(Duration::ZERO));
    let done = poll_fn(|cx| {
        if let Poll::Ready(done) = Pin::new(&mut *conn).poll(cx) {
            return Poll::Ready(Some(done));
        }
        activity.set_driver(cx.waker());
        let idle = client_deadline.poll(activity, &context.config, deadline.as_mut(), cx).is_ready();
        if idle && client_deadline.shutting_down {
            return Poll::Ready(None); // the client ignores GOAWAY
        }
        if idle || (!client_deadline.shutting_down && draining.as_mut().poll(cx).is_ready()) {
            client_deadline.shutting_down = true;
            deadline.as_mut().reset(Instant::now() + LINGER_TIMEOUT);
            Pin::new(&mut *conn).graceful_shutdown();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    match done {
        Some(Ok(())) => Http2End::Finished,
        Some(Err(error)) => {
            count_error(&error, context);
            Http2End::Failed
        }
        None => Http2End::Failed,
    }
}

/// Executor for the requests of HTTP/2 connections: one task per request.
#[derive(Debug, Clone)]
pub(crate) struct RequestTasks {
    pub(crate) registry: Arc<TaskRegistry>,
    pub(crate) config: Arc<HttpServerConfig>,
    pub(crate) stats: ServerStats,
}

impl<F> Executor<F> for RequestTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, request: F) {
        let entry = self.registry.register(usize::MAX).expect("there is no limit on tasks here");
        let slot = entry.slot();
        let (config, stats) = (Arc::clone(&self.config), self.stats.clone());
        let task = tokio::spawn(async move {
            let _entry = entry;
            match h2_exchange::run(request, &config).await {
                Some(ExchangeTimeout::Write) => stats.counters().slow_clients.increment(),
                Some(ExchangeTimeout::BodyRead) => stats.counters().body_timeouts.increment(),
                None => {}
            }
        });
        self.registry.set_handle(slot, task.abort_handle());
    }
}
