//! Operators of jsonb: their evaluation. `typing/json.rs` types them.

use std::borrow::Cow;

use forebay_values::{
    EvalError, Numeric, Scalar, SqlValue, ValueType,
    json::{self, Malformed},
    json::{Kind, Members},
};

use super::{EvalResult, as_array, as_text};

/// An operator on jsonb. NULL if either operand is NULL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum JsonOperator {
    /// `-> 'key'` and `-> 1`. `as_text`: `->>`.
    Member { as_text: bool },
    /// `#>`. `as_text`: `#>>`.
    Path { as_text: bool },
    /// `@>`. `swapped`: `<@`.
    Contains { swapped: bool },
    /// `?`
    Exists,
    /// `?|`
    ExistsAny,
    /// `?&`
    ExistsAll,
    /// `||`
    Concat,
    /// `- 'key'`, `- '{key,key}'`, `- 1`.
    Delete,
}

impl JsonOperator {
    pub(super) fn apply<'v>(self, left: SqlValue<'v>, right: SqlValue<'v>) -> EvalResult<'v> {
        let text = as_json(left);
        let value = match self {
            JsonOperator::Member { as_text } => {
                let found = slice(&text, |json| match &right {
                    SqlValue::Int(index) => match i32::try_from(*index) {
                        Ok(index) => json::element(json, index),
                        Err(_) => Ok(None),
                    },
                    key => json::field(json, key_text(key)),
                })?;
                return result(text, found, as_text);
            }
            JsonOperator::Path { as_text } => {
                let path = as_array(right);
                let Some(steps) = path.items().iter().map(|step| step.as_ref().map(key_text)).collect()
                else {
                    return Ok(None);
                };
                let steps: Vec<_> = steps;
                let found = slice(&text, |json| json::path(json, steps))?;
                return result(text, found, as_text);
            }
            JsonOperator::Contains { swapped } => {
                let other = as_json(right);
                let (whole, part) = if swapped { (other, text) } else { (text, other) };
                SqlValue::Bool(json::contains(&whole, &part)?)
            }
            JsonOperator::Exists => SqlValue::Bool(json::exists(&text, &as_text(right))?),
            JsonOperator::ExistsAny => SqlValue::Bool(json::exists_any(&text, &as_array(right))?),
            JsonOperator::ExistsAll => SqlValue::Bool(json::exists_all(&text, &as_array(right))?),
            JsonOperator::Concat => json_value(json::concat(&text, &as_json(right))?),
            JsonOperator::Delete => json_value(match right {
                SqlValue::Int(index) => json::delete_index(&text, index)?,
                SqlValue::Array(keys) if keys.dimensions().len() > 1 => {
                    return Err(EvalError::new("2202E", "wrong number of array subscripts"));
                }
                SqlValue::Array(keys) => {
                    json::delete_keys(&text, keys.items().iter().flatten().map(key_text))?
                }
                key => json::delete_keys(&text, [&*as_text(key)])?,
            }),
        };
        Ok(Some(value))
    }

    /// Returns whether the operator may fail on a row. Containment fails on values that are nested
    /// too deep for it, in Postgres too.
    pub(crate) fn may_fail(self) -> bool {
        matches!(self, JsonOperator::Delete | JsonOperator::Contains { .. })
    }
}

/// Calls a lookup. Returns where the slice that it finds is.
fn slice(
    text: &str,
    find: impl FnOnce(&str) -> Result<Option<&str>, Malformed>,
) -> Result<Option<(usize, usize)>, Malformed> {
    let found = find(text)?;
    Ok(found.map(|found| (found.as_ptr() as usize - text.as_ptr() as usize, found.len())))
}

fn result<'v>(text: Cow<'v, str>, found: Option<(usize, usize)>, as_text: bool) -> EvalResult<'v> {
    let Some((start, length)) = found else { return Ok(None) };
    let found = match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[start..start + length]),
        Cow::Owned(text) => Cow::Owned(text[start..start + length].to_owned()),
    };
    if !as_text {
        return Ok(Some(SqlValue::Json(found)));
    }
    Ok(match found {
        Cow::Borrowed(found) => json::as_text(found)?.map(SqlValue::Text),
        Cow::Owned(found) => json::as_text(&found)?.map(|text| SqlValue::Text(Cow::Owned(text.into_owned()))),
    })
}

/// Casts to a boolean or a number: the kind of value must fit. `null_is_null`: as Postgres 18 does.
pub(super) fn cast(value: SqlValue<'_>, to: Scalar, null_is_null: bool) -> EvalResult<'_> {
    let text = as_json(value);
    let kind = Kind::of(&text)?;
    Ok(match (kind, to) {
        (Kind::Null, _) if null_is_null => None,
        (Kind::Bool, Scalar::Bool) => Some(SqlValue::Bool(*text == *"true")),
        (Kind::Number, to) if to != Scalar::Bool => {
            let number = SqlValue::numeric(Numeric::parse(&text).map_err(|_| EvalError::from(Malformed))?);
            return match to {
                Scalar::Numeric => Ok(Some(number)),
                to => number.cast(ValueType::Scalar(Scalar::Numeric), ValueType::Scalar(to), false),
            };
        }
        _ => {
            let kind = match kind {
                Kind::Number => "numeric",
                _ => json::type_name(&text)?,
            };
            return Err(EvalError::new("22023", format!("cannot cast jsonb {kind} to type {}", to.name())));
        }
    })
}

pub(super) fn array_length(value: SqlValue<'_>) -> Result<i64, EvalError> {
    let text = as_json(value);
    match Kind::of(&text)? {
        Kind::Array => Ok(Members::of(&text)?.count()? as i64),
        Kind::Object => Err(EvalError::new("22023", "cannot get array length of a non-array")),
        _ => Err(EvalError::new("22023", "cannot get array length of a scalar")),
    }
}

pub(super) fn type_name(value: SqlValue<'_>) -> Result<&'static str, EvalError> {
    Ok(json::type_name(&as_json(value))?)
}

fn json_value(text: String) -> SqlValue<'static> {
    SqlValue::Json(Cow::Owned(text))
}

fn as_json(value: SqlValue<'_>) -> Cow<'_, str> {
    match value {
        SqlValue::Json(text) => text,
        other => unreachable!("it is a jsonb by type: {other:?}"),
    }
}

fn key_text<'k>(value: &'k SqlValue<'_>) -> &'k str {
    match value {
        SqlValue::Text(text) => text,
        other => unreachable!("it is a text by type: {other:?}"),
    }
}
