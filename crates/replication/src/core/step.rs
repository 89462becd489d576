//! Phases and steps of the manager.

use std::fmt;

use serde::{Serialize, Serializer};

/// Phase of the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ManagerPhase {
    /// Connects and configures, also after each lost connection.
    ConnectionSetup,
    /// The server streams, or was sent `START_REPLICATION`.
    Running,
    /// The database is idle: no connection is open.
    Sleeping,
    /// An operator must act. The next attempt starts within 30 s.
    Halted,
    /// Shutting down, or shut down.
    Stopped,
}

/// Step within a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ManagerStep {
    /// Waits before the next attempt after a failure.
    BackingOff,
    /// Before the replication connection is opened.
    StartReplicationClient,
    /// The replication connection is being opened.
    ReplicationClientConnecting,
    /// Waits for the lock, which another instance may hold.
    AcquiringLock,
    /// Prepares publication, slot and settings.
    ConfiguringConnection,
    /// Before the pools are started.
    StartConnectionPool,
    /// The pools open their first connections.
    ConnectionPoolConnecting,
    /// The consumer returns its bookmark, and is reset if the server can't continue from there.
    StartShapes,
    /// Before `START_REPLICATION` is sent.
    StartStreaming,
    /// Waits until the server confirms `START_REPLICATION`.
    WaitingForStreamingConfirmation,
    /// The server streams changes.
    Streaming,
    /// Connections are being closed because the database is idle.
    FallingAsleep,
    /// All connections are closed.
    Sleeping,
    /// Waits for an operator, or for the next attempt: it starts 30 s after the last failure.
    Halted,
    /// Shutting down; see [`StopStep`].
    Stopping(StopStep),
    /// Shut down.
    Stopped,
}

/// Step of the shutdown. The steps run in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StopStep {
    /// Closes the snapshot pool: ready connections now, lent ones when they are returned.
    ClosingSnapshotPool,
    /// Drops the publication, if requested.
    DroppingPublication,
    /// The consumer saves a checkpoint.
    Checkpointing,
    /// Sends the last status and closes the stream.
    ClosingReplicationClient,
    /// Terminates the stream's backend if it still exists: it keeps the slot active.
    EndingBackend,
    /// Drops the slot, if requested.
    DroppingSlot,
    /// Closes the pools last, since earlier steps use them.
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

impl ManagerStep {
    /// Steps from the start to streaming, in the order without failures.
    pub const STARTUP_ORDER: [ManagerStep; 10] = [
        ManagerStep::StartReplicationClient,
        ManagerStep::ReplicationClientConnecting,
        ManagerStep::AcquiringLock,
        ManagerStep::ConfiguringConnection,
        ManagerStep::StartConnectionPool,
        ManagerStep::ConnectionPoolConnecting,
        ManagerStep::StartShapes,
        ManagerStep::StartStreaming,
        ManagerStep::WaitingForStreamingConfirmation,
        ManagerStep::Streaming,
    ];

    /// Returns the step's phase.
    pub fn phase(self) -> ManagerPhase {
        match self {
            ManagerStep::BackingOff
            | ManagerStep::StartReplicationClient
            | ManagerStep::ReplicationClientConnecting
            | ManagerStep::AcquiringLock
            | ManagerStep::ConfiguringConnection
            | ManagerStep::StartConnectionPool
            | ManagerStep::ConnectionPoolConnecting
            | ManagerStep::StartShapes
            | ManagerStep::StartStreaming => ManagerPhase::ConnectionSetup,
            ManagerStep::WaitingForStreamingConfirmation | ManagerStep::Streaming => ManagerPhase::Running,
            ManagerStep::FallingAsleep | ManagerStep::Sleeping => ManagerPhase::Sleeping,
            ManagerStep::Halted => ManagerPhase::Halted,
            ManagerStep::Stopping(_) | ManagerStep::Stopped => ManagerPhase::Stopped,
        }
    }

    /// Returns the name used in status, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            ManagerStep::BackingOff => "backing_off",
            ManagerStep::StartReplicationClient => "start_replication_client",
            ManagerStep::ReplicationClientConnecting => "replication_client_connecting",
            ManagerStep::AcquiringLock => "acquiring_lock",
            ManagerStep::ConfiguringConnection => "configuring_connection",
            ManagerStep::StartConnectionPool => "start_connection_pool",
            ManagerStep::ConnectionPoolConnecting => "connection_pool_connecting",
            ManagerStep::StartShapes => "start_shapes",
            ManagerStep::StartStreaming => "start_streaming",
            ManagerStep::WaitingForStreamingConfirmation => "waiting_for_streaming_confirmation",
            ManagerStep::Streaming => "streaming",
            ManagerStep::FallingAsleep => "falling_asleep",
            ManagerStep::Sleeping => "sleeping",
            ManagerStep::Halted => "halted",
            ManagerStep::Stopping(StopStep::ClosingSnapshotPool) => "closing_snapshot_pool",
            ManagerStep::Stopping(StopStep::DroppingPublication) => "dropping_publication",
            ManagerStep::Stopping(StopStep::Checkpointing) => "checkpointing",
            ManagerStep::Stopping(StopStep::ClosingReplicationClient) => "closing_replication_client",
            ManagerStep::Stopping(StopStep::EndingBackend) => "ending_backend",
            ManagerStep::Stopping(StopStep::DroppingSlot) => "dropping_slot",
            ManagerStep::Stopping(StopStep::ClosingAdminPool) => "closing_admin_pool",
            ManagerStep::Stopped => "stopped",
        }
    }
}

impl fmt::Display for ManagerStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ManagerStep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
