//! Containment and existence: `@>`, `?` (JsonbDeepContains, findJsonbValueFromContainer).
//!
//! Bounds: recursion of at most [`MAX_DEPTH`] levels, and [`MAX_READ_BYTES`] of text for one
//! comparison: containment of arrays of containers is quadratic, in Postgres too.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::scan::{Kind, Members};
use super::{Malformed, compare, string};
use crate::array::Array;
use crate::eval_error::EvalError;
use crate::sql_value::SqlValue;

/// Maximum depth to which containers are compared.
const MAX_DEPTH: usize = 256;
/// Maximum bytes that one comparison reads.
const MAX_READ_BYTES: usize = 128 * 1024 * 1024;
/// Number of elements of a part from which the elements of the whole are hashed.
const MIN_HASHED: usize = 8;

/// Returns whether `whole @> part`.
pub fn contains(whole: &str, part: &str) -> Result<bool, EvalError> {
    let (whole_kind, part_kind) = (Kind::of(whole)?, Kind::of(part)?);
    let mut containment = Containment { read: 0 };
    match (whole_kind.is_container(), part_kind.is_container()) {
        (true, true) => containment.containers(whole, part, 0),
        // An array may contain a value that is no container, but not the reverse.
        (true, false) => Ok(whole_kind == Kind::Array && has_element(whole, part)?),
        (false, true) => Ok(false),
        (false, false) => Ok(compare::equal(whole, part)?),
    }
}

/// Returns whether `json ? name`: a key of an object, or a string of an array.
pub fn exists(json: &str, name: &str) -> Result<bool, Malformed> {
    let is = |quoted: &str| Ok(string::unescape(quoted)? == name);
    match Kind::of(json)? {
        Kind::Object => Ok(super::field(json, name)?.is_some()),
        Kind::Array => {
            let mut members = Members::of(json)?;
            while let Some((_, value)) = members.next_pair()? {
                if Kind::of(value)? == Kind::String && is(value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Kind::String => is(json),
        Kind::Null | Kind::Number | Kind::Bool => Ok(false),
    }
}

/// Returns whether `json ?| names`: one of them exists. NULLs are ignored.
///
/// # Panics
/// Panics if an element is no text.
pub fn exists_any(json: &str, names: &Array) -> Result<bool, Malformed> {
    if !names.is_set() {
        return search(json, names, true);
    }
    let mut found = false;
    each_name(json, |name| {
        found |= names.has(&SqlValue::text(name), false);
        found
    })?;
    Ok(found)
}

/// Returns whether `json ?& names`: all of them exist. NULLs are ignored.
///
/// # Panics
/// Panics if an element is no text.
pub fn exists_all(json: &str, names: &Array) -> Result<bool, Malformed> {
    if !names.is_set() {
        return search(json, names, false).map(|is_missing| !is_missing);
    }
    let mut found = vec![false; names.items().len()];
    let mut missing = found.len() - usize::from(names.has_null());
    each_name(json, |name| {
        if let Some(position) = names.find(&SqlValue::text(name), false) {
            missing -= usize::from(!std::mem::replace(&mut found[position], true));
        }
        missing == 0
    })?;
    Ok(missing == 0)
}

/// Returns whether one of the names exists, or does not. Many names are sorted first.
fn search(json: &str, names: &Array, wanted: bool) -> Result<bool, Malformed> {
    if names.items().len() >= MIN_HASHED {
        let names = names.clone().into_set(false);
        return if wanted { exists_any(json, &names) } else { exists_all(json, &names).map(|all| !all) };
    }
    for name in names.items().iter().flatten() {
        let SqlValue::Text(name) = name else { panic!("a name is a text: {name:?}") };
        if exists(json, name)? == wanted {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Visits the names that exist in a value, until `visit` returns whether it is done.
fn each_name(json: &str, mut visit: impl FnMut(&str) -> bool) -> Result<(), Malformed> {
    let kind = Kind::of(json)?;
    if !kind.is_container() {
        if kind == Kind::String {
            visit(&string::unescape(json)?);
        }
        return Ok(());
    }
    let mut members = Members::of(json)?;
    while let Some((key, value)) = members.next_pair()? {
        let name = if kind == Kind::Object { key } else { value };
        if Kind::of(name)? == Kind::String && visit(&string::unescape(name)?) {
            break;
        }
    }
    Ok(())
}

struct Containment {
    /// Bytes of containers that were compared.
    read: usize,
}

impl Containment {
    fn containers(&mut self, whole: &str, part: &str, depth: usize) -> Result<bool, EvalError> {
        self.read += whole.len() + part.len();
        if depth > MAX_DEPTH || self.read > MAX_READ_BYTES {
            let message = "containment of jsonb values this deep or large is not evaluated";
            return Err(EvalError::new("0A000", message));
        }
        match (Kind::of(whole)?, Kind::of(part)?) {
            (Kind::Object, Kind::Object) => self.objects(whole, part, depth),
            (Kind::Array, Kind::Array) => self.arrays(whole, part, depth),
            _ => Ok(false),
        }
    }

    /// Keys of both are sorted: one pass finds all.
    fn objects(&mut self, whole: &str, part: &str, depth: usize) -> Result<bool, EvalError> {
        let (mut members, mut wanted) = (Members::of(whole)?, Members::of(part)?);
        while let Some((key, value)) = wanted.next_pair()? {
            let key = string::unescape(key)?;
            let found = loop {
                let Some((name, start)) = members.next_member()? else { return Ok(false) };
                match string::compare_key(name, &key)? {
                    Ordering::Less => members.skip(start)?,
                    Ordering::Equal => break members.value(start)?,
                    Ordering::Greater => return Ok(false),
                }
            };
            let holds = match (Kind::of(found)?.is_container(), Kind::of(value)?.is_container()) {
                (true, true) => self.containers(found, value, depth + 1)?,
                (false, false) => compare::equal(found, value)?,
                _ => false,
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn arrays(&mut self, whole: &str, part: &str, depth: usize) -> Result<bool, EvalError> {
        let (scalars, nested) = elements(part)?;
        let (whole_scalars, whole_nested) = elements(whole)?;
        if !has_all(&whole_scalars, &scalars)? {
            return Ok(false);
        }
        for wanted in nested {
            let mut found = false;
            for candidate in &whole_nested {
                found = self.containers(candidate, wanted, depth + 1)?;
                if found {
                    break;
                }
            }
            if !found {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the elements of an array that are no containers, and those that are.
fn elements(array: &str) -> Result<(Vec<&str>, Vec<&str>), Malformed> {
    let (mut scalars, mut nested, mut members) = (Vec::new(), Vec::new(), Members::of(array)?);
    while let Some((_, value)) = members.next_pair()? {
        if Kind::of(value)?.is_container() { nested.push(value) } else { scalars.push(value) }
    }
    Ok((scalars, nested))
}

fn has_all(have: &[&str], wanted: &[&str]) -> Result<bool, Malformed> {
    if wanted.len() < MIN_HASHED {
        for wanted in wanted {
            let mut found = false;
            for have in have {
                found |= compare::equal(have, wanted)?;
            }
            if !found {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let have = have.iter().map(|value| compare::key(value)).collect::<Result<HashSet<_>, _>>()?;
    for wanted in wanted {
        if !have.contains(&compare::key(wanted)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether an array has an element that equals a value that is no container.
fn has_element(array: &str, wanted: &str) -> Result<bool, Malformed> {
    let mut members = Members::of(array)?;
    while let Some((_, value)) = members.next_pair()? {
        if !Kind::of(value)?.is_container() && compare::equal(value, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containment_follows_postgres() {
        for (whole, part, holds) in [
            (r#"{"a": 1, "b": {"c": 2.0}}"#, r#"{"b": {"c": 2}}"#, true),
            (r#"{"a": 1}"#, r#"{"a": 1, "b": null}"#, false),
            (r#"{"a": [1, 2]}"#, r#"{"a": []}"#, true),
            (r#"{"a": {}}"#, r#"{"a": []}"#, false),
            ("[1, 2, [3, 4]]", "[[4], 1]", true),
            ("[1, 2]", "2", true),
            ("2", "[2]", false),
            ("[[1]]", "1", false),
            ("[1, 2, 3]", "[3, 3, 3, 2, 1, 1, 1, 1, 1]", true),
            ("[1, 2, 3]", "[3, 3, 3, 2, 1, 1, 1, 1, 4]", false),
            ("{}", "{}", true),
            ("{}", "[]", false),
        ] {
            assert_eq!(contains(whole, part), Ok(holds), "{whole} @> {part}");
        }
    }

    fn names(names: &[&str]) -> Array {
        Array::list(names.iter().map(|name| Some(SqlValue::text(name).into_owned())).collect())
    }

    #[test]
    fn names_exist_alike_in_lists_and_sets() {
        let with_null = Array::list(vec![None, Some(SqlValue::text("a"))]);
        let many = names(&["a", "b", "a", "c", "d", "e", "f", "g", "h", "é\""]);
        for (json, wanted, any, all) in [
            (r#"{"a": 1, "b": 2}"#, names(&["a", "b", "a"]), true, true),
            (r#"{"a": 1, "b": 2}"#, names(&["a", "c"]), true, false),
            (r#"{"a": 1}"#, with_null, true, true),
            (r#"{"a": 1}"#, names(&[]), false, true),
            ("[\"a\", 1, \"b\", \"b\"]", names(&["b", "a"]), true, true),
            ("[[\"a\"], {\"b\": 1}]", names(&["b", "a"]), false, false),
            ("\"a\"", names(&["a"]), true, true),
            ("\"a\"", names(&["a", "b"]), true, false),
            ("5", names(&["5"]), false, false),
            (r#"["é\"", "a", "b", "c", "d", "e", "f", "g", "h"]"#, many.clone(), true, true),
            (r#"["a", "b", "c", "d", "e", "f", "g", "h"]"#, many.clone(), true, false),
            (r#"{"x": 1}"#, many, false, false),
        ] {
            for wanted in [wanted.clone(), wanted.into_set(false)] {
                assert_eq!(exists_any(json, &wanted), Ok(any), "{json} ?| {wanted:?}");
                assert_eq!(exists_all(json, &wanted), Ok(all), "{json} ?& {wanted:?}");
            }
        }
    }

    #[test]
    fn ten_thousand_names_are_looked_up_in_few_steps() {
        use crate::array_set::steps;
        let list: Vec<_> = (0..10_000).map(|number| format!("key{number:05}")).collect();
        let wanted = names(&list.iter().map(String::as_str).collect::<Vec<_>>());
        let set = wanted.clone().into_set(false);
        let object = r#"{"key00000": 1, "key0000x": 1}"#;
        assert!(steps::during(|| assert_eq!(exists_all(object, &set), Ok(false))) < 60);
        assert!(steps::during(|| assert_eq!(exists_any(object, &set), Ok(true))) < 60);
        let strings: Vec<_> = list.iter().rev().map(|name| format!("\"{name}\"")).collect();
        let array = format!("[{}]", strings.join(", "));
        for names in [&wanted, &set] {
            assert!(steps::during(|| assert_eq!(exists_all(&array, names), Ok(true))) < 500_000);
        }
    }

    #[test]
    fn deep_and_quadratic_containment_is_refused_in_bounded_time() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(contains(&deep(200), &deep(200)), Ok(true));
        assert_eq!(contains(&deep(100_000), &deep(100_000)).unwrap_err().sqlstate(), "0A000");
        let list = |item: &str| format!("[{}]", vec![item; 30_000].join(", "));
        let error = contains(&list(r#"{"a": 1}"#), &list(r#"{"b": 1}"#)).map(|_| ());
        assert_eq!(error, Ok(()), "the first element decides");
        let (whole, part) = (list(r#"{"a": 1}"#), format!("[{}]", vec![r#"{"a": 1}"#; 3_000].join(", ")));
        assert_eq!(contains(&whole, &part), Ok(true));
        let misses: Vec<_> = (0..20_000).map(|id| format!("{{\"a\": {id}}}")).collect();
        let mut reversed = misses.clone();
        reversed.reverse();
        let lists = [misses, reversed].map(|list| format!("[{}]", list.join(", ")));
        assert_eq!(contains(&lists[0], &lists[1]).unwrap_err().sqlstate(), "0A000");
    }
}
