//! Forwarder: sends a client's request to the upstream and relays the response.
//!
//! Invariant: bodies pass in both directions as they arrive, without buffering. Dropping the
//! response, or the wait for it, cancels the request to the upstream.
//! Enforced by: the request's future owns the connection to the upstream, then the response body
//! does (`upstream_connection.rs`, `download.rs`).
//! Out of scope: permits. Admission's layer has taken one for each request that needs one.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_admission::{EndSignal, ForwardedHeader, Identifier, Network, StartReport, UserId};
use forebay_stream::{ClientAddr, ConnectionUpgrade, Incoming, LiveBody};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use tokio::time::Instant;
use tower_service::Service;
use tracing::{debug, info, warn};

use super::bad_request::{BadRequest, has_unsupported_coding};
use super::download::Download;
use super::drain::{Drain, InFlightRequest, RequestKind};
use super::gate_body::GateBody;
use super::gate_refusal::GateRefusal;
use super::headers::{
    ClientOrigin, PeerTrust, remove_overridden_length, requested_host, rewrite_request, rewrite_response,
};
use super::metrics;
use super::start_clock::StartClock;
use super::tunnel::Tunnel;
use super::upgrade_offer::UpgradeOffer;
use super::upload::Upload;
use super::upstream::Upstream;
use super::upstream_error::UpstreamError;

/// Forwards requests to the upstream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Forwarder(Arc<ForwarderState>);

/// Settings and state that all clones of a [`Forwarder`] share.
pub(crate) struct ForwarderState {
    pub(crate) upstream: Upstream,
    pub(crate) preserve_host: bool,
    /// Scheme by which clients reach the gate: `http` or `https`.
    pub(crate) scheme: &'static str,
    pub(crate) trusted_proxies: Vec<Network>,
    pub(crate) forwarded_by: ForwardedHeader,
    /// Headers that carry a user id to the gate or to the upstream.
    pub(crate) user_headers: Vec<HeaderName>,
    pub(crate) forward_user_header: Option<HeaderName>,
    pub(crate) identify: Identifier,
    pub(crate) request_idle_timeout: Duration,
    pub(crate) upgrade_idle_timeout: Duration,
    pub(crate) drain: Drain,
    /// Whether the upstream has failed since its last response. Only transitions are logged.
    pub(crate) failing: AtomicBool,
    /// Whether the gate has run out of descriptors, ports or memory since the upstream's last
    /// response. Only transitions are logged.
    pub(crate) exhausted: AtomicBool,
}

impl Forwarder {
    pub(crate) fn new(state: ForwarderState) -> Forwarder {
        Forwarder(Arc::new(state))
    }

    pub(crate) fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    pub(crate) fn drain(&self) -> &Drain {
        &self.0.drain
    }

    /// Returns whether the upstream has failed since its last response.
    pub(crate) fn is_failing(&self) -> bool {
        self.0.failing.load(Ordering::Relaxed)
    }

    /// Forwards a request. Returns the upstream's response, or a refusal.
    async fn forward(self, request: Request<Incoming>, in_flight: InFlightRequest) -> Response<GateBody> {
        let kind = in_flight.kind();
        let (mut parts, body) = request.into_parts();
        let (version, method) = (parts.version, parts.method.clone());
        let offer = UpgradeOffer::of(version, &parts.headers);
        let end = parts.extensions.remove::<EndSignal>();
        let started_at = Instant::now();
        let start =
            parts.extensions.remove::<StartReport>().map(|report| StartClock::new(report, started_at));
        let mut guard = HeadWaitGuard { kind, done: false, start };
        let result = match self.rewrite(&mut parts, kind).await {
            Ok(()) => {
                let upload = Upload::new(body, self.0.request_idle_timeout);
                if let Some(start) = &mut guard.start {
                    start.progress = (!upload.is_empty()).then(|| upload.progress());
                }
                if upload.size_hint().exact().is_none() {
                    // Without this header, hyper sends no body of unknown length with a GET or
                    // HEAD.
                    parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
                }
                if let Some(offer) = &offer {
                    offer.write(&mut parts.headers);
                }
                self.0.upstream.send(Request::from_parts(parts, upload)).await
            }
            Err(refusal) => {
                guard.done = true;
                if let Some(start) = &guard.start {
                    start.ignore();
                }
                return refusal.response(version);
            }
        };
        guard.done = true;
        self.log_transition(&result);
        if let Some(start) = &guard.start {
            start.finish(&result);
        }
        self.relay(result, in_flight, Exchange { version, method, offer, end, started_at })
    }

    /// Relays the upstream's response, or refuses the request if there is none.
    fn relay(
        &self,
        result: Result<Response<Download>, UpstreamError>,
        in_flight: InFlightRequest,
        exchange: Exchange,
    ) -> Response<GateBody> {
        let Exchange { version, method, offer, end, started_at } = exchange;
        let kind = in_flight.kind();
        match result {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                match relay_upgrade(response, offer, (in_flight, end), self.0.upgrade_idle_timeout) {
                    Some(upgraded) => {
                        metrics::count_response(kind, upgraded.status(), started_at.elapsed());
                        upgraded
                    }
                    None => {
                        metrics::count_upstream_failure("upstream_switched");
                        GateRefusal::SwitchedProtocol.response(version)
                    }
                }
            }
            Ok(response) if has_unsupported_coding(response.headers()) => {
                metrics::count_upstream_failure("upstream_bad_coding");
                GateRefusal::TransferCoding.response(version)
            }
            Ok(response) => {
                metrics::count_response(kind, response.status(), started_at.elapsed());
                relay_response(response, (in_flight, end), version, &method)
            }
            Err(error) => {
                debug!(kind = kind.as_str(), reason = error.as_str(), %error, "upstream request failed");
                if error.is_upstreams_fault() {
                    metrics::count_upstream_failure(error.as_str());
                }
                GateRefusal::Upstream(error).response(version)
            }
        }
    }

    /// Rewrites the head of a request for the upstream.
    async fn rewrite(&self, parts: &mut Parts, kind: RequestKind) -> Result<(), GateRefusal> {
        let state = &*self.0;
        let peer = parts.extensions.get::<ClientAddr>().map(|peer| peer.0.ip()).ok_or(GateRefusal::NoPeer)?;
        let user = self.verified_user(parts, kind, peer).await;
        let client_host = requested_host(&parts.uri, &parts.headers);
        let host = client_host.clone().filter(|_| state.preserve_host);
        let host = host.unwrap_or_else(|| state.upstream.host().clone());
        let (scheme, user_headers) = (state.scheme, &state.user_headers);
        let origin = ClientOrigin { peer, scheme, trust: self.trust(peer), user_headers };
        let dropped = rewrite_request(&mut parts.headers, parts.version, host, client_host, origin);
        metrics::count_untrusted_headers(dropped);
        if let Some(header) = &state.forward_user_header {
            parts.headers.remove(header);
            if let Some(value) = user.and_then(|user| HeaderValue::from_bytes(user.id().as_bytes()).ok()) {
                parts.headers.insert(header.clone(), value);
            }
        }
        // Origin form: scheme and authority are removed, all other bytes are unchanged.
        let path = parts.uri.path_and_query().cloned().ok_or(GateRefusal::BadRequest(BadRequest::Target))?;
        parts.uri = Uri::from(path);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        Ok(())
    }

    /// Returns the verified user, if the upstream receives it (`forward_user_header`). Clients that
    /// are identified only by their address have none.
    ///
    /// Admission has verified the users of streams. Those of other requests are verified here. An
    /// invalid credential yields `None`; the upstream can refuse the request.
    async fn verified_user(&self, parts: &Parts, kind: RequestKind, peer: IpAddr) -> Option<UserId> {
        self.0.forward_user_header.as_ref()?;
        let user = if kind.takes_permit() {
            parts.extensions.get::<UserId>().cloned()
        } else {
            let visitor = self.0.identify.identify(&parts.headers, Some(peer)).await.ok()?;
            visitor.as_user().cloned()
        };
        user.filter(|user| !user.is_address())
    }

    fn trust(&self, peer: IpAddr) -> PeerTrust {
        let trusted = self.0.trusted_proxies.iter().any(|network| network.contains(peer));
        match (trusted, self.0.forwarded_by) {
            (false, _) => PeerTrust::Untrusted,
            (true, ForwardedHeader::Forwarded) => PeerTrust::Forwarded,
            // `ForwardedHeader` is non-exhaustive; the settings allow these two values.
            (true, _) => PeerTrust::XForwarded,
        }
    }

    /// Logs when the upstream begins to fail or the gate runs out of resources, and when either
    /// ends.
    fn log_transition(&self, result: &Result<Response<Download>, UpstreamError>) {
        match result {
            Ok(_) => {
                if self.0.failing.swap(false, Ordering::Relaxed) {
                    info!("upstream recovered");
                }
                if self.0.exhausted.swap(false, Ordering::Relaxed) {
                    info!("gate resources recovered");
                }
            }
            Err(error @ UpstreamError::Exhausted(_)) => {
                if !self.0.exhausted.swap(true, Ordering::Relaxed) {
                    warn!(reason = error.as_str(), %error, "gate resources exhausted");
                }
            }
            Err(error) if error.is_upstreams_fault() => {
                if !self.0.failing.swap(true, Ordering::Relaxed) {
                    warn!(reason = error.as_str(), %error, "upstream failing");
                }
            }
            Err(_) => {}
        }
    }
}

/// A request whose response is relayed.
struct Exchange {
    version: Version,
    method: Method,
    offer: Option<UpgradeOffer>,
    /// Signal by which an operator ends the stream.
    end: Option<EndSignal>,
    started_at: Instant,
}

fn relay_response(
    response: Response<Download>,
    (in_flight, end): (InFlightRequest, Option<EndSignal>),
    version: Version,
    method: &Method,
) -> Response<GateBody> {
    let (mut parts, mut download) = response.into_parts();
    parts.version = Version::HTTP_11; // the server writes its own version
    parts.extensions.clear();
    remove_overridden_length(&mut parts.headers);
    if is_live(&parts, in_flight.kind(), version, method) {
        parts.extensions.insert(LiveBody);
        download = download.detach_from_hyper(&parts.headers);
    }
    rewrite_response(&mut parts.headers);
    Response::from_parts(parts, GateBody::from_upstream(download, in_flight, end))
}

/// Relays a 101. Returns `None` if the client didn't offer its protocol, or if part of the request
/// isn't sent.
fn relay_upgrade(
    response: Response<Download>,
    offer: Option<UpgradeOffer>,
    (in_flight, end): (InFlightRequest, Option<EndSignal>),
    idle_timeout: Duration,
) -> Option<Response<GateBody>> {
    let (mut parts, download) = response.into_parts();
    let protocol = offer?.accepted(&parts)?;
    let (upstream, upgrade) = (download.into_upgraded()?, ConnectionUpgrade::new());
    rewrite_response(&mut parts.headers);
    parts.headers.insert(UPGRADE, protocol);
    parts.extensions.clear();
    parts.extensions.insert(upgrade.clone());
    let tunnel = Tunnel::new(upgrade, upstream, idle_timeout);
    Some(Response::from_parts(parts, GateBody::from_tunnel(tunnel, in_flight, end)))
}

/// Returns whether a response is a live stream: a successful response of unknown length to an
/// HTTP/1.1 client, on a stream route.
///
/// After a live stream, the client's connection takes no further request. So if no stream route is
/// configured, only `text/event-stream` counts as live.
fn is_live(parts: &http::response::Parts, kind: RequestKind, version: Version, method: &Method) -> bool {
    let may_be_endless = version == Version::HTTP_11
        && method != Method::HEAD
        && parts.status.is_success()
        && parts.status != StatusCode::NO_CONTENT
        && !parts.headers.contains_key(CONTENT_LENGTH);
    may_be_endless
        && match kind {
            RequestKind::Plain => false,
            RequestKind::Stream => true,
            RequestKind::Any => {
                let media_type =
                    parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
                media_type.get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
            }
        }
}

impl Service<Request<Incoming>> for Forwarder {
    type Response = Response<GateBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<GateBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let RequestClassification { kind, rejection } =
            request.extensions().get().copied().unwrap_or_default();
        let refusal = match (rejection, self.0.drain.enter(kind)) {
            (None, Some(in_flight)) => {
                let forwarder = self.clone();
                return Box::pin(async move { Ok(forwarder.forward(request, in_flight).await) });
            }
            (Some(bad_request), _) => GateRefusal::BadRequest(bad_request),
            (None, None) => GateRefusal::Draining,
        };
        Box::pin(ready(Ok(refusal.response(request.version()))))
    }
}

/// Result of [`GateService`](crate::GateService)'s check of a request, in the request's extensions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestClassification {
    pub(crate) kind: RequestKind,
    /// Why the request is refused, if it is.
    pub(crate) rejection: Option<BadRequest>,
}

/// Counts a client that disconnects before the response head: the guard is then dropped while
/// `done` is false.
struct HeadWaitGuard {
    kind: RequestKind,
    done: bool,
    /// `None` without an adaptive limit.
    start: Option<StartClock>,
}

impl Drop for HeadWaitGuard {
    fn drop(&mut self) {
        if !self.done {
            if let Some(start) = &self.start {
                start.abandon();
            }
            metrics::count_cancelled(self.kind, metrics::CancelStage::Head);
        }
    }
}
