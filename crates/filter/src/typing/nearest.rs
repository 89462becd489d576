//! Nearest supported construct to one that is not, for error messages.

use forebay_values::Scalar;
use strsim::levenshtein;

use super::functions;

/// Functions of other databases, and of Postgres, with what a clause can say instead.
#[rustfmt::skip]
const FUNCTIONS: &[(&str, &str)] = &[
    ("charindex", "strpos"), ("contains", "strpos"), ("datalength", "octet_length"), ("endswith", "right"),
    ("format", "concat"), ("if", "CASE"), ("ifnull", "COALESCE"), ("iif", "CASE"), ("instr", "strpos"),
    ("isnull", "IS NULL"), ("lcase", "lower"), ("len", "char_length"), ("locate", "strpos"), ("mid", "substr"),
    ("nvl", "COALESCE"), ("regexp_like", "LIKE"), ("regexp_match", "LIKE"), ("regexp_replace", "replace"),
    ("startswith", "starts_with"), ("string_to_array", "split_part"), ("strlen", "char_length"),
    ("to_char", "::text"), ("to_number", "::numeric"), ("ucase", "upper"),
];

const OPERATORS: &[(&str, &str)] = &[
    ("==", "="),
    ("~", "LIKE"),
    ("~*", "ILIKE"),
    ("!~", "NOT LIKE"),
    ("!~*", "NOT ILIKE"),
    ("<=>", "IS NOT DISTINCT FROM"),
    ("~=", "="),
    ("**", "^"),
    ("||/", "|/"),
];

#[rustfmt::skip]
const TYPES: &[(&str, &str)] = &[
    ("citext", "text"), ("datetime", "timestamp"), ("double", "float8"), ("money", "numeric"), ("name", "text"),
    ("number", "numeric"), ("string", "text"), ("tinyint", "int2"), ("xml", "text"),
];

/// Returns the nearest supported function, or another construct.
pub(super) fn function(name: &str) -> Option<&'static str> {
    let supported = functions::all().filter(|row| row.is_supported()).map(|row| row.name);
    alternative(FUNCTIONS, name).or_else(|| closest(name, supported))
}

pub(super) fn operator(name: &str) -> Option<&'static str> {
    alternative(OPERATORS, name)
}

pub(super) fn type_name(name: &str) -> Option<&'static str> {
    alternative(TYPES, name).or_else(|| closest(name, Scalar::all().map(Scalar::catalog_name)))
}

fn alternative(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(other, _)| *other == name).map(|(_, nearest)| *nearest)
}

/// Returns the name with the fewest edits: at most one, or two in a long name.
fn closest(name: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let allowed = if name.len() < 6 { 1 } else { 2 };
    let near = names.map(|other| (levenshtein(name, other), other)).filter(|(edits, _)| *edits <= allowed);
    near.min_by_key(|(edits, _)| *edits).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        assert_eq!(function("lenght"), Some("length"));
        assert_eq!(function("substrng"), Some("substring"));
        assert_eq!(function("len"), Some("char_length"));
        assert_eq!(function("pg_sleep"), None);
        assert_eq!(type_name("timestmp"), Some("timestamp"));
        assert_eq!(operator("~*"), Some("ILIKE"));
    }

    #[test]
    fn what_is_named_as_nearest_exists() {
        let supported = |name: &&str| functions::all().any(|row| row.is_supported() && row.name == *name);
        let lower = |(_, nearest): &(&str, &'static str)| *nearest;
        let functions = FUNCTIONS
            .iter()
            .map(lower)
            .filter(|name| name.chars().all(|char| char.is_ascii_lowercase() || char == '_'));
        assert_eq!(functions.filter(|name| !supported(name)).collect::<Vec<_>>(), [""; 0]);
        assert!(TYPES.iter().map(lower).all(|name| Scalar::by_name(name).is_some()));
    }
}
