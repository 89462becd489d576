//! Where ended spans wait for the task that sends them.
//!
//! Invariant: ending a span never waits; when there is no room, the span is lost and counted.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::metrics;

/// Four batches: a second of two thousand requests, at about half a KiB for each.
const ROOM: usize = 2048;

/// The end of the queue that spans come in at.
#[derive(Debug)]
pub(super) struct Queue(Sender<SpanData>);

impl Queue {
    pub(super) fn new() -> (Queue, Receiver<SpanData>) {
        let (sender, receiver) = mpsc::channel(ROOM);
        (Queue(sender), receiver)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.try_send(span).is_err() {
            metrics::lost_spans("queue_full", 1);
        }
    }

    /// The task flushes, when the program ends.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
