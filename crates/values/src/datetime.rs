//! Dates and times. Parses the forms that Postgres writes with DateStyle ISO; `clock_text/` parses
//! all others. The time zone is UTC.

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

use super::calendar::{Day, EPOCH, MICROS_PER_DAY, MICROS_PER_SECOND};
use super::clock_text::{DecodedMoment, MomentFields, MomentText};
use super::input_error::InputError;

/// Another form than those that Postgres writes.
struct OtherForm;

/// Days since 2000-01-01. The least and the greatest value are -infinity and infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub i32);

/// Microseconds since midnight. 24:00:00 is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

/// A time of day, and its zone in seconds west of Greenwich.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timetz {
    /// Microseconds since midnight.
    pub micros: i64,
    /// Seconds west of Greenwich.
    pub west: i32,
}

/// timestamp or timestamptz: microseconds since 2000-01-01 00:00:00 UTC. The least and the greatest
/// value are -infinity and infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Date {
    const MIN: i64 = -EPOCH;
    const END: i64 = 2_147_483_494 - EPOCH;

    /// Returns whether it is neither infinity nor -infinity.
    pub fn is_finite(self) -> bool {
        self.0 != i32::MIN && self.0 != i32::MAX
    }

    pub(crate) fn checked(days: i64) -> Option<Self> {
        (Date::MIN..Date::END).contains(&days).then_some(Date(days as i32))
    }

    /// Parses a date, in any form that Postgres reads.
    ///
    /// # Errors
    /// Fails if the text is no date, or depends on the server's settings or clock.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        match Moment::decode(text, MomentText::Date)? {
            DecodedMoment::Infinity => Ok(Date(i32::MAX)),
            DecodedMoment::NegativeInfinity => Ok(Date(i32::MIN)),
            DecodedMoment::Epoch => Ok(Date(-10_957)),
            DecodedMoment::Finite(moment) => Date::checked(moment.day.number()).ok_or(InputError::OutOfRange),
        }
    }
}

impl Time {
    /// Parses a time, in any form that Postgres reads.
    ///
    /// # Errors
    /// Fails if the text is no time, or depends on the server's settings or clock.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        Ok(Time(Timetz::parse(text)?.micros))
    }
}

impl Timetz {
    /// Parses a time, in any form that Postgres reads.
    ///
    /// # Errors
    /// Fails if the text is no time, or depends on the server's settings or clock.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let mut scan = DateTimeScanner(text);
        if let (Ok(micros), Ok(west)) = (scan.time(), scan.zone())
            && scan.0.is_empty()
        {
            return Ok(Timetz { micros, west: west.unwrap_or(0) });
        }
        match MomentText::TimeOnly.decode(text)? {
            DecodedMoment::Finite(moment) => Ok(Timetz { micros: moment.micros, west: moment.west as i32 }),
            DecodedMoment::Epoch | DecodedMoment::Infinity | DecodedMoment::NegativeInfinity => {
                Err(InputError::Syntax)
            }
        }
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

    /// Returns whether it is neither infinity nor -infinity.
    pub fn is_finite(self) -> bool {
        self.0 != i64::MIN && self.0 != i64::MAX
    }

    pub(crate) fn checked(micros: i128) -> Option<Self> {
        (i128::from(Timestamp::MIN)..i128::from(Timestamp::END))
            .contains(&micros)
            .then_some(Timestamp(micros as i64))
    }

    /// Parses a timestamp. Without `with_zone`, a zone in the text is ignored, as in Postgres.
    ///
    /// # Errors
    /// Fails if the text is no timestamp, or depends on the server's settings or clock.
    pub fn parse(text: &str, with_zone: bool) -> Result<Self, InputError> {
        let MomentFields { day, micros, west } = match Moment::decode(text, MomentText::Date)? {
            DecodedMoment::Infinity => return Ok(Timestamp(i64::MAX)),
            DecodedMoment::NegativeInfinity => return Ok(Timestamp(i64::MIN)),
            DecodedMoment::Epoch => return Ok(Timestamp(-10_957 * MICROS_PER_DAY)),
            DecodedMoment::Finite(moment) => moment,
        };
        let west = if with_zone { i128::from(west) * i128::from(MICROS_PER_SECOND) } else { 0 };
        let local = i128::from(day.number()) * i128::from(MICROS_PER_DAY) + i128::from(micros);
        Timestamp::checked(local + west).ok_or(InputError::OutOfRange)
    }

    /// Returns the days since 2000-01-01, and the microseconds of the day.
    pub fn split(self) -> (i64, i64) {
        (self.0.div_euclid(MICROS_PER_DAY), self.0.rem_euclid(MICROS_PER_DAY))
    }
}

/// Parser of the forms that Postgres writes.
struct Moment;

impl Moment {
    /// Parses a text: as Postgres writes it, or else of any form.
    fn decode(text: &str, kind: MomentText) -> Result<DecodedMoment, InputError> {
        match Moment::parse(text) {
            Ok(moment) => Ok(DecodedMoment::Finite(moment)),
            Err(OtherForm) => kind.decode(text),
        }
    }

    fn parse(mut text: &str) -> Result<MomentFields, OtherForm> {
        let before_christ = text.ends_with(" BC");
        if before_christ {
            text = &text[..text.len() - 3];
        }
        let mut scan = DateTimeScanner(text);
        let mut day = scan.day()?;
        let (mut micros, mut west) = (0, 0);
        if scan.skip(' ') {
            micros = scan.time()?;
            west = scan.zone()?.unwrap_or(0).into();
        }
        if !scan.0.is_empty() || day.year == 0 {
            return Err(OtherForm);
        }
        if before_christ {
            day.year = 1 - day.year;
        }
        if day.is_real() { Ok(MomentFields { day, micros, west }) } else { Err(OtherForm) }
    }
}

struct DateTimeScanner<'t>(&'t str);

impl DateTimeScanner<'_> {
    /// Parses a number of `min` to `max` digits.
    fn number(&mut self, min: usize, max: usize) -> Result<i64, OtherForm> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        if length < min || length > max {
            return Err(OtherForm);
        }
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        digits.parse().map_err(|_| OtherForm)
    }

    fn skip(&mut self, mark: char) -> bool {
        let after = self.0.strip_prefix(mark);
        self.0 = after.unwrap_or(self.0);
        after.is_some()
    }

    fn expect(&mut self, mark: char) -> Result<(), OtherForm> {
        if self.skip(mark) { Ok(()) } else { Err(OtherForm) }
    }

    fn day(&mut self) -> Result<Day, OtherForm> {
        let year = self.number(4, 7)?;
        self.expect('-')?;
        let month = self.number(2, 2)?;
        self.expect('-')?;
        Ok(Day { year, month, day: self.number(2, 2)? })
    }

    fn time(&mut self) -> Result<i64, OtherForm> {
        let hour = self.number(2, 2)?;
        self.expect(':')?;
        let minute = self.number(2, 2)?;
        self.expect(':')?;
        let second = self.number(2, 2)?;
        let mut micros = ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND;
        if self.skip('.') {
            let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
            let digits = self.number(1, 6)?;
            micros += digits * 10_i64.pow(6 - length as u32);
        }
        if hour > 24 || minute > 59 || second > 59 || micros > MICROS_PER_DAY {
            return Err(OtherForm);
        }
        Ok(micros)
    }

    /// Parses a zone, if present. Returns seconds west of Greenwich.
    fn zone(&mut self) -> Result<Option<i32>, OtherForm> {
        let sign = match self.0.bytes().next() {
            Some(b'+') => -1,
            Some(b'-') => 1,
            _ => return Ok(None),
        };
        self.0 = &self.0[1..];
        let hours = self.number(2, 2)?;
        let minutes = if self.skip(':') { self.number(2, 2)? } else { 0 };
        let seconds = if self.skip(':') { self.number(2, 2)? } else { 0 };
        if hours > 15 || minutes > 59 || seconds > 59 {
            return Err(OtherForm);
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
    /// Formats the timestamp. `with_zone`: as a timestamptz, in UTC.
    pub fn write(self, with_zone: bool) -> String {
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
    fn texts_of_other_forms_are_read_as_by_postgres() {
        for (text, iso) in [
            ("01/02/2003", "2003-02-01"),
            ("Jan 8, 1999", "1999-01-08"),
            ("8-Jan-99", "1999-01-08"),
            ("19990108", "1999-01-08"),
            ("990108", "1999-01-08"),
            ("1999.008", "1999-01-08"),
            ("January 8, 99 BC", "0099-01-08 BC"),
            (" 2000-1-2 ", "2000-01-02"),
            ("epoch", "1970-01-01"),
        ] {
            assert_eq!(Date::parse(text).unwrap().to_string(), iso, "{text}");
        }
        let shown = |text| Timestamp::parse(text, true).unwrap().write(true);
        assert_eq!(shown("2000-01-01T04:05:06.789-8"), "2000-01-01 12:05:06.789+00");
        assert_eq!(shown("20000101T040506 PST"), "2000-01-01 12:05:06+00");
        assert_eq!(shown("Sat Jan 1 04:05 PM 2000"), "2000-01-01 16:05:00+00");
        assert_eq!(Timetz::parse("040506+07:30:15").unwrap().to_string(), "04:05:06+07:30:15");
    }

    #[test]
    fn texts_that_are_no_dates_have_the_errors_of_postgres() {
        for text in ["2023-02-29", "2023-13-01", "0000-01-01", "2023-01-32", "2003/15/1"] {
            assert_eq!(Date::parse(text), Err(InputError::Field), "{text}");
        }
        for text in ["", "abc", "hello world", "2000", "1 2", "é", "2000-01"] {
            assert_eq!(Date::parse(text), Err(InputError::Syntax), "{text}");
        }
        for text in ["now", "2000-01-01 12:00 Europe/Berlin", "J2451545", "2000-01-01 12:00 foo"] {
            assert!(matches!(Date::parse(text), Err(InputError::Unsupported(_))), "{text}");
        }
        assert_eq!(Time::parse("24:00:01"), Err(InputError::Field));
        assert_eq!(Timetz::parse("12:00+16"), Err(InputError::Zone));
        assert_eq!(Date::parse("5874898-01-01"), Err(InputError::OutOfRange));
    }
}
