//! Greatest common divisor and least common multiple of numerics (numeric.c: gcd_var, numeric_lcm).

use super::Numeric;
use super::decimal::Decimal;
use crate::eval_error::EvalError;

/// Maximum number of base digits from the first digit of the longer number to the last one of both.
/// The time grows with its square.
const MAX_DIGITS: i32 = 1_000;

impl Numeric {
    /// Returns the greatest common divisor; NaN if one of the two is NaN or infinite.
    ///
    /// # Errors
    /// Fails if the numbers are so long that only Postgres computes it (`0A000`).
    pub fn common_divisor(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Numeric::Finite(left), Numeric::Finite(right)) => left.common_divisor(right)?.checked(),
            _ => Ok(Numeric::NaN),
        }
    }

    /// Returns the least common multiple; NaN if one of the two is NaN or infinite.
    ///
    /// # Errors
    /// Fails if the result has too many digits, or if the numbers are so long that only Postgres
    /// computes it (`0A000`).
    pub fn common_multiple(&self, other: &Self) -> Result<Self, EvalError> {
        let (Numeric::Finite(left), Numeric::Finite(right)) = (self, other) else {
            return Ok(Numeric::NaN);
        };
        let scale = left.scale.max(right.scale);
        let divisor = left.common_divisor(right)?;
        let quotient = match divisor.digits.is_empty() {
            true => divisor,
            false => left.quotient(&divisor, 0),
        };
        Decimal { negative: false, scale, ..right.product(&quotient) }.checked()
    }
}

impl Decimal {
    fn common_divisor(&self, other: &Self) -> Result<Self, EvalError> {
        let last = self.last_weight().min(other.last_weight());
        if self.weight.max(other.weight) - last >= MAX_DIGITS {
            return Err(EvalError::new("0A000", "the common divisor of numbers so long"));
        }
        let scale = self.scale.max(other.scale);
        let (mut divisor, mut rest) = (self.clone(), other.clone());
        while !rest.digits.is_empty() {
            let next = divisor.remainder(&rest)?;
            (divisor, rest) = (rest, next);
        }
        Ok(Decimal { negative: false, scale, ..divisor })
    }
}
