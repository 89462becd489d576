//! Values: kinds, copies and comparison.
//!
//! Invariant: parsing borrows from the row. Only numeric, bytea, arrays, ranges and multiranges
//! are copied.
//! Out of scope: NULL, which is `None`, and types, which the caller knows.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::array::Array;
use crate::bytes;
use crate::datetime::{Date, Time, Timestamp, Timetz};
use crate::input::short_integer;
use crate::interval::Interval;
use crate::multirange::Multirange;
use crate::network::Inet;
use crate::numeric::Numeric;
use crate::range::Range;
use crate::scalar::Scalar;

/// A value of a Postgres type. NULL is `None`, outside of it.
///
/// `==` compares representations: the numerics 1.0 and 1.00 differ. [`SqlValue::compare`] compares
/// as Postgres does. `Debug` shows the value: don't log it.
///
/// The enum is complete: code that handles values must handle those of each type.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue<'a> {
    /// bool.
    Bool(bool),
    /// int2, int4 and int8.
    Int(i64),
    /// float4.
    Float4(f32),
    /// float8.
    Float8(f64),
    /// numeric.
    Numeric(Cow<'a, Numeric>),
    /// text, varchar, bpchar with its padding, and labels of enums.
    Text(Cow<'a, str>),
    /// uuid.
    Uuid([u8; 16]),
    /// jsonb, in the layout that Postgres writes; see [`json`](crate::json).
    Json(Cow<'a, str>),
    /// date.
    Date(Date),
    /// time.
    Time(Time),
    /// timetz.
    Timetz(Timetz),
    /// timestamp and timestamptz.
    Timestamp(Timestamp),
    /// interval.
    Interval(Interval),
    /// bytea.
    Bytes(Cow<'a, [u8]>),
    /// inet and cidr.
    Inet(Inet),
    /// macaddr.
    Macaddr([u8; 6]),
    /// A range of any type.
    Range(Cow<'a, Range>),
    /// A multirange of any type.
    Multirange(Cow<'a, Multirange>),
    /// An array of any type.
    Array(Cow<'a, Array>),
}

impl<'a> SqlValue<'a> {
    /// Returns a text.
    #[inline]
    pub fn text(text: &'a str) -> Self {
        SqlValue::Text(Cow::Borrowed(text))
    }

    /// Returns a numeric.
    pub fn numeric(numeric: Numeric) -> Self {
        SqlValue::Numeric(Cow::Owned(numeric))
    }

    /// Returns an array.
    pub fn array(array: Array) -> Self {
        SqlValue::Array(Cow::Owned(array))
    }

    /// Returns the value, borrowed from this one.
    #[inline]
    pub fn borrowed(&self) -> SqlValue<'_> {
        match self {
            SqlValue::Text(text) => SqlValue::Text(Cow::Borrowed(text)),
            SqlValue::Json(text) => SqlValue::Json(Cow::Borrowed(text)),
            SqlValue::Numeric(numeric) => SqlValue::Numeric(Cow::Borrowed(numeric)),
            SqlValue::Array(array) => SqlValue::Array(Cow::Borrowed(array)),
            SqlValue::Bytes(bytes) => SqlValue::Bytes(Cow::Borrowed(bytes)),
            SqlValue::Range(range) => SqlValue::Range(Cow::Borrowed(range)),
            SqlValue::Multirange(ranges) => SqlValue::Multirange(Cow::Borrowed(ranges)),
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
    #[inline]
    pub fn into_owned(self) -> SqlValue<'static> {
        match self {
            SqlValue::Text(text) => SqlValue::Text(Cow::Owned(text.into_owned())),
            SqlValue::Json(text) => SqlValue::Json(Cow::Owned(text.into_owned())),
            SqlValue::Numeric(numeric) => SqlValue::Numeric(Cow::Owned(numeric.into_owned())),
            SqlValue::Array(array) => SqlValue::Array(Cow::Owned(array.into_owned())),
            SqlValue::Bytes(bytes) => SqlValue::Bytes(Cow::Owned(bytes.into_owned())),
            SqlValue::Range(range) => SqlValue::Range(Cow::Owned(range.into_owned())),
            SqlValue::Multirange(ranges) => SqlValue::Multirange(Cow::Owned(ranges.into_owned())),
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
    /// cast. Texts compare by bytes. `ignore_blanks`: trailing blanks are ignored, as for bpchar.
    ///
    /// # Panics
    /// Panics if Postgres has no comparison of the two types without a cast.
    #[inline]
    pub fn compare(&self, other: &SqlValue<'_>, ignore_blanks: bool) -> Ordering {
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
            (SqlValue::Numeric(left), SqlValue::Numeric(right)) => left.compare(right),
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
                crate::json::order(left, right).unwrap_or_else(|_| left.cmp(right))
            }
            (SqlValue::Bytes(left), SqlValue::Bytes(right)) => left.cmp(right),
            (SqlValue::Inet(left), SqlValue::Inet(right)) => left.cmp(right),
            (SqlValue::Macaddr(left), SqlValue::Macaddr(right)) => left.cmp(right),
            (SqlValue::Range(left), SqlValue::Range(right)) => left.compare(right),
            (SqlValue::Multirange(left), SqlValue::Multirange(right)) => left.compare(right),
            (SqlValue::Array(left), SqlValue::Array(right)) => left.compare(right, ignore_blanks),
            _ => unreachable!("the types of a comparison were checked: {self:?}, {other:?}"),
        }
    }
}

/// Compares the text that a server writes for an integer or a bytea with a value of the type,
/// without parsing the text into memory. `None`: the text must be parsed.
#[inline]
pub fn compare_text(text: &[u8], scalar: Scalar, value: &SqlValue<'_>) -> Option<Ordering> {
    match value {
        SqlValue::Int(value) if scalar.is_integer() => Some(short_integer(text)?.cmp(value)),
        SqlValue::Bytes(value) => bytes::compare_text(text, value),
        _ => None,
    }
}

impl From<String> for SqlValue<'_> {
    fn from(text: String) -> Self {
        SqlValue::Text(Cow::Owned(text))
    }
}

/// Returns a bpchar without its padding.
#[inline]
pub fn unpadded(text: &str) -> &str {
    text.trim_end_matches(' ')
}

/// Compares floats: NaN equals itself and is greater than any other value; -0 equals 0.
#[inline]
fn order(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

/// Compares a date with a timestamp. A date beyond the range of timestamps is later than any finite
/// one.
fn compare_date_with_timestamp(date: Date, timestamp: Timestamp) -> Ordering {
    let midnight = match date.0 {
        i32::MIN => Some(Timestamp(i64::MIN)),
        i32::MAX => Some(Timestamp(i64::MAX)),
        days => Timestamp::checked(i128::from(days) * i128::from(crate::calendar::MICROS_PER_DAY)),
    };
    match midnight {
        Some(midnight) => midnight.cmp(&timestamp),
        None if timestamp.0 == i64::MAX => Ordering::Less,
        None => Ordering::Greater,
    }
}
