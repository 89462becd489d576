//! Quoting for SQL without parameters, which the replication protocol and DDL don't take, and texts
//! of server errors.

use std::error::Error as _;

use forebay_reservoir::{PostgresServerError, tokio_postgres};

/// Quotes a string as an identifier.
pub(crate) fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a string as a literal that doesn't depend on `standard_conforming_strings`.
pub(crate) fn literal(value: &str) -> String {
    format!(" E'{}'", value.replace('\\', r"\\").replace('\'', "''"))
}

/// Returns the server's message, instead of the "db error" of `tokio_postgres`.
pub(crate) fn error_text(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(error), _) => PostgresServerError::from(error).to_string(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(name(r#"a"b"#), r#""a""b""#);
        assert_eq!(literal(r"it's \'; DROP"), r" E'it''s \\''; DROP'");
    }
}
