//! Connection pools: one reservoir for metadata, one for snapshots.
//!
//! Invariant: snapshots never take a connection of the metadata pool.
//! Enforced by: each pool has its own reservoir. The snapshot pool starts to dial after the first
//! fill of the metadata pool, and pauses while that pool lacks connections (`connect.rs`). If a
//! full server refuses a metadata dial, a snapshot connection is closed. A budget of connections is
//! split between the two.
//! Out of scope: other clients of a full server, which can take any place that becomes free.

mod connect;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_reservoir::{
    CheckoutError, Connect, ConnectionCounts, ConnectionGuard, ConnectionLimits, FillError, MAX_LISTED,
    PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, ReservoirConfigError, ReservoirView,
    Shortage, Status,
};
use serde::Serialize;
use tokio::sync::mpsc;

use self::connect::{MetadataConnect, MetadataDials, SnapshotConnect};
use crate::config::ManagerConfig;
use crate::core::machine::{Event, PoolReport, PoolState};
use crate::error::{RecoveryAction, ReplicationError};

/// Time limit for checking out a snapshot connection.
const SNAPSHOT_CHECKOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for checking out a metadata connection.
const ADMIN_CHECKOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which missing first connections are reported.
const FILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two checks of the number of connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit for checking out a snapshot connection that is closed for a metadata connection. The
/// metadata pool dials at least this often, and each refusal starts another checkout.
const MAKE_ROOM_TIMEOUT: Duration = Duration::from_secs(60);

/// State of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolStatus {
    /// The pool has not opened its first connections yet.
    Starting,
    /// The pool has at least half of its connections.
    Ready,
    /// The pool has fewer.
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
    admin: ConnectionPool,
    metadata_dials: MetadataDials,
    /// Empty until the metadata pool is filled.
    snapshot: Arc<OnceLock<ConnectionPool>>,
    snapshot_start: Arc<SnapshotPoolStart>,
}

/// The snapshot pool before its start.
struct SnapshotPoolStart {
    connect: PostgresConnect,
    config: ReservoirConfig,
    limits: ConnectionLimits,
}

/// A reservoir, and a view that lends at most the pool's size. The reservoir may have more
/// connections for a moment, to replace one before it expires.
#[derive(Clone)]
struct ConnectionPool {
    reservoir: Reservoir<PostgresClient>,
    view: ReservoirView<PostgresClient>,
}

impl Pools {
    pub(crate) fn start(config: &ManagerConfig) -> Result<Self, ReservoirConfigError> {
        let limits = config.limits.clone().unwrap_or_else(ConnectionLimits::local);
        let [admin, snapshot] = config.reservoirs();
        let (connect, metadata_dials) = (config.pool_connect().clone(), MetadataDials::new());
        let admin_connect = MetadataConnect { connect: connect.clone(), dials: metadata_dials.clone() };
        Ok(Pools {
            admin: ConnectionPool::start("admin", admin_connect, admin, limits.clone())?,
            metadata_dials,
            snapshot: Arc::default(),
            snapshot_start: Arc::new(SnapshotPoolStart { connect, config: snapshot, limits }),
        })
    }

    /// Checks out a connection for metadata and DDL.
    pub(crate) async fn admin(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        Ok(self.admin.view.checkout_within(ADMIN_CHECKOUT_TIMEOUT).await?)
    }

    /// Checks out a connection for a snapshot.
    pub(crate) async fn snapshot(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        let pool = self.snapshot.get().filter(|pool| !pool.is_closing()).ok_or(PoolError::Closed)?;
        Ok(pool.view.checkout_within(SNAPSHOT_CHECKOUT_TIMEOUT).await?)
    }

    /// Closes the snapshot pool without waiting. Lent connections are closed when they are
    /// returned.
    pub(crate) async fn close_snapshots(&self) {
        if let Some(pool) = self.snapshot.get() {
            let _still_lent = pool.reservoir.close(Duration::ZERO).await;
        }
    }

    /// Closes both pools.
    pub(crate) async fn close(&self, timeout: Duration) {
        let closing_snapshots = async {
            match self.snapshot.get() {
                Some(pool) => pool.reservoir.close(timeout).await,
                None => 0,
            }
        };
        let (admin, snapshot) = tokio::join!(self.admin.reservoir.close(timeout), closing_snapshots);
        let left = admin + snapshot;
        if left > 0 {
            tracing::warn!(left, "pools closed: connections still in use");
        }
    }

    /// Returns the status of both pools together, with one view for each.
    pub(crate) fn status(&self) -> Status {
        let mut both = self.admin.status();
        if let Some(pool) = self.snapshot.get() {
            add_status(&mut both, pool.status());
        }
        "postgres".clone_into(&mut both.service);
        both
    }

    /// Reports the pools' state to the machine until they close.
    pub(crate) async fn watch(self, events: mpsc::Sender<Event>) {
        if !self.admin.first_fill(&events, fill_event).await {
            return;
        }
        let Ok(snapshot) = self.start_snapshots().await else { return };
        tokio::select! {
            () = self.report(snapshot, &events) => {}
            () = self.make_room_for_metadata(snapshot) => {}
        }
    }

    /// Reports the state of both pools until they close.
    async fn report(&self, snapshot: &ConnectionPool, events: &mpsc::Sender<Event>) {
        // The stream needs no snapshot connection, so it doesn't wait for them.
        let starting = |why| {
            let snapshot = PoolState { status: PoolStatus::Starting, why };
            Event::PoolsChanged(PoolReport { admin: self.admin.state(), snapshot })
        };
        if events.send(starting(None)).await.is_err()
            || !snapshot.first_fill(events, |error| starting(Some(error.why.to_string()))).await
        {
            return;
        }
        let mut last = None;
        while !self.admin.is_closing() && !snapshot.is_closing() {
            let report = PoolReport { admin: self.admin.state(), snapshot: snapshot.state() };
            if last.as_ref() != Some(&report) {
                last = Some(report.clone());
                if events.send(Event::PoolsChanged(report)).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Closes a snapshot connection after each metadata dial that a full server refused, until the
    /// pools close. The metadata pool dials again after its back-off; meanwhile snapshots don't.
    async fn make_room_for_metadata(&self, snapshot: &ConnectionPool) {
        let mut dials = self.metadata_dials.subscribe();
        while dials.changed().await.is_ok() {
            if !*dials.borrow_and_update() || snapshot.open() == 0 {
                continue;
            }
            match snapshot.view.checkout_within(MAKE_ROOM_TIMEOUT).await {
                // Refusals during the wait are answered by this connection, too.
                Ok(mut connection) if *dials.borrow_and_update() => {
                    connection.mark_bad();
                    tracing::info!("snapshot connection closed: server too full for metadata connections");
                }
                Ok(_) => {}
                Err(CheckoutError::Closed) => return,
                Err(_) => {}
            }
        }
    }

    /// Starts the snapshot pool. If the pools were closed meanwhile, closes it again.
    async fn start_snapshots(&self) -> Result<&ConnectionPool, PoolError> {
        let SnapshotPoolStart { connect, config, limits } = &*self.snapshot_start;
        let connect = SnapshotConnect {
            connect: connect.clone(),
            metadata: self.admin.reservoir.clone(),
            dials: self.metadata_dials.clone(),
        };
        // The same lifetimes as those of the metadata pool, which is started already.
        let pool = ConnectionPool::start("snapshot", connect, config.clone(), limits.clone())
            .map_err(|_| PoolError::Closed)?;
        let pool = self.snapshot.get_or_init(|| pool);
        // After the initialization: `close` either finds the pool, or its mark is seen here.
        if self.admin.is_closing() {
            self.close_snapshots().await;
            return Err(PoolError::Closed);
        }
        Ok(pool)
    }
}

impl ConnectionPool {
    fn start(
        name: &str,
        connect: impl Connect<Connection = PostgresClient>,
        config: ReservoirConfig,
        limits: ConnectionLimits,
    ) -> Result<Self, ReservoirConfigError> {
        let reservoir = Reservoir::start(connect, config, limits)?;
        let view = reservoir.view(name, reservoir.status().target);
        Ok(ConnectionPool { reservoir, view })
    }

    /// Returns the number of open connections.
    fn open(&self) -> u32 {
        let ConnectionCounts { ready, lent, resetting, .. } = self.reservoir.status().counts;
        ready + lent + resetting
    }

    /// Returns the state of a pool that was filled once.
    fn state(&self) -> PoolState {
        let status = self.reservoir.status();
        match self.open() >= status.target.div_ceil(2) {
            true => PoolState { status: PoolStatus::Ready, why: None },
            false => PoolState { status: PoolStatus::Repopulating, why: status.last_failure },
        }
    }

    /// Returns the status without the view of the whole reservoir, which isn't used.
    fn status(&self) -> Status {
        let mut status = self.reservoir.status();
        status.views.retain(|view| view.name != "default");
        status
    }

    fn is_closing(&self) -> bool {
        self.reservoir.is_closing()
    }

    /// Waits until the pool is filled, or has connections after [`FILL_TIMEOUT`]. Sends what
    /// `report` makes of a failure. Returns `false` if the pool or the manager closed meanwhile.
    async fn first_fill(&self, events: &mpsc::Sender<Event>, report: impl Fn(&FillError) -> Event) -> bool {
        loop {
            let Err(error) = self.reservoir.initial_fill(FILL_TIMEOUT).await else { return true };
            if self.is_closing() || events.send(report(&error)).await.is_err() {
                return false;
            }
        }
    }
}

/// Returns the event of a metadata pool that has no connection.
fn fill_event(error: &FillError) -> Event {
    let kind = match &error.why {
        Shortage::Connect { kind, .. } => Some(*kind),
        _ => None,
    };
    let failure = ReplicationError::Pools { why: error.to_string(), kind };
    match failure.action() {
        RecoveryAction::Halt => Event::PoolsFailed(failure.into()),
        RecoveryAction::Retry | RecoveryAction::RecreateSlot => {
            let admin = PoolState { status: PoolStatus::Starting, why: Some(error.why.to_string()) };
            Event::PoolsChanged(PoolReport { admin, ..PoolReport::default() })
        }
    }
}

/// Adds the figures of another pool.
fn add_status(sum: &mut Status, other: Status) {
    let (counts, added) = (&mut sum.counts, other.counts);
    counts.ready += added.ready;
    counts.dialing += added.dialing;
    counts.lent += added.lent;
    counts.resetting += added.resetting;
    counts.retiring += added.retiring;
    sum.target += other.target;
    sum.low_watermark += other.low_watermark;
    sum.max += other.max;
    sum.lingering += other.lingering;
    sum.longest_lingering = sum.longest_lingering.max(other.longest_lingering);
    sum.waiting += other.waiting;
    sum.last_failure = sum.last_failure.take().or(other.last_failure);
    sum.next_dial_in = sum.next_dial_in.into_iter().chain(other.next_dial_in).min();
    sum.closing |= other.closing;
    sum.views.extend(other.views);
    sum.connections.extend(other.connections);
    sum.connections.sort_by_key(|connection| std::cmp::Reverse(connection.age_ms));
    sum.connections.truncate(MAX_LISTED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_snapshot_pool_that_starts_after_the_close_is_closed_again() {
        // Nothing listens there, and no dial has to succeed.
        let connect = PostgresConnect::new("postgres://app@127.0.0.1:1/shop").unwrap();
        let pools = Pools::start(&ManagerConfig::new(connect)).unwrap();
        pools.close(Duration::ZERO).await;
        assert!(matches!(pools.start_snapshots().await, Err(PoolError::Closed)));
        assert!(pools.snapshot.get().is_some_and(ConnectionPool::is_closing));
        assert!(matches!(pools.snapshot().await, Err(PoolError::Closed)));
    }
}
