//! Admin address: the dashboard at `/`, its event stream at `/v1/events`, the probes `/healthz` and
//! `/readyz`, `/metrics`, `/v1/status`, and the open streams at `/v1/streams`.
//!
//! Invariant: only a POST to `/v1/streams/end` changes anything: it ends a stream. A client without
//! the configured secret learns only whether the process is alive and ready. On a loopback address,
//! only requests for a name of this machine are answered, so that no web page can read it through a
//! browser.
//! Enforced by: other routes allow only GET and HEAD. [`SecretGuard`] is checked before every route
//! except the probes; `stream_endpoints.rs` is stricter. The `Host` header is checked by
//! [`is_local`].
//! At most `MAX_CONNECTIONS` connections.
//! Out of scope: whether an address beyond this machine is allowed without a secret; `config/`
//! checks that.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay_admission::directory::StreamDirectory;
use forebay_admission::problem;
use forebay_serve::host::{OWN_NAMES, is_local};
use forebay_stream::{HttpServer, HttpServerConfig, Incoming, LiveBody};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::net::TcpListener;
use tower_service::Service;

use crate::dashboard::{self, DashboardFeed, DashboardSample, EventStream};
use crate::html_page::add_security_headers;
use crate::secret_guard::SecretGuard;
use crate::stream_endpoints::{self, refuse_end};

/// Maximum number of open connections. Only operators and probes connect.
const MAX_CONNECTIONS: usize = 128;

/// Value of the `Allow` header of routes that change nothing.
const READ_METHODS: &str = "GET, HEAD";

/// Route of the admin address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminRoute {
    Dashboard,
    Health,
    Readiness,
    Metrics,
    Status,
    Events,
    Streams,
    EndStream,
}

impl AdminRoute {
    pub(crate) const ALL: [AdminRoute; 8] = [
        AdminRoute::Dashboard,
        AdminRoute::Health,
        AdminRoute::Readiness,
        AdminRoute::Metrics,
        AdminRoute::Status,
        AdminRoute::Events,
        AdminRoute::Streams,
        AdminRoute::EndStream,
    ];

    /// Returns the path of the route.
    pub(crate) fn path(self) -> &'static str {
        match self {
            AdminRoute::Dashboard => "/",
            AdminRoute::Health => "/healthz",
            AdminRoute::Readiness => "/readyz",
            AdminRoute::Metrics => "/metrics",
            AdminRoute::Status => "/v1/status",
            AdminRoute::Events => "/v1/events",
            AdminRoute::Streams => "/v1/streams",
            AdminRoute::EndStream => "/v1/streams/end",
        }
    }

    /// Returns the allowed methods, as in the `Allow` header.
    pub(crate) fn methods(self) -> &'static str {
        match self {
            AdminRoute::EndStream => "POST",
            AdminRoute::Dashboard
            | AdminRoute::Health
            | AdminRoute::Readiness
            | AdminRoute::Metrics
            | AdminRoute::Status
            | AdminRoute::Events
            | AdminRoute::Streams => READ_METHODS,
        }
    }

    /// Returns the route of a path.
    fn of(path: &str) -> Option<AdminRoute> {
        AdminRoute::ALL.into_iter().find(|route| route.path() == path)
    }
}

/// State of a server, for probes, status, dashboard and metrics.
pub trait StatusReport: Send + Sync + 'static {
    /// Returns whether clients should be sent to this instance.
    fn readiness(&self) -> Readiness;

    /// Returns the complete status, for `/v1/status`.
    fn status(&self) -> Value;

    /// Returns the status for the dashboard, of bounded size. Called each second while a page is
    /// open. May block on disk reads.
    fn dashboard_status(&self) -> Value;

    /// Returns one sample for the plots. Called each second, so it must be cheap.
    fn sample(&self) -> DashboardSample;

    /// Sets the gauges that are read on request.
    fn measure(&self);
}

/// Whether clients should be sent to this instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Clients should be sent here.
    Ready,
    /// Another instance follows the database, and this one serves what that one writes. Counts as
    /// ready: a rolling deploy stops the old instance only when the new one is ready, and would
    /// otherwise never finish.
    Waiting,
    /// Clients should not be sent here, with the reason in one line.
    NotReady(&'static str),
}

impl Readiness {
    /// Returns whether clients should be sent to this instance.
    pub fn is_ready(self) -> bool {
        self.not_ready_reason().is_none()
    }

    /// Returns the reason, unless the instance is ready.
    pub fn not_ready_reason(self) -> Option<&'static str> {
        match self {
            Readiness::Ready | Readiness::Waiting => None,
            Readiness::NotReady(why) => Some(why),
        }
    }

    /// Returns the response to a probe. The reason is included only if the request has the secret.
    fn response(self, with_reason: bool) -> Response<Bytes> {
        match self {
            Readiness::Ready => text_response(StatusCode::OK, "ready\n"),
            Readiness::Waiting => text_response(StatusCode::OK, "waiting\n"),
            Readiness::NotReady(why) if with_reason => {
                text_response(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"))
            }
            Readiness::NotReady(_) => text_response(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        }
    }
}

/// HTTP service of the admin address.
#[derive(Clone)]
pub struct AdminService {
    report: Arc<dyn StatusReport>,
    metrics: PrometheusHandle,
    guard: SecretGuard,
    /// Whether the listener's address is a loopback address.
    is_loopback: bool,
    feed: Arc<DashboardFeed>,
    streams: Arc<StreamDirectory>,
}

/// Body of a response: completely in memory, or the event stream of an open dashboard.
pub type AdminBody = Either<Full<Bytes>, EventStream>;

/// Returns the server of the admin address. Needs a tokio runtime.
pub(crate) fn server(
    listener: TcpListener,
    report: Arc<dyn StatusReport>,
    metrics: PrometheusHandle,
    guard: SecretGuard,
    streams: Arc<StreamDirectory>,
) -> HttpServer<AdminService> {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut config = HttpServerConfig::default();
    config.max_connections = MAX_CONNECTIONS;
    let feed = Arc::new(DashboardFeed::start(Arc::clone(&report)));
    HttpServer::new(listener, AdminService { report, metrics, guard, is_loopback, feed, streams }, config)
}

impl AdminService {
    /// Returns the response, except the body of an event stream and the results for streams.
    fn respond(&self, request: &Request<Incoming>) -> Response<Bytes> {
        if self.is_loopback && !is_local(request) {
            return problem(StatusCode::FORBIDDEN, "foreign_host", &format!("{OWN_NAMES}."));
        }
        let route = AdminRoute::of(request.uri().path());
        let methods = route.map_or(READ_METHODS, AdminRoute::methods);
        if !methods.split(", ").any(|method| method == request.method().as_str()) {
            let message = format!("Here is only {methods}.");
            let mut refusal = problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &message);
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
            return refusal;
        }
        match route {
            Some(AdminRoute::Health) => text_response(StatusCode::OK, "ok\n"),
            Some(AdminRoute::Readiness) => {
                self.report.readiness().response(self.guard.accepts(request.headers()))
            }
            // `call` ends the stream, if the request isn't refused.
            Some(AdminRoute::EndStream) => refuse_end(request.headers(), &self.guard).unwrap_or_default(),
            _ if !self.guard.accepts(request.headers()) => unauthorized(),
            Some(AdminRoute::Metrics) => {
                self.report.measure();
                typed_response(
                    StatusCode::OK,
                    "text/plain; version=0.0.4; charset=utf-8",
                    self.metrics.render(),
                )
            }
            // Head of the response. `call` opens the stream, and only for a GET.
            Some(AdminRoute::Events) => typed_response(StatusCode::OK, "text/event-stream", String::new()),
            // Head of the response. `call` asks the instances, and only for a GET.
            Some(AdminRoute::Streams) => typed_response(StatusCode::OK, "application/json", String::new()),
            Some(AdminRoute::Status) => {
                typed_response(StatusCode::OK, "application/json", format!("{:#}\n", self.report.status()))
            }
            Some(AdminRoute::Dashboard) => dashboard::page(),
            None => {
                let message = format!("There are {}.", AdminRoute::ALL.map(AdminRoute::path).join(", "));
                problem(StatusCode::NOT_FOUND, "not_found", &message)
            }
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

impl AdminService {
    /// Returns the event stream of one dashboard, or a 503 if `MAX_PAGES` are open.
    fn events(&self) -> Response<AdminBody> {
        let Some(events) = self.feed.subscribe() else {
            let message = "As many pages look as may; close one.";
            let refusal = problem(StatusCode::SERVICE_UNAVAILABLE, "too_many_pages", message);
            return refusal.map(|body| AdminBody::Left(Full::new(body)));
        };
        let mut response = Response::new(AdminBody::Right(events));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no")); // nginx
        add_security_headers(response.headers_mut());
        response.extensions_mut().insert(LiveBody);
        response
    }
}

fn text_response(status: StatusCode, body: impl Into<String>) -> Response<Bytes> {
    typed_response(status, "text/plain; charset=utf-8", body.into())
}

fn typed_response(status: StatusCode, kind: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl Service<Request<Incoming>> for AdminService {
    type Response = Response<AdminBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AdminBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answer = self.respond(&request);
        let complete = |response: Response<Bytes>| response.map(|body| AdminBody::Left(Full::new(body)));
        if answer.status() != StatusCode::OK {
            return Box::pin(ready(Ok(complete(answer))));
        }
        let (route, method) = (AdminRoute::of(request.uri().path()), request.method());
        let (directory, query) = (Arc::clone(&self.streams), request.uri().query().unwrap_or_default());
        match (route, method) {
            (Some(AdminRoute::Events), &Method::GET) => Box::pin(ready(Ok(self.events()))),
            (Some(AdminRoute::Streams), &Method::GET) => {
                let query = query.to_owned();
                Box::pin(async move { Ok(complete(stream_endpoints::list(&directory, &query).await)) })
            }
            (Some(AdminRoute::EndStream), _) => {
                let query = query.to_owned();
                Box::pin(async move { Ok(complete(stream_endpoints::end(&directory, &query).await)) })
            }
            (_, _) => Box::pin(ready(Ok(complete(answer)))),
        }
    }
}

impl std::fmt::Debug for AdminService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminService").field("is_loopback", &self.is_loopback).finish_non_exhaustive()
    }
}
