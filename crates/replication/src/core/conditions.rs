//! The seven conditions of readiness, each with since when, and why.

use std::time::Instant;

use serde::Serialize;

/// What must hold before changes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// This instance holds the lock of the slot.
    PgLockAcquired,
    /// The replication connection is open and set up.
    ReplicationClientReady,
    /// There are connections for metadata.
    AdminConnectionPoolReady,
    /// There are connections for snapshots.
    SnapshotConnectionPoolReady,
    /// The consumer takes changes.
    ShapeLogCollectorReady,
    /// The consumer has loaded what it has.
    SupervisorProcessesReady,
    /// What it has goes on where the database is.
    IntegrityChecksPassed,
}

impl Condition {
    /// In the order in which they come to hold.
    pub const ALL: [Condition; 7] = [
        Condition::PgLockAcquired,
        Condition::ReplicationClientReady,
        Condition::AdminConnectionPoolReady,
        Condition::SnapshotConnectionPoolReady,
        Condition::SupervisorProcessesReady,
        Condition::IntegrityChecksPassed,
        Condition::ShapeLogCollectorReady,
    ];

    /// In status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Condition::PgLockAcquired => "pg_lock_acquired",
            Condition::ReplicationClientReady => "replication_client_ready",
            Condition::AdminConnectionPoolReady => "admin_connection_pool_ready",
            Condition::SnapshotConnectionPoolReady => "snapshot_connection_pool_ready",
            Condition::ShapeLogCollectorReady => "shape_log_collector_ready",
            Condition::SupervisorProcessesReady => "supervisor_processes_ready",
            Condition::IntegrityChecksPassed => "integrity_checks_passed",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Whether a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) holds: bool,
    pub(crate) since: Instant,
    pub(crate) why: String,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conditions([Held; 7]);

impl Conditions {
    pub(crate) fn new(now: Instant) -> Self {
        Conditions(std::array::from_fn(|_| Held { holds: false, since: now, why: "not tried yet".into() }))
    }

    pub(crate) fn get(&self, condition: Condition) -> &Held {
        &self.0[condition.index()]
    }

    pub(crate) fn holds(&self, condition: Condition) -> bool {
        self.get(condition).holds
    }

    #[cfg(test)]
    pub(crate) fn all_hold(&self) -> bool {
        self.0.iter().all(|held| held.holds)
    }

    /// `since` stays where it was unless it changes; the last reason is the one that counts.
    pub(crate) fn set(&mut self, condition: Condition, holds: bool, why: &str, now: Instant) {
        let held = &mut self.0[condition.index()];
        if held.holds != holds {
            (held.holds, held.since) = (holds, now);
        }
        if held.why != why {
            why.clone_into(&mut held.why);
        }
    }
}
