//! Gate service: classifies requests, takes permits for streams, and forwards or refuses requests.
//!
//! Every request passes admission's layer, which sets `X-Thread-ID`. Only streams take a permit
//! there.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_admission::{AdmissionLayer, AdmissionService, StreamBody};
use forebay_stream::{ClientAddr, Incoming};
use http::{Request, Response};
use tower_layer::Layer as _;
use tower_service::Service;

use super::bad_request;
use super::drain::RequestKind;
use super::forwarder::{Forwarder, RequestClassification};
use super::gate_body::GateBody;
use super::outcome_counters::{GateOutcome, OutcomeCounters, OutcomeGuard};
use super::stream_routes::{StreamRoute, StreamRoutes};
use super::upgrade_offer::UpgradeOffer;

/// The tower service that each client connection calls. Cheap to clone.
#[derive(Clone)]
pub struct GateService {
    admission: AdmissionService<Forwarder>,
    routes: Arc<StreamRoutes>,
    outcomes: Arc<OutcomeCounters>,
}

impl GateService {
    pub(crate) fn new(
        layer: AdmissionLayer,
        forwarder: Forwarder,
        routes: Arc<StreamRoutes>,
        outcomes: Arc<OutcomeCounters>,
    ) -> GateService {
        let layer = layer
            .streams(|parts| {
                parts
                    .extensions
                    .get::<RequestClassification>()
                    .is_none_or(|classification| classification.kind.takes_permit())
            })
            .class(|parts| parts.extensions.get().cloned())
            .route(|parts| parts.extensions.get::<RouteText>().map(|route| Arc::clone(&route.0)))
            .peer(|extensions| extensions.get::<ClientAddr>().map(|peer| peer.0));
        GateService { admission: layer.layer(forwarder), routes, outcomes }
    }

    /// Returns the configured stream route that a request matches.
    pub fn route(&self, request: &Request<Incoming>) -> Option<&StreamRoute> {
        self.routes.find(request.method(), request.uri().path())
    }

    /// Returns the kind of a request or why it is refused, and its stream route, if any.
    fn classify(&self, request: &Request<Incoming>) -> (RequestClassification, Option<&StreamRoute>) {
        if let Err(bad_request) = bad_request::check(request) {
            // A refusal needs no permit.
            return (RequestClassification { kind: RequestKind::Plain, rejection: Some(bad_request) }, None);
        }
        let (kind, route) = if self.routes.is_empty() {
            (RequestKind::Any, None)
        } else {
            match self.routes.find(request.method(), request.uri().path()) {
                Some(route) => (RequestKind::Stream, Some(route)),
                // An upgraded connection is open for long, whatever its path is.
                None if UpgradeOffer::of(request.version(), request.headers()).is_some() => {
                    (RequestKind::Stream, None)
                }
                None => (RequestKind::Plain, None),
            }
        };
        (RequestClassification { kind, rejection: None }, route)
    }
}

/// Request extension: the stream route of a request, as configured.
#[derive(Debug, Clone)]
struct RouteText(Arc<str>);

impl Service<Request<Incoming>> for GateService {
    type Response = Response<StreamBody<GateBody>>;
    type Error = Infallible;
    type Future = GateFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.admission.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> GateFuture {
        let (classification, route) = self.classify(&request);
        let (class, text) = (route.and_then(StreamRoute::class).cloned(), route.map(StreamRoute::text));
        let guard = self.outcomes.guard(classification.kind, request.headers());
        let extensions = request.extensions_mut();
        extensions.insert(classification);
        if let Some(class) = class {
            extensions.insert(class);
        }
        if let Some(text) = text {
            extensions.insert(RouteText(text));
        }
        GateFuture { response: self.admission.call(request), guard: Some(guard) }
    }
}

/// Future of a response. Counts the request as cancelled if it is dropped before the response.
pub struct GateFuture {
    response: <AdmissionService<Forwarder> as Service<Request<Incoming>>>::Future,
    /// `None` once the response has it.
    guard: Option<OutcomeGuard>,
}

impl Future for GateFuture {
    type Output = Result<Response<StreamBody<GateBody>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(mut response) = ready!(self.response.as_mut().poll(cx));
        if let Some(mut guard) = self.guard.take() {
            let status = response.status();
            match response.body_mut().stream_mut() {
                Some(body) => body.count_outcome(guard, status),
                None => guard.set(GateOutcome::of_refusal(status)),
            }
        }
        Poll::Ready(Ok(response))
    }
}

impl fmt::Debug for GateFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateFuture").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl fmt::Debug for GateService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateService").field("routes", &self.routes).finish_non_exhaustive()
    }
}
