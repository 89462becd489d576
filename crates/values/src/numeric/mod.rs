//! `numeric`: exact decimals of any length (numeric.c).
//!
//! The base is 10,000 as in Postgres, because the scale of a quotient depends on its digits of that
//! base. No decimal crate is used: they round at 28 digits or compute other scales, and clauses
//! must give the results of Postgres. Speed is no reason.

mod decimal;
mod division;
mod divisor;
mod power;
mod root;

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};

pub use self::decimal::Decimal;
use self::decimal::{BASE, WIDTH};
use super::input_error::InputError;
use crate::eval_error::EvalError;

/// A value of type numeric.
///
/// `==` compares representations, so 1.0 and 1.00 differ. [`Numeric::compare`] compares values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Numeric {
    /// `-Infinity`
    NegativeInfinity,
    /// Any other number.
    Finite(Decimal),
    /// `Infinity`
    Infinity,
    /// `NaN`
    NaN,
}

impl Numeric {
    /// Converts an integer.
    pub fn from_i64(number: i64) -> Self {
        let (mut digits, mut rest) = (Vec::new(), number.unsigned_abs());
        while rest > 0 {
            digits.push((rest % BASE as u64) as i32);
            rest /= BASE as u64;
        }
        digits.reverse();
        let weight = digits.len() as i32 - 1;
        Numeric::Finite(Decimal { negative: number < 0, weight, scale: 0, digits }.stripped())
    }

    /// Converts through a text of `digits` significant digits, as Postgres does: 15 for float8, 6
    /// for float4.
    pub(crate) fn from_f64(number: f64, digits: usize) -> Self {
        if number.is_nan() {
            return Numeric::NaN;
        }
        if number.is_infinite() {
            return if number > 0.0 { Numeric::Infinity } else { Numeric::NegativeInfinity };
        }
        let text = format!("{number:.*e}", digits - 1);
        let (mantissa, exponent) = text.split_once('e').expect("{:e} writes an exponent");
        let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
        Numeric::parse(&format!("{mantissa}e{exponent}")).expect("a float's text is a number")
    }

    /// Returns the nearest float.
    pub fn to_f64(&self) -> f64 {
        match self {
            Numeric::NaN => f64::NAN,
            Numeric::Infinity => f64::INFINITY,
            Numeric::NegativeInfinity => f64::NEG_INFINITY,
            Numeric::Finite(decimal) => decimal.to_string().parse().expect("a decimal's text is a number"),
        }
    }

    /// Rounds to an integer, half away from zero. Fails if it is out of range.
    pub(crate) fn to_i64(&self, target: &str) -> Result<i64, EvalError> {
        let decimal = match self {
            Numeric::Finite(decimal) => decimal.rounded(0),
            Numeric::NaN => return Err(EvalError::new("0A000", format!("cannot convert NaN to {target}"))),
            Numeric::Infinity | Numeric::NegativeInfinity => {
                return Err(EvalError::new("0A000", format!("cannot convert infinity to {target}")));
            }
        };
        let out_of_range = || EvalError::out_of_range(target);
        let mut number = 0_i128;
        for position in 0..=decimal.weight {
            let digit = decimal.digits.get(position as usize).copied().unwrap_or(0);
            number = number * i128::from(BASE) + i128::from(digit);
            if number > i128::from(u64::MAX) {
                return Err(out_of_range());
            }
        }
        i64::try_from(if decimal.negative { -number } else { number }).map_err(|_| out_of_range())
    }

    /// Parses a number, `NaN` or `Infinity`.
    ///
    /// # Errors
    /// Fails if the text is no number, or has too many digits.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let text = super::input::trim(text);
        if text.ends_with(|last: char| last.is_ascii_digit()) {
            return Decimal::parse(text)?.checked().map_err(|_| InputError::Overflow);
        }
        let special = match text.to_ascii_lowercase().as_str() {
            "nan" => Some(Numeric::NaN),
            "infinity" | "+infinity" | "inf" | "+inf" => Some(Numeric::Infinity),
            "-infinity" | "-inf" => Some(Numeric::NegativeInfinity),
            _ => None,
        };
        match special {
            Some(special) => Ok(special),
            None => Decimal::parse(text)?.checked().map_err(|_| InputError::Overflow),
        }
    }

    /// Compares as Postgres does, without regard to the scale. NaN equals itself and is greater
    /// than any other value.
    pub fn compare(&self, other: &Self) -> Ordering {
        let rank = |numeric: &Numeric| match numeric {
            Numeric::NegativeInfinity => 0,
            Numeric::Finite(_) => 1,
            Numeric::Infinity => 2,
            Numeric::NaN => 3,
        };
        match (self, other) {
            (Numeric::Finite(left), Numeric::Finite(right)) => left.compare(right),
            _ => rank(self).cmp(&rank(other)),
        }
    }

    /// Hashes the value without its scale: 1.0 and 1.00 have one hash.
    pub fn hash_value<H: Hasher>(&self, state: &mut H) {
        match self {
            Numeric::Finite(decimal) => (decimal.negative, decimal.weight, &decimal.digits).hash(state),
            Numeric::NaN | Numeric::Infinity | Numeric::NegativeInfinity => {
                std::mem::discriminant(self).hash(state)
            }
        }
    }

    /// Returns `-self`.
    pub fn negated(&self) -> Self {
        match self {
            Numeric::NaN => Numeric::NaN,
            Numeric::Infinity => Numeric::NegativeInfinity,
            Numeric::NegativeInfinity => Numeric::Infinity,
            Numeric::Finite(decimal) => Numeric::Finite(decimal.negated()),
        }
    }

    /// Returns the absolute value.
    pub fn abs(&self) -> Self {
        if self.sign() < 0 { self.negated() } else { self.clone() }
    }

    /// Rounds to this many decimals, half away from zero.
    ///
    /// # Errors
    /// Fails if the result has too many digits.
    pub fn rounded(&self, scale: i32) -> Result<Self, EvalError> {
        match self {
            Numeric::Finite(decimal) => decimal.rounded(scale).checked(),
            other => Ok(other.clone()),
        }
    }

    /// Drops the decimals after this many.
    pub fn truncated(&self, scale: i32) -> Self {
        match self {
            Numeric::Finite(decimal) => Numeric::Finite(decimal.truncated(scale)),
            other => other.clone(),
        }
    }

    /// Divides, and drops the decimals of the quotient.
    ///
    /// # Errors
    /// Fails if the result has too many digits, or if the divisor is 0.
    pub fn divide_whole(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Numeric::Finite(left), Numeric::Finite(right)) => left.divide_whole(right)?.checked(),
            _ => self.divide(other),
        }
    }

    /// Returns -1, 0 or 1; 0 for NaN.
    pub fn sign(&self) -> i32 {
        match self {
            Numeric::NaN => 0,
            Numeric::Infinity => 1,
            Numeric::NegativeInfinity => -1,
            Numeric::Finite(decimal) if decimal.digits.is_empty() => 0,
            Numeric::Finite(decimal) => 1 - 2 * i32::from(decimal.negative),
        }
    }

    /// Adds.
    ///
    /// # Errors
    /// Fails if the result has too many digits.
    pub fn add(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Numeric::Finite(left), Numeric::Finite(right)) => left.add(right).checked(),
            (Numeric::NaN, _) | (_, Numeric::NaN) => Ok(Numeric::NaN),
            (Numeric::Infinity, Numeric::NegativeInfinity)
            | (Numeric::NegativeInfinity, Numeric::Infinity) => Ok(Numeric::NaN),
            (Numeric::Finite(_), infinite) | (infinite, _) => Ok(infinite.clone()),
        }
    }

    /// Subtracts.
    ///
    /// # Errors
    /// Fails if the result has too many digits.
    pub fn subtract(&self, other: &Self) -> Result<Self, EvalError> {
        self.add(&other.negated())
    }

    /// Multiplies.
    ///
    /// # Errors
    /// Fails if the result has too many digits.
    pub fn multiply(&self, other: &Self) -> Result<Self, EvalError> {
        if let (Numeric::Finite(left), Numeric::Finite(right)) = (self, other) {
            return left.multiply(right).checked();
        }
        if *self == Numeric::NaN || *other == Numeric::NaN {
            return Ok(Numeric::NaN);
        }
        Ok(match self.sign() * other.sign() {
            0 => Numeric::NaN,
            1.. => Numeric::Infinity,
            _ => Numeric::NegativeInfinity,
        })
    }

    /// Divides. The quotient has as many decimals as Postgres computes.
    ///
    /// # Errors
    /// Fails if the result has too many digits, or if the divisor is 0.
    pub fn divide(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Numeric::NaN, _) | (_, Numeric::NaN) => Ok(Numeric::NaN),
            (Numeric::Finite(left), Numeric::Finite(right)) => left.divide(right)?.checked(),
            (Numeric::Finite(_), _) => Numeric::parse("0").map_err(|_| EvalError::division_by_zero()),
            (_, Numeric::Finite(_)) => match (self.sign() * other.sign()).cmp(&0) {
                Ordering::Equal => Err(EvalError::division_by_zero()),
                Ordering::Greater => Ok(Numeric::Infinity),
                Ordering::Less => Ok(Numeric::NegativeInfinity),
            },
            _ => Ok(Numeric::NaN),
        }
    }

    /// Returns the remainder of a division, with the sign of `self`.
    ///
    /// # Errors
    /// Fails if the result has too many digits, or if the divisor is 0.
    pub fn remainder(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Numeric::NaN, _) | (_, Numeric::NaN) => Ok(Numeric::NaN),
            (Numeric::Finite(left), Numeric::Finite(right)) => left.remainder(right)?.checked(),
            (Numeric::Finite(_), _) => Ok(self.clone()),
            (_, Numeric::Finite(right)) if right.digits.is_empty() => Err(EvalError::division_by_zero()),
            _ => Ok(Numeric::NaN),
        }
    }

    /// Rounds to `numeric(precision, scale)`. Fails on overflow.
    pub(crate) fn fitted(&self, precision: i32, scale: i32) -> Result<Self, EvalError> {
        let overflow = || EvalError::new("22003", "numeric field overflow");
        match self {
            Numeric::NaN => Ok(Numeric::NaN),
            Numeric::Infinity | Numeric::NegativeInfinity => Err(overflow()),
            Numeric::Finite(decimal) => {
                let rounded = decimal.rounded(scale);
                let whole_digits = rounded
                    .digits
                    .first()
                    .map_or(i32::MIN, |first| rounded.weight * WIDTH + first.ilog10() as i32 + 1);
                if whole_digits > precision - scale { Err(overflow()) } else { Ok(Numeric::Finite(rounded)) }
            }
        }
    }
}

impl Display for Numeric {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Numeric::NaN => f.write_str("NaN"),
            Numeric::Infinity => f.write_str("Infinity"),
            Numeric::NegativeInfinity => f.write_str("-Infinity"),
            Numeric::Finite(decimal) => decimal.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numeric(text: &str) -> Numeric {
        Numeric::parse(text).unwrap()
    }

    #[test]
    fn text_survives_a_round_trip() {
        for text in [
            "0",
            "0.00",
            "-1",
            "10000",
            "0.0001",
            "-12345.6789",
            "100000000.00000001",
            "0.1",
            "NaN",
            "Infinity",
        ] {
            assert_eq!(numeric(text).to_string(), text);
        }
        assert_eq!(numeric("1e3").to_string(), "1000");
        assert_eq!(numeric("-1.50e-3").to_string(), "-0.00150");
        assert_eq!(numeric(" .5 ").to_string(), "0.5");
        for text in ["", "-", "1.2.3", "e1", "1e", "abc", "1 2"] {
            assert!(Numeric::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quotients_have_postgres_scale() {
        for (left, right, quotient) in [
            ("1", "3", "0.33333333333333333333"),
            ("10", "4", "2.5000000000000000"),
            ("0", "7", "0.00000000000000000000"),
            ("1", "0.000001", "1000000.000000000000"),
            ("100000000", "3", "33333333.333333333333"),
        ] {
            assert_eq!(
                numeric(left).divide(&numeric(right)).unwrap().to_string(),
                quotient,
                "{left} / {right}"
            );
        }
        assert!(numeric("1").divide(&numeric("0.0")).is_err());
    }

    #[test]
    fn rounding_is_half_away_from_zero_at_any_scale() {
        let rounded = |text: &str, scale| match numeric(text) {
            Numeric::Finite(decimal) => decimal.rounded(scale).to_string(),
            special => special.to_string(),
        };
        assert_eq!(rounded("0.5", 0), "1");
        assert_eq!(rounded("-0.5", 0), "-1");
        assert_eq!(rounded("0.49999", 0), "0");
        assert_eq!(rounded("9999.9999", 3), "10000.000");
        assert_eq!(rounded("12345", -2), "12300");
        assert_eq!(rounded("5000", -4), "10000");
        assert_eq!(rounded("0.00005", 4), "0.0001");
        assert_eq!(rounded("0.00004", 4), "0.0000");
    }

    proptest! {
        #[test]
        fn arithmetic_agrees_with_integers(a in -1_000_000_000_000_i64.., b in any::<i64>()) {
            let (l, r) = (Numeric::from_i64(a), Numeric::from_i64(b));
            let (a, b) = (i128::from(a), i128::from(b));
            prop_assert_eq!(l.add(&r).unwrap().to_string(), (a + b).to_string());
            prop_assert_eq!(l.subtract(&r).unwrap().to_string(), (a - b).to_string());
            prop_assert_eq!(l.multiply(&r).unwrap().to_string(), (a * b).to_string());
            prop_assert_eq!(l.compare(&r), a.cmp(&b));
            if b != 0 {
                prop_assert_eq!(l.remainder(&r).unwrap().to_string(), (a % b).to_string());
            }
        }

        #[test]
        fn a_product_divides_back(a in "[1-9][0-9]{0,40}", b in "[1-9][0-9]{0,40}", c in 0_i64..9) {
            let (a, b) = (numeric(&a), numeric(&b));
            let product = a.multiply(&b).unwrap().add(&Numeric::from_i64(c)).unwrap();
            let rest = product.remainder(&b).unwrap();
            let whole = product.subtract(&rest).unwrap();
            prop_assert!(rest.compare(&b).is_lt());
            prop_assert_eq!(whole.divide(&b).unwrap().compare(&a), if c == 0 { Ordering::Equal } else { whole.divide(&b).unwrap().compare(&a) });
        }
    }
}
