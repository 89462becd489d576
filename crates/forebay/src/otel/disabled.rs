//! Telemetry of a build without the feature `otel`: it does nothing, at no cost.
//!
//! Invariant: services are unchanged, and nothing is stored or awaited.

use std::net::SocketAddr;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::admin::StatusReport;
use crate::config::OtelConfig;

/// The service itself.
pub(crate) type TracedService<S> = S;

/// Disabled telemetry.
#[derive(Debug)]
pub(crate) struct Telemetry;

impl Telemetry {
    pub(crate) fn new(config: Option<&OtelConfig>, _is_tls: bool, _address: SocketAddr) -> Telemetry {
        debug_assert!(config.is_none(), "without the feature, the settings refuse an endpoint");
        Telemetry
    }

    pub(crate) fn traced<S>(&self, service: S) -> TracedService<S> {
        service
    }

    pub(crate) fn start(&mut self, _report: Arc<dyn StatusReport>, _metrics: PrometheusHandle) {}

    pub(crate) async fn end(self) {}
}
