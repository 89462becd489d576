//! Snapshot errors: why a snapshot failed, and whether its connection can be used again.

use std::error::Error;
use std::time::Duration;

use forebay_replication::TableName;
use forebay_replication::reservoir::tokio_postgres;
use forebay_replication::reservoir::tokio_postgres::error::{DbError, Severity, SqlState};
use forebay_shapes::encode::CopyError;

use super::clause_rejection::{ClauseRejection, is_clause_error, is_missing_table, is_value_error};
use super::describe::DescribeError;
use super::server_message;

/// Why a snapshot failed. `E` is the error of the sink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError<E: Error + 'static> {
    /// Postgres rejects the clause, or the clause fails on a row.
    #[error("{0}")]
    Refused(ClauseRejection),
    /// The table doesn't exist.
    #[error("there is no table {table}")]
    NotFound {
        /// Its name.
        table: TableName,
    },
    /// The table was altered since its description.
    #[error("{table} was changed: describe it again")]
    Changed {
        /// Its name.
        table: TableName,
    },
    /// The role may not read all rows of the table.
    #[error("{table} can't be read: {message}")]
    NoPermission {
        /// Its name.
        table: TableName,
        /// Postgres' message, or the statement that grants the privilege.
        message: String,
    },
    /// The server cancelled the statement: by a timeout, or by `pg_cancel_backend`.
    #[error("the server stopped the snapshot: {}", server_message(.0))]
    Cancelled(#[source] tokio_postgres::Error),
    /// A statement exceeded the timeout of the query.
    #[error("Postgres took longer than the {} ms that it may (statement_timeout)", .limit.as_millis())]
    TimedOut {
        /// The timeout.
        limit: Duration,
    },
    /// The connection was lost.
    #[error("the connection was lost: {}", server_message(.0))]
    Lost(#[source] tokio_postgres::Error),
    /// The server returned another error.
    #[error("{}", server_message(.0))]
    Database(#[source] tokio_postgres::Error),
    /// The data isn't in COPY's format.
    #[error("the server sent {0}")]
    Malformed(#[from] CopyError),
    /// The reply has no snapshot or no WAL position.
    #[error("the server didn't say which transactions the snapshot sees")]
    NoSnapshot,
    /// The sink failed.
    #[error("{0}")]
    Sink(#[source] E),
}

/// The statement that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatementContext<'a> {
    pub(super) table: &'a TableName,
    /// The text before the clause, and the clause. `None`: the statement has no clause.
    pub(super) clause: Option<(&'a str, &'a str)>,
    /// The statement_timeout that was set for it.
    pub(super) timeout: Option<Duration>,
    pub(super) stage: ClauseStage,
}

/// How far Postgres has processed the clause. It decides what an error can be caused by.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClauseStage {
    /// Postgres analyses the clause, and reads no row.
    Analysing,
    /// Postgres has accepted the clause: any error is caused by a row.
    Analysed,
    /// Postgres analyses the clause and reads rows in one statement.
    Unanalysed,
}

impl ClauseStage {
    /// Returns whether an error's message may contain a row's values.
    fn is_row_error(self, code: &SqlState) -> bool {
        match self {
            ClauseStage::Analysing => false,
            ClauseStage::Analysed => true,
            ClauseStage::Unanalysed => is_value_error(code),
        }
    }
}

impl<E: Error> SnapshotError<E> {
    /// Returns whether the same snapshot may succeed later. A rejected clause, a missing table or a
    /// missing privilege lasts until a person acts, and an altered table must be described again.
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

    /// Returns whether the server has nothing more to send, so that the session is usable after a
    /// ROLLBACK.
    pub(super) fn leaves_session_usable(&self) -> bool {
        match self {
            SnapshotError::Refused(_)
            | SnapshotError::NotFound { .. }
            | SnapshotError::Changed { .. }
            | SnapshotError::NoPermission { .. }
            | SnapshotError::Cancelled(_)
            | SnapshotError::TimedOut { .. }
            | SnapshotError::Database(_) => true,
            // Rows may still be in transit.
            SnapshotError::Lost(_)
            | SnapshotError::Malformed(_)
            | SnapshotError::NoSnapshot
            | SnapshotError::Sink(_) => false,
        }
    }

    pub(super) fn described(error: DescribeError, statement: StatementContext<'_>) -> Self {
        let table = statement.table.clone();
        match error {
            DescribeError::NotFound { .. } => SnapshotError::NotFound { table },
            DescribeError::NotATable { .. } | DescribeError::GeneratedKey { .. } => {
                SnapshotError::Changed { table }
            }
            DescribeError::NoPermission { remedy, .. } => {
                SnapshotError::NoPermission { table, message: remedy }
            }
            DescribeError::Database(error) => SnapshotError::database(error, statement),
        }
    }

    pub(super) fn database(error: tokio_postgres::Error, statement: StatementContext<'_>) -> Self {
        let Some(db_error) = error.as_db_error() else { return SnapshotError::Lost(error) };
        let table = statement.table.clone();
        if ends_connection(db_error) {
            return SnapshotError::Lost(error);
        }
        let code = db_error.code();
        if let (Some(limit), true) = (statement.timeout, *code == SqlState::QUERY_CANCELED) {
            return SnapshotError::TimedOut { limit };
        }
        match statement.clause {
            _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                SnapshotError::NoPermission { table, message: db_error.message().to_owned() }
            }
            _ if [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code) => {
                SnapshotError::Cancelled(error)
            }
            None if is_missing_table(code) => SnapshotError::NotFound { table },
            Some((before, clause)) if is_clause_error(code) || is_value_error(code) => {
                SnapshotError::Refused(ClauseRejection::new(
                    db_error,
                    before,
                    clause,
                    statement.stage.is_row_error(code),
                ))
            }
            None | Some(_) => SnapshotError::Database(error),
        }
    }
}

/// Returns whether the server closed the connection with this error.
fn ends_connection(db_error: &DbError) -> bool {
    match db_error.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        // Servers before 9.6 send only a localized severity.
        None => db_error.code().code().starts_with("57P"),
    }
}
