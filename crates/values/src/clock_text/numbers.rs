//! Numbers within a field, read as C's strtol and strtod read them.

use crate::input_error::InputError;

/// Splits a text after its leading number. No digits are the number 0, as for strtol.
///
/// # Errors
/// Returns `overflow` if the number is out of the range of int4.
pub(super) fn leading_int(text: &str, overflow: InputError) -> Result<(i64, &str), InputError> {
    let unsigned =
        text.strip_prefix(['+', '-']).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let (number, rest) = leading_long(unsigned.unwrap_or(text), overflow)?;
    let number = if unsigned.is_some() && text.starts_with('-') { -number } else { number };
    if i32::try_from(number).is_ok() { Ok((number, rest)) } else { Err(overflow) }
}

/// Splits a text after its leading digits, for numbers in the range of int8.
pub(super) fn leading_long(text: &str, overflow: InputError) -> Result<(i64, &str), InputError> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(length);
    match digits {
        "" => Ok((0, rest)),
        digits => Ok((digits.parse().map_err(|_| overflow)?, rest)),
    }
}

/// Parses `.` and digits: a fraction from 0 to 1.
pub(super) fn fraction(text: &str) -> Result<f64, InputError> {
    match text.strip_prefix('.') {
        Some("") => Ok(0.0),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_err(|_| InputError::Syntax)
        }
        _ => Err(InputError::Syntax),
    }
}

/// Parses `.` and digits as microseconds.
pub(super) fn micros(text: &str) -> Result<i64, InputError> {
    Ok((fraction(text)? * 1e6).round_ties_even() as i64)
}

/// Hours, minutes, seconds and microseconds of `04:05:06.7`.
pub(super) struct ClockReading {
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
    pub(super) micros: i64,
}

impl ClockReading {
    /// Parses digits with colons. `hours_shift_down`: two numbers are minutes and seconds.
    pub(super) fn parse(text: &str, hours_shift_down: bool) -> Result<Self, InputError> {
        let (hour, rest) = leading_long(text, InputError::Field)?;
        let rest = rest.strip_prefix(':').ok_or(InputError::Syntax)?;
        let (minute, rest) = leading_int(rest, InputError::Field)?;
        let reading = if rest.is_empty() && !hours_shift_down {
            ClockReading { hour, minute, second: 0, micros: 0 }
        } else if rest.is_empty() || rest.starts_with('.') {
            let micros = if rest.is_empty() { 0 } else { micros(rest)? };
            // Postgres stores these hours as minutes, in an int4.
            if hour > i64::from(i32::MAX) {
                return Err(InputError::Field);
            }
            ClockReading { hour: 0, minute: hour, second: minute, micros }
        } else {
            let rest = rest.strip_prefix(':').ok_or(InputError::Syntax)?;
            let (second, rest) = leading_int(rest, InputError::Field)?;
            let micros = if rest.is_empty() { 0 } else { micros(rest)? };
            ClockReading { hour, minute, second, micros }
        };
        if !(0..60).contains(&reading.minute)
            || !(0..=60).contains(&reading.second)
            || reading.micros > 1_000_000
        {
            return Err(InputError::Field);
        }
        Ok(reading)
    }
}
