//! Telemetry of a command: off, or a tracer and the export worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{info, warn};

use super::export_worker::ExportWorker;
use super::span_queue::SpanQueue;
use super::traced_service::{SpanFactory, TracedService};
use crate::admin::StatusReport;
use crate::config::OtelConfig;
use crate::run::member_name;

/// Instrumentation scope of the spans and metrics.
pub(super) const SCOPE: &str = "forebay";
/// Time limit of the last export at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Telemetry; off unless the settings have a collector.
#[derive(Debug)]
pub(crate) struct Telemetry(Option<ActiveTelemetry>);

/// Telemetry with a collector.
#[derive(Debug)]
struct ActiveTelemetry {
    config: OtelConfig,
    span_factory: Arc<SpanFactory>,
    resource: Resource,
    /// Receiver of the span queue, until the worker takes it.
    spans: Option<mpsc::Receiver<SpanData>>,
    task: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Telemetry {
    /// Creates the telemetry of an instance that listens on `address`.
    pub(crate) fn new(config: Option<&OtelConfig>, is_tls: bool, address: SocketAddr) -> Telemetry {
        Telemetry(config.map(|config| ActiveTelemetry::new(config.clone(), is_tls, address)))
    }

    /// Wraps a service so that each request has a span.
    pub(crate) fn traced<S>(&self, service: S) -> TracedService<S> {
        TracedService::new(service, self.0.as_ref().map(|active| Arc::clone(&active.span_factory)))
    }

    /// Starts the export worker. It needs a tokio runtime.
    pub(crate) fn start(&mut self, report: Arc<dyn StatusReport>, metrics: PrometheusHandle) {
        let Some(active) = &mut self.0 else { return };
        let Some(spans) = active.spans.take() else { return };
        let (stop, stopped) = oneshot::channel();
        let worker =
            ExportWorker::new(&active.config, (&active.resource).into(), spans, stopped, (report, metrics));
        active.task = Some((stop, tokio::spawn(worker.run())));
        info!(endpoint = %active.config.endpoint, "telemetry export started");
    }

    /// Sends the remaining data, within the time limit.
    pub(crate) async fn end(self) {
        let Some((stop, mut task)) = self.0.and_then(|active| active.task) else { return };
        let _ = stop.send(());
        if timeout(FLUSH_TIMEOUT, &mut task).await.is_err() {
            task.abort();
            // The worker counts its spans as lost when it is dropped.
            let _aborted = task.await;
            warn!(deadline = ?FLUSH_TIMEOUT, "telemetry flush timed out");
        }
    }
}

impl ActiveTelemetry {
    fn new(config: OtelConfig, is_tls: bool, address: SocketAddr) -> ActiveTelemetry {
        // The instance id keeps the counters of two instances apart.
        let resource = Resource::builder_empty()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", member_name(address)))
            .build();
        let (queue, spans) = SpanQueue::new();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample)));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(sampler)
            .with_resource(resource.clone())
            .build();
        let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        let scheme = if is_tls { "https" } else { "http" };
        let span_factory = Arc::new(SpanFactory { tracer: provider.tracer_with_scope(scope), scheme });
        ActiveTelemetry { config, span_factory, resource, spans: Some(spans), task: None }
    }
}
