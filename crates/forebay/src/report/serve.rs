//! What operators see of a server of shapes.

use std::net::SocketAddr;

use forebay_admission::Admission;
use forebay_quota::Quota;
use forebay_replication::ManagerPhase;
use forebay_serve::ShapeBackend;
use forebay_serve::protocol::fixed_responses::Health;
use forebay_stream::ServerStats;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::listing::Listing;
use crate::admin::{Readiness, Report};
use crate::dashboard::Sample;
use crate::metrics;

pub(crate) struct ServeReport {
    pub(crate) started: Instant,
    pub(crate) address: SocketAddr,
    pub(crate) backend: ShapeBackend,
    pub(crate) admission: Admission,
    pub(crate) quota: Quota,
    pub(crate) http: ServerStats,
    pub(crate) listing: Listing,
}

/// How much is read at once to count rows: for somebody who asks, and for the pages that look each second.
const ASKED_BYTES: u64 = 256 * 1024;
const GLANCE_BYTES: u64 = 8 * 1024 * 1024;

impl Report for ServeReport {
    fn readiness(&self) -> Readiness {
        if self.backend.shapes().is_full() {
            return Readiness::Not("the disk is full: nothing new is taken from the database");
        }
        if let Some(why) = self.backend.shapes().unusable() {
            return Readiness::Not(why.as_str());
        }
        match self.backend.health() {
            Health::Active => Readiness::Ready,
            Health::Waiting => Readiness::Waiting,
            Health::Starting => Readiness::Not("the database isn't followed yet"),
        }
    }

    fn status(&self) -> Value {
        self.tell(ASKED_BYTES)
    }

    fn glance(&self) -> Value {
        self.tell(GLANCE_BYTES)
    }

    fn sample(&self) -> Sample {
        let manager = self.backend.manager();
        // Without a stream nobody knows how far behind it is, and what was known last would look like all is well.
        let positions = (manager.status().phase == ManagerPhase::Running).then(|| manager.positions());
        Sample {
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
    /// Everything; reads so many bytes to count rows.
    fn tell(&self, budget: u64) -> Value {
        let (shapes, manager) = (self.backend.shapes(), self.backend.manager());
        let listed = self.listing.look(shapes, budget);
        let (counts, readiness) = (self.http.counts(), self.readiness());
        json!({
            "command": "serve",
            "version": env!("CARGO_PKG_VERSION"),
            "listen": self.address.to_string(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "health": self.backend.health().as_str(),
            "ready": readiness.is_ready(),
            "why_not_ready": readiness.why_not(),
            "database": manager.status(),
            "positions": manager.positions(),
            "reservoir": manager.pool_status(),
            "shapes": {
                "count": listed.count,
                "bytes": listed.bytes,
                "streams": listed.streams,
                "top": listed.top,
                "writes": shapes.is_writing(),
                "disk_full": shapes.is_full(),
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

    /// The statistics, and what else there is, but for the list of streams.
    fn admission(&self) -> Value {
        let status = self.admission.status_listing(0);
        let statistics = json!(status.statistics);
        let mut told = json!(status);
        if let (Value::Object(told), Value::Object(statistics)) = (&mut told, statistics) {
            told.remove("streams");
            told.remove("quota"); // it is told beside
            told.extend(statistics);
        }
        told
    }
}
