//! What the manager tells of itself.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

pub use crate::core::conditions::Condition;
use crate::core::machine::Machine;
pub use crate::core::step::{Phase, Step, StopStep};
use crate::pools::PoolStatus;
use crate::source::Gauges;

/// Everything that the manager knows of itself, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ManagerStatus {
    /// Where it is.
    pub phase: Phase,
    /// Where exactly.
    pub step: Step,
    /// Since when.
    #[serde(rename = "step_for_ms", serialize_with = "age")]
    pub step_since: Instant,
    /// The connection side, in one word.
    pub connection: ConnectionStatus,
    /// The consumer's side, in one word.
    pub shapes: ShapeStatus,
    /// The seven conditions.
    pub conditions: Vec<ConditionStatus>,
    /// The pool for metadata.
    pub admin_pool: PoolStatus,
    /// The pool for snapshots.
    pub snapshot_pool: PoolStatus,
    /// Failures since all was well, if it isn't.
    pub retries: u32,
    /// For how long it has been tried.
    #[serde(rename = "retrying_for_ms", serialize_with = "optional_age")]
    pub retrying_since: Option<Instant>,
    /// What failed last, until all is well again: what happened, and what to do.
    pub trouble: Option<String>,
}

/// The connection side, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionStatus {
    /// Another instance has the lock.
    WaitingOnLock,
    /// On the way up, the first time or again.
    Starting,
    /// Changes flow.
    Up,
    /// Closed until somebody needs it.
    Sleeping,
    /// It has given up, or is shut down.
    Down,
}

/// The consumer's side, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShapeStatus {
    /// It hasn't loaded what it has.
    Starting,
    /// It can be read.
    Up,
}

/// One condition, since when, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionStatus {
    /// Which.
    pub condition: Condition,
    /// Whether it holds.
    pub holds: bool,
    /// Since when it does, or doesn't.
    #[serde(rename = "for_ms", serialize_with = "age")]
    pub since: Instant,
    /// Why.
    pub why: String,
}

/// How far the stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Positions {
    /// The last log position that the server told of, as a number.
    pub received: u64,
    /// Up to where the consumer is durable: what the server is told is flushed and applied.
    pub durable: u64,
    /// Between the two.
    pub lag_bytes: u64,
    /// The age of the oldest transaction known to have come that isn't durable; zero if there is none. Both machines' clocks count.
    pub lag: Duration,
    /// Log that the server keeps for the slot, in bytes.
    pub retained_bytes: u64,
    /// The server's process of the replication connection, if there is one.
    pub backend_pid: Option<i32>,
}

impl ManagerStatus {
    pub(crate) fn of(machine: &Machine) -> Self {
        let (step, conditions) = (machine.step(), machine.conditions());
        let connection = match step.phase() {
            Phase::Sleeping => ConnectionStatus::Sleeping,
            Phase::Halted | Phase::Stopped => ConnectionStatus::Down,
            Phase::ConnectionSetup if step == Step::AcquiringLock => ConnectionStatus::WaitingOnLock,
            Phase::ConnectionSetup => ConnectionStatus::Starting,
            Phase::Running => ConnectionStatus::Up,
        };
        let condition = |condition: Condition| {
            let held = conditions.get(condition);
            ConditionStatus { condition, holds: held.holds, since: held.since.into(), why: held.why.clone() }
        };
        ManagerStatus {
            phase: step.phase(),
            step,
            step_since: machine.step_since().into(),
            connection,
            shapes: match conditions.holds(Condition::SupervisorProcessesReady) {
                true => ShapeStatus::Up,
                false => ShapeStatus::Starting,
            },
            conditions: Condition::ALL.map(condition).to_vec(),
            admin_pool: machine.pools().admin,
            snapshot_pool: machine.pools().snapshot,
            retries: machine.backoff().tries(),
            retrying_since: machine.backoff().since().map(Into::into),
            trouble: machine.trouble().map(|trouble| trouble.text.clone()),
        }
    }

    /// Whether changes flow and snapshots can be taken: all seven conditions hold.
    pub fn is_ready(&self) -> bool {
        self.conditions.iter().all(|condition| condition.holds)
    }

    /// One condition.
    pub fn condition(&self, wanted: Condition) -> &ConditionStatus {
        let found = self.conditions.iter().find(|condition| condition.condition == wanted);
        found.expect("all seven are there")
    }
}

impl Gauges {
    pub(crate) fn positions(&self) -> Positions {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        let (received, durable) = (self.received.load(Relaxed), self.durable.load(Relaxed));
        let pid = self.backend.load(Acquire);
        Positions {
            received,
            durable,
            lag_bytes: received.saturating_sub(durable),
            lag: self.lag(),
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
