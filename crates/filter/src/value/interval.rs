//! Interval values. Parses ISO 8601 with designators, which Postgres writes with IntervalStyle
//! iso_8601, and quantities with units (`1 day 02:03:04`).

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter, Write as _};

use super::calendar::{MICROS_PER_DAY, MICROS_PER_SECOND};
use super::input::{InputError, trim};
use crate::error::EvalError;

const OTHER_FORMS: InputError =
    InputError::Unsupported("intervals in other forms than ISO 8601 or whole quantities with units");

/// A span of time. Months, days and time are separate, as in Postgres.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) months: i32,
    pub(crate) days: i32,
    pub(crate) micros: i64,
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

    pub(crate) fn add(self, other: Self) -> Result<Self, EvalError> {
        Interval::checked(
            i64::from(self.months) + i64::from(other.months),
            i64::from(self.days) + i64::from(other.days),
            i128::from(self.micros) + i128::from(other.micros),
        )
    }

    pub(crate) fn negated(self) -> Result<Self, EvalError> {
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

    pub(crate) fn justify_hours(self) -> Result<Self, EvalError> {
        let days = i64::from(self.days) + self.micros / MICROS_PER_DAY;
        let (days, micros) = with_one_sign(days, self.micros % MICROS_PER_DAY, MICROS_PER_DAY);
        Interval::checked(self.months.into(), days, micros.into())
    }

    pub(crate) fn justify_days(self) -> Result<Self, EvalError> {
        let months = i64::from(self.months) + i64::from(self.days / 30);
        let (months, days) = with_one_sign(months, i64::from(self.days % 30), 30);
        Interval::checked(months, days, self.micros.into())
    }

    pub(crate) fn justify(self) -> Result<Self, EvalError> {
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

    pub(crate) fn parse(text: &str) -> Result<Self, InputError> {
        let text = trim(text);
        if text.trim_start_matches(['+', '-']).eq_ignore_ascii_case("infinity") {
            return Err(InputError::Unsupported("infinite intervals"));
        }
        match text.strip_prefix('P') {
            Some(designated) => iso(designated),
            None => quantities(text),
        }
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

/// Sums of parsed fields. Only seconds may have a fraction.
#[derive(Default)]
struct IntervalFields {
    months: i64,
    days: i64,
    micros: i128,
}

impl IntervalFields {
    fn add(&mut self, number: &str, unit: IntervalUnit) -> Result<(), InputError> {
        if unit == IntervalUnit::Second {
            self.micros += seconds(number)?;
            return Ok(());
        }
        let number = number.strip_prefix('+').unwrap_or(number);
        let digits = number.strip_prefix('-').unwrap_or(number);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(OTHER_FORMS);
        }
        let count: i64 = number.parse().map_err(|_| InputError::Field)?;
        let small = count.unsigned_abs() <= 1 << 31;
        if !small && !matches!(unit, IntervalUnit::Hour | IntervalUnit::Minute) {
            return Err(InputError::Field);
        }
        match unit {
            IntervalUnit::Year => self.months += count * 12,
            IntervalUnit::Month => self.months += count,
            IntervalUnit::Week => self.days += count * 7,
            IntervalUnit::Day => self.days += count,
            IntervalUnit::Hour => self.micros += i128::from(count) * 3600 * i128::from(MICROS_PER_SECOND),
            IntervalUnit::Minute | IntervalUnit::Second => {
                self.micros += i128::from(count) * 60 * i128::from(MICROS_PER_SECOND)
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Interval, InputError> {
        Interval::checked(self.months, self.days, self.micros).map_err(|_| InputError::Field)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IntervalUnit {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
}

/// Parses seconds with at most six decimals. Returns microseconds.
fn seconds(number: &str) -> Result<i128, InputError> {
    let negative = number.starts_with('-');
    let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return Err(OTHER_FORMS);
    }
    let whole: i64 = whole.parse().map_err(|_| InputError::Field)?;
    let fraction: i128 = format!("{fraction:0<6}").parse().map_err(|_| InputError::Syntax)?;
    let micros = i128::from(whole) * i128::from(MICROS_PER_SECOND) + fraction;
    Ok(if negative { -micros } else { micros })
}

/// Parses ISO 8601 designators, after the `P`.
fn iso(text: &str) -> Result<Interval, InputError> {
    let (mut fields, mut rest, mut in_time) = (IntervalFields::default(), text, false);
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix('T') {
            (rest, in_time) = (time, true);
            continue;
        }
        let length = rest.find(|c: char| c.is_ascii_alphabetic()).ok_or(OTHER_FORMS)?;
        let unit = match (&rest[length..=length], in_time) {
            ("Y", false) => IntervalUnit::Year,
            ("M", false) => IntervalUnit::Month,
            ("W", false) => IntervalUnit::Week,
            ("D", false) => IntervalUnit::Day,
            ("H", true) => IntervalUnit::Hour,
            ("M", true) => IntervalUnit::Minute,
            ("S", true) => IntervalUnit::Second,
            _ => return Err(OTHER_FORMS),
        };
        fields.add(&rest[..length], unit)?;
        rest = &rest[length + 1..];
    }
    fields.finish()
}

/// Parses quantities with units: `1 year 2 mons -3 days 04:05:06.7`.
fn quantities(text: &str) -> Result<Interval, InputError> {
    let mut fields = IntervalFields::default();
    let mut words = text.split_ascii_whitespace();
    let mut any = false;
    while let Some(word) = words.next() {
        any = true;
        if word.contains(':') {
            clock(word, &mut fields)?;
            // Postgres gives another meaning to fields after a time.
            return if words.next().is_none() { fields.finish() } else { Err(OTHER_FORMS) };
        }
        let length = word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len());
        let (number, mut unit) = word.split_at(length);
        if unit.is_empty() {
            unit = words.next().ok_or(OTHER_FORMS)?;
        }
        let unit = match unit.to_ascii_lowercase().as_str() {
            "year" | "years" | "y" | "yr" | "yrs" => IntervalUnit::Year,
            "month" | "months" | "mon" | "mons" => IntervalUnit::Month,
            "week" | "weeks" | "w" => IntervalUnit::Week,
            "day" | "days" | "d" => IntervalUnit::Day,
            "hour" | "hours" | "h" | "hr" | "hrs" => IntervalUnit::Hour,
            "minute" | "minutes" | "m" | "min" | "mins" => IntervalUnit::Minute,
            "second" | "seconds" | "s" | "sec" | "secs" => IntervalUnit::Second,
            _ => return Err(OTHER_FORMS),
        };
        fields.add(number, unit)?;
    }
    if any { fields.finish() } else { Err(InputError::Syntax) }
}

/// Parses `[-]HH:MM[:SS[.fff]]`.
fn clock(word: &str, fields: &mut IntervalFields) -> Result<(), InputError> {
    let negative = word.starts_with('-');
    let parts: Vec<_> = word.strip_prefix(['+', '-']).unwrap_or(word).split(':').collect();
    let (hours, minutes, rest) = match parts[..] {
        [hours, minutes] => (hours, minutes, "0"),
        [hours, minutes, rest] => (hours, minutes, rest),
        _ => return Err(OTHER_FORMS),
    };
    let two = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = rest.split('.').next().unwrap_or_default();
    if hours.contains(['+', '-']) || !two(minutes) || !(two(whole) || parts.len() == 2) {
        return Err(OTHER_FORMS);
    }
    let mut time = IntervalFields::default();
    time.add(hours, IntervalUnit::Hour)?;
    time.add(minutes, IntervalUnit::Minute)?;
    if minutes > "59" || whole > "60" || (whole == "60" && parts.len() == 3) {
        return Err(if whole == "60" && minutes <= "59" { OTHER_FORMS } else { InputError::Field });
    }
    time.add(rest, IntervalUnit::Second)?;
    fields.micros += if negative { -time.micros } else { time.micros };
    Ok(())
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

    #[test]
    fn what_postgres_writes_is_read_and_written_again() {
        for text in
            ["PT0S", "P1Y2M3DT4H5M6.7S", "P-1Y-2M3DT-4H-5M-6S", "PT-0.5S", "P1M", "PT2562047788H54.775807S"]
        {
            assert_eq!(Interval::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn quantities_with_units_are_read() {
        let iso = |text| Interval::parse(text).unwrap().to_string();
        assert_eq!(iso("1 year 2 mons -3 days 04:05:06.5"), "P1Y2M-3DT4H5M6.5S");
        assert_eq!(iso("1week"), "P7D");
        assert_eq!(iso("-00:30"), "PT-30M");
        assert_eq!(iso("90 minutes 1.5 s"), "PT1H30M1.5S");
        for text in ["1.5 days", "1-2", "3", "1 day ago", "@ 1 day", "04:05 1 day", "1 fortnight"] {
            assert!(matches!(Interval::parse(text), Err(InputError::Unsupported(_))), "{text}");
        }
    }

    #[test]
    fn a_month_counts_thirty_days_and_a_day_24_hours() {
        let interval = |text| Interval::parse(text).unwrap();
        assert_eq!(interval("1 mon"), interval("30 days"));
        assert_eq!(interval("1 day"), interval("24:00"));
        assert!(interval("1 year") < interval("365 days"));
    }
}
