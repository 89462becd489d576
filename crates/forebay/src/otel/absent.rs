//! What stands for telemetry in a program that was built without it: nothing, at no cost.
//!
//! Invariant: a service is what it was, and nothing is kept or awaited.

use std::net::SocketAddr;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::admin::StatusReport;
use crate::config::OtelConfig;

pub(crate) type Traced<S> = S;

#[derive(Debug)]
pub(crate) struct Telemetry;

impl Telemetry {
    pub(crate) fn new(config: Option<&OtelConfig>, _is_tls: bool, _address: SocketAddr) -> Telemetry {
        debug_assert!(config.is_none(), "the settings refuse an endpoint that nothing is sent to");
        Telemetry
    }

    pub(crate) fn traced<S>(&self, service: S) -> Traced<S> {
        service
    }

    pub(crate) fn start(&mut self, _report: Arc<dyn StatusReport>, _metrics: PrometheusHandle) {}

    pub(crate) async fn end(self) {}
}
