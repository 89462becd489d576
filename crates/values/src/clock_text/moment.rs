//! Dates and times of any form (DecodeDateTime, DecodeTimeOnly).

use super::fields::{FieldForm, TextField, split};
use super::numbers::{ClockReading, leading_int, micros};
use super::words::DateWord;
use super::{CERTAIN_BYTES, mask, uncertain};
use crate::calendar::{Day, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::input_error::{CURRENT_TIME, InputError};

const NAMED_ZONES: &str = "dates and times with named time zones";
const LABELLED: InputError = InputError::Unsupported("dates and times with labelled fields");

/// What a text is parsed as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MomentText {
    /// A date, a timestamp or a timestamptz.
    #[default]
    Date,
    /// A time or a timetz. It may have a date, too.
    TimeOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodedMoment {
    Finite(MomentFields),
    Epoch,
    Infinity,
    NegativeInfinity,
}

/// A parsed date and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MomentFields {
    pub(crate) day: Day,
    /// Microseconds since midnight.
    pub(crate) micros: i64,
    /// Seconds west of Greenwich. Zero without a zone.
    pub(crate) west: i64,
}

impl MomentText {
    pub(crate) fn decode(self, text: &str) -> Result<DecodedMoment, InputError> {
        let mut decoder = MomentDecoder { kind: self, ..MomentDecoder::default() };
        let result = split(text).and_then(|fields| decoder.decode(&fields));
        match (text.len() > CERTAIN_BYTES, decoder.has_unknown_zone) {
            (false, false) => result,
            (true, _) => uncertain(result, "long texts of dates and times"),
            (false, true) => uncertain(result, NAMED_ZONES),
        }
    }
}

/// State of the decoder: the values so far, and which of them are set.
#[derive(Debug, Default)]
struct MomentDecoder {
    kind: MomentText,
    set: u32,
    year: i64,
    month: i64,
    day: i64,
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    west: i64,
    is_after_noon: Option<bool>,
    before_christ: bool,
    has_month_word: bool,
    has_short_year: bool,
    /// After `t`, before the time.
    expects_time: bool,
    /// Whether a word was taken for a zone that may not exist.
    has_unknown_zone: bool,
    special: Option<DecodedMoment>,
}

impl MomentDecoder {
    fn decode(&mut self, fields: &[TextField]) -> Result<DecodedMoment, InputError> {
        for (index, field) in fields.iter().enumerate() {
            let set = match field.form {
                FieldForm::Date => self.date_field(index, fields)?,
                FieldForm::Time => {
                    self.expects_time = false;
                    self.clock(ClockReading::parse(&field.text, false)?)?
                }
                FieldForm::Signed => {
                    self.west = zone(&field.text)?;
                    mask::ZONE
                }
                FieldForm::Number => self.number_field(index, fields)?,
                FieldForm::Word | FieldForm::SignedWord => match self.word(index, fields)? {
                    Some(set) => set,
                    None => continue,
                },
            };
            if set & self.set != 0 {
                return Err(InputError::Syntax);
            }
            self.set |= set;
        }
        if let Some(special) = self.special {
            return Ok(special);
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<DecodedMoment, InputError> {
        self.check_date()?;
        if let Some(is_after_noon) = self.is_after_noon {
            if self.hour > 12 {
                return Err(InputError::Field);
            }
            self.hour = self.hour % 12 + if is_after_noon { 12 } else { 0 };
        }
        let micros = ((self.hour * 60 + self.minute) * 60 + self.second) * MICROS_PER_SECOND + self.micros;
        let overflows = self.hour > 24 || self.minute > 59 || self.second > 60 || micros > MICROS_PER_DAY;
        let required = match self.kind {
            MomentText::Date => mask::DATE,
            MomentText::TimeOnly if overflows => return Err(InputError::Field),
            MomentText::TimeOnly => mask::TIME,
        };
        if self.set & required != required || self.set & mask::DAYLIGHT != 0 && self.set & mask::ZONE == 0 {
            return Err(InputError::Syntax);
        }
        let has_part = self.set & mask::DATE != 0 && self.set & mask::DATE != mask::DATE;
        if has_part && self.set & mask::ZONE == 0 {
            return Err(InputError::Syntax);
        }
        if overflows {
            // Postgres checks only times with colons.
            return Err(InputError::Unsupported("times of day beyond 24 hours"));
        }
        let day = Day { year: self.year, month: self.month, day: self.day };
        Ok(DecodedMoment::Finite(MomentFields { day, micros, west: self.west }))
    }

    /// Checks year, month and day (ValidateDate). Resolves eras, short years and days of the year.
    fn check_date(&mut self) -> Result<(), InputError> {
        if self.set & mask::YEAR != 0 {
            if self.before_christ {
                if self.year <= 0 {
                    return Err(InputError::Field);
                }
                self.year = 1 - self.year;
            } else if self.has_short_year {
                self.year += match self.year {
                    ..70 => 2000,
                    70..100 => 1900,
                    _ => 0,
                };
            } else if self.year <= 0 {
                return Err(InputError::Field);
            }
        }
        if self.set & mask::DAY_OF_YEAR != 0 {
            if self.year > 5_874_898 {
                return Err(InputError::Unsupported("days of years after 5874898"));
            }
            let first = Day { year: self.year, month: 1, day: 1 }.number();
            let day = Day::of_number(first + self.day_of_year - 1);
            (self.year, self.month, self.day) = (day.year, day.month, day.day);
        }
        if self.set & mask::MONTH != 0 && !(1..=12).contains(&self.month)
            || self.set & mask::DAY != 0 && !(1..=31).contains(&self.day)
        {
            return Err(InputError::Field);
        }
        let is_real = Day { year: self.year, month: self.month, day: self.day }.is_real();
        if self.set & mask::DATE == mask::DATE && !is_real { Err(InputError::Field) } else { Ok(()) }
    }

    fn clock(&mut self, reading: ClockReading) -> Result<u32, InputError> {
        let ClockReading { hour, minute, second, micros } = reading;
        (self.hour, self.minute, self.second, self.micros) = (hour, minute, second, micros);
        let total = i128::from(hour) * 3_600_000_000
            + i128::from((minute * 60 + second) * MICROS_PER_SECOND + micros);
        let is_checked = self.kind == MomentText::Date || hour > i64::from(i32::MAX);
        let overflows = hour > 24 || total > i128::from(MICROS_PER_DAY);
        if is_checked && overflows { Err(InputError::Field) } else { Ok(mask::TIME) }
    }

    /// Decodes digits or letters with separators: a date, a time with a zone, or a zone's name.
    fn date_field(&mut self, index: usize, fields: &[TextField]) -> Result<u32, InputError> {
        let text = fields[index].text.as_str();
        let is_date = match self.kind {
            MomentText::Date => {
                let days = mask::MONTH | mask::DAY;
                !self.expects_time && self.set & days != days
            }
            MomentText::TimeOnly => {
                let last_is_date = fields.last().is_some_and(|field| field.form == FieldForm::Date);
                index == 0 && fields.len() >= 2 && (last_is_date || fields[1].form == FieldForm::Time)
            }
        };
        if is_date {
            return self.date(text);
        }
        if self.kind == MomentText::TimeOnly && self.expects_time {
            return Err(LABELLED);
        }
        let is_time = std::mem::take(&mut self.expects_time);
        if !text.starts_with(|first: char| first.is_ascii_digit()) && !is_time {
            return Err(InputError::Unsupported(NAMED_ZONES));
        }
        if self.set & mask::TIME == mask::TIME {
            return Err(InputError::Syntax);
        }
        let at = text.find('-').ok_or(InputError::Syntax)?;
        self.west = zone(&text[at..])?;
        let assumed = match self.kind {
            MomentText::Date => self.set,
            MomentText::TimeOnly => self.set | mask::DATE,
        };
        Ok(self.run_together(&text[..at], assumed)? | mask::ZONE)
    }

    /// Decodes a date with separators (DecodeDate).
    fn date(&mut self, text: &str) -> Result<u32, InputError> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            rest = rest.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
            let first = rest.chars().next().ok_or(InputError::Syntax)?;
            let same =
                |c: char| if first.is_ascii_digit() { c.is_ascii_digit() } else { c.is_ascii_alphabetic() };
            let length = rest.find(|c| !same(c)).unwrap_or(rest.len());
            parts.push(&rest[..length]);
            // Postgres overwrites the character after a part.
            rest = rest.get(length + 1..).unwrap_or_default();
        }
        let (mut set, mut added, mut has_month_word) = (self.set, 0, false);
        let mut add = |part: u32| {
            if set & part != 0 {
                return Err(InputError::Syntax);
            }
            set |= part;
            added |= part;
            Ok(set)
        };
        let mut known = self.set;
        // A month's name first. Postgres takes other words for numbers.
        for word in parts.iter().filter(|part| part.starts_with(|c: char| c.is_ascii_alphabetic())) {
            match DateWord::keyword(word) {
                Some(DateWord::Filler) => continue,
                Some(DateWord::Month(month)) => (self.month, has_month_word) = (month, true),
                _ => return Err(InputError::Syntax),
            }
            known = add(mask::MONTH)?;
        }
        let is_month = |part: &str| matches!(DateWord::keyword(part), Some(DateWord::Month(_)));
        for part in parts.into_iter().filter(|part| !is_month(part)) {
            let part = self.number(part, has_month_word, known)?;
            known = add(part)?;
        }
        let complete = set & !(mask::DAY_OF_YEAR | mask::ZONE) == mask::DATE;
        if complete { Ok(added) } else { Err(InputError::Syntax) }
    }

    fn number_field(&mut self, index: usize, fields: &[TextField]) -> Result<u32, InputError> {
        let text = fields[index].text.as_str();
        let before_point = text.find('.');
        if std::mem::take(&mut self.expects_time) {
            let (_, rest) = leading_int(text, InputError::Field)?;
            if !rest.is_empty() && !rest.starts_with('.') {
                return Err(InputError::Syntax);
            }
            let set = self.run_together(text, self.set | mask::DATE)?;
            return if set == mask::TIME { Ok(set) } else { Err(InputError::Syntax) };
        }
        if self.kind == MomentText::TimeOnly {
            let assumed = self.set | mask::DATE;
            let last_is_date = fields.last().is_some_and(|field| field.form == FieldForm::Date);
            return match before_point {
                Some(_) if index == 0 && fields.len() >= 2 && last_is_date => self.date(text),
                Some(at) if at > 2 => self.run_together(text, assumed),
                Some(_) => Err(InputError::Syntax),
                None if text.len() > 4 => self.run_together(text, assumed),
                None => self.number(text, false, assumed),
            };
        }
        let has = |part: u32| self.set & part == part;
        match before_point {
            Some(_) if self.set & mask::DATE == 0 => self.date(text),
            Some(at) if at > 2 => self.run_together(text, self.set),
            _ if text.len() >= 6 && (self.set & mask::DATE == 0 || !has(mask::TIME)) => {
                self.run_together(text, self.set)
            }
            _ => self.number(text, self.has_month_word, self.set),
        }
    }

    /// Decodes one number by the parts that are set already (DecodeNumber).
    fn number(&mut self, text: &str, has_month_word: bool, set: u32) -> Result<u32, InputError> {
        let (value, rest) = leading_int(text, InputError::Field)?;
        if rest.len() == text.len() {
            return Err(InputError::Syntax);
        }
        if rest.starts_with('.') {
            if text.len() - rest.len() > 2 {
                return self.run_together(text, set | mask::DATE);
            }
            self.micros = micros(rest)?;
        } else if !rest.is_empty() {
            return Err(InputError::Syntax);
        }
        let (year, month, day) = (mask::YEAR, mask::MONTH, mask::DAY);
        let date = set & mask::DATE;
        if text.len() == 3 && date == year && (1..=366).contains(&value) {
            self.day_of_year = value;
            return Ok(mask::DAY_OF_YEAR | month | day);
        }
        let part = match date {
            0 if text.len() >= 3 => year,
            0 => day,
            _ if date == year => month,
            _ if date == month && has_month_word && text.len() >= 3 => year,
            _ if date == month => day,
            _ if date == year | month => {
                if has_month_word && text.len() >= 3 && self.has_short_year {
                    // The first number was the day.
                    (self.day, self.year, self.has_short_year) = (self.year, value, false);
                    return Ok(day);
                }
                day
            }
            _ if date == day => month,
            _ if date == month | day => year,
            mask::DATE => return self.run_together(text, set),
            _ => return Err(InputError::Syntax),
        };
        if part == year {
            (self.year, self.has_short_year) = (value, text.len() <= 2);
        } else if part == month {
            self.month = value;
        } else {
            self.day = value;
        }
        Ok(part)
    }

    /// Decodes digits without separators: a date, or a time (DecodeNumberField).
    fn run_together(&mut self, text: &str, set: u32) -> Result<u32, InputError> {
        let (digits, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
        let number = |digits: &str| digits.parse::<i64>().map_err(|_| InputError::Syntax);
        if !rest.is_empty() {
            self.micros = micros(rest)?;
        } else if set & mask::DATE != mask::DATE && digits.len() >= 6 {
            let (year, month_day) = digits.split_at(digits.len() - 4);
            if year.len() > 9 {
                return Err(InputError::Unsupported("years of more than nine digits"));
            }
            (self.year, self.month, self.day) =
                (number(year)?, number(&month_day[..2])?, number(&month_day[2..])?);
            if year.len() == 2 {
                self.has_short_year = true;
            }
            return Ok(mask::DATE);
        }
        if set & mask::TIME != mask::TIME && matches!(digits.len(), 4 | 6) {
            (self.hour, self.minute) = (number(&digits[..2])?, number(&digits[2..4])?);
            self.second = if digits.len() == 6 { number(&digits[4..])? } else { 0 };
            return Ok(mask::TIME);
        }
        Err(InputError::Syntax)
    }

    /// Decodes a word. `None`: the word has no meaning of its own.
    fn word(&mut self, index: usize, fields: &[TextField]) -> Result<Option<u32>, InputError> {
        let word = fields[index].text.as_str();
        let Some(meaning) = DateWord::of(word) else {
            if fields[index].form == FieldForm::SignedWord {
                return Err(InputError::Syntax);
            }
            self.has_unknown_zone = true;
            return Ok(Some(mask::ZONE));
        };
        let time_only = self.kind == MomentText::TimeOnly;
        Ok(Some(match meaning {
            DateWord::Filler => return Ok(None),
            DateWord::Clock => return Err(InputError::Unsupported(CURRENT_TIME)),
            DateWord::Unit => return Err(LABELLED),
            DateWord::Infinity
            | DateWord::NegativeInfinity
            | DateWord::Epoch
            | DateWord::Month(_)
            | DateWord::Weekday
                if time_only =>
            {
                return Err(InputError::Syntax);
            }
            // Versions differ in what else such a text may have.
            DateWord::Infinity | DateWord::NegativeInfinity | DateWord::Epoch
                if fields.len() > 1 || word.starts_with('+') =>
            {
                return Err(InputError::Unsupported("infinite dates and epochs with other fields"));
            }
            DateWord::Infinity => self.special(DecodedMoment::Infinity),
            DateWord::NegativeInfinity => self.special(DecodedMoment::NegativeInfinity),
            DateWord::Epoch => self.special(DecodedMoment::Epoch),
            DateWord::Midnight => {
                (self.hour, self.minute, self.second, self.west) = (0, 0, 0, 0);
                mask::TIME | mask::ZONE
            }
            DateWord::BeforeChrist | DateWord::AnnoDomini => {
                self.before_christ = meaning == DateWord::BeforeChrist;
                mask::ERA
            }
            DateWord::BeforeNoon | DateWord::AfterNoon => {
                self.is_after_noon = Some(meaning == DateWord::AfterNoon);
                mask::HALF_DAY
            }
            DateWord::Weekday => mask::WEEKDAY,
            DateWord::Month(month) => self.month_word(month),
            DateWord::DaylightSaving => {
                self.west -= 3600;
                mask::DAYLIGHT
            }
            DateWord::Zone { east, summer } => {
                self.west = -east;
                mask::ZONE | if summer { mask::DAYLIGHT } else { 0 }
            }
            DateWord::Time => {
                if !time_only && self.set & mask::DATE != mask::DATE {
                    return Err(InputError::Syntax);
                }
                // Versions differ in what else may follow.
                let follows = fields.get(index + 1).is_some_and(|next| {
                    matches!(next.form, FieldForm::Number | FieldForm::Time | FieldForm::Date)
                });
                if !follows {
                    return Err(LABELLED);
                }
                self.expects_time = true;
                0
            }
        }))
    }

    fn special(&mut self, special: DecodedMoment) -> u32 {
        self.special = Some(special);
        mask::DATE | mask::TIME | mask::ZONE
    }

    /// Takes a month's name. A number before it that was taken for the month is the day.
    fn month_word(&mut self, month: i64) -> u32 {
        let was_number = self.set & mask::MONTH != 0 && !self.has_month_word;
        let is_day = was_number && self.set & mask::DAY == 0 && (1..=31).contains(&self.month);
        if is_day {
            self.day = self.month;
        }
        (self.month, self.has_month_word) = (month, true);
        if is_day { mask::DAY } else { mask::MONTH }
    }
}

/// Parses a sign, hours, and optional minutes and seconds (DecodeTimezone). Returns seconds west of
/// Greenwich.
fn zone(text: &str) -> Result<i64, InputError> {
    let digits = text.strip_prefix(['+', '-']).ok_or(InputError::Syntax)?;
    let (mut hours, mut rest) = leading_int(digits, InputError::Zone)?;
    let (mut minutes, mut seconds) = (0, 0);
    if let Some(after) = rest.strip_prefix(':') {
        (minutes, rest) = leading_int(after, InputError::Zone)?;
        if let Some(after) = rest.strip_prefix(':') {
            (seconds, rest) = leading_int(after, InputError::Zone)?;
        }
    } else if rest.is_empty() && text.len() > 3 {
        (hours, minutes) = (hours / 100, hours % 100);
    }
    if !(0..=15).contains(&hours) || !(0..60).contains(&minutes) || !(0..60).contains(&seconds) {
        return Err(InputError::Zone);
    }
    if !rest.is_empty() {
        return Err(InputError::Syntax);
    }
    let offset = (hours * 60 + minutes) * 60 + seconds;
    Ok(if text.starts_with('-') { offset } else { -offset })
}
