//! Request body.
//!
//! Invariant: [`BodyReadFlag::get`] is true only after the service has read the last byte.
//! A live response may take the socket from hyper only then: with an unread body, the client's next
//! bytes could belong to the body or to the next request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::hyper::activity::ConnectionActivity;
use crate::hyper::h2_exchange::H2Exchange;

/// Request body as the service receives it.
///
/// A live response takes over its socket only if the request's body has been read to the end. A
/// service that streams the response to a POST should read the body first.
#[derive(Debug)]
pub struct Incoming {
    /// None if the request has no body and came through the fast path.
    body: Option<hyper::body::Incoming>,
    /// None if there is no body or it has been read to its end.
    unread: Option<UnreadBody>,
}

/// State of a body that has not been read to its end.
#[derive(Debug)]
struct UnreadBody {
    done: Arc<AtomicBool>,
    activity: Arc<ConnectionActivity>,
    /// HTTP/2 only: the exchange that has the read deadline, instead of the connection.
    exchange: Option<Arc<H2Exchange>>,
    waiting: bool,
}

/// Flag that is set when a request's body has been read.
#[derive(Debug)]
pub(crate) struct BodyReadFlag(Option<Arc<AtomicBool>>);

impl Incoming {
    /// Creates the body of a request without one.
    pub(crate) fn none() -> Incoming {
        Incoming { body: None, unread: None }
    }

    pub(crate) fn new(
        body: hyper::body::Incoming,
        activity: &Arc<ConnectionActivity>,
    ) -> (Incoming, BodyReadFlag) {
        if body.is_end_stream() {
            return (Incoming { body: Some(body), unread: None }, BodyReadFlag(None));
        }
        let done = Arc::new(AtomicBool::new(false));
        let unread = UnreadBody {
            done: Arc::clone(&done),
            activity: Arc::clone(activity),
            exchange: None,
            waiting: false,
        };
        (Incoming { body: Some(body), unread: Some(unread) }, BodyReadFlag(Some(done)))
    }

    /// Sets the exchange whose deadline runs while the service waits for this body.
    pub(crate) fn set_exchange(&mut self, exchange: &Arc<H2Exchange>) {
        if let Some(unread) = &mut self.unread {
            unread.exchange = Some(Arc::clone(exchange));
        }
    }
}

impl BodyReadFlag {
    pub(crate) fn get(&self) -> bool {
        self.0.as_ref().is_none_or(|done| done.load(Ordering::Acquire))
    }
}

impl UnreadBody {
    fn wait(&mut self, waiting: bool, reader: Option<&Waker>) {
        if self.waiting || waiting {
            match &self.exchange {
                Some(exchange) => exchange.set_awaiting_body(waiting, reader),
                None => self.activity.set_awaiting_body(waiting),
            }
        }
        self.waiting = waiting;
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
                unread.activity.end_body();
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

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.wait(false, None);
    }
}
