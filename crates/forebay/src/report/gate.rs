//! Status of `forebay gate`.

use std::net::SocketAddr;

use forebay_admission::{Admission, MAX_LISTED};
use forebay_gate::ReverseProxy;
use forebay_quota::{OutagePolicy, Quota, QuotaMode};
use forebay_stream::ServerStats;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::admin::{Readiness, StatusReport};
use crate::dashboard::DashboardSample;
use crate::metrics;

const REBUILDING: &str = "the quota is rebuilding and its policy is closed: its namespace is new or was lost, \
                          so streams are admitted after one TTL";

/// Reads the state of a gate from its components.
pub(crate) struct GateReport {
    /// Start time, taken after the gate has joined the quota. `readiness` relies on it: a rebuild
    /// that began before the start has lasted for at least `started.elapsed()`.
    pub(crate) started: Instant,
    pub(crate) address: SocketAddr,
    pub(crate) upstream_url: String,
    pub(crate) identity: Vec<&'static str>,
    pub(crate) admission: Admission,
    pub(crate) quota: Quota,
    pub(crate) proxy: ReverseProxy,
    pub(crate) http: ServerStats,
}

impl StatusReport for GateReport {
    /// A gate is ready from the first time that it can admit streams until it drains.
    ///
    /// With the policy `closed`, it is not ready during a rebuild of the quota that began before
    /// its start. It would refuse every stream for up to one TTL, while other gates may admit
    /// streams. With other policies it admits streams during a rebuild.
    ///
    /// A later loss of the store affects all gates alike, so readiness doesn't change then. In a
    /// later rebuild, open streams and plain requests continue. New streams that the policy doesn't
    /// allow are refused with the time to retry. While the store is unavailable, the gate admits
    /// streams by the configured policy, which may be `closed`.
    fn readiness(&self) -> Readiness {
        if self.proxy.drain().is_draining() {
            return Readiness::NotReady("draining");
        }
        let up_ms = self.started.elapsed().as_millis(); // read before the quota's status, see `started`
        let quota = self.quota.status();
        match quota.mode {
            QuotaMode::Rebuilding
                if self.quota.policy() == OutagePolicy::Closed
                    && u128::from(quota.mode_since_ms) >= up_ms =>
            {
                Readiness::NotReady(REBUILDING)
            }
            _ => Readiness::Ready,
        }
    }

    fn status(&self) -> Value {
        self.render(MAX_LISTED)
    }

    fn dashboard_status(&self) -> Value {
        self.render(0)
    }

    fn sample(&self) -> DashboardSample {
        DashboardSample {
            streams: self.proxy.drain().streams() as u64,
            requests: self.http.counts().requests,
            ..DashboardSample::default()
        }
    }

    fn measure(&self) {
        metrics::measure_process(self.started.elapsed());
        metrics::measure_http(&self.http.counts());
        self.proxy.measure();
    }
}

impl GateReport {
    /// Returns the status with up to `max_streams` streams.
    fn render(&self, max_streams: usize) -> Value {
        let (counts, readiness) = (self.http.counts(), self.readiness());
        let mut http = Map::new();
        http.insert("open_connections".into(), counts.open_connections.into());
        http.insert("lean_streams".into(), counts.live_streams.into());
        http.insert("upgraded_connections".into(), counts.upgraded_connections.into());
        http.extend(metrics::http_events(&counts).map(|(event, count)| (event.to_owned(), count.into())));
        let routes: Vec<String> = self.proxy.routes().map(ToString::to_string).collect();
        json!({
            "command": "gate",
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "ready": readiness.is_ready(),
            "why_not_ready": readiness.not_ready_reason(),
            "gate": {
                "listen": self.address.to_string(),
                "upstream": self.upstream_url,
                "upstream_failing": self.proxy.is_failing(),
                "upstream_connections": self.proxy.upstream_stats(),
                "stream_routes": routes,
                "every_request_takes_a_permit": routes.is_empty(),
                "identity": self.identity,
                "streams": self.proxy.drain().streams(),
                "plain_requests": self.proxy.drain().plain(),
                "draining": self.proxy.drain().is_draining(),
            },
            "statistics": self.admission.statistics(),
            "admission": self.admission.status_listing(max_streams),
            "http": http,
        })
    }
}
