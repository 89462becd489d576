//! Changes of jsonb values: `||`, `-` (jsonb_concat, jsonb_delete).

use std::cmp::Ordering;
use std::collections::HashSet;

use super::scan::{Kind, Members};
use super::{Malformed, string};
use crate::eval_error::EvalError;

/// Concatenates two values: `left || right`.
pub fn concat(left: &str, right: &str) -> Result<String, Malformed> {
    match (Kind::of(left)?, Kind::of(right)?) {
        (Kind::Object, Kind::Object) => merge(left, right),
        (left_kind, right_kind) => {
            let mut out = String::with_capacity(left.len() + right.len() + 4);
            out.push('[');
            push_elements(left, left_kind, &mut out);
            push_elements(right, right_kind, &mut out);
            out.push(']');
            Ok(out)
        }
    }
}

/// Appends the elements of an array, or the value itself.
fn push_elements(json: &str, kind: Kind, out: &mut String) {
    let elements = match kind {
        Kind::Array => json.get(1..json.len() - 1).unwrap_or_default(),
        _ => json,
    };
    if !elements.is_empty() {
        if out.len() > 1 {
            out.push_str(", ");
        }
        out.push_str(elements);
    }
}

/// Merges two objects. For a key of both, the value of `right` is taken.
fn merge(left: &str, right: &str) -> Result<String, Malformed> {
    let (mut lefts, mut rights) = (Members::of(left)?, Members::of(right)?);
    let (mut next_left, mut next_right) = (lefts.next_pair()?, rights.next_pair()?);
    let mut out = ObjectWriter::new(left.len() + right.len());
    loop {
        let order = match (next_left, next_right) {
            (Some((left, _)), Some((right, _))) => {
                string::key_order(&string::unescape(left)?, &string::unescape(right)?)
            }
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return Ok(out.end()),
        };
        if let (Ordering::Less, Some((key, value))) = (order, next_left) {
            out.push(key, value);
        } else if let Some((key, value)) = next_right {
            out.push(key, value);
        }
        if order != Ordering::Greater {
            next_left = lefts.next_pair()?;
        }
        if order != Ordering::Less {
            next_right = rights.next_pair()?;
        }
    }
}

/// Deletes keys of an object, or strings of an array: `json - 'key'`, `json - '{a,b}'`.
pub fn delete_keys<'k>(json: &str, keys: impl IntoIterator<Item = &'k str>) -> Result<String, EvalError> {
    let keys: HashSet<&str> = keys.into_iter().collect();
    let kind = Kind::of(json)?;
    if !kind.is_container() {
        return Err(EvalError::new("22023", "cannot delete from scalar"));
    }
    let mut members = Members::of(json)?;
    if kind == Kind::Object {
        let mut out = ObjectWriter::new(json.len());
        while let Some((key, value)) = members.next_pair()? {
            if !keys.contains(&*string::unescape(key)?) {
                out.push(key, value);
            }
        }
        return Ok(out.end());
    }
    let mut kept = Vec::new();
    while let Some((_, value)) = members.next_pair()? {
        if Kind::of(value)? != Kind::String || !keys.contains(&*string::unescape(value)?) {
            kept.push(value);
        }
    }
    Ok(format!("[{}]", kept.join(", ")))
}

/// Deletes an element of an array: `json - 1`.
pub fn delete_index(json: &str, index: i64) -> Result<String, EvalError> {
    match Kind::of(json)? {
        Kind::Object => {
            return Err(EvalError::new("22023", "cannot delete from object using integer index"));
        }
        Kind::Array => {}
        _ => return Err(EvalError::new("22023", "cannot delete from scalar")),
    }
    let (mut elements, mut members) = (Vec::new(), Members::of(json)?);
    while let Some((_, value)) = members.next_pair()? {
        elements.push(value);
    }
    let index = if index < 0 { index + elements.len() as i64 } else { index };
    if let Ok(index) = usize::try_from(index)
        && index < elements.len()
    {
        elements.remove(index);
    }
    Ok(format!("[{}]", elements.join(", ")))
}

/// Writes an object whose members come in order.
struct ObjectWriter(String);

impl ObjectWriter {
    fn new(capacity: usize) -> Self {
        let mut out = String::with_capacity(capacity);
        out.push('{');
        ObjectWriter(out)
    }

    /// Appends a member. The key is in quotes.
    fn push(&mut self, key: &str, value: &str) {
        if self.0.len() > 1 {
            self.0.push_str(", ");
        }
        self.0.push_str(key);
        self.0.push_str(": ");
        self.0.push_str(value);
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}
