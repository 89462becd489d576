//! `jsonb` values, held as the text that Postgres writes for them (jsonb.c).
//!
//! A part of a value is a slice of that text: a lookup copies nothing, builds no tree, and skips
//! what is not asked for.
//!
//! Invariant: the text has the layout of jsonb's output function. Keys are distinct and sorted by
//! length, then bytes; `": "` follows a key and `", "` a member; strings have one spelling.
//! Enforced by: rows come from a server, and parsing writes constants in this layout.
//! Texts of rows that have another layout are reported as [`Malformed`].

mod compare;
mod contain;
mod edit;
pub(crate) mod input;
mod scan;
mod string;

use std::borrow::Cow;

use thiserror::Error;

pub use self::compare::{equal, key, order};
pub use self::contain::{contains, exists, exists_all, exists_any};
pub use self::edit::{concat, delete_index, delete_keys};
pub use self::scan::{Kind, Members};
pub use self::string::unescape;
use crate::eval_error::EvalError;

/// The text of a row is no jsonb value in the layout that Postgres writes.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("invalid input syntax for type json")]
pub struct Malformed;

impl From<Malformed> for EvalError {
    fn from(_: Malformed) -> Self {
        EvalError::new("22P02", "invalid input syntax for type json")
    }
}

/// Returns the value of an object's key: `json -> 'key'`.
pub fn field<'t>(json: &'t str, key: &str) -> Result<Option<&'t str>, Malformed> {
    if Kind::of(json)? != Kind::Object {
        return Ok(None);
    }
    let mut members = Members::of(json)?;
    while let Some((name, value)) = members.next_member()? {
        match string::compare_key(name, key)? {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => return Ok(Some(members.value(value)?)),
            std::cmp::Ordering::Greater => return Ok(None),
        }
        members.skip(value)?;
    }
    Ok(None)
}

/// Returns an element of an array, counted from 0, or from the end if negative: `json -> 1`.
///
/// A value that is neither an object nor an array counts as an array of itself, as in Postgres.
pub fn element(json: &str, index: i32) -> Result<Option<&str>, Malformed> {
    match Kind::of(json)? {
        Kind::Object => Ok(None),
        Kind::Array => array_element(json, index),
        _ => Ok(matches!(index, 0 | -1).then_some(json)),
    }
}

fn array_element(json: &str, index: i32) -> Result<Option<&str>, Malformed> {
    let mut left = match usize::try_from(index) {
        Ok(index) => index,
        Err(_) => {
            let length = Members::of(json)?.count()?;
            match length.checked_sub(index.unsigned_abs() as usize) {
                Some(index) => index,
                None => return Ok(None),
            }
        }
    };
    let mut members = Members::of(json)?;
    while let Some((_, value)) = members.next_member()? {
        if left == 0 {
            return members.value(value).map(Some);
        }
        left -= 1;
        members.skip(value)?;
    }
    Ok(None)
}

/// Returns the value at a path of keys and indexes: `json #> '{a,0}'`.
pub fn path<'t, 'p>(
    json: &'t str,
    path: impl IntoIterator<Item = &'p str>,
) -> Result<Option<&'t str>, Malformed> {
    let mut found = json;
    for step in path {
        let next = match Kind::of(found)? {
            Kind::Object => field(found, step)?,
            Kind::Array => match path_index(step) {
                Some(index) => array_element(found, index)?,
                None => None,
            },
            _ => None,
        };
        match next {
            Some(next) => found = next,
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

/// Parses an index in a path as strtol does: blanks and a sign before the digits.
pub(super) fn path_index(step: &str) -> Option<i32> {
    let step = step.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits = step.strip_prefix(['+', '-']).unwrap_or(step);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    step.parse().ok()
}

/// Returns the value as text, as `->>` does: a string without quotes; `None` for null.
pub fn as_text(json: &str) -> Result<Option<Cow<'_, str>>, Malformed> {
    match Kind::of(json)? {
        Kind::Null => Ok(None),
        Kind::String => string::unescape(json).map(Some),
        _ => Ok(Some(Cow::Borrowed(json))),
    }
}

/// Returns the name that jsonb_typeof returns.
pub fn type_name(json: &str) -> Result<&'static str, Malformed> {
    Ok(match Kind::of(json)? {
        Kind::Null => "null",
        Kind::String => "string",
        Kind::Number => "number",
        Kind::Bool => "boolean",
        Kind::Array => "array",
        Kind::Object => "object",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_return_slices_of_the_text() {
        let json = r#"{"a": [1, {"b": "x]"}, []], "b": null, "é\"": {}, "long": "é\""}"#;
        assert_eq!(field(json, "b"), Ok(Some("null")));
        assert_eq!(field(json, "long"), Ok(Some(r#""é\"""#)));
        assert_eq!(field(json, "é\""), Ok(Some("{}")));
        assert_eq!(field(json, "c"), Ok(None));
        assert_eq!(path(json, ["a", "1", "b"]), Ok(Some(r#""x]""#)));
        assert_eq!(path(json, ["a", "-1"]), Ok(Some("[]")));
        assert_eq!(path(json, ["a", " +0"]), Ok(Some("1")));
        assert_eq!(path(json, ["a", "0 "]), Ok(None));
        assert_eq!(path("5", ["0"]), Ok(None));
        assert_eq!(element("5", -1), Ok(Some("5")));
        assert_eq!(element("[1, 2]", -3), Ok(None));
        assert_eq!(as_text(r#""a\n\u0001é\\""#).unwrap().unwrap(), "a\n\u{1}é\\");
        assert_eq!(as_text("null"), Ok(None));
    }

    #[test]
    fn texts_of_another_layout_are_malformed() {
        for json in ["", "x", "{", r#"{"a""#, r#"{"a":1}"#, r#"{"a": "#, r#"{a: 1}"#, r#"{"a": 1 "b": 2}"#] {
            assert!(field(json, "b").is_err() || Kind::of(json) == Ok(Kind::Null), "{json}");
        }
        for json in ["[", "[1,2]", "[1, ", "[\"", "[\"\\", "[1, [2]"] {
            assert_eq!(element(json, 5), Err(Malformed), "{json}");
        }
    }
}
