//! Tables of Markdown pages, for tests that compare pages with the code.

use std::collections::BTreeSet;

/// The part of a page from a line to the next heading of the same depth or a smaller one, without the headings.
///
/// # Panics
/// If there is no such line.
#[track_caller]
pub fn section<'a>(page: &'a str, from: &str) -> &'a str {
    let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("no {from:?}"));
    let end = ["\n## ", "\n### "].iter().filter_map(|mark| rest.find(mark)).min();
    &rest[..end.unwrap_or(rest.len())]
}

/// The cells of a text's tables, row by row, without their heads.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let is_line = |line: &str| line.starts_with("|---");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let lines: Vec<&str> = text.lines().chain([""]).collect();
    let rows =
        lines.windows(2).filter(|pair| pair[0].starts_with('|') && !is_line(pair[0]) && !is_line(pair[1]));
    rows.map(|pair| cells(pair[0])).collect()
}

/// What stands between backticks.
pub fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All that stands between backticks in the first column of a text's tables.
pub fn named(text: &str) -> BTreeSet<String> {
    rows(text).iter().flat_map(|row| quoted(&row[0])).collect()
}
