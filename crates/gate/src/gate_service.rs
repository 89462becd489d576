//! Gate service: classifies requests, takes permits for streams, and forwards or refuses requests.
//!
//! Every request passes admission's layer, which sets `X-Thread-ID`. Only streams take a permit
//! there.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_admission::{AdmissionLayer, AdmissionService, StreamBody};
use forebay_stream::{ClientAddr, Incoming};
use http::{Request, Response};
use tower_layer::Layer as _;
use tower_service::Service;

use super::bad_request;
use super::drain::RequestKind;
use super::forwarder::{Forwarder, RequestClassification};
use super::gate_body::GateBody;
use super::stream_routes::{StreamRoute, StreamRoutes};
use super::upgrade_offer::UpgradeOffer;

/// The tower service that each client connection calls. Cheap to clone.
#[derive(Clone)]
pub struct GateService {
    admission: AdmissionService<Forwarder>,
    routes: Arc<StreamRoutes>,
}

impl GateService {
    pub(crate) fn new(layer: AdmissionLayer, forwarder: Forwarder, routes: Arc<StreamRoutes>) -> GateService {
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
        GateService { admission: layer.layer(forwarder), routes }
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.admission.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let (classification, route) = self.classify(&request);
        let (class, text) = (route.and_then(StreamRoute::class).cloned(), route.map(StreamRoute::text));
        let extensions = request.extensions_mut();
        extensions.insert(classification);
        if let Some(class) = class {
            extensions.insert(class);
        }
        if let Some(text) = text {
            extensions.insert(RouteText(text));
        }
        self.admission.call(request)
    }
}

impl fmt::Debug for GateService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateService").field("routes", &self.routes).finish_non_exhaustive()
    }
}
