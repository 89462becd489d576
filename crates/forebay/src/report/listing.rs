//! The shapes that operators see: those with the most streams, then the largest.
//!
//! Invariant: no value of a row, and none of a where clause: what stands in one may be a secret.
//! Bounds: [`LISTED`] shapes are told, whatever their number; to count their rows, no more is read at a time than the caller allows.

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_shapes::{LogMode, LogPage, Offset, Shape, Shapes};
use memchr::memmem;
use serde::Serialize;

/// How many shapes are told.
pub(crate) const LISTED: usize = 20;
/// How much of a clause is told.
const MAX_CLAUSE: usize = 300;
/// How much is read at once.
const PIECE: u64 = 256 * 1024;

/// What every message that adds a row has, and no value can: inside of one, quotes are escaped.
const ADDED: &[u8] = br#"},"headers":{"operation":"insert""#;
const REMOVED: &[u8] = br#"},"headers":{"operation":"delete""#;

/// What is known of the shapes that were listed last.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    counted: Mutex<HashMap<String, Counted>>,
}

/// All shapes, and the first of them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Listed {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
    pub(crate) streams: u64,
    pub(crate) top: Vec<ListedShape>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ListedShape {
    handle: String,
    table: String,
    /// Without the values in it.
    r#where: Option<String>,
    columns: Option<Vec<String>>,
    /// `None`: they aren't counted yet, or can't be.
    rows: Option<u64>,
    bytes: u64,
    streams: u32,
    last_offset: String,
}

/// How far a shape's rows are counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counted {
    snapshot: u64,
    /// All changes up to here.
    after: Offset,
    /// What is left of the page after that, and where it began.
    page: Option<(LogPage, u64)>,
    added: u64,
    removed: u64,
}

impl Listing {
    /// Looks at all shapes; reads up to `budget` bytes to count rows on. Blocks for the disk.
    pub(crate) fn look(&self, shapes: &Shapes, mut budget: u64) -> Listed {
        let all = shapes.all();
        let mut listed = Listed { count: all.len(), ..Listed::default() };
        let mut first = BinaryHeap::with_capacity(LISTED + 1);
        for (index, shape) in all.iter().enumerate() {
            let (streams, bytes) = (shape.streams(), shape.bytes());
            listed.bytes += bytes;
            listed.streams += u64::from(streams);
            first.push(std::cmp::Reverse((streams, bytes, index)));
            if first.len() > LISTED {
                first.pop();
            }
        }
        let mut before = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = HashMap::with_capacity(LISTED);
        for std::cmp::Reverse((streams, bytes, index)) in first.into_sorted_vec() {
            let shape = &all[index];
            let mut counted = before.remove(shape.handle()).unwrap_or_default();
            let is_whole = counted.go_on(shape, &mut budget).unwrap_or_else(|_| {
                // What was being read was merged meanwhile, or is gone: it counts from the start again.
                counted = Counted::default();
                false
            });
            let knows = is_whole && shape.definition().choice.log == LogMode::Full;
            let rows = knows.then(|| counted.added.saturating_sub(counted.removed));
            after.insert(shape.handle().to_owned(), counted);
            listed.top.push(ListedShape::of(shape, streams, bytes, rows));
        }
        *before = after;
        listed
    }
}

impl ListedShape {
    fn of(shape: &Arc<Shape>, streams: u32, bytes: u64, rows: Option<u64>) -> Self {
        let definition = shape.definition();
        let (table, choice) = (&definition.table, &definition.choice);
        ListedShape {
            handle: shape.handle().to_owned(),
            table: format!("{}.{}", table.schema, table.name),
            r#where: choice.clause.as_deref().map(without_values),
            columns: choice.columns.clone(),
            rows,
            bytes,
            streams,
            last_offset: shape.log_end().to_string(),
        }
    }
}

impl Counted {
    /// Whether all that can be read is counted.
    fn go_on(&mut self, shape: &Shape, budget: &mut u64) -> io::Result<bool> {
        let snapshot = shape.snapshot_end();
        while self.snapshot < snapshot && *budget > 0 {
            let to = snapshot.min(self.snapshot + PIECE.min(*budget));
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
            let to = page.to.min(page.from + PIECE.min(*budget));
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

    fn count(&mut self, pieces: &[Bytes]) {
        let joined;
        let text: &[u8] = match pieces {
            [only] => only,
            several => {
                joined = several.concat();
                &joined
            }
        };
        self.added += memmem::find_iter(text, ADDED).count() as u64;
        self.removed += memmem::find_iter(text, REMOVED).count() as u64;
    }
}

/// A mark that lies across the end of what was read is found with what follows; one that was counted doesn't fit in again.
fn overlapping(from: u64) -> u64 {
    from.saturating_sub(ADDED.len() as u64 - 1)
}

/// A clause with `…` for each text and number in it.
fn without_values(clause: &str) -> String {
    let mut out = String::new();
    let mut rest = clause.chars().peekable();
    let mut is_name = false;
    while let Some(char) = rest.next() {
        if out.len() > MAX_CLAUSE {
            out.push('…');
            break;
        }
        match char {
            '\'' => {
                // A quote inside is doubled, and so begins another text right away.
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
    fn a_clause_is_told_without_its_values() {
        for (clause, told) in [
            ("(status = 'open')", "(status = '…')"),
            ("name = 'O''Hara' AND total > 12.50", "name = '…' AND total > …"),
            ("\"2nd name\" IN ('a', 'b') OR t2.c3 = -1e6", "\"2nd name\" IN ('…', '…') OR t2.c3 = -…"),
            ("note = 'a \"quoted\" word'", "note = '…'"),
            ("x = 'no end", "x = '…'"),
        ] {
            assert_eq!(without_values(clause), told);
        }
        assert!(without_values(&"a AND ".repeat(1_000)).len() < 400);
    }

    #[test]
    fn rows_are_counted_wherever_what_is_read_is_cut() {
        let message =
            |operation: &str| format!("{{\"value\":{{}},\"headers\":{{\"operation\":\"{operation}\"}}}},\n");
        let log: String = ["insert", "update", "insert", "delete", "insert"].map(message).concat();
        for cut in 1..log.len() {
            let mut counted = Counted::default();
            let second = usize::try_from(overlapping(cut as u64)).unwrap();
            counted.count(&[Bytes::copy_from_slice(&log.as_bytes()[..cut])]);
            let (left, right) = log.as_bytes()[second..].split_at(3);
            counted.count(&[Bytes::copy_from_slice(left), Bytes::copy_from_slice(right)]);
            assert_eq!((counted.added, counted.removed), (3, 1), "cut at {cut}");
        }
    }
}
