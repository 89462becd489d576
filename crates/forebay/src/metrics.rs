//! Metrics of the program, and their Prometheus text.
//!
//! Names are constants with the prefix `forebay_`, base units, and `_total` on counters. Label
//! values come from enums. The crates of admission, gate and shapes describe and set their own
//! metrics through the same facade (the crate `metrics`).

use std::time::Duration;

use forebay_admission::metrics as admission;
use forebay_gate::metrics as gate;
use forebay_redis::metrics as redis;
use forebay_replication::metrics as replication;
use forebay_replication::reservoir::metrics as reservoir;
use forebay_serve::metrics as serve;
use forebay_stream::ServerCounts;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

const CONNECTIONS: &str = "forebay_http_connections";
const LEAN_STREAMS: &str = "forebay_http_lean_streams";
const UPGRADED: &str = "forebay_http_upgraded_connections";
const HTTP_EVENTS: &str = "forebay_http_events_total";
const BUILD: &str = "forebay_build_info";
const UPTIME: &str = "forebay_uptime_seconds";
const OTEL_EXPORTS: &str = "forebay_otel_exports_total";
const OTEL_LOST: &str = "forebay_otel_lost_spans_total";
const OPEN_FDS: &str = "process_open_fds";
const MAX_FDS: &str = "process_max_fds";

/// Buckets of the time until a response's head, in seconds. A local app takes milliseconds, a model
/// seconds.
const HEAD_BUCKETS: [f64; 11] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0];

/// Buckets of a stream's lifetime, in seconds: from a refused request to a day.
const STREAM_BUCKETS: [f64; 10] = [0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

/// Installs the global recorder, and describes all metrics.
///
/// # Errors
/// Fails if the process already has a recorder.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    // Buckets can be summed over instances, unlike quantiles, and need no stored samples.
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in [
        (gate::HEAD_SECONDS, &HEAD_BUCKETS[..]),
        (admission::WAIT_SECONDS, &HEAD_BUCKETS),
        (admission::STREAM_SECONDS, &STREAM_BUCKETS),
        (serve::SNAPSHOT_SECONDS, &serve::SNAPSHOT_BUCKETS),
        (serve::JUDGEMENT_SECONDS, &serve::JUDGEMENT_BUCKETS),
        (replication::RECOVERY_SECONDS, &STREAM_BUCKETS),
        (reservoir::DIAL_SECONDS, &HEAD_BUCKETS),
        (reservoir::WAIT_SECONDS, &HEAD_BUCKETS),
        (reservoir::RETIREMENT_AGE_SECONDS, &STREAM_BUCKETS),
        (redis::REQUEST_SECONDS, &redis::REQUEST_BUCKETS),
    ] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
    }
    let handle = builder.install_recorder()?;
    describe();
    gate::describe();
    serve::describe();
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// Describes the metrics of the program to the recorder.
pub fn describe() {
    describe_counter!(HTTP_EVENTS, "Events on client connections, by event.");
    let gauges = [
        (CONNECTIONS, "Open client connections."),
        (LEAN_STREAMS, "Open live streams over plain HTTP/1.1, each written by its own small task."),
        (UPGRADED, "Open client connections that were upgraded to another protocol, such as WebSocket."),
        (BUILD, "Always 1; the label has the version."),
        (OPEN_FDS, "Open file descriptors."),
        (MAX_FDS, "Maximum number of open file descriptors."),
    ];
    for (name, help) in gauges {
        describe_gauge!(name, help);
    }
    describe_counter!(OTEL_EXPORTS, "Export requests to the telemetry collector, by signal and outcome.");
    describe_counter!(OTEL_LOST, "Spans lost before the collector accepted them, by reason.");
    describe_gauge!(UPTIME, Unit::Seconds, "Time since the start of the server.");
}

/// Sets the metrics of client connections.
pub(crate) fn measure_http(counts: &ServerCounts) {
    gauge!(CONNECTIONS).set(counts.open_connections as f64);
    gauge!(LEAN_STREAMS).set(counts.live_streams as f64);
    gauge!(UPGRADED).set(counts.upgraded_connections as f64);
    for (event, count) in http_events(counts) {
        counter!(HTTP_EVENTS, "event" => event).absolute(count);
    }
}

/// Returns the counts of events on client connections, with the names that metrics and status
/// share.
pub(crate) fn http_events(counts: &ServerCounts) -> [(&'static str, u64); 17] {
    [
        ("accepted", counts.accepted),
        ("refused", counts.refused),
        ("accept_error", counts.accept_errors),
        ("request", counts.requests),
        ("header_timeout", counts.header_timeouts),
        ("body_timeout", counts.body_timeouts),
        ("bad_request", counts.bad_requests),
        ("oversized_head", counts.oversized_heads),
        ("slow_client", counts.slow_clients),
        ("upgrade", counts.upgrades),
        ("lean_begun", counts.live_started),
        ("lean_complete", counts.live_completed),
        ("lean_broken", counts.live_failed),
        ("lean_left", counts.live_client_closed),
        ("lean_slow", counts.live_write_timeouts),
        ("lean_chatty", counts.live_excess_input),
        ("lean_cut", counts.live_aborted),
    ]
}

/// Sets the gauges of the process, which are read on request.
pub(crate) fn measure_process(uptime: Duration) {
    gauge!(UPTIME).set(uptime.as_secs_f64());
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        gauge!(OPEN_FDS).set(open.count() as f64);
    }
    if let Some(max) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        gauge!(MAX_FDS).set(max as f64);
    }
}

/// Counts one export of telemetry.
#[cfg(feature = "otel")]
pub(crate) fn exported(signal: &'static str, outcome: &'static str) {
    counter!(OTEL_EXPORTS, "signal" => signal, "outcome" => outcome).increment(1);
}

/// Counts spans that the collector did not accept.
#[cfg(feature = "otel")]
pub(crate) fn lost_spans(reason: &'static str, count: usize) {
    counter!(OTEL_LOST, "reason" => reason).increment(count as u64);
}
