//! Metrics of all clients of the process, through the facade of the crate `metrics`. Feature
//! `metrics`.
//!
//! Invariant: a request looks up no metric and allocates nothing for it. Handles are created with
//! the client, so the recorder must be installed before. Label values come from [`OUTCOMES`].

use std::sync::Arc;
use std::time::Instant;

use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

/// Counter: requests that have ended, by `outcome`.
pub const REQUESTS: &str = "forebay_redis_requests_total";
/// Histogram: time from the submission of a request to its replies.
pub const REQUEST_SECONDS: &str = "forebay_redis_request_seconds";
/// Gauge: requests that are queued or in flight and that a caller waits for.
pub const OPEN_REQUESTS: &str = "forebay_redis_open_requests";
/// Counter: connections that were opened again after a loss.
pub const RECONNECTS: &str = "forebay_redis_reconnects_total";

/// Suggested buckets of [`REQUEST_SECONDS`]: from a local server to a request deadline.
pub const REQUEST_BUCKETS: [f64; 11] =
    [0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0];

/// Values of the label `outcome`: [`RequestOutcome::as_str`](crate::RequestOutcome::as_str).
pub const OUTCOMES: [&str; 9] =
    ["replied", "dropped", "rejected", "queue_full", "unsuitable", "deadline", "lost", "closed", "cancelled"];

/// Describes the metrics to the recorder.
pub fn describe() {
    describe_counter!(REQUESTS, "Requests to Redis that have ended, by outcome.");
    describe_histogram!(
        REQUEST_SECONDS,
        Unit::Seconds,
        "Time from the submission of a request to Redis to its replies."
    );
    describe_gauge!(OPEN_REQUESTS, "Requests to Redis that are queued or in flight.");
    describe_counter!(RECONNECTS, "Connections to Redis that were opened again after a loss.");
}

/// Handles of one client.
pub(crate) struct ClientMetrics {
    requests: [Counter; OUTCOMES.len()],
    request_seconds: Histogram,
    open_requests: Gauge,
    pub(crate) reconnects: Counter,
}

impl ClientMetrics {
    pub(crate) fn new() -> Arc<ClientMetrics> {
        describe();
        Arc::new(ClientMetrics {
            requests: OUTCOMES.map(|outcome| counter!(REQUESTS, "outcome" => outcome)),
            request_seconds: histogram!(REQUEST_SECONDS),
            open_requests: gauge!(OPEN_REQUESTS),
            reconnects: counter!(RECONNECTS),
        })
    }
}

/// A request that counts as open until this is dropped.
pub(crate) struct MeasuredRequest {
    metrics: Arc<ClientMetrics>,
    started: Instant,
}

impl MeasuredRequest {
    pub(crate) fn begin(metrics: &Arc<ClientMetrics>) -> MeasuredRequest {
        metrics.open_requests.increment(1);
        MeasuredRequest { metrics: metrics.clone(), started: Instant::now() }
    }

    /// Counts the end of the request.
    pub(crate) fn end(self, outcome: &str) {
        if outcome == OUTCOMES[0] {
            self.metrics.request_seconds.record(self.started.elapsed());
        }
        let position = OUTCOMES.iter().position(|known| *known == outcome);
        debug_assert!(position.is_some(), "{outcome} is not in OUTCOMES");
        if let Some(position) = position {
            self.metrics.requests[position].increment(1);
        }
    }
}

impl Drop for MeasuredRequest {
    fn drop(&mut self) {
        self.metrics.open_requests.decrement(1);
    }
}
