//! What operators see of a gate.

use std::net::SocketAddr;

use forebay_admission::{Admission, MAX_LISTED};
use forebay_gate::ReverseProxy;
use forebay_quota::{Quota, QuotaMode};
use forebay_stream::ServerStats;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::admin::{Readiness, Report};
use crate::dashboard::Sample;
use crate::metrics;

const REBUILDING: &str =
    "the quota is rebuilding: its namespace is new or was lost, so streams are admitted after one TTL";

pub(crate) struct GateReport {
    /// After the quota was joined: `ready` counts on it.
    pub(crate) started: Instant,
    pub(crate) address: SocketAddr,
    pub(crate) upstream_url: String,
    pub(crate) identity: Vec<&'static str>,
    pub(crate) admission: Admission,
    pub(crate) quota: Quota,
    pub(crate) proxy: ReverseProxy,
    pub(crate) http: ServerStats,
}

impl Report for GateReport {
    /// Ready from when it first serves streams until it drains.
    ///
    /// Not ready is a gate that rebuilds since its start: its namespace is new, or was lost, and it would refuse every stream
    /// for up to one TTL, while others may serve. Once it has served, whatever befalls the store befalls all gates at once,
    /// and to take them all away would help nobody: one that rebuilds again goes on with its open streams, with requests that
    /// take no permit, and tells new streams when to come again. A gate without its store serves by its policy, `closed`
    /// included, which is what somebody chose for that case.
    fn readiness(&self) -> Readiness {
        if self.proxy.drain().is_draining() {
            return Readiness::Not("draining");
        }
        let up_ms = self.started.elapsed().as_millis(); // before the status, which must not be the older one
        let quota = self.quota.status();
        match quota.mode {
            QuotaMode::Rebuilding if u128::from(quota.mode_since_ms) >= up_ms => Readiness::Not(REBUILDING),
            QuotaMode::Rebuilding | QuotaMode::Normal | QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
                Readiness::Ready
            }
        }
    }

    fn status(&self) -> Value {
        self.tell(MAX_LISTED)
    }

    fn glance(&self) -> Value {
        self.tell(0)
    }

    fn sample(&self) -> Sample {
        Sample {
            streams: self.proxy.drain().streams() as u64,
            requests: self.http.counts().requests,
            ..Sample::default()
        }
    }

    fn measure(&self) {
        metrics::measure_process(self.started.elapsed());
        metrics::measure_http(&self.http.counts());
        self.proxy.measure();
    }
}

impl GateReport {
    /// Everything; lists so many streams.
    fn tell(&self, most: usize) -> Value {
        let (counts, readiness) = (self.http.counts(), self.readiness());
        let mut http = Map::new();
        http.insert("open_connections".into(), counts.open_connections.into());
        http.insert("lean_streams".into(), counts.live_streams.into());
        http.extend(metrics::http_events(&counts).map(|(event, count)| (event.to_owned(), count.into())));
        let routes: Vec<String> = self.proxy.routes().map(ToString::to_string).collect();
        json!({
            "command": "gate",
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": self.started.elapsed().as_secs(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "ready": readiness.is_ready(),
            "why_not_ready": readiness.why_not(),
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
            "admission": self.admission.status_listing(most),
            "http": http,
        })
    }
}
