//! Intervals of any form (DecodeInterval, DecodeISO8601Interval).

use super::fields::{FieldForm, split};
use super::numbers::{ClockReading, fraction, leading_int, leading_long};
use super::words::{DateWord, SpanUnit, SpanWord};
use super::{CERTAIN_BYTES, mask, uncertain};
use crate::calendar::{MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::input_error::InputError;
use crate::interval::Interval;
use crate::interval_fields::IntervalFields;

const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
const MICROS_PER_HOUR: i64 = 60 * MICROS_PER_MINUTE;

/// Parses an interval. `fields`: the fields of its type, which give a number without a unit its
/// unit. `modern`: as Postgres 16 and newer do.
pub(crate) fn decode_interval(
    text: &str,
    fields: IntervalFields,
    modern: bool,
) -> Result<Interval, InputError> {
    // Rows have this form. The other decoder refuses every text that this one accepts.
    let designated = designated(text);
    if !matches!(designated, Err(InputError::Syntax)) {
        return designated?.finish();
    }
    let result = quantities(text, fields, modern).and_then(Span::finish);
    if text.len() > CERTAIN_BYTES { uncertain(result, "long texts of intervals") } else { result }
}

/// Sums of the fields of an interval, within the bounds that Postgres has for each.
#[derive(Clone, Copy, Default)]
struct Span {
    years: i32,
    months: i32,
    days: i32,
    micros: i64,
}

impl Span {
    fn finish(self) -> Result<Interval, InputError> {
        let months = i64::from(self.years) * 12 + i64::from(self.months);
        let months = i32::try_from(months).map_err(|_| InputError::OutOfRange)?;
        Ok(Interval { months, days: self.days, micros: self.micros })
    }

    /// Adds a number and its fraction of a unit.
    fn add(&mut self, number: i64, fraction: f64, unit: SpanUnit) -> Result<(), InputError> {
        let added = match unit {
            SpanUnit::Microsecond => self.add_time(number, fraction, 1),
            SpanUnit::Millisecond => self.add_time(number, fraction, 1000),
            SpanUnit::Second => self.add_time(number, fraction, MICROS_PER_SECOND),
            SpanUnit::Minute => self.add_time(number, fraction, MICROS_PER_MINUTE),
            SpanUnit::Hour => self.add_time(number, fraction, MICROS_PER_HOUR),
            SpanUnit::Day => {
                self.add_days(number, 1).and_then(|()| self.add_time_fraction(fraction, MICROS_PER_DAY))
            }
            SpanUnit::Week => self.add_days(number, 7).and_then(|()| self.add_day_fraction(fraction, 7.0)),
            SpanUnit::Month => self.add_months(number).and_then(|()| self.add_day_fraction(fraction, 30.0)),
            SpanUnit::Year => self.add_years(number, fraction, 1),
            SpanUnit::Decade => self.add_years(number, fraction, 10),
            SpanUnit::Century => self.add_years(number, fraction, 100),
            SpanUnit::Millennium => self.add_years(number, fraction, 1000),
            SpanUnit::Other => return Err(InputError::Syntax),
        };
        added.ok_or(InputError::IntervalField)
    }

    fn add_time(&mut self, number: i64, fraction: f64, scale: i64) -> Option<()> {
        self.micros = self.micros.checked_add(number.checked_mul(scale)?)?;
        self.add_time_fraction(fraction, scale)
    }

    /// Rounds half towards zero.
    fn add_time_fraction(&mut self, fraction: f64, scale: i64) -> Option<()> {
        if fraction == 0.0 {
            return Some(());
        }
        let scaled = fraction * scale as f64;
        let (whole, rest) = (scaled as i64, scaled - (scaled as i64) as f64);
        let rounded = whole + i64::from(rest > 0.5) - i64::from(rest < -0.5);
        self.micros = self.micros.checked_add(rounded)?;
        Some(())
    }

    fn add_days(&mut self, number: i64, scale: i32) -> Option<()> {
        self.days = self.days.checked_add(i32::try_from(number).ok()?.checked_mul(scale)?)?;
        Some(())
    }

    fn add_day_fraction(&mut self, fraction: f64, scale: f64) -> Option<()> {
        if fraction == 0.0 {
            return Some(());
        }
        let scaled = fraction * scale;
        self.days = self.days.checked_add(scaled as i32)?;
        self.add_time_fraction(scaled - f64::from(scaled as i32), MICROS_PER_DAY)
    }

    fn add_months(&mut self, number: i64) -> Option<()> {
        self.months = self.months.checked_add(i32::try_from(number).ok()?)?;
        Some(())
    }

    fn add_years(&mut self, number: i64, fraction: f64, scale: i32) -> Option<()> {
        self.years = self.years.checked_add(i32::try_from(number).ok()?.checked_mul(scale)?)?;
        let months = (fraction * f64::from(scale) * 12.0).round_ties_even() as i32;
        self.months = self.months.checked_add(months)?;
        Some(())
    }

    fn negated(self) -> Option<Self> {
        Some(Span {
            years: self.years.checked_neg()?,
            months: self.months.checked_neg()?,
            days: self.days.checked_neg()?,
            micros: self.micros.checked_neg()?,
        })
    }
}

/// Parses numbers with units: `1 year 2 mons -3 days 04:05:06`. The unit follows its number, so
/// fields are decoded from the last to the first.
fn quantities(text: &str, narrowed: IntervalFields, modern: bool) -> Result<Span, InputError> {
    let fields = split(text)?;
    let (mut span, mut set, mut unit, mut is_before) = (Span::default(), 0, None, false);
    let mut unit_waits = false;
    for (index, field) in fields.iter().enumerate().rev() {
        let signed_time = field.form == FieldForm::Signed && field.text[1..].contains(':');
        let part = match field.form {
            FieldForm::Time => {
                span.micros = time(&field.text, narrowed)?;
                (unit, unit_waits) = (Some(SpanUnit::Day), false);
                mask::TIME
            }
            FieldForm::Signed if signed_time && time(&field.text[1..], narrowed).is_ok() => {
                let micros = time(&field.text[1..], narrowed)?;
                span.micros = if field.text.starts_with('-') { -micros } else { micros };
                (unit, unit_waits) = (Some(SpanUnit::Day), false);
                mask::TIME
            }
            FieldForm::Signed | FieldForm::Date | FieldForm::Number => {
                unit_waits = false;
                number(&mut span, &field.text, unit.get_or_insert(unit_of(narrowed)))?
            }
            FieldForm::Word | FieldForm::SignedWord => {
                match SpanWord::of(&field.text) {
                    Some(SpanWord::Unit(_)) if unit_waits => return uncertain_units(modern),
                    Some(SpanWord::Unit(found)) => (unit, unit_waits) = (Some(found), true),
                    Some(SpanWord::Ago) if index + 1 == fields.len() => {
                        (unit, is_before) = (Some(SpanUnit::Other), true);
                    }
                    Some(SpanWord::Ago) => return uncertain_units(modern),
                    // Postgres 17 and newer read infinite intervals, and ignore `at`.
                    None if DateWord::keyword(&field.text).is_some() => {
                        return Err(InputError::Unsupported(
                            "infinite intervals and intervals with words of dates",
                        ));
                    }
                    None => return Err(InputError::Syntax),
                }
                continue;
            }
        };
        if part & set != 0 {
            return Err(InputError::Syntax);
        }
        set |= part;
    }
    match (set, unit_waits) {
        (0, _) => Err(InputError::Syntax),
        (_, true) => uncertain_units(modern),
        (_, false) if is_before => span.negated().ok_or(InputError::IntervalField),
        (_, false) => Ok(span),
    }
}

/// Returns the unit of a number without one.
fn unit_of(fields: IntervalFields) -> SpanUnit {
    match fields.last() {
        IntervalFields::YEAR => SpanUnit::Year,
        IntervalFields::MONTH => SpanUnit::Month,
        IntervalFields::DAY => SpanUnit::Day,
        IntervalFields::HOUR => SpanUnit::Hour,
        IntervalFields::MINUTE => SpanUnit::Minute,
        _ => SpanUnit::Second,
    }
}

/// Refuses units without a number, and `ago` before others. Postgres ignored them before 16.
fn uncertain_units(modern: bool) -> Result<Span, InputError> {
    match modern {
        true => Err(InputError::Syntax),
        false => Err(InputError::Unsupported("intervals with units without a number")),
    }
}

/// Parses hours, minutes and seconds as microseconds.
fn time(text: &str, narrowed: IntervalFields) -> Result<i64, InputError> {
    let as_interval = |error| if error == InputError::Field { InputError::IntervalField } else { error };
    let reading = ClockReading::parse(text, narrowed.is_minute_to_second()).map_err(as_interval)?;
    let seconds = reading.minute * 60 + reading.second;
    let total = i128::from(reading.hour) * i128::from(MICROS_PER_HOUR)
        + i128::from(seconds * MICROS_PER_SECOND + reading.micros);
    i64::try_from(total).map_err(|_| InputError::IntervalField)
}

/// Adds a number of a unit, or the years and months of `1-2`. Sets the unit of a number before it.
fn number(span: &mut Span, text: &str, unit: &mut SpanUnit) -> Result<u32, InputError> {
    let overflow = InputError::IntervalField;
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let sign = |number: i64| if negative { -number } else { number };
    let (value, rest) = leading_long(digits, overflow)?;
    let (mut value, mut part) = (sign(value), 0.0);
    if let Some(months) = rest.strip_prefix('-') {
        let (months, rest) = leading_int(months, overflow)?;
        if !(0..12).contains(&months) {
            return Err(overflow);
        }
        if !rest.is_empty() {
            return Err(InputError::Syntax);
        }
        *unit = SpanUnit::Month;
        value = value.checked_mul(12).and_then(|years| years.checked_add(sign(months))).ok_or(overflow)?;
    } else if rest.starts_with('.') {
        part = if negative { -fraction(rest)? } else { fraction(rest)? };
    } else if !rest.is_empty() {
        return Err(InputError::Syntax);
    }
    span.add(value, part, *unit)?;
    Ok(match unit {
        SpanUnit::Microsecond => mask::MICROSECOND,
        SpanUnit::Millisecond => mask::MILLISECOND,
        SpanUnit::Second if part == 0.0 => mask::SECOND,
        SpanUnit::Second => mask::SECONDS,
        SpanUnit::Minute => mask::MINUTE,
        SpanUnit::Hour => {
            *unit = SpanUnit::Day;
            mask::HOUR
        }
        SpanUnit::Day => mask::DAY,
        SpanUnit::Week => mask::WEEK,
        SpanUnit::Month => mask::MONTH,
        SpanUnit::Year => mask::YEAR,
        SpanUnit::Decade => mask::DECADE,
        SpanUnit::Century => mask::CENTURY,
        SpanUnit::Millennium => mask::MILLENNIUM,
        SpanUnit::Other => 0,
    })
}

/// Parses ISO 8601 with designators (`P1Y2M3DT4H5M6S`), extended (`P0001-02-03T04:05:06`) or basic
/// (`P00010203T040506`).
fn designated(text: &str) -> Result<Span, InputError> {
    let mut scan = DesignatedScanner { rest: text.strip_prefix('P').ok_or(InputError::Syntax)? };
    if scan.rest.is_empty() {
        return Err(InputError::Syntax);
    }
    let (mut span, mut in_time, mut has_field) = (Span::default(), false, false);
    while !scan.rest.is_empty() {
        if scan.skip('T') {
            (in_time, has_field) = (true, false);
            continue;
        }
        let width = scan.rest.trim_start_matches('-').bytes().take_while(u8::is_ascii_digit).count();
        let (number, part) = scan.number()?;
        let designator = scan.next();
        let unit = match (designator, in_time) {
            (Some('Y'), false) => SpanUnit::Year,
            (Some('M'), false) => SpanUnit::Month,
            (Some('W'), false) => SpanUnit::Week,
            (Some('D'), false) => SpanUnit::Day,
            (Some('H'), true) => SpanUnit::Hour,
            (Some('M'), true) => SpanUnit::Minute,
            (Some('S'), true) => SpanUnit::Second,
            (Some('T') | None, false) if width == 8 && !has_field => {
                span.add(number / 10_000, 0.0, SpanUnit::Year)?;
                span.add(number / 100 % 100, 0.0, SpanUnit::Month)?;
                span.add(number % 100, part, SpanUnit::Day)?;
                in_time = true;
                continue;
            }
            (None, true) if width == 6 && !has_field => {
                span.add(number / 10_000, 0.0, SpanUnit::Hour)?;
                span.add(number / 100 % 100, 0.0, SpanUnit::Minute)?;
                span.add(number % 100, 0.0, SpanUnit::Second)?;
                span.add(0, part, SpanUnit::Microsecond)?;
                return Ok(span);
            }
            (Some('T' | '-') | None, false) | (Some(':') | None, true) if !has_field => {
                let units = match in_time {
                    false => [SpanUnit::Year, SpanUnit::Month, SpanUnit::Day],
                    true => [SpanUnit::Hour, SpanUnit::Minute, SpanUnit::Second],
                };
                scan.extended(&mut span, (number, part), units, designator)?;
                (in_time, has_field) = (true, false);
                continue;
            }
            _ => return Err(InputError::Syntax),
        };
        span.add(number, part, unit)?;
        has_field = true;
    }
    Ok(span)
}

struct DesignatedScanner<'t> {
    rest: &'t str,
}

impl DesignatedScanner<'_> {
    fn skip(&mut self, mark: char) -> bool {
        let after = self.rest.strip_prefix(mark);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    /// Parses up to three numbers with one separator, of which the first was read. Ends before the
    /// end of the text, or after `T`.
    fn extended(
        &mut self,
        span: &mut Span,
        first: (i64, f64),
        units: [SpanUnit; 3],
        separator: Option<char>,
    ) -> Result<(), InputError> {
        span.add(first.0, first.1, units[0])?;
        if !matches!(separator, Some('-' | ':')) {
            return Ok(());
        }
        let is_date = separator == Some('-');
        for (position, unit) in units[1..].iter().enumerate() {
            let (number, part) = self.number()?;
            span.add(number, part, *unit)?;
            if self.rest.is_empty() || (is_date && self.skip('T')) {
                return Ok(());
            }
            if position == 1 || self.next() != separator {
                return Err(InputError::Syntax);
            }
        }
        Err(InputError::Syntax)
    }

    /// Parses a number as strtod does. Returns its integer part and its fraction.
    fn number(&mut self) -> Result<(i64, f64), InputError> {
        let bytes = self.rest.as_bytes();
        let digits_from = |at: usize| bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let negative = usize::from(bytes.first() == Some(&b'-'));
        if matches!(bytes.get(negative).map(u8::to_ascii_lowercase), Some(b'i' | b'n')) && negative == 1
            || matches!(bytes.get(negative..negative + 2), Some([b'0', b'x' | b'X']))
        {
            return Err(InputError::Unsupported("intervals with numbers in other forms than decimal"));
        }
        let whole = digits_from(negative);
        let mut length = negative + whole;
        if bytes.get(length) == Some(&b'.') {
            let fraction = digits_from(length + 1);
            if whole + fraction == 0 {
                return Err(InputError::Syntax);
            }
            length += 1 + fraction;
        } else if whole == 0 {
            return Err(InputError::Syntax);
        }
        if matches!(bytes.get(length), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
            let exponent = digits_from((length + 1 + sign).min(bytes.len()));
            if exponent > 0 {
                length += 1 + sign + exponent;
            }
        }
        let (number, rest) = self.rest.split_at(length);
        self.rest = rest;
        let value: f64 = number.parse().map_err(|_| InputError::Syntax)?;
        let zero_meant =
            !number.split(['e', 'E']).next().unwrap_or_default().contains(|c| ('1'..='9').contains(&c));
        if value.is_infinite() || value.is_subnormal() || (value == 0.0 && !zero_meant) {
            return Err(InputError::Syntax);
        }
        match value.abs() > 1.0e15 {
            true => Err(InputError::IntervalField),
            false => Ok((value as i64, value - value.trunc())),
        }
    }
}
