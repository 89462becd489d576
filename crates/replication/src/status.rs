//! Status of the manager, for callers and the admin endpoint.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

pub use crate::core::conditions::ReadyCondition;
use crate::core::machine::ManagerMachine;
pub use crate::core::step::{ManagerPhase, ManagerStep, StopStep};
use crate::pools::PoolStatus;
use crate::source::Gauges;

/// Status of the manager at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ManagerStatus {
    /// The current phase.
    pub phase: ManagerPhase,
    /// The current step.
    pub step: ManagerStep,
    /// When the current step was entered.
    #[serde(rename = "step_for_ms", serialize_with = "age")]
    pub step_since: Instant,
    /// Summary of the connection's state.
    pub connection: ConnectionStatus,
    /// Summary of the consumer's state.
    pub shapes: ShapeStatus,
    /// The seven conditions of readiness.
    pub conditions: Vec<ConditionStatus>,
    /// State of the pool for metadata.
    pub admin_pool: PoolStatus,
    /// State of the pool for snapshots.
    pub snapshot_pool: PoolStatus,
    /// Number of failures since the last stable stream.
    pub retries: u32,
    /// When the first of these failures happened.
    #[serde(rename = "retrying_for_ms", serialize_with = "optional_age")]
    pub retrying_since: Option<Instant>,
    /// When the next attempt starts, if the manager waits for that.
    #[serde(rename = "retry_in_ms", serialize_with = "optional_time_left")]
    pub next_attempt: Option<Instant>,
    /// The last failure: what happened, and what to do. `None` once the server streams again.
    pub trouble: Option<String>,
    /// Reason of that failure if an operator must act, as in the label of the metric. It stays set
    /// during the attempts that follow. A manager that halted after too many panics has none.
    pub halted: Option<&'static str>,
}

/// Summary of the connection's state, computed from the conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConnectionStatus {
    /// The server is reached, and another instance may hold the lock. An instance that can't reach
    /// the server doesn't hold the lock either, but is `Starting`: a waiting instance counts as
    /// ready in a rolling deploy.
    WaitingOnLock,
    /// Connecting, for the first time or again, or a pool lacks connections.
    Starting,
    /// The lock is held, replication is set up, both pools are ready, and the integrity checks have
    /// passed.
    Up,
    /// The database is idle: no connection is open.
    Sleeping,
    /// Halted or shut down.
    Down,
}

/// Summary of the consumer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShapeStatus {
    /// The consumer has not loaded its state, or has never been able to take changes.
    Starting,
    /// The consumer has loaded its state and took changes once. A lost connection doesn't change
    /// that: its data can still be read.
    Up,
}

impl ConnectionStatus {
    /// Conditions of [`ConnectionStatus::Up`].
    const UP: [ReadyCondition; 5] = [
        ReadyCondition::PgLockAcquired,
        ReadyCondition::ReplicationClientReady,
        ReadyCondition::AdminConnectionPoolReady,
        ReadyCondition::SnapshotConnectionPoolReady,
        ReadyCondition::IntegrityChecksPassed,
    ];

    /// Returns the status in this step, under these conditions.
    fn of(step: ManagerStep, holds: impl Fn(ReadyCondition) -> bool) -> Self {
        match step.phase() {
            ManagerPhase::Sleeping => ConnectionStatus::Sleeping,
            ManagerPhase::Halted | ManagerPhase::Stopped => ConnectionStatus::Down,
            ManagerPhase::ConnectionSetup | ManagerPhase::Running => match step {
                ManagerStep::AcquiringLock => ConnectionStatus::WaitingOnLock,
                _ if ConnectionStatus::UP.into_iter().all(holds) => ConnectionStatus::Up,
                _ => ConnectionStatus::Starting,
            },
        }
    }
}

impl ShapeStatus {
    /// Returns the status under these conditions. `was_ready`: the consumer took changes once.
    fn of(was_ready: bool, holds: impl Fn(ReadyCondition) -> bool) -> Self {
        match was_ready && holds(ReadyCondition::SupervisorProcessesReady) {
            true => ShapeStatus::Up,
            false => ShapeStatus::Starting,
        }
    }
}

/// State of one condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionStatus {
    /// The condition.
    pub condition: ReadyCondition,
    /// Whether it holds.
    pub holds: bool,
    /// When `holds` last changed.
    #[serde(rename = "for_ms", serialize_with = "age")]
    pub since: Instant,
    /// The reason.
    pub why: String,
}

/// Positions of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Positions {
    /// The last WAL position that the server sent, as a number.
    pub received: u64,
    /// The consumer's durable position, which is acknowledged as flushed and applied.
    pub durable: u64,
    /// Bytes of WAL between the two.
    pub lag_bytes: u64,
    /// Age of a received transaction that isn't durable; zero if there is none. The difference of
    /// both machines' clocks is included.
    pub lag: Duration,
    /// Transactions received on the current replication connection.
    pub transactions: u64,
    /// Time since the last of them was received.
    pub last_commit_age: Option<Duration>,
    /// WAL that the server retains for the slot, in bytes.
    pub retained_bytes: u64,
    /// Process id of the replication connection's backend, if there is one.
    pub backend_pid: Option<i32>,
}

impl ManagerStatus {
    pub(crate) fn of(machine: &ManagerMachine) -> Self {
        let (step, conditions) = (machine.step(), machine.conditions());
        let condition = |condition: ReadyCondition| {
            let state = conditions.get(condition);
            ConditionStatus {
                condition,
                holds: state.holds,
                since: state.since.into(),
                why: state.why.clone(),
            }
        };
        ManagerStatus {
            phase: step.phase(),
            step,
            step_since: machine.step_since().into(),
            connection: ConnectionStatus::of(step, |condition| conditions.holds(condition)),
            shapes: ShapeStatus::of(machine.was_ready(), |condition| conditions.holds(condition)),
            conditions: ReadyCondition::ALL.map(condition).to_vec(),
            admin_pool: machine.pools().admin.status,
            snapshot_pool: machine.pools().snapshot.status,
            retries: machine.backoff().tries(),
            retrying_since: machine.backoff().since().map(Into::into),
            next_attempt: machine.next_attempt().map(Into::into),
            trouble: machine.failure().map(|failure| failure.text.clone()),
            halted: machine.halt_reason(),
        }
    }

    /// Returns whether all seven conditions hold: changes arrive and snapshots can be taken.
    pub fn is_ready(&self) -> bool {
        self.conditions.iter().all(|condition| condition.holds)
    }

    /// Returns the state of one condition.
    pub fn condition(&self, wanted: ReadyCondition) -> &ConditionStatus {
        let found = self.conditions.iter().find(|condition| condition.condition == wanted);
        found.expect("the status has all seven conditions")
    }
}

impl Gauges {
    pub(crate) fn positions(&self) -> Positions {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        let (received, durable) = (self.position.get(), self.durable.load(Relaxed));
        let pid = self.backend.load(Acquire);
        Positions {
            received,
            durable,
            lag_bytes: received.saturating_sub(durable),
            lag: self.lag(),
            transactions: self.transactions.load(Relaxed),
            last_commit_age: self.last_commit_age(),
            retained_bytes: self.retained.load(Relaxed),
            backend_pid: (pid != 0).then_some(pid),
        }
    }
}

fn age<S: serde::Serializer>(since: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
}

fn optional_age<S: serde::Serializer>(since: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    match since {
        Some(since) => age(since, serializer),
        None => serializer.serialize_none(),
    }
}

fn optional_time_left<S: serde::Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => {
            let left = at.saturating_duration_since(Instant::now());
            serializer.serialize_u64(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
        }
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps while the manager connects or streams, other than that of the lock.
    const CONNECTING_OR_STREAMING: [ManagerStep; 10] = [
        ManagerStep::BackingOff,
        ManagerStep::StartReplicationClient,
        ManagerStep::ReplicationClientConnecting,
        ManagerStep::ConfiguringConnection,
        ManagerStep::StartConnectionPool,
        ManagerStep::ConnectionPoolConnecting,
        ManagerStep::StartShapes,
        ManagerStep::StartStreaming,
        ManagerStep::WaitingForStreamingConfirmation,
        ManagerStep::Streaming,
    ];

    /// Truth table of the connection in these steps. Conditions are in the order of
    /// [`ReadyCondition::ALL`]: lock, replication client, admin pool, snapshot pool, supervisor,
    /// integrity checks, log collector. `1`: holds, `0`: doesn't, `-`: either.
    const CONNECTION: [(&str, ConnectionStatus); 6] = [
        ("0------", ConnectionStatus::Starting),
        ("10-----", ConnectionStatus::Starting),
        ("110----", ConnectionStatus::Starting),
        ("1110---", ConnectionStatus::Starting),
        ("1111-0-", ConnectionStatus::Starting),
        ("1111-1-", ConnectionStatus::Up),
    ];

    /// Truth table of the shapes: whether the consumer took changes once, then the conditions.
    const SHAPES: [(&str, ShapeStatus); 3] = [
        ("0-------", ShapeStatus::Starting),
        ("1----0--", ShapeStatus::Starting),
        ("1----1--", ShapeStatus::Up),
    ];

    /// Returns the status of the only row that has these values.
    fn look_up<T: Copy>(table: &[(&str, T)], values: &[bool]) -> T {
        let matches = |row: &str| {
            assert_eq!(row.len(), values.len());
            row.chars().zip(values).all(|(wanted, value)| match wanted {
                '1' => *value,
                '0' => !value,
                _ => true,
            })
        };
        let found: Vec<_> = table.iter().filter(|(row, _)| matches(row)).collect();
        assert_eq!(found.len(), 1, "one row for {values:?}");
        found[0].1
    }

    /// Returns all combinations of the seven conditions.
    fn combinations() -> impl Iterator<Item = [bool; 7]> {
        (0..1_u32 << 7).map(|bits| std::array::from_fn(|at| bits >> at & 1 == 1))
    }

    fn holds_in(values: [bool; 7]) -> impl Fn(ReadyCondition) -> bool + Copy {
        move |condition| {
            let at = ReadyCondition::ALL.iter().position(|one| *one == condition);
            values[at.expect("all conditions are listed")]
        }
    }

    #[test]
    fn the_connection_status_follows_its_truth_table_over_the_seven_conditions() {
        for values in combinations() {
            let status = |step| ConnectionStatus::of(step, holds_in(values));
            for step in CONNECTING_OR_STREAMING {
                assert_eq!(status(step), look_up(&CONNECTION, &values), "{step} {values:?}");
            }
            assert_eq!(status(ManagerStep::AcquiringLock), ConnectionStatus::WaitingOnLock);
            for step in [ManagerStep::FallingAsleep, ManagerStep::Sleeping] {
                assert_eq!(status(step), ConnectionStatus::Sleeping);
            }
            let stopping = StopStep::ALL.map(ManagerStep::Stopping);
            for step in stopping.into_iter().chain([ManagerStep::Halted, ManagerStep::Stopped]) {
                assert_eq!(status(step), ConnectionStatus::Down);
            }
        }
    }

    #[test]
    fn the_shape_status_follows_its_truth_table_over_the_seven_conditions() {
        for (values, was_ready) in combinations().flat_map(|values| [(values, false), (values, true)]) {
            let row = [&[was_ready], &values[..]].concat();
            assert_eq!(ShapeStatus::of(was_ready, holds_in(values)), look_up(&SHAPES, &row), "{row:?}");
        }
    }
}
