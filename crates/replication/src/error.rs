//! Errors of the replication connection, and what the manager does about them.
//!
//! Invariant: the recovery depends on the error variant and the SQLSTATE, never on message texts.
//! No error contains a password or a value of a row.
//! Enforced by: [`ReplicationError::action`] is the only place that decides. [`safe_text`] replaces
//! the server's messages about data.

use std::time::Duration;

use forebay_pgoutput::DecodeError;
use forebay_reservoir::{ConnectionErrorKind, PostgresError, PostgresServerError};

use crate::consumer::ConsumerError;
use crate::core::machine::FailureReport;
pub use crate::core::machine::RecoveryAction;
use crate::wire::WireError;

/// Operation of the manager on the replication connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceOperation {
    /// `IDENTIFY_SYSTEM`.
    IdentifySystem,
    /// Reads version, settings and rights.
    InspectServer,
    /// Tries to take the advisory lock.
    AcquireLock,
    /// Creates or checks the publication.
    PreparePublication,
    /// Drops an unusable slot.
    DropSlot,
    /// Creates the slot.
    CreateSlot,
    /// Reads the slot's position.
    ReadSlot,
    /// Sets the output format of values.
    Configure,
    /// Waits for pools and consumer.
    WaitForConsumer,
    /// `START_REPLICATION`.
    StartStreaming,
    /// Receives changes.
    Stream,
}

impl SourceOperation {
    /// Returns the text used in errors and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            SourceOperation::IdentifySystem => "identifying the system",
            SourceOperation::InspectServer => "inspecting the server",
            SourceOperation::AcquireLock => "taking the lock",
            SourceOperation::PreparePublication => "preparing the publication",
            SourceOperation::DropSlot => "dropping the slot",
            SourceOperation::CreateSlot => "creating the slot",
            SourceOperation::ReadSlot => "reading the slot's position",
            SourceOperation::Configure => "configuring the connection",
            SourceOperation::WaitForConsumer => "waiting for the consumer",
            SourceOperation::StartStreaming => "starting to stream",
            SourceOperation::Stream => "streaming",
        }
    }
}

/// Why the replication connection, its setup, or the pools failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicationError {
    /// The connection couldn't be opened.
    #[error("{0}")]
    Connect(#[from] PostgresError),
    /// The pools have no connection.
    #[error("the pools have no connection: {why}")]
    Pools {
        /// Error of the last attempt.
        why: String,
        /// Kind of that error.
        kind: Option<ConnectionErrorKind>,
    },
    /// The server returned an error.
    #[error("while {}: {}{}", operation.as_str(), safe_text(error), advice(*operation, error.code()))]
    Server {
        /// The manager's operation.
        operation: SourceOperation,
        /// The server's error.
        error: PostgresServerError,
    },
    /// The connection was lost.
    #[error("while {}: {why}", operation.as_str())]
    Lost {
        /// The manager's operation.
        operation: SourceOperation,
        /// Error of the connection.
        why: String,
    },
    /// The server didn't reply in time.
    #[error("while {}: no reply within {timeout:?}: check the server and the network in between", operation.as_str())]
    NoReply {
        /// The manager's operation.
        operation: SourceOperation,
        /// The time limit.
        timeout: Duration,
    },
    /// The server sent nothing for too long while streaming.
    #[error(
        "the server sent nothing for {silence:?}, not even a requested keepalive: the connection counts as dead"
    )]
    Silent {
        /// Time since the server's last message.
        silence: Duration,
    },
    /// A replication message couldn't be decoded.
    #[error("a replication message couldn't be decoded: {0}")]
    Decode(#[from] DecodeError),
    /// The server is older than PostgreSQL 15.
    #[error("server_version_num is {version}, and PostgreSQL 15 or newer is needed: upgrade the server")]
    TooOld {
        /// The server's `server_version_num`.
        version: u32,
    },
    /// `wal_level` isn't `logical`.
    #[error(
        "wal_level is {found}, and logical replication needs logical: ALTER SYSTEM SET wal_level = 'logical', then \
         restart the server"
    )]
    WalLevel {
        /// The server's `wal_level`.
        found: String,
    },
    /// The user lacks the right to replicate or to connect.
    #[error(
        "the user {user} may not replicate or not connect ({error}): ALTER ROLE … REPLICATION as a superuser (on Amazon RDS: GRANT \
         rds_replication), and GRANT CONNECT on the database"
    )]
    NoReplicationRight {
        /// The user.
        user: String,
        /// The server's error.
        error: PostgresServerError,
    },
    /// The server is a standby.
    #[error(
        "the server is a standby: connect to the primary (target_session_attrs=primary finds it among several hosts)"
    )]
    Standby,
    /// A manually managed publication doesn't exist.
    #[error(
        "there is no publication {name}, and it is managed manually: run CREATE PUBLICATION {name}, as the owner of its tables"
    )]
    NoPublication {
        /// Name of the publication.
        name: String,
    },
    /// A manually managed publication lacks operations.
    #[error(
        "the publication {name} doesn't publish {missing}: ALTER PUBLICATION {name} SET (publish = \
         'insert, update, delete, truncate'), as its owner"
    )]
    PublicationOperations {
        /// Name of the publication.
        name: String,
        /// The missing operations.
        missing: String,
    },
    /// The publication has another owner, and isn't managed manually.
    #[error(
        "the publication {name} belongs to {owner}, and {user} may not change it: change its owner to {user} (ALTER PUBLICATION … \
         OWNER TO), or manage its tables yourself and configure that (manual publication)"
    )]
    NotOwner {
        /// Name of the publication.
        name: String,
        /// Owner of the publication.
        owner: String,
        /// User of the connection.
        user: String,
    },
    /// The publication was dropped, replaced or narrowed while streaming.
    #[error(
        "the publication {name} was {what} while streaming: changes may be missing, so the slot is recreated and the consumer reset"
    )]
    PublicationLost {
        /// Name of the publication.
        name: String,
        /// `dropped`, `replaced` or `narrowed`.
        what: &'static str,
    },
    /// A slot of that name exists, for another use.
    #[error("a slot {slot} exists already, for another use ({what}): choose another name, or drop it")]
    ForeignSlot {
        /// Name of the slot.
        slot: String,
        /// Its type, plugin and database.
        what: String,
    },
    /// A query's result lacks a value.
    #[error("while {}: the server's result lacks {missing}: check that no proxy is in between", operation.as_str())]
    InvalidResult {
        /// The manager's operation.
        operation: SourceOperation,
        /// The missing value.
        missing: &'static str,
    },
    /// The consumer failed.
    #[error("the consumer failed: {0}")]
    Consumer(#[from] ConsumerError),
    /// A task of the manager or the consumer panicked.
    #[error("a bug: the task panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}

impl ReplicationError {
    /// Returns the error of a failed operation on the replication connection.
    pub(crate) fn wire(operation: SourceOperation, error: WireError) -> Self {
        match error {
            WireError::Server(error) => ReplicationError::Server { operation, error },
            other => ReplicationError::Lost { operation, why: other.to_string() },
        }
    }

    /// Returns what the manager does about the error.
    pub fn action(&self) -> RecoveryAction {
        match self {
            ReplicationError::Connect(error) => connect_action(error),
            ReplicationError::Pools { kind, .. } => match kind {
                Some(ConnectionErrorKind::Refused) => RecoveryAction::Halt,
                Some(_) | None => RecoveryAction::Retry,
            },
            ReplicationError::Server { operation, error } => server_action(*operation, error.code()),
            ReplicationError::TooOld { .. }
            | ReplicationError::WalLevel { .. }
            | ReplicationError::NoReplicationRight { .. }
            | ReplicationError::NoPublication { .. }
            | ReplicationError::PublicationOperations { .. }
            | ReplicationError::NotOwner { .. }
            | ReplicationError::ForeignSlot { .. } => RecoveryAction::Halt,
            ReplicationError::PublicationLost { .. } => RecoveryAction::RecreateSlot,
            ReplicationError::Lost { .. }
            | ReplicationError::NoReply { .. }
            | ReplicationError::Silent { .. }
            | ReplicationError::Decode(_)
            | ReplicationError::Standby
            | ReplicationError::InvalidResult { .. }
            | ReplicationError::Panicked { .. } => RecoveryAction::Retry,
            ReplicationError::Consumer(error) => error.action(),
        }
    }

    /// Returns the value of the `reason` label in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            ReplicationError::Connect(error) => error.kind().as_str(),
            ReplicationError::Pools { .. } => "pools",
            ReplicationError::Server { .. } => "server",
            ReplicationError::Lost { .. } => "lost",
            ReplicationError::NoReply { .. } => "no_answer",
            ReplicationError::Silent { .. } => "silent",
            ReplicationError::Decode(_) => "decode",
            ReplicationError::TooOld { .. } => "too_old",
            ReplicationError::WalLevel { .. } => "wal_level",
            ReplicationError::NoReplicationRight { .. } => "no_replication_right",
            ReplicationError::Standby => "standby",
            ReplicationError::NoPublication { .. } => "no_publication",
            ReplicationError::PublicationOperations { .. } => "publication_operations",
            ReplicationError::NotOwner { .. } => "not_owner",
            ReplicationError::PublicationLost { .. } => "publication_lost",
            ReplicationError::ForeignSlot { .. } => "foreign_slot",
            ReplicationError::InvalidResult { .. } => "nonsense",
            ReplicationError::Consumer(_) => "consumer",
            ReplicationError::Panicked { .. } => "panic",
        }
    }
}

impl From<ReplicationError> for FailureReport {
    fn from(error: ReplicationError) -> Self {
        FailureReport {
            action: error.action(),
            reason: error.reason(),
            text: error.to_string(),
            panicked: matches!(error, ReplicationError::Panicked { .. }),
        }
    }
}

/// Returns the server's message. If the SQLSTATE is about data, returns a fixed text instead: such
/// messages quote values.
fn safe_text(error: &PostgresServerError) -> String {
    match error.code().get(..2) {
        Some("22" | "23") => {
            format!("an error in the data [{}]: see the server's log", error.code())
        }
        _ => error.to_string(),
    }
}

fn connect_action(error: &PostgresError) -> RecoveryAction {
    match error.kind() {
        // Causes: password, pg_hba.conf, missing database, client certificate.
        ConnectionErrorKind::Refused => RecoveryAction::Halt,
        ConnectionErrorKind::Other => match error {
            // Causes: server without TLS, untrusted certificate, server that isn't Postgres.
            PostgresError::NoTls { .. } | PostgresError::Tls { .. } | PostgresError::NotPostgres { .. } => {
                RecoveryAction::Halt
            }
            _ => RecoveryAction::Retry,
        },
        // Credentials that couldn't be obtained, a full or unreachable server.
        _ => RecoveryAction::Retry,
    }
}

fn server_action(operation: SourceOperation, sqlstate: &str) -> RecoveryAction {
    match (sqlstate, operation) {
        // insufficient_privilege, invalid_authorization, invalid_catalog_name
        ("42501" | "28000" | "28P01" | "3D000", _) => RecoveryAction::Halt,
        // object_not_in_prerequisite_state: wal_level while creating a slot, an invalidated slot
        // while streaming.
        ("55000", SourceOperation::CreateSlot) => RecoveryAction::Halt,
        ("55000", SourceOperation::StartStreaming | SourceOperation::Stream) => RecoveryAction::RecreateSlot,
        // configuration_limit_exceeded: no slot left.
        ("53400", SourceOperation::CreateSlot) => RecoveryAction::Halt,
        // undefined_object: the decoded part of the WAL has no such publication, and never will.
        ("42704", SourceOperation::Stream) => RecoveryAction::RecreateSlot,
        // undefined_file: WAL that the slot needs was removed.
        ("58P01", SourceOperation::StartStreaming | SourceOperation::Stream) => RecoveryAction::RecreateSlot,
        // All others, such as an active slot (55006), too many connections (53300), a server
        // shutdown (57P01 to 57P03).
        _ => RecoveryAction::Retry,
    }
}

/// Returns what an operator can do about an SQLSTATE, as the end of an error text; may be empty.
fn advice(operation: SourceOperation, sqlstate: &str) -> &'static str {
    match (sqlstate, operation) {
        ("42501", SourceOperation::PreparePublication) => {
            ": grant CREATE on the database, or create the publication yourself (manual publication)"
        }
        ("42501", _) => ": grant the user REPLICATION, and SELECT on the tables",
        ("55000", SourceOperation::CreateSlot) => ": wal_level must be logical",
        ("55000", SourceOperation::StartStreaming | SourceOperation::Stream) => {
            ": the slot lost its WAL, so it is recreated and the consumer reset"
        }
        ("53400", SourceOperation::CreateSlot) => ": raise max_replication_slots, or drop unused slots",
        ("53300", _) => ": raise max_connections or max_wal_senders, or reduce the number of clients",
        ("55006", _) => ": the slot is in use by another connection; retrying",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_for_a_sqlstate_depends_on_the_operation() {
        assert_eq!(server_action(SourceOperation::CreateSlot, "55000"), RecoveryAction::Halt);
        assert_eq!(server_action(SourceOperation::StartStreaming, "55000"), RecoveryAction::RecreateSlot);
        assert_eq!(server_action(SourceOperation::StartStreaming, "42704"), RecoveryAction::Retry);
        assert_eq!(server_action(SourceOperation::Stream, "42704"), RecoveryAction::RecreateSlot);
    }

    #[test]
    fn messages_that_quote_values_are_replaced() {
        let fields: [(u8, &[u8]); 2] =
            [(b'C', b"22P02"), (b'M', b"invalid input syntax for type integer: \"secret\"")];
        let error = ReplicationError::Server {
            operation: SourceOperation::Stream,
            error: PostgresServerError::from_fields(fields),
        };
        assert!(!error.to_string().contains("secret") && error.to_string().contains("22P02"), "{error}");
    }

    #[test]
    fn unlisted_sqlstates_are_retried() {
        assert_eq!(server_action(SourceOperation::Stream, "XX000"), RecoveryAction::Retry);
        assert_eq!(server_action(SourceOperation::AcquireLock, "57P01"), RecoveryAction::Retry);
    }
}
