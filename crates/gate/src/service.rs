//! The gate's door: what is refused at sight, what needs a permit, and what just passes.
//!
//! Every request goes through admission's layer, which gives it a thread id; only streams are asked for a permit there.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_admission::{AdmissionLayer, AdmissionService, Class};
use forebay_stream::{Incoming, Peer};
use http::Request;
use tower_layer::Layer as _;
use tower_service::Service;

use super::drain::Kind;
use super::headers;
use super::proxy::{Proxy, Sight};
use super::routes::Routes;

/// What each connection calls; cheap to clone.
#[derive(Clone)]
pub(crate) struct GateService {
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
    type Response = <AdmissionService<Proxy> as Service<Request<Incoming>>>::Response;
    type Error = Infallible;
    type Future = <AdmissionService<Proxy> as Service<Request<Incoming>>>::Future;

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

#[cfg(feature = "otel")]
impl crate::otel::Routed for GateService {
    fn route(&self, request: &Request<Incoming>) -> Option<std::borrow::Cow<'static, str>> {
        let route = self.routes.find(request.method(), request.uri().path())?;
        Some(route.path().to_owned().into())
    }
}
