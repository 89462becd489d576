//! `+` and `-` of dates, times and intervals (date.c, timestamp.c), and time zones.

use crate::error::EvalError;
use crate::typing::expr::Arithmetic;
use crate::value::Value;
use crate::value::calendar::{Day, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::value::clock::{Date, Time, Timestamp, Timetz};
use crate::value::interval::Interval;

pub(super) fn apply<'v>(
    arithmetic: Arithmetic,
    left: Value<'v>,
    right: Value<'v>,
) -> Result<Value<'v>, EvalError> {
    let minus = arithmetic == Arithmetic::Subtract;
    Ok(match (left, right) {
        (Value::Date(date), Value::Int(days)) => {
            Value::Date(plus_days(date, if minus { -days } else { days })?)
        }
        (Value::Int(days), Value::Date(date)) => Value::Date(plus_days(date, days)?),
        (Value::Date(left), Value::Date(right)) => {
            if !left.is_finite() || !right.is_finite() {
                return Err(EvalError::new("22008", "cannot subtract infinite dates"));
            }
            Value::Int(i64::from(left.0) - i64::from(right.0))
        }
        (Value::Date(date), Value::Interval(interval)) => {
            Value::Timestamp(plus(midnight(date)?, interval, minus)?)
        }
        (Value::Interval(interval), Value::Date(date)) => {
            Value::Timestamp(plus(midnight(date)?, interval, false)?)
        }
        (Value::Date(date), Value::Time(time)) | (Value::Time(time), Value::Date(date)) => {
            Value::Timestamp(at_time(date, time.0, "timestamp")?)
        }
        (Value::Date(date), Value::Timetz(time)) | (Value::Timetz(time), Value::Date(date)) => {
            let micros = time.micros + i64::from(time.west) * MICROS_PER_SECOND;
            Value::Timestamp(at_time(date, micros, "timestamp")?)
        }
        (Value::Time(left), Value::Time(right)) => {
            Value::Interval(Interval { months: 0, days: 0, micros: left.0 - right.0 })
        }
        (Value::Time(time), Value::Interval(interval)) => {
            Value::Time(Time(around(time.0, interval.micros, minus)))
        }
        (Value::Interval(interval), Value::Time(time)) => {
            Value::Time(Time(around(time.0, interval.micros, false)))
        }
        (Value::Timetz(time), Value::Interval(interval)) => {
            Value::Timetz(Timetz { micros: around(time.micros, interval.micros, minus), ..time })
        }
        (Value::Interval(interval), Value::Timetz(time)) => {
            Value::Timetz(Timetz { micros: around(time.micros, interval.micros, false), ..time })
        }
        (Value::Timestamp(moment), Value::Interval(interval)) => {
            Value::Timestamp(plus(moment, interval, minus)?)
        }
        (Value::Interval(interval), Value::Timestamp(moment)) => {
            Value::Timestamp(plus(moment, interval, false)?)
        }
        (Value::Timestamp(left), Value::Timestamp(right)) => Value::Interval(between(left, right)?),
        (Value::Interval(left), Value::Interval(right)) => {
            Value::Interval(left.add(if minus { right.negated()? } else { right })?)
        }
        (left, right) => unreachable!("no operator for {left:?} and {right:?}"),
    })
}

/// Midnight of a date; there are dates beyond all timestamps.
pub(super) fn midnight(date: Date) -> Result<Timestamp, EvalError> {
    match date.0 {
        i32::MIN => Ok(Timestamp(i64::MIN)),
        i32::MAX => Ok(Timestamp(i64::MAX)),
        days => Timestamp::checked(i128::from(days) * i128::from(MICROS_PER_DAY))
            .ok_or_else(|| EvalError::new("22008", "date out of range for timestamp")),
    }
}

fn out_of_range() -> EvalError {
    EvalError::new("22008", "timestamp out of range")
}

fn plus_days(date: Date, days: i64) -> Result<Date, EvalError> {
    if !date.is_finite() {
        return Ok(date);
    }
    Date::checked(i64::from(date.0) + days).ok_or_else(|| EvalError::new("22008", "date out of range"))
}

fn at_time(date: Date, micros: i64, what: &str) -> Result<Timestamp, EvalError> {
    let midnight = midnight(date)?;
    if !midnight.is_finite() {
        return Ok(midnight);
    }
    Timestamp::checked(i128::from(midnight.0) + i128::from(micros))
        .ok_or_else(|| EvalError::new("22008", format!("{what} out of range")))
}

/// A time goes round the clock.
fn around(time: i64, micros: i64, minus: bool) -> i64 {
    let moved = if minus { time.wrapping_sub(micros) } else { time.wrapping_add(micros) };
    moved.rem_euclid(MICROS_PER_DAY)
}

/// First the months, then the days, then the time.
fn plus(moment: Timestamp, interval: Interval, minus: bool) -> Result<Timestamp, EvalError> {
    if !moment.is_finite() {
        return Ok(moment);
    }
    // Again: garbage before 17, an error since.
    let unsure = |_| EvalError::new("0A000", "interval too long to subtract");
    let interval = if minus { interval.negated().map_err(unsure)? } else { interval };
    let mut moment = moment;
    if interval.months != 0 {
        let (days, micros) = moment.split();
        let day = Day::of_number(days).plus_months(interval.months.into());
        let total = i128::from(day.number()) * i128::from(MICROS_PER_DAY) + i128::from(micros);
        moment = Timestamp::checked(total).ok_or_else(out_of_range)?;
    }
    if interval.days != 0 {
        let days = i128::from(interval.days) * i128::from(MICROS_PER_DAY);
        moment = Timestamp::checked(i128::from(moment.0) + days).ok_or_else(out_of_range)?;
    }
    Timestamp::checked(i128::from(moment.0) + i128::from(interval.micros)).ok_or_else(out_of_range)
}

fn between(left: Timestamp, right: Timestamp) -> Result<Interval, EvalError> {
    // Versions differ: an error before 17, perhaps an infinite interval since.
    if !left.is_finite() || !right.is_finite() {
        return Err(EvalError::new("0A000", "cannot subtract infinite timestamps"));
    }
    // And here: garbage before 17, an error since.
    match left.0.checked_sub(right.0) {
        Some(micros) => Interval { months: 0, days: 0, micros }.justify_hours(),
        None => Err(EvalError::new("0A000", "timestamps too far apart to subtract")),
    }
}

pub(super) fn shift(value: Value<'_>, micros: i64) -> Result<Value<'_>, EvalError> {
    match value {
        Value::Timestamp(moment) if !moment.is_finite() => Ok(Value::Timestamp(moment)),
        Value::Timestamp(moment) => {
            let shifted = Timestamp::checked(i128::from(moment.0) + i128::from(micros));
            shifted.map(Value::Timestamp).ok_or_else(out_of_range)
        }
        other => unreachable!("it is a timestamp by type: {other:?}"),
    }
}

pub(super) fn move_zone(value: Value<'_>, west: i32) -> Value<'_> {
    match value {
        Value::Timetz(time) => {
            let moved = (i64::from(time.west) - i64::from(west)) * MICROS_PER_SECOND;
            Value::Timetz(Timetz { micros: around(time.micros, moved, false), west })
        }
        other => unreachable!("it is a time by type: {other:?}"),
    }
}
