//! Where the manager is.

use std::fmt;

use serde::{Serialize, Serializer};

/// The manager's two phases, and what comes before and after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From nothing to streaming, and again after each loss.
    ConnectionSetup,
    /// Changes arrive.
    Running,
    /// No connection is open, and none is wanted.
    Sleeping,
    /// It has given up until it is told to try again.
    Halted,
    /// On the way out, or out.
    Stopped,
}

/// One step of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Waits to try again after a failure.
    BackingOff,
    /// The replication connection is about to be opened.
    StartReplicationClient,
    /// It is being opened.
    ReplicationClientConnecting,
    /// Another instance may hold the lock.
    AcquiringLock,
    /// Publication, slot, settings.
    ConfiguringConnection,
    /// The pools are about to be started.
    StartConnectionPool,
    /// They are being filled.
    ConnectionPoolConnecting,
    /// The consumer is asked what it has, and told to start over if that doesn't go on here.
    StartShapes,
    /// The server is asked to stream.
    StartStreaming,
    /// It hasn't confirmed yet.
    WaitingForStreamingConfirmation,
    /// Changes arrive.
    Streaming,
    /// Connections are closed because nobody needs them.
    FallingAsleep,
    /// All are closed.
    Sleeping,
    /// A failure that only a person can mend.
    Halted,
    /// Shutting down; see [`StopStep`].
    Stopping(StopStep),
    /// The end.
    Stopped,
}

/// One step of the way down, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StopStep {
    /// No more snapshots.
    ClosingSnapshotPool,
    /// If asked for.
    DroppingPublication,
    /// The consumer saves what it knows.
    Checkpointing,
    /// The stream says goodbye.
    ClosingReplicationClient,
    /// Its backend must be gone, or the slot stays in use.
    EndingBackend,
    /// If asked for.
    DroppingSlot,
    /// The last, since the others needed it.
    ClosingAdminPool,
}

impl StopStep {
    pub(crate) const ALL: [StopStep; 7] = [
        StopStep::ClosingSnapshotPool,
        StopStep::DroppingPublication,
        StopStep::Checkpointing,
        StopStep::ClosingReplicationClient,
        StopStep::EndingBackend,
        StopStep::DroppingSlot,
        StopStep::ClosingAdminPool,
    ];

    pub(crate) fn next(self) -> Option<StopStep> {
        let at = StopStep::ALL.iter().position(|step| *step == self)?;
        StopStep::ALL.get(at + 1).copied()
    }
}

impl Step {
    /// Every step of set-up and running, in the order in which they are passed when all goes well.
    pub const WAY_UP: [Step; 10] = [
        Step::StartReplicationClient,
        Step::ReplicationClientConnecting,
        Step::AcquiringLock,
        Step::ConfiguringConnection,
        Step::StartConnectionPool,
        Step::ConnectionPoolConnecting,
        Step::StartShapes,
        Step::StartStreaming,
        Step::WaitingForStreamingConfirmation,
        Step::Streaming,
    ];

    /// The phase that it is in.
    pub fn phase(self) -> Phase {
        match self {
            Step::BackingOff
            | Step::StartReplicationClient
            | Step::ReplicationClientConnecting
            | Step::AcquiringLock
            | Step::ConfiguringConnection
            | Step::StartConnectionPool
            | Step::ConnectionPoolConnecting
            | Step::StartShapes
            | Step::StartStreaming => Phase::ConnectionSetup,
            Step::WaitingForStreamingConfirmation | Step::Streaming => Phase::Running,
            Step::FallingAsleep | Step::Sleeping => Phase::Sleeping,
            Step::Halted => Phase::Halted,
            Step::Stopping(_) | Step::Stopped => Phase::Stopped,
        }
    }

    /// In status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::BackingOff => "backing_off",
            Step::StartReplicationClient => "start_replication_client",
            Step::ReplicationClientConnecting => "replication_client_connecting",
            Step::AcquiringLock => "acquiring_lock",
            Step::ConfiguringConnection => "configuring_connection",
            Step::StartConnectionPool => "start_connection_pool",
            Step::ConnectionPoolConnecting => "connection_pool_connecting",
            Step::StartShapes => "start_shapes",
            Step::StartStreaming => "start_streaming",
            Step::WaitingForStreamingConfirmation => "waiting_for_streaming_confirmation",
            Step::Streaming => "streaming",
            Step::FallingAsleep => "falling_asleep",
            Step::Sleeping => "sleeping",
            Step::Halted => "halted",
            Step::Stopping(StopStep::ClosingSnapshotPool) => "closing_snapshot_pool",
            Step::Stopping(StopStep::DroppingPublication) => "dropping_publication",
            Step::Stopping(StopStep::Checkpointing) => "checkpointing",
            Step::Stopping(StopStep::ClosingReplicationClient) => "closing_replication_client",
            Step::Stopping(StopStep::EndingBackend) => "ending_backend",
            Step::Stopping(StopStep::DroppingSlot) => "dropping_slot",
            Step::Stopping(StopStep::ClosingAdminPool) => "closing_admin_pool",
            Step::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
