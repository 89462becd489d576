//! Lists shapes for operators: those with the most streams first, then the largest.
//!
//! Invariant: the list contains no value of a row and no literal of a where clause, which may be a
//! secret.
//! Bounds: at most [`MAX_LISTED_SHAPES`] shapes. One call reads no more bytes to count rows than
//! its caller allows.

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use forebay_shapes::{LogMode, LogPage, Offset, Shape, Shapes};
use memchr::memmem;
use parking_lot::Mutex;
use serde::Serialize;

/// Maximum number of listed shapes.
pub(crate) const MAX_LISTED_SHAPES: usize = 20;
/// Maximum length of a listed clause, in bytes.
const MAX_CLAUSE_BYTES: usize = 300;
/// Maximum number of bytes of one read.
const READ_BYTES: u64 = 256 * 1024;

/// Part of every message that inserts a row. No value can contain it, because quotes in values are
/// escaped.
const INSERT_MARK: &[u8] = br#"},"headers":{"operation":"insert""#;
/// Part of every message that deletes a row.
const DELETE_MARK: &[u8] = br#"},"headers":{"operation":"delete""#;

/// Counts the rows of the listed shapes, step by step over several calls.
#[derive(Debug, Default)]
pub(crate) struct ShapeLister {
    row_counts: Mutex<HashMap<String, ShapeRowCount>>,
}

/// Totals of all shapes, and the listed ones.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ShapeSummary {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    pub(crate) top: Vec<ListedShape>,
}

/// Entry of the list.
#[derive(Debug, Serialize)]
pub(crate) struct ListedShape {
    handle: String,
    table: String,
    /// Where clause with `…` for each literal.
    r#where: Option<String>,
    columns: Option<Vec<String>>,
    /// Number of rows. `None`: not counted yet, or not countable.
    rows: Option<u64>,
    bytes: u64,
    streams: u32,
    last_offset: String,
}

/// Progress of counting one shape's rows.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct ShapeRowCount {
    /// Number of bytes of the snapshot that are counted.
    snapshot: u64,
    /// Offset up to which all changes of the log are counted.
    after: Offset,
    /// Uncounted rest of the log page after that offset, and the position at which the page began.
    page: Option<(LogPage, u64)>,
    inserted: u64,
    deleted: u64,
}

impl ShapeLister {
    /// Returns the totals and the list. Reads up to `budget` bytes to continue counting rows.
    /// Blocks on disk reads.
    pub(crate) fn summarize(&self, shapes: &Shapes, mut budget: u64) -> ShapeSummary {
        let all = shapes.all();
        let mut summary = ShapeSummary { count: all.len(), ..ShapeSummary::default() };
        let mut first = BinaryHeap::with_capacity(MAX_LISTED_SHAPES + 1);
        for (index, shape) in all.iter().enumerate() {
            let (streams, bytes) = (shape.streams(), shape.bytes());
            summary.bytes += bytes;
            summary.streams += u64::from(streams);
            first.push(std::cmp::Reverse((streams, bytes, index)));
            if first.len() > MAX_LISTED_SHAPES {
                first.pop();
            }
        }
        let mut row_counts = self.row_counts.lock();
        let mut listed_counts = HashMap::with_capacity(MAX_LISTED_SHAPES);
        for std::cmp::Reverse((streams, bytes, index)) in first.into_sorted_vec() {
            let shape = &all[index];
            let mut counted = row_counts.remove(shape.handle()).unwrap_or_default();
            let is_complete = counted.advance(shape, &mut budget).unwrap_or_else(|_| {
                // The log was compacted or removed meanwhile. Counting restarts.
                counted = ShapeRowCount::default();
                false
            });
            let is_countable = is_complete && shape.definition().options.log == LogMode::Full;
            let rows = is_countable.then(|| counted.inserted.saturating_sub(counted.deleted));
            listed_counts.insert(shape.handle().to_owned(), counted);
            summary.top.push(ListedShape::of(shape, streams, bytes, rows));
        }
        // Shapes that are no longer listed are forgotten.
        *row_counts = listed_counts;
        summary
    }
}

impl ListedShape {
    fn of(shape: &Arc<Shape>, streams: u32, bytes: u64, rows: Option<u64>) -> Self {
        let definition = shape.definition();
        let (table, options) = (&definition.table, &definition.options);
        ListedShape {
            handle: shape.handle().to_owned(),
            table: format!("{}.{}", table.schema, table.name),
            r#where: options.clause.as_deref().map(without_literals),
            columns: options.columns.clone(),
            rows,
            bytes,
            streams,
            last_offset: shape.log_end().to_string(),
        }
    }
}

impl ShapeRowCount {
    /// Continues counting within the budget. Returns whether everything readable is counted.
    fn advance(&mut self, shape: &Shape, budget: &mut u64) -> io::Result<bool> {
        let snapshot = shape.snapshot_end();
        while self.snapshot < snapshot && *budget > 0 {
            let to = snapshot.min(self.snapshot + READ_BYTES.min(*budget));
            *budget -= to - self.snapshot;
            self.count(&shape.read_snapshot(overlapping(self.snapshot), to)?);
            self.snapshot = to;
        }
        loop {
            let Some((mut page, start)) = self.page.take() else {
                if self.snapshot < snapshot || *budget == 0 || self.after >= shape.log_end() {
                    break;
                }
                let page = shape.log_after(self.after)?;
                self.page = Some((page, page.from));
                continue;
            };
            let to = page.to.min(page.from + READ_BYTES.min(*budget));
            if to > page.from {
                *budget -= to - page.from;
                self.count(&shape.read_log(&page, overlapping(page.from).max(start), to)?);
                page.from = to;
            }
            if page.from == page.to {
                self.after = page.last;
            } else {
                self.page = Some((page, start));
            }
            if *budget == 0 {
                break;
            }
        }
        Ok(self.snapshot == snapshot && self.page.is_none() && self.after >= shape.log_end())
    }

    /// Counts the marks in the bytes that were read.
    fn count(&mut self, pieces: &[Bytes]) {
        let joined;
        let text: &[u8] = match pieces {
            [only] => only,
            several => {
                joined = several.concat();
                &joined
            }
        };
        self.inserted += memmem::find_iter(text, INSERT_MARK).count() as u64;
        self.deleted += memmem::find_iter(text, DELETE_MARK).count() as u64;
    }
}

/// Returns the position from which to read, so that a mark across two reads is found. The overlap
/// is shorter than a mark, so no mark is counted twice.
fn overlapping(from: u64) -> u64 {
    from.saturating_sub(INSERT_MARK.len() as u64 - 1)
}

/// Returns a clause with `…` for each text and number in it.
fn without_literals(clause: &str) -> String {
    let mut out = String::new();
    let mut rest = clause.chars().peekable();
    let mut is_name = false;
    while let Some(char) = rest.next() {
        if out.len() > MAX_CLAUSE_BYTES {
            out.push('…');
            break;
        }
        match char {
            '\'' => {
                // A doubled quote inside a text ends it and starts the next one.
                while rest.next().is_some_and(|char| char != '\'') {}
                if !out.ends_with("'…'") {
                    out.push_str("'…'");
                }
            }
            '"' => {
                out.push('"');
                for char in rest.by_ref() {
                    out.push(char);
                    if char == '"' {
                        break;
                    }
                }
            }
            digit if digit.is_ascii_digit() && !is_name => {
                while rest
                    .next_if(|char| char.is_ascii_digit() || matches!(char, '.' | 'e' | 'E' | '_'))
                    .is_some()
                {}
                out.push('…');
            }
            other => out.push(other),
        }
        is_name = char.is_alphanumeric() || char == '_';
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_clause_has_no_literals() {
        for (clause, listed) in [
            ("(status = 'open')", "(status = '…')"),
            ("name = 'O''Hara' AND total > 12.50", "name = '…' AND total > …"),
            ("\"2nd name\" IN ('a', 'b') OR t2.c3 = -1e6", "\"2nd name\" IN ('…', '…') OR t2.c3 = -…"),
            ("note = 'a \"quoted\" word'", "note = '…'"),
            ("x = 'no end", "x = '…'"),
        ] {
            assert_eq!(without_literals(clause), listed);
        }
        assert!(without_literals(&"a AND ".repeat(1_000)).len() < 400);
    }

    #[test]
    fn rows_are_counted_wherever_a_read_ends() {
        let message =
            |operation: &str| format!("{{\"value\":{{}},\"headers\":{{\"operation\":\"{operation}\"}}}},\n");
        let log: String = ["insert", "update", "insert", "delete", "insert"].map(message).concat();
        for cut in 1..log.len() {
            let mut counted = ShapeRowCount::default();
            let second = usize::try_from(overlapping(cut as u64)).unwrap();
            counted.count(&[Bytes::copy_from_slice(&log.as_bytes()[..cut])]);
            let (left, right) = log.as_bytes()[second..].split_at(3);
            counted.count(&[Bytes::copy_from_slice(left), Bytes::copy_from_slice(right)]);
            assert_eq!((counted.inserted, counted.deleted), (3, 1), "cut at {cut}");
        }
    }
}
