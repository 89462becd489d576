//! What is followed, and how.

use std::time::Duration;

use forebay_reservoir::{ConnectionLimits, PostgresConnect, ReservoirConfig, Reset};

use crate::core::breaker::LockPatience;

/// The longest name that Postgres keeps.
const MAX_NAME: usize = 63;
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const DEFAULT_POOL_SIZE: u32 = 20;
/// Those who look more often than this would be a burden to the server that they wait for.
const LEAST_LOCK_PATIENCE: Duration = Duration::from_millis(100);

/// What is followed, and how.
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
    pub(crate) limits: Option<ConnectionLimits>,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) lock_patience: LockPatience,
}

/// What a configuration says of the database.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ManagerOutline<'a> {
    /// The server itself, for replication.
    pub connect: &'a PostgresConnect,
    /// Where the pools connect, if that is elsewhere.
    pub pooled: Option<&'a PostgresConnect>,
    /// The slot's name.
    pub slot: &'a str,
    /// The publication's name.
    pub publication: &'a str,
    /// The publication is kept by somebody else.
    pub manual_publication: bool,
    /// Connections beside replication's.
    pub pool_size: u32,
}

/// Why a configuration can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagerConfigError {
    /// Postgres takes no such name for a slot.
    #[error("the slot's name {name:?} can't be used: 1 to 63 of a-z, 0-9 and _")]
    Slot {
        /// The name.
        name: String,
    },
    /// Or for a publication.
    #[error("the publication's name {name:?} can't be used: 1 to 63 bytes, none of them zero")]
    Publication {
        /// The name.
        name: String,
    },
    /// No clock goes that far.
    #[error("{what} is {long:?}: a year is the most")]
    TooLong {
        /// Which setting.
        what: &'static str,
        /// What was asked for.
        long: Duration,
    },
    /// One pool needs a connection, and so does the other.
    #[error("a pool of {size} can't be shared: it takes at least 2, one for metadata and one for snapshots")]
    PoolSize {
        /// What was asked for.
        size: u32,
    },
    /// A holder of the lock must have a chance to speak.
    #[error("a lock patience of {patience:?} can't be used: each of the two is at least 100 ms")]
    LockPatience {
        /// What was asked for.
        patience: LockPatience,
    },
}

impl ManagerConfig {
    /// Follows the database that `connect` names, through a slot `forebay` and a publication `forebay`.
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
            limits: None,
            idle_after: None,
            lock_patience: LockPatience::default(),
        }
    }

    /// Where the pools connect, if that is elsewhere: through PgBouncer in transaction mode, say. Replication
    /// needs the server itself.
    #[must_use]
    pub fn pooled(mut self, connect: PostgresConnect) -> Self {
        self.pooled = Some(connect);
        self
    }

    /// The slot's name, which is the lock's too: instances with the same name take turns.
    #[must_use]
    pub fn slot(mut self, name: impl Into<String>) -> Self {
        self.slot = name.into();
        self
    }

    /// A slot that ends with its connection. It keeps no log while nobody is there, and each reconnection starts over.
    #[must_use]
    pub fn temporary_slot(mut self) -> Self {
        self.temporary_slot = true;
        self
    }

    /// A slot that standbys keep in step, so that a promotion goes on where the primary was (PostgreSQL 17 and newer; elsewhere it is
    /// an ordinary slot).
    #[must_use]
    pub fn failover_slot(mut self) -> Self {
        self.failover_slot = true;
        self
    }

    /// The publication's name.
    #[must_use]
    pub fn publication(mut self, name: impl Into<String>) -> Self {
        self.publication = name.into();
        self
    }

    /// A publication that is made here has the changes of partitions under their own names, and not
    /// under that of their topmost published ancestor.
    #[must_use]
    pub fn publish_partitions(mut self) -> Self {
        self.publish_partitions = true;
        self
    }

    /// The publication is made and kept by somebody who may; it is only checked. For users that own neither it nor the tables.
    #[must_use]
    pub fn manual_publication(mut self) -> Self {
        self.manual_publication = true;
        self
    }

    /// Connections beside replication's: a quarter, at least 1 and at most 4, for metadata, the rest for snapshots. 20 by default.
    #[must_use]
    pub fn pool_size(mut self, size: u32) -> Self {
        self.pool_size = size;
        self
    }

    /// The rate and the budget of the pools' connections, which other processes may share. By default, a rate of this process alone.
    #[must_use]
    pub fn limits(mut self, limits: ConnectionLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Closes all connections when nobody has needed the database for so long. The slot keeps the log meanwhile.
    #[must_use]
    pub fn idle_after(mut self, idle_after: Duration) -> Self {
        self.idle_after = Some(idle_after);
        self
    }

    /// How long a silent holder of the lock is believed in.
    #[must_use]
    pub fn lock_patience(mut self, patience: LockPatience) -> Self {
        self.lock_patience = patience;
        self
    }

    /// What was chosen, for those who show or check it.
    pub fn outline(&self) -> ManagerOutline<'_> {
        ManagerOutline {
            connect: &self.connect,
            pooled: self.pooled.as_ref(),
            slot: &self.slot,
            publication: &self.publication,
            manual_publication: self.manual_publication,
            pool_size: self.pool_size,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ManagerConfigError> {
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        if self.slot.is_empty() || self.slot.len() > MAX_NAME || !self.slot.bytes().all(fits) {
            return Err(ManagerConfigError::Slot { name: self.slot.clone() });
        }
        if self.publication.is_empty() || self.publication.len() > MAX_NAME || self.publication.contains('\0')
        {
            return Err(ManagerConfigError::Publication { name: self.publication.clone() });
        }
        if self.pool_size < 2 {
            return Err(ManagerConfigError::PoolSize { size: self.pool_size });
        }
        let patience = self.lock_patience;
        if patience.check_every.min(patience.silent_for) < LEAST_LOCK_PATIENCE {
            return Err(ManagerConfigError::LockPatience { patience });
        }
        let times = [
            ("idle_after", self.idle_after.unwrap_or_default()),
            ("lock_patience.check_every", patience.check_every),
            ("lock_patience.silent_for", patience.silent_for),
        ];
        match times.into_iter().find(|(_, long)| *long > A_YEAR) {
            Some((what, long)) => Err(ManagerConfigError::TooLong { what, long }),
            None => Ok(()),
        }
    }

    pub(crate) fn pool_connect(&self) -> &PostgresConnect {
        self.pooled.as_ref().unwrap_or(&self.connect)
    }

    pub(crate) fn reservoir(&self) -> ReservoirConfig {
        let config = ReservoirConfig::new(self.pool_size)
            .service("postgres")
            .low_watermark(self.pool_size.div_ceil(2));
        match self.pooled {
            // A pooler hands each transaction to any server connection: there is no session to clean.
            Some(_) => config.reset(Reset::Custom("ROLLBACK".into())),
            None => config,
        }
    }
}

/// How many connections each view may have: the seed's sizes.
pub(crate) fn pool_sizes(total: u32) -> (u32, u32) {
    let admin = (total / 4).clamp(1, 4);
    (admin, total.saturating_sub(admin).max(admin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_for_metadata_between_one_and_four() {
        let sizes = [2, 4, 8, 20, 100].map(pool_sizes);
        assert_eq!(sizes, [(1, 1), (1, 3), (2, 6), (4, 16), (4, 96)]);
    }

    #[test]
    fn names_that_postgres_refuses_are_refused_here() {
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
        let patience = LockPatience { check_every: Duration::ZERO, ..LockPatience::default() };
        assert_eq!(
            config().lock_patience(patience).check(),
            Err(ManagerConfigError::LockPatience { patience })
        );
    }
}
