//! The two views of one reservoir: a few connections for metadata, the rest for snapshots.

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
use crate::core::machine::{Event, PoolNews};
use crate::error::{Failure, Verdict};

/// How long a snapshot waits for a connection.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a question of metadata does.
const ADMIN_PATIENCE: Duration = Duration::from_secs(5);
/// How long the first connections may take before it is said why there are none.
const FILL_PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody looks whether they are all there.
const LOOK: Duration = Duration::from_millis(500);

/// How a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolStatus {
    /// It has not been full enough yet.
    Starting,
    /// It has what it should have.
    Ready,
    /// It had, and lost some.
    Repopulating,
}

impl PoolStatus {
    /// In status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            PoolStatus::Starting => "starting",
            PoolStatus::Ready => "ready",
            PoolStatus::Repopulating => "repopulating",
        }
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pools aren't open: the manager is starting, asleep or shutting down.
    #[error("the connection pools are closed: the manager is starting, asleep or shutting down")]
    Closed,
    /// None came free in time.
    #[error("{0}")]
    Checkout(#[from] CheckoutError),
}

/// The pools, while they are open. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pools {
    reservoir: Reservoir<PostgresClient>,
    admin: ReservoirView<PostgresClient>,
    snapshot: ReservoirView<PostgresClient>,
    takes_snapshots: Arc<AtomicBool>,
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
            takes_snapshots: Arc::new(AtomicBool::new(true)),
        })
    }

    /// For metadata and DDL.
    pub(crate) async fn admin(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        Ok(self.admin.checkout_within(ADMIN_PATIENCE).await?)
    }

    /// For a snapshot.
    pub(crate) async fn snapshot(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        if !self.takes_snapshots.load(Ordering::Acquire) {
            return Err(PoolError::Closed);
        }
        Ok(self.snapshot.checkout_within(SNAPSHOT_PATIENCE).await?)
    }

    pub(crate) fn close_snapshots(&self) {
        self.takes_snapshots.store(false, Ordering::Release);
    }

    pub(crate) async fn close(&self, patience: Duration) {
        self.close_snapshots();
        let left = self.reservoir.close(patience).await;
        if left > 0 {
            tracing::warn!(left, "connections were still in use when the pools closed");
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.reservoir.status()
    }

    /// Tells the machine how they are, until they close.
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
            let news = PoolNews { admin: now, snapshot: now, why: status.last_failure.filter(|_| !is_full) };
            if last.as_ref() != Some(&news) {
                last = Some(news.clone());
                if events.send(Event::Pools(news)).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits for the first connections. `false`: there is nobody to wait for.
    async fn first_fill(&self, events: &mpsc::Sender<Event>) -> bool {
        loop {
            let Err(error) = self.reservoir.initial_fill(FILL_PATIENCE).await else { return true };
            if self.reservoir.status().closing {
                return false;
            }
            let kind = match &error.why {
                Shortage::Connect { kind, .. } => Some(*kind),
                _ => None,
            };
            let failure = Failure::Pools { why: error.to_string(), kind };
            let event = match failure.verdict() {
                Verdict::Fatal => Event::PoolsFailed(failure.into()),
                Verdict::Retry | Verdict::DropSlot => {
                    let (admin, snapshot) = (PoolStatus::Starting, PoolStatus::Starting);
                    Event::Pools(PoolNews { admin, snapshot, why: Some(error.why.to_string()) })
                }
            };
            if events.send(event).await.is_err() {
                return false;
            }
        }
    }
}
