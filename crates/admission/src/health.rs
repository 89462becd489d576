//! The state of the house, as it is told: since when, and why.
//!
//! Invariant: each change of state is logged and counted once, in [`Watch::recheck`].
//! Looking costs two loads while nothing changes, so every stream may look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use tracing::{error, info, warn};

use crate::core::health::{Change, Health, State, Thresholds};
use crate::metrics::{self, Meters};
use crate::stage::code;

pub(crate) struct Watch {
    /// The counts between which nothing changes, as `low << 32 | high`.
    calm: AtomicU64,
    record: Mutex<Record>,
}

struct Record {
    health: Health,
    since: Instant,
    used: u32,
    limit: u32,
}

/// How the house is, since when, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthStatus {
    /// The state.
    pub state: State,
    /// For how long it has held.
    pub since_seconds: u64,
    /// What led to it.
    pub why: String,
}

impl Watch {
    pub(crate) fn new(thresholds: Thresholds, limit: u32, meters: &Meters) -> Self {
        let health = Health::new(thresholds);
        let record = Record { health, since: Instant::now(), used: 0, limit };
        let watch = Watch { calm: AtomicU64::new(pack((0, 0))), record: Mutex::new(record) };
        meters.health(State::Healthy);
        watch.recheck(0, limit, meters);
        watch
    }

    /// After every admission and release.
    #[inline]
    pub(crate) fn observe(&self, used: u32, limit: u32, meters: &Meters) {
        let calm = self.calm.load(Ordering::Relaxed);
        let (low, high) = ((calm >> 32) as u32, calm as u32);
        if used < low || used >= high {
            self.recheck(used, limit, meters);
        }
    }

    /// The count below which the state falls.
    #[inline]
    pub(crate) fn lowest(&self) -> u32 {
        (self.calm.load(Ordering::Relaxed) >> 32) as u32
    }

    /// After a change of the limits, and once a second, because others' streams count too.
    pub(crate) fn recheck(&self, used: u32, limit: u32, meters: &Meters) {
        let mut record = self.lock();
        let change = record.health.step(used, limit);
        self.calm.store(pack(record.health.calm(limit)), Ordering::Relaxed);
        let Some(change) = change else { return };
        (record.since, record.used, record.limit) = (Instant::now(), used, limit);
        meters.health(change.to);
        metrics::health_changed(change.to);
        drop(record);
        log(change, used, limit);
    }

    pub(crate) fn state(&self) -> State {
        self.lock().health.state()
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        self.lock().health.thresholds()
    }

    pub(crate) fn status(&self) -> HealthStatus {
        let record = self.lock();
        HealthStatus {
            state: record.health.state(),
            since_seconds: record.since.elapsed().as_secs(),
            why: format!("{} of {} streams in use", record.used, record.limit),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pack((low, high): (u32, u32)) -> u64 {
    u64::from(low) << 32 | u64::from(high)
}

fn log(change: Change, used: u32, limit: u32) {
    let Change { from, to } = change;
    match to {
        State::Healthy => info!(stage = code::HEALTH, %from, %to, used, limit, "the state of health changed"),
        State::Degraded => {
            warn!(stage = code::HEALTH, %from, %to, used, limit, "the state of health changed")
        }
        // Somebody must add capacity, or find out who uses it.
        State::Critical | State::Exhausted => {
            error!(stage = code::HEALTH, %from, %to, used, limit, "the state of health changed");
        }
    }
}
