//! Why the connection side failed, and what to do about it.
//!
//! Invariant: one table decides ([`Failure::verdict`]), by what happened and by SQLSTATE, never by words. Nothing here holds a password
//! or a row's value.

use std::time::Duration;

use forebay_pgoutput::DecodeError;
use forebay_reservoir::{ConnectionErrorKind, PostgresError, PostgresServerError};

use crate::consumer::ConsumerError;
use crate::core::machine::Trouble;
pub use crate::core::machine::Verdict;
use crate::wire::WireError;

/// What was being done on the replication connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Doing {
    /// `IDENTIFY_SYSTEM`.
    Identifying,
    /// Asking for versions, rights and settings.
    AskingAround,
    /// Trying to take the lock.
    Locking,
    /// Making or checking the publication.
    Publishing,
    /// Dropping a slot that is of no use.
    DroppingSlot,
    /// Making the slot.
    CreatingSlot,
    /// Reading the slot's position.
    ReadingSlot,
    /// Choosing how values are written.
    Configuring,
    /// Waiting for the consumer to be ready.
    Waiting,
    /// Asking the server to stream.
    Starting,
    /// Streaming.
    Streaming,
}

impl Doing {
    /// In errors and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Doing::Identifying => "identifying the system",
            Doing::AskingAround => "asking what the server is",
            Doing::Locking => "taking the lock",
            Doing::Publishing => "preparing the publication",
            Doing::DroppingSlot => "dropping the slot",
            Doing::CreatingSlot => "creating the slot",
            Doing::ReadingSlot => "reading the slot's position",
            Doing::Configuring => "configuring the connection",
            Doing::Waiting => "waiting for the consumer",
            Doing::Starting => "starting to stream",
            Doing::Streaming => "streaming",
        }
    }
}

/// Why the connection side failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is no connection.
    #[error("{0}")]
    Connect(#[from] PostgresError),
    /// The pools have no connection.
    #[error("the pools have no connection: {why}")]
    Pools {
        /// What the last dial said.
        why: String,
        /// What that means for the next.
        kind: Option<ConnectionErrorKind>,
    },
    /// The server said no.
    #[error("while {}: {}{}", doing.as_str(), words(said), advice(*doing, said.code()))]
    Server {
        /// What was being done.
        doing: Doing,
        /// The server's words.
        said: PostgresServerError,
    },
    /// The connection broke.
    #[error("while {}: {why}", doing.as_str())]
    Lost {
        /// What was being done.
        doing: Doing,
        /// How.
        why: String,
    },
    /// The server didn't answer.
    #[error("while {}: no answer within {after:?}: the server hangs, or something in between does", doing.as_str())]
    NoAnswer {
        /// What was being done.
        doing: Doing,
        /// How long was waited.
        after: Duration,
    },
    /// The server was silent for too long.
    #[error(
        "nothing came from the server for {silent:?}, though it was asked: the connection is taken for dead"
    )]
    Silent {
        /// For how long.
        silent: Duration,
    },
    /// A message that makes no sense.
    #[error("a replication message can't be read: {0}")]
    Decode(#[from] DecodeError),
    /// An older server than we can follow.
    #[error("the server is version {version}, and at least 15 is needed: upgrade it")]
    TooOld {
        /// As `server_version_num` has it.
        version: u32,
    },
    /// `wal_level` isn't `logical`.
    #[error(
        "wal_level is {found}, and logical replication needs logical: ALTER SYSTEM SET wal_level = 'logical', then \
         restart the server"
    )]
    WalLevel {
        /// What it is.
        found: String,
    },
    /// The user may not replicate, or not connect.
    #[error(
        "the user {user} may not replicate or not connect ({said}): ALTER ROLE … REPLICATION as a superuser (on Amazon RDS: GRANT \
         rds_replication), and GRANT CONNECT on the database"
    )]
    NoReplicationRight {
        /// Who.
        user: String,
        /// The server's words.
        said: PostgresServerError,
    },
    /// A standby.
    #[error(
        "the server is a standby: connect to the primary (target_session_attrs=primary finds it among several hosts)"
    )]
    Standby,
    /// The publication isn't there, and we are told not to make it.
    #[error(
        "there is no publication {name}, and it isn't ours to make: CREATE PUBLICATION {name}, as its owner"
    )]
    NoPublication {
        /// Its name.
        name: String,
    },
    /// The publication leaves operations out.
    #[error(
        "the publication {name} doesn't publish {missing}: ALTER PUBLICATION {name} SET (publish = \
         'insert, update, delete, truncate'), as its owner"
    )]
    PublicationOperations {
        /// Its name.
        name: String,
        /// What it leaves out.
        missing: String,
    },
    /// The publication is somebody else's, and we were told to change it.
    #[error(
        "the publication {name} belongs to {owner}, and {user} may not change it: give it to {user} (ALTER PUBLICATION … \
         OWNER TO), or manage its tables yourself and say so (manual publication)"
    )]
    NotOwner {
        /// Its name.
        name: String,
        /// Whose it is.
        owner: String,
        /// Who we are.
        user: String,
    },
    /// The publication was dropped or replaced while the stream ran.
    #[error(
        "the publication {name} was {what} while it was followed: changes may be missing, so everything starts over"
    )]
    PublicationLost {
        /// Its name.
        name: String,
        /// Dropped, replaced or narrowed.
        what: &'static str,
    },
    /// A slot of that name is somebody else's.
    #[error("there is a slot {slot} already, and it isn't ours ({what}): choose another name, or drop it")]
    ForeignSlot {
        /// Its name.
        slot: String,
        /// What it is.
        what: String,
    },
    /// The server's answer lacks something.
    #[error("while {}: the server's answer makes no sense: {what}", doing.as_str())]
    Nonsense {
        /// What was being done.
        doing: Doing,
        /// What is missing.
        what: &'static str,
    },
    /// The consumer can't go on.
    #[error("the consumer: {0}")]
    Consumer(#[from] ConsumerError),
    /// A bug of ours or the consumer's.
    #[error("a bug: the task panicked: {what}")]
    Panicked {
        /// The panic's words.
        what: String,
    },
}

impl Failure {
    pub(crate) fn wire(doing: Doing, error: WireError) -> Self {
        match error {
            WireError::Server(said) => Failure::Server { doing, said },
            other => Failure::Lost { doing, why: other.to_string() },
        }
    }

    /// What to do about it.
    pub fn verdict(&self) -> Verdict {
        match self {
            Failure::Connect(error) => connect_verdict(error),
            Failure::Pools { kind, .. } => match kind {
                Some(ConnectionErrorKind::Refused) => Verdict::Fatal,
                Some(
                    ConnectionErrorKind::Credentials
                    | ConnectionErrorKind::Full
                    | ConnectionErrorKind::Unreachable
                    | ConnectionErrorKind::Other,
                )
                | None => Verdict::Retry,
            },
            Failure::Server { doing, said } => server_verdict(*doing, said.code()),
            Failure::TooOld { .. }
            | Failure::WalLevel { .. }
            | Failure::NoReplicationRight { .. }
            | Failure::NoPublication { .. }
            | Failure::PublicationOperations { .. }
            | Failure::NotOwner { .. }
            | Failure::ForeignSlot { .. } => Verdict::Fatal,
            Failure::PublicationLost { .. } => Verdict::DropSlot,
            Failure::Lost { .. }
            | Failure::NoAnswer { .. }
            | Failure::Silent { .. }
            | Failure::Decode(_)
            | Failure::Standby
            | Failure::Nonsense { .. }
            | Failure::Panicked { .. } => Verdict::Retry,
            Failure::Consumer(error) => error.verdict(),
        }
    }

    /// In metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Failure::Connect(error) => error.kind().as_str(),
            Failure::Pools { .. } => "pools",
            Failure::Server { .. } => "server",
            Failure::Lost { .. } => "lost",
            Failure::NoAnswer { .. } => "no_answer",
            Failure::Silent { .. } => "silent",
            Failure::Decode(_) => "decode",
            Failure::TooOld { .. } => "too_old",
            Failure::WalLevel { .. } => "wal_level",
            Failure::NoReplicationRight { .. } => "no_replication_right",
            Failure::Standby => "standby",
            Failure::NoPublication { .. } => "no_publication",
            Failure::PublicationOperations { .. } => "publication_operations",
            Failure::NotOwner { .. } => "not_owner",
            Failure::PublicationLost { .. } => "publication_lost",
            Failure::ForeignSlot { .. } => "foreign_slot",
            Failure::Nonsense { .. } => "nonsense",
            Failure::Consumer(_) => "consumer",
            Failure::Panicked { .. } => "panic",
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble {
            verdict: failure.verdict(),
            reason: failure.reason(),
            text: failure.to_string(),
            panicked: matches!(failure, Failure::Panicked { .. }),
        }
    }
}

/// What the server said, unless that is about data: those words quote values.
fn words(said: &PostgresServerError) -> String {
    match said.code().get(..2) {
        Some("22" | "23") => {
            format!("an error in the data [{}]: the server's log has the words", said.code())
        }
        _ => said.to_string(),
    }
}

fn connect_verdict(error: &PostgresError) -> Verdict {
    match error.kind() {
        // A password, pg_hba.conf, a database that isn't there, our certificate.
        ConnectionErrorKind::Refused => Verdict::Fatal,
        ConnectionErrorKind::Credentials | ConnectionErrorKind::Full | ConnectionErrorKind::Unreachable => {
            Verdict::Retry
        }
        ConnectionErrorKind::Other => match error {
            // No TLS there, a certificate that isn't trusted, something that isn't Postgres.
            PostgresError::NoTls { .. } | PostgresError::Tls { .. } | PostgresError::NotPostgres { .. } => {
                Verdict::Fatal
            }
            _ => Verdict::Retry,
        },
    }
}

fn server_verdict(doing: Doing, sqlstate: &str) -> Verdict {
    match (sqlstate, doing) {
        // insufficient_privilege, invalid_authorization, invalid_catalog_name
        ("42501" | "28000" | "28P01" | "3D000", _) => Verdict::Fatal,
        // object_not_in_prerequisite_state: the log level where a slot is made, an invalidated slot where one is used.
        ("55000", Doing::CreatingSlot) => Verdict::Fatal,
        ("55000", Doing::Starting | Doing::Streaming) => Verdict::DropSlot,
        // configuration_limit_exceeded: no slot left.
        ("53400", Doing::CreatingSlot) => Verdict::Fatal,
        // undefined_object: the publication isn't there in the history that is decoded, and never will be.
        ("42704", Doing::Streaming) => Verdict::DropSlot,
        // undefined_file: the log that the slot needs was removed.
        ("58P01", Doing::Starting | Doing::Streaming) => Verdict::DropSlot,
        // Everything else, such as a slot in use (55006), no room (53300), an end of the server (57P01 to 57P03).
        _ => Verdict::Retry,
    }
}

fn advice(doing: Doing, sqlstate: &str) -> &'static str {
    match (sqlstate, doing) {
        ("42501", Doing::Publishing) => {
            ": grant CREATE on the database, or make the publication yourself (manual publication)"
        }
        ("42501", _) => ": the user lacks a right: it needs REPLICATION, and SELECT on the tables",
        ("55000", Doing::CreatingSlot) => ": wal_level must be logical",
        ("55000", Doing::Starting | Doing::Streaming) => {
            ": the slot has lost its log, so everything starts over"
        }
        ("53400", Doing::CreatingSlot) => ": raise max_replication_slots, or drop slots that nobody uses",
        ("53300", _) => ": raise max_connections or max_wal_senders, or have fewer clients",
        ("55006", _) => ": the slot is in use by another connection; it is tried again",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sqlstate_means_another_thing_elsewhere() {
        assert_eq!(server_verdict(Doing::CreatingSlot, "55000"), Verdict::Fatal);
        assert_eq!(server_verdict(Doing::Starting, "55000"), Verdict::DropSlot);
        assert_eq!(server_verdict(Doing::Starting, "42704"), Verdict::Retry);
        assert_eq!(server_verdict(Doing::Streaming, "42704"), Verdict::DropSlot);
    }

    #[test]
    fn words_that_quote_values_are_left_to_the_servers_log() {
        let fields: [(u8, &[u8]); 2] =
            [(b'C', b"22P02"), (b'M', b"invalid input syntax for type integer: \"secret\"")];
        let failure =
            Failure::Server { doing: Doing::Streaming, said: PostgresServerError::from_fields(fields) };
        assert!(
            !failure.to_string().contains("secret") && failure.to_string().contains("22P02"),
            "{failure}"
        );
    }

    #[test]
    fn what_nobody_has_thought_of_is_tried_again() {
        assert_eq!(server_verdict(Doing::Streaming, "XX000"), Verdict::Retry);
        assert_eq!(server_verdict(Doing::Locking, "57P01"), Verdict::Retry);
    }
}
