//! The request's body.
//!
//! Invariant: `is_read` says so only after the service has seen the last byte.
//! It decides whether the socket may be taken from hyper: between an unread body and the response there is no telling where
//! the client's next bytes belong.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::exchange::Exchange;
use crate::meter::Meter;

/// A request's body as the service gets it: hyper's, and a note of whether it has been read to its end.
///
/// A live stream takes the lean path only then, so a service that answers a POST reads its body first.
#[derive(Debug)]
pub struct Incoming {
    /// None: there never was one, and hyper doesn't know of the request.
    body: Option<hyper::body::Incoming>,
    /// None: there is no body, or it has been read.
    unread: Option<Unread>,
}

#[derive(Debug)]
struct Unread {
    done: Arc<AtomicBool>,
    meter: Arc<Meter>,
    /// On HTTP/2 the one that waits, instead of the connection.
    exchange: Option<Arc<Exchange>>,
    waits: bool,
}

/// Whether a request's body has been read.
#[derive(Debug)]
pub(crate) struct IsRead(Option<Arc<AtomicBool>>);

impl Incoming {
    /// Of a request that has none.
    pub(crate) fn none() -> Incoming {
        Incoming { body: None, unread: None }
    }

    pub(crate) fn new(body: hyper::body::Incoming, meter: &Arc<Meter>) -> (Incoming, IsRead) {
        if body.is_end_stream() {
            return (Incoming { body: Some(body), unread: None }, IsRead(None));
        }
        let done = Arc::new(AtomicBool::new(false));
        let unread =
            Unread { done: Arc::clone(&done), meter: Arc::clone(meter), exchange: None, waits: false };
        (Incoming { body: Some(body), unread: Some(unread) }, IsRead(Some(done)))
    }

    /// The exchange whose time runs while this is waited for.
    pub(crate) fn belongs_to(&mut self, exchange: &Arc<Exchange>) {
        if let Some(unread) = &mut self.unread {
            unread.exchange = Some(Arc::clone(exchange));
        }
    }
}

impl IsRead {
    pub(crate) fn get(&self) -> bool {
        self.0.as_ref().is_none_or(|done| done.load(Ordering::Acquire))
    }
}

impl Unread {
    fn wait(&mut self, waits: bool, asking: Option<&Waker>) {
        if self.waits || waits {
            match &self.exchange {
                Some(exchange) => exchange.await_body(waits, asking),
                None => self.meter.await_body(waits),
            }
        }
        self.waits = waits;
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        let ended = body.is_end_stream() || matches!(polled, Poll::Ready(None));
        if let Some(unread) = &mut self.unread {
            unread.wait(polled.is_pending(), Some(cx.waker()));
            if ended {
                unread.done.store(true, Ordering::Release);
                unread.meter.end_body();
                self.unread = None;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.wait(false, None);
    }
}
