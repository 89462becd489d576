//! Functions of numbers (int.c, float.c, numeric.c).

use std::borrow::Cow;
use std::cmp::Ordering;

use forebay_values::{Arithmetic, EvalError, Numeric, Scalar, SqlValue};

use super::function::Arguments;

/// Digits after the point up to which versions of Postgres round alike.
const MAX_DIGITS: i64 = 2000;

/// A function of numbers. The type is that of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NumberFunction {
    Abs(Scalar),
    Ceil,
    /// div(): the quotient without its fraction.
    DivideWhole,
    Floor,
    Gcd(Scalar),
    Lcm(Scalar),
    Power,
    /// power() of numerics. `modern`: as Postgres 16 and newer compute it.
    PowerOfNumeric {
        modern: bool,
    },
    Remainder(Scalar),
    Round,
    /// round() to a number of digits.
    RoundTo,
    Sign,
    SquareRoot,
    Truncate,
    /// trunc() to a number of digits.
    TruncateTo,
}

impl NumberFunction {
    pub(super) fn apply<'v>(self, arguments: &mut Arguments<'v>) -> Result<SqlValue<'v>, EvalError> {
        let first = arguments.value();
        match self {
            NumberFunction::Abs(scalar) => first.absolute(scalar),
            NumberFunction::Power => first.compute(Arithmetic::Power, arguments.value(), Scalar::Float8),
            NumberFunction::Remainder(scalar) => {
                first.compute(Arithmetic::Remainder, arguments.value(), scalar)
            }
            NumberFunction::PowerOfNumeric { modern } => {
                let (base, exponent) = (numeric(first), numeric(arguments.value()));
                base.power(&exponent, modern).map(SqlValue::numeric)
            }
            NumberFunction::SquareRoot => match first {
                SqlValue::Numeric(value) => value.square_root().map(SqlValue::numeric),
                value => value.square_root(),
            },
            NumberFunction::Gcd(Scalar::Numeric) => {
                let (left, right) = (numeric(first), numeric(arguments.value()));
                left.common_divisor(&right).map(SqlValue::numeric)
            }
            NumberFunction::Lcm(Scalar::Numeric) => {
                let (left, right) = (numeric(first), numeric(arguments.value()));
                left.common_multiple(&right).map(SqlValue::numeric)
            }
            NumberFunction::Gcd(scalar) => fit(gcd(integer(first), integer(arguments.value())), scalar),
            NumberFunction::Lcm(scalar) => {
                let (left, right) = (integer(first), integer(arguments.value()));
                let divisor = gcd(left, right);
                let multiple = if divisor == 0 { 0 } else { (left / divisor * right).abs() };
                fit(multiple, scalar)
            }
            NumberFunction::DivideWhole => {
                let (left, right) = (numeric(first), numeric(arguments.value()));
                left.divide_whole(&right).map(SqlValue::numeric)
            }
            NumberFunction::RoundTo | NumberFunction::TruncateTo => {
                let digits = integer(arguments.value());
                let digits = i64::try_from(digits).ok().filter(|digits| digits.abs() <= MAX_DIGITS);
                // Versions differ in the bounds of the digits.
                let digits = digits.ok_or_else(|| EvalError::new("0A000", "rounding to so many digits"))?;
                let number = numeric(first);
                let rounds = self == NumberFunction::RoundTo;
                let digits = digits as i32;
                let number = if rounds { number.rounded(digits)? } else { number.truncated(digits) };
                Ok(SqlValue::numeric(number))
            }
            NumberFunction::Ceil
            | NumberFunction::Floor
            | NumberFunction::Round
            | NumberFunction::Sign
            | NumberFunction::Truncate => match first {
                SqlValue::Float8(value) => Ok(SqlValue::Float8(self.of_float(value))),
                value => self.of_numeric(&numeric(value)).map(SqlValue::numeric),
            },
        }
    }

    fn of_float(self, value: f64) -> f64 {
        match self {
            NumberFunction::Ceil => value.ceil(),
            NumberFunction::Floor => value.floor(),
            NumberFunction::Round => value.round_ties_even(),
            NumberFunction::Truncate => value.trunc(),
            _ if value > 0.0 => 1.0,
            _ if value < 0.0 => -1.0,
            _ => 0.0,
        }
    }

    fn of_numeric(self, value: &Numeric) -> Result<Numeric, EvalError> {
        let whole = value.truncated(0);
        match self {
            NumberFunction::Ceil if whole.compare(value) == Ordering::Less => {
                whole.add(&Numeric::from_i64(1))
            }
            NumberFunction::Floor if whole.compare(value) == Ordering::Greater => {
                whole.subtract(&Numeric::from_i64(1))
            }
            NumberFunction::Round => value.rounded(0),
            NumberFunction::Sign if *value == Numeric::NaN => Ok(Numeric::NaN),
            NumberFunction::Sign => Ok(Numeric::from_i64(value.sign().into())),
            _ => Ok(whole),
        }
    }
}

fn fit(value: i128, scalar: Scalar) -> Result<SqlValue<'static>, EvalError> {
    let value = i64::try_from(value).map_err(|_| EvalError::out_of_range(scalar.name()))?;
    SqlValue::integer(value, scalar)
}

fn gcd(left: i128, right: i128) -> i128 {
    let (mut left, mut right) = (left.abs(), right.abs());
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

fn integer(value: SqlValue<'_>) -> i128 {
    match value {
        SqlValue::Int(value) => value.into(),
        other => unreachable!("it is an integer by type: {other:?}"),
    }
}

fn numeric(value: SqlValue<'_>) -> Cow<'_, Numeric> {
    match value {
        SqlValue::Numeric(value) => value,
        other => unreachable!("it is a numeric by type: {other:?}"),
    }
}
