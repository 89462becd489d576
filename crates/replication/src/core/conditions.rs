//! The seven conditions of readiness, each with its time of change and its reason.

use std::time::Instant;

use serde::Serialize;

/// A condition that must hold before the manager is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReadyCondition {
    /// This instance holds the lock of the slot.
    PgLockAcquired,
    /// The replication connection is open and set up.
    ReplicationClientReady,
    /// The pool for metadata has connections.
    AdminConnectionPoolReady,
    /// The pool for snapshots has connections.
    SnapshotConnectionPoolReady,
    /// The consumer receives changes.
    ShapeLogCollectorReady,
    /// The consumer has loaded its state.
    SupervisorProcessesReady,
    /// The consumer continues at its durable position, or was reset.
    IntegrityChecksPassed,
}

impl ReadyCondition {
    /// All conditions, in the order in which they become true.
    pub const ALL: [ReadyCondition; 7] = [
        ReadyCondition::PgLockAcquired,
        ReadyCondition::ReplicationClientReady,
        ReadyCondition::AdminConnectionPoolReady,
        ReadyCondition::SnapshotConnectionPoolReady,
        ReadyCondition::SupervisorProcessesReady,
        ReadyCondition::IntegrityChecksPassed,
        ReadyCondition::ShapeLogCollectorReady,
    ];

    /// Returns the name used in status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            ReadyCondition::PgLockAcquired => "pg_lock_acquired",
            ReadyCondition::ReplicationClientReady => "replication_client_ready",
            ReadyCondition::AdminConnectionPoolReady => "admin_connection_pool_ready",
            ReadyCondition::SnapshotConnectionPoolReady => "snapshot_connection_pool_ready",
            ReadyCondition::ShapeLogCollectorReady => "shape_log_collector_ready",
            ReadyCondition::SupervisorProcessesReady => "supervisor_processes_ready",
            ReadyCondition::IntegrityChecksPassed => "integrity_checks_passed",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// State of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConditionState {
    pub(crate) holds: bool,
    /// When `holds` last changed.
    pub(crate) since: Instant,
    pub(crate) why: String,
}

/// State of all conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conditions([ConditionState; 7]);

impl Conditions {
    pub(crate) fn new(now: Instant) -> Self {
        Conditions(std::array::from_fn(|_| ConditionState {
            holds: false,
            since: now,
            why: "not tried yet".into(),
        }))
    }

    pub(crate) fn get(&self, condition: ReadyCondition) -> &ConditionState {
        &self.0[condition.index()]
    }

    pub(crate) fn holds(&self, condition: ReadyCondition) -> bool {
        self.get(condition).holds
    }

    #[cfg(test)]
    pub(crate) fn all_hold(&self) -> bool {
        self.0.iter().all(|state| state.holds)
    }

    /// Sets a condition and its reason. `since` changes only if `holds` does.
    pub(crate) fn set(&mut self, condition: ReadyCondition, holds: bool, why: &str, now: Instant) {
        let state = &mut self.0[condition.index()];
        if state.holds != holds {
            (state.holds, state.since) = (holds, now);
        }
        if state.why != why {
            why.clone_into(&mut state.why);
        }
    }
}
