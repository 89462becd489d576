//! Keys: values in a form that an index can look up.
//!
//! Invariant: two values of a column have the same key exactly if Postgres' `=` says that they are equal, and keys are
//! ordered as `<` orders the values.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use super::error::EvalError;
use super::schema::{ColumnType, TypeKind};
use super::typing::{Scalar, Type};
use super::value::input;
use super::value::numeric::Numeric;
use super::value::{Value, unpadded};

/// A value to look up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Form);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Bool(bool),
    Int(i64),
    /// The bits of a float, turned so that they are ordered as floats are.
    Float(u64),
    Numeric(Sized),
    Text(Box<str>),
    Uuid([u8; 16]),
    Date(i32),
    Time(i64),
    Timestamp(i64),
}

/// A numeric whose trailing zeros don't count.
#[derive(Clone, Debug)]
struct Sized(Numeric);

impl Ord for Sized {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Sized {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sized {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Sized {}

impl Hash for Sized {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash_value(state);
    }
}

impl Key {
    /// Of a column's text in a row; `None` if the column's type has no keys.
    ///
    /// # Errors
    /// When the text is no value of the type.
    pub fn of_row(column: &ColumnType, text: &[u8]) -> Result<Option<Key>, EvalError> {
        let known = if column.kind == TypeKind::Enum { Some(Type::TEXT) } else { column.known() };
        let Some(kind @ Type::Scalar(scalar)) = known else { return Ok(None) };
        Ok(Key::of(&read(text, kind)?, scalar))
    }

    /// Of each element of an array column's text in a row, NULLs left out; `None` if the elements' type has no keys.
    ///
    /// # Errors
    /// When the text is no value of the type.
    pub fn of_elements(column: &ColumnType, text: &[u8]) -> Result<Option<Vec<Key>>, EvalError> {
        let Some(kind @ Type::Array(scalar)) = column.known() else { return Ok(None) };
        match read(text, kind)? {
            Value::Array(array) => {
                Ok(array.items.iter().flatten().map(|item| Key::of(item, scalar)).collect())
            }
            other => unreachable!("it is an array by type: {other:?}"),
        }
    }

    /// Of a value of, or a constant that is compared with, a column of this type.
    pub(super) fn of(value: &Value<'_>, column: Scalar) -> Option<Key> {
        Some(Key(match (value, column) {
            (Value::Bool(value), Scalar::Bool) => Form::Bool(*value),
            (Value::Int(value), Scalar::Int2 | Scalar::Int4 | Scalar::Int8) => Form::Int(*value),
            (Value::Float4(value), Scalar::Float4 | Scalar::Float8) => Form::Float(bits(f64::from(*value))),
            (Value::Float8(value), Scalar::Float4 | Scalar::Float8) => Form::Float(bits(*value)),
            (Value::Numeric(value), Scalar::Numeric) => Form::Numeric(Sized(value.clone().into_owned())),
            (Value::Text(value), Scalar::Bpchar) => Form::Text(unpadded(value).into()),
            (Value::Text(value), Scalar::Text | Scalar::Varchar) => Form::Text(value.as_ref().into()),
            (Value::Uuid(value), Scalar::Uuid) => Form::Uuid(*value),
            (Value::Date(value), Scalar::Date) => Form::Date(value.0),
            (Value::Time(value), Scalar::Time) => Form::Time(value.0),
            (Value::Timestamp(value), Scalar::Timestamp | Scalar::Timestamptz) => Form::Timestamp(value.0),
            _ => return None,
        }))
    }

    /// Of a text.
    pub(crate) fn of_text(text: &str) -> Key {
        Key(Form::Text(text.into()))
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match &self.0 {
            Form::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn read(text: &[u8], kind: Type) -> Result<Value<'_>, EvalError> {
    let text = std::str::from_utf8(text)
        .map_err(|_| EvalError::new("22021", "invalid byte sequence for encoding \"UTF8\""))?;
    input::read(text, kind, false).map_err(|error| error.of_row(kind))
}

/// NaN is the greatest, and -0 is 0.
fn bits(value: f64) -> u64 {
    if value.is_nan() {
        return u64::MAX;
    }
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_order() {
        let mut values = [f64::NEG_INFINITY, -1.5, -0.0, 1e-300, 2.0, f64::INFINITY, f64::NAN];
        values.reverse();
        values.sort_by_key(|value| bits(*value));
        assert!(values[6].is_nan() && values[..6].is_sorted());
        assert_eq!(bits(0.0), bits(-0.0));
    }

    #[test]
    fn equal_values_have_one_key() {
        use std::collections::HashSet;
        let numeric =
            |text: &str| Key::of(&Value::numeric(Numeric::parse(text).unwrap()), Scalar::Numeric).unwrap();
        let keys: HashSet<_> = ["1", "1.0", "1.000", "10e-1"].into_iter().map(numeric).collect();
        assert_eq!(keys.len(), 1);
        assert!(numeric("2") < numeric("10.0"));
        let padded = |text| Key::of(&Value::text(text), Scalar::Bpchar);
        assert_eq!(padded("a  "), padded("a"));
    }
}
