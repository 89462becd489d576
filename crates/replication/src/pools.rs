//! Connection pools: two views of one reservoir. A few connections are for metadata, the rest for
//! snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_reservoir::{
    CheckoutError, ConnectionGuard, ConnectionLimits, PostgresClient, Reservoir, ReservoirConfigError,
    ReservoirView, Shortage, Status,
};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::config::{ManagerConfig, pool_sizes};
use crate::core::machine::{Event, PoolReport};
use crate::error::{RecoveryAction, ReplicationError};

/// Time limit for checking out a snapshot connection.
const SNAPSHOT_CHECKOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for checking out a metadata connection.
const ADMIN_CHECKOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which missing first connections are reported.
const FILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two checks of the number of connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// State of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolStatus {
    /// The pool has not reached its low watermark yet.
    Starting,
    /// The pool is at or above its low watermark.
    Ready,
    /// The pool was ready and has lost connections.
    Repopulating,
}

impl PoolStatus {
    /// Returns the name used in status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            PoolStatus::Starting => "starting",
            PoolStatus::Ready => "ready",
            PoolStatus::Repopulating => "repopulating",
        }
    }
}

/// Why no connection was checked out.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pools aren't open: the manager is starting, asleep or shutting down.
    #[error("the connection pools are closed: the manager is starting, asleep or shutting down")]
    Closed,
    /// No connection became free in time.
    #[error("{0}")]
    Checkout(#[from] CheckoutError),
}

/// The open pools. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pools {
    reservoir: Reservoir<PostgresClient>,
    admin: ReservoirView<PostgresClient>,
    snapshot: ReservoirView<PostgresClient>,
    allows_snapshots: Arc<AtomicBool>,
}

impl Pools {
    pub(crate) fn start(config: &ManagerConfig) -> Result<Self, ReservoirConfigError> {
        let limits = config.limits.clone().unwrap_or_else(ConnectionLimits::local);
        let reservoir = Reservoir::start(config.pool_connect().clone(), config.reservoir(), limits)?;
        let (admin, snapshot) = pool_sizes(config.pool_size);
        Ok(Pools {
            admin: reservoir.view("admin", admin),
            snapshot: reservoir.view("snapshot", snapshot),
            reservoir,
            allows_snapshots: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Checks out a connection for metadata and DDL.
    pub(crate) async fn admin(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        Ok(self.admin.checkout_within(ADMIN_CHECKOUT_TIMEOUT).await?)
    }

    /// Checks out a connection for a snapshot.
    pub(crate) async fn snapshot(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        if !self.allows_snapshots.load(Ordering::Acquire) {
            return Err(PoolError::Closed);
        }
        Ok(self.snapshot.checkout_within(SNAPSHOT_CHECKOUT_TIMEOUT).await?)
    }

    pub(crate) fn close_snapshots(&self) {
        self.allows_snapshots.store(false, Ordering::Release);
    }

    pub(crate) async fn close(&self, timeout: Duration) {
        self.close_snapshots();
        let left = self.reservoir.close(timeout).await;
        if left > 0 {
            tracing::warn!(left, "pools closed: connections still in use");
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.reservoir.status()
    }

    /// Reports the pools' state to the machine until they close.
    pub(crate) async fn watch(self, events: mpsc::Sender<Event>) {
        if !self.first_fill(&events).await {
            return;
        }
        let mut last = None;
        loop {
            let status = self.reservoir.status();
            if status.closing {
                return;
            }
            let counts = &status.counts;
            let is_full = counts.ready + counts.lent + counts.resetting >= status.low_watermark;
            let now = if is_full { PoolStatus::Ready } else { PoolStatus::Repopulating };
            let report =
                PoolReport { admin: now, snapshot: now, why: status.last_failure.filter(|_| !is_full) };
            if last.as_ref() != Some(&report) {
                last = Some(report.clone());
                if events.send(Event::PoolsChanged(report)).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Waits for the first connections. Returns `false` if the pools or the manager closed
    /// meanwhile.
    async fn first_fill(&self, events: &mpsc::Sender<Event>) -> bool {
        loop {
            let Err(error) = self.reservoir.initial_fill(FILL_TIMEOUT).await else { return true };
            if self.reservoir.status().closing {
                return false;
            }
            let kind = match &error.why {
                Shortage::Connect { kind, .. } => Some(*kind),
                _ => None,
            };
            let failure = ReplicationError::Pools { why: error.to_string(), kind };
            let event = match failure.action() {
                RecoveryAction::Halt => Event::PoolsFailed(failure.into()),
                RecoveryAction::Retry | RecoveryAction::RecreateSlot => {
                    let (admin, snapshot) = (PoolStatus::Starting, PoolStatus::Starting);
                    Event::PoolsChanged(PoolReport { admin, snapshot, why: Some(error.why.to_string()) })
                }
            };
            if events.send(event).await.is_err() {
                return false;
            }
        }
    }
}
