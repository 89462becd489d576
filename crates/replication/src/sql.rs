//! Names and values in SQL that can't be sent beside it: the replication protocol and DDL take no parameters. And what the server says
//! of it.

use std::error::Error as _;

use forebay_reservoir::{PostgresServerError, tokio_postgres};

/// As a name, whatever it holds.
pub(crate) fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// As a value, whatever it holds and whatever `standard_conforming_strings` is.
pub(crate) fn literal(value: &str) -> String {
    format!(" E'{}'", value.replace('\\', r"\\").replace('\'', "''"))
}

/// What happened, in the server's words: the error's own are "db error".
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(said), _) => PostgresServerError::from(said).to_string(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_quotes() {
        assert_eq!(name(r#"a"b"#), r#""a""b""#);
        assert_eq!(literal(r"it's \'; DROP"), r" E'it''s \\''; DROP'");
    }
}
