//! The end, in order: refuse new streams, let open ones finish, then cut.
//!
//! Invariant: once draining, no stream begins; and `streams_ended` returns when the last one that began before is gone.
//! Kept by: a stream counts itself before it looks whether it may begin, and the drain sets its flag before it looks at
//! the count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a request is to admission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No stream: takes no permit.
    #[default]
    Plain,
    /// On a route that the settings name.
    Stream,
    /// No route is named, and so everything takes a permit.
    Anything,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Plain => "plain",
            Kind::Stream => "stream",
            Kind::Anything => "any",
        }
    }

    pub(crate) fn takes_permit(self) -> bool {
        match self {
            Kind::Plain => false,
            Kind::Stream | Kind::Anything => true,
        }
    }
}

/// Whether the gate is on its way out, and who is still in.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<State>);

#[derive(Debug, Default)]
struct State {
    draining: AtomicBool,
    streams: AtomicUsize,
    plain: AtomicUsize,
    stream_ended: Notify,
}

impl Drain {
    /// None: it is a stream, and the gate drains.
    pub(crate) fn enter(&self, kind: Kind) -> Option<InFlight> {
        self.count(kind).fetch_add(1, Ordering::SeqCst);
        let inside = InFlight { drain: self.clone(), kind };
        (!kind.takes_permit() || !self.is_draining()).then_some(inside)
    }

    /// Refuses new streams from now on.
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

    /// Returns the number of requests inside that are no streams.
    pub fn plain(&self) -> usize {
        self.0.plain.load(Ordering::SeqCst)
    }

    /// Returns when no stream is open.
    pub async fn streams_ended(&self) {
        loop {
            let ended = self.0.stream_ended.notified();
            if self.streams() == 0 {
                return;
            }
            ended.await;
        }
    }

    fn count(&self, kind: Kind) -> &AtomicUsize {
        if kind.takes_permit() { &self.0.streams } else { &self.0.plain }
    }
}

/// One request, from the gate's door to the end of its response's body.
#[derive(Debug)]
pub(crate) struct InFlight {
    drain: Drain,
    kind: Kind,
}

impl InFlight {
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let before = self.drain.count(self.kind).fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.kind.takes_permit() {
            self.drain.0.stream_ended.notify_waiters();
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
    fn a_drain_waits_for_streams_and_lets_none_begin() {
        let drain = Drain::default();
        let stream = drain.enter(Kind::Stream).unwrap();
        let plain = drain.enter(Kind::Plain).unwrap();
        drain.begin();
        assert!(drain.enter(Kind::Stream).is_none() && drain.enter(Kind::Anything).is_none());
        assert!(drain.enter(Kind::Plain).is_some());

        let mut ended = pin!(drain.streams_ended());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(ended.as_mut().poll(&mut cx).is_pending());
        drop(stream);
        assert!(ended.as_mut().poll(&mut cx).is_ready(), "plain requests are not waited for");
        assert_eq!((drain.streams(), drain.plain()), (0, 1));
        drop(plain);
    }
}
