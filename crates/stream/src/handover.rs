//! The service as hyper calls it, and the point where a live stream leaves hyper.
//!
//! Invariant: a response is either given to hyper or left in the hand, never both; and it is left only where the socket
//! can be taken: HTTP/1.1, a response that may have a body, a request whose body has been read.
//! Kept by: [`Handing`], whose future stays pending once it has left the response. The driver of the connection looks into
//! the hand after each poll (`ordinary.rs`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::bounds::Streamed;
use crate::detach::detach;
use crate::error::{BoxError, ClientLate, ClientLeft};
use crate::exchange::{Exchange, Piece};
use crate::head;
use crate::incoming::{Incoming, IsRead};
use crate::meter::{Active, Meter};
use crate::stats::Stats;
use crate::{Live, Peer};

/// Where a live response waits to be taken, with the socket.
pub(crate) struct Hand<B>(Mutex<Option<Response<B>>>);

/// What every request of a connection is given to.
pub(crate) struct Handover<S, B> {
    pub(crate) service: S,
    pub(crate) peer: Peer,
    pub(crate) meter: Arc<Meter>,
    pub(crate) stats: Stats,
    /// None on HTTP/2, where many responses share the socket.
    pub(crate) h1: Option<H1<B>>,
}

/// What is needed to take the socket, and to watch it where it can't be taken.
pub(crate) struct H1<B> {
    pub(crate) hand: Arc<Hand<B>>,
    pub(crate) stream: Arc<TcpStream>,
}

impl<B> Hand<B> {
    pub(crate) fn new() -> Arc<Hand<B>> {
        Arc::new(Hand(Mutex::new(None)))
    }

    pub(crate) fn take(&self) -> Option<Response<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn leave(&self, response: Response<B>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
    }
}

impl<B> Clone for H1<B> {
    fn clone(&self) -> Self {
        H1 { hand: Arc::clone(&self.hand), stream: Arc::clone(&self.stream) }
    }
}

impl<S, B> hyper::service::Service<Request<hyper::body::Incoming>> for Handover<S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body,
{
    type Response = Response<Watched<B>>;
    type Error = ClientLate;
    type Future = Handing<S, B>;

    fn call(&self, request: Request<hyper::body::Incoming>) -> Handing<S, B> {
        self.stats.counters().requests.up();
        let (mut parts, body) = request.into_parts();
        let (method, version) = (parts.method.clone(), parts.version);
        if version <= Version::HTTP_11 {
            detach(&mut parts);
        }
        let active = self.meter.begin(!body.is_end_stream());
        let (body, is_read) = Incoming::new(body, &self.meter);
        let mut request = Request::from_parts(parts, body);
        request.extensions_mut().insert(self.peer);
        Handing {
            asked: Asked { method, version, is_read },
            active: Some(active),
            h1: self.h1.clone(),
            exchange: None,
            step: Step::Ready { service: self.service.clone(), request: Some(request) },
        }
    }
}

/// What must be known of the request when its response comes.
struct Asked {
    method: Method,
    version: Version,
    is_read: IsRead,
}

pin_project! {
    /// One request on its way through the service.
    pub(crate) struct Handing<S, B>
    where
        S: Service<Request<Incoming>>,
    {
        asked: Asked,
        active: Option<Active>,
        h1: Option<H1<B>>,
        exchange: Option<Arc<Exchange>>,
        #[pin]
        step: Step<S, S::Future>,
    }
}

pin_project! {
    #[project = StepView]
    enum Step<S, F> {
        Ready { service: S, request: Option<Request<Incoming>> },
        Called { #[pin] response: F },
        Left,
    }
}

impl<S, B> Future for Handing<S, B>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body,
{
    type Output = Result<Response<Watched<B>>, ClientLate>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if this.exchange.as_ref().is_some_and(|exchange| exchange.is_cut()) {
            return Poll::Ready(Err(ClientLate));
        }
        let mut response = loop {
            match this.step.as_mut().project() {
                StepView::Ready { service, request } => {
                    let Ok(()) = ready!(service.poll_ready(cx));
                    let mut request = request.take().expect("a request is called once");
                    if this.h1.is_none()
                        && let Some(exchange) = Exchange::current()
                    {
                        request.body_mut().belongs_to(&exchange);
                        *this.exchange = Some(exchange);
                    }
                    let response = service.call(request);
                    this.step.set(Step::Called { response });
                }
                StepView::Called { response } => {
                    let Ok(response) = ready!(response.poll(cx));
                    break response;
                }
                StepView::Left => return Poll::Pending,
            }
        };
        this.step.set(Step::Left);
        let is_live = response.extensions().get::<Live>().is_some();
        let asked = this.asked;
        let can_leave =
            asked.is_read.get() && head::may_stream(&asked.method, asked.version, response.status());
        match this.h1 {
            Some(h1) if is_live && can_leave => {
                h1.hand.leave(response);
                Poll::Pending
            }
            h1 => {
                if this.active.as_ref().is_some_and(|active| active.meter().closes.get()) {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                let leaving = h1.as_ref().filter(|_| is_live).map(|h1| leaving(Arc::clone(&h1.stream)));
                let (active, exchange) = (this.active.take(), this.exchange.take());
                if let (Some(h1), Some(active)) = (h1, &active)
                    && head::ends_with_the_connection(&asked.method, asked.version, &response)
                {
                    reset_unless_complete(&h1.stream, active.meter());
                }
                Poll::Ready(Ok(response.map(|body| Watched {
                    body: Some(body),
                    trailers: None,
                    exchange,
                    leaving,
                    active,
                })))
            }
        }
    }
}

/// Where nothing but the connection's end tells that of the body, one that is not complete must end otherwise: by a reset.
/// Whatever drops the socket causes it, unless all was written and `io.rs` was told so.
fn reset_unless_complete(stream: &TcpStream, meter: &Meter) {
    match SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        Ok(()) => meter.resets.set(true),
        Err(error) => tracing::debug!(%error, "a socket takes no options"), // the client is gone
    }
}

/// Resolves when the client has closed its side, even if bytes of it are unread.
fn leaving(stream: Arc<TcpStream>) -> Leaving {
    Box::pin(async move {
        // Of the two that `PRIORITY` waits for, urgent data and the end, the first is unknown to HTTP.
        let _ended = stream.ready(Interest::PRIORITY).await;
    })
}

type Leaving = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// A response's body on the ordinary path.
    ///
    /// hyper sees the end of a client only where it reads, which it doesn't while a request's body is unread. A live
    /// stream must end with its client even so. Over HTTP/2 the end of a body waits for the client; see `exchange.rs`.
    pub(crate) struct Watched<B> {
        // None when it is over; hyper may not have been told yet.
        #[pin]
        body: Option<B>,
        trailers: Option<HeaderMap>,
        // None on HTTP/1.
        exchange: Option<Arc<Exchange>>,
        leaving: Option<Leaving>,
        active: Option<Active>,
    }
}

impl<B: Streamed> Body for Watched<B> {
    type Data = Piece;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BoxError>>> {
        let mut this = self.project();
        let exchange = this.exchange.as_ref();
        if exchange.is_some_and(|exchange| exchange.is_cut()) {
            return Poll::Ready(Some(Err(ClientLate.into())));
        }
        if let Some(body) = this.body.as_mut().as_pin_mut() {
            let Poll::Ready(frame) = body.poll_frame(cx) else {
                let Some(leaving) = this.leaving else { return Poll::Pending };
                ready!(leaving.as_mut().poll(cx));
                return Poll::Ready(Some(Err(ClientLeft.into())));
            };
            match frame.transpose().map_err(Into::into)?.map(Frame::into_data) {
                Some(Ok(bytes)) => {
                    let piece = Piece::new(bytes, exchange.map(Arc::clone));
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                Some(Err(frame)) => *this.trailers = frame.into_trailers().ok(),
                None => {}
            }
            this.body.set(None);
        }
        if exchange.is_some_and(|exchange| exchange.keeps_end()) {
            return Poll::Pending; // until the client has taken most of what came before
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let keeps_end = self.exchange.as_ref().is_some_and(|exchange| exchange.has_long_tail());
        !keeps_end && self.trailers.is_none() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
