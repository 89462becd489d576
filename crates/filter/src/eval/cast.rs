//! Casts, asked for and unasked.

use std::borrow::Cow;

use super::clock::midnight;
use super::{Answer, as_array, as_text, fit_integer};
use crate::error::EvalError;
use crate::typing::expr::Fit;
use crate::typing::{Scalar, Type};
use crate::value::array::Array;
use crate::value::calendar::{MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::value::clock::{Date, Time, Timestamp, Timetz};
use crate::value::interval::Interval;
use crate::value::numeric::Numeric;
use crate::value::{Value, input, output, unpadded};

pub(super) fn cast(value: Value<'_>, from: Type, to: Type, modern: bool) -> Answer<'_> {
    match (from, to) {
        (Type::Scalar(from), Type::Scalar(to)) => scalar(value, from, to, modern),
        (Type::Array(from), Type::Array(to)) => {
            let array = as_array(value).into_owned();
            each(array, |item| Ok(scalar(item, from, to, modern)?.map(Value::into_owned)))
        }
        // Through text: an array to a text, or a text to an array.
        (_, Type::Scalar(_)) => Ok(Some(Value::Text(output::write(value, from)))),
        _ => {
            let text = as_text(value).into_owned();
            let read = input::read(&text, to, modern).map_err(|error| error.of_row(to))?;
            Ok(Some(read.into_owned()))
        }
    }
}

fn each(
    array: Array,
    mut change: impl FnMut(Value<'static>) -> Result<Option<Value<'static>>, EvalError>,
) -> Answer<'static> {
    let items = array.items.into_iter().map(|item| item.map_or(Ok(None), &mut change));
    let items = items.collect::<Result<_, _>>()?;
    Ok(Some(Value::array(Array { dimensions: array.dimensions, items })))
}

fn scalar(value: Value<'_>, from: Scalar, to: Scalar, modern: bool) -> Answer<'_> {
    if from.is_text() {
        return from_text(value, from, to, modern);
    }
    if to.is_text() {
        return Ok(Some(match value {
            Value::Bool(value) => Value::text(if value { "true" } else { "false" }),
            value => Value::Text(output::write(value, Type::Scalar(from))),
        }));
    }
    Ok(Some(match (value, to) {
        (Value::Int(value), _) => from_integer(value, to)?,
        (Value::Bool(value), _) => Value::Int(i64::from(value)),
        (Value::Float4(value), Scalar::Numeric) => Value::numeric(Numeric::from_f64(f64::from(value), 6)),
        (Value::Float4(value), Scalar::Float8) => Value::Float8(f64::from(value)),
        (Value::Float4(value), _) => whole(f64::from(value), to)?,
        (Value::Float8(value), Scalar::Numeric) => Value::numeric(Numeric::from_f64(value, 15)),
        (Value::Float8(value), Scalar::Float4) => Value::Float4(narrow(value)?),
        (Value::Float8(value), _) => whole(value, to)?,
        (Value::Numeric(value), Scalar::Float8) => Value::Float8(in_range(value.to_f64(), &value, to)?),
        (Value::Numeric(value), Scalar::Float4) => {
            let text = value.to_string();
            let narrow: f32 = text.parse().map_err(|_| EvalError::out_of_range(to.name()))?;
            Value::Float4(in_range(f64::from(narrow), &value, to)? as f32)
        }
        (Value::Numeric(value), _) => fit_integer(value.to_i64(to.name())?, to)?,
        (Value::Date(value), _) => Value::Timestamp(midnight(value)?),
        (value, _) => return clock(value, to),
    }))
}

fn from_text(value: Value<'_>, from: Scalar, to: Scalar, modern: bool) -> Answer<'_> {
    let text = as_text(value);
    if to.is_text() {
        // Only a bpchar's cast does something: its padding goes.
        let strip = from == Scalar::Bpchar && to != Scalar::Bpchar;
        return Ok(Some(Value::Text(if strip { Cow::Owned(unpadded(&text).to_owned()) } else { text })));
    }
    let read = input::read_scalar(&text, to, modern).map_err(|error| error.of_row(Type::Scalar(to)))?;
    Ok(Some(read.into_owned()))
}

fn from_integer(value: i64, to: Scalar) -> Result<Value<'static>, EvalError> {
    Ok(match to {
        Scalar::Bool => Value::Bool(value != 0),
        Scalar::Numeric => Value::numeric(Numeric::from_i64(value)),
        Scalar::Float4 => Value::Float4(value as f32),
        Scalar::Float8 => Value::Float8(value as f64),
        _ => return fit_integer(value, to),
    })
}

/// Rounded to the nearest whole number, half to even.
fn whole(value: f64, to: Scalar) -> Result<Value<'static>, EvalError> {
    let rounded = value.round_ties_even();
    // -2^63 is a float, 2^63 the first that doesn't fit.
    if rounded.is_nan() || rounded < i64::MIN as f64 || rounded >= -(i64::MIN as f64) {
        return Err(EvalError::out_of_range(to.name()));
    }
    fit_integer(rounded as i64, to)
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

/// A numeric goes through text, and a text that is too large or too small for a float is an error.
fn in_range(value: f64, numeric: &Numeric, to: Scalar) -> Result<f64, EvalError> {
    let finite = matches!(numeric, Numeric::Finite(_));
    let vanished = value == 0.0 && *numeric != numeric.negated();
    if (finite && value.is_infinite()) || vanished {
        return Err(EvalError::out_of_range(to.name()));
    }
    Ok(value)
}

fn clock(value: Value<'_>, to: Scalar) -> Answer<'_> {
    Ok(Some(match (value, to) {
        (Value::Time(time), Scalar::Interval) => {
            Value::Interval(Interval { months: 0, days: 0, micros: time.0 })
        }
        (Value::Time(time), Scalar::Timetz) => Value::Timetz(Timetz { micros: time.0, west: 0 }),
        (Value::Timetz(time), Scalar::Time) => Value::Time(Time(time.micros)),
        (Value::Interval(interval), Scalar::Time) => {
            Value::Time(Time(interval.micros.rem_euclid(MICROS_PER_DAY)))
        }
        (Value::Timestamp(moment), Scalar::Date) => Value::Date(match moment.0 {
            i64::MIN => Date(i32::MIN),
            i64::MAX => Date(i32::MAX),
            _ => Date(moment.split().0 as i32),
        }),
        (Value::Timestamp(moment), Scalar::Time | Scalar::Timetz) => {
            if !moment.is_finite() {
                return Ok(None);
            }
            let micros = moment.split().1;
            if to == Scalar::Time {
                Value::Time(Time(micros))
            } else {
                Value::Timetz(Timetz { micros, west: 0 })
            }
        }
        // In UTC, the two kinds of timestamp are one.
        (Value::Timestamp(moment), _) => Value::Timestamp(moment),
        (value, _) => unreachable!("no cast of {value:?} to {to:?}"),
    }))
}

/// To a type's length or precision.
pub(super) fn fit(value: Value<'_>, fit: Fit) -> Result<Value<'_>, EvalError> {
    match value {
        Value::Array(array) => {
            let array = array.into_owned();
            let one = |item: Value<'static>| Ok(Some(self::fit(item, fit)?));
            Ok(each(array, one)?.expect("an array stays one"))
        }
        value => fit_scalar(value, fit),
    }
}

fn fit_scalar(value: Value<'_>, fit: Fit) -> Result<Value<'_>, EvalError> {
    Ok(match (value, fit) {
        (Value::Text(text), Fit::Length(length)) => Value::Text(cut(text, length)),
        (Value::Text(text), Fit::Padded(length)) => {
            let mut text = cut(text, length).into_owned();
            let missing = length - text.chars().count();
            text.extend(std::iter::repeat_n(' ', missing));
            Value::Text(Cow::Owned(text))
        }
        (Value::Numeric(value), Fit::Digits { precision, scale }) => {
            Value::numeric(value.fitted(precision, scale)?)
        }
        (Value::Time(time), Fit::Fraction(digits)) => Value::Time(Time(round(time.0, digits))),
        (Value::Timetz(time), Fit::Fraction(digits)) => {
            Value::Timetz(Timetz { micros: round(time.micros, digits), ..time })
        }
        (Value::Timestamp(moment), Fit::Fraction(digits)) if moment.is_finite() => {
            Value::Timestamp(Timestamp(round(moment.0, digits))) // Postgres doesn't look whether that is in range.
        }
        (value, _) => value,
    })
}

fn cut(text: Cow<'_, str>, length: usize) -> Cow<'_, str> {
    match text.char_indices().nth(length) {
        Some((end, _)) => Cow::Owned(text[..end].to_owned()),
        None => text,
    }
}

/// Microseconds to so many digits of a second, half away from zero.
fn round(micros: i64, digits: u32) -> i64 {
    let unit = MICROS_PER_SECOND / 10_i64.pow(digits);
    let half = if micros < 0 { -(unit / 2) } else { unit / 2 };
    micros.saturating_add(half) / unit * unit
}
