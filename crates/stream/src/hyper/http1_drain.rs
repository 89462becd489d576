//! Drain of an HTTP/1 connection that hyper serves.
//!
//! Invariant: a request that arrives before the grace ends is answered with `connection: close`.
//! Enforced by: [`Http1Drain::poll_started`] runs before each poll of hyper, which calls the
//! service.
//! Out of scope: deadlines of heads and bodies, which continue to apply; HTTP/2, which has GOAWAY.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Sleep, sleep};

use crate::hyper::activity::{ClientWait, ConnectionActivity};
use crate::server::ServerContext;

/// Drain state of a connection.
pub(crate) struct Http1Drain<'a> {
    context: &'a ServerContext,
    draining: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
    /// Set once the drain has begun.
    grace: Option<Pin<Box<Sleep>>>,
    decided: bool,
}

/// How a draining connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainDecision {
    /// After the response to the current request.
    AfterResponse,
    /// Now: no request arrived during the grace.
    CloseIdle,
    /// Now, with a 503: a request's head is incomplete.
    RejectHead,
}

impl<'a> Http1Drain<'a> {
    pub(crate) fn new(context: &'a ServerContext) -> Http1Drain<'a> {
        Http1Drain { context, draining: Box::pin(context.drain_started()), grace: None, decided: false }
    }

    /// Starts the grace period if the drain has begun. Call it before polling hyper.
    pub(crate) fn poll_started(&mut self, activity: &ConnectionActivity, cx: &mut Context<'_>) {
        if self.grace.is_none() && self.draining.as_mut().poll(cx).is_ready() {
            activity.close_after_response.set(true);
            self.grace = Some(Box::pin(sleep(self.context.drain_grace())));
        }
    }

    /// Resolves once, to the decision how the connection ends. Call it after polling hyper.
    pub(crate) fn poll_decision(
        &mut self,
        activity: &ConnectionActivity,
        cx: &mut Context<'_>,
    ) -> Poll<DrainDecision> {
        let Some(grace) = self.grace.as_mut().filter(|_| !self.decided) else { return Poll::Pending };
        let decision = if activity.is_active() {
            DrainDecision::AfterResponse
        } else {
            ready!(grace.as_mut().poll(cx));
            match activity.client_wait().0 {
                ClientWait::Idle => DrainDecision::CloseIdle,
                ClientWait::Head => DrainDecision::RejectHead,
                ClientWait::Body => DrainDecision::AfterResponse,
                // Pending until the response is written, which has a deadline.
                ClientWait::Busy => return Poll::Pending,
            }
        };
        self.decided = true;
        Poll::Ready(decision)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::HttpServerConfig;

    /// Returns the decision and its time in milliseconds after the drain began.
    async fn decide(context: &ServerContext, activity: &ConnectionActivity) -> (DrainDecision, u128) {
        let began = Instant::now();
        let mut drain = Http1Drain::new(context);
        let decision = poll_fn(|cx| {
            drain.poll_started(activity, cx);
            drain.poll_decision(activity, cx)
        });
        (decision.await, began.elapsed().as_millis())
    }

    fn draining() -> ServerContext {
        let context = ServerContext::new(HttpServerConfig::default());
        context.begin_drain();
        context
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_closes_after_the_grace_and_a_busy_one_after_its_response() {
        let (context, activity) = (draining(), Arc::new(ConnectionActivity::default()));
        assert_eq!(decide(&context, &activity).await, (DrainDecision::CloseIdle, 500));
        assert!(activity.close_after_response.get());
        activity.bytes_received();
        assert_eq!(decide(&context, &activity).await, (DrainDecision::RejectHead, 500));
        let request = activity.begin_request(false);
        assert_eq!(decide(&context, &activity).await, (DrainDecision::AfterResponse, 0));
        drop(request);
    }

    #[tokio::test(start_paused = true)]
    async fn the_decision_waits_until_a_response_is_written() {
        let (context, activity) = (draining(), Arc::new(ConnectionActivity::default()));
        activity.unflushed.set(true);
        let mut drain = Http1Drain::new(&context);
        let undecided = poll_fn(|cx| {
            drain.poll_started(&activity, cx);
            drain.poll_decision(&activity, cx)
        });
        assert!(tokio::time::timeout(Duration::from_secs(20), undecided).await.is_err());
        activity.unflushed.set(false);
        assert_eq!(poll_fn(|cx| drain.poll_decision(&activity, cx)).await, DrainDecision::CloseIdle);
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_is_at_most_half_of_the_drain_timeout() {
        let config =
            HttpServerConfig { drain_timeout: Duration::from_millis(200), ..HttpServerConfig::default() };
        let context = ServerContext::new(config);
        context.begin_drain();
        assert_eq!(decide(&context, &ConnectionActivity::default()).await, (DrainDecision::CloseIdle, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_drain_there_is_no_decision() {
        let context = ServerContext::new(HttpServerConfig::default());
        let activity = ConnectionActivity::default();
        let waits = tokio::time::timeout(Duration::from_secs(3_600), decide(&context, &activity));
        assert!(waits.await.is_err() && !activity.close_after_response.get());
    }
}
