//! Health monitor: current health state, its start time and its cause.
//!
//! Invariant: each state change is logged and counted once, in [`HealthMonitor::recheck`].
//! Cost: [`HealthMonitor::observe`] is one atomic load while nothing changes, so every stream may
//! call it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde::Serialize;
use tracing::{error, info, warn};

use crate::core::health::{HealthChange, HealthTracker, State, Thresholds};
use crate::metrics::{self, AdmissionMetrics};
use crate::stream_log::code;

/// Tracks the health state and reports its changes.
pub(crate) struct HealthMonitor {
    /// Usage range without a state change, as `low << 32 | high`.
    stable_range: AtomicU64,
    record: Mutex<MonitorState>,
}

struct MonitorState {
    health: HealthTracker,
    since: Instant,
    used: u32,
    limit: u32,
}

/// Health state, its age and its cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthStatus {
    /// Current state.
    pub state: State,
    /// Age of the state in seconds.
    pub since_seconds: u64,
    /// Usage that led to the state.
    pub why: String,
}

impl HealthMonitor {
    pub(crate) fn new(thresholds: Thresholds, limit: u32, metrics: &AdmissionMetrics) -> Self {
        let health = HealthTracker::new(thresholds);
        let record = MonitorState { health, since: Instant::now(), used: 0, limit };
        let watch = HealthMonitor { stable_range: AtomicU64::new(pack((0, 0))), record: Mutex::new(record) };
        metrics.health(State::Healthy);
        watch.recheck(0, limit, metrics);
        watch
    }

    /// Checks the usage after an admission or a release.
    #[inline]
    pub(crate) fn observe(&self, used: u32, limit: u32, metrics: &AdmissionMetrics) {
        let stable_range = self.stable_range.load(Ordering::Relaxed);
        let (low, high) = ((stable_range >> 32) as u32, stable_range as u32);
        if used < low || used >= high {
            self.recheck(used, limit, metrics);
        }
    }

    /// Returns the usage below which the state falls.
    #[inline]
    pub(crate) fn lower_bound(&self) -> u32 {
        (self.stable_range.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Checks the usage after a limit change, and once per second because other instances' streams
    /// count too.
    pub(crate) fn recheck(&self, used: u32, limit: u32, metrics: &AdmissionMetrics) {
        let mut record = self.record.lock();
        let change = record.health.step(used, limit);
        self.stable_range.store(pack(record.health.stable_range(limit)), Ordering::Relaxed);
        let Some(change) = change else { return };
        (record.since, record.used, record.limit) = (Instant::now(), used, limit);
        metrics.health(change.to);
        metrics::health_changed(change.to);
        drop(record);
        log(change, used, limit);
    }

    pub(crate) fn state(&self) -> State {
        self.record.lock().health.state()
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        self.record.lock().health.thresholds()
    }

    pub(crate) fn status(&self) -> HealthStatus {
        let record = self.record.lock();
        HealthStatus {
            state: record.health.state(),
            since_seconds: record.since.elapsed().as_secs(),
            why: format!("{} of {} streams in use", record.used, record.limit),
        }
    }
}

fn pack((low, high): (u32, u32)) -> u64 {
    u64::from(low) << 32 | u64::from(high)
}

fn log(change: HealthChange, used: u32, limit: u32) {
    let HealthChange { from, to } = change;
    match to {
        State::Healthy => info!(stage = code::HEALTH, %from, %to, used, limit, "health state changed"),
        State::Degraded => {
            warn!(stage = code::HEALTH, %from, %to, used, limit, "health state changed")
        }
        // An operator must add capacity, or find out which clients use it.
        State::Critical | State::Exhausted => {
            error!(stage = code::HEALTH, %from, %to, used, limit, "health state changed");
        }
    }
}
