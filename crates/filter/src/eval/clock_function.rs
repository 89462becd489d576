//! Functions of dates, times and intervals that a clause calls by name.

use forebay_values::{Date, EvalError, SqlValue, Time, Timestamp};

use super::EvalResult;
use super::function::Arguments;

/// A function of dates, times and intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClockFunction {
    /// age() of two timestamps.
    Age,
    /// date_bin().
    Bin,
    IsFinite,
    MakeDate,
    MakeTime,
    MakeTimestamp,
    /// extract(): the part as numeric.
    Part,
    /// date_part(): the part as float8.
    PartAsFloat,
    /// date_trunc().
    Truncate,
    /// date_trunc() in a zone this many seconds east of Greenwich.
    TruncateInZone(i64),
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
            ClockFunction::MakeTime => Ok(Some(SqlValue::Time(time(arguments)?))),
            ClockFunction::MakeTimestamp => {
                let (year, month, day) = (arguments.int(), arguments.int(), arguments.int());
                let moment = Timestamp::from_fields(year, month, day, time(arguments)?)?;
                Ok(Some(SqlValue::Timestamp(moment)))
            }
            ClockFunction::Age => {
                let (left, right) = (moment(arguments), moment(arguments));
                Ok(Some(SqlValue::Interval(left.age(right)?)))
            }
            ClockFunction::Bin => {
                let (length, value, origin) = (arguments.interval(), moment(arguments), moment(arguments));
                Ok(Some(SqlValue::Timestamp(value.binned(length, origin)?)))
            }
            ClockFunction::TruncateInZone(east) => {
                let (name, value) = (arguments.text(), arguments.value());
                value.truncated_in_zone(&name, east).map(Some)
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

/// Takes an hour, a minute and seconds.
fn time(arguments: &mut Arguments<'_>) -> Result<Time, EvalError> {
    let (hour, minute) = (arguments.int(), arguments.int());
    match arguments.value() {
        SqlValue::Float8(seconds) => Time::from_fields(hour, minute, seconds),
        other => unreachable!("it is a float8 by type: {other:?}"),
    }
}

fn moment(arguments: &mut Arguments<'_>) -> Timestamp {
    match arguments.value() {
        SqlValue::Timestamp(moment) => moment,
        other => unreachable!("it is a timestamp by type: {other:?}"),
    }
}
