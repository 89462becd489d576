//! Why there is no snapshot.

use std::error::Error;
use std::time::Duration;

use forebay_replication::TableName;
use forebay_replication::reservoir::tokio_postgres;
use forebay_replication::reservoir::tokio_postgres::error::{DbError, Severity, SqlState};
use forebay_shapes::encode::CopyError;

use super::clause::{ClauseRejection, is_about_clauses, is_about_values, is_gone};
use super::describe::DescribeError;
use super::words;

/// Why there is no snapshot. `E` is what the sink fails with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError<E: Error + 'static> {
    /// Postgres doesn't accept the clause, or it fails on a row.
    #[error("{0}")]
    Refused(ClauseRejection),
    /// The table is gone.
    #[error("there is no table {table}")]
    NotFound {
        /// Its name.
        table: TableName,
    },
    /// The table isn't what was described.
    #[error("{table} was changed: describe it again")]
    Changed {
        /// Its name.
        table: TableName,
    },
    /// We may not read all of it.
    #[error("{table} can't be read: {said}")]
    NoPermission {
        /// Its name.
        table: TableName,
        /// Postgres' words, or what to do about it.
        said: String,
    },
    /// The server stopped it: a timeout, or somebody who cancelled it.
    #[error("the server stopped the snapshot: {}", words(.0))]
    Cancelled(#[source] tokio_postgres::Error),
    /// It took longer than it may.
    #[error("Postgres took longer than the {} ms that it may (statement_timeout)", .limit.as_millis())]
    TimedOut {
        /// How long it may take.
        limit: Duration,
    },
    /// The connection is gone.
    #[error("the connection was lost: {}", words(.0))]
    Lost(#[source] tokio_postgres::Error),
    /// The server failed at it.
    #[error("{}", words(.0))]
    Database(#[source] tokio_postgres::Error),
    /// What came wasn't what COPY writes.
    #[error("the server sent {0}")]
    Malformed(#[from] CopyError),
    /// What came wasn't a snapshot and a place in the log.
    #[error("the server didn't say which transactions the snapshot sees")]
    NoSnapshot,
    /// The rows couldn't be put away.
    #[error("{0}")]
    Sink(#[source] E),
}

/// What failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) table: &'a TableName,
    /// The clause, and what stood before it; none where no clause was read yet.
    pub(super) clause: Option<(&'a str, &'a str)>,
    /// The statement_timeout that was set for it.
    pub(super) timeout: Option<Duration>,
    pub(super) stage: Stage,
}

/// How much Postgres has said of the clause: it decides what an error may be about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// It reads the clause, and no row.
    Analysing,
    /// It has accepted the clause: whatever fails is a row.
    Analysed,
    /// It reads the clause and rows at once.
    Unanalysed,
}

impl Stage {
    /// Whether the words of an error may hold a row's values.
    fn is_about_rows(self, code: &SqlState) -> bool {
        match self {
            Stage::Analysing => false,
            Stage::Analysed => true,
            Stage::Unanalysed => is_about_values(code),
        }
    }
}

impl<E: Error> SnapshotError<E> {
    /// Whether the same snapshot may work later. A refused clause, a missing table or right stay so until somebody acts, and a changed
    /// table must be described again.
    pub fn is_temporary(&self) -> bool {
        match self {
            SnapshotError::Cancelled(_)
            | SnapshotError::TimedOut { .. }
            | SnapshotError::Lost(_)
            | SnapshotError::Database(_)
            | SnapshotError::Malformed(_)
            | SnapshotError::NoSnapshot => true,
            SnapshotError::Refused(_)
            | SnapshotError::NotFound { .. }
            | SnapshotError::Changed { .. }
            | SnapshotError::NoPermission { .. }
            | SnapshotError::Sink(_) => false,
        }
    }

    /// Whether the server has nothing more to send, so that the session can go on after a ROLLBACK.
    pub(super) fn leaves_the_session(&self) -> bool {
        match self {
            SnapshotError::Refused(_)
            | SnapshotError::NotFound { .. }
            | SnapshotError::Changed { .. }
            | SnapshotError::NoPermission { .. }
            | SnapshotError::Cancelled(_)
            | SnapshotError::TimedOut { .. }
            | SnapshotError::Database(_) => true,
            // In the middle of the rows.
            SnapshotError::Lost(_)
            | SnapshotError::Malformed(_)
            | SnapshotError::NoSnapshot
            | SnapshotError::Sink(_) => false,
        }
    }

    pub(super) fn described(error: DescribeError, attempt: Attempt<'_>) -> Self {
        let table = attempt.table.clone();
        match error {
            DescribeError::NotFound { .. } => SnapshotError::NotFound { table },
            DescribeError::NotATable { .. } | DescribeError::GeneratedKey { .. } => {
                SnapshotError::Changed { table }
            }
            DescribeError::NoPermission { remedy, .. } => SnapshotError::NoPermission { table, said: remedy },
            DescribeError::Database(error) => SnapshotError::database(error, attempt),
        }
    }

    pub(super) fn database(error: tokio_postgres::Error, attempt: Attempt<'_>) -> Self {
        let Some(said) = error.as_db_error() else { return SnapshotError::Lost(error) };
        let table = attempt.table.clone();
        if is_the_end(said) {
            return SnapshotError::Lost(error);
        }
        let code = said.code();
        if let (Some(limit), true) = (attempt.timeout, *code == SqlState::QUERY_CANCELED) {
            return SnapshotError::TimedOut { limit };
        }
        match attempt.clause {
            _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                SnapshotError::NoPermission { table, said: said.message().to_owned() }
            }
            _ if [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code) => {
                SnapshotError::Cancelled(error)
            }
            None if is_gone(code) => SnapshotError::NotFound { table },
            Some((before, clause)) if is_about_clauses(code) || is_about_values(code) => {
                SnapshotError::Refused(ClauseRejection::new(
                    said,
                    before,
                    clause,
                    attempt.stage.is_about_rows(code),
                ))
            }
            None | Some(_) => SnapshotError::Database(error),
        }
    }
}

/// Whether the server has ended the connection with it.
fn is_the_end(said: &DbError) -> bool {
    match said.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        // Servers before 9.6 say it in their own language only.
        None => said.code().code().starts_with("57P"),
    }
}
