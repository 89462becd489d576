//! What operators see, on an address of their own: a page at `/`, fed by `/v1/events`; `/healthz`, `/readyz`, `/metrics` and
//! `/v1/status`.
//!
//! Invariant: nothing here changes anything. Whoever doesn't show the secret, if there is one, learns only whether the process lives
//! and is ready. Without one it listens on this machine only, unless told otherwise; and there it answers only to this machine's
//! names, so that no web page can have a browser ask.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay_admission::problem;
use forebay_serve::host::{OWN_NAMES, is_local};
use forebay_stream::{HttpServer, HttpServerConfig, Incoming, LiveBody};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
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

/// Operators are few.
const MAX_CONNECTIONS: usize = 128;

/// What makes sense everywhere here: nothing changes anything.
pub(crate) const METHODS: &str = "GET, HEAD";

/// Where a path leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Page,
    Alive,
    Ready,
    Metrics,
    Status,
    Events,
}

impl Place {
    pub(crate) const ALL: [Place; 6] =
        [Place::Page, Place::Alive, Place::Ready, Place::Metrics, Place::Status, Place::Events];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Place::Page => "/",
            Place::Alive => "/healthz",
            Place::Ready => "/readyz",
            Place::Metrics => "/metrics",
            Place::Status => "/v1/status",
            Place::Events => "/v1/events",
        }
    }

    fn of(path: &str) -> Option<Place> {
        Place::ALL.into_iter().find(|place| place.path() == path)
    }
}

/// What a command of this program tells of itself.
pub trait Report: Send + Sync + 'static {
    /// Whether clients should be sent here.
    fn readiness(&self) -> Readiness;

    /// Everything.
    fn status(&self) -> Value;

    /// What a page shows each second: the same, of bounded size. May block for the disk.
    fn glance(&self) -> Value;

    /// What is plotted: cheap.
    fn sample(&self) -> Sample;

    /// Sets the metrics that are measured only when somebody looks.
    fn measure(&self);
}

/// Whether clients should be sent here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Yes: another instance follows the database, and what it writes is served here. A deploy that waits for the new instance before it ends
    /// the old one could never go on if this were a no.
    Waiting,
    /// No, and why, in one line.
    Not(&'static str),
}

impl Readiness {
    /// Whether they should.
    pub fn is_ready(self) -> bool {
        self.why_not().is_none()
    }

    /// Why they shouldn't.
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Readiness::Ready | Readiness::Waiting => None,
            Readiness::Not(why) => Some(why),
        }
    }

    /// What probes are told; why is for those who know the secret.
    fn response(self, tells_why: bool) -> Response<Bytes> {
        match self {
            Readiness::Ready => text(StatusCode::OK, "ready\n"),
            Readiness::Waiting => text(StatusCode::OK, "waiting\n"),
            Readiness::Not(why) if tells_why => {
                text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"))
            }
            Readiness::Not(_) => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        }
    }
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
) -> HttpServer<Admin> {
    let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut config = HttpServerConfig::default();
    config.max_connections = MAX_CONNECTIONS;
    let live = Arc::new(Live::start(Arc::clone(&report)));
    HttpServer::new(listener, Admin { report, metrics, guard, local, live }, config)
}

impl Admin {
    fn answer(&self, request: &Request<Incoming>) -> Response<Bytes> {
        if self.local && !is_local(request) {
            return problem(StatusCode::FORBIDDEN, "foreign_host", &format!("{OWN_NAMES}."));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refusal = problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "There is nothing to change here.",
            );
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(METHODS));
            return refusal;
        }
        match Place::of(request.uri().path()) {
            Some(Place::Alive) => text(StatusCode::OK, "ok\n"),
            Some(Place::Ready) => self.report.readiness().response(self.guard.opens(request.headers())),
            _ if !self.guard.opens(request.headers()) => unauthorized(),
            Some(Place::Metrics) => {
                self.report.measure();
                typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", self.metrics.render())
            }
            // The head; the stream itself is begun for a GET only.
            Some(Place::Events) => typed(StatusCode::OK, "text/event-stream", String::new()),
            Some(Place::Status) => {
                typed(StatusCode::OK, "application/json", format!("{:#}\n", self.report.status()))
            }
            Some(Place::Page) => dashboard::page(),
            None => {
                let message = format!("There are {}.", Place::ALL.map(Place::path).join(", "));
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
        response.extensions_mut().insert(LiveBody);
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

impl Service<Request<Incoming>> for Admin {
    type Response = Response<AdminBody>;
    type Error = Infallible;
    type Future = Ready<Result<Response<AdminBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answer = self.answer(&request);
        let streams =
            Place::of(request.uri().path()) == Some(Place::Events) && request.method() == Method::GET;
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
