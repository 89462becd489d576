//! Which shapes a row may belong to, found without trying each.
//!
//! Invariant: a shape whose clause is true of a row is among the row's candidates, once; a candidate that is `certain` has a
//! clause that is true of the row. A clause that fails on a row is among them too, unless a condition that it needs can be
//! read from the row and doesn't hold: then it isn't true, and Postgres need not evaluate the rest.
//! Kept by: each alternative of a clause is filed under one of its conditions; `tests/it/index.rs` compares with trying
//! them all.
//! Cost: a search looks at what it finds, and at as much again as it takes to get there: one look-up for each key of the
//! row, one way down the tree of a column's intervals. It doesn't depend on the shapes that aren't found.
//! Memory: 180 to 350 bytes for a shape with one equality, more as a text is longer; about as much for a range.
//! Not here: evaluation, and whatever else a shape is. A shape is a number.
//!
//! ```
//! use forebay_filter::{Candidate, Collation, Column, Filter, Index, Schema};
//!
//! let schema = Schema {
//!     table: None,
//!     columns: vec![Column::new("id", 23, "int4"), Column::new("name", 25, "text")],
//!     database_collation: Collation::C,
//!     server_version: 15,
//! };
//! let mut index = Index::new();
//! for (shape, clause) in [(1, "id = 5"), (2, "id IN (5, 6) AND name LIKE 'a%'"), (3, "id > 5")] {
//!     index.add(shape, Some(&Filter::parse(clause, &[], &schema)?), &schema);
//! }
//! let (row, mut found): ([Option<&[u8]>; 2], _) = ([Some(b"5"), Some(b"apple")], Vec::new());
//! index.candidates(&row, &mut found);
//! found.sort_by_key(|candidate| candidate.shape);
//! assert_eq!(found, [Candidate { shape: 1, certain: true }, Candidate { shape: 2, certain: false }]);
//! # Ok::<(), forebay_filter::FilterError>(())
//! ```

mod column;
mod hits;
mod interval;
mod intervals;
mod members;
#[cfg(test)]
mod tests;
mod visits;

use std::collections::{BTreeMap, HashMap};

use self::column::Column;
use self::hits::Hits;
use self::interval::Interval;
use self::intervals::NodeId;
use self::members::{Mark, Members};
use crate::{Alternative, Condition, Filter, Key, Row, Schema};

/// Finds the shapes of one table whose clause may be true of a row.
#[derive(Debug, Default)]
pub struct Index {
    /// Where each shape is filed.
    shapes: HashMap<u64, Box<[Place]>>,
    /// Those that a shape is filed under, by their places in the schema.
    columns: BTreeMap<usize, Column>,
    /// Shapes that any row may belong to.
    everywhere: Members,
}

/// A shape whose clause may be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As it was added.
    pub shape: u64,
    /// The clause is true: no need to try it.
    pub certain: bool,
}

/// Where a shape is filed.
#[derive(Debug)]
enum Place {
    Everywhere,
    Key { column: usize, key: Key },
    Interval { column: usize, id: NodeId },
}

impl Index {
    /// Without shapes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a shape, or gives it another clause. `None`: it takes every row. The schema is that which the filter was made for,
    /// the same for all shapes of the index.
    pub fn add(&mut self, shape: u64, filter: Option<&Filter>, schema: &Schema) {
        self.remove(shape);
        let alternatives = filter.map_or_else(|| vec![Alternative::default()], Filter::conditions);
        let shared = alternatives.len() > 1;
        let mut places = Vec::new();
        for Alternative { conditions, rest } in alternatives {
            let count = conditions.len();
            let best = conditions.into_iter().min_by_key(|condition| self.cost(condition));
            let column = best.as_ref().and_then(|condition| schema.columns.get(condition.column()));
            // One condition is looked up; others are left to trying.
            let mark = Mark { certain: !rest && count == usize::from(column.is_some()), shared };
            match best.zip(column) {
                Some((condition, column)) => {
                    let kind = &column.column_type;
                    let column =
                        self.columns.entry(condition.column()).or_insert_with(|| Column::new(kind.clone()));
                    file(column, condition, shape, mark, &mut places);
                }
                None if self.everywhere.insert(shape, mark) => places.push(Place::Everywhere),
                None => {}
            }
        }
        self.shapes.insert(shape, places.into_boxed_slice());
    }

    /// Removes a shape, if it is there.
    pub fn remove(&mut self, shape: u64) {
        for place in self.shapes.remove(&shape).unwrap_or_default() {
            match place {
                Place::Everywhere => self.everywhere.remove(shape),
                Place::Key { column, key } => self.leave(column, |column| column.remove_key(&key, shape)),
                Place::Interval { column, id } => {
                    self.leave(column, |column| column.remove_interval(id, shape));
                }
            }
        }
    }

    /// Adds to `found` each shape whose clause may be true of the row, once, in no particular order.
    pub fn candidates(&self, row: &dyn Row, found: &mut Vec<Candidate>) {
        let mut hits = Hits::new(found);
        hits.take(&self.everywhere);
        for (at, column) in &self.columns {
            // Of NULL, no condition is true.
            if let Some(text) = row.text(*at) {
                column.search(text, &mut hits);
            }
        }
        hits.give();
    }

    /// How many shapes there are.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// A column that nothing is filed under goes, so that rows' texts aren't read for nothing.
    fn leave(&mut self, at: usize, remove: impl FnOnce(&mut Column)) {
        if let Some(column) = self.columns.get_mut(&at) {
            remove(column);
            if column.is_empty() {
                self.columns.remove(&at);
            }
        }
    }

    /// How bad a condition is to look up: how many rows satisfy conditions of its kind, as a rule, and how many shapes are
    /// filed there already. So `active AND owner = 7` comes to be filed by its owner, where there are many of them.
    fn cost(&self, condition: &Condition) -> (u8, usize) {
        let crowd = |key: &Key| self.columns.get(&condition.column()).map_or(0, |column| column.crowd(key));
        match condition {
            Condition::Equals { keys, .. } => (0, keys.len() + keys.iter().map(crowd).sum::<usize>()),
            Condition::Elements { keys, .. } => (1, keys.iter().map(crowd).min().unwrap_or(0)),
            Condition::Prefix { prefix, .. } => (2, usize::MAX - prefix.len()),
            Condition::Range { lower, upper, .. } => (3, usize::from(lower.is_none() || upper.is_none())),
        }
    }
}

/// Files a shape under a condition.
fn file(column: &mut Column, condition: Condition, shape: u64, mark: Mark, places: &mut Vec<Place>) {
    let (at, interval) = match condition {
        Condition::Equals { column: at, keys } => {
            for key in keys {
                if column.insert_key(key.clone(), shape, mark) {
                    places.push(Place::Key { column: at, key });
                }
            }
            return;
        }
        Condition::Elements { column: at, keys } => {
            // All must be there, so one of them is enough to find it: the one that finds the fewest.
            let certain = mark.certain && keys.len() == 1;
            if let Some(key) = keys.into_iter().min_by_key(|key| column.crowd(key))
                && column.insert_key(key.clone(), shape, Mark { certain, ..mark })
            {
                places.push(Place::Key { column: at, key });
            }
            return;
        }
        Condition::Prefix { column: at, prefix } => (at, Interval::of_prefix(&prefix)),
        Condition::Range { column: at, lower, upper } => (at, Interval { lower, upper }),
    };
    if let Some(id) = column.insert_interval(interval, shape, mark) {
        places.push(Place::Interval { column: at, id });
    }
}
