//! The task that sends: spans in batches, metrics on time.
//!
//! Invariant: at most one batch is on its way and one gathers; what is on its way stays until it has arrived, is refused, or the program
//! ends; what comes meanwhile waits in the queue, as far as that has room.
//! Kept by: a message is encoded once, and kept as it is until then.

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

use super::delivery::{Delivery, Signal};
use super::measured::{Span, translate};
use super::telemetry::SCOPE;
use crate::admin::StatusReport;
use crate::config::OtelConfig;
use crate::metrics;

/// So many spans go together, as OpenTelemetry's own processors have it.
const BATCH: usize = 512;
/// How long the first of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);

pub(super) struct Worker {
    spans: mpsc::Receiver<SpanData>,
    gathered: Vec<SpanData>,
    under_way: Option<Batch>,
    /// When the next batch leaves, or the one before is tried again.
    departs: Instant,
    ticks: Interval,
    stop: oneshot::Receiver<()>,
    delivery: Delivery,
    resource: ResourceAttributesWithSchema,
    report: Arc<dyn StatusReport>,
    metrics: PrometheusHandle,
    start_ns: u64,
}

/// Spans as they are sent.
struct Batch {
    message: Bytes,
    spans: usize,
}

/// What happens to a worker.
enum Event {
    Gathered,
    Departure,
    Measuring,
    Stop,
}

impl Worker {
    pub(super) fn new(
        config: &OtelConfig,
        resource: ResourceAttributesWithSchema,
        spans: mpsc::Receiver<SpanData>,
        stop: oneshot::Receiver<()>,
        (report, metrics): (Arc<dyn StatusReport>, PrometheusHandle),
    ) -> Worker {
        let mut ticks = interval(config.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Worker {
            spans,
            gathered: Vec::new(),
            under_way: None,
            departs: Instant::now(),
            ticks,
            stop,
            delivery: Delivery::new(config),
            resource,
            report,
            metrics,
            start_ns: now_ns(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            match self.next().await {
                Event::Gathered => {
                    if self.gathered.len() == BATCH && self.under_way.is_none() {
                        self.departs = Instant::now();
                    }
                }
                Event::Departure => self.depart().await,
                Event::Measuring => self.send_metrics().await,
                Event::Stop => return self.flush().await,
            }
        }
    }

    async fn next(&mut self) -> Event {
        let (room, is_empty) = (BATCH - self.gathered.len(), self.gathered.is_empty());
        let has_cargo = self.under_way.is_some() || !is_empty;
        let (stop, spans, gathered) = (&mut self.stop, &mut self.spans, &mut self.gathered);
        tokio::select! {
            biased;
            _ = stop => Event::Stop,
            _ = self.ticks.tick() => Event::Measuring,
            () = sleep_until(self.departs), if has_cargo => Event::Departure,
            _ = spans.recv_many(gathered, room), if room > 0 => {
                if is_empty && self.under_way.is_none() {
                    self.departs = Instant::now() + LINGER;
                }
                Event::Gathered
            }
        }
    }

    /// Sends what is under way, or what has gathered.
    async fn depart(&mut self) {
        let batch = match self.under_way.take() {
            Some(batch) => batch,
            None => self.pack(),
        };
        let sent = self.delivery.send(Signal::Traces, batch.message.clone()).await;
        let now = Instant::now();
        self.departs = if self.gathered.len() == BATCH { now } else { now + LINGER };
        match sent {
            Ok(answer) => {
                let refused = ExportTraceServiceResponse::decode(&answer[..]).ok();
                let refused = refused.and_then(|answer| answer.partial_success);
                let refused = refused.map_or(0, |partial| partial.rejected_spans);
                metrics::lost_spans("refused", usize::try_from(refused).unwrap_or_default());
            }
            Err(error) if error.retry() => {
                self.departs = now + self.delivery.pause(Signal::Traces);
                self.under_way = Some(batch);
            }
            Err(_) => metrics::lost_spans("refused", batch.spans),
        }
    }

    fn pack(&mut self) -> Batch {
        let spans = std::mem::take(&mut self.gathered);
        let count = spans.len();
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        let message = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        Batch { message: message.into(), spans: count }
    }

    /// They are cumulative: what doesn't arrive now is in the next ones.
    async fn send_metrics(&mut self) {
        self.report.measure();
        let span = Span { start_ns: self.start_ns, now_ns: now_ns() };
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let metrics = translate(&self.metrics.render(), span);
        let of_scope = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
        let attributes = self.resource.attributes.0.clone();
        let of_resource = ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![of_scope],
            ..ResourceMetrics::default()
        };
        let message = ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }.encode_to_vec();
        let _noted = self.delivery.send(Signal::Metrics, message.into()).await;
    }

    /// What is left is tried once; a collector that is away is not waited for.
    async fn flush(mut self) {
        loop {
            while self.gathered.len() < BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                self.gathered.push(span);
            }
            if self.under_way.is_none() && self.gathered.is_empty() {
                break;
            }
            self.depart().await;
            if let Some(batch) = &self.under_way {
                metrics::lost_spans("ended", batch.spans + self.gathered.len() + self.spans.len());
                return;
            }
        }
        self.send_metrics().await;
    }
}

#[allow(clippy::disallowed_methods, reason = "a collector orders what it gets by the time of day")]
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
