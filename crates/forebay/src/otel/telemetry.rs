//! Telemetry as a command has it: off, or a tracer and the task that sends.

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

use super::queue::Queue;
use super::spans::{Traced, Tracing};
use super::worker::Worker;
use crate::admin::StatusReport;
use crate::config::OtelConfig;
use crate::run::member_name;

/// Who made the spans and the metrics.
pub(super) const SCOPE: &str = "forebay";
/// How long the end waits for what is left to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Off, unless the settings name a collector.
#[derive(Debug)]
pub(crate) struct Telemetry(Option<On>);

#[derive(Debug)]
struct On {
    config: OtelConfig,
    tracing: Arc<Tracing>,
    resource: Resource,
    /// Until the task has it.
    spans: Option<mpsc::Receiver<SpanData>>,
    task: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Telemetry {
    /// Of an instance that listens there.
    pub(crate) fn new(config: Option<&OtelConfig>, is_tls: bool, address: SocketAddr) -> Telemetry {
        Telemetry(config.map(|config| On::new(config.clone(), is_tls, address)))
    }

    pub(crate) fn traced<S>(&self, service: S) -> Traced<S> {
        Traced::new(service, self.0.as_ref().map(|on| Arc::clone(&on.tracing)))
    }

    /// Begins to send. Needs a tokio runtime.
    pub(crate) fn start(&mut self, report: Arc<dyn StatusReport>, metrics: PrometheusHandle) {
        let Some(on) = &mut self.0 else { return };
        let Some(spans) = on.spans.take() else { return };
        let (stop, stopped) = oneshot::channel();
        let worker = Worker::new(&on.config, (&on.resource).into(), spans, stopped, (report, metrics));
        on.task = Some((stop, tokio::spawn(worker.run())));
        info!(endpoint = %on.config.endpoint, "traces and metrics are sent");
    }

    /// Sends what is left, as far as there is time.
    pub(crate) async fn end(self) {
        let Some((stop, mut task)) = self.0.and_then(|on| on.task) else { return };
        let _ = stop.send(());
        if timeout(FLUSH_TIMEOUT, &mut task).await.is_err() {
            task.abort();
            warn!(deadline = ?FLUSH_TIMEOUT, "the last telemetry was not taken in time");
        }
    }
}

impl On {
    fn new(config: OtelConfig, is_tls: bool, address: SocketAddr) -> On {
        // Without the instance, the counters of two would be taken for those of one.
        let resource = Resource::builder_empty()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", member_name(address)))
            .build();
        let (queue, spans) = Queue::new();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample)));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(sampler)
            .with_resource(resource.clone())
            .build();
        let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        let scheme = if is_tls { "https" } else { "http" };
        let tracing = Arc::new(Tracing { tracer: provider.tracer_with_scope(scope), scheme });
        On { config, tracing, resource, spans: Some(spans), task: None }
    }
}
