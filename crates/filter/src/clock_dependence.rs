//! Clock dependence: whether the value of a condition may depend on the current time.
//!
//! Postgres reads `now`, `today`, `tomorrow` and `yesterday` as the current time wherever a text
//! becomes a date or time. A condition of a shape must have the same value at any time.
//!
//! Invariant: a condition that isn't reported has no such text. Conditions of other texts may be
//! reported, too.
//! Enforced by: only constants and casts turn texts into dates and times. A cast is accepted if its
//! operand is a constant or has a date or time type already. A constant with one of these words is
//! reported if the condition has any column, cast or function of a date or time type.
//! Out of scope: functions that read the clock. The caller doesn't allow them.

use crate::schema::Schema;
use crate::syntax::{SyntaxKind, SyntaxTree};

/// Types whose input function reads the clock, and the ranges of these types.
const TYPES: &[&str] = &[
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "daterange",
    "tsrange",
    "tstzrange",
    "datemultirange",
    "tsmultirange",
    "tstzmultirange",
];

/// Beginnings of the names of functions that take dates or times.
const FUNCTIONS: &[&str] = &[
    "age",
    "date",
    "extract",
    "isfinite",
    "make_",
    "multirange",
    "range_",
    "timezone",
    "to_char",
    "ts",
    "lower",
    "upper",
    "isempty",
];

const WORDS: &[&str] = &["now", "today", "tomorrow", "yesterday"];

/// Returns whether the value of a condition may depend on the current time.
pub(crate) fn depends_on_clock(tree: &SyntaxTree, schema: &Schema) -> bool {
    let mut found = ClockUse::default();
    found.read(tree, schema);
    found.casts_other_text || (found.has_word && found.has_time)
}

#[derive(Default)]
struct ClockUse {
    /// A constant has one of [`WORDS`].
    has_word: bool,
    /// There is a column, a cast or a function of a date or time type.
    has_time: bool,
    /// Something else than a constant, date or time is cast to a date or time.
    casts_other_text: bool,
}

impl ClockUse {
    fn read(&mut self, tree: &SyntaxTree, schema: &Schema) {
        match &tree.kind {
            SyntaxKind::Text(text) => {
                let text = text.to_lowercase();
                self.has_word |= WORDS.iter().any(|word| text.contains(word));
            }
            SyntaxKind::Call(name, _) => {
                self.has_time |= FUNCTIONS.iter().any(|beginning| name.starts_with(beginning));
            }
            SyntaxKind::Cast(operand, name) if is_time(&name.name) => {
                self.has_time = true;
                self.casts_other_text |= !is_constant(operand) && !has_time_type(operand, schema);
            }
            _ => self.has_time |= has_time_type(tree, schema),
        }
        tree.kind.each_child(&mut |child| self.read(child, schema));
    }
}

/// Returns whether this is the name of one of [`TYPES`], or of an array of one.
fn is_time(name: &str) -> bool {
    TYPES.contains(&name.strip_prefix('_').unwrap_or(name))
}

fn is_constant(tree: &SyntaxTree) -> bool {
    matches!(tree.kind, SyntaxKind::Text(_) | SyntaxKind::Null)
}

/// Returns whether the tree is a column or a cast of a date or time type.
fn has_time_type(tree: &SyntaxTree, schema: &Schema) -> bool {
    match &tree.kind {
        SyntaxKind::Name(parts) => schema
            .columns
            .iter()
            .any(|column| Some(&column.name) == parts.last() && is_time(&column.column_type.name)),
        SyntaxKind::Cast(_, name) => is_time(&name.name),
        _ => false,
    }
}
