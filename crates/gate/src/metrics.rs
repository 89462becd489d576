//! Metrics of a gate.

use std::time::Duration;

use http::StatusCode;
use metrics::{
    Counter, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::drain::{Drain, RequestKind};
use super::outcome_counters::GateOutcome;
use super::request_failure::{FailureStage, FailureType, RequestFailure};
use super::tunnel::TunnelEnd;
use super::upstream::UpstreamStats;

const REQUESTS: &str = "forebay_gate_requests_total";
const OUTCOMES: &str = "forebay_gate_outcomes_total";
const ERRORS: &str = "forebay_gate_errors_total";
const REFUSALS: &str = "forebay_gate_refusals_total";
const FAILURES: &str = "forebay_gate_upstream_failures_total";
const CANCELLED: &str = "forebay_gate_cancelled_total";
const UPGRADES_ENDED: &str = "forebay_gate_upgrades_ended_total";
const UNTRUSTED: &str = "forebay_gate_untrusted_headers_total";
/// Histogram of the time from a request to the upstream's response head, in seconds.
pub const HEAD_SECONDS: &str = "forebay_gate_upstream_head_seconds";
const IN_FLIGHT: &str = "forebay_gate_in_flight";
const DRAINING: &str = "forebay_gate_draining";
const UPSTREAM_OPEN: &str = "forebay_gate_upstream_connections";
const UPSTREAM_IDLE: &str = "forebay_gate_upstream_idle_connections";
const UPSTREAM_DIALS: &str = "forebay_gate_upstream_dials_total";
const UPSTREAM_REUSES: &str = "forebay_gate_upstream_reuses_total";
const UPSTREAM_RETRIES: &str = "forebay_gate_upstream_retries_total";

/// Describes all metrics of the gate to the recorder.
pub fn describe() {
    let counters = [
        (REQUESTS, "Responses of the upstream that were passed on, by kind of route and class of status."),
        (
            OUTCOMES,
            "Requests that have ended, by kind of route, by outcome, and by the labels of `gate.metric_labels`.",
        ),
        (ERRORS, "Failures of requests, by stage and type; a 5xx response whose body fails counts twice."),
        (
            REFUSALS,
            "Requests that the gate itself answered, by reason; admission's own refusals are not in here.",
        ),
        (FAILURES, "Failures of the upstream, by reason."),
        (CANCELLED, "Requests whose client left, before the head of the response or in its body."),
        (UPGRADES_ENDED, "Upgraded connections that ended, such as WebSockets, by how they ended."),
        (UNTRUSTED, "Headers dropped because their sender isn't trusted to say whom it speaks for."),
        (UPSTREAM_DIALS, "Connections made to the upstream."),
        (UPSTREAM_REUSES, "Requests that found a connection waiting."),
        (UPSTREAM_RETRIES, "Requests sent again since the waiting connection had closed."),
    ];
    for (name, help) in counters {
        describe_counter!(name, help);
    }
    let gauges = [
        (IN_FLIGHT, "Requests inside the gate, streams included, by kind."),
        (DRAINING, "1 while the gate refuses new streams because it is about to end."),
        (UPSTREAM_OPEN, "Open connections to the upstream."),
        (UPSTREAM_IDLE, "Connections to the upstream that wait for a request."),
    ];
    for (name, help) in gauges {
        describe_gauge!(name, help);
    }
    describe_histogram!(
        HEAD_SECONDS,
        Unit::Seconds,
        "From a request to the head of the upstream's response."
    );
}

/// Sets the gauges, and the counters of the connection pool.
pub(crate) fn set_gauges(upstream: UpstreamStats, stream: RequestKind, drain: &Drain) {
    gauge!(UPSTREAM_OPEN).set(upstream.open as f64);
    gauge!(UPSTREAM_IDLE).set(upstream.idle as f64);
    counter!(UPSTREAM_DIALS).absolute(upstream.dials);
    counter!(UPSTREAM_REUSES).absolute(upstream.reuses);
    counter!(UPSTREAM_RETRIES).absolute(upstream.retries);
    gauge!(IN_FLIGHT, "kind" => stream.as_str()).set(drain.streams() as f64);
    gauge!(IN_FLIGHT, "kind" => RequestKind::Plain.as_str()).set(drain.plain() as f64);
    gauge!(DRAINING).set(if drain.is_draining() { 1.0 } else { 0.0 });
}

/// When a client disconnected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CancelStage {
    /// Before the response head.
    Head,
    /// During the response body.
    Body,
}

impl CancelStage {
    fn as_str(self) -> &'static str {
        match self {
            CancelStage::Head => "head",
            CancelStage::Body => "body",
        }
    }
}

pub(crate) fn count_response(kind: RequestKind, status: StatusCode, after: Duration) {
    let class = match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "other",
    };
    counter!(REQUESTS, "kind" => kind.as_str(), "status" => class).increment(1);
    if status.is_server_error() {
        count_failure(RequestFailure::new(FailureStage::FirstByte, FailureType::Upstream5xx));
    }
    histogram!(HEAD_SECONDS).record(after.as_secs_f64());
}

/// Returns the counter of an outcome. `labels` are the configured ones, with their values.
pub(crate) fn outcome_counter<'a>(
    kind: RequestKind,
    outcome: GateOutcome,
    labels: impl Iterator<Item = (&'a str, &'a str)>,
) -> Counter {
    let own = [("kind", kind.as_str()), ("outcome", outcome.as_str())];
    let own = own.into_iter().map(|(name, value)| Label::from_static_parts(name, value));
    let labels: Vec<Label> =
        own.chain(labels.map(|(name, value)| Label::new(name.to_owned(), value.to_owned()))).collect();
    register_counter(OUTCOMES, labels)
}

fn register_counter(name: &'static str, labels: Vec<Label>) -> Counter {
    counter!(name, labels)
}

pub(crate) fn count_failure(failure: RequestFailure) {
    counter!(ERRORS, "stage" => failure.stage.as_str(), "type" => failure.kind.as_str()).increment(1);
}

pub(crate) fn count_refusal(reason: &'static str) {
    counter!(REFUSALS, "reason" => reason).increment(1);
}

pub(crate) fn count_upstream_failure(reason: &'static str) {
    counter!(FAILURES, "reason" => reason).increment(1);
}

pub(crate) fn count_cancelled(kind: RequestKind, stage: CancelStage) {
    counter!(CANCELLED, "kind" => kind.as_str(), "stage" => stage.as_str()).increment(1);
}

pub(crate) fn count_upgrade_end(end: TunnelEnd) {
    counter!(UPGRADES_ENDED, "end" => end.as_str()).increment(1);
}

pub(crate) fn count_untrusted_headers(count: u32) {
    if count > 0 {
        counter!(UNTRUSTED).increment(u64::from(count));
    }
}
