//! Why a where clause is refused, and why a row can't be judged.

use std::borrow::Cow;

use thiserror::Error;

/// What stands before the clause where Postgres reads it; places are counted from its beginning.
pub(crate) const PREFIX: &str = "SELECT 1 WHERE ";

/// Why a where clause is refused. Its text may be shown to whoever wrote the clause.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// Longer than we read.
    #[error("the where clause has {bytes} bytes, more than the {limit} allowed")]
    TooLong {
        /// The length.
        bytes: usize,
        /// The longest that is read.
        limit: usize,
    },
    /// Nested deeper than we follow.
    #[error("the where clause is nested more than {limit} levels deep")]
    TooDeep {
        /// The deepest that is followed.
        limit: usize,
    },
    /// Not SQL, in Postgres' words.
    #[error("At location {location}: {message}")]
    Syntax {
        /// The character in `SELECT 1 WHERE …`, from 0, as libpg_query counts.
        location: usize,
        /// Such as `syntax error at or near "x"`.
        message: String,
    },
    /// SQL that Postgres refuses, in its words.
    #[error("{message}")]
    Invalid {
        /// Postgres' code for it.
        sqlstate: &'static str,
        /// Such as `column "x" does not exist`.
        message: String,
        /// The character in `SELECT 1 WHERE …`, from 0, as libpg_query counts.
        location: usize,
    },
    /// SQL that Postgres may well accept, and that this filter can't judge exactly as Postgres does.
    #[error("{what} not supported in where clauses")]
    Unsupported {
        /// Names the construct: `the type jsonb is`, `subqueries are`.
        what: String,
        /// The character in `SELECT 1 WHERE …`, from 0, as libpg_query counts.
        location: usize,
    },
    /// A `$n` without a value.
    #[error("there is no value for parameter ${number}")]
    NoParameter {
        /// Its number.
        number: usize,
    },
}

impl FilterError {
    /// Postgres' code for it; `0A000` for what only we don't do.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            FilterError::TooLong { .. } | FilterError::TooDeep { .. } => "54001",
            FilterError::Syntax { .. } => "42601",
            FilterError::Invalid { sqlstate, .. } => sqlstate,
            FilterError::Unsupported { .. } => "0A000",
            FilterError::NoParameter { .. } => "42P02",
        }
    }

    pub(crate) fn syntax(text: &str, at: usize, message: String) -> Self {
        FilterError::Syntax { location: location(text, at), message }
    }

    pub(crate) fn invalid(text: &str, at: usize, sqlstate: &'static str, message: String) -> Self {
        FilterError::Invalid { sqlstate, message, location: location(text, at) }
    }

    /// `what` is a plural: `subqueries`.
    pub(crate) fn unsupported(text: &str, at: usize, what: &str) -> Self {
        FilterError::Unsupported { what: format!("{what} are"), location: location(text, at) }
    }
}

/// As libpg_query counts: characters, from 0.
pub(crate) fn location(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    PREFIX.len() + before.chars().count()
}

/// Why a row can't be judged: what Postgres would say of the same row.
///
/// It never holds what the row holds, and may be logged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct EvalError {
    sqlstate: &'static str,
    message: Cow<'static, str>,
}

impl EvalError {
    pub(crate) fn new(sqlstate: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        EvalError { sqlstate, message: message.into() }
    }

    pub(crate) fn out_of_range(what: &str) -> Self {
        EvalError::new("22003", format!("{what} out of range"))
    }

    pub(crate) fn division_by_zero() -> Self {
        EvalError::new("22012", "division by zero")
    }

    /// Postgres' code: `22012` for a division by zero. `0A000` where Postgres has an answer, and we can't be sure of it.
    pub fn sqlstate(&self) -> &'static str {
        self.sqlstate
    }
}
