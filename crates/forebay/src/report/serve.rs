//! Status of `forebay serve`.

use std::net::SocketAddr;

use forebay_admission::Admission;
use forebay_quota::Quota;
use forebay_replication::ManagerPhase;
use forebay_serve::ShapeBackend;
use forebay_serve::protocol::fixed_responses::Health;
use forebay_stream::ServerStats;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::shape_lister::ShapeLister;
use crate::admin::{Readiness, StatusReport};
use crate::dashboard::DashboardSample;
use crate::metrics;

/// Reads the state of a shape server from its components.
pub(crate) struct ServeReport {
    pub(crate) started: Instant,
    pub(crate) address: SocketAddr,
    pub(crate) backend: ShapeBackend,
    pub(crate) admission: Admission,
    pub(crate) quota: Quota,
    pub(crate) http: ServerStats,
    pub(crate) shape_lister: ShapeLister,
}

/// Maximum number of bytes that one status request reads to count rows.
const STATUS_READ_BYTES: u64 = 256 * 1024;
/// Maximum number of bytes that each dashboard event reads to count rows.
const DASHBOARD_READ_BYTES: u64 = 8 * 1024 * 1024;

impl StatusReport for ServeReport {
    fn readiness(&self) -> Readiness {
        if self.backend.shapes().is_full() {
            return Readiness::NotReady("the disk is full: nothing new is taken from the database");
        }
        if let Some(why) = self.backend.shapes().unusable() {
            return Readiness::NotReady(why.as_str());
        }
        match self.backend.health() {
            Health::Active => Readiness::Ready,
            Health::Waiting => Readiness::Waiting,
            // starting
            _ if self.backend.manager().status().halted.is_some() => Readiness::NotReady(
                "the database is unfit and an operator must act: see `trouble` in /v1/status",
            ),
            _ => Readiness::NotReady("the database isn't followed yet"),
        }
    }

    fn status(&self) -> Value {
        self.render(STATUS_READ_BYTES)
    }

    fn dashboard_status(&self) -> Value {
        self.render(DASHBOARD_READ_BYTES)
    }

    fn sample(&self) -> DashboardSample {
        let manager = self.backend.manager();
        // Without a replication stream the positions are stale, and would look healthy.
        let positions = (manager.status().phase == ManagerPhase::Running).then(|| manager.positions());
        DashboardSample {
            lag_bytes: positions.map(|positions| positions.lag_bytes),
            retained_bytes: positions.map(|positions| positions.retained_bytes),
            streams: self.admission.open_streams() as u64,
            requests: self.http.counts().requests,
        }
    }

    fn measure(&self) {
        metrics::measure_process(self.started.elapsed());
        metrics::measure_http(&self.http.counts());
        self.backend.measure();
    }
}

impl ServeReport {
    /// Returns the status. Reads up to `read_budget` bytes to count rows.
    fn render(&self, read_budget: u64) -> Value {
        let (shapes, manager) = (self.backend.shapes(), self.backend.manager());
        let summary = self.shape_lister.summarize(shapes, read_budget);
        let (counts, readiness) = (self.http.counts(), self.readiness());
        json!({
            "command": "serve",
            "version": env!("CARGO_PKG_VERSION"),
            "listen": self.address.to_string(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "health": self.backend.health().as_str(),
            "ready": readiness.is_ready(),
            "why_not_ready": readiness.not_ready_reason(),
            "database": manager.status(),
            "positions": manager.positions(),
            "reservoir": manager.pool_status(),
            "shapes": {
                "count": summary.count,
                "bytes": summary.bytes,
                "streams": summary.streams,
                "top": summary.top,
                "writes": shapes.is_writing(),
                "disk_full": shapes.is_full(),
                "held": shapes.held_shapes(),
                "held_bytes": shapes.held_bytes(),
                "durable_lsn": shapes.position().map(|position| position.lsn),
            },
            "admission": self.admission(),
            "quota": self.quota.status(),
            "http": {
                "open_connections": counts.open_connections,
                "lean_streams": counts.live_streams,
                "requests": counts.requests,
                "slow_clients": counts.slow_clients,
            },
        })
    }

    /// Returns the admission status with its statistics, without the list of streams.
    fn admission(&self) -> Value {
        let status = self.admission.status_listing(0);
        let statistics = json!(status.statistics);
        let mut admission = json!(status);
        if let (Value::Object(fields), Value::Object(statistics)) = (&mut admission, statistics) {
            fields.remove("streams");
            fields.remove("quota"); // a field of the status itself
            fields.extend(statistics);
        }
        admission
    }
}
