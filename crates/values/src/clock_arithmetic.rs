//! Date and time arithmetic: `+` and `-` of dates, times and intervals (date.c, timestamp.c), and
//! time zones.

use crate::arithmetic::Arithmetic;
use crate::calendar::{Day, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::datetime::{Date, Time, Timestamp, Timetz};
use crate::eval_error::EvalError;
use crate::interval::Interval;
use crate::sql_value::SqlValue;

/// Direction in which a date or a time is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shift {
    Later,
    Earlier,
}

pub(crate) fn apply<'v>(
    arithmetic: Arithmetic,
    left: SqlValue<'v>,
    right: SqlValue<'v>,
) -> Result<SqlValue<'v>, EvalError> {
    let shift = if arithmetic == Arithmetic::Subtract { Shift::Earlier } else { Shift::Later };
    Ok(match (left, right) {
        (SqlValue::Date(date), SqlValue::Int(days)) => {
            SqlValue::Date(plus_days(date, if shift == Shift::Earlier { -days } else { days })?)
        }
        (SqlValue::Int(days), SqlValue::Date(date)) => SqlValue::Date(plus_days(date, days)?),
        (SqlValue::Date(left), SqlValue::Date(right)) => {
            if !left.is_finite() || !right.is_finite() {
                return Err(EvalError::new("22008", "cannot subtract infinite dates"));
            }
            SqlValue::Int(i64::from(left.0) - i64::from(right.0))
        }
        (SqlValue::Date(date), SqlValue::Interval(interval)) => {
            SqlValue::Timestamp(plus(midnight(date)?, interval, shift)?)
        }
        (SqlValue::Interval(interval), SqlValue::Date(date)) => {
            SqlValue::Timestamp(plus(midnight(date)?, interval, Shift::Later)?)
        }
        (SqlValue::Date(date), SqlValue::Time(time)) | (SqlValue::Time(time), SqlValue::Date(date)) => {
            SqlValue::Timestamp(at_time(date, time.0, "timestamp")?)
        }
        (SqlValue::Date(date), SqlValue::Timetz(time)) | (SqlValue::Timetz(time), SqlValue::Date(date)) => {
            let micros = time.micros + i64::from(time.west) * MICROS_PER_SECOND;
            SqlValue::Timestamp(at_time(date, micros, "timestamp")?)
        }
        (SqlValue::Time(left), SqlValue::Time(right)) => {
            SqlValue::Interval(Interval { months: 0, days: 0, micros: left.0 - right.0 })
        }
        (SqlValue::Time(time), SqlValue::Interval(interval)) => {
            SqlValue::Time(Time(around(time.0, interval.micros, shift)))
        }
        (SqlValue::Interval(interval), SqlValue::Time(time)) => {
            SqlValue::Time(Time(around(time.0, interval.micros, Shift::Later)))
        }
        (SqlValue::Timetz(time), SqlValue::Interval(interval)) => {
            SqlValue::Timetz(Timetz { micros: around(time.micros, interval.micros, shift), ..time })
        }
        (SqlValue::Interval(interval), SqlValue::Timetz(time)) => {
            SqlValue::Timetz(Timetz { micros: around(time.micros, interval.micros, Shift::Later), ..time })
        }
        (SqlValue::Timestamp(moment), SqlValue::Interval(interval)) => {
            SqlValue::Timestamp(plus(moment, interval, shift)?)
        }
        (SqlValue::Interval(interval), SqlValue::Timestamp(moment)) => {
            SqlValue::Timestamp(plus(moment, interval, Shift::Later)?)
        }
        (SqlValue::Timestamp(left), SqlValue::Timestamp(right)) => SqlValue::Interval(between(left, right)?),
        (SqlValue::Interval(left), SqlValue::Interval(right)) => {
            SqlValue::Interval(left.plus(if shift == Shift::Earlier { right.negated()? } else { right })?)
        }
        (left, right) => unreachable!("no operator for {left:?} and {right:?}"),
    })
}

/// Returns midnight of a date. Fails if the date is beyond the range of timestamps.
pub(crate) fn midnight(date: Date) -> Result<Timestamp, EvalError> {
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

/// Adds to a time of day, or subtracts from it, modulo 24 hours.
fn around(time: i64, micros: i64, shift: Shift) -> i64 {
    let moved = match shift {
        Shift::Later => time.wrapping_add(micros),
        Shift::Earlier => time.wrapping_sub(micros),
    };
    moved.rem_euclid(MICROS_PER_DAY)
}

/// Adds or subtracts an interval: first its months, then its days, then its time.
fn plus(moment: Timestamp, interval: Interval, shift: Shift) -> Result<Timestamp, EvalError> {
    if !moment.is_finite() {
        return Ok(moment);
    }
    // Versions differ: an overflowed value before 17, an error since 17.
    let unsure = |_| EvalError::new("0A000", "interval too long to subtract");
    let interval = match shift {
        Shift::Later => interval,
        Shift::Earlier => interval.negated().map_err(unsure)?,
    };
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
    // Versions differ: an error before 17, possibly an infinite interval since 17.
    if !left.is_finite() || !right.is_finite() {
        return Err(EvalError::new("0A000", "cannot subtract infinite timestamps"));
    }
    // Versions differ: an overflowed value before 17, an error since 17.
    match left.0.checked_sub(right.0) {
        Some(micros) => Interval { months: 0, days: 0, micros }.justify_hours(),
        None => Err(EvalError::new("0A000", "timestamps too far apart to subtract")),
    }
}

impl Timestamp {
    /// Adds microseconds, unless the timestamp is infinite.
    ///
    /// # Errors
    /// Fails if the result is out of range.
    pub fn shifted(self, micros: i64) -> Result<Self, EvalError> {
        if !self.is_finite() {
            return Ok(self);
        }
        Timestamp::checked(i128::from(self.0) + i128::from(micros)).ok_or_else(out_of_range)
    }
}

impl Timetz {
    /// Returns the same time in the zone this many seconds west of Greenwich.
    pub fn in_zone(self, west: i32) -> Self {
        let moved = (i64::from(self.west) - i64::from(west)) * MICROS_PER_SECOND;
        Timetz { micros: around(self.micros, moved, Shift::Later), west }
    }
}
