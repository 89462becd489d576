//! Bounded queue of ended spans, emptied by the export worker.
//!
//! Invariant: ending a span never waits. If the queue is full, the span is dropped and counted.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::metrics;

/// Capacity: four batches, which is one second at 2,000 requests per second. A span takes about
/// half a KiB.
const QUEUE_CAPACITY: usize = 2048;

/// Sender of the queue.
#[derive(Debug)]
pub(super) struct SpanQueue(Sender<SpanData>);

impl SpanQueue {
    pub(super) fn new() -> (SpanQueue, Receiver<SpanData>) {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        (SpanQueue(sender), receiver)
    }
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.try_send(span).is_err() {
            metrics::lost_spans("queue_full", 1);
        }
    }

    /// Does nothing: the export worker flushes at shutdown.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
