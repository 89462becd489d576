//! Why an operation on values fails: Postgres' SQLSTATE and message.

use std::borrow::Cow;

use thiserror::Error;

use crate::input_error::CURRENT_TIME;

/// Why an operation on values fails: the error that Postgres reports for the same values.
///
/// The text never holds values, and may be logged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct EvalError {
    sqlstate: &'static str,
    message: Cow<'static, str>,
}

impl EvalError {
    /// Returns an error with Postgres' SQLSTATE and message. The message must not hold values.
    pub fn new(sqlstate: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        EvalError { sqlstate, message: message.into() }
    }

    /// Returns the error of a number that is out of the range of its type, such as `integer`.
    pub fn out_of_range(type_name: &str) -> Self {
        EvalError::new("22003", format!("{type_name} out of range"))
    }

    pub(crate) fn division_by_zero() -> Self {
        EvalError::new("22012", "division by zero")
    }

    /// Returns whether Postgres may have a result, which this crate can't determine.
    pub fn is_undecided(&self) -> bool {
        self.sqlstate == "0A000"
    }

    /// Returns whether a text means the current time, such as `today`. Postgres has a result, which
    /// changes without a change of the row.
    pub fn depends_on_clock(&self) -> bool {
        self.is_undecided() && self.message.starts_with(CURRENT_TIME)
    }

    /// Returns Postgres' SQLSTATE, such as `22012` for a division by zero. `0A000`: Postgres has a
    /// result, but it differs between versions or collation providers.
    pub fn sqlstate(&self) -> &'static str {
        self.sqlstate
    }
}
