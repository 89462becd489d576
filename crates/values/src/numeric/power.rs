//! Powers of numerics (numeric.c: numeric_power, power_var_int).
//!
//! Postgres rounds the intermediate products of a power, and its versions don't round them alike.
//! Here they are rounded as in numeric.c, and their error has a bound. If the bound leaves the last
//! digit open, the operation fails with `0A000`. It also fails so for an exponent with a fraction,
//! whose error in Postgres has no known bound, and for very long results.

use std::cmp::Ordering;

use super::Numeric;
use super::decimal::{BASE, Decimal, MAX_DISPLAY_SCALE, MIN_DIGITS, WIDTH};
use crate::eval_error::EvalError;

/// Maximum number of decimal digits of a result or a base.
const MAX_DIGITS: i32 = 1_000;
/// Number of decimal digits that every numeric has fewer of before the point.
const OVERFLOW_DIGITS: f64 = 131_073.0;

impl Numeric {
    /// Raises to a power, as `^` and power() do. `modern`: with the scale of Postgres 16 and newer.
    ///
    /// # Errors
    /// Fails if Postgres fails, or if the result of Postgres isn't known for sure (`0A000`).
    pub fn power(&self, exponent: &Self, modern: bool) -> Result<Self, EvalError> {
        if self.sign() == 0 && *self != Numeric::NaN && exponent.sign() < 0 {
            return Err(invalid("zero raised to a negative power is undefined"));
        }
        if self.sign() < 0 && matches!(exponent, Numeric::Finite(exponent) if !exponent.is_whole()) {
            return Err(invalid("a negative number raised to a non-integer power yields a complex result"));
        }
        match (self, exponent) {
            (Numeric::Finite(base), Numeric::Finite(exponent)) => finite_power(base, exponent, modern),
            _ => Ok(self.special_power(exponent)),
        }
    }

    /// Raises to a power where one of the two is NaN or infinite, as pow() of POSIX does.
    fn special_power(&self, exponent: &Self) -> Self {
        let (zero, one) = (Numeric::from_i64(0), Numeric::from_i64(1));
        if self.compare(&one) == Ordering::Equal || exponent.compare(&zero) == Ordering::Equal {
            return one;
        }
        match (self, exponent) {
            (Numeric::NaN, _) | (_, Numeric::NaN) => Numeric::NaN,
            (_, Numeric::Infinity | Numeric::NegativeInfinity) => match self.abs().compare(&one) {
                Ordering::Equal => one,
                order if (order == Ordering::Greater) == (exponent.sign() > 0) => Numeric::Infinity,
                Ordering::Less | Ordering::Greater => zero,
            },
            _ if exponent.sign() < 0 => zero,
            (Numeric::NegativeInfinity, Numeric::Finite(exponent)) if exponent.is_odd() => {
                Numeric::NegativeInfinity
            }
            _ => Numeric::Infinity,
        }
    }
}

fn invalid(message: &'static str) -> EvalError {
    EvalError::new("2201F", message)
}

fn undecided() -> EvalError {
    EvalError::new("0A000", "a power whose last digit is not known for sure")
}

fn overflow() -> EvalError {
    EvalError::new("22003", "value overflows numeric format")
}

fn finite_power(base: &Decimal, exponent: &Decimal, modern: bool) -> Result<Numeric, EvalError> {
    if let Some(whole) = exponent.to_i32() {
        return whole_power(base, whole, exponent.scale, modern);
    }
    match base.digits.is_empty() {
        true => Ok(Numeric::Finite(base.rounded(MIN_DIGITS))),
        false => Err(undecided()),
    }
}

/// Raises to a whole power (power_var_int).
fn whole_power(
    base: &Decimal,
    exponent: i32,
    exponent_scale: i32,
    modern: bool,
) -> Result<Numeric, EvalError> {
    let magnitude = match base.digits.is_empty() {
        true => 0.0,
        false => magnitude(base, exponent)?,
    };
    // A value of so many digits before the point overflows in every version.
    if magnitude > OVERFLOW_DIGITS {
        return Err(overflow());
    }
    let scale = if modern {
        if magnitude + 1.0 < f64::from(-MAX_DISPLAY_SCALE) {
            return Ok(zero(MAX_DISPLAY_SCALE));
        }
        (MIN_DIGITS - magnitude as i32).max(exponent_scale)
    } else {
        MIN_DIGITS
    };
    let scale = scale.max(base.scale).clamp(0, MAX_DISPLAY_SCALE);
    let is_long = base.digits.len() as i32 * WIDTH > MAX_DIGITS || base.scale > MAX_DIGITS;
    if is_long || magnitude > f64::from(MAX_DIGITS) {
        return Err(undecided());
    }
    match exponent {
        0 => return Ok(Numeric::Finite(one().rounded(scale))),
        1 => return base.rounded(scale).checked(),
        -1 => return base.reciprocal(scale).rounded(scale).checked(),
        2 => {
            // numeric.c leaves out products of low digits unless the square has few decimals.
            let value = base.product(base);
            let is_exact = value.scale <= scale;
            return Approximation { value, is_exact, length: base.digits.len() }.rounded(scale);
        }
        _ if base.digits.is_empty() => return Ok(zero(scale)),
        _ => {}
    }
    if !modern && magnitude + 1.0 < f64::from(-scale) {
        return Ok(zero(scale));
    }
    let digits = 1 + scale + magnitude as i32 + f64::from(exponent).abs().ln() as i32 + 8;
    let power = product(base, exponent.unsigned_abs(), digits);
    match exponent < 0 {
        true => power.reciprocal(scale)?.rounded(scale),
        false => power.rounded(scale),
    }
}

/// Multiplies `base` with itself, with this many significant digits.
fn product(base: &Decimal, exponent: u32, digits: i32) -> Approximation {
    // Enough digits of a product with the digits that the factors have before the point.
    let scale = |left: &Approximation, right: &Approximation| {
        (digits - (left.value.weight + right.value.weight) * WIDTH).max(0)
    };
    let mut square = Approximation::of(base);
    let mut power = if exponent % 2 == 1 { square.clone() } else { Approximation::of(&one()) };
    let mut rest = exponent / 2;
    while rest > 0 {
        square = square.times(&square, scale(&square, &square));
        if rest % 2 == 1 {
            power = square.times(&power, scale(&square, &power));
        }
        rest /= 2;
    }
    power
}

/// Returns about how many decimal digits the result has before the point.
fn magnitude(base: &Decimal, exponent: i32) -> Result<f64, EvalError> {
    let (mut head, mut tens) = (0.0, (base.weight + 1) * WIDTH);
    for digit in base.digits.iter().take(4) {
        head = head * f64::from(BASE) + f64::from(*digit);
        tens -= WIDTH;
    }
    let magnitude = f64::from(exponent) * (f64::log10(head) + f64::from(tens));
    // The logarithm of a power of ten is exact. Others may differ between C libraries.
    let is_exact = exponent == 0 || matches!(base.digits[..], [1 | 10 | 100 | 1000]);
    let error = 1e-9 + f64::from(exponent).abs() * (16.0 + f64::from(tens).abs()) * 1e-15;
    match !is_exact && (magnitude - magnitude.round()).abs() < error {
        true => Err(undecided()),
        false => Ok(magnitude),
    }
}

impl Decimal {
    fn is_whole(&self) -> bool {
        self.digits.len() as i32 <= self.weight + 1
    }

    fn is_odd(&self) -> bool {
        self.digits.len() as i32 == self.weight + 1 && self.digits.last().is_some_and(|last| last % 2 == 1)
    }

    /// Returns the value if it is a whole number in the range of int4.
    fn to_i32(&self) -> Option<i32> {
        if !self.digits.is_empty() && (!self.is_whole() || self.weight > 2) {
            return None;
        }
        let weights = (0..=self.weight).rev();
        let magnitude = weights.fold(0, |sum, weight| sum * i64::from(BASE) + i64::from(self.digit(weight)));
        i32::try_from(if self.negative { -magnitude } else { magnitude }).ok()
    }

    /// Divides 1 by the value. Truncates the quotient to more than `scale` decimals.
    fn reciprocal(&self, scale: i32) -> Self {
        one().quotient(self, (scale + WIDTH - 1) / WIDTH + 1)
    }
}

fn one() -> Decimal {
    Decimal { negative: false, weight: 0, scale: 0, digits: vec![1] }
}

fn zero(scale: i32) -> Numeric {
    Numeric::Finite(Decimal { negative: false, weight: 0, scale, digits: Vec::new() })
}

/// A product, which may be rounded.
#[derive(Clone, Debug)]
struct Approximation {
    value: Decimal,
    is_exact: bool,
    /// Base digits of the longer factor, which the error of a product in numeric.c grows with.
    length: usize,
}

impl Approximation {
    fn of(value: &Decimal) -> Self {
        Approximation { value: value.clone(), is_exact: true, length: value.digits.len() }
    }

    /// Multiplies. Rounds the product to this many decimals, unless it has fewer.
    fn times(&self, other: &Self, scale: i32) -> Self {
        let product = self.value.product(&other.value);
        let fits = product.scale <= scale;
        Approximation {
            value: if fits { product } else { product.rounded(scale) },
            is_exact: self.is_exact && other.is_exact && fits,
            length: self.length.max(other.length).max(self.value.digits.len()).max(other.value.digits.len()),
        }
    }

    /// Divides 1 by the value.
    fn reciprocal(&self, scale: i32) -> Result<Self, EvalError> {
        if self.value.digits.is_empty() {
            return Err(undecided());
        }
        // A divisor of one or two digits is divided by exactly (div_var_int).
        let is_exact = self.is_exact && self.value.digits.len() <= 2;
        Ok(Approximation { value: self.value.reciprocal(scale), is_exact, length: self.length })
    }

    /// Rounds to this many decimals. Fails if the error may change the last of them.
    ///
    /// mul_var() and div_var() leave out products that are less than `1e-4` of a unit of the last
    /// decimal, for each digit of a factor. The sum of all other errors is less than that.
    fn rounded(&self, scale: i32) -> Result<Numeric, EvalError> {
        let rounded = self.value.rounded(scale);
        if !self.is_exact {
            let margin = format!("{}e{}", self.length + 10, -scale - 4);
            let margin = Decimal::parse(&margin).map_err(|_| undecided())?;
            let ends = [self.value.add(&margin), self.value.add(&margin.negated())];
            if ends.iter().any(|end| end.rounded(scale) != rounded) {
                return Err(undecided());
            }
        }
        rounded.checked()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn power(base: &str, exponent: &str, modern: bool) -> Result<String, &'static str> {
        let [base, exponent] = [base, exponent].map(|text| Numeric::parse(text).unwrap());
        base.power(&exponent, modern).map(|power| power.to_string()).map_err(|error| error.sqlstate())
    }

    #[test]
    fn the_scale_of_a_power_depends_on_the_version() {
        assert_eq!(power("2", "10", false).as_deref(), Ok("1024.0000000000000000"));
        assert_eq!(power("2", "10", true).as_deref(), Ok("1024.0000000000000"));
        assert_eq!(power("0", "0", true).as_deref(), Ok("1.0000000000000000"));
        assert_eq!(power("2", "-3", false).as_deref(), Ok("0.1250000000000000"));
        assert_eq!(power("-Infinity", "3", true).as_deref(), Ok("-Infinity"));
    }

    #[test]
    fn a_power_fails_or_is_undecided_by_name() {
        for modern in [false, true] {
            assert_eq!(power("0", "-1", modern), Err("2201F"));
            assert_eq!(power("-8", "0.5", modern), Err("2201F"));
            assert_eq!(power("10", "131074", modern), Err("22003"));
            assert_eq!(power("2", "0.5", modern), Err("0A000"));
            assert_eq!(power("3", "20000", modern), Err("0A000"));
            // numeric.c rounds the last digit of this square down.
            assert_eq!(power("35.37226395434090979167", "2", modern), Err("0A000"));
            assert!(power("1234.5678", "2", modern).is_ok());
        }
    }

    #[test]
    fn a_power_takes_bounded_time() {
        let begun = Instant::now();
        for exponent in ["100000", "2147483647", "-2147483648", "16000", "1e30"] {
            for base in ["10", "3.14159265358979", "0.99999", "1.0000000000001", "-7e100"] {
                let _ = power(base, exponent, false);
                let _ = power(base, exponent, true);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
