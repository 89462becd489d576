//! Dates and times. Parses ISO 8601 forms, including all that Postgres writes with DateStyle ISO.
//! The time zone is UTC.

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

use super::calendar::{Day, EPOCH, MICROS_PER_DAY, MICROS_PER_SECOND};
use super::input::{InputError, trim};

const OTHER_FORMS: InputError = InputError::Unsupported("dates and times in other forms than ISO 8601");

/// Days since 2000-01-01. The least and the greatest value are -infinity and infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Date(pub(crate) i32);

/// Microseconds since midnight. 24:00:00 is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time(pub(crate) i64);

/// A time of day, and its zone in seconds west of Greenwich.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timetz {
    pub(crate) micros: i64,
    pub(crate) west: i32,
}

/// timestamp or timestamptz: microseconds since 2000-01-01 00:00:00 UTC. The least and the greatest
/// value are -infinity and infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp(pub(crate) i64);

impl Date {
    pub(crate) const MIN: i64 = -EPOCH;
    pub(crate) const END: i64 = 2_147_483_494 - EPOCH;

    pub(crate) fn is_finite(self) -> bool {
        self.0 != i32::MIN && self.0 != i32::MAX
    }

    pub(crate) fn checked(days: i64) -> Option<Self> {
        (Date::MIN..Date::END).contains(&days).then_some(Date(days as i32))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, InputError> {
        match special(text)? {
            Some(Special::Infinity) => return Ok(Date(i32::MAX)),
            Some(Special::NegativeInfinity) => return Ok(Date(i32::MIN)),
            Some(Special::Epoch) => return Ok(Date(-10_957)),
            None => {}
        }
        let moment = Moment::parse(text)?;
        Date::checked(moment.day.number()).ok_or(InputError::Field)
    }
}

impl Time {
    pub(crate) fn parse(text: &str) -> Result<Self, InputError> {
        let mut scan = DateTimeScanner(trim(text));
        let micros = scan.time()?;
        if scan.0.is_empty() { Ok(Time(micros)) } else { Err(OTHER_FORMS) }
    }
}

impl Timetz {
    pub(crate) fn parse(text: &str) -> Result<Self, InputError> {
        let mut scan = DateTimeScanner(trim(text));
        let micros = scan.time()?;
        let west = scan.zone()?.unwrap_or(0);
        if scan.0.is_empty() { Ok(Timetz { micros, west }) } else { Err(OTHER_FORMS) }
    }

    fn utc(self) -> i64 {
        self.micros + i64::from(self.west) * MICROS_PER_SECOND
    }
}

impl Ord for Timetz {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.utc(), self.west).cmp(&(other.utc(), other.west))
    }
}

impl PartialOrd for Timetz {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Timestamp {
    const MIN: i64 = -211_813_488_000_000_000;
    const END: i64 = 9_223_371_331_200_000_000;

    pub(crate) fn is_finite(self) -> bool {
        self.0 != i64::MIN && self.0 != i64::MAX
    }

    pub(crate) fn checked(micros: i128) -> Option<Self> {
        (i128::from(Timestamp::MIN)..i128::from(Timestamp::END))
            .contains(&micros)
            .then_some(Timestamp(micros as i64))
    }

    /// Parses a timestamp. Without `with_zone`, a zone in the text is ignored, as in Postgres.
    pub(crate) fn parse(text: &str, with_zone: bool) -> Result<Self, InputError> {
        match special(text)? {
            Some(Special::Infinity) => return Ok(Timestamp(i64::MAX)),
            Some(Special::NegativeInfinity) => return Ok(Timestamp(i64::MIN)),
            Some(Special::Epoch) => return Ok(Timestamp(-10_957 * MICROS_PER_DAY)),
            None => {}
        }
        let moment = Moment::parse(text)?;
        let west = if with_zone { i128::from(moment.west) * i128::from(MICROS_PER_SECOND) } else { 0 };
        let local = i128::from(moment.day.number()) * i128::from(MICROS_PER_DAY) + i128::from(moment.micros);
        Timestamp::checked(local + west).ok_or(InputError::Field)
    }

    /// Returns the days since 2000-01-01, and the microseconds of the day.
    pub(crate) fn split(self) -> (i64, i64) {
        (self.0.div_euclid(MICROS_PER_DAY), self.0.rem_euclid(MICROS_PER_DAY))
    }
}

enum Special {
    Infinity,
    NegativeInfinity,
    Epoch,
}

fn special(text: &str) -> Result<Option<Special>, InputError> {
    let text = trim(text);
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(None);
    }
    match text.to_ascii_lowercase().as_str() {
        "infinity" => Ok(Some(Special::Infinity)),
        "-infinity" => Ok(Some(Special::NegativeInfinity)),
        "epoch" => Ok(Some(Special::Epoch)),
        "now" | "today" | "tomorrow" | "yesterday" | "allballs" => {
            Err(InputError::Unsupported("dates and times that depend on the current time"))
        }
        _ => Err(OTHER_FORMS),
    }
}

/// A parsed date, with a time and a zone if the text has them.
struct Moment {
    day: Day,
    micros: i64,
    west: i32,
}

impl Moment {
    fn parse(text: &str) -> Result<Self, InputError> {
        let mut text = trim(text);
        let before = text.get(text.len().saturating_sub(3)..).filter(|end| end.eq_ignore_ascii_case(" bc"));
        if before.is_some() {
            text = trim(&text[..text.len() - 3]);
        }
        let mut scan = DateTimeScanner(text);
        let mut day = scan.day()?;
        let (mut micros, mut west) = (0, 0);
        if let Some(rest) = scan.0.strip_prefix([' ', 'T', 't']) {
            scan.0 = rest.trim_start_matches(' ');
            micros = scan.time()?;
            west = scan.zone()?.unwrap_or(0);
        }
        if !scan.0.is_empty() {
            return Err(OTHER_FORMS);
        }
        if day.year == 0 {
            return Err(InputError::Field);
        }
        if before.is_some() {
            day.year = 1 - day.year;
        }
        if day.is_real() { Ok(Moment { day, micros, west }) } else { Err(InputError::Field) }
    }
}

struct DateTimeScanner<'t>(&'t str);

impl DateTimeScanner<'_> {
    /// Parses a number of `min` to `max` digits.
    fn number(&mut self, min: usize, max: usize) -> Result<i64, InputError> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        if length < min || length > max {
            return Err(OTHER_FORMS);
        }
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        digits.parse().map_err(|_| InputError::Field)
    }

    fn skip(&mut self, mark: char) -> bool {
        match self.0.strip_prefix(mark) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn day(&mut self) -> Result<Day, InputError> {
        let year = self.number(4, 7)?;
        if !self.skip('-') {
            return Err(OTHER_FORMS);
        }
        let month = self.number(1, 2)?;
        if !self.skip('-') {
            return Err(OTHER_FORMS);
        }
        Ok(Day { year, month, day: self.number(1, 2)? })
    }

    fn time(&mut self) -> Result<i64, InputError> {
        let hour = self.number(1, 2)?;
        if !self.skip(':') {
            return Err(OTHER_FORMS);
        }
        let minute = self.number(2, 2)?;
        let (mut second, mut fraction) = (0, 0);
        if self.skip(':') {
            second = self.number(2, 2)?;
            if self.0.starts_with('.') {
                fraction = self.fraction()?;
            }
        }
        let micros = ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + fraction;
        if hour > 24 || minute > 59 || second > 60 || micros > MICROS_PER_DAY {
            return Err(InputError::Field);
        }
        Ok(micros)
    }

    fn fraction(&mut self) -> Result<i64, InputError> {
        let digits = self.0[1..].bytes().take_while(u8::is_ascii_digit).count();
        let (fraction, rest) = self.0.split_at(1 + digits);
        let value: f64 = if digits == 0 { 0.0 } else { fraction.parse().map_err(|_| InputError::Syntax)? };
        self.0 = rest;
        Ok((value * 1e6).round_ties_even() as i64)
    }

    /// Parses a zone, if present. Returns seconds west of Greenwich.
    fn zone(&mut self) -> Result<Option<i32>, InputError> {
        let rest = self.0.trim_start_matches(' ');
        for name in ["utc", "gmt", "z"] {
            if rest.eq_ignore_ascii_case(name) {
                self.0 = "";
                return Ok(Some(0));
            }
        }
        let sign = match rest.bytes().next() {
            Some(b'+') => -1,
            Some(b'-') => 1,
            _ => return Ok(None),
        };
        self.0 = &rest[1..];
        let digits = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (hours, minutes) = match digits {
            4 => {
                let number = self.number(4, 4)?;
                (number / 100, number % 100)
            }
            _ => (self.number(1, 2)?, if self.skip(':') { self.number(2, 2)? } else { 0 }),
        };
        let seconds = if digits < 4 && self.skip(':') { self.number(2, 2)? } else { 0 };
        if hours > 15 || minutes > 59 || seconds > 59 {
            return Err(InputError::Zone);
        }
        Ok(Some(sign * (hours * 3600 + minutes * 60 + seconds) as i32))
    }
}

impl Display for Date {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            i32::MIN => f.write_str("-infinity"),
            i32::MAX => f.write_str("infinity"),
            days => write_moment(f, Day::of_number(days.into()), None, None),
        }
    }
}

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_time(f, self.0)
    }
}

impl Display for Timetz {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_time(f, self.micros)?;
        write_zone(f, self.west)
    }
}

impl Timestamp {
    pub(crate) fn write(self, with_zone: bool) -> String {
        struct WithZone(Timestamp, bool);
        impl Display for WithZone {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                let (days, micros) = self.0.split();
                write_moment(f, Day::of_number(days), Some(micros), self.1.then_some(0))
            }
        }
        match self.0 {
            i64::MIN => "-infinity".to_owned(),
            i64::MAX => "infinity".to_owned(),
            _ => WithZone(self, with_zone).to_string(),
        }
    }
}

fn write_moment(f: &mut Formatter<'_>, day: Day, micros: Option<i64>, west: Option<i32>) -> fmt::Result {
    let year = if day.year > 0 { day.year } else { 1 - day.year };
    write!(f, "{year:04}-{:02}-{:02}", day.month, day.day)?;
    if let Some(micros) = micros {
        f.write_str(" ")?;
        write_time(f, micros)?;
    }
    if let Some(west) = west {
        write_zone(f, west)?;
    }
    f.write_str(if day.year > 0 { "" } else { " BC" })
}

fn write_time(f: &mut Formatter<'_>, micros: i64) -> fmt::Result {
    let seconds = micros / MICROS_PER_SECOND;
    write!(f, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
    match micros % MICROS_PER_SECOND {
        0 => Ok(()),
        fraction => f.write_str(format!(".{fraction:06}").trim_end_matches('0')),
    }
}

fn write_zone(f: &mut Formatter<'_>, west: i32) -> fmt::Result {
    let east = west.abs();
    write!(f, "{}{:02}", if west <= 0 { '+' } else { '-' }, east / 3600)?;
    if east % 3600 != 0 {
        write!(f, ":{:02}", east / 60 % 60)?;
    }
    if east % 60 != 0 {
        write!(f, ":{:02}", east % 60)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postgres_writes_is_read_and_written_again() {
        for text in ["2000-01-01", "0044-03-15 BC", "12345-12-31", "infinity", "-infinity", "4714-11-24 BC"] {
            assert_eq!(Date::parse(text).unwrap().to_string(), text);
        }
        for text in ["2000-01-01 00:00:00", "1999-12-31 23:59:59.000001", "294276-12-31 23:59:59.999999"] {
            assert_eq!(Timestamp::parse(text, false).unwrap().write(false), text);
        }
        for text in ["2000-01-01 00:00:00+00", "0001-01-01 12:00:00.5+00 BC"] {
            assert_eq!(Timestamp::parse(text, true).unwrap().write(true), text);
        }
        for text in ["00:00:00+00", "24:00:00-15:59:59", "12:34:56.789+05:30"] {
            assert_eq!(Timetz::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn fields_that_cant_be_are_told_from_forms_that_we_dont_read() {
        for text in ["2023-02-29", "2023-13-01", "0000-01-01", "2023-01-32"] {
            assert_eq!(Date::parse(text), Err(InputError::Field), "{text}");
        }
        for text in ["", "01/02/2003", "Jan 1 2000", "20000101", "2000-001", "99-01-01"] {
            assert!(matches!(Date::parse(text), Err(InputError::Unsupported(_))), "{text}");
        }
        assert_eq!(Time::parse("24:00:01"), Err(InputError::Field));
        assert_eq!(Timetz::parse("12:00+16"), Err(InputError::Zone));
        assert_eq!(Timestamp::parse("2000-01-01 00:00+01", true).unwrap().0, -3_600_000_000);
    }
}
