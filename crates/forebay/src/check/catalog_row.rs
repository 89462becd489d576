//! A row of a query, with its values as text.

use std::collections::HashMap;

/// Values by column name. NULL values are absent.
pub(super) type CatalogRow = HashMap<String, String>;

/// Returns a value; empty if it is absent.
pub(super) fn text<'a>(row: &'a CatalogRow, key: &str) -> &'a str {
    row.get(key).map(String::as_str).unwrap_or_default()
}

/// Returns whether a value is `t`.
pub(super) fn is_true(row: &CatalogRow, key: &str) -> bool {
    text(row, key) == "t"
}

/// Returns a value as a number, if it is one.
pub(super) fn number(row: &CatalogRow, key: &str) -> Option<i64> {
    text(row, key).parse().ok()
}
