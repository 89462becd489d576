//! From a client's request to the upstream's response.
//!
//! Invariant: bodies pass as they come, both ways, and nothing is kept; whoever drops the response, or the wait for it,
//! has cancelled the upstream's part by that.
//! Kept by: the connection to the upstream is owned by this future, then by the body (`connection.rs`, `download.rs`).
//! Not here: permits. A request that comes here has one if it needs one.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_admission::{ForwardedBy, Identify, Network, UserId};
use forebay_stream::{Incoming, LiveBody, Peer};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use tokio::time::Instant;
use tower_service::Service;
use tracing::{debug, info, warn};

use super::body::GateBody;
use super::download::Download;
use super::drain::{Drain, InFlight, Kind};
use super::failure::UpstreamError;
use super::headers::{
    BadRequest, Origin, Trust, drop_false_length, has_foreign_coding, requested_host, rewrite_request,
    rewrite_response,
};
use super::metrics;
use super::refusal::Refusal;
use super::upload::Upload;
use super::upstream::Upstream;

/// Passes requests on; cheap to clone.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<Shared>);

/// What a proxy is made of.
pub(crate) struct Shared {
    pub(crate) upstream: Upstream,
    pub(crate) preserve_host: bool,
    /// How clients reach the gate: `http` or `https`.
    pub(crate) scheme: &'static str,
    pub(crate) trusted_proxies: Vec<Network>,
    pub(crate) forwarded_by: ForwardedBy,
    /// Names under which a user is told, to the gate or by it.
    pub(crate) user_headers: Vec<HeaderName>,
    pub(crate) forward_user_header: Option<HeaderName>,
    pub(crate) identify: Identify,
    pub(crate) request_idle_timeout: Duration,
    pub(crate) drain: Drain,
    /// The last exchange failed: to log the change, and not each failure.
    pub(crate) failing: AtomicBool,
    /// The same for what the gate itself has run out of.
    pub(crate) exhausted: AtomicBool,
}

impl Proxy {
    pub(crate) fn new(shared: Shared) -> Proxy {
        Proxy(Arc::new(shared))
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    pub(crate) fn drain(&self) -> &Drain {
        &self.0.drain
    }

    /// Whether the last exchange failed by the upstream's fault.
    pub(crate) fn is_failing(&self) -> bool {
        self.0.failing.load(Ordering::Relaxed)
    }

    async fn pass(self, request: Request<Incoming>, inside: InFlight) -> Response<GateBody> {
        let kind = inside.kind();
        let (mut parts, body) = request.into_parts();
        let (version, method) = (parts.version, parts.method.clone());
        let mut waiting = Waiting { kind, over: false };
        let begun = Instant::now();
        let answer = match self.rewrite(&mut parts, kind).await {
            Ok(()) => {
                let upload = Upload::new(body, self.0.request_idle_timeout);
                if upload.size_hint().exact().is_none() {
                    // hyper would send no body of such a GET or HEAD.
                    parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
                }
                self.0.upstream.send(Request::from_parts(parts, upload)).await
            }
            Err(refusal) => {
                waiting.over = true;
                return refusal.response(version);
            }
        };
        waiting.over = true;
        self.note(&answer);
        match answer {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                metrics::upstream_failed("upstream_switched");
                Refusal::Switched.response(version)
            }
            Ok(response) if has_foreign_coding(response.headers()) => {
                metrics::upstream_failed("upstream_bad_coding");
                Refusal::Coding.response(version)
            }
            Ok(response) => {
                metrics::answered(kind, response.status(), begun.elapsed());
                relay(response, inside, version, &method)
            }
            Err(error) => {
                debug!(kind = kind.as_str(), reason = error.as_str(), %error, "no response");
                if error.is_upstreams_fault() {
                    metrics::upstream_failed(error.as_str());
                }
                Refusal::Upstream(error).response(version)
            }
        }
    }

    async fn rewrite(&self, parts: &mut Parts, kind: Kind) -> Result<(), Refusal> {
        let shared = &*self.0;
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.0.ip()).ok_or(Refusal::NoPeer)?;
        let user = self.user(parts, kind, peer).await;
        let asked_host = requested_host(&parts.uri, &parts.headers);
        let host = asked_host.clone().filter(|_| shared.preserve_host);
        let host = host.unwrap_or_else(|| shared.upstream.host().clone());
        let (scheme, user_headers) = (shared.scheme, &shared.user_headers);
        let origin = Origin { peer, scheme, trust: self.trust(peer), user_headers };
        let dropped = rewrite_request(&mut parts.headers, parts.version, host, asked_host, origin);
        metrics::untrusted_headers(dropped);
        if let Some(header) = &shared.forward_user_header {
            parts.headers.remove(header);
            if let Some(value) = user.and_then(|user| HeaderValue::from_bytes(user.id().as_bytes()).ok()) {
                parts.headers.insert(header.clone(), value);
            }
        }
        // The origin form, byte for byte; only an authority or a scheme before it is left out.
        let path = parts.uri.path_and_query().cloned().ok_or(Refusal::Bad(BadRequest::Target))?;
        parts.uri = Uri::from(path);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        Ok(())
    }

    /// Who asks, if the upstream is to be told. Admission knows for streams; for other requests nobody has asked yet, and
    /// a credential that doesn't hold is the upstream's to refuse.
    async fn user(&self, parts: &Parts, kind: Kind, peer: IpAddr) -> Option<UserId> {
        self.0.forward_user_header.as_ref()?;
        let user = if kind.takes_permit() {
            parts.extensions.get::<UserId>().cloned()
        } else {
            let visitor = self.0.identify.identify(&parts.headers, Some(peer)).await.ok()?;
            visitor.as_user().cloned()
        };
        user.filter(|user| !user.is_address())
    }

    fn trust(&self, peer: IpAddr) -> Trust {
        let trusted = self.0.trusted_proxies.iter().any(|network| network.contains(peer));
        match (trusted, self.0.forwarded_by) {
            (false, _) => Trust::Nothing,
            (true, ForwardedBy::Forwarded) => Trust::Forwarded,
            (true, _) => Trust::XForwarded, // `ForwardedBy` is open; the settings allow these two
        }
    }

    /// Logs when the upstream begins to fail, or the gate has nothing left to reach it with, and when that is over.
    fn note(&self, answer: &Result<Response<Download>, UpstreamError>) {
        match answer {
            Ok(_) => {
                if self.0.failing.swap(false, Ordering::Relaxed) {
                    info!("the upstream answers again");
                }
                if self.0.exhausted.swap(false, Ordering::Relaxed) {
                    info!("the gate can reach the upstream again");
                }
            }
            Err(error @ UpstreamError::Exhausted(_)) => {
                if !self.0.exhausted.swap(true, Ordering::Relaxed) {
                    warn!(reason = error.as_str(), %error, "the gate can't reach the upstream, by its own want");
                }
            }
            Err(error) if error.is_upstreams_fault() => {
                if !self.0.failing.swap(true, Ordering::Relaxed) {
                    warn!(reason = error.as_str(), %error, "the upstream fails");
                }
            }
            Err(_) => {}
        }
    }
}

fn relay(
    response: Response<Download>,
    inside: InFlight,
    version: Version,
    method: &Method,
) -> Response<GateBody> {
    let (mut parts, mut download) = response.into_parts();
    parts.version = Version::HTTP_11; // the server writes its own
    parts.extensions.clear();
    drop_false_length(&mut parts.headers);
    if is_live(&parts, inside.kind(), version, method) {
        parts.extensions.insert(LiveBody);
        download = download.lean(&parts.headers);
    }
    rewrite_response(&mut parts.headers);
    Response::from_parts(parts, GateBody::relayed(download, inside))
}

/// A response that has no end in sight. It costs its connection the next request, so where everything takes a permit
/// only what calls itself a stream of events is one.
fn is_live(parts: &http::response::Parts, kind: Kind, version: Version, method: &Method) -> bool {
    let endless = version == Version::HTTP_11
        && method != Method::HEAD
        && parts.status.is_success()
        && parts.status != StatusCode::NO_CONTENT
        && !parts.headers.contains_key(CONTENT_LENGTH);
    endless
        && match kind {
            Kind::Plain => false,
            Kind::Stream => true,
            Kind::Anything => {
                let kind = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
                kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
            }
        }
}

impl Service<Request<Incoming>> for Proxy {
    type Response = Response<GateBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<GateBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let Sight { kind, bad } = request.extensions().get().copied().unwrap_or_default();
        let refusal = match (bad, self.0.drain.enter(kind)) {
            (None, Some(inside)) => {
                let proxy = self.clone();
                return Box::pin(async move { Ok(proxy.pass(request, inside).await) });
            }
            (Some(bad), _) => Refusal::Bad(bad),
            (None, None) => Refusal::Draining,
        };
        Box::pin(ready(Ok(refusal.response(request.version()))))
    }
}

/// What is seen of a request at first sight; an extension of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sight {
    pub(crate) kind: Kind,
    pub(crate) bad: Option<BadRequest>,
}

/// Counts a client that leaves before the upstream has answered.
struct Waiting {
    kind: Kind,
    over: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.over {
            metrics::cancelled(self.kind, metrics::Stage::Head);
        }
    }
}
