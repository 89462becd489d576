//! Export worker: the task that sends spans in batches and metrics at an interval.
//!
//! Invariant: at most one batch is in flight, and one is being collected. A batch stays in flight
//! until the collector accepts or refuses it, or the process ends. Meanwhile, further spans wait in
//! the bounded queue. Every span that the worker received is accepted by the collector, or counted
//! as lost.
//! Enforced by: an encoded batch stays in `in_flight` while it is sent, and after a temporary
//! failure. It is sent again before any other batch. `Drop` counts what is left, also if the task
//! is aborted during a request.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use tracing::warn;

use super::otlp_exporter::{OtlpExporter, OtlpSignal};
use super::otlp_metrics::{MeasurementWindow, translate};
use super::telemetry::SCOPE;
use crate::admin::StatusReport;
use crate::config::OtelConfig;
use crate::metrics;

/// Spans in a batch, the default of OpenTelemetry's batch processor.
const BATCH_SPANS: usize = 512;
/// Time that the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);

/// State of the worker task.
pub(super) struct ExportWorker {
    spans: mpsc::Receiver<SpanData>,
    collected: Vec<SpanData>,
    in_flight: Option<SpanBatch>,
    /// Time at which the next batch is sent, or the batch in flight is sent again.
    next_send: Instant,
    ticks: Interval,
    stop: oneshot::Receiver<()>,
    exporter: OtlpExporter,
    resource: ResourceAttributesWithSchema,
    report: Arc<dyn StatusReport>,
    metrics: PrometheusHandle,
    start_ns: u64,
}

/// An encoded batch.
struct SpanBatch {
    message: Bytes,
    spans: usize,
}

/// Event that the worker handles.
enum ExportEvent {
    Collected,
    SendDue,
    MetricsDue,
    Stop,
}

impl ExportWorker {
    pub(super) fn new(
        config: &OtelConfig,
        resource: ResourceAttributesWithSchema,
        spans: mpsc::Receiver<SpanData>,
        stop: oneshot::Receiver<()>,
        (report, metrics): (Arc<dyn StatusReport>, PrometheusHandle),
    ) -> ExportWorker {
        let mut ticks = interval(config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ExportWorker {
            spans,
            collected: Vec::new(),
            in_flight: None,
            next_send: Instant::now(),
            ticks,
            stop,
            exporter: OtlpExporter::new(config),
            resource,
            report,
            metrics,
            start_ns: now_ns(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            match self.next().await {
                ExportEvent::Collected => {
                    if self.collected.len() == BATCH_SPANS && self.in_flight.is_none() {
                        self.next_send = Instant::now();
                    }
                }
                ExportEvent::SendDue => self.send_spans().await,
                ExportEvent::MetricsDue => self.send_metrics().await,
                ExportEvent::Stop => return self.flush().await,
            }
        }
    }

    async fn next(&mut self) -> ExportEvent {
        let (room, is_empty) = (BATCH_SPANS - self.collected.len(), self.collected.is_empty());
        let has_spans = self.in_flight.is_some() || !is_empty;
        let (stop, spans, collected) = (&mut self.stop, &mut self.spans, &mut self.collected);
        tokio::select! {
            biased;
            _ = stop => ExportEvent::Stop,
            _ = self.ticks.tick() => ExportEvent::MetricsDue,
            () = sleep_until(self.next_send), if has_spans => ExportEvent::SendDue,
            _ = spans.recv_many(collected, room), if room > 0 => {
                if is_empty && self.in_flight.is_none() {
                    self.next_send = Instant::now() + LINGER;
                }
                ExportEvent::Collected
            }
        }
    }

    /// Sends the batch in flight, or else the collected spans.
    async fn send_spans(&mut self) {
        let (message, spans) = {
            let batch = match self.in_flight.take() {
                Some(batch) => batch,
                None => self.encode_batch(),
            };
            let batch = self.in_flight.insert(batch);
            (batch.message.clone(), batch.spans)
        };
        let sent = self.exporter.send(OtlpSignal::Traces, message).await;
        let now = Instant::now();
        self.next_send = if self.collected.len() == BATCH_SPANS { now } else { now + LINGER };
        match sent {
            Ok(response) => {
                self.in_flight = None;
                let refused = ExportTraceServiceResponse::decode(&response[..]).ok();
                let refused = refused.and_then(|response| response.partial_success);
                let refused = refused.map_or(0, |partial| partial.rejected_spans);
                metrics::lost_spans("refused", usize::try_from(refused).unwrap_or_default());
            }
            Err(error) if error.retry() => {
                self.next_send = now + self.exporter.retry_delay(OtlpSignal::Traces);
            }
            Err(_) => {
                self.in_flight = None;
                metrics::lost_spans("refused", spans);
            }
        }
    }

    fn encode_batch(&mut self) -> SpanBatch {
        let spans = std::mem::take(&mut self.collected);
        let count = spans.len();
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        let message = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        SpanBatch { message: message.into(), spans: count }
    }

    /// Sends the metrics once. They are cumulative, so the next message replaces a lost one.
    async fn send_metrics(&mut self) {
        self.report.measure();
        let window = MeasurementWindow { start_ns: self.start_ns, now_ns: now_ns() };
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let metrics = translate(&self.metrics.render(), window);
        let of_scope = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
        let attributes = self.resource.attributes.0.clone();
        let of_resource = ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![of_scope],
            ..ResourceMetrics::default()
        };
        let message = ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }.encode_to_vec();
        let _recorded = self.exporter.send(OtlpSignal::Metrics, message.into()).await;
    }

    /// Sends the remaining data, each batch once. It stops if the collector is unavailable.
    async fn flush(mut self) {
        loop {
            while self.collected.len() < BATCH_SPANS
                && let Ok(span) = self.spans.try_recv()
            {
                self.collected.push(span);
            }
            if self.in_flight.is_none() && self.collected.is_empty() {
                break;
            }
            self.send_spans().await;
            if self.in_flight.is_some() {
                return;
            }
        }
        self.send_metrics().await;
    }
}

impl Drop for ExportWorker {
    fn drop(&mut self) {
        let in_flight = self.in_flight.as_ref().map_or(0, |batch| batch.spans);
        let lost = in_flight + self.collected.len() + self.spans.len();
        if lost > 0 {
            metrics::lost_spans("ended", lost);
            warn!(lost, "spans lost at exit");
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a collector orders data by wall-clock time")]
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
