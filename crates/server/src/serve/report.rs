//! What operators see of a server of shapes.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_admission::Admission;
use forebay_quota::Quota;
use forebay_stream::Stats;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answering::Answering;
use super::metrics;
use super::protocol::answers::Health;
use crate::admin::Report;

pub(crate) struct ServeReport {
    pub(crate) started: Instant,
    pub(crate) address: SocketAddr,
    pub(crate) answering: Arc<Answering>,
    pub(crate) admission: Admission,
    pub(crate) quota: Quota,
    pub(crate) http: Stats,
}

impl Report for ServeReport {
    fn ready(&self) -> Result<(), &'static str> {
        if self.answering.shapes.is_full() {
            return Err("the disk is full: nothing new is taken from the database");
        }
        match self.answering.health() {
            Health::Active => Ok(()),
            Health::Waiting => Err("another instance has the lock: this one serves what it reads"),
            Health::Starting => Err("the database isn't followed yet"),
        }
    }

    fn status(&self) -> Value {
        let Answering { shapes, manager, .. } = &*self.answering;
        let all = shapes.all();
        let bytes: u64 = all.iter().map(|shape| shape.bytes()).sum();
        let counts = self.http.counts();
        json!({
            "command": "serve",
            "listen": self.address.to_string(),
            "uptime_ms": u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "health": self.answering.health().as_str(),
            "ready": self.ready().is_ok(),
            "why_not_ready": self.ready().err(),
            "database": manager.status(),
            "positions": manager.positions(),
            "shapes": {
                "count": all.len(),
                "bytes": bytes,
                "writes": shapes.is_writing(),
                "disk_full": shapes.is_full(),
                "durable_lsn": shapes.position().map(|position| position.lsn),
            },
            "admission": self.admission.statistics(),
            "quota": self.quota.status(),
            "http": {
                "open_connections": counts.open_connections,
                "lean_streams": counts.lean_streams,
                "requests": counts.requests,
                "slow_clients": counts.slow_clients,
            },
        })
    }

    fn measure(&self) {
        crate::metrics::measure_process(self.started.elapsed());
        crate::metrics::measure_http(&self.http.counts());
        let (running, waiting) = self.answering.making.snapshots();
        metrics::measure(&self.answering.shapes, running, waiting);
    }
}
