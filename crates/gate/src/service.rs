//! The gate's door: what is refused at sight, what needs a permit, and what just passes.
//!
//! Every request goes through admission's layer, which gives it a thread id; only streams are asked for a permit there.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_admission::{AdmissionLayer, AdmissionService, Class, StreamBody};
use forebay_stream::{Incoming, Peer};
use http::{Request, Response};
use tower_layer::Layer as _;
use tower_service::Service;

use super::body::GateBody;
use super::drain::Kind;
use super::headers;
use super::proxy::{Proxy, Sight};
use super::routes::{Route, Routes};

/// What each connection calls; cheap to clone.
#[derive(Clone)]
pub struct GateService {
    admitted: AdmissionService<Proxy>,
    routes: Arc<Routes>,
}

impl GateService {
    pub(crate) fn new(layer: AdmissionLayer, proxy: Proxy, routes: Arc<Routes>) -> GateService {
        let layer = layer
            .streams(|parts| parts.extensions.get::<Sight>().is_none_or(|sight| sight.kind.takes_permit()))
            .class(|parts| parts.extensions.get().cloned())
            .peer(|extensions| extensions.get::<Peer>().map(|peer| peer.0));
        GateService { admitted: layer.layer(proxy), routes }
    }

    /// Returns the stream route of a request, as the settings name it.
    pub fn route(&self, request: &Request<Incoming>) -> Option<&Route> {
        self.routes.find(request.method(), request.uri().path())
    }

    /// What it is, and the class of its route, if that has one.
    fn see(&self, request: &Request<Incoming>) -> (Sight, Option<Class>) {
        if let Err(bad) = headers::check(request) {
            return (Sight { kind: Kind::Plain, bad: Some(bad) }, None); // takes no permit for its refusal
        }
        let (kind, class) = if self.routes.is_empty() {
            (Kind::Anything, None)
        } else {
            match self.routes.find(request.method(), request.uri().path()) {
                Some(route) => (Kind::Stream, route.class().cloned()),
                None => (Kind::Plain, None),
            }
        };
        (Sight { kind, bad: None }, class)
    }
}

impl Service<Request<Incoming>> for GateService {
    type Response = Response<StreamBody<GateBody>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.admitted.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let (sight, class) = self.see(&request);
        request.extensions_mut().insert(sight);
        if let Some(class) = class {
            request.extensions_mut().insert(class);
        }
        self.admitted.call(request)
    }
}

impl fmt::Debug for GateService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateService").field("routes", &self.routes).finish_non_exhaustive()
    }
}
