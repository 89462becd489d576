//! Reverse proxy: one upstream, its routes, and what operators see of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_admission::{Admission, AdmissionLayer, Identify};

use super::config::Config;
use super::drain::{Drain, Kind};
use super::metrics;
use super::proxy::{Proxy, Shared};
use super::routes::{Route, Routes};
use super::service::GateService;
use super::upstream::{Upstream, UpstreamStats};

/// A reverse proxy before one service; cheap to clone.
#[derive(Clone)]
pub struct ReverseProxy {
    proxy: Proxy,
    routes: Arc<Routes>,
    identify: Identify,
}

impl ReverseProxy {
    /// Dials nothing yet. Needs a tokio runtime: a task closes connections that were idle for too
    /// long.
    pub fn new(config: Config, identify: Identify) -> ReverseProxy {
        let mut user_headers = config.user_headers;
        user_headers.extend(config.forward_user_header.clone());
        let proxy = Proxy::new(Shared {
            upstream: Upstream::new(config.upstream),
            preserve_host: config.preserve_host,
            scheme: if config.is_tls { "https" } else { "http" },
            trusted_proxies: config.trusted_proxies,
            forwarded_by: config.forwarded_by,
            user_headers,
            forward_user_header: config.forward_user_header,
            identify: identify.clone(),
            request_idle_timeout: config.request_idle_timeout,
            drain: Drain::default(),
            failing: AtomicBool::new(false),
            exhausted: AtomicBool::new(false),
        });
        ReverseProxy { proxy, routes: Arc::new(Routes::new(config.stream_routes)), identify }
    }

    /// Returns the service for [`forebay_stream::HttpServer`]. Streams take a permit of
    /// `admission`.
    pub fn service(&self, admission: Admission) -> GateService {
        let layer = AdmissionLayer::new(admission, self.identify.clone());
        GateService::new(layer, self.proxy.clone(), Arc::clone(&self.routes))
    }

    /// Returns the drain: it counts the requests inside, and refuses new streams once begun.
    pub fn drain(&self) -> &Drain {
        self.proxy.drain()
    }

    /// Returns the routes that take a permit; none: every request does.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    /// Returns whether the last exchange failed by the upstream's fault.
    pub fn is_failing(&self) -> bool {
        self.proxy.is_failing()
    }

    /// Returns what the pool of connections to the upstream has done and holds.
    pub fn upstream_stats(&self) -> UpstreamStats {
        self.proxy.upstream().stats()
    }

    /// Sets the metrics that are measured only on request.
    pub fn measure(&self) {
        let stream = if self.routes.is_empty() { Kind::Anything } else { Kind::Stream };
        metrics::measure(self.upstream_stats(), stream, self.drain());
    }
}

impl fmt::Debug for ReverseProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseProxy").field("routes", &self.routes).finish_non_exhaustive()
    }
}
