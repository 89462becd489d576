//! Square roots of numerics (numeric.c: numeric_sqrt).

use std::cmp::Ordering;

use super::Numeric;
use super::decimal::{BASE, Decimal, MAX_DISPLAY_SCALE, MIN_DIGITS, WIDTH};
use crate::eval_error::EvalError;

/// Maximum number of base digits of a radicand.
const MAX_DIGITS: i32 = 2_000;

impl Numeric {
    /// Returns the square root. It is rounded, and has the scale of Postgres.
    ///
    /// # Errors
    /// Fails if the value is negative, or so long that only Postgres computes it (`0A000`).
    pub fn square_root(&self) -> Result<Self, EvalError> {
        match self {
            _ if self.sign() < 0 => {
                Err(EvalError::new("2201F", "cannot take square root of a negative number"))
            }
            Numeric::Finite(decimal) => decimal.square_root()?.checked(),
            other => Ok(other.clone()),
        }
    }
}

impl Decimal {
    fn square_root(&self) -> Result<Self, EvalError> {
        let weight = self.weight * WIDTH / 2 + 1;
        let scale = (MIN_DIGITS - weight).max(self.scale).clamp(0, MAX_DISPLAY_SCALE);
        // One more decimal decides the rounding: a root of a finite decimal never ends after it.
        let fraction_digits = scale / WIDTH + 1;
        let radicand = Decimal { weight: self.weight + 2 * fraction_digits, ..self.clone() };
        if radicand.weight > MAX_DIGITS {
            return Err(EvalError::new("0A000", "the square root of so long a number"));
        }
        let root = radicand.truncated(0).whole_root();
        let weight = if root.digits.is_empty() { 0 } else { root.weight - fraction_digits };
        Ok(Decimal { weight, ..root }.rounded(scale))
    }

    /// Returns the square root of a whole number without its fraction (Newton's method).
    fn whole_root(&self) -> Self {
        if self.digits.is_empty() || self.weight < 0 {
            return Decimal { negative: false, weight: 0, scale: 0, digits: Vec::new() };
        }
        let two = Decimal { negative: false, weight: 0, scale: 0, digits: vec![2] };
        let mut root = self.root_at_least();
        loop {
            let next = root.add(&self.quotient(&root, 0)).quotient(&two, 0);
            if next.compare(&root) != Ordering::Less {
                return root;
            }
            root = next;
        }
    }

    /// Returns a whole number that is slightly greater than the square root of a whole number.
    fn root_at_least(&self) -> Self {
        // The first digits, and an even number of digits that are left out.
        let count = 4 + (self.weight + 1) % 2;
        let last = self.weight - count + 1;
        let head = (last..=self.weight).rev();
        let head = head.fold(0.0, |head, weight| head * f64::from(BASE) + f64::from(self.digit(weight)));
        let root = (head.sqrt() * (1.0 + 1e-12) + 2.0).ceil();
        let Numeric::Finite(root) = Numeric::from_i64(root as i64) else {
            unreachable!("an integer is finite")
        };
        Decimal { weight: root.weight + last.max(0) / 2, ..root }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn roots_have_postgres_scale() {
        for (text, root) in [
            ("2", "1.414213562373095"),
            ("4", "2.000000000000000"),
            ("0", "0.000000000000000"),
            ("0.0001", "0.01000000000000000"),
            ("1e20", "10000000000.00000"),
        ] {
            let found = Numeric::parse(text).unwrap().square_root().unwrap();
            assert_eq!(found.to_string(), root, "{text}");
        }
        assert_eq!(Numeric::parse("-0.1").unwrap().square_root().unwrap_err().sqlstate(), "2201F");
        let long = Numeric::parse(&format!("1{}", "3".repeat(20_000))).unwrap();
        assert_eq!(long.square_root().unwrap_err().sqlstate(), "0A000");
    }

    proptest! {
        #[test]
        fn a_whole_root_is_the_greatest_number_whose_square_is_not_greater(text in "[1-9][0-9]{0,90}") {
            let Numeric::Finite(number) = Numeric::parse(&text).unwrap() else { unreachable!() };
            let root = number.whole_root();
            let Numeric::Finite(one) = Numeric::from_i64(1) else { unreachable!() };
            let next = root.add(&one);
            prop_assert!(root.product(&root).compare(&number).is_le());
            prop_assert!(next.product(&next).compare(&number).is_gt());
        }
    }
}
