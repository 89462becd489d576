//! What a draining server does with an HTTP/1 connection that hyper has.
//!
//! Invariant: a request that comes before the grace ends is answered, and its response says `connection: close`.
//! Enforced by: [`Farewell::begin`] runs before each poll of hyper, which calls the service in that poll.
//! Out of scope: deadlines of heads and bodies, which hold during a drain as well; HTTP/2, which has GOAWAY.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Sleep, sleep};

use crate::meter::{Meter, Phase};
use crate::server::Shared;

/// A connection's part in a drain.
pub(crate) struct Farewell<'a> {
    shared: &'a Shared,
    draining: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
    /// Set once the drain has begun.
    grace: Option<Pin<Box<Sleep>>>,
    decided: bool,
}

/// How a connection ends in a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// With the request that is being answered.
    AfterAnswer,
    /// Now: no request came during the grace.
    Idle,
    /// Now, with a 503: the head of a request is incomplete.
    InHead,
}

impl<'a> Farewell<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Farewell<'a> {
        Farewell { shared, draining: Box::pin(shared.drain_begun()), grace: None, decided: false }
    }

    /// Notes that the drain has begun. To be called before hyper is polled.
    pub(crate) fn begin(&mut self, meter: &Meter, cx: &mut Context<'_>) {
        if self.grace.is_none() && self.draining.as_mut().poll(cx).is_ready() {
            meter.closes.set(true);
            self.grace = Some(Box::pin(sleep(self.shared.drain_grace())));
        }
    }

    /// Ready once, when it is decided how the connection ends. To be called after hyper was polled.
    pub(crate) fn poll(&mut self, meter: &Meter, cx: &mut Context<'_>) -> Poll<Leave> {
        let Some(grace) = self.grace.as_mut().filter(|_| !self.decided) else { return Poll::Pending };
        let leave = if meter.is_active() {
            Leave::AfterAnswer
        } else {
            ready!(grace.as_mut().poll(cx));
            match meter.phase().0 {
                Phase::Idle => Leave::Idle,
                Phase::Head => Leave::InHead,
                Phase::Body => Leave::AfterAnswer,
                Phase::Busy => return Poll::Pending, // until the last response is written, which has a deadline
            }
        };
        self.decided = true;
        Poll::Ready(leave)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::ServeConfig;

    /// The decision and when it came, in milliseconds, for a connection that is in some state when the drain begins.
    async fn decided(shared: &Shared, meter: &Meter) -> (Leave, u128) {
        let began = Instant::now();
        let mut farewell = Farewell::new(shared);
        let leave = poll_fn(|cx| {
            farewell.begin(meter, cx);
            farewell.poll(meter, cx)
        });
        (leave.await, began.elapsed().as_millis())
    }

    fn draining() -> Shared {
        let shared = Shared::new(ServeConfig::default());
        shared.begin_drain();
        shared
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_has_the_grace_and_one_with_a_request_ends_with_it() {
        let (shared, meter) = (draining(), Arc::new(Meter::default()));
        assert_eq!(decided(&shared, &meter).await, (Leave::Idle, 500));
        assert!(meter.closes.get());
        meter.hear();
        assert_eq!(decided(&shared, &meter).await, (Leave::InHead, 500));
        let request = meter.begin(false);
        assert_eq!(decided(&shared, &meter).await, (Leave::AfterAnswer, 0));
        drop(request);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_being_written_is_waited_for() {
        let (shared, meter) = (draining(), Arc::new(Meter::default()));
        meter.unflushed.set(true);
        let mut farewell = Farewell::new(&shared);
        let undecided = poll_fn(|cx| {
            farewell.begin(&meter, cx);
            farewell.poll(&meter, cx)
        });
        assert!(tokio::time::timeout(Duration::from_secs(20), undecided).await.is_err());
        meter.unflushed.set(false);
        assert_eq!(poll_fn(|cx| farewell.poll(&meter, cx)).await, Leave::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_is_at_most_half_of_the_drain() {
        let config = ServeConfig { drain_timeout: Duration::from_millis(200), ..ServeConfig::default() };
        let shared = Shared::new(config);
        shared.begin_drain();
        assert_eq!(decided(&shared, &Meter::default()).await, (Leave::Idle, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_drain_nothing_is_decided() {
        let shared = Shared::new(ServeConfig::default());
        let meter = Meter::default();
        let waits = tokio::time::timeout(Duration::from_secs(3_600), decided(&shared, &meter));
        assert!(waits.await.is_err() && !meter.closes.get());
    }
}
