//! Tower layer that requires a permit for each stream.
//!
//! Invariant: a rejected request never reaches the inner service. An admitted one holds its permit
//! until its response body is dropped or ends, or until the service fails, panics or is dropped.
//! Enforced by: the permit is a local variable of the call's future, and moves into the
//! [`StreamBody`] with the response.
//! `poll_ready` polls the inner service only; `call` returns rejections.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response, request};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::adaptive_limiter::StreamStart;
use crate::admission::Admission;
use crate::client_identity::Class;
use crate::end_signal::EndSignal;
use crate::identity::{Identifier, PeerAddr, VerifiedToken};
use crate::metrics;
use crate::permit::Permit;
use crate::rejection::Rejection;
use crate::stream_body::StreamBody;
use crate::stream_log::{code, log_stream};
use crate::thread_id::{ThreadId, X_THREAD_ID};

type Predicate = dyn Fn(&request::Parts) -> bool + Send + Sync;
type FindClass = dyn Fn(&request::Parts) -> Option<Class> + Send + Sync;
type FindRoute = dyn Fn(&request::Parts) -> Option<Arc<str>> + Send + Sync;
type FindPeer = dyn Fn(&Extensions) -> Option<SocketAddr> + Send + Sync;
type PassSignal = dyn Fn(&mut Extensions, EndSignal) + Send + Sync;
type TakeToken = dyn Fn(&mut Extensions) -> Option<VerifiedToken> + Send + Sync;

/// Layer that puts an [`Admission`] in front of a service.
///
/// Stream requests are identified and admitted, or rejected with a problem document. By default
/// every request is a stream; see [`streams`](Self::streams). Every request gets a thread id, in
/// its headers and extensions and in the response headers. An admitted request has its
/// [`UserId`](crate::UserId), if any, and its [`EndSignal`] in its extensions.
#[derive(Clone)]
pub struct AdmissionLayer {
    admission: Admission,
    identify: Identifier,
    streams: Arc<Predicate>,
    class: Arc<FindClass>,
    route: Arc<FindRoute>,
    peer: Arc<FindPeer>,
    verified_token: Arc<TakeToken>,
    end_signal: Arc<PassSignal>,
}

impl AdmissionLayer {
    /// Creates a layer that treats every request as a stream and reads the peer from the extension
    /// [`PeerAddr`].
    pub fn new(admission: Admission, identify: Identifier) -> Self {
        let peer = |extensions: &Extensions| extensions.get::<PeerAddr>().map(|peer| peer.0);
        AdmissionLayer {
            admission,
            identify,
            streams: Arc::new(|_| true),
            class: Arc::new(|_| None),
            route: Arc::new(|_| None),
            peer: Arc::new(peer),
            verified_token: Arc::new(|_| None),
            end_signal: Arc::new(|extensions, signal| drop(extensions.insert(signal))),
        }
    }

    /// Sets which requests are streams and need a permit. Other requests pass.
    pub fn streams(mut self, are: impl Fn(&request::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.streams = Arc::new(are);
        self
    }

    /// Sets a class per request, for example by route. Of this class and the client's class, the
    /// one with the smaller share applies. The function runs when the [`UserId`](crate::UserId) is
    /// in the extensions. Default: none.
    pub fn class(mut self, of: impl Fn(&request::Parts) -> Option<Class> + Send + Sync + 'static) -> Self {
        self.class = Arc::new(of);
        self
    }

    /// Sets what a stream is for, such as the pattern of its route, for lists of streams. See
    /// [`ClientIdentity::route`](crate::ClientIdentity::route). Default: none.
    pub fn route(mut self, of: impl Fn(&request::Parts) -> Option<Arc<str>> + Send + Sync + 'static) -> Self {
        self.route = Arc::new(of);
        self
    }

    /// Sets how to take the token from a request's extensions, if an outer service has verified it
    /// with [`Identifier::token`]. The client is then identified by this token, which isn't
    /// verified again. Default: the layer verifies the token in the headers.
    pub fn verified_token(
        mut self,
        take: impl Fn(&mut Extensions) -> Option<VerifiedToken> + Send + Sync + 'static,
    ) -> Self {
        self.verified_token = Arc::new(take);
        self
    }

    /// Sets how an admitted request gets its [`EndSignal`]: a service with an extension of its own
    /// saves another one. Default: the signal is an extension.
    pub fn end_signal(mut self, pass: impl Fn(&mut Extensions, EndSignal) + Send + Sync + 'static) -> Self {
        self.end_signal = Arc::new(pass);
        self
    }

    /// Sets how the peer's address is found, if not by [`PeerAddr`].
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

/// Service behind an admission; created by [`AdmissionLayer`].
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
        // Calls the instance that `poll_ready` made ready, and replaces it by a new clone.
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
        let thread = ThreadId::from_headers(&parts.headers);
        let permit = if (self.streams)(&parts) {
            match self.admit(&mut parts, &thread).await {
                Ok(permit) => Some(permit),
                Err(rejection) => return Ok(rejection.response(&thread).map(StreamBody::rejection)),
            }
        } else {
            self.strip_untrusted(&mut parts, &thread);
            None
        };
        let header = thread.to_header();
        parts.headers.insert(X_THREAD_ID, header.clone());
        parts.extensions.insert(thread.clone());
        let end = permit.as_ref().map(Permit::end_signal);
        if let Some(end) = end {
            (self.end_signal)(&mut parts.extensions, end.clone());
        }
        // Dropped with this future if the client leaves before the response.
        let timer = permit.as_ref().and_then(Permit::start_timer);
        if let Some(timer) = &timer {
            parts.extensions.insert(timer.report().clone());
        }
        let call = service.call(Request::from_parts(parts, body));
        let Some(result) = unless_ended(call, end).await else {
            // An operator's decision says nothing about the load.
            if let Some(timer) = timer {
                timer.finish(StreamStart::Ignored);
            }
            let rejection = self.admission.reject_ended();
            return Ok(rejection.response(&thread).map(StreamBody::rejection));
        };
        if let Some(timer) = timer {
            let start = timer.reported().unwrap_or_else(|| stream_start(&result, timer.elapsed()));
            timer.finish(start);
        }
        let mut response = result?;
        response.headers_mut().insert(X_THREAD_ID, header);
        Ok(response.map(|body| match permit {
            Some(permit) => StreamBody::new(body, permit),
            None => StreamBody::without_permit(body),
        }))
    }

    async fn admit(&self, parts: &mut request::Parts, thread: &ThreadId) -> Result<Permit, Rejection> {
        self.strip_untrusted(parts, thread);
        let identified = match (self.verified_token)(&mut parts.extensions) {
            Some(token) => token.identity(),
            None => {
                let peer = (self.peer)(&parts.extensions).map(|peer| peer.ip());
                self.identify.identify(&parts.headers, peer).await
            }
        };
        let client = identified.map_err(|fault| self.admission.reject_unidentified(fault, thread))?;
        if let Some(user) = client.as_user() {
            parts.extensions.insert(user.clone());
        }
        let client = match (self.class)(parts) {
            Some(class) => client.route_class(class),
            None => client,
        };
        let client = match (self.route)(parts) {
            Some(route) => client.route(route),
            None => client,
        };
        self.admission.admit(client.thread_id(thread.clone())).await
    }

    /// Removes headers that only a trusted proxy may set, unless the peer is one.
    fn strip_untrusted(&self, parts: &mut request::Parts, thread: &ThreadId) {
        let peer = (self.peer)(&parts.extensions).map(|peer| peer.ip());
        for header in self.identify.strip_untrusted(&mut parts.headers, peer) {
            metrics::untrusted_header(&header);
            log_stream!(debug, code::REQUESTED, thread, None, %header, "header removed: peer is not a trusted proxy");
        }
    }
}

/// Returns how a response that began after `took`, or an error, counts for the adaptive limit.
fn stream_start<B, E>(result: &Result<Response<B>, E>, took: Duration) -> StreamStart {
    match result {
        Ok(response) => {
            let given = response.extensions().get().copied();
            given.unwrap_or_else(|| StreamStart::of(response.status(), took))
        }
        Err(_) => StreamStart::Failed,
    }
}

/// Waits for the output of a future. `None`: the signal was sent first, and the future is dropped.
async fn unless_ended<T>(future: impl Future<Output = T>, end: Option<&EndSignal>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        match end {
            Some(end) => end.poll_sent(cx).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}
