//! SQL values, parsed from text.
//!
//! Invariant: parsing borrows from the row. Only numeric, bytea, arrays and ranges are copied.
//! Out of scope: NULL, which is `None`, and types, which the expression holds.

pub(crate) mod array;
pub(crate) mod bytes;
pub(crate) mod calendar;
pub(crate) mod clock_field;
mod clock_text;
pub(crate) mod datetime;
pub(crate) mod input;
pub(crate) mod interval;
pub(crate) mod interval_fields;
pub(crate) mod json;
pub(crate) mod letter_case;
pub(crate) mod like;
pub(crate) mod network;
pub(crate) mod numeric;
pub(crate) mod output;
pub(crate) mod range;

use std::borrow::Cow;
use std::cmp::Ordering;

use self::array::Array;
use self::datetime::{Date, Time, Timestamp, Timetz};
use self::interval::Interval;
use self::network::Inet;
use self::numeric::Numeric;
use self::range::Range;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SqlValue<'a> {
    Bool(bool),
    /// int2, int4 and int8.
    Int(i64),
    Float4(f32),
    Float8(f64),
    Numeric(Cow<'a, Numeric>),
    /// text, varchar, bpchar with its padding, and labels of enums.
    Text(Cow<'a, str>),
    Uuid([u8; 16]),
    /// jsonb, in the layout that Postgres writes; see [`json`].
    Json(Cow<'a, str>),
    Date(Date),
    Time(Time),
    Timetz(Timetz),
    /// timestamp and timestamptz.
    Timestamp(Timestamp),
    Interval(Interval),
    Bytes(Cow<'a, [u8]>),
    /// inet and cidr.
    Inet(Inet),
    Macaddr([u8; 6]),
    Range(Cow<'a, Range>),
    Array(Cow<'a, Array>),
}

impl<'a> SqlValue<'a> {
    pub(crate) fn text(text: &'a str) -> Self {
        SqlValue::Text(Cow::Borrowed(text))
    }

    pub(crate) fn numeric(numeric: Numeric) -> Self {
        SqlValue::Numeric(Cow::Owned(numeric))
    }

    pub(crate) fn array(array: Array) -> Self {
        SqlValue::Array(Cow::Owned(array))
    }

    /// Returns the value, borrowed from this one.
    pub(crate) fn borrowed(&self) -> SqlValue<'_> {
        match self {
            SqlValue::Text(text) => SqlValue::Text(Cow::Borrowed(text)),
            SqlValue::Json(text) => SqlValue::Json(Cow::Borrowed(text)),
            SqlValue::Numeric(numeric) => SqlValue::Numeric(Cow::Borrowed(numeric)),
            SqlValue::Array(array) => SqlValue::Array(Cow::Borrowed(array)),
            SqlValue::Bytes(bytes) => SqlValue::Bytes(Cow::Borrowed(bytes)),
            SqlValue::Range(range) => SqlValue::Range(Cow::Borrowed(range)),
            SqlValue::Bool(value) => SqlValue::Bool(*value),
            SqlValue::Int(value) => SqlValue::Int(*value),
            SqlValue::Float4(value) => SqlValue::Float4(*value),
            SqlValue::Float8(value) => SqlValue::Float8(*value),
            SqlValue::Uuid(value) => SqlValue::Uuid(*value),
            SqlValue::Date(value) => SqlValue::Date(*value),
            SqlValue::Time(value) => SqlValue::Time(*value),
            SqlValue::Timetz(value) => SqlValue::Timetz(*value),
            SqlValue::Timestamp(value) => SqlValue::Timestamp(*value),
            SqlValue::Interval(value) => SqlValue::Interval(*value),
            SqlValue::Inet(value) => SqlValue::Inet(*value),
            SqlValue::Macaddr(value) => SqlValue::Macaddr(*value),
        }
    }

    /// Returns an owned copy.
    pub(crate) fn into_owned(self) -> SqlValue<'static> {
        match self {
            SqlValue::Text(text) => SqlValue::Text(Cow::Owned(text.into_owned())),
            SqlValue::Json(text) => SqlValue::Json(Cow::Owned(text.into_owned())),
            SqlValue::Numeric(numeric) => SqlValue::Numeric(Cow::Owned(numeric.into_owned())),
            SqlValue::Array(array) => SqlValue::Array(Cow::Owned(array.into_owned())),
            SqlValue::Bytes(bytes) => SqlValue::Bytes(Cow::Owned(bytes.into_owned())),
            SqlValue::Range(range) => SqlValue::Range(Cow::Owned(range.into_owned())),
            SqlValue::Bool(value) => SqlValue::Bool(value),
            SqlValue::Int(value) => SqlValue::Int(value),
            SqlValue::Float4(value) => SqlValue::Float4(value),
            SqlValue::Float8(value) => SqlValue::Float8(value),
            SqlValue::Uuid(value) => SqlValue::Uuid(value),
            SqlValue::Date(value) => SqlValue::Date(value),
            SqlValue::Time(value) => SqlValue::Time(value),
            SqlValue::Timetz(value) => SqlValue::Timetz(value),
            SqlValue::Timestamp(value) => SqlValue::Timestamp(value),
            SqlValue::Interval(value) => SqlValue::Interval(value),
            SqlValue::Inet(value) => SqlValue::Inet(value),
            SqlValue::Macaddr(value) => SqlValue::Macaddr(value),
        }
    }

    /// Compares as Postgres does two values of one type, or of two types that it compares without a
    /// cast. Texts compare by bytes. `ignore_blanks`: trailing blanks are ignored.
    pub(crate) fn compare(&self, other: &SqlValue<'_>, ignore_blanks: bool) -> Ordering {
        match (self, other) {
            (SqlValue::Int(left), SqlValue::Int(right)) => left.cmp(right),
            (SqlValue::Text(left), SqlValue::Text(right)) if ignore_blanks => {
                unpadded(left).cmp(unpadded(right))
            }
            (SqlValue::Text(left), SqlValue::Text(right)) => left.cmp(right),
            (SqlValue::Bool(left), SqlValue::Bool(right)) => left.cmp(right),
            (SqlValue::Uuid(left), SqlValue::Uuid(right)) => left.cmp(right),
            (SqlValue::Float4(left), SqlValue::Float4(right)) => order(f64::from(*left), f64::from(*right)),
            (SqlValue::Float8(left), SqlValue::Float8(right)) => order(*left, *right),
            (SqlValue::Float4(left), SqlValue::Float8(right)) => order(f64::from(*left), *right),
            (SqlValue::Float8(left), SqlValue::Float4(right)) => order(*left, f64::from(*right)),
            (SqlValue::Numeric(left), SqlValue::Numeric(right)) => left.cmp(right),
            (SqlValue::Date(left), SqlValue::Date(right)) => left.cmp(right),
            (SqlValue::Timestamp(left), SqlValue::Timestamp(right)) => left.cmp(right),
            (SqlValue::Date(left), SqlValue::Timestamp(right)) => compare_date_with_timestamp(*left, *right),
            (SqlValue::Timestamp(left), SqlValue::Date(right)) => {
                compare_date_with_timestamp(*right, *left).reverse()
            }
            (SqlValue::Time(left), SqlValue::Time(right)) => left.cmp(right),
            (SqlValue::Timetz(left), SqlValue::Timetz(right)) => left.cmp(right),
            (SqlValue::Interval(left), SqlValue::Interval(right)) => left.cmp(right),
            // Texts of rows that have another layout have an order, too.
            (SqlValue::Json(left), SqlValue::Json(right)) => {
                json::compare::order(left, right).unwrap_or_else(|_| left.cmp(right))
            }
            (SqlValue::Bytes(left), SqlValue::Bytes(right)) => left.cmp(right),
            (SqlValue::Inet(left), SqlValue::Inet(right)) => left.cmp(right),
            (SqlValue::Macaddr(left), SqlValue::Macaddr(right)) => left.cmp(right),
            (SqlValue::Range(left), SqlValue::Range(right)) => left.compare(right),
            (SqlValue::Array(left), SqlValue::Array(right)) => left.compare(right, ignore_blanks),
            _ => unreachable!("the types of a comparison were checked: {self:?}, {other:?}"),
        }
    }
}

/// Returns a bpchar without its padding.
pub(crate) fn unpadded(text: &str) -> &str {
    text.trim_end_matches(' ')
}

/// Compares floats: NaN equals itself and is greater than any other value; -0 equals 0.
fn order(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

/// Compares a date with a timestamp. A date beyond the range of timestamps is later than any finite
/// one.
fn compare_date_with_timestamp(date: Date, timestamp: Timestamp) -> Ordering {
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
