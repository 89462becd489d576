//! Errors: why a where clause is refused.
//!
//! The texts are sent to clients and follow those of Postgres. They must not change.

use thiserror::Error;

/// The query in front of the clause. Locations count from its start, as in Electric.
pub(crate) const PREFIX: &str = "SELECT 1 WHERE ";

/// Why a where clause is refused. The text may be shown to the client that sent the clause.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// The clause is longer than allowed.
    #[error("the where clause has {bytes} bytes, more than the {limit} allowed")]
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The parameters of the clause are longer than allowed.
    #[error("the parameters of the where clause have {bytes} bytes, more than the {limit} allowed")]
    ParamsTooLong {
        /// Their length, in bytes. A parameter counts once for each use.
        bytes: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The clause is nested deeper than allowed.
    #[error("the where clause is nested more than {limit} levels deep")]
    TooDeep {
        /// Maximum depth.
        limit: usize,
    },
    /// A pattern of LIKE or an argument of a function is longer than allowed.
    #[error("a pattern or an argument of a function in the where clause has more than {limit} bytes")]
    LongOperand {
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// Operands of BETWEEN, IN or CASE, which are copied, are too large or nested too deep.
    #[error("the where clause repeats large operands of BETWEEN, IN or CASE: name them in fewer places")]
    TooManyCopies,
    /// The clause is not valid SQL syntax. The message is that of Postgres.
    #[error("At location {location}: {message}")]
    Syntax {
        /// Position in `SELECT 1 WHERE …`, in characters from 0, as libpg_query counts.
        location: usize,
        /// For example `syntax error at or near "x"`.
        message: String,
    },
    /// Postgres refuses the clause. The message is that of Postgres.
    #[error("{message}")]
    Invalid {
        /// Postgres' SQLSTATE.
        sqlstate: &'static str,
        /// For example `column "x" does not exist`.
        message: String,
        /// Position in `SELECT 1 WHERE …`, in characters from 0, as libpg_query counts.
        location: usize,
    },
    /// Postgres may accept the clause, but filters don't support it.
    #[error("{what} not supported in where clauses (at location {location}){}", nearest_note(*.nearest))]
    Unsupported {
        /// The construct, with its verb: `the type jsonb is`, `subqueries are`.
        what: String,
        /// Position in `SELECT 1 WHERE …`, in characters from 0, as libpg_query counts.
        location: usize,
        /// The nearest construct that is supported, if there is one: `LIKE`.
        nearest: Option<&'static str>,
    },
    /// Only Postgres can evaluate a condition, and the rules for such conditions refuse it.
    #[error("{message}")]
    Disallowed {
        /// What the condition uses.
        message: String,
    },
    /// A `$n` has no value.
    #[error("there is no value for parameter ${number}")]
    NoParameter {
        /// The parameter's number, from 1.
        number: usize,
    },
}

impl FilterError {
    /// Returns Postgres' SQLSTATE. `0A000`: supported by Postgres, not by filters.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            FilterError::TooLong { .. }
            | FilterError::ParamsTooLong { .. }
            | FilterError::TooDeep { .. }
            | FilterError::LongOperand { .. }
            | FilterError::TooManyCopies => "54001",
            FilterError::Syntax { .. } => "42601",
            FilterError::Invalid { sqlstate, .. } => sqlstate,
            FilterError::Unsupported { .. } | FilterError::Disallowed { .. } => "0A000",
            FilterError::NoParameter { .. } => "42P02",
        }
    }

    pub(crate) fn syntax(text: &str, at: usize, message: String) -> Self {
        FilterError::Syntax { location: location(text, at), message }
    }

    pub(crate) fn invalid(text: &str, at: usize, sqlstate: &'static str, message: String) -> Self {
        FilterError::Invalid { sqlstate, message, location: location(text, at) }
    }

    /// `what` includes the verb: `the type xml is`.
    pub(crate) fn unsupported_construct(text: &str, at: usize, what: String) -> Self {
        FilterError::Unsupported { what, location: location(text, at), nearest: None }
    }

    /// Adds the nearest supported construct.
    pub(crate) fn or_nearest(self, nearest: Option<&'static str>) -> Self {
        match self {
            FilterError::Unsupported { what, location, .. } => {
                FilterError::Unsupported { what, location, nearest }
            }
            other => other,
        }
    }

    /// `what` is a plural noun: `subqueries`.
    pub(crate) fn unsupported(text: &str, at: usize, what: &str) -> Self {
        FilterError::unsupported_construct(text, at, format!("{what} are"))
    }
}

fn nearest_note(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!("; the nearest supported is {nearest}")).unwrap_or_default()
}

/// Converts a byte position in the clause to a location: characters from 0, as libpg_query counts.
pub(crate) fn location(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or(text);
    PREFIX.len() + before.chars().count()
}
