//! Parts of dates, times and intervals: date_trunc, extract and date_part (timestamp.c, date.c).

use crate::calendar::{Day, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::clock_field::ClockField;
use crate::datetime::Timestamp;
use crate::eval_error::EvalError;
use crate::interval::Interval;
use crate::numeric::Numeric;
use crate::sql_value::SqlValue;

const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
const MICROS_PER_HOUR: i64 = 60 * MICROS_PER_MINUTE;
/// Microseconds from 1970-01-01 to 2000-01-01.
const UNIX_EPOCH_MICROS: i64 = 10_957 * MICROS_PER_DAY;

/// A part: a number of units of `10 ^ -decimals`.
struct ClockPart {
    number: i64,
    decimals: u32,
}

impl<'a> SqlValue<'a> {
    /// Returns a part of a date, a time or an interval, such as `year`; `None` is NULL.
    /// `as_float`: as date_part() does, else as extract() does.
    ///
    /// # Errors
    /// Fails if the type has no such part, or if versions of Postgres differ in it (`0A000`).
    ///
    /// # Panics
    /// Panics if the value is neither a date, a time nor an interval.
    pub fn clock_part(&self, name: &str, as_float: bool) -> Result<Option<SqlValue<'static>>, EvalError> {
        let field = field(name, self)?;
        let lacks_time = matches!(self, SqlValue::Date(_)) && !as_float;
        if lacks_time && time_part(field, 0).is_some() {
            return Err(unsupported(self));
        }
        if let Some(sign) = infinity(self) {
            return Ok(infinite_part(field, sign, as_float));
        }
        if let (SqlValue::Timetz(time), ClockField::Epoch, true) = (self, field, as_float) {
            // The zone is added to the rounded seconds.
            let seconds = time.micros as f64 / MICROS_PER_SECOND as f64;
            return Ok(Some(SqlValue::Float8(seconds + f64::from(time.west))));
        }
        let part = part(field, self, as_float)?;
        Ok(Some(if as_float { part.float() } else { part.numeric()? }))
    }

    /// Truncates a timestamp or an interval to a part, as date_trunc() does.
    ///
    /// # Errors
    /// Fails if the type has no such part, or if versions of Postgres differ in it (`0A000`).
    ///
    /// # Panics
    /// Panics if the value is neither a timestamp nor an interval.
    pub fn truncated_to(self, name: &str) -> Result<Self, EvalError> {
        self.truncated_in_zone(name, 0)
    }

    /// Truncates a timestamp to a part of its time in the zone this many seconds east of Greenwich.
    /// An interval has no zone.
    ///
    /// # Errors
    /// Fails if the type has no such part, or if versions of Postgres differ in it (`0A000`).
    ///
    /// # Panics
    /// Panics if the value is neither a timestamp nor an interval.
    pub fn truncated_in_zone(self, name: &str, east: i64) -> Result<Self, EvalError> {
        match (field(name, &self), infinity(&self)) {
            // Versions differ: some check the field of an infinite timestamp.
            (field, Some(_)) if !field.as_ref().is_ok_and(|field| field.truncates()) => {
                Err(unsupported(&self))
            }
            (field, _) => truncate(field?, self, east * MICROS_PER_SECOND),
        }
    }
}

impl ClockPart {
    fn whole(number: i64) -> Self {
        ClockPart { number, decimals: 0 }
    }

    fn float(&self) -> SqlValue<'static> {
        let unit = 10_i64.pow(self.decimals);
        // Seconds and milliseconds are summed from whole seconds and their fraction.
        SqlValue::Float8(match self.decimals {
            0 => self.number as f64,
            3 => {
                let (seconds, micros) = (self.number / MICROS_PER_SECOND, self.number % MICROS_PER_SECOND);
                seconds as f64 * 1000.0 + micros as f64 / 1000.0
            }
            _ => self.number as f64 / unit as f64,
        })
    }

    fn numeric(&self) -> Result<SqlValue<'static>, EvalError> {
        let unit = 10_i64.pow(self.decimals);
        let (sign, number) = (if self.number < 0 { "-" } else { "" }, self.number.unsigned_abs());
        let (whole, rest) = (number / unit as u64, number % unit as u64);
        let text = match self.decimals {
            0 => format!("{sign}{whole}"),
            decimals => format!("{sign}{whole}.{rest:0width$}", width = decimals as usize),
        };
        let numeric = Numeric::parse(&text).map_err(|_| EvalError::out_of_range("numeric"))?;
        Ok(SqlValue::numeric(numeric))
    }
}

fn field(name: &str, value: &SqlValue<'_>) -> Result<ClockField, EvalError> {
    let unknown = || EvalError::new("22023", format!("unit not recognized for type {}", kind(value)));
    ClockField::of(name).ok_or_else(unknown)
}

/// The error for a field that the type does not have, or that versions treat differently. Postgres
/// has the same code for the former.
fn unsupported(value: &SqlValue<'_>) -> EvalError {
    EvalError::new("0A000", format!("unit not supported for type {}", kind(value)))
}

fn kind(value: &SqlValue<'_>) -> &'static str {
    match value {
        SqlValue::Date(_) => "date",
        SqlValue::Time(_) => "time without time zone",
        SqlValue::Timetz(_) => "time with time zone",
        SqlValue::Interval(_) => "interval",
        _ => "timestamp",
    }
}

/// Returns the sign of an infinite date or timestamp.
fn infinity(value: &SqlValue<'_>) -> Option<i64> {
    match value {
        SqlValue::Date(date) if !date.is_finite() => Some(date.0.signum().into()),
        SqlValue::Timestamp(moment) if !moment.is_finite() => Some(moment.0.signum()),
        _ => None,
    }
}

/// Returns the part of an infinite value: infinite for fields that only grow, otherwise NULL.
fn infinite_part(field: ClockField, sign: i64, as_float: bool) -> Option<SqlValue<'static>> {
    use ClockField::*;
    let grows = matches!(field, Year | Decade | Century | Millennium | Julian | IsoYear | Epoch);
    grows.then(|| match (as_float, sign > 0) {
        (true, true) => SqlValue::Float8(f64::INFINITY),
        (true, false) => SqlValue::Float8(f64::NEG_INFINITY),
        (false, true) => SqlValue::numeric(Numeric::Infinity),
        (false, false) => SqlValue::numeric(Numeric::NegativeInfinity),
    })
}

fn part(field: ClockField, value: &SqlValue<'_>, as_float: bool) -> Result<ClockPart, EvalError> {
    match value {
        SqlValue::Timestamp(moment) => moment_part(field, *moment).ok_or_else(|| unsupported(value)),
        // date_part() casts the date to a timestamp.
        SqlValue::Date(date) if as_float => {
            let moment = crate::clock_arithmetic::midnight(*date)?;
            moment_part(field, moment).ok_or_else(|| unsupported(value))
        }
        SqlValue::Date(date) if field == ClockField::Epoch => {
            Ok(ClockPart::whole((i64::from(date.0) + 10_957) * 86_400))
        }
        SqlValue::Date(date) => {
            day_part(field, i64::from(date.0)).map(ClockPart::whole).ok_or_else(|| unsupported(value))
        }
        SqlValue::Time(time) => match field {
            ClockField::Epoch => Ok(ClockPart { number: time.0, decimals: 6 }),
            field => time_part(field, time.0).ok_or_else(|| unsupported(value)),
        },
        SqlValue::Timetz(time) => {
            let west = i64::from(time.west);
            Ok(match field {
                ClockField::Epoch => {
                    ClockPart { number: time.micros + west * MICROS_PER_SECOND, decimals: 6 }
                }
                ClockField::Timezone => ClockPart::whole(-west),
                ClockField::TimezoneHour => ClockPart::whole(-west / 3600),
                ClockField::TimezoneMinute => ClockPart::whole(-west / 60 % 60),
                field => return time_part(field, time.micros).ok_or_else(|| unsupported(value)),
            })
        }
        SqlValue::Interval(interval) => interval_part(field, *interval).ok_or_else(|| unsupported(value)),
        other => unreachable!("it is a date or a time by type: {other:?}"),
    }
}

fn moment_part(field: ClockField, moment: Timestamp) -> Option<ClockPart> {
    use ClockField::*;
    let (days, micros) = moment.split();
    match field {
        Epoch => Some(ClockPart { number: moment.0.checked_add(UNIX_EPOCH_MICROS)?, decimals: 6 }),
        Timezone | TimezoneHour | TimezoneMinute => Some(ClockPart::whole(0)),
        // Its fraction has digits that depend on the version.
        Julian => None,
        field => time_part(field, micros).or_else(|| day_part(field, days).map(ClockPart::whole)),
    }
}

fn time_part(field: ClockField, micros: i64) -> Option<ClockPart> {
    use ClockField::*;
    let within_minute = micros % MICROS_PER_MINUTE;
    Some(match field {
        Microsecond => ClockPart::whole(within_minute),
        Millisecond => ClockPart { number: within_minute, decimals: 3 },
        Second => ClockPart { number: within_minute, decimals: 6 },
        Minute => ClockPart::whole(micros / MICROS_PER_MINUTE % 60),
        Hour => ClockPart::whole(micros / MICROS_PER_HOUR),
        _ => return None,
    })
}

fn day_part(field: ClockField, days: i64) -> Option<i64> {
    use ClockField::*;
    let Day { year, month, day } = Day::of_number(days);
    // There is no year 0.
    let shown = |year: i64| if year > 0 { year } else { year - 1 };
    Some(match field {
        DayOfMonth => day,
        Month => month,
        Quarter => (month - 1) / 3 + 1,
        Year => shown(year),
        Decade => year.div_euclid(10),
        Century => span_number(year, 100),
        Millennium => span_number(year, 1000),
        Week => {
            let (iso_year, monday) = iso_week(days);
            (monday - first_monday(iso_year)) / 7 + 1
        }
        IsoYear => shown(iso_week(days).0),
        DayOfWeek => (days + 6).rem_euclid(7),
        IsoDayOfWeek => (days + 5).rem_euclid(7) + 1,
        DayOfYear => days - Day { year, month: 1, day: 1 }.number() + 1,
        Julian => days + crate::calendar::EPOCH,
        _ => return None,
    })
}

/// Returns the number of the century or millennium. The first one begins in year 1, and the one
/// before it is -1.
fn span_number(year: i64, years: i64) -> i64 {
    if year > 0 { (year + years - 1) / years } else { -((years - year) / years) }
}

/// Returns the ISO year of a day, and the Monday of its week.
fn iso_week(days: i64) -> (i64, i64) {
    let monday = days - (days + 5).rem_euclid(7);
    // The week belongs to the year of its Thursday.
    (Day::of_number(monday + 3).year, monday)
}

fn first_monday(iso_year: i64) -> i64 {
    iso_week(Day { year: iso_year, month: 1, day: 4 }.number()).1
}

fn interval_part(field: ClockField, interval: Interval) -> Option<ClockPart> {
    use ClockField::*;
    let months = i64::from(interval.months);
    Some(ClockPart::whole(match field {
        DayOfMonth => interval.days.into(),
        Month => months % 12,
        Year => months / 12,
        Decade => months / 120,
        Century => months / 1200,
        Millennium => months / 12_000,
        // Versions differ in quarters and weeks, and in the rounding of epochs.
        Quarter | Week | Epoch => return None,
        field => return time_part(field, interval.micros),
    }))
}

/// `east`: microseconds by which the local time is ahead.
fn truncate(field: ClockField, value: SqlValue<'_>, east: i64) -> Result<SqlValue<'_>, EvalError> {
    match value {
        SqlValue::Timestamp(moment) if !moment.is_finite() => Ok(SqlValue::Timestamp(moment)),
        SqlValue::Timestamp(moment) => {
            let local = i128::from(moment.0) + i128::from(east);
            let day = i128::from(MICROS_PER_DAY);
            let (days, micros) = (local.div_euclid(day) as i64, local.rem_euclid(day) as i64);
            let (days, micros) = match truncated_time(field, micros) {
                Some(micros) => (days, micros),
                None => (truncated_day(field, days).ok_or_else(|| unsupported(&value))?, 0),
            };
            let total = i128::from(days) * day + i128::from(micros) - i128::from(east);
            let out_of_range = || EvalError::new("22008", "timestamp out of range");
            Timestamp::checked(total).map(SqlValue::Timestamp).ok_or_else(out_of_range)
        }
        SqlValue::Interval(interval) => {
            let truncated = truncated_interval(field, interval).ok_or_else(|| unsupported(&value))?;
            Ok(SqlValue::Interval(truncated))
        }
        other => unreachable!("it is a timestamp or an interval by type: {other:?}"),
    }
}

fn truncated_time(field: ClockField, micros: i64) -> Option<i64> {
    let unit = match field {
        ClockField::Microsecond => 1,
        ClockField::Millisecond => 1000,
        ClockField::Second => MICROS_PER_SECOND,
        ClockField::Minute => MICROS_PER_MINUTE,
        ClockField::Hour => MICROS_PER_HOUR,
        _ => return None,
    };
    Some(micros / unit * unit)
}

fn truncated_day(field: ClockField, days: i64) -> Option<i64> {
    use ClockField::*;
    let Day { year, month, .. } = Day::of_number(days);
    let first = |year: i64, month: i64| Day { year, month, day: 1 }.number();
    let span = |years: i64| {
        if year > 0 { (year - 1) / years * years + 1 } else { -((years - year) / years) * years + 1 }
    };
    Some(match field {
        DayOfMonth => days,
        Week => iso_week(days).1,
        Month => first(year, month),
        Quarter => first(year, (month - 1) / 3 * 3 + 1),
        Year => first(year, 1),
        Decade => first(year.div_euclid(10) * 10, 1),
        Century => first(span(100), 1),
        Millennium => first(span(1000), 1),
        _ => return None,
    })
}

fn truncated_interval(field: ClockField, interval: Interval) -> Option<Interval> {
    use ClockField::*;
    let Interval { months, days, micros } = interval;
    let whole = |unit: i32| Interval { months: months / unit * unit, days: 0, micros: 0 };
    Some(match field {
        DayOfMonth => Interval { micros: 0, ..interval },
        Month => whole(1),
        Quarter => whole(3),
        Year => whole(12),
        Decade => whole(120),
        Century => whole(1200),
        Millennium => whole(12_000),
        field => Interval { months, days, micros: truncated_time(field, micros)? },
    })
}
