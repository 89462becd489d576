//! Functions that a clause calls by name: their evaluation. `typing/call.rs` types the calls.
//!
//! Functions whose arguments may be NULL are expressions of their own in `typing/expr.rs`.

use std::borrow::Cow;

use super::{EvalResult, as_array, as_text};
use crate::error::EvalError;
use crate::value::interval::Interval;
use crate::value::letter_case::{Casing, LetterCase};
use crate::value::{SqlValue, like};

/// Function of one argument. NULL if the argument is NULL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum UnaryFunction {
    /// lower() and upper().
    Case(Casing, LetterCase),
    ArrayDimensions,
    JustifyHours,
    JustifyDays,
    JustifyInterval,
}

/// Function of two arguments. NULL if either argument is NULL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BinaryFunction {
    LikeEscape,
}

impl UnaryFunction {
    pub(super) fn apply(self, value: SqlValue<'_>) -> EvalResult<'_> {
        Ok(Some(match self {
            UnaryFunction::Case(casing, case) => SqlValue::Text(casing.apply(as_text(value), case)?),
            UnaryFunction::ArrayDimensions => {
                let dimensions = as_array(value).dimensions.len();
                return Ok((dimensions > 0).then_some(SqlValue::Int(dimensions as i64)));
            }
            UnaryFunction::JustifyHours => SqlValue::Interval(as_interval(value).justify_hours()?),
            UnaryFunction::JustifyDays => SqlValue::Interval(as_interval(value).justify_days()?),
            UnaryFunction::JustifyInterval => SqlValue::Interval(as_interval(value).justify()?),
        }))
    }
}

impl BinaryFunction {
    pub(super) fn apply<'v>(
        self,
        left: SqlValue<'v>,
        right: SqlValue<'v>,
    ) -> Result<SqlValue<'v>, EvalError> {
        Ok(match self {
            BinaryFunction::LikeEscape => {
                SqlValue::Text(Cow::Owned(like::with_escape(&as_text(left), &as_text(right))?))
            }
        })
    }
}

fn as_interval(value: SqlValue<'_>) -> Interval {
    match value {
        SqlValue::Interval(interval) => interval,
        other => unreachable!("it is an interval by type: {other:?}"),
    }
}
