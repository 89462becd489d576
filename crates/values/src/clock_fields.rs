//! Dates and times from their fields: make_date, make_time, make_timestamp (date.c, timestamp.c).

use crate::calendar::{Day, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::datetime::{Date, Time, Timestamp};
use crate::eval_error::EvalError;

impl Date {
    /// Returns the date of a year, a month and a day, as make_date() does. A negative year is
    /// before Christ.
    ///
    /// # Errors
    /// Fails if there is no such day.
    pub fn from_fields(year: i64, month: i64, day: i64) -> Result<Self, EvalError> {
        let day = real_day(year, month, day)?;
        Date::checked(day.number()).ok_or_else(no_such_day)
    }
}

impl Time {
    /// Returns the time of an hour, a minute and seconds, as make_time() does.
    ///
    /// # Errors
    /// Fails if there is no such time. 24:00:00 is one.
    pub fn from_fields(hour: i64, minute: i64, seconds: f64) -> Result<Self, EvalError> {
        let out_of_range = || EvalError::new("22008", "time field value out of range");
        let micros = (seconds * MICROS_PER_SECOND as f64).round_ties_even();
        let minute_micros = (60 * MICROS_PER_SECOND) as f64;
        // NaN is in no range.
        let is_time = (0..=24).contains(&hour) && (0..60).contains(&minute);
        if !is_time || !(0.0..=minute_micros).contains(&micros) {
            return Err(out_of_range());
        }
        let total = (hour * 60 + minute) * 60 * MICROS_PER_SECOND + micros as i64;
        if total > MICROS_PER_DAY { Err(out_of_range()) } else { Ok(Time(total)) }
    }
}

impl Timestamp {
    /// Returns the timestamp of a year, a month, a day and a time, as make_timestamp() does. A
    /// negative year is before Christ.
    ///
    /// # Errors
    /// Fails if there is no such day, or if it is out of the range of timestamps.
    pub fn from_fields(year: i64, month: i64, day: i64, time: Time) -> Result<Self, EvalError> {
        let days = i128::from(real_day(year, month, day)?.number());
        let total = days * i128::from(MICROS_PER_DAY) + i128::from(time.0);
        Timestamp::checked(total).ok_or_else(|| EvalError::new("22008", "timestamp out of range"))
    }
}

fn real_day(year: i64, month: i64, day: i64) -> Result<Day, EvalError> {
    let day = Day { year: if year < 0 { year + 1 } else { year }, month, day };
    if year == 0 || !day.is_real() { Err(no_such_day()) } else { Ok(day) }
}

fn no_such_day() -> EvalError {
    EvalError::new("22008", "date field value out of range")
}
