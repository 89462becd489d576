//! Interval values: arithmetic, comparison and output. `clock_text/span.rs` parses them.

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter, Write as _};

use super::calendar::{MICROS_PER_DAY, MICROS_PER_SECOND};
use super::clock_text::decode_interval;
use super::input_error::InputError;
use super::interval_fields::IntervalFields;
use crate::eval_error::EvalError;

/// A span of time. Months, days and time are separate, as in Postgres.
///
/// Comparisons, `==` among them, count a month as 30 days and a day as 24 hours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interval {
    /// Months; a year has twelve.
    pub months: i32,
    /// Days.
    pub days: i32,
    /// Microseconds of the time.
    pub micros: i64,
}

impl Interval {
    /// Returns the span in microseconds for comparison: a month is 30 days, a day is 24 hours.
    fn span(self) -> i128 {
        let days = i128::from(self.months) * 30 + i128::from(self.days);
        days * i128::from(MICROS_PER_DAY) + i128::from(self.micros)
    }

    pub(crate) fn out_of_range() -> EvalError {
        EvalError::new("22008", "interval out of range")
    }

    /// Fails if one of the three parts is out of range.
    pub(crate) fn checked(months: i64, days: i64, micros: i128) -> Result<Self, EvalError> {
        let fits = || {
            Some(Interval {
                months: months.try_into().ok()?,
                days: days.try_into().ok()?,
                micros: micros.try_into().ok()?,
            })
        };
        fits().ok_or_else(Interval::out_of_range)
    }

    /// Adds each of the three parts.
    ///
    /// # Errors
    /// Fails if a part is out of range.
    pub fn plus(self, other: Self) -> Result<Self, EvalError> {
        Interval::checked(
            i64::from(self.months) + i64::from(other.months),
            i64::from(self.days) + i64::from(other.days),
            i128::from(self.micros) + i128::from(other.micros),
        )
    }

    /// Negates each of the three parts.
    ///
    /// # Errors
    /// Fails if a part is out of range.
    pub fn negated(self) -> Result<Self, EvalError> {
        Interval::checked(-i64::from(self.months), -i64::from(self.days), -i128::from(self.micros))
    }

    /// Multiplies or divides (interval_mul, interval_div). Fractions of months become days,
    /// fractions of days become time.
    pub(crate) fn scaled(self, by: impl Fn(f64) -> f64) -> Result<Self, EvalError> {
        let whole = |value: f64| {
            let fits = value >= f64::from(i32::MIN) && value < -f64::from(i32::MIN);
            if fits { Ok(value as i32) } else { Err(Interval::out_of_range()) }
        };
        let to_micros = |value: f64| (value * 1e6).round_ties_even() / 1e6;
        let (month_product, day_product) = (by(f64::from(self.months)), by(f64::from(self.days)));
        let (months, days) = (whole(month_product)?, whole(day_product)?);
        let month_days = to_micros((month_product - f64::from(months)) * 30.0);
        let mut seconds =
            to_micros((day_product - f64::from(days) + month_days - month_days.trunc()) * 86_400.0);
        let mut more_days = 0;
        if seconds.abs() >= 86_400.0 {
            more_days = (seconds / 86_400.0) as i64;
            seconds -= more_days as f64 * 86_400.0;
        }
        let days = i64::from(days) + more_days + month_days as i64;
        let micros = (by(self.micros as f64) + seconds * 1e6).round_ties_even();
        if micros.is_nan() || micros < i64::MIN as f64 || micros >= -(i64::MIN as f64) {
            return Err(Interval::out_of_range());
        }
        Interval::checked(months.into(), days, micros as i128)
    }

    /// Converts each 24 hours to a day.
    ///
    /// # Errors
    /// Fails if a part is out of range.
    pub fn justify_hours(self) -> Result<Self, EvalError> {
        let days = i64::from(self.days) + self.micros / MICROS_PER_DAY;
        let (days, micros) = with_one_sign(days, self.micros % MICROS_PER_DAY, MICROS_PER_DAY);
        Interval::checked(self.months.into(), days, micros.into())
    }

    /// Converts each 30 days to a month.
    ///
    /// # Errors
    /// Fails if a part is out of range.
    pub fn justify_days(self) -> Result<Self, EvalError> {
        let months = i64::from(self.months) + i64::from(self.days / 30);
        let (months, days) = with_one_sign(months, i64::from(self.days % 30), 30);
        Interval::checked(months, days, self.micros.into())
    }

    /// Converts hours to days and days to months, and gives all parts one sign.
    ///
    /// # Errors
    /// Fails if a part is out of range.
    pub fn justify(self) -> Result<Self, EvalError> {
        let (mut months, mut days, mut micros) = (i64::from(self.months), i64::from(self.days), self.micros);
        // interval_justify_interval: days are moved into months first where the signs agree, so
        // that the next step does not overflow.
        if (days > 0 && micros > 0) || (days < 0 && micros < 0) {
            months += days / 30;
            days %= 30;
        }
        days += micros / MICROS_PER_DAY;
        micros %= MICROS_PER_DAY;
        months += days / 30;
        days %= 30;
        if months > 0 && (days < 0 || (days == 0 && micros < 0)) {
            days += 30;
            months -= 1;
        } else if months < 0 && (days > 0 || (days == 0 && micros > 0)) {
            days -= 30;
            months += 1;
        }
        let (days, micros) = with_one_sign(days, micros, MICROS_PER_DAY);
        Interval::checked(months, days, micros.into())
    }

    /// Parses an interval of a type with these fields. `modern`: as Postgres 16 and newer do.
    ///
    /// # Errors
    /// Fails if the text is no interval, or out of range.
    pub fn parse(text: &str, fields: IntervalFields, modern: bool) -> Result<Self, InputError> {
        decode_interval(text, fields, modern)
    }

    /// Truncates to the fields of a type, and rounds seconds to this many digits
    /// (AdjustIntervalForTypmod).
    pub(crate) fn fitted(self, fields: IntervalFields, digits: Option<u32>) -> Result<Self, EvalError> {
        let mut fitted = fields.truncate(self);
        if let Some(digits) = digits.filter(|digits| *digits < 6) {
            let unit = 10_i64.pow(6 - digits);
            let half = if fitted.micros < 0 { -(unit / 2) } else { unit / 2 };
            let micros = fitted.micros.checked_add(half).ok_or_else(Interval::out_of_range)?;
            fitted.micros = micros - micros % unit;
        }
        Ok(fitted)
    }
}

/// Moves one `unit` between two parts of an interval, so that both have the same sign.
fn with_one_sign(higher: i64, lower: i64, unit: i64) -> (i64, i64) {
    if higher > 0 && lower < 0 {
        (higher - 1, lower + unit)
    } else if higher < 0 && lower > 0 {
        (higher + 1, lower - unit)
    } else {
        (higher, lower)
    }
}

impl PartialEq for Interval {
    fn eq(&self, other: &Self) -> bool {
        self.span() == other.span()
    }
}

impl Eq for Interval {}

impl Ord for Interval {
    fn cmp(&self, other: &Self) -> Ordering {
        self.span().cmp(&other.span())
    }
}

impl PartialOrd for Interval {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Display for Interval {
    /// Writes the form of IntervalStyle iso_8601.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.months == 0 && self.days == 0 && self.micros == 0 {
            return f.write_str("PT0S");
        }
        let mut out = String::from("P");
        let mut part = |number: i64, unit: char| match number {
            0 => Ok(()),
            number => write!(out, "{number}{unit}"),
        };
        part(i64::from(self.months / 12), 'Y')?;
        part(i64::from(self.months % 12), 'M')?;
        part(i64::from(self.days), 'D')?;
        if self.micros != 0 {
            let seconds = self.micros / MICROS_PER_SECOND;
            out.push('T');
            let mut part = |number: i64, unit: char| match number {
                0 => Ok(()),
                number => write!(out, "{number}{unit}"),
            };
            part(seconds / 3600, 'H')?;
            part(seconds / 60 % 60, 'M')?;
            let (seconds, fraction) = (seconds % 60, self.micros % MICROS_PER_SECOND);
            if seconds != 0 || fraction != 0 {
                let sign = if seconds < 0 || fraction < 0 { "-" } else { "" };
                write!(out, "{sign}{}", seconds.abs())?;
                if fraction != 0 {
                    out.push_str(format!(".{:06}", fraction.abs()).trim_end_matches('0'));
                }
                out.push('S');
            }
        }
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(text: &str) -> Interval {
        Interval::parse(text, IntervalFields::ALL, true).unwrap()
    }

    #[test]
    fn what_postgres_writes_is_read_and_written_again() {
        for text in
            ["PT0S", "P1Y2M3DT4H5M6.7S", "P-1Y-2M3DT-4H-5M-6S", "PT-0.5S", "P1M", "PT2562047788H54.775807S"]
        {
            assert_eq!(interval(text).to_string(), text);
        }
    }

    #[test]
    fn quantities_with_units_are_read() {
        let iso = |text| interval(text).to_string();
        assert_eq!(iso("1 year 2 mons -3 days 04:05:06.5"), "P1Y2M-3DT4H5M6.5S");
        assert_eq!(iso("1week"), "P7D");
        assert_eq!(iso("-00:30"), "PT-30M");
        assert_eq!(iso("90 minutes 1.5 s"), "PT1H30M1.5S");
        assert_eq!(iso("@ 1-2"), "P1Y2M");
        assert_eq!(iso("3 4:05:06"), "P3DT4H5M6S");
        assert_eq!(iso("1.5 months 1 day ago"), "P-1M-16D");
        assert_eq!(iso("7"), "PT7S");
        assert_eq!(iso("P0001-02-03T04:05:06"), "P1Y2M3DT4H5M6S");
        assert_eq!(iso("P00010203T040506"), "P1Y2M3DT4H5M6S");
        for text in ["", "P", "P1", "1 fortnight", "x", "04:05 1 second", "1 2 3 4 days 5 days"] {
            let parsed = Interval::parse(text, IntervalFields::ALL, true);
            assert!(text == "P1" || parsed == Err(InputError::Syntax), "{text}");
        }
    }

    #[test]
    fn a_month_counts_thirty_days_and_a_day_24_hours() {
        assert_eq!(interval("1 mon"), interval("30 days"));
        assert_eq!(interval("1 day"), interval("24:00"));
        assert!(interval("1 year") < interval("365 days"));
    }
}
