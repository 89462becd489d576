//! Reverse proxy: the public handle that connects settings, upstream, routes and service.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_admission::{Admission, AdmissionLayer, Identifier};

use super::config::Config;
use super::drain::{Drain, RequestKind};
use super::forwarder::{Forwarder, ForwarderState};
use super::gate_service::GateService;
use super::metric_label::distinct_labels;
use super::metrics;
use super::outcome_counters::OutcomeCounters;
use super::stream_routes::{StreamRoute, StreamRoutes};
use super::upstream::{Upstream, UpstreamStats};

/// A reverse proxy in front of one upstream. Cheap to clone.
#[derive(Clone)]
pub struct ReverseProxy {
    forwarder: Forwarder,
    routes: Arc<StreamRoutes>,
    outcomes: Arc<OutcomeCounters>,
    identify: Identifier,
}

impl ReverseProxy {
    /// Creates the proxy, and spawns a task that closes expired idle connections. Doesn't dial.
    /// Must be called inside a tokio runtime. Metrics go to the recorder that is installed by then.
    pub fn new(config: Config, identify: Identifier) -> ReverseProxy {
        let mut user_headers = config.user_headers;
        user_headers.extend(config.forward_user_header.clone());
        let forwarder = Forwarder::new(ForwarderState {
            upstream: Upstream::new(config.upstream),
            preserve_host: config.preserve_host,
            scheme: if config.is_tls { "https" } else { "http" },
            trusted_proxies: config.trusted_proxies,
            forwarded_by: config.forwarded_by,
            user_headers,
            forward_user_header: config.forward_user_header,
            identify: identify.clone(),
            request_idle_timeout: config.request_idle_timeout,
            upgrade_idle_timeout: config.upgrade_idle_timeout,
            drain: Drain::default(),
            failing: AtomicBool::new(false),
            exhausted: AtomicBool::new(false),
        });
        let routes = StreamRoutes::new(config.stream_routes);
        let labels = distinct_labels(config.metric_labels);
        let outcomes = OutcomeCounters::new(labels, stream_kind(&routes));
        ReverseProxy { forwarder, routes: Arc::new(routes), outcomes: Arc::new(outcomes), identify }
    }

    /// Returns the service for [`forebay_stream::HttpServer`]. Streams take a permit from
    /// `admission`.
    pub fn service(&self, admission: Admission) -> GateService {
        let layer = AdmissionLayer::new(admission, self.identify.clone());
        GateService::new(layer, self.forwarder.clone(), Arc::clone(&self.routes), Arc::clone(&self.outcomes))
    }

    /// Returns the drain. It counts the requests in flight. After `begin`, it refuses new streams.
    pub fn drain(&self) -> &Drain {
        self.forwarder.drain()
    }

    /// Returns the routes whose requests take a permit. If empty, every request takes one.
    pub fn routes(&self) -> impl Iterator<Item = &StreamRoute> {
        self.routes.iter()
    }

    /// Returns whether the upstream has failed since its last response.
    pub fn is_failing(&self) -> bool {
        self.forwarder.is_failing()
    }

    /// Returns the gauges and counters of the connection pool.
    pub fn upstream_stats(&self) -> UpstreamStats {
        self.forwarder.upstream().stats()
    }

    /// Sets the gauges, and the counters of the connection pool. Call it before metrics are
    /// collected.
    pub fn measure(&self) {
        metrics::set_gauges(self.upstream_stats(), stream_kind(&self.routes), self.drain());
    }
}

/// Returns the kind of requests that take a permit.
fn stream_kind(routes: &StreamRoutes) -> RequestKind {
    if routes.is_empty() { RequestKind::Any } else { RequestKind::Stream }
}

impl fmt::Debug for ReverseProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseProxy").field("routes", &self.routes).finish_non_exhaustive()
    }
}
