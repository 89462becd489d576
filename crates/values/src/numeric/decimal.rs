//! Finite decimals: addition, multiplication, division, rounding, parsing and formatting.

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

use super::Numeric;
use super::division::divide_digits;
use crate::eval_error::EvalError;
use crate::input_error::InputError;

pub(super) const BASE: i32 = 10_000;
/// Decimal digits per digit of base `BASE` (DEC_DIGITS).
pub(super) const WIDTH: i32 = 4;
/// Maximum number of decimals of a value (NUMERIC_DSCALE_MAX).
const MAX_SCALE: i32 = 16_383;
/// Maximum weight of the first digit (NUMERIC_WEIGHT_MAX).
const MAX_WEIGHT: i32 = 32_767;
/// Maximum number of decimals of a quotient (NUMERIC_MAX_DISPLAY_SCALE).
pub(super) const MAX_DISPLAY_SCALE: i32 = 1_000;
/// Minimum number of significant digits of a quotient (NUMERIC_MIN_SIG_DIGITS).
pub(super) const MIN_DIGITS: i32 = 16;

/// A decimal: `digits[0] * BASE ^ weight + digits[1] * BASE ^ (weight - 1) + …`, displayed with
/// `scale` decimals.
///
/// Invariant: neither the first nor the last digit is 0. Zero has no digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    pub(super) negative: bool,
    pub(super) weight: i32,
    pub(super) scale: i32,
    pub(super) digits: Vec<i32>,
}

impl Decimal {
    /// Parses an optional sign, digits with at most one point, and an optional exponent.
    pub(super) fn parse(text: &str) -> Result<Self, InputError> {
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
            Some(at) => (&unsigned[..at], exponent(&unsigned[at + 1..])?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InputError::Syntax);
        }
        let whole_digits = i32::try_from(whole.len()).map_err(|_| InputError::Overflow)? + exponent;
        let scale = (fraction.len() as i32 - exponent).max(0);
        Ok(Decimal::from_digits(negative, whole_digits, scale, digits.as_bytes()))
    }

    /// Converts ASCII decimal digits. The point is after the first `whole_digits`, which may be
    /// negative.
    fn from_digits(negative: bool, whole_digits: i32, scale: i32, decimal: &[u8]) -> Self {
        let weight = (whole_digits + WIDTH - 1).div_euclid(WIDTH) - 1;
        let zeros = ((weight + 1) * WIDTH - whole_digits) as usize;
        let mut digits = vec![0; (zeros + decimal.len()).div_ceil(WIDTH as usize)];
        for (position, byte) in decimal.iter().enumerate() {
            let position = position + zeros;
            digits[position / 4] += i32::from(byte - b'0') * [1000, 100, 10, 1][position % 4];
        }
        Decimal { negative, weight, scale, digits }.stripped()
    }

    /// Removes zeros from both ends of the digits.
    pub(super) fn stripped(mut self) -> Self {
        let zeros = self.digits.iter().take_while(|digit| **digit == 0).count();
        self.digits.drain(..zeros);
        self.weight -= zeros as i32;
        while self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        if self.digits.is_empty() {
            (self.negative, self.weight) = (false, 0);
        }
        self
    }

    /// Fails if the value is out of the range of numeric.
    pub(super) fn checked(self) -> Result<Numeric, EvalError> {
        if self.weight > MAX_WEIGHT || self.scale > MAX_SCALE {
            return Err(EvalError::new("22003", "value overflows numeric format"));
        }
        Ok(Numeric::Finite(self))
    }

    pub(super) fn negated(&self) -> Self {
        Decimal { negative: !self.negative && !self.digits.is_empty(), ..self.clone() }
    }

    /// Returns the digit that `BASE ^ weight` is multiplied by; 0 outside the stored digits.
    pub(super) fn digit(&self, weight: i32) -> i32 {
        usize::try_from(self.weight - weight)
            .ok()
            .and_then(|index| self.digits.get(index))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the weight of the last digit.
    pub(super) fn last_weight(&self) -> i32 {
        self.weight - self.digits.len() as i32 + 1
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.compare_magnitude(other),
            (true, true) => other.compare_magnitude(self),
        }
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (false, false) => self.weight.cmp(&other.weight).then_with(|| self.digits.cmp(&other.digits)),
            (left, right) => right.cmp(&left),
        }
    }

    pub(super) fn add(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        let (larger, smaller) =
            if self.compare_magnitude(other) == Ordering::Less { (other, self) } else { (self, other) };
        if smaller.digits.is_empty() {
            return Decimal { scale, ..larger.clone() };
        }
        let sign = if larger.negative == smaller.negative { 1 } else { -1 };
        let (top, bottom) = (larger.weight + 1, larger.last_weight().min(smaller.last_weight()));
        let mut digits = vec![0; (top - bottom + 1) as usize];
        let mut carry = 0;
        for weight in bottom..=top {
            let sum = larger.digit(weight) + sign * smaller.digit(weight) + carry;
            carry = sum.div_euclid(BASE);
            digits[(top - weight) as usize] = sum.rem_euclid(BASE);
        }
        Decimal { negative: larger.negative, weight: top, scale, digits }.stripped()
    }

    pub(super) fn multiply(&self, other: &Self) -> Self {
        let product = self.product(other);
        if product.scale > MAX_SCALE { product.rounded(MAX_SCALE) } else { product }
    }

    /// Multiplies. The product has all decimals.
    pub(super) fn product(&self, other: &Self) -> Self {
        let mut digits = vec![0_i64; self.digits.len() + other.digits.len()];
        for (i, left) in self.digits.iter().enumerate().rev() {
            let mut carry = 0;
            for (j, right) in other.digits.iter().enumerate().rev() {
                let sum = digits[i + j + 1] + i64::from(*left) * i64::from(*right) + carry;
                carry = sum / i64::from(BASE);
                digits[i + j + 1] = sum % i64::from(BASE);
            }
            digits[i] += carry;
        }
        let product = Decimal {
            negative: self.negative != other.negative,
            weight: self.weight + other.weight + 1,
            scale: self.scale + other.scale,
            digits: digits.into_iter().map(|digit| digit as i32).collect(),
        };
        product.stripped()
    }

    pub(super) fn divide(&self, other: &Self) -> Result<Self, EvalError> {
        let Some(divisor) = other.digits.first() else { return Err(EvalError::division_by_zero()) };
        // The scale is computed as in select_div_scale, where zero has weight 0 and first digit 0.
        let first = self.digits.first().copied().unwrap_or(0);
        let weight = if self.digits.is_empty() { 0 } else { self.weight } - other.weight;
        let weight = if first <= *divisor { weight - 1 } else { weight };
        let scale =
            (MIN_DIGITS - weight * WIDTH).max(self.scale).max(other.scale).clamp(0, MAX_DISPLAY_SCALE);
        Ok(self.quotient(other, (scale + WIDTH - 1) / WIDTH + 1).rounded(scale))
    }

    /// Divides. Truncates the quotient to `fraction_digits` digits of base `BASE` after the point.
    pub(super) fn quotient(&self, other: &Self, fraction_digits: i32) -> Self {
        let shift = fraction_digits + self.last_weight() - other.last_weight();
        let mut numerator = self.digits.clone();
        let length = (numerator.len() as i32 + if numerator.is_empty() { 0 } else { shift }).max(0);
        numerator.resize(length as usize, 0);
        let digits = divide_digits(&numerator, &other.digits);
        let weight = digits.len() as i32 - 1 - fraction_digits;
        let negative = self.negative != other.negative;
        Decimal { negative, weight, scale: fraction_digits * WIDTH, digits }.stripped()
    }

    /// Divides. Truncates the quotient to an integer.
    pub(super) fn divide_whole(&self, other: &Self) -> Result<Self, EvalError> {
        if other.digits.is_empty() {
            return Err(EvalError::division_by_zero());
        }
        Ok(Decimal { scale: 0, ..self.quotient(other, 0) })
    }

    pub(super) fn remainder(&self, other: &Self) -> Result<Self, EvalError> {
        if other.digits.is_empty() {
            return Err(EvalError::division_by_zero());
        }
        let whole = Decimal { scale: 0, ..self.quotient(other, 0) };
        let remainder = self.add(&whole.multiply(other).negated());
        Ok(Decimal { scale: self.scale.max(other.scale), ..remainder })
    }

    /// Drops the decimals after `scale`. A negative `scale` drops digits before the point.
    pub(super) fn truncated(&self, scale: i32) -> Self {
        let rounded = self.rounded(scale);
        if rounded.compare_magnitude(self) != Ordering::Greater {
            return rounded;
        }
        // It was rounded away from zero, by one unit of the last decimal.
        let weight = (-scale).div_euclid(WIDTH);
        let unit = 10_i32.pow((-scale).rem_euclid(WIDTH) as u32);
        let unit = Decimal { negative: !self.negative, weight, scale: rounded.scale, digits: vec![unit] };
        rounded.add(&unit)
    }

    /// Rounds to `scale` decimals, half away from zero. A negative `scale` rounds before the point.
    pub(super) fn rounded(&self, scale: i32) -> Self {
        let display_scale = scale.max(0);
        let kept_digits = scale.saturating_add((self.weight + 1) * WIDTH); // decimal digits
        if kept_digits < 0 || self.digits.is_empty() {
            return Decimal { negative: false, weight: 0, scale: display_scale, digits: Vec::new() };
        }
        if kept_digits as usize >= self.digits.len() * WIDTH as usize {
            return Decimal { scale: display_scale, ..self.clone() };
        }
        let (index, kept_in_last) = ((kept_digits / WIDTH) as usize, (kept_digits % WIDTH) as usize);
        let unit = [BASE, 1000, 100, 10][kept_in_last]; // 1 in the last kept decimal digit
        let last = self.digits[index];
        let (kept, dropped) = (last - last % unit, last % unit);
        let mut digits = self.digits[..index].to_vec();
        digits.push(if kept_in_last == 0 { 0 } else { kept });
        let dropped = if kept_in_last == 0 { last } else { dropped };
        digits.insert(0, 0);
        if dropped * 2 >= unit {
            let mut carry = if kept_in_last == 0 { BASE } else { unit };
            for digit in digits.iter_mut().rev() {
                *digit += carry;
                carry = *digit / BASE;
                *digit %= BASE;
            }
        }
        Decimal { negative: self.negative, weight: self.weight + 1, scale: display_scale, digits }.stripped()
    }
}

impl Display for Decimal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if self.negative {
            text.push('-');
        }
        if self.weight < 0 {
            text.push('0');
        }
        for weight in (0..=self.weight).rev() {
            let digit = self.digit(weight);
            text.push_str(&if weight == self.weight { digit.to_string() } else { format!("{digit:04}") });
        }
        if self.scale > 0 {
            text.push('.');
            let fraction_digits = (self.scale + WIDTH - 1) / WIDTH;
            let fraction: String =
                (1..=fraction_digits).map(|position| format!("{:04}", self.digit(-position))).collect();
            text.push_str(&fraction[..self.scale as usize]);
        }
        f.write_str(&text)
    }
}

fn exponent(text: &str) -> Result<i32, InputError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InputError::Syntax);
    }
    let exponent: i32 = text.parse().map_err(|_| InputError::Overflow)?;
    // This bound is far above the range of numeric, and small enough for the `i32` arithmetic of
    // `Decimal::parse`.
    if exponent.abs() > 1_000_000 { Err(InputError::Overflow) } else { Ok(exponent) }
}
