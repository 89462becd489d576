//! Tables of Markdown pages, for tests that compare pages with the code.

use std::collections::BTreeSet;

/// Returns the text of a page after `from`, up to the next heading of level 2 or 3.
///
/// # Panics
/// Panics if the page doesn't contain `from`.
#[track_caller]
pub fn section<'a>(page: &'a str, from: &str) -> &'a str {
    let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("no {from:?}"));
    let end = ["\n## ", "\n### "].iter().filter_map(|mark| rest.find(mark)).min();
    &rest[..end.unwrap_or(rest.len())]
}

/// Returns the cells of all Markdown tables in a text, row by row, without the header rows.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let is_separator = |line: &str| line.starts_with("|---");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let lines: Vec<&str> = text.lines().chain([""]).collect();
    let rows = lines
        .windows(2)
        .filter(|pair| pair[0].starts_with('|') && !is_separator(pair[0]) && !is_separator(pair[1]));
    rows.map(|pair| cells(pair[0])).collect()
}

/// Returns all texts between backticks.
pub fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns all texts between backticks in the first columns of a text's tables.
pub fn named(text: &str) -> BTreeSet<String> {
    rows(text).iter().flat_map(|row| quoted(&row[0])).collect()
}
