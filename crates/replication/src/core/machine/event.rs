//! Events that the machine receives, and effects that it returns.

use std::time::Duration;

use crate::core::continuity::ResetReason;
use crate::core::step::{ManagerStep, StopStep};
use crate::pools::PoolStatus;
use crate::publication::{TableChange, TableName};

/// What the manager does about a failure. The table in `error.rs` decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecoveryAction {
    /// An operator must act. Halts the manager at its first start, which is retried every 30 s.
    /// After the first success it is retried like a temporary failure.
    Halt,
    /// The slot is unusable: drops it, creates a new one, and resets the consumer.
    RecreateSlot,
    /// The failure may be temporary: retries after a backoff.
    Retry,
}

/// A failure in the form that the machine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureReport {
    pub(crate) action: RecoveryAction,
    /// Value of the `reason` label in metrics.
    pub(crate) reason: &'static str,
    /// What happened and what to do, for the operator.
    pub(crate) text: String,
    pub(crate) panicked: bool,
}

impl FailureReport {
    /// Returns a report of a failure that is retried.
    pub(crate) fn retryable(reason: &'static str, text: impl Into<String>) -> Self {
        FailureReport { action: RecoveryAction::Retry, reason, text: text.into(), panicked: false }
    }
}

/// Number of one replication connection. Later connections have higher numbers.
pub(crate) type AttemptId = u64;

/// An input of the machine.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Start,
    /// A timer fired.
    Tick,
    Connected(AttemptId),
    /// Another connection holds the lock. The text names the slot.
    LockBusy(AttemptId, String),
    LockTaken(AttemptId),
    Configured(AttemptId),
    /// The server confirmed `START_REPLICATION`.
    Confirmed(AttemptId),
    /// The consumer made a change of this stream durable for the first time.
    DurableAdvanced(AttemptId),
    /// Setup is blocked. The text names the cause.
    SetupBlocked(AttemptId, String),
    /// Whether the backend of an unconfirmed stream still exists.
    BackendChecked(AttemptId, bool),
    /// The connection is closed. `None`: the manager closed or abandoned it.
    SourceEnded(AttemptId, Option<FailureReport>),
    PoolsChanged(PoolReport),
    PoolsFailed(FailureReport),
    PoolsClosed,
    ConsumerReady(AttemptId, Option<ResetReason>),
    ConsumerFailed(AttemptId, FailureReport),
    /// The publication is not the one that the slot was created with.
    PublicationLost(FailureReport),
    /// A caller needs the database.
    UseRequested,
    /// An operator requested a retry.
    Retry,
    Shutdown {
        drop_slot: bool,
    },
    StopDone(StopStep),
}

/// State of both pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PoolReport {
    pub(crate) admin: PoolState,
    pub(crate) snapshot: PoolState,
}

/// State of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolState {
    pub(crate) status: PoolStatus,
    /// Why the pool isn't ready, if known.
    pub(crate) why: Option<String>,
}

/// A pool that has not been filled yet.
impl Default for PoolState {
    fn default() -> Self {
        PoolState { status: PoolStatus::Starting, why: None }
    }
}

/// An action that the worker performs for the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Logs that this step was entered.
    Entered(ManagerStep),
    OpenSource {
        attempt: AttemptId,
        recreate_slot: bool,
    },
    /// Checks whether the lock's holder is abandoned.
    CheckLock(AttemptId),
    /// Queries what blocks the setup.
    DiagnoseSetup(AttemptId),
    StartPools,
    PrepareConsumer(AttemptId),
    StartStreaming(AttemptId),
    /// Checks whether the stream's backend still exists.
    CheckBackend(AttemptId),
    /// Compares the publication with the tracked tables.
    Reconcile,
    /// Measures how much WAL the slot retains.
    MeasureSlot,
    /// Drops the connection without a protocol shutdown.
    AbandonSource(AttemptId),
    /// Closes the connection with a protocol shutdown.
    CloseSource(AttemptId),
    ClosePools,
    Stop(StopStep),
    /// Logs and counts that the server streams again.
    Recovered {
        /// Time since the first failure.
        retried_for: Duration,
        /// Failures since the last stable stream.
        tries: u32,
    },
    /// Sends an event to the subscribers.
    Notify(ManagerEvent),
}

/// A state change of the manager, sent to subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ManagerEvent {
    /// The server streams and all conditions hold.
    Ready,
    /// The replication connection failed and is opened again. The consumer keeps its data.
    Restarting {
        /// Value of the `reason` label in metrics.
        reason: &'static str,
    },
    /// The consumer was reset.
    Reset(ResetReason),
    /// The database was idle: all connections are closed.
    ScaledDown,
    /// A caller needs the database: connections are opened again.
    WakingUp,
    /// A tracked table was changed outside the manager.
    Table {
        /// The table.
        table: TableName,
        /// What happened to it.
        change: TableChange,
    },
    /// The manager halted: an operator must act, or it panicked too often. It retries every 30 s.
    Halted {
        /// Value of the `reason` label in metrics.
        reason: &'static str,
        /// What happened, and what to do.
        why: String,
    },
    /// The manager is shut down.
    Stopped,
}
