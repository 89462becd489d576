//! Adapter between hyper and the service. It keeps live responses and upgrades from hyper.
//!
//! Invariant: a response goes either to hyper or to the [`HandoffSlot`], never both. It goes to the
//! slot only if the connection can be taken: HTTP/1.1, a live response with a body or an upgrade,
//! and a request body that has been read.
//! Enforced by: [`AdapterFuture`] stays pending once the response is in the slot. The connection's
//! task checks the slot after each poll (`http1.rs`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::error::{BodyError, ClientClosed, ClientTimeout};
use crate::h1::response_head;
use crate::hyper::activity::{ActiveRequest, ConnectionActivity};
use crate::hyper::copy_head::copy_head;
use crate::hyper::h2_exchange::{H2Exchange, TrackedBytes};
use crate::incoming::{BodyReadFlag, Incoming};
use crate::service::ResponseBody;
use crate::stats::ServerStats;
use crate::{ClientAddr, ConnectionUpgrade, LiveBody};

/// Slot in which a live response or an upgrade waits until the connection's task takes it and the
/// socket.
pub(crate) struct HandoffSlot<B>(Mutex<Option<Response<B>>>);

/// Service that hyper calls for every request of a connection.
pub(crate) struct ServiceAdapter<S, B> {
    pub(crate) service: S,
    pub(crate) peer: ClientAddr,
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) stats: ServerStats,
    /// None on HTTP/2, where responses can't take the connection.
    pub(crate) handoff: Option<Http1Handoff<B>>,
}

/// Slot for a response that takes the connection.
pub(crate) struct Http1Handoff<B> {
    pub(crate) slot: Arc<HandoffSlot<B>>,
    /// The socket, which a body watches for the client's disconnect. None with a handshake: then
    /// only an upgrade takes the connection.
    pub(crate) stream: Option<Arc<TcpStream>>,
}

impl<B> HandoffSlot<B> {
    pub(crate) fn new() -> Arc<HandoffSlot<B>> {
        Arc::new(HandoffSlot(Mutex::new(None)))
    }

    pub(crate) fn take(&self) -> Option<Response<B>> {
        self.0.lock().take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_none()
    }

    fn put(&self, response: Response<B>) {
        *self.0.lock() = Some(response);
    }
}

impl<B> Clone for Http1Handoff<B> {
    fn clone(&self) -> Self {
        Http1Handoff { slot: Arc::clone(&self.slot), stream: self.stream.clone() }
    }
}

impl<B> Http1Handoff<B> {
    /// Returns whether a response takes the connection from hyper.
    fn takes_connection(&self, response: &Response<B>, info: &RequestInfo) -> bool {
        let (extensions, status) = (response.extensions(), response.status());
        let is_upgrade = extensions.get::<ConnectionUpgrade>().is_some()
            && status == StatusCode::SWITCHING_PROTOCOLS
            && info.version == Version::HTTP_11;
        let is_live = extensions.get::<LiveBody>().is_some()
            && self.stream.is_some()
            && response_head::may_stream(&info.method, info.version, status);
        info.body_read.get() && (is_upgrade || is_live)
    }
}

impl<S, B> hyper::service::Service<Request<hyper::body::Incoming>> for ServiceAdapter<S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body,
{
    type Response = Response<HyperBody<B>>;
    type Error = ClientTimeout;
    type Future = AdapterFuture<S, B>;

    fn call(&self, request: Request<hyper::body::Incoming>) -> AdapterFuture<S, B> {
        self.stats.counters().requests.increment();
        let (mut parts, body) = request.into_parts();
        let (method, version) = (parts.method.clone(), parts.version);
        if version <= Version::HTTP_11 {
            copy_head(&mut parts);
        }
        let active = self.activity.begin_request(!body.is_end_stream());
        let (body, body_read) = Incoming::new(body, &self.activity);
        let mut request = Request::from_parts(parts, body);
        request.extensions_mut().insert(self.peer);
        AdapterFuture {
            info: RequestInfo { method, version, body_read },
            active: Some(active),
            handoff: self.handoff.clone(),
            exchange: None,
            state: AdapterState::AwaitReady { service: self.service.clone(), request: Some(request) },
        }
    }
}

/// Facts about a request that its response needs.
struct RequestInfo {
    method: Method,
    version: Version,
    body_read: BodyReadFlag,
}

pin_project! {
    /// Future of one request.
    pub(crate) struct AdapterFuture<S, B>
    where
        S: Service<Request<Incoming>>,
    {
        info: RequestInfo,
        active: Option<ActiveRequest>,
        handoff: Option<Http1Handoff<B>>,
        exchange: Option<Arc<H2Exchange>>,
        #[pin]
        state: AdapterState<S, S::Future>,
    }
}

pin_project! {
    /// Progress of a request.
    #[project = AdapterStateProj]
    enum AdapterState<S, F> {
        AwaitReady { service: S, request: Option<Request<Incoming>> },
        Called { #[pin] response: F },
        Done,
    }
}

impl<S, B> Future for AdapterFuture<S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body,
{
    type Output = Result<Response<HyperBody<B>>, ClientTimeout>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.exchange.as_ref().is_some_and(|exchange| exchange.timed_out()) {
            return Poll::Ready(Err(ClientTimeout));
        }
        let mut response = loop {
            match this.state.as_mut().project() {
                AdapterStateProj::AwaitReady { service, request } => {
                    let Ok(()) = ready!(service.poll_ready(cx));
                    let mut request = request.take().expect("the service is called once");
                    if this.handoff.is_none()
                        && let Some(exchange) = H2Exchange::current()
                    {
                        request.body_mut().set_exchange(&exchange);
                        *this.exchange = Some(exchange);
                    }
                    let response = service.call(request);
                    this.state.set(AdapterState::Called { response });
                }
                AdapterStateProj::Called { response } => {
                    let Ok(response) = ready!(response.poll(cx));
                    break response;
                }
                AdapterStateProj::Done => return Poll::Pending,
            }
        };
        this.state.set(AdapterState::Done);
        let info = this.info;
        match this.handoff {
            Some(handoff) if handoff.takes_connection(&response, info) => {
                handoff.slot.put(response);
                Poll::Pending
            }
            handoff => {
                if this.active.as_ref().is_some_and(|active| active.activity().close_after_response.get()) {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                let stream = handoff.as_ref().and_then(|handoff| handoff.stream.as_ref());
                let is_live = response.extensions().get::<LiveBody>().is_some();
                let client_closing =
                    stream.filter(|_| is_live).map(|stream| client_closing(Arc::clone(stream)));
                let (active, exchange) = (this.active.take(), this.exchange.take());
                if let Some(active) = &active {
                    active.activity().has_response.set(true);
                }
                if let (Some(stream), Some(active)) = (stream, &active)
                    && response_head::is_close_delimited(&info.method, info.version, &response)
                {
                    reset_unless_complete(stream, active.activity());
                }
                Poll::Ready(Ok(response.map(|body| HyperBody {
                    body: Some(body),
                    trailers: None,
                    exchange,
                    client_closing,
                    active,
                })))
            }
        }
    }
}

/// Makes the socket reset on drop, unless the response is completed.
///
/// Without a length or chunks only a reset shows the client that the body is incomplete.
/// `hyper_socket.rs` clears the option when everything is written.
fn reset_unless_complete(stream: &TcpStream, activity: &ConnectionActivity) {
    match SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        Ok(()) => activity.reset_on_drop.set(true),
        // The client has disconnected.
        Err(error) => tracing::debug!(%error, "socket options not set"),
    }
}

/// Resolves when the client has closed its side, even if input is unread.
fn client_closing(stream: Arc<TcpStream>) -> ClientClosing {
    Box::pin(async move {
        // `PRIORITY` waits for urgent data, which HTTP doesn't use, or for the client's end.
        let _closed = stream.ready(Interest::PRIORITY).await;
    })
}

/// Resolves when the client closes its side.
type ClientClosing = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// Response body that hyper writes.
    ///
    /// hyper detects a disconnect only while it reads, and it doesn't read while a request's body
    /// is unread. So a live body watches the socket itself. Over HTTP/2 the end of a body may be
    /// held back; see `h2_exchange.rs`.
    pub(crate) struct HyperBody<B> {
        // None once it has ended; hyper may not have polled that yet.
        #[pin]
        body: Option<B>,
        trailers: Option<HeaderMap>,
        // None on HTTP/1.
        exchange: Option<Arc<H2Exchange>>,
        client_closing: Option<ClientClosing>,
        active: Option<ActiveRequest>,
    }
}

impl<B: ResponseBody> Body for HyperBody<B> {
    type Data = TrackedBytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<TrackedBytes>, BodyError>>> {
        let mut this = self.project();
        let exchange = this.exchange.as_ref();
        if exchange.is_some_and(|exchange| exchange.timed_out()) {
            return Poll::Ready(Some(Err(ClientTimeout.into())));
        }
        if let Some(body) = this.body.as_mut().as_pin_mut() {
            let Poll::Ready(frame) = body.poll_frame(cx) else {
                let Some(client_closing) = this.client_closing else { return Poll::Pending };
                ready!(client_closing.as_mut().poll(cx));
                return Poll::Ready(Some(Err(ClientClosed.into())));
            };
            match frame.transpose().map_err(Into::into)?.map(Frame::into_data) {
                Some(Ok(bytes)) => {
                    if let Some(active) = this.active {
                        active.activity().has_response.set(true);
                    }
                    let bytes = TrackedBytes::new(bytes, exchange.map(Arc::clone));
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Err(frame)) => *this.trailers = frame.into_trailers().ok(),
                None => {}
            }
            this.body.set(None);
        }
        if exchange.is_some_and(|exchange| exchange.hold_end()) {
            return Poll::Pending; // until most of the response is written
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let hold_end = self.exchange.as_ref().is_some_and(|exchange| exchange.exceeds_end_bound());
        !hold_end && self.trailers.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
