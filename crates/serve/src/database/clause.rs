//! What Postgres itself says of a where clause.
//!
//! Invariant: a clause that is validated is read and never run; and the words of an error that may hold a row's values aren't shown.

use std::fmt;

use forebay_replication::TableName;
use forebay_replication::reservoir::tokio_postgres::error::{DbError, ErrorPosition, SqlState};
use forebay_replication::reservoir::tokio_postgres::{self, Client};

use super::words;

/// Before the clause, as places are counted.
const PREFIX: &str = "SELECT 1 WHERE ";

/// Postgres doesn't accept a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ClauseRejection {
    /// Postgres' code.
    pub sqlstate: String,
    /// Postgres' words. If the clause failed on a row, they may hold its values, and are for neither clients nor logs.
    pub message: String,
    /// The character in `SELECT 1 WHERE …`, from 0, if Postgres named one in the clause.
    pub location: Option<usize>,
    /// Whether it was a row that the clause failed on.
    pub is_about_rows: bool,
}

impl fmt::Display for ClauseRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClauseRejection { sqlstate, message, location, is_about_rows } = self;
        match location {
            _ if *is_about_rows => write!(f, "the where clause fails on a row of the table ({sqlstate})"),
            Some(location) if sqlstate == SqlState::SYNTAX_ERROR.code() => {
                write!(f, "At location {location}: {message}")
            }
            _ => f.write_str(message),
        }
    }
}

/// Why a clause isn't known to be one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateError {
    /// It is none.
    #[error("{0}")]
    Refused(ClauseRejection),
    /// There is no such table.
    #[error("there is no table {table}")]
    NotFound {
        /// Its name.
        table: TableName,
    },
    /// The database can't be asked.
    #[error("{}", words(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// Has Postgres read a clause, and check names and types. One round trip; nothing is run.
///
/// It takes types for `$1` from where it stands, and knows no values: a clause with parameters should come with the values in
/// their places (`Filter::canonical`). That it is nothing but a clause (no `ORDER BY` behind it) is for the filter to see.
///
/// # Errors
/// When it isn't a clause for this table, or nobody answers.
pub async fn validate(client: &Client, table: &TableName, clause: &str) -> Result<(), ValidateError> {
    if clause.contains('\0') {
        return Err(ValidateError::Refused(ClauseRejection {
            sqlstate: SqlState::CHARACTER_NOT_IN_REPERTOIRE.code().to_owned(),
            message: "invalid byte sequence for encoding \"UTF8\": 0x00".to_owned(),
            location: None,
            is_about_rows: false,
        }));
    }
    let before = format!("SELECT 1 FROM ONLY {table} WHERE ");
    let Err(error) = client.prepare(&format!("{before}{clause}")).await else { return Ok(()) };
    let Some(said) = error.as_db_error() else { return Err(ValidateError::Database(error)) };
    let refusal = ClauseRejection::new(said, &before, clause, false);
    Err(match said.code() {
        // A clause may name a table that isn't there, too.
        code if is_gone(code) && refusal.location.is_none() => {
            ValidateError::NotFound { table: table.clone() }
        }
        code if is_about_clauses(code) || is_about_values(code) => ValidateError::Refused(refusal),
        _ => ValidateError::Database(error),
    })
}

/// Whether a statement was about a table that isn't there.
pub(super) fn is_gone(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME].contains(code)
}

/// Whether a statement is wrong, whatever the rows are: its syntax, names and types, what isn't supported, what is too much.
pub(super) fn is_about_clauses(code: &SqlState) -> bool {
    ["42", "0A", "54"].iter().any(|class| code.code().starts_with(class))
        && *code != SqlState::INSUFFICIENT_PRIVILEGE
}

/// Whether a value can't be read or computed: a constant's or a row's.
pub(super) fn is_about_values(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

impl ClauseRejection {
    /// `before`: what stood before the clause in the statement.
    pub(super) fn new(said: &DbError, before: &str, clause: &str, is_about_rows: bool) -> Self {
        let position = match said.position() {
            Some(ErrorPosition::Original(position)) => Some(*position as usize),
            // In the body of a function.
            Some(ErrorPosition::Internal { .. }) | None => None,
        };
        ClauseRejection {
            sqlstate: said.code().code().to_owned(),
            message: said.message().to_owned(),
            location: position.and_then(|position| location(position, before, clause)),
            is_about_rows,
        }
    }
}

/// From a character in a statement, from 1, to one in `SELECT 1 WHERE …`, from 0, as libpg_query
/// counts. The end of the clause is a place, too.
fn location(position: usize, before: &str, clause: &str) -> Option<usize> {
    let in_clause = position.checked_sub(before.chars().count())?;
    (1..=clause.chars().count() + 1).contains(&in_clause).then_some(PREFIX.len() + in_clause - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_statement_is_one_in_the_clause_or_none() {
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
    fn only_syntax_errors_begin_with_their_place_and_values_of_rows_are_not_shown() {
        let refusal = |sqlstate: &str, is_about_rows| ClauseRejection {
            sqlstate: sqlstate.to_owned(),
            message: "no \"x\"".to_owned(),
            location: Some(17),
            is_about_rows,
        };
        assert_eq!(refusal("42601", false).to_string(), "At location 17: no \"x\"");
        assert_eq!(refusal("42703", false).to_string(), "no \"x\"");
        assert_eq!(
            refusal("22P02", true).to_string(),
            "the where clause fails on a row of the table (22P02)"
        );
    }
}
