//! Casts, explicit and implicit, and fitting to the length or precision of a type.

use std::borrow::Cow;

use crate::array::Array;
use crate::calendar::{MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::clock_arithmetic::midnight;
use crate::datetime::{Date, Time, Timestamp, Timetz};
use crate::eval_error::EvalError;
use crate::interval::Interval;
use crate::interval_fields::IntervalFields;
use crate::numeric::Numeric;
use crate::scalar::{Scalar, ValueType};
use crate::sql_value::{SqlValue, unpadded};

/// A value, `None` for NULL, or Postgres' error.
type CastResult<'v> = Result<Option<SqlValue<'v>>, EvalError>;

/// Length or precision of a type (pg_attribute.atttypmod).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeModifier {
    /// varchar(n): longer texts are truncated.
    Length(usize),
    /// char(n): texts are truncated or padded.
    Padded(usize),
    /// numeric(p, s).
    Digits {
        /// Maximum number of digits.
        precision: i32,
        /// Number of decimals.
        scale: i32,
    },
    /// Digits of the seconds: timestamp(p), time(p).
    Fraction(u32),
    /// `interval day to second(3)`.
    Interval {
        /// The fields that the type keeps.
        fields: IntervalFields,
        /// Digits of the seconds.
        digits: Option<u32>,
    },
}

impl<'a> SqlValue<'a> {
    /// Casts between two types; `None` is NULL. `modern`: texts are parsed as Postgres 16 and newer
    /// do. Of jsonb, only the cast to json is handled.
    ///
    /// # Errors
    /// Fails if Postgres fails for the value.
    ///
    /// # Panics
    /// Panics if Postgres has no such cast, or if the value is not of the type `from`.
    pub fn cast(self, from: ValueType, to: ValueType, modern: bool) -> Result<Option<Self>, EvalError> {
        match (from, to) {
            (ValueType::Scalar(from), ValueType::Scalar(to)) => scalar(self, from, to, modern),
            (ValueType::Array(from), ValueType::Array(to)) => {
                let change = |item| -> CastResult<'static> { scalar(item, from, to, modern) };
                Ok(Some(SqlValue::array(as_array(self).try_map(change)?)))
            }
            // An array to a text, or a text to an array.
            (_, ValueType::Scalar(_)) => Ok(Some(SqlValue::Text(self.into_text(from)))),
            _ => {
                let text = as_text(self).into_owned();
                let read = SqlValue::parse(&text, to, modern).map_err(|error| error.without_text(to))?;
                Ok(Some(read.into_owned()))
            }
        }
    }

    /// Truncates, pads or rounds to a type's length or precision.
    ///
    /// # Errors
    /// Fails if the value is out of range.
    pub fn fitted(self, modifier: TypeModifier) -> Result<Self, EvalError> {
        match self {
            SqlValue::Array(array) => {
                let fit = |item| fit_scalar(item, modifier).map(Some);
                Ok(SqlValue::array(array.into_owned().try_map(fit)?))
            }
            value => fit_scalar(value, modifier),
        }
    }
}

fn as_array(value: SqlValue<'_>) -> Array {
    match value {
        SqlValue::Array(array) => array.into_owned(),
        other => unreachable!("it is an array by type: {other:?}"),
    }
}

fn as_text(value: SqlValue<'_>) -> Cow<'_, str> {
    match value {
        SqlValue::Text(text) => text,
        other => unreachable!("it is a text by type: {other:?}"),
    }
}

fn scalar(value: SqlValue<'_>, from: Scalar, to: Scalar, modern: bool) -> CastResult<'_> {
    if from.is_text() {
        return from_text(value, from, to, modern);
    }
    if to.is_text() {
        return Ok(Some(match value {
            SqlValue::Bool(value) => SqlValue::text(if value { "true" } else { "false" }),
            // The cast writes the prefix length; the output function leaves out the longest.
            SqlValue::Inet(value) => SqlValue::Text(Cow::Owned(value.write(true))),
            value => SqlValue::Text(value.into_text(ValueType::Scalar(from))),
        }));
    }
    Ok(Some(match (value, to) {
        (SqlValue::Int(value), _) => from_integer(value, to)?,
        (SqlValue::Bool(value), _) => SqlValue::Int(i64::from(value)),
        (SqlValue::Float4(value), Scalar::Numeric) => {
            SqlValue::numeric(Numeric::from_f64(f64::from(value), 6))
        }
        (SqlValue::Float4(value), Scalar::Float8) => SqlValue::Float8(f64::from(value)),
        (SqlValue::Float4(value), _) => whole(f64::from(value), to)?,
        (SqlValue::Float8(value), Scalar::Numeric) => SqlValue::numeric(Numeric::from_f64(value, 15)),
        (SqlValue::Float8(value), Scalar::Float4) => SqlValue::Float4(narrow(value)?),
        (SqlValue::Float8(value), _) => whole(value, to)?,
        (SqlValue::Numeric(value), Scalar::Float8) => SqlValue::Float8(in_range(value.to_f64(), &value, to)?),
        (SqlValue::Numeric(value), Scalar::Float4) => {
            let text = value.to_string();
            let narrow: f32 = text.parse().map_err(|_| EvalError::out_of_range(to.name()))?;
            SqlValue::Float4(in_range(f64::from(narrow), &value, to)? as f32)
        }
        (SqlValue::Numeric(value), _) => SqlValue::integer(value.to_i64(to.name())?, to)?,
        (SqlValue::Json(text), _) => SqlValue::Text(text),
        (SqlValue::Text(text), Scalar::Jsonb) => SqlValue::parse_scalar(&text, to, modern)
            .map_err(|error| error.without_text(ValueType::Scalar(to)))?
            .into_owned(),
        (SqlValue::Inet(value), Scalar::Cidr) => SqlValue::Inet(value.masked()),
        (SqlValue::Inet(value), _) => SqlValue::Inet(value),
        (SqlValue::Date(value), _) => SqlValue::Timestamp(midnight(value)?),
        (value, _) => return clock(value, to),
    }))
}

fn from_text(value: SqlValue<'_>, from: Scalar, to: Scalar, modern: bool) -> CastResult<'_> {
    let text = as_text(value);
    if to.is_text() {
        // Only the cast of a bpchar changes the text: it removes the padding.
        let strip = from == Scalar::Bpchar && to != Scalar::Bpchar;
        return Ok(Some(SqlValue::Text(if strip { Cow::Owned(unpadded(&text).to_owned()) } else { text })));
    }
    let read = SqlValue::parse_scalar(&text, to, modern)
        .map_err(|error| error.without_text(ValueType::Scalar(to)))?;
    Ok(Some(read.into_owned()))
}

fn from_integer(value: i64, to: Scalar) -> Result<SqlValue<'static>, EvalError> {
    Ok(match to {
        Scalar::Bool => SqlValue::Bool(value != 0),
        Scalar::Numeric => SqlValue::numeric(Numeric::from_i64(value)),
        Scalar::Float4 => SqlValue::Float4(value as f32),
        Scalar::Float8 => SqlValue::Float8(value as f64),
        _ => return SqlValue::integer(value, to),
    })
}

/// Rounds to the nearest integer, half to even.
fn whole(value: f64, to: Scalar) -> Result<SqlValue<'static>, EvalError> {
    let rounded = value.round_ties_even();
    // -2^63 is a float. 2^63 is the smallest float that does not fit.
    if rounded.is_nan() || rounded < i64::MIN as f64 || rounded >= -(i64::MIN as f64) {
        return Err(EvalError::out_of_range(to.name()));
    }
    SqlValue::integer(rounded as i64, to)
}

fn narrow(value: f64) -> Result<f32, EvalError> {
    let narrow = value as f32;
    if narrow.is_infinite() && !value.is_infinite() {
        return Err(EvalError::new("22003", "value out of range: overflow"));
    }
    if narrow == 0.0 && value != 0.0 {
        return Err(EvalError::new("22003", "value out of range: underflow"));
    }
    Ok(narrow)
}

/// Fails if the numeric is too large or too small for the float. Postgres converts it through text.
fn in_range(value: f64, numeric: &Numeric, to: Scalar) -> Result<f64, EvalError> {
    let finite = matches!(numeric, Numeric::Finite(_));
    let vanished = value == 0.0 && *numeric != numeric.negated();
    if (finite && value.is_infinite()) || vanished {
        return Err(EvalError::out_of_range(to.name()));
    }
    Ok(value)
}

fn clock(value: SqlValue<'_>, to: Scalar) -> CastResult<'_> {
    Ok(Some(match (value, to) {
        (SqlValue::Time(time), Scalar::Interval) => {
            SqlValue::Interval(Interval { months: 0, days: 0, micros: time.0 })
        }
        (SqlValue::Time(time), Scalar::Timetz) => SqlValue::Timetz(Timetz { micros: time.0, west: 0 }),
        (SqlValue::Timetz(time), Scalar::Time) => SqlValue::Time(Time(time.micros)),
        (SqlValue::Interval(interval), Scalar::Time) => {
            SqlValue::Time(Time(interval.micros.rem_euclid(MICROS_PER_DAY)))
        }
        (SqlValue::Timestamp(moment), Scalar::Date) => SqlValue::Date(match moment.0 {
            i64::MIN => Date(i32::MIN),
            i64::MAX => Date(i32::MAX),
            _ => Date(moment.split().0 as i32),
        }),
        (SqlValue::Timestamp(moment), Scalar::Time | Scalar::Timetz) => {
            if !moment.is_finite() {
                return Ok(None);
            }
            let micros = moment.split().1;
            if to == Scalar::Time {
                SqlValue::Time(Time(micros))
            } else {
                SqlValue::Timetz(Timetz { micros, west: 0 })
            }
        }
        // The time zone is UTC: timestamp and timestamptz have the same value.
        (SqlValue::Timestamp(moment), _) => SqlValue::Timestamp(moment),
        (value, _) => unreachable!("no cast of {value:?} to {to:?}"),
    }))
}

fn fit_scalar(value: SqlValue<'_>, fit: TypeModifier) -> Result<SqlValue<'_>, EvalError> {
    Ok(match (value, fit) {
        (SqlValue::Text(text), TypeModifier::Length(length)) => SqlValue::Text(truncate(text, length)),
        (SqlValue::Text(text), TypeModifier::Padded(length)) => {
            let mut text = truncate(text, length).into_owned();
            let missing = length - text.chars().count();
            text.extend(std::iter::repeat_n(' ', missing));
            SqlValue::Text(Cow::Owned(text))
        }
        (SqlValue::Numeric(value), TypeModifier::Digits { precision, scale }) => {
            SqlValue::numeric(value.fitted(precision, scale)?)
        }
        (SqlValue::Time(time), TypeModifier::Fraction(digits)) => SqlValue::Time(Time(round(time.0, digits))),
        (SqlValue::Timetz(time), TypeModifier::Fraction(digits)) => {
            SqlValue::Timetz(Timetz { micros: round(time.micros, digits), ..time })
        }
        (SqlValue::Timestamp(moment), TypeModifier::Fraction(digits)) if moment.is_finite() => {
            // Postgres does not check the range.
            SqlValue::Timestamp(Timestamp(round(moment.0, digits)))
        }
        (SqlValue::Interval(interval), TypeModifier::Interval { fields, digits }) => {
            SqlValue::Interval(interval.fitted(fields, digits)?)
        }
        (value, _) => value,
    })
}

fn truncate(text: Cow<'_, str>, length: usize) -> Cow<'_, str> {
    match text.char_indices().nth(length) {
        Some((end, _)) => Cow::Owned(text[..end].to_owned()),
        None => text,
    }
}

/// Rounds microseconds to this many digits of a second, half away from zero.
fn round(micros: i64, digits: u32) -> i64 {
    let unit = MICROS_PER_SECOND / 10_i64.pow(digits);
    let half = if micros < 0 { -(unit / 2) } else { unit / 2 };
    micros.saturating_add(half) / unit * unit
}
