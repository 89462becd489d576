//! Names of tables and columns in SQL.
//!
//! Invariant: a returned name is as Postgres stores it in its catalog: in lower case unless it was
//! quoted, and at most [`MAX_NAME_BYTES`] long. Longer names are refused: Postgres truncates them,
//! so they would denote another table.

use forebay_replication::TableName;

/// Postgres' NAMEDATALEN, without the terminating zero.
pub const MAX_NAME_BYTES: usize = 63;

/// Postgres' MaxTupleAttributeNumber: the maximum number of columns in a result.
pub const MAX_COLUMNS: usize = 1_664;

/// Schema of a table without one.
const DEFAULT_SCHEMA: &str = "public";

/// Maximum length of a client's text in an error, in characters.
const MAX_EXCERPT_CHARS: usize = 80;

/// Why a text is not a name. The client receives the error's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("Invalid zero-length delimited identifier")]
    Empty,
    /// The name needs quotes.
    #[error("Invalid unquoted identifier contains special characters: {0}")]
    SpecialCharacters(String),
    /// A quote inside quotes isn't doubled.
    #[error("Invalid identifier with unescaped quote: {0}")]
    UnescapedQuote(String),
    /// The name is longer than Postgres allows.
    #[error("Identifier is too long (max length is {MAX_NAME_BYTES} bytes)")]
    TooLong,
    /// More parts than a schema and a table.
    #[error("Invalid relation identifier, too many delimiters: {0}")]
    TooManyParts(String),
    /// More columns than a result can have.
    #[error("too many columns (the most is {MAX_COLUMNS})")]
    TooManyColumns,
}

/// Parses a table name: `name` or `schema.name`.
///
/// # Errors
/// See [`NameError`].
pub fn table_name(text: &str) -> Result<TableName, NameError> {
    let mut parts = split(text, '.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => Ok(TableName::new(DEFAULT_SCHEMA, identifier(name)?)),
        (Some(schema), Some(name), None) => Ok(TableName::new(identifier(schema)?, identifier(name)?)),
        (None, ..) | (.., Some(_)) => Err(NameError::TooManyParts(excerpt(text))),
    }
}

/// Parses a comma-separated list of columns. Repeated names are kept once.
///
/// # Errors
/// See [`NameError`].
pub fn column_list(text: &str) -> Result<Vec<String>, NameError> {
    let mut columns = Vec::new();
    for part in split(text, ',').take(MAX_COLUMNS + 1) {
        if columns.len() == MAX_COLUMNS {
            return Err(NameError::TooManyColumns);
        }
        columns.push(identifier(part.trim_matches(' '))?);
    }
    let mut seen = std::collections::HashSet::new();
    columns.retain(|column| seen.insert(column.clone()));
    Ok(columns)
}

/// Parses a column name.
///
/// # Errors
/// See [`NameError`].
pub fn column_name(text: &str) -> Result<String, NameError> {
    identifier(text)
}

/// Returns a name in quotes, for SQL.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Folds an unquoted name as Postgres does with encoding UTF8: only ASCII letters change.
pub(super) fn folded(unquoted: &str) -> Result<String, NameError> {
    checked(unquoted.to_ascii_lowercase())
}

/// Fails if a name is empty or too long.
pub(super) fn checked(name: String) -> Result<String, NameError> {
    match name.len() {
        0 => Err(NameError::Empty),
        1..=MAX_NAME_BYTES => Ok(name),
        _ => Err(NameError::TooLong),
    }
}

/// Returns whether an unquoted name may begin with this character.
pub(super) fn begins_name(character: char) -> bool {
    character.is_ascii_alphabetic() || character == '_' || !character.is_ascii()
}

/// Returns whether an unquoted name may contain this character after its first.
pub(super) fn continues_name(character: char) -> bool {
    begins_name(character) || character.is_ascii_digit() || character == '$'
}

/// Returns the beginning of a client's text, for an error.
pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn identifier(text: &str) -> Result<String, NameError> {
    let in_quotes = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    if let Some(inside) = in_quotes {
        return match inside.replace("\"\"", "").contains('"') {
            true => Err(NameError::UnescapedQuote(excerpt(inside))),
            false => checked(inside.replace("\"\"", "\"")),
        };
    }
    let mut characters = text.chars();
    match characters.next() {
        None => Err(NameError::Empty),
        Some(first) if begins_name(first) && characters.all(continues_name) => folded(text),
        Some(_) => Err(NameError::SpecialCharacters(excerpt(text))),
    }
}

/// Splits at delimiters outside quotes.
fn split(text: &str, delimiter: char) -> impl Iterator<Item = &str> {
    let mut in_quotes = false;
    text.split(move |character| {
        in_quotes ^= character == '"';
        character == delimiter && !in_quotes
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_is_a_name_with_or_without_a_schema() {
        for (text, schema, name) in [
            ("items", "public", "items"),
            ("Items", "public", "items"),
            (r#""Items""#, "public", "Items"),
            ("app.Items", "app", "items"),
            (r#"App."Items""#, "app", "Items"),
            (r#""a.b"."c.d""#, "a.b", "c.d"),
            (r#""say ""hi""""#, "public", r#"say "hi""#),
            (r#"" ""#, "public", " "),
            ("_x$1", "public", "_x$1"),
            ("ÄRGER", "public", "Ärger"),
            ("select", "public", "select"),
        ] {
            assert_eq!(table_name(text), Ok(TableName::new(schema, name)), "{text}");
        }
    }

    #[test]
    fn an_invalid_table_name_is_an_error_that_names_the_problem() {
        let special = |text: &str| NameError::SpecialCharacters(text.into());
        for (text, error) in [
            ("", NameError::Empty),
            (r#""""#, NameError::Empty),
            (".items", NameError::Empty),
            ("app.", NameError::Empty),
            (" ", special(" ")),
            ("a b", special("a b")),
            ("foob@r", special("foob@r")),
            ("1st", special("1st")),
            ("$x", special("$x")),
            ("a;drop", special("a;drop")),
            (r#"Foo"Bar""#, special(r#"Foo"Bar""#)),
            (r#"""#, special(r#"""#)),
            (r#""Foo"Bar""#, NameError::UnescapedQuote(r#"Foo"Bar"#.into())),
            (r#"""""#, NameError::UnescapedQuote(r#"""#.into())),
            ("a.b.c", NameError::TooManyParts("a.b.c".into())),
        ] {
            assert_eq!(table_name(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_name_has_at_most_63_bytes() {
        let fits = "é".repeat(31) + "x";
        assert_eq!(table_name(&fits).unwrap().name, fits);
        for long in [
            "a".repeat(64),
            "é".repeat(32),
            format!("\"{}\"", "a".repeat(64)),
            format!("x.{}", "a".repeat(64)),
        ] {
            assert_eq!(table_name(&long), Err(NameError::TooLong), "{long}");
        }
        let quotes = format!("\"{}\"", "\"\"".repeat(63));
        assert_eq!(table_name(&quotes).unwrap().name, "\"".repeat(63), "a doubled quote is one byte");
    }

    #[test]
    fn columns_are_separated_by_commas() {
        for (text, columns) in [
            ("id", vec!["id"]),
            ("id,Name", vec!["id", "name"]),
            ("id, name ,x", vec!["id", "name", "x"]),
            (r#""PoT@To",PoTaTo"#, vec!["PoT@To", "potato"]),
            (r#""a,b",foo"#, vec!["a,b", "foo"]),
            (r#""fo""o",bar"#, vec![r#"fo"o"#, "bar"]),
            (r#"b,a,b,"b""#, vec!["b", "a"]),
        ] {
            assert_eq!(column_list(text).unwrap(), columns, "{text}");
        }
        for text in ["", ",", "id,", ",id", "id,,x", r#"id,"""#] {
            assert_eq!(column_list(text), Err(NameError::Empty), "{text}");
        }
        for text in [r#""id,name"#, "a b", "*", "id;x", "a.b"] {
            assert_eq!(column_list(text), Err(NameError::SpecialCharacters(text.into())));
        }
    }

    #[test]
    fn a_list_has_at_most_as_many_columns_as_a_postgres_result() {
        let list = |count: usize| (0..count).map(|at| format!("c{at}")).collect::<Vec<_>>().join(",");
        assert_eq!(column_list(&list(MAX_COLUMNS)).unwrap().len(), MAX_COLUMNS);
        assert_eq!(column_list(&list(MAX_COLUMNS + 1)), Err(NameError::TooManyColumns));
    }

    #[test]
    fn a_long_name_is_shortened_in_its_error() {
        let NameError::SpecialCharacters(shown) = table_name(&"ü ".repeat(50_000)).unwrap_err() else {
            panic!("it has spaces");
        };
        assert_eq!(shown.chars().count(), MAX_EXCERPT_CHARS + 1);
    }

    proptest! {
        #[test]
        fn a_quoted_name_parses_to_itself(name in "[^\0]{1,15}") {
            prop_assert_eq!(table_name(&quoted(&name)), Ok(TableName::new("public", name.clone())));
            prop_assert_eq!(column_list(&quoted(&name)), Ok(vec![name]));
        }

        #[test]
        fn no_text_panics_the_name_parser(text in any::<String>()) {
            let _ = (table_name(&text), column_list(&text));
        }
    }
}
