//! Parses text as values, by the rules of Postgres' input functions.

use std::borrow::Cow;

use super::array::Array;
use super::bytes;
use super::datetime::{Date, Time, Timestamp, Timetz};
use super::input_error::InputError;
use super::interval::Interval;
use super::interval_fields::IntervalFields;
use super::json;
use super::multirange::Multirange;
use super::network::{self, Inet};
use super::number_text;
use super::numeric::Numeric;
use super::range::Range;
use super::sql_value::SqlValue;
use crate::scalar::{Scalar, ValueType};

/// Trims blanks as isspace() of the C locale defines them.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
}

impl<'a> SqlValue<'a> {
    /// Parses a text as a value of the type. `modern`: as Postgres 16 and newer do.
    ///
    /// # Errors
    /// Fails if the text is not a value of the type, or has a form that this crate does not parse.
    #[inline]
    pub fn parse(text: &'a str, kind: ValueType, modern: bool) -> Result<Self, InputError> {
        match kind {
            ValueType::Scalar(scalar) => SqlValue::parse_scalar(text, scalar, modern),
            ValueType::Array(element) => Ok(SqlValue::array(Array::parse(text, element, modern)?)),
        }
    }

    /// Parses a text as a value of the scalar type. `modern`: as Postgres 16 and newer do.
    ///
    /// # Errors
    /// Fails if the text is not a value of the type, or has a form that this crate does not parse.
    #[inline]
    pub fn parse_scalar(text: &'a str, scalar: Scalar, modern: bool) -> Result<Self, InputError> {
        Ok(match scalar {
            Scalar::Text | Scalar::Varchar | Scalar::Bpchar => SqlValue::text(text),
            Scalar::Bool => SqlValue::Bool(boolean(text)?),
            Scalar::Int2 => SqlValue::Int(integer(text, i64::from(i16::MIN), i64::from(i16::MAX), modern)?),
            Scalar::Int4 => SqlValue::Int(integer(text, i64::from(i32::MIN), i64::from(i32::MAX), modern)?),
            Scalar::Int8 => SqlValue::Int(integer(text, i64::MIN, i64::MAX, modern)?),
            Scalar::Numeric if modern => SqlValue::numeric(number_text::numeric(trim(text))?),
            Scalar::Numeric => SqlValue::numeric(Numeric::parse(text)?),
            Scalar::Float4 => {
                let text = float_text(text)?;
                let value: f32 = text.parse().map_err(|_| InputError::Syntax)?;
                SqlValue::Float4(in_range(f64::from(value), text)? as f32)
            }
            Scalar::Float8 => {
                let text = float_text(text)?;
                let value: f64 = text.parse().map_err(|_| InputError::Syntax)?;
                SqlValue::Float8(in_range(value, text)?)
            }
            Scalar::Uuid => SqlValue::Uuid(uuid(text)?),
            Scalar::Date => SqlValue::Date(Date::parse(text)?),
            Scalar::Time => SqlValue::Time(Time::parse(text)?),
            Scalar::Timetz => SqlValue::Timetz(Timetz::parse(text)?),
            Scalar::Timestamp => SqlValue::Timestamp(Timestamp::parse(text, false)?),
            Scalar::Timestamptz => SqlValue::Timestamp(Timestamp::parse(text, true)?),
            Scalar::Interval => SqlValue::Interval(Interval::parse(text, IntervalFields::ALL, modern)?),
            Scalar::Jsonb => SqlValue::Json(Cow::Owned(json::input::parse(text)?)),
            Scalar::Json => {
                json::input::check(text)?;
                SqlValue::text(text)
            }
            Scalar::Bytea => SqlValue::Bytes(Cow::Owned(bytes::parse(text)?)),
            Scalar::Inet => SqlValue::Inet(Inet::parse_inet(text)?),
            Scalar::Cidr => SqlValue::Inet(Inet::parse_cidr(text)?),
            Scalar::Macaddr => SqlValue::Macaddr(network::mac(text)?),
            // The label. The typer checks constants, and rows have only labels that exist.
            Scalar::Enum(_) => SqlValue::text(text),
            Scalar::Int4range
            | Scalar::Int8range
            | Scalar::Numrange
            | Scalar::Tsrange
            | Scalar::Tstzrange
            | Scalar::Daterange => {
                let element = scalar.range_element().expect("it is a range");
                SqlValue::Range(Cow::Owned(Range::parse(text, element, modern)?))
            }
            Scalar::Int4multirange
            | Scalar::Int8multirange
            | Scalar::Nummultirange
            | Scalar::Tsmultirange
            | Scalar::Tstzmultirange
            | Scalar::Datemultirange => {
                let range = scalar.multirange_range().expect("it is a multirange");
                let element = range.range_element().expect("it has ranges");
                SqlValue::Multirange(Cow::Owned(Multirange::parse(text, element, modern)?))
            }
        })
    }
}

fn boolean(text: &str) -> Result<bool, InputError> {
    match text {
        "t" => return Ok(true),
        "f" => return Ok(false),
        _ => {}
    }
    let word = trim(text).to_ascii_lowercase();
    let starts = |whole: &str, least: usize| word.len() >= least && whole.starts_with(&word);
    if word == "1" || starts("true", 1) || starts("yes", 1) || word == "on" {
        Ok(true)
    } else if word == "0" || starts("false", 1) || starts("no", 1) || starts("off", 2) {
        Ok(false)
    } else {
        Err(InputError::Syntax)
    }
}

fn integer(text: &str, min: i64, max: i64, modern: bool) -> Result<i64, InputError> {
    if let Some(value) = short_integer(text.as_bytes()) {
        return if (min..=max).contains(&value) { Ok(value) } else { Err(InputError::Range) };
    }
    let trimmed = trim(text);
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    let value = if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        trimmed.parse().map_err(|_| InputError::Range)?
    } else if modern {
        i64::try_from(number_text::integer(trimmed)?).map_err(|_| InputError::Range)?
    } else {
        return Err(InputError::Syntax);
    };
    if (min..=max).contains(&value) { Ok(value) } else { Err(InputError::Range) }
}

/// Parses an integer in the form that the server writes, if it is too short to overflow. Almost all
/// integers of rows are.
pub(crate) fn short_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0_i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value })
}

/// Trims a float's text. Fails unless Rust and C parse it to the same value.
fn float_text(text: &str) -> Result<&str, InputError> {
    let text = trim(text);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => return Err(InputError::Unsupported("numbers in hexadecimal")),
        Some("na") if unsigned.len() > 3 => return Err(InputError::Syntax),
        _ => {}
    }
    let plain = unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let words = ["nan", "inf", "infinity"].iter().any(|word| unsigned.eq_ignore_ascii_case(word));
    let has_digit = unsigned.bytes().any(|byte| byte.is_ascii_digit());
    if (plain && has_digit) || words { Ok(text) } else { Err(InputError::Syntax) }
}

/// Fails on overflow and underflow, unless the text means infinity or zero.
fn in_range(value: f64, text: &str) -> Result<f64, InputError> {
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    let is_word = text.bytes().any(|byte| byte | 32 == b'n');
    let zero_meant = !digits.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
    if (value.is_infinite() && !is_word) || (value == 0.0 && !zero_meant) {
        return Err(InputError::Range);
    }
    Ok(value)
}

fn uuid(text: &str) -> Result<[u8; 16], InputError> {
    let inner = match text.strip_prefix('{') {
        Some(inner) => inner.strip_suffix('}').ok_or(InputError::Syntax)?,
        None => text,
    };
    let (bytes, mut at, mut uuid) = (inner.as_bytes(), 0, [0; 16]);
    for (position, byte) in uuid.iter_mut().enumerate() {
        let [high, low] =
            [at, at + 1].map(|position| bytes.get(position).and_then(|digit| hexadecimal(*digit)));
        *byte = high.zip(low).map(|(high, low)| high << 4 | low).ok_or(InputError::Syntax)?;
        at += 2;
        if position % 2 == 1 && position < 15 && bytes.get(at) == Some(&b'-') {
            at += 1;
        }
    }
    if at == bytes.len() { Ok(uuid) } else { Err(InputError::Syntax) }
}

pub(super) fn hexadecimal(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_any_unambiguous_beginning() {
        for (text, value) in [("t", true), (" YES ", true), ("of", false), ("n", false), ("1", true)] {
            assert_eq!(boolean(text), Ok(value), "{text}");
        }
        for text in ["", "o", "tru e", "2", "offf"] {
            assert!(boolean(text).is_err(), "{text}");
        }
    }

    #[test]
    fn integers_are_within_their_type() {
        let int2 = |text| integer(text, -32768, 32767, false);
        assert_eq!(int2(" -32768 "), Ok(-32768));
        assert_eq!(int2("32768"), Err(InputError::Range));
        assert_eq!(int2("0x10"), Err(InputError::Syntax));
        assert_eq!(int2("1 2"), Err(InputError::Syntax));
        assert_eq!(int2("+-1"), Err(InputError::Syntax));
        assert_eq!(integer("1_0", 0, 99, false), Err(InputError::Syntax));
        assert_eq!(integer(" 1_0 ", 0, 99, true), Ok(10));
        assert_eq!(integer("-0x8000", -32768, 32767, true), Ok(-32768));
        assert_eq!(integer("0x8000", -32768, 32767, true), Err(InputError::Range));
    }

    #[test]
    fn uuids_may_have_braces_and_hyphens_after_every_fourth_digit() {
        let plain = "a0eebc999c0b4ef8bb6d6bb9bd380a11";
        for text in ["{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11"] {
            assert_eq!(uuid(text), uuid(plain));
        }
        for text in ["", "a0eebc999c0b4ef8bb6d6bb9bd380a1", "{a0eebc999c0b4ef8bb6d6bb9bd380a11", "é"] {
            assert_eq!(uuid(text), Err(InputError::Syntax), "{text}");
        }
    }
}
