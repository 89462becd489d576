//! Drain: refuses new streams at shutdown and counts the requests in flight.
//!
//! Invariant: no stream begins while the gate drains. `streams_ended` returns once all streams that
//! began earlier have ended.
//! Enforced by: a stream increments the count before it reads the flag. The drain sets the flag
//! before it reads the count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Kind of a request: whether it takes a permit, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum RequestKind {
    /// Not a stream. It takes no permit.
    #[default]
    Plain,
    /// A request on a configured stream route, or one that offers an upgrade. It takes a permit.
    Stream,
    /// Any request of a gate without stream routes. It takes a permit.
    Any,
}

impl RequestKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RequestKind::Plain => "plain",
            RequestKind::Stream => "stream",
            RequestKind::Any => "any",
        }
    }

    pub(crate) fn takes_permit(self) -> bool {
        match self {
            RequestKind::Plain => false,
            RequestKind::Stream | RequestKind::Any => true,
        }
    }
}

/// Drain state of a gate, and the numbers of requests in flight. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<DrainState>);

#[derive(Debug, Default)]
struct DrainState {
    draining: AtomicBool,
    /// Requests in flight that take a permit.
    streams: AtomicUsize,
    /// Requests in flight that take no permit.
    plain: AtomicUsize,
    /// Notified when the last open stream ends.
    last_stream_ended: Notify,
}

impl Drain {
    /// Counts a request as in flight. Returns `None` for a stream while the gate drains.
    pub(crate) fn enter(&self, kind: RequestKind) -> Option<InFlightRequest> {
        self.count(kind).fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlightRequest { drain: self.clone(), kind };
        (!kind.takes_permit() || !self.is_draining()).then_some(in_flight)
    }

    /// Starts the drain. New streams are refused from now on.
    pub fn begin(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
    }

    /// Returns whether new streams are refused.
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::SeqCst)
    }

    /// Returns the number of open streams.
    pub fn streams(&self) -> usize {
        self.0.streams.load(Ordering::SeqCst)
    }

    /// Returns the number of requests in flight that are not streams.
    pub fn plain(&self) -> usize {
        self.0.plain.load(Ordering::SeqCst)
    }

    /// Waits until no stream is open.
    pub async fn streams_ended(&self) {
        loop {
            let ended = self.0.last_stream_ended.notified();
            if self.streams() == 0 {
                return;
            }
            ended.await;
        }
    }

    fn count(&self, kind: RequestKind) -> &AtomicUsize {
        if kind.takes_permit() { &self.0.streams } else { &self.0.plain }
    }
}

/// Guard that counts a request as in flight until the guard is dropped. The response body owns it.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    drain: Drain,
    kind: RequestKind,
}

impl InFlightRequest {
    pub(crate) fn kind(&self) -> RequestKind {
        self.kind
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let before = self.drain.count(self.kind).fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.kind.takes_permit() {
            self.drain.0.last_stream_ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_drain_waits_for_open_streams_and_refuses_new_ones() {
        let drain = Drain::default();
        let stream = drain.enter(RequestKind::Stream).unwrap();
        let plain = drain.enter(RequestKind::Plain).unwrap();
        drain.begin();
        assert!(drain.enter(RequestKind::Stream).is_none() && drain.enter(RequestKind::Any).is_none());
        assert!(drain.enter(RequestKind::Plain).is_some());

        let mut ended = pin!(drain.streams_ended());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(ended.as_mut().poll(&mut cx).is_pending());
        drop(stream);
        assert!(ended.as_mut().poll(&mut cx).is_ready(), "a drain doesn't wait for plain requests");
        assert_eq!((drain.streams(), drain.plain()), (0, 1));
        drop(plain);
    }
}
