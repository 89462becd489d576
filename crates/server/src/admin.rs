//! What operators see, on an address of their own: a page at `/`, fed by `/v1/events`; `/healthz`, `/readyz`, `/metrics` and
//! `/v1/status`.
//!
//! Invariant: nothing here changes anything. Whoever doesn't show the secret, if there is one, learns only whether the process lives
//! and is ready. Without one it listens on this machine only, unless told otherwise; and there it answers only to this machine's
//! names, so that no web page can have a browser ask.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay_stream::{Incoming, Live as LiveStream, ServeConfig, Server};
use http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::net::TcpListener;
use tower_service::Service;

use crate::dashboard::{self, Events, Live, Sample};
use crate::guard::Guard;
use crate::page::harden;
use crate::problem::problem;

/// Operators are few.
const MAX_CONNECTIONS: usize = 128;

/// What a command of this program tells of itself.
pub trait Report: Send + Sync + 'static {
    /// Whether new work should be sent here; if not, why.
    ///
    /// # Errors
    /// The reason, in one line.
    fn ready(&self) -> Result<(), &'static str>;

    /// Everything.
    fn status(&self) -> Value;

    /// What a page shows each second: the same, of bounded size. May block for the disk.
    fn glance(&self) -> Value;

    /// What is plotted: cheap.
    fn sample(&self) -> Sample;

    /// Sets the metrics that are measured only when somebody looks.
    fn measure(&self);
}

/// The admin address's service.
#[derive(Clone)]
pub struct Admin {
    report: Arc<dyn Report>,
    metrics: PrometheusHandle,
    guard: Guard,
    /// It listens on this machine only.
    local: bool,
    live: Arc<Live>,
}

/// What is answered: at once, or for as long as a page looks.
#[derive(Debug)]
pub enum AdminBody {
    /// At once.
    Whole(Full<Bytes>),
    /// A page's stream.
    Events(Events),
}

/// A server of what operators ask. Needs a tokio runtime.
pub fn server(
    listener: TcpListener,
    report: Arc<dyn Report>,
    metrics: PrometheusHandle,
    guard: Guard,
) -> Server<Admin> {
    let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut config = ServeConfig::default();
    config.max_connections = MAX_CONNECTIONS;
    let live = Arc::new(Live::start(Arc::clone(&report)));
    Server::new(listener, Admin { report, metrics, guard, local, live }, config)
}

impl Admin {
    fn answer(&self, request: &Request<Incoming>) -> Response<Bytes> {
        if self.local && !is_local(request) {
            let message = "This address answers to 127.0.0.1, [::1] and localhost only.";
            return problem(StatusCode::FORBIDDEN, "foreign_host", message);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refusal = problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "There is nothing to change here.",
            );
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            // For probes, which know no secret; why is for those who do.
            "/readyz" if !self.guard.opens(request.headers()) => match self.report.ready() {
                Ok(()) => text(StatusCode::OK, "ready\n"),
                Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            },
            _ if !self.guard.opens(request.headers()) => unauthorized(),
            "/readyz" => match self.report.ready() {
                Ok(()) => text(StatusCode::OK, "ready\n"),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
            },
            "/metrics" => {
                self.report.measure();
                typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", self.metrics.render())
            }
            // The head; the stream itself is begun for a GET only.
            "/v1/events" => typed(StatusCode::OK, "text/event-stream", String::new()),
            "/v1/status" => {
                typed(StatusCode::OK, "application/json", format!("{:#}\n", self.report.status()))
            }
            "/" => dashboard::page(),
            _ => problem(
                StatusCode::NOT_FOUND,
                "not_found",
                "There is /, /healthz, /readyz, /metrics, /v1/status and /v1/events.",
            ),
        }
    }
}

fn unauthorized() -> Response<Bytes> {
    let message =
        "Show the admin secret: as the password, with any user name, or as `Authorization: Bearer`.";
    let mut refusal = problem(StatusCode::UNAUTHORIZED, "unauthorized", message);
    let challenge = HeaderValue::from_static("Basic realm=\"forebay\", charset=\"UTF-8\"");
    refusal.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    refusal
}

impl Admin {
    /// A page's stream, unless there are too many.
    fn events(&self) -> Response<AdminBody> {
        let Some(events) = self.live.open() else {
            let message = "As many pages look as may; close one.";
            let refusal = problem(StatusCode::SERVICE_UNAVAILABLE, "too_many_pages", message);
            return refusal.map(|whole| AdminBody::Whole(Full::new(whole)));
        };
        let mut response = Response::new(AdminBody::Events(events));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        harden(response.headers_mut());
        response.extensions_mut().insert(LiveStream);
        response
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            AdminBody::Whole(whole) => Pin::new(whole).poll_frame(cx),
            AdminBody::Events(events) => Pin::new(events).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AdminBody::Whole(whole) => whole.is_end_stream(),
            AdminBody::Events(events) => events.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Whole(whole) => whole.size_hint(),
            AdminBody::Events(events) => events.size_hint(),
        }
    }
}

fn text(status: StatusCode, body: impl Into<String>) -> Response<Bytes> {
    typed(status, "text/plain; charset=utf-8", body.into())
}

fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A page of somebody else's can make a name of its own point here, but can't make the browser call it otherwise.
fn is_local<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let Some(authority) = request.uri().authority().cloned().or(host) else { return true };
    let host = authority.host().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Service<Request<Incoming>> for Admin {
    type Response = Response<AdminBody>;
    type Error = Infallible;
    type Future = Ready<Result<Response<AdminBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answer = self.answer(&request);
        let streams = request.uri().path() == "/v1/events" && request.method() == Method::GET;
        ready(Ok(match streams && answer.status() == StatusCode::OK {
            true => self.events(),
            false => answer.map(|whole| AdminBody::Whole(Full::new(whole))),
        }))
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("local", &self.local).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_elsewhere_can_not_ask_through_a_browser() {
        let asked = |host: &str| is_local(&Request::builder().header(HOST, host).body(()).unwrap());
        for host in ["127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "127.1.2.3"] {
            assert!(asked(host), "{host}");
        }
        for host in ["rebound.example:8081", "127.0.0.1.example", "192.0.2.1:8081", "localhost.example"] {
            assert!(!asked(host), "{host}");
        }
        assert!(is_local(&Request::new(())), "HTTP/1.0 names no host");
    }
}
