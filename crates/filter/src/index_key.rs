//! Index keys: values in a form that can be hashed and ordered.
//!
//! Invariant: two values of a column have the same key exactly if Postgres' `=` holds, and keys
//! have the order of Postgres' `<`.
//! Enforced by: `tests/it/agreement.rs` compares lookups by key with real servers.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use forebay_values::{EvalError, Inet, Numeric, Scalar, SqlValue, json, unpadded};

use super::schema::ColumnType;
use super::typing::SqlType;

/// A value that an index can look up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexKey(KeyForm);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum KeyForm {
    Bool(bool),
    Int(i64),
    /// The bits of a float, changed so that their order is the order of floats.
    Float(u64),
    Numeric(NumericKey),
    Text(Box<str>),
    Uuid([u8; 16]),
    Date(i32),
    Time(i64),
    Timestamp(i64),
    /// A jsonb value, with one spelling for each number. Its order is not that of Postgres.
    Json(Box<str>),
    Bytes(Box<[u8]>),
    Inet(Inet),
    Macaddr([u8; 6]),
}

/// The form of a key, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyFormId(std::mem::Discriminant<KeyForm>);

/// A numeric without its scale: 1.0 equals 1.00.
#[derive(Clone, Debug)]
struct NumericKey(Numeric);

impl Ord for NumericKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.compare(&other.0)
    }
}

impl PartialOrd for NumericKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NumericKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for NumericKey {}

impl Hash for NumericKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash_value(state);
    }
}

impl IndexKey {
    /// Returns the key of a column's text in a row; `None` if the column's type has no keys.
    ///
    /// # Errors
    /// Fails if the text is not a value of the type.
    pub fn of_row(column: &ColumnType, text: &[u8]) -> Result<Option<IndexKey>, EvalError> {
        let Some(kind @ SqlType::Scalar(scalar)) = column.sql_type() else { return Ok(None) };
        if scalar == Scalar::Jsonb {
            let text = utf8(text)?;
            return Ok(Some(IndexKey(KeyForm::Json(json::key(text)?))));
        }
        Ok(IndexKey::of(&read(text, kind)?, scalar))
    }

    /// Returns the keys of an array column's elements that are not NULL; `None` if the element type
    /// has no keys.
    ///
    /// # Errors
    /// Fails if the text is not a value of the type.
    pub fn of_elements(column: &ColumnType, text: &[u8]) -> Result<Option<Vec<IndexKey>>, EvalError> {
        let Some(kind @ SqlType::Array(scalar)) = column.sql_type() else { return Ok(None) };
        match read(text, kind)? {
            SqlValue::Array(array) => {
                Ok(array.items().iter().flatten().map(|item| IndexKey::of(item, scalar)).collect())
            }
            other => unreachable!("it is an array by type: {other:?}"),
        }
    }

    /// Returns the key of a column's value, or of a constant that is compared with the column.
    pub(super) fn of(value: &SqlValue<'_>, column: Scalar) -> Option<IndexKey> {
        Some(IndexKey(match (value, column) {
            (SqlValue::Bool(value), Scalar::Bool) => KeyForm::Bool(*value),
            (SqlValue::Int(value), Scalar::Int2 | Scalar::Int4 | Scalar::Int8) => KeyForm::Int(*value),
            (SqlValue::Float4(value), Scalar::Float4 | Scalar::Float8) => {
                KeyForm::Float(bits(f64::from(*value)))
            }
            (SqlValue::Float8(value), Scalar::Float4 | Scalar::Float8) => KeyForm::Float(bits(*value)),
            (SqlValue::Numeric(value), Scalar::Numeric) => {
                KeyForm::Numeric(NumericKey(value.clone().into_owned()))
            }
            (SqlValue::Text(value), Scalar::Bpchar) => KeyForm::Text(unpadded(value).into()),
            (SqlValue::Text(value), Scalar::Text | Scalar::Varchar) => KeyForm::Text(value.as_ref().into()),
            (SqlValue::Json(value), Scalar::Jsonb) => KeyForm::Json(json::key(value).ok()?),
            (SqlValue::Uuid(value), Scalar::Uuid) => KeyForm::Uuid(*value),
            (SqlValue::Date(value), Scalar::Date) => KeyForm::Date(value.0),
            (SqlValue::Time(value), Scalar::Time) => KeyForm::Time(value.0),
            (SqlValue::Timestamp(value), Scalar::Timestamp | Scalar::Timestamptz) => {
                KeyForm::Timestamp(value.0)
            }
            (SqlValue::Text(value), Scalar::Enum(_)) => KeyForm::Text(value.as_ref().into()),
            (SqlValue::Bytes(value), Scalar::Bytea) => KeyForm::Bytes(value.as_ref().into()),
            (SqlValue::Inet(value), Scalar::Inet | Scalar::Cidr) => KeyForm::Inet(*value),
            (SqlValue::Macaddr(value), Scalar::Macaddr) => KeyForm::Macaddr(*value),
            _ => return None,
        }))
    }

    /// Returns the key of an expression's value, or of a constant that is compared with one; `None`
    /// if values of the type have no keys. `ignore_blanks`: the values are compared as bpchar.
    pub(super) fn of_value(value: &SqlValue<'_>, ignore_blanks: bool) -> Option<IndexKey> {
        let scalar = match value {
            SqlValue::Bool(_) => Scalar::Bool,
            SqlValue::Int(_) => Scalar::Int8,
            SqlValue::Float4(_) | SqlValue::Float8(_) => Scalar::Float8,
            SqlValue::Numeric(_) => Scalar::Numeric,
            SqlValue::Text(_) if ignore_blanks => Scalar::Bpchar,
            SqlValue::Text(_) => Scalar::Text,
            SqlValue::Uuid(_) => Scalar::Uuid,
            SqlValue::Json(_) => Scalar::Jsonb,
            SqlValue::Date(_) => Scalar::Date,
            SqlValue::Time(_) => Scalar::Time,
            SqlValue::Timestamp(_) => Scalar::Timestamp,
            SqlValue::Bytes(_) => Scalar::Bytea,
            SqlValue::Inet(_) => Scalar::Inet,
            SqlValue::Macaddr(_) => Scalar::Macaddr,
            // Intervals of different texts may be equal; arrays have keys of their elements only.
            SqlValue::Timetz(_)
            | SqlValue::Interval(_)
            | SqlValue::Range(_)
            | SqlValue::Multirange(_)
            | SqlValue::Array(_) => {
                return None;
            }
        };
        IndexKey::of(value, scalar)
    }

    /// Returns the key's form. Keys of different forms are never equal.
    pub(super) fn form(&self) -> KeyFormId {
        KeyFormId(std::mem::discriminant(&self.0))
    }

    /// Returns the key of a text.
    pub(crate) fn of_text(text: &str) -> IndexKey {
        IndexKey(KeyForm::Text(text.into()))
    }

    /// Returns the text of a text key.
    pub fn as_text(&self) -> Option<&str> {
        match &self.0 {
            KeyForm::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn read(text: &[u8], kind: SqlType) -> Result<SqlValue<'_>, EvalError> {
    kind.read(utf8(text)?, false).map_err(|error| error.without_text(kind.value_type()))
}

fn utf8(text: &[u8]) -> Result<&str, EvalError> {
    std::str::from_utf8(text)
        .map_err(|_| EvalError::new("22021", "invalid byte sequence for encoding \"UTF8\""))
}

/// Maps floats to integers of the same order. NaN is above all other values, and -0 equals 0.
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
        let numeric = |text: &str| {
            IndexKey::of(&SqlValue::numeric(Numeric::parse(text).unwrap()), Scalar::Numeric).unwrap()
        };
        let keys: HashSet<_> = ["1", "1.0", "1.000", "10e-1"].into_iter().map(numeric).collect();
        assert_eq!(keys.len(), 1);
        assert!(numeric("2") < numeric("10.0"));
        let padded = |text| IndexKey::of(&SqlValue::text(text), Scalar::Bpchar);
        assert_eq!(padded("a  "), padded("a"));
    }
}
