//! Values: what a column's text says, by its type.
//!
//! Invariant: reading borrows from the row, and copies only where a value has no flat form (numeric, arrays).
//! Not here: NULL, which is the absence of a value; and types, which the expression knows.

pub(crate) mod array;
pub(crate) mod calendar;
pub(crate) mod clock;
pub(crate) mod input;
pub(crate) mod interval;
pub(crate) mod letters;
pub(crate) mod like;
pub(crate) mod numeric;
pub(crate) mod output;

use std::borrow::Cow;
use std::cmp::Ordering;

use self::array::Array;
use self::clock::{Date, Time, Timestamp, Timetz};
use self::interval::Interval;
use self::numeric::Numeric;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Bool(bool),
    /// int2, int4 and int8.
    Int(i64),
    Float4(f32),
    Float8(f64),
    Numeric(Cow<'a, Numeric>),
    /// text, varchar and bpchar, the last with its padding; and enums' labels.
    Text(Cow<'a, str>),
    Uuid([u8; 16]),
    Date(Date),
    Time(Time),
    Timetz(Timetz),
    /// timestamp and timestamptz.
    Timestamp(Timestamp),
    Interval(Interval),
    Array(Cow<'a, Array>),
}

impl<'a> Value<'a> {
    pub(crate) fn text(text: &'a str) -> Self {
        Value::Text(Cow::Borrowed(text))
    }

    pub(crate) fn numeric(numeric: Numeric) -> Self {
        Value::Numeric(Cow::Owned(numeric))
    }

    pub(crate) fn array(array: Array) -> Self {
        Value::Array(Cow::Owned(array))
    }

    /// The same value, borrowed from this one.
    pub(crate) fn lend(&self) -> Value<'_> {
        match self {
            Value::Text(text) => Value::Text(Cow::Borrowed(text)),
            Value::Numeric(numeric) => Value::Numeric(Cow::Borrowed(numeric)),
            Value::Array(array) => Value::Array(Cow::Borrowed(array)),
            Value::Bool(value) => Value::Bool(*value),
            Value::Int(value) => Value::Int(*value),
            Value::Float4(value) => Value::Float4(*value),
            Value::Float8(value) => Value::Float8(*value),
            Value::Uuid(value) => Value::Uuid(*value),
            Value::Date(value) => Value::Date(*value),
            Value::Time(value) => Value::Time(*value),
            Value::Timetz(value) => Value::Timetz(*value),
            Value::Timestamp(value) => Value::Timestamp(*value),
            Value::Interval(value) => Value::Interval(*value),
        }
    }

    /// The same value, borrowed from nothing.
    pub(crate) fn into_owned(self) -> Value<'static> {
        match self {
            Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Value::Numeric(numeric) => Value::Numeric(Cow::Owned(numeric.into_owned())),
            Value::Array(array) => Value::Array(Cow::Owned(array.into_owned())),
            Value::Bool(value) => Value::Bool(value),
            Value::Int(value) => Value::Int(value),
            Value::Float4(value) => Value::Float4(value),
            Value::Float8(value) => Value::Float8(value),
            Value::Uuid(value) => Value::Uuid(value),
            Value::Date(value) => Value::Date(value),
            Value::Time(value) => Value::Time(value),
            Value::Timetz(value) => Value::Timetz(value),
            Value::Timestamp(value) => Value::Timestamp(value),
            Value::Interval(value) => Value::Interval(value),
        }
    }

    /// The order that Postgres has for two values of one type, or of two that it compares without a cast. Texts compare by
    /// their bytes; `blank` says that blanks at their ends don't count.
    pub(crate) fn compare(&self, other: &Value<'_>, blank: bool) -> Ordering {
        match (self, other) {
            (Value::Int(left), Value::Int(right)) => left.cmp(right),
            (Value::Text(left), Value::Text(right)) if blank => unpadded(left).cmp(unpadded(right)),
            (Value::Text(left), Value::Text(right)) => left.cmp(right),
            (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
            (Value::Uuid(left), Value::Uuid(right)) => left.cmp(right),
            (Value::Float4(left), Value::Float4(right)) => order(f64::from(*left), f64::from(*right)),
            (Value::Float8(left), Value::Float8(right)) => order(*left, *right),
            (Value::Float4(left), Value::Float8(right)) => order(f64::from(*left), *right),
            (Value::Float8(left), Value::Float4(right)) => order(*left, f64::from(*right)),
            (Value::Numeric(left), Value::Numeric(right)) => left.cmp(right),
            (Value::Date(left), Value::Date(right)) => left.cmp(right),
            (Value::Timestamp(left), Value::Timestamp(right)) => left.cmp(right),
            (Value::Date(left), Value::Timestamp(right)) => across(*left, *right),
            (Value::Timestamp(left), Value::Date(right)) => across(*right, *left).reverse(),
            (Value::Time(left), Value::Time(right)) => left.cmp(right),
            (Value::Timetz(left), Value::Timetz(right)) => left.cmp(right),
            (Value::Interval(left), Value::Interval(right)) => left.cmp(right),
            (Value::Array(left), Value::Array(right)) => left.compare(right, blank),
            _ => unreachable!("the types of a comparison were checked: {self:?}, {other:?}"),
        }
    }
}

/// A bpchar without its padding.
pub(crate) fn unpadded(text: &str) -> &str {
    text.trim_end_matches(' ')
}

/// NaN equals itself and is greater than everything else; -0 equals 0.
fn order(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

/// A date beyond all timestamps is later than every finite one.
fn across(date: Date, timestamp: Timestamp) -> Ordering {
    let midnight = match date.0 {
        i32::MIN => Some(Timestamp(i64::MIN)),
        i32::MAX => Some(Timestamp(i64::MAX)),
        days => Timestamp::checked(i128::from(days) * i128::from(calendar::MICROS_PER_DAY)),
    };
    match midnight {
        Some(midnight) => midnight.cmp(&timestamp),
        None if timestamp.0 == i64::MAX => Ordering::Less,
        None => Ordering::Greater,
    }
}
