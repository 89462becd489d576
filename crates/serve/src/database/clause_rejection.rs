//! Clause rejection: why Postgres rejects a where clause.
//!
//! Invariant: validation never runs a clause. A message that may contain a row's values isn't
//! shown.

use std::fmt;

use forebay_replication::TableName;
use forebay_replication::reservoir::tokio_postgres::error::{DbError, ErrorPosition, SqlState};
use forebay_replication::reservoir::tokio_postgres::{self, Client};

use super::server_message;

/// Text before the clause in the statement that locations refer to.
const PREFIX: &str = "SELECT 1 WHERE ";

/// Postgres rejects a clause, or the clause fails on a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ClauseRejection {
    /// The SQLSTATE.
    pub sqlstate: String,
    /// Postgres' message. If the clause failed on a row, it may contain the row's values, and must
    /// not reach clients or logs.
    pub message: String,
    /// Index of a character in `SELECT 1 WHERE …`, from 0, if Postgres returned one in the clause.
    pub location: Option<usize>,
    /// Whether the clause failed on a row.
    pub is_row_error: bool,
}

impl fmt::Display for ClauseRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClauseRejection { sqlstate, message, location, is_row_error } = self;
        match location {
            _ if *is_row_error => write!(f, "the where clause fails on a row of the table ({sqlstate})"),
            Some(location) if sqlstate == SqlState::SYNTAX_ERROR.code() => {
                write!(f, "At location {location}: {message}")
            }
            _ => f.write_str(message),
        }
    }
}

/// Why a clause couldn't be validated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// Postgres rejects it.
    #[error("{0}")]
    Refused(ClauseRejection),
    /// There is no such table.
    #[error("there is no table {table}")]
    NotFound {
        /// Its name.
        table: TableName,
    },
    /// The query failed.
    #[error("{}", server_message(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// Has Postgres parse a clause and check its names and types. One round trip; nothing is run.
///
/// Postgres infers the type of `$1` from its context, without a value. So parameters should
/// be replaced by their values first (`Filter::canonical`). The filter checks that the text is only
/// a clause, without an `ORDER BY` after it.
///
/// # Errors
/// Fails if the clause doesn't fit the table, or the query fails.
pub async fn validate_clause(client: &Client, table: &TableName, clause: &str) -> Result<(), ValidateError> {
    if clause.contains('\0') {
        return Err(ValidateError::Refused(ClauseRejection {
            sqlstate: SqlState::CHARACTER_NOT_IN_REPERTOIRE.code().to_owned(),
            message: "invalid byte sequence for encoding \"UTF8\": 0x00".to_owned(),
            location: None,
            is_row_error: false,
        }));
    }
    let before = format!("SELECT 1 FROM ONLY {table} WHERE ");
    let Err(error) = client.prepare(&format!("{before}{clause}")).await else { return Ok(()) };
    let Some(db_error) = error.as_db_error() else { return Err(ValidateError::Database(error)) };
    let rejection = ClauseRejection::new(db_error, &before, clause, false);
    Err(match db_error.code() {
        // Without a location in the clause: the clause itself may also use a missing table.
        code if is_missing_table(code) && rejection.location.is_none() => {
            ValidateError::NotFound { table: table.clone() }
        }
        code if is_clause_error(code) || is_value_error(code) => ValidateError::Refused(rejection),
        _ => ValidateError::Database(error),
    })
}

/// Returns whether a statement failed because its table doesn't exist.
pub(super) fn is_missing_table(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME].contains(code)
}

/// Returns whether a statement is invalid regardless of rows: syntax, names, types, unsupported
/// features, program limits.
pub(super) fn is_clause_error(code: &SqlState) -> bool {
    ["42", "0A", "54"].iter().any(|class| code.code().starts_with(class))
        && *code != SqlState::INSUFFICIENT_PRIVILEGE
}

/// Returns whether a value can't be parsed or computed: of a constant or of a row.
pub(super) fn is_value_error(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

impl ClauseRejection {
    /// `before` is the text before the clause in the statement.
    pub(super) fn new(db_error: &DbError, before: &str, clause: &str, is_row_error: bool) -> Self {
        let position = match db_error.position() {
            Some(ErrorPosition::Original(position)) => Some(*position as usize),
            // `Internal` is a position in the body of a function.
            Some(ErrorPosition::Internal { .. }) | None => None,
        };
        ClauseRejection {
            sqlstate: db_error.code().code().to_owned(),
            message: db_error.message().to_owned(),
            location: position.and_then(|position| location(position, before, clause)),
            is_row_error,
        }
    }
}

/// Converts a character position in a statement, from 1, to an index in `SELECT 1 WHERE …`, from 0,
/// as libpg_query counts. The end of the clause is valid, too.
fn location(position: usize, before: &str, clause: &str) -> Option<usize> {
    let in_clause = position.checked_sub(before.chars().count())?;
    (1..=clause.chars().count() + 1).contains(&in_clause).then_some(PREFIX.len() + in_clause - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_in_a_statement_is_converted_to_a_location_in_the_clause_or_none() {
        let (before, clause) = ("SELECT 1 FROM \"é\" WHERE ", "é = 1");
        let start = before.chars().count();
        assert_eq!(location(start, before, clause), None);
        assert_eq!(location(start + 1, before, clause), Some(15));
        assert_eq!(location(start + 5, before, clause), Some(19));
        assert_eq!(location(start + 6, before, clause), Some(20), "the end");
        assert_eq!(location(start + 7, before, clause), None);
        assert_eq!(location(0, before, clause), None);
    }

    #[test]
    fn only_syntax_errors_begin_with_their_location_and_values_of_rows_are_not_shown() {
        let rejection = |sqlstate: &str, is_row_error| ClauseRejection {
            sqlstate: sqlstate.to_owned(),
            message: "no \"x\"".to_owned(),
            location: Some(17),
            is_row_error,
        };
        assert_eq!(rejection("42601", false).to_string(), "At location 17: no \"x\"");
        assert_eq!(rejection("42703", false).to_string(), "no \"x\"");
        assert_eq!(
            rejection("22P02", true).to_string(),
            "the where clause fails on a row of the table (22P02)"
        );
    }
}
