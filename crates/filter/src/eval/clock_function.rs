//! Functions of dates, times and intervals that a clause calls by name.

use forebay_values::{Date, SqlValue};

use super::EvalResult;
use super::function::Arguments;

/// A function of dates, times and intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClockFunction {
    IsFinite,
    MakeDate,
    /// extract(): the part as numeric.
    Part,
    /// date_part(): the part as float8.
    PartAsFloat,
    /// date_trunc().
    Truncate,
}

impl ClockFunction {
    pub(super) fn apply<'v>(self, arguments: &mut Arguments<'v>) -> EvalResult<'v> {
        match self {
            ClockFunction::IsFinite => Ok(Some(SqlValue::Bool(match arguments.value() {
                SqlValue::Date(date) => date.is_finite(),
                SqlValue::Timestamp(moment) => moment.is_finite(),
                _ => true,
            }))),
            ClockFunction::MakeDate => {
                let (year, month, day) = (arguments.int(), arguments.int(), arguments.int());
                Ok(Some(SqlValue::Date(Date::from_fields(year, month, day)?)))
            }
            ClockFunction::Truncate => {
                let (name, value) = (arguments.text(), arguments.value());
                value.truncated_to(&name).map(Some)
            }
            ClockFunction::Part | ClockFunction::PartAsFloat => {
                let (name, value) = (arguments.text(), arguments.value());
                value.clock_part(&name, self == ClockFunction::PartAsFloat)
            }
        }
    }
}
