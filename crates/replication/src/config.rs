//! Configuration of the manager.

use std::time::Duration;

use forebay_reservoir::{ConnectionLimits, PostgresConnect, ReservoirConfig, Reset};

use crate::core::lock_breaker::LockTimeouts;

/// Maximum length of a Postgres name, in bytes.
const MAX_NAME: usize = 63;
/// Upper bound of all durations: longer ones could overflow the clock.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const DEFAULT_POOL_SIZE: u32 = 20;
/// Lower bound of the lock timeouts: shorter ones would load the server.
const MIN_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Configuration of a [`Manager`](crate::Manager): the database, the slot, the publication, the
/// pools.
#[derive(Debug, Clone)]
pub struct ManagerConfig {
    pub(crate) connect: PostgresConnect,
    pub(crate) pooled: Option<PostgresConnect>,
    pub(crate) slot: String,
    pub(crate) temporary_slot: bool,
    pub(crate) failover_slot: bool,
    pub(crate) publication: String,
    pub(crate) manual_publication: bool,
    pub(crate) publish_partitions: bool,
    pub(crate) pool_size: u32,
    pub(crate) pool_low_watermark: Option<u32>,
    pub(crate) pool_lifetime: Option<Duration>,
    pub(crate) pool_lifetime_jitter: Option<Duration>,
    pub(crate) pool_guard_window: Option<Duration>,
    pub(crate) limits: Option<ConnectionLimits>,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) lock_timeouts: LockTimeouts,
}

/// The database settings of a configuration, for display and checks.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DatabaseSettings<'a> {
    /// How replication connects: directly to the server.
    pub connect: &'a PostgresConnect,
    /// How the pools connect, if not like replication.
    pub pooled: Option<&'a PostgresConnect>,
    /// The slot's name.
    pub slot: &'a str,
    /// The publication's name.
    pub publication: &'a str,
    /// The publication is managed outside the manager.
    pub manual_publication: bool,
    /// Number of pooled connections, not counting replication's.
    pub pool_size: u32,
    /// Maximum number of pooled connections, with those that replace others before they expire.
    pub max_pool_connections: u32,
    /// Number of pooled connections for metadata.
    pub metadata_connections: u32,
}

/// Why a configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerConfigError {
    /// The slot's name is invalid.
    #[error("slot name {name:?} is invalid: use 1 to 63 of the characters a-z, 0-9 and _")]
    Slot {
        /// The name.
        name: String,
    },
    /// The publication's name is invalid.
    #[error("publication name {name:?} is invalid: use 1 to 63 bytes without a zero byte")]
    Publication {
        /// The name.
        name: String,
    },
    /// A duration is longer than a year.
    #[error("{setting} is {value:?}, and a year is the maximum")]
    TooLong {
        /// Name of the setting.
        setting: &'static str,
        /// The given value.
        value: Duration,
    },
    /// Each of the two pools needs a connection.
    #[error(
        "pool size {size} is too small: at least 2 connections are needed, one for metadata and one for snapshots"
    )]
    PoolSize {
        /// The given value.
        size: u32,
    },
    /// A lock timeout is too short.
    #[error("lock timeouts {timeouts:?} are too short: each must be at least 100 ms")]
    LockTimeouts {
        /// The given values.
        timeouts: LockTimeouts,
    },
}

impl ManagerConfig {
    /// Returns a configuration for the database that `connect` names. Slot and publication are
    /// called `forebay`.
    pub fn new(connect: PostgresConnect) -> Self {
        ManagerConfig {
            connect,
            pooled: None,
            slot: "forebay".into(),
            temporary_slot: false,
            failover_slot: false,
            publication: "forebay".into(),
            manual_publication: false,
            publish_partitions: false,
            pool_size: DEFAULT_POOL_SIZE,
            pool_low_watermark: None,
            pool_lifetime: None,
            pool_lifetime_jitter: None,
            pool_guard_window: None,
            limits: None,
            idle_after: None,
            lock_timeouts: LockTimeouts::default(),
        }
    }

    /// Sets another way for the pools to connect, such as PgBouncer in transaction mode.
    /// Replication always connects directly to the server.
    #[must_use]
    pub fn pooled(mut self, connect: PostgresConnect) -> Self {
        self.pooled = Some(connect);
        self
    }

    /// Sets the slot's name. It is also the lock's name: of all instances with one name, one
    /// streams.
    #[must_use]
    pub fn slot(mut self, name: impl Into<String>) -> Self {
        self.slot = name.into();
        self
    }

    /// Uses a temporary slot, which the server drops with its connection. It retains no WAL while
    /// disconnected, and each reconnection resets the consumer.
    #[must_use]
    pub fn temporary_slot(mut self) -> Self {
        self.temporary_slot = true;
        self
    }

    /// Uses a failover slot, which standbys synchronize: after a promotion the stream continues.
    /// Needs PostgreSQL 17; older servers get an ordinary slot.
    #[must_use]
    pub fn failover_slot(mut self) -> Self {
        self.failover_slot = true;
        self
    }

    /// Sets the publication's name.
    #[must_use]
    pub fn publication(mut self, name: impl Into<String>) -> Self {
        self.publication = name.into();
        self
    }

    /// Creates the publication with `publish_via_partition_root = false`: changes of partitions
    /// carry the partition's name, not that of the topmost published ancestor.
    #[must_use]
    pub fn publish_partitions(mut self) -> Self {
        self.publish_partitions = true;
        self
    }

    /// Never changes the publication or its tables, only checks them. For a role that owns neither.
    #[must_use]
    pub fn manual_publication(mut self) -> Self {
        self.manual_publication = true;
        self
    }

    /// Sets the number of pooled connections, not counting replication's. A quarter of them, from 1
    /// to 4, is for metadata, the rest for snapshots. Default: 20.
    #[must_use]
    pub fn pool_size(mut self, size: u32) -> Self {
        self.pool_size = size;
        self
    }

    /// Sets the number of ready connections below which connections are opened at full concurrency.
    /// The connections for metadata always count. Default: they, and half of those for snapshots.
    /// See [`ReservoirConfig::low_watermark`].
    #[must_use]
    pub fn pool_low_watermark(mut self, connections: u32) -> Self {
        self.pool_low_watermark = Some(connections);
        self
    }

    /// Sets the lifetime of pooled connections: `base`, plus a random part of `jitter`. Default: 11
    /// and 2 minutes.
    #[must_use]
    pub fn pool_lifetime(mut self, base: Duration, jitter: Duration) -> Self {
        (self.pool_lifetime, self.pool_lifetime_jitter) = (Some(base), Some(jitter));
        self
    }

    /// Sets how long before its end a pooled connection is no longer lent. Default: 45 s.
    #[must_use]
    pub fn pool_guard_window(mut self, window: Duration) -> Self {
        self.pool_guard_window = Some(window);
        self
    }

    /// Sets the rate and the budget of the pools' connections, which other processes may share.
    /// Default: a rate limit of this process alone.
    #[must_use]
    pub fn limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Closes all connections when the database was unused for this long. The slot retains WAL
    /// while they are closed.
    #[must_use]
    pub fn idle_after(mut self, idle_after: Duration) -> Self {
        self.idle_after = Some(idle_after);
        self
    }

    /// Sets the timeouts after which a silent holder of the lock is terminated.
    #[must_use]
    pub fn lock_timeouts(mut self, timeouts: LockTimeouts) -> Self {
        self.lock_timeouts = timeouts;
        self
    }

    /// Returns the database settings, for display and checks.
    pub fn outline(&self) -> DatabaseSettings<'_> {
        DatabaseSettings {
            connect: &self.connect,
            pooled: self.pooled.as_ref(),
            slot: &self.slot,
            publication: &self.publication,
            manual_publication: self.manual_publication,
            pool_size: self.pool_size,
            max_pool_connections: self.pool_maxima().into_iter().fold(0, u32::saturating_add),
            metadata_connections: pool_sizes(self.pool_size).0.min(self.pool_maxima()[0]),
        }
    }

    /// Fails if a name or a duration is out of bounds.
    pub(crate) fn check(&self) -> Result<(), ManagerConfigError> {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        if self.slot.is_empty() || self.slot.len() > MAX_NAME || !self.slot.bytes().all(is_allowed) {
            return Err(ManagerConfigError::Slot { name: self.slot.clone() });
        }
        if self.publication.is_empty() || self.publication.len() > MAX_NAME || self.publication.contains('\0')
        {
            return Err(ManagerConfigError::Publication { name: self.publication.clone() });
        }
        if self.pool_size < 2 {
            return Err(ManagerConfigError::PoolSize { size: self.pool_size });
        }
        let timeouts = self.lock_timeouts;
        if timeouts.check_interval.min(timeouts.silence_timeout) < MIN_LOCK_TIMEOUT {
            return Err(ManagerConfigError::LockTimeouts { timeouts });
        }
        let durations = [
            ("idle_after", self.idle_after.unwrap_or_default()),
            ("lock_timeouts.check_interval", timeouts.check_interval),
            ("lock_timeouts.silence_timeout", timeouts.silence_timeout),
        ];
        match durations.into_iter().find(|(_, value)| *value > MAX_DURATION) {
            Some((setting, value)) => Err(ManagerConfigError::TooLong { setting, value }),
            None => Ok(()),
        }
    }

    pub(crate) fn pool_connect(&self) -> &PostgresConnect {
        self.pooled.as_ref().unwrap_or(&self.connect)
    }

    /// Returns the configuration of the metadata and of the snapshot pool.
    pub(crate) fn reservoirs(&self) -> [ReservoirConfig; 2] {
        let [admin_max, snapshot_max] = self.pool_maxima();
        let (admin, snapshot) = pool_sizes(self.pool_size);
        let (admin, snapshot) = (admin.min(admin_max), snapshot.min(snapshot_max));
        let snapshot_watermark = match self.pool_low_watermark {
            Some(both) => both.saturating_sub(admin).clamp(1, snapshot),
            None => snapshot.div_ceil(2),
        };
        [
            // The snapshot pool waits for this watermark, so it is the whole pool.
            self.reservoir("postgres_admin", admin).low_watermark(admin).max(admin_max),
            self.reservoir("postgres_snapshot", snapshot).low_watermark(snapshot_watermark).max(snapshot_max),
        ]
    }

    fn pool_maxima(&self) -> [u32; 2] {
        pool_maxima(self.pool_size, self.limits.as_ref().and_then(ConnectionLimits::budget))
    }

    fn reservoir(&self, service: &str, size: u32) -> ReservoirConfig {
        let mut config = ReservoirConfig::new(size).service(service);
        if let Some(base) = self.pool_lifetime {
            config = config.base_lifetime(base);
        }
        if let Some(jitter) = self.pool_lifetime_jitter {
            config = config.lifetime_jitter(jitter);
        }
        if let Some(window) = self.pool_guard_window {
            config = config.guard_window(window);
        }
        match self.pooled {
            // A pooler runs each transaction on any server connection: there is no state to reset.
            Some(_) => config.reset(Reset::Custom("ROLLBACK".into())),
            None => config,
        }
    }
}

/// Returns the sizes of the metadata and the snapshot pool.
pub(crate) fn pool_sizes(total: u32) -> (u32, u32) {
    let admin = (total / 4).clamp(1, 4);
    (admin, total.saturating_sub(admin).max(admin))
}

/// Returns the maximum number of connections of the metadata and of the snapshot pool. Together
/// they may have an eighth more than `total`, and each at least one more, so that a connection can
/// be replaced before it expires. The snapshot pool leaves metadata its part of the budget.
fn pool_maxima(total: u32, budget: Option<u32>) -> [u32; 2] {
    let ((admin, snapshot), budget) = (pool_sizes(total), budget.unwrap_or(u32::MAX));
    let admin_max = (admin + 1).min(budget.saturating_sub(1)).max(1);
    let eighth_more = total.saturating_add(total / 8).saturating_sub(admin + 1);
    let snapshot_max = eighth_more.max(snapshot.saturating_add(1));
    [admin_max, snapshot_max.min(budget.saturating_sub(admin_max)).max(1)]
}

/// Returns the number of snapshot connections of a pool of this size, under a budget for the
/// connections of both pools. More concurrent snapshots would wait for a connection.
pub fn max_snapshots(pool_size: u32, budget: Option<u32>) -> u32 {
    let [_, snapshot_max] = pool_maxima(pool_size, budget);
    pool_sizes(pool_size).1.min(snapshot_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_connections_is_for_metadata_between_one_and_four() {
        let sizes = [2, 4, 8, 20, 100].map(pool_sizes);
        assert_eq!(sizes, [(1, 1), (1, 3), (2, 6), (4, 16), (4, 96)]);
    }

    #[test]
    fn each_pool_may_have_one_more_connection_and_both_an_eighth() {
        let connect = PostgresConnect::new("postgres://app@localhost/shop").unwrap();
        let max = |size| ManagerConfig::new(connect.clone()).pool_size(size).outline().max_pool_connections;
        assert_eq!([2, 8, 12, 20, 100].map(max), [4, 10, 14, 22, 112]);
        let metadata =
            |size| ManagerConfig::new(connect.clone()).pool_size(size).outline().metadata_connections;
        assert_eq!([2, 7, 8, 12, 20].map(metadata), [1, 1, 2, 3, 4]);
    }

    #[test]
    fn snapshots_leave_metadata_its_part_of_the_budget() {
        for budget in 2..=130 {
            for size in 2..=120 {
                let [admin, snapshot] = pool_maxima(size, Some(budget));
                assert!(admin + snapshot <= budget, "{size} under {budget}: {admin} and {snapshot}");
            }
        }
        let maxima = [2, 3, 4, 8, 20, 100].map(|size| pool_maxima(size, Some(size)));
        assert_eq!(maxima, [[1, 1], [2, 1], [2, 2], [3, 5], [5, 15], [5, 95]]);
        assert_eq!(pool_maxima(20, Some(22)), pool_maxima(20, None), "a large budget has no effect");
        let snapshots = [None, Some(40), Some(20), Some(2)].map(|budget| max_snapshots(20, budget));
        assert_eq!(snapshots, [16, 16, 15, 1]);
    }

    #[test]
    fn invalid_names_sizes_and_durations_are_refused() {
        let connect = PostgresConnect::new("postgres://app@localhost/shop").unwrap();
        let config = || ManagerConfig::new(connect.clone());
        assert_eq!(config().check(), Ok(()));
        for slot in ["", "Shop", "a-b", "a b", &"x".repeat(64), "drop;"] {
            let error = config().slot(slot).check();
            assert_eq!(error, Err(ManagerConfigError::Slot { name: slot.into() }));
        }
        assert!(config().publication("").check().is_err());
        assert!(config().publication("any \"name\" will do").check().is_ok());
        assert!(config().pool_size(1).check().is_err());
        assert!(config().idle_after(Duration::MAX).check().is_err());
        let timeouts = LockTimeouts { check_interval: Duration::ZERO, ..LockTimeouts::default() };
        assert_eq!(
            config().lock_timeouts(timeouts).check(),
            Err(ManagerConfigError::LockTimeouts { timeouts })
        );
    }
}
