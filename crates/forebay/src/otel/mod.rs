//! OpenTelemetry: a span for each request of clients, and the metrics of `/metrics`, sent to a collector by OTLP over HTTP.
//!
//! Invariant: nobody waits for the collector, and one that is away costs a bounded buffer; a span ends once, with the body of its
//! response, however that ends; and of what a client wrote, a span has nothing but the method, if it is a known one, and the trace
//! that it belongs to: no path, query, header, user or address.
//! Kept by: ended spans go into a queue that drops what it has no room for (`queue.rs`), and one task empties it (`worker.rs`); the span
//! travels in the body, as admission's permit does (`spans.rs`), which names routes as the settings and the protocol write them.
//! Not here: anything at all in a program that was built without the feature `otel`; `absent.rs` has the same face, and nothing
//! behind it.

#[cfg(not(feature = "otel"))]
mod absent;
#[cfg(feature = "otel")]
mod delivery;
#[cfg(feature = "otel")]
mod measured;
#[cfg(feature = "otel")]
mod outage;
#[cfg(feature = "otel")]
mod queue;
#[cfg(feature = "otel")]
mod spans;
#[cfg(feature = "otel")]
mod telemetry;
#[cfg(feature = "otel")]
mod worker;

#[cfg(not(feature = "otel"))]
pub(crate) use absent::{Telemetry, Traced};
#[cfg(feature = "otel")]
pub(crate) use spans::Traced;
#[cfg(feature = "otel")]
pub(crate) use telemetry::Telemetry;
