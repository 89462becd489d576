//! Admission for any HTTP service, as a tower layer.
//!
//! Invariant: a request that is refused never reaches the service; one that is admitted holds its permit until the body of its
//! response is gone, or the service failed, panicked or was dropped. Refusing happens in `call`; `poll_ready` is the inner
//! service's own.
//! Kept by: the permit is a local of the call's future, and moves into the [`StreamBody`] with the response.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, Request, Response, request};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::admission::Admission;
use crate::body::StreamBody;
use crate::identity::{Identify, PeerAddr};
use crate::metrics;
use crate::permit::Permit;
use crate::rejection::Rejection;
use crate::stage::{code, staged};
use crate::thread_id::{ThreadId, X_THREAD_ID};
use crate::visitor::Class;

type Predicate = dyn Fn(&request::Parts) -> bool + Send + Sync;
type FindClass = dyn Fn(&request::Parts) -> Option<Class> + Send + Sync;
type FindPeer = dyn Fn(&Extensions) -> Option<SocketAddr> + Send + Sync;

/// Puts an [`Admission`] before a service.
///
/// Requests that are streams (all, unless [`streams`](Self::streams) says which) are identified and admitted, or answered with
/// a problem. Every request gets a thread id: in its headers and extensions, and in the headers of the response. An admitted
/// request has its [`User`](crate::User), if it has one, in its extensions.
#[derive(Clone)]
pub struct AdmissionLayer {
    admission: Admission,
    identify: Identify,
    streams: Arc<Predicate>,
    class: Arc<FindClass>,
    peer: Arc<FindPeer>,
}

impl AdmissionLayer {
    /// Every request is a stream; peers are found by the extension [`PeerAddr`].
    pub fn new(admission: Admission, identify: Identify) -> Self {
        let peer = |extensions: &Extensions| extensions.get::<PeerAddr>().map(|peer| peer.0);
        AdmissionLayer {
            admission,
            identify,
            streams: Arc::new(|_| true),
            class: Arc::new(|_| None),
            peer: Arc::new(peer),
        }
    }

    /// Which requests are streams and need a permit. The others pass.
    pub fn streams(mut self, are: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.streams = Arc::new(are);
        self
    }

    /// The class of a stream whoever asks for it, by its route for one. Of this class and the visitor's own, the one with the
    /// smaller share counts: a route can be made to stop earlier, and nobody gets further by it. Asked once the
    /// [`User`](crate::User) is in the extensions; default none.
    pub fn class(mut self, of: impl Fn(&request::Parts) -> Option<Class> + Send + Sync + 'static) -> Self {
        self.class = Arc::new(of);
        self
    }

    /// Where the peer's address is, if not in [`PeerAddr`].
    pub fn peer(mut self, find: impl Fn(&Extensions) -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        self.peer = Arc::new(find);
        self
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = AdmissionService<S>;

    fn layer(&self, service: S) -> AdmissionService<S> {
        AdmissionService { layer: Arc::new(self.clone()), service }
    }
}

/// A service behind an admission. Made by [`AdmissionLayer`].
#[derive(Clone)]
pub struct AdmissionService<S> {
    layer: Arc<AdmissionLayer>,
    service: S,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for AdmissionService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    ReqBody: Send + 'static,
    ResBody: Body<Data = Bytes> + 'static,
{
    type Response = Response<StreamBody<ResBody>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The one that was made ready is the one to call; a fresh clone takes its place.
        let fresh = self.service.clone();
        let service = std::mem::replace(&mut self.service, fresh);
        let layer = Arc::clone(&self.layer);
        Box::pin(async move { layer.run(service, request).await })
    }
}

impl AdmissionLayer {
    async fn run<S, ReqBody, ResBody>(
        &self,
        mut service: S,
        request: Request<ReqBody>,
    ) -> Result<Response<StreamBody<ResBody>>, S::Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: Body<Data = Bytes>,
    {
        let (mut parts, body) = request.into_parts();
        let thread = ThreadId::of(&parts.headers);
        let permit = if (self.streams)(&parts) {
            match self.admit(&mut parts, &thread).await {
                Ok(permit) => Some(permit),
                Err(rejection) => return Ok(rejection.response(&thread).map(StreamBody::answer)),
            }
        } else {
            self.strip(&mut parts, &thread);
            None
        };
        let header = thread.to_header();
        parts.headers.insert(X_THREAD_ID, header.clone());
        parts.extensions.insert(thread);
        let mut response = service.call(Request::from_parts(parts, body)).await?;
        response.headers_mut().insert(X_THREAD_ID, header);
        Ok(response.map(|body| match permit {
            Some(permit) => StreamBody::new(body, permit),
            None => StreamBody::free(body),
        }))
    }

    async fn admit(&self, parts: &mut request::Parts, thread: &ThreadId) -> Result<Permit, Rejection> {
        self.strip(parts, thread);
        let peer = (self.peer)(&parts.extensions).map(|peer| peer.ip());
        let identified = self.identify.identify(&parts.headers, peer).await;
        let visitor = identified.map_err(|fault| self.admission.turned_away(fault, thread))?;
        if let Some(user) = visitor.who() {
            parts.extensions.insert(user.clone());
        }
        let visitor = match (self.class)(parts) {
            Some(class) => visitor.within(class),
            None => visitor,
        };
        self.admission.admit(visitor.thread_id(thread.clone())).await
    }

    /// What only a trusted proxy may say goes no further if somebody else said it.
    fn strip(&self, parts: &mut request::Parts, thread: &ThreadId) {
        let peer = (self.peer)(&parts.extensions).map(|peer| peer.ip());
        for header in self.identify.strip_untrusted(&mut parts.headers, peer) {
            metrics::untrusted_header(&header);
            staged!(debug, code::ASKED, thread, None, %header, "ignored: no trusted proxy sent it");
        }
    }
}
