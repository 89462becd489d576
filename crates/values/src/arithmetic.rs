//! Arithmetic: `+ - * / % ^ & | #` and prefix operators on numbers, with Postgres' errors (int.c,
//! float.c, numeric.c).

use std::borrow::Cow;
use std::ops::{Add, Div, Mul, Sub};

use crate::clock_arithmetic;
use crate::eval_error::EvalError;
use crate::interval::Interval;
use crate::scalar::Scalar;
use crate::sql_value::SqlValue;

/// Arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arithmetic {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
    /// `^`
    Power,
    /// `&`
    And,
    /// `|`
    Or,
    /// `#`
    Xor,
}

impl<'a> SqlValue<'a> {
    /// Applies an arithmetic operator to two numbers, dates, times or intervals. `result`: the
    /// operator's type, which bounds integers.
    ///
    /// # Errors
    /// Fails if Postgres fails for the values, or if its versions differ (`0A000`).
    ///
    /// # Panics
    /// Panics if Postgres has no such operator for the types of the values.
    pub fn compute(self, arithmetic: Arithmetic, right: Self, result: Scalar) -> Result<Self, EvalError> {
        match (self, right) {
            (SqlValue::Int(left), SqlValue::Int(right)) => integer(arithmetic, left, right, result),
            (SqlValue::Float4(left), SqlValue::Float4(right)) => {
                Ok(SqlValue::Float4(float(arithmetic, left, right)?))
            }
            (SqlValue::Float8(left), SqlValue::Float8(right)) => {
                Ok(SqlValue::Float8(float8(arithmetic, left, right)?))
            }
            (SqlValue::Float4(left), SqlValue::Float8(right)) => {
                Ok(SqlValue::Float8(float8(arithmetic, f64::from(left), right)?))
            }
            (SqlValue::Float8(left), SqlValue::Float4(right)) => {
                Ok(SqlValue::Float8(float8(arithmetic, left, f64::from(right))?))
            }
            (SqlValue::Numeric(left), SqlValue::Numeric(right)) => Ok(SqlValue::numeric(match arithmetic {
                Arithmetic::Add => left.add(&right)?,
                Arithmetic::Subtract => left.subtract(&right)?,
                Arithmetic::Multiply => left.multiply(&right)?,
                Arithmetic::Divide => left.divide(&right)?,
                Arithmetic::Remainder => left.remainder(&right)?,
                Arithmetic::Power | Arithmetic::And | Arithmetic::Or | Arithmetic::Xor => {
                    unreachable!("numeric has no such operator here")
                }
            })),
            (SqlValue::Interval(interval), SqlValue::Float8(factor)) => {
                scale(interval, factor, arithmetic).map(SqlValue::Interval)
            }
            (SqlValue::Float8(factor), SqlValue::Interval(interval)) => {
                scale(interval, factor, arithmetic).map(SqlValue::Interval)
            }
            (left, right) => clock_arithmetic::apply(arithmetic, left, right),
        }
    }

    /// Negates a number or an interval: prefix `-` of this type.
    ///
    /// # Errors
    /// Fails if the result is out of range.
    ///
    /// # Panics
    /// Panics if the value is neither a number nor an interval.
    pub fn negated(self, scalar: Scalar) -> Result<Self, EvalError> {
        Ok(match self {
            SqlValue::Int(value) => {
                let negated = value.checked_neg().ok_or_else(|| EvalError::out_of_range(scalar.name()))?;
                return SqlValue::integer(negated, scalar);
            }
            SqlValue::Float4(value) => SqlValue::Float4(-value),
            SqlValue::Float8(value) => SqlValue::Float8(-value),
            SqlValue::Numeric(value) => SqlValue::Numeric(Cow::Owned(value.negated())),
            SqlValue::Interval(value) => SqlValue::Interval(value.negated()?),
            other => unreachable!("- takes numbers and intervals: {other:?}"),
        })
    }

    /// Returns the absolute value of a number: `@` and `abs()` of this type.
    ///
    /// # Errors
    /// Fails if the result is out of range.
    ///
    /// # Panics
    /// Panics if the value is no number.
    pub fn absolute(self, scalar: Scalar) -> Result<Self, EvalError> {
        Ok(match self {
            SqlValue::Int(value) if value < 0 => return SqlValue::Int(value).negated(scalar),
            SqlValue::Int(value) => SqlValue::Int(value),
            SqlValue::Float4(value) => SqlValue::Float4(value.abs()),
            SqlValue::Float8(value) => SqlValue::Float8(value.abs()),
            SqlValue::Numeric(value) => SqlValue::Numeric(Cow::Owned(value.abs())),
            other => unreachable!("@ takes numbers: {other:?}"),
        })
    }

    /// Returns the square root of a float8.
    ///
    /// # Errors
    /// Fails if the value is negative.
    ///
    /// # Panics
    /// Panics if the value is no float8.
    pub fn square_root(self) -> Result<Self, EvalError> {
        match self {
            SqlValue::Float8(value) if value < 0.0 => {
                Err(EvalError::new("2201F", "cannot take square root of a negative number"))
            }
            SqlValue::Float8(value) => Ok(SqlValue::Float8(value.sqrt())),
            other => unreachable!("|/ takes double precision: {other:?}"),
        }
    }

    /// Returns an integer of this type.
    ///
    /// # Errors
    /// Fails if the number is out of the type's range.
    #[inline]
    pub fn integer(value: i64, scalar: Scalar) -> Result<Self, EvalError> {
        let fits = match scalar {
            Scalar::Int2 => i16::try_from(value).is_ok(),
            Scalar::Int4 => i32::try_from(value).is_ok(),
            _ => true,
        };
        if fits { Ok(SqlValue::Int(value)) } else { Err(EvalError::out_of_range(scalar.name())) }
    }
}

fn integer(
    arithmetic: Arithmetic,
    left: i64,
    right: i64,
    result: Scalar,
) -> Result<SqlValue<'static>, EvalError> {
    let value = match arithmetic {
        Arithmetic::Add => left.checked_add(right),
        Arithmetic::Subtract => left.checked_sub(right),
        Arithmetic::Multiply => left.checked_mul(right),
        Arithmetic::Divide | Arithmetic::Remainder if right == 0 => return Err(EvalError::division_by_zero()),
        Arithmetic::Divide => left.checked_div(right),
        Arithmetic::Remainder => Some(left.wrapping_rem(right)),
        Arithmetic::And => Some(left & right),
        Arithmetic::Or => Some(left | right),
        Arithmetic::Xor => Some(left ^ right),
        Arithmetic::Power => unreachable!("^ is of floats"),
    };
    SqlValue::integer(value.ok_or_else(|| EvalError::out_of_range(result.name()))?, result)
}

fn overflow() -> EvalError {
    EvalError::new("22003", "value out of range: overflow")
}

fn underflow() -> EvalError {
    EvalError::new("22003", "value out of range: underflow")
}

fn float8(arithmetic: Arithmetic, left: f64, right: f64) -> Result<f64, EvalError> {
    if arithmetic == Arithmetic::Power { power(left, right) } else { float(arithmetic, left, right) }
}

/// Computes `+`, `-`, `*` and `/` on float4 or float8.
fn float<F>(arithmetic: Arithmetic, left: F, right: F) -> Result<F, EvalError>
where
    F: Copy + Into<f64> + Add<Output = F> + Sub<Output = F> + Mul<Output = F> + Div<Output = F>,
{
    let (wide_left, wide_right) = (left.into(), right.into());
    let value = match arithmetic {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide if wide_right == 0.0 && !wide_left.is_nan() => {
            return Err(EvalError::division_by_zero());
        }
        Arithmetic::Divide => left / right,
        Arithmetic::Power | Arithmetic::Remainder | Arithmetic::And | Arithmetic::Or | Arithmetic::Xor => {
            unreachable!("floats have no such operator")
        }
    };
    check_range(arithmetic, wide_left, wide_right, value.into())?;
    Ok(value)
}

/// Fails if the result is infinite or zero because it is out of range. A float4 is widened, which
/// keeps both.
fn check_range(arithmetic: Arithmetic, left: f64, right: f64, value: f64) -> Result<(), EvalError> {
    let infinite_operand = left.is_infinite() || (arithmetic != Arithmetic::Divide && right.is_infinite());
    if value.is_infinite() && !infinite_operand {
        return Err(overflow());
    }
    let may_vanish = match arithmetic {
        Arithmetic::Multiply => left != 0.0 && right != 0.0,
        Arithmetic::Divide => left != 0.0 && !right.is_infinite(),
        _ => false,
    };
    if value == 0.0 && may_vanish { Err(underflow()) } else { Ok(()) }
}

/// Raises to a power as dpow does: checks for SQL's errors, then calls pow() of the C library.
fn power(base: f64, exponent: f64) -> Result<f64, EvalError> {
    let invalid = |message: &'static str| EvalError::new("2201F", message);
    if base.is_nan() {
        return Ok(if exponent == 0.0 { 1.0 } else { f64::NAN });
    }
    if exponent.is_nan() {
        return Ok(if base == 1.0 { 1.0 } else { f64::NAN });
    }
    if base == 0.0 && exponent < 0.0 {
        return Err(invalid("zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.floor() != exponent {
        return Err(invalid("a negative number raised to a non-integer power yields a complex result"));
    }
    let value = base.powf(exponent);
    if base.is_infinite() || exponent.is_infinite() {
        return Ok(value);
    }
    if value.is_infinite() {
        return Err(overflow());
    }
    if value == 0.0 && base != 0.0 { Err(underflow()) } else { Ok(value) }
}

fn scale(interval: Interval, factor: f64, arithmetic: Arithmetic) -> Result<Interval, EvalError> {
    if arithmetic == Arithmetic::Multiply {
        if factor.is_infinite() {
            // Versions differ: an error before 17, possibly an infinite interval since 17.
            return Err(EvalError::new("0A000", "cannot multiply an interval by infinity"));
        }
        return interval.scaled(|part| part * factor);
    }
    if factor == 0.0 {
        return Err(EvalError::division_by_zero());
    }
    interval.scaled(|part| part / factor)
}
