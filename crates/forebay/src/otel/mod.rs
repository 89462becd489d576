//! OpenTelemetry: exports a span for each client request, and the metrics of `/metrics`, to a
//! collector by OTLP over HTTP.
//!
//! Invariant: requests never wait for the collector. While it is unavailable, only a bounded buffer
//! is used. A span ends exactly once, when the body of its response ends or is dropped. Of the
//! client's data, a span contains only the ids of its trace and the method, if that is a standard
//! one. It contains no path, query, header, user or address.
//! Enforced by: ended spans go into a bounded queue that drops spans when it is full
//! (`span_queue.rs`), and one task empties it (`export_worker.rs`). The span is a field of the
//! response body, like the permit of admission (`traced_service.rs`). Routes are named by their
//! pattern in the settings or the protocol.
//! Out of scope: builds without the feature `otel`. There, `disabled.rs` has the same interface and
//! does nothing.

#[cfg(feature = "otel")]
mod collector_outage;
#[cfg(not(feature = "otel"))]
mod disabled;
#[cfg(feature = "otel")]
mod export_worker;
#[cfg(feature = "otel")]
mod otlp_exporter;
#[cfg(feature = "otel")]
mod otlp_metrics;
#[cfg(feature = "otel")]
mod span_queue;
#[cfg(feature = "otel")]
mod telemetry;
#[cfg(feature = "otel")]
mod traced_service;

#[cfg(not(feature = "otel"))]
pub(crate) use disabled::{Telemetry, TracedService};
#[cfg(feature = "otel")]
pub(crate) use telemetry::Telemetry;
#[cfg(feature = "otel")]
pub(crate) use traced_service::TracedService;
