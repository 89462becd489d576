//! Texts of numbers in the forms that Postgres reads since 16: with underscores, or with a base.

use std::borrow::Cow;

use crate::input_error::InputError;
use crate::numeric::Numeric;

/// Maximum number of digits of a numeric with a base. The time to read it grows with the square.
const MAX_DIGITS: usize = 4_000;
/// Number of digits that are read at once. Even in base 16, they fit an i64.
const CHUNK: usize = 12;

/// A whole number with a base: `-0x1f`, `0o17`, `0b1_1`.
struct BasedNumber {
    negative: bool,
    base: u32,
    /// The digits without underscores.
    digits: String,
}

/// Parses an integer.
pub(crate) fn integer(text: &str) -> Result<i128, InputError> {
    let range = |_| InputError::Range;
    match based(text)? {
        Some(BasedNumber { negative, base, digits }) => {
            // No type of integers has more digits.
            let digits = digits.trim_start_matches('0');
            let magnitude = match digits.len() {
                0 => 0,
                1..=100 => i128::from_str_radix(digits, base).map_err(range)?,
                _ => return Err(InputError::Range),
            };
            Ok(if negative { -magnitude } else { magnitude })
        }
        None => {
            let text = without_underscores(text)?;
            let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(InputError::Syntax);
            }
            text.parse().map_err(|_| InputError::Range)
        }
    }
}

/// Parses a numeric.
pub(crate) fn numeric(text: &str) -> Result<Numeric, InputError> {
    let Some(BasedNumber { negative, base, digits }) = based(text)? else {
        return Numeric::parse(&without_underscores(text)?);
    };
    if digits.len() > MAX_DIGITS {
        return Err(InputError::Unsupported("numbers with a base and so many digits"));
    }
    let mut number = Numeric::from_i64(0);
    for chunk in digits.as_bytes().chunks(CHUNK) {
        let chunk = std::str::from_utf8(chunk).expect("digits are ASCII");
        let value = i64::from_str_radix(chunk, base).map_err(|_| InputError::Syntax)?;
        let unit = Numeric::from_i64(i64::from(base).pow(chunk.len() as u32));
        let shifted = number.multiply(&unit).map_err(|_| InputError::Overflow)?;
        number = shifted.add(&Numeric::from_i64(value)).map_err(|_| InputError::Overflow)?;
    }
    Ok(if negative { number.negated() } else { number })
}

/// Splits a number with a base. `None`: it has none.
fn based(text: &str) -> Result<Option<BasedNumber>, InputError> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let base = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => 16,
        [b'0', b'o' | b'O', ..] => 8,
        [b'0', b'b' | b'B', ..] => 2,
        _ => return Ok(None),
    };
    let mut digits = String::new();
    let mut after_digit = true;
    for digit in unsigned[2..].chars() {
        match digit {
            '_' if after_digit => after_digit = false,
            digit if digit.is_digit(base) => {
                digits.push(digit);
                after_digit = true;
            }
            _ => return Err(InputError::Syntax),
        }
    }
    if digits.is_empty() || !after_digit {
        return Err(InputError::Syntax);
    }
    Ok(Some(BasedNumber { negative: text.starts_with('-'), base, digits }))
}

/// Removes underscores. Fails unless each is between two digits.
fn without_underscores(text: &str) -> Result<Cow<'_, str>, InputError> {
    if !text.contains('_') {
        return Ok(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let is_within = |at: usize| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    if !bytes.iter().enumerate().all(|(at, byte)| *byte != b'_' || is_within(at)) {
        return Err(InputError::Syntax);
    }
    Ok(Cow::Owned(text.replace('_', "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_underscores_and_bases() {
        for (text, value) in [
            ("1_000", 1000),
            ("-0x1F", -31),
            ("+0o1_7", 15),
            ("0b_11", 3),
            ("0X7fff_ffff_ffff_ffff", i64::MAX.into()),
            ("0x0000", 0),
        ] {
            assert_eq!(integer(text), Ok(value), "{text}");
            assert_eq!(numeric(text).unwrap().to_string(), value.to_string(), "{text}");
        }
        for text in ["_1", "1_", "1__0", "0x", "0x_", "0x1_", "0b2", "0xg", "- 0x1", "0x1.5"] {
            assert_eq!(integer(text), Err(InputError::Syntax), "{text}");
            assert_eq!(numeric(text), Err(InputError::Syntax), "{text}");
        }
        assert_eq!(numeric("1_0.5_0e1_0").unwrap().to_string(), "105000000000");
        for text in ["1_.5", "1._5", "1.5_", "1e_5", "1_e5", "N_aN"] {
            assert_eq!(numeric(text), Err(InputError::Syntax), "{text}");
        }
        assert_eq!(numeric("0xffffffffffffffffffff").unwrap().to_string(), "1208925819614629174706175");
        assert_eq!(integer(&format!("0x1{}", "0".repeat(200))), Err(InputError::Range));
        let long = format!("0x{}", "f".repeat(5_000));
        assert!(matches!(numeric(&long), Err(InputError::Unsupported(_))));
    }
}
