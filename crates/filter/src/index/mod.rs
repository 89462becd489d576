//! Index over filters: finds the filters that may match a row without evaluating each.
//!
//! Invariant: a filter whose clause is true of a row is among the row's candidates, exactly once.
//! If a candidate is `certain`, its clause is true of the row. A filter whose clause fails on the
//! row is a candidate too, with one exception: one of its conditions can be read from the row and
//! does not hold. Then the clause is not true, and Postgres need not evaluate the rest.
//! Enforced by: each alternative of a clause is entered under one of its conditions;
//! `tests/it/index.rs` compares searches with the evaluation of every filter.
//! Out of scope: evaluation. The caller identifies each filter by an id.
//!
//! Cost of a search: one hash lookup for each key of the row, one path down the interval tree of
//! each indexed column, one evaluation of each key expression in use, and one step for each
//! candidate. It does not depend on filters that are not found.
//! Memory: 180 to 350 bytes for a filter with one equality, more for long texts; about the same for
//! a range.
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
//! for (id, clause) in [(1, "id = 5"), (2, "id IN (5, 6) AND name LIKE 'a%'"), (3, "id > 5")] {
//!     index.add(id, Some(&Filter::parse(clause, &[], &schema)?), &schema);
//! }
//! let (row, mut found): ([Option<&[u8]>; 2], _) = ([Some(b"5"), Some(b"apple")], Vec::new());
//! index.candidates(&row, &mut found);
//! found.sort_by_key(|candidate| candidate.id);
//! assert_eq!(found, [Candidate { id: 1, certain: true }, Candidate { id: 2, certain: false }]);
//! # Ok::<(), forebay_filter::FilterError>(())
//! ```

mod column_index;
mod expression_index;
mod filter_set;
mod interval_tree;
mod key_interval;
mod search_hits;
mod set_index;
#[cfg(test)]
mod tests;
mod visits;

use std::collections::{BTreeMap, HashMap};

use self::column_index::ColumnIndex;
use self::expression_index::ExpressionIndex;
use self::filter_set::{FilterMark, FilterSet};
use self::interval_tree::NodeId;
use self::key_interval::KeyInterval;
use self::search_hits::SearchHits;
pub use self::set_index::{SetId, SetLookup};
use self::set_index::{SetIndex, SetOperands};
use crate::{Alternative, Filter, IndexCondition, IndexKey, KeyExpression, Schema, TextRow};

/// Index over the filters of one table.
#[derive(Debug, Default)]
pub struct Index {
    /// The entries of each filter, by its id.
    filters: HashMap<u64, Box<[IndexEntry]>>,
    /// Indexed columns, by their positions in the schema.
    columns: BTreeMap<usize, ColumnIndex>,
    expressions: BTreeMap<KeyExpression, ExpressionIndex>,
    sets: BTreeMap<SetOperands, SetIndex>,
    /// Filters without a condition to look up: candidates of every row.
    unconditional: FilterSet,
}

/// A filter that may match a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The id under which the filter was added.
    pub id: u64,
    /// The clause is true of the row: [`Filter::matches`] need not be called.
    pub certain: bool,
}

/// Where a filter is entered.
#[derive(Debug)]
enum IndexEntry {
    Unconditional,
    Key { column: usize, key: IndexKey },
    Interval { column: usize, node: NodeId },
    ExpressionKey { expression: KeyExpression, key: IndexKey },
    Set { operands: SetOperands, set: u64 },
}

impl Index {
    /// Returns an empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a filter, or replaces the filter with this id. `None` matches every row.
    ///
    /// `schema` is the schema that the filter was parsed for. All filters of an index share it.
    pub fn add(&mut self, id: u64, filter: Option<&Filter>, schema: &Schema) {
        self.add_with_sets(id, filter, schema, &[]);
    }

    /// Adds a filter with subqueries. `sets` has the identities of [`Filter::sets`].
    pub fn add_with_sets(&mut self, id: u64, filter: Option<&Filter>, schema: &Schema, sets: &[SetId]) {
        self.remove(id);
        let alternatives = filter.map_or_else(|| vec![Alternative::default()], Filter::conditions);
        let shared = alternatives.len() > 1;
        let mut entries = Vec::new();
        for Alternative { conditions, rest } in alternatives {
            let count = conditions.len();
            let best = conditions
                .into_iter()
                .min_by_key(|condition| self.cost(condition, sets))
                .filter(|condition| fits(condition, schema, sets));
            // One condition is looked up; evaluation checks the others.
            let mark = FilterMark { certain: !rest && count == usize::from(best.is_some()), shared };
            match best {
                Some(IndexCondition::Expression { expression, keys }) => {
                    self.enter_expression(expression, keys, id, mark, &mut entries);
                }
                Some(IndexCondition::InSet { columns, set }) => {
                    self.enter_set(columns, sets[set], id, mark, schema, &mut entries);
                }
                Some(condition) => self.enter_column(condition, id, mark, schema, &mut entries),
                None if self.unconditional.insert(id, mark) => entries.push(IndexEntry::Unconditional),
                None => {}
            }
        }
        self.filters.insert(id, entries.into_boxed_slice());
    }

    /// Removes a filter, if the index has it.
    pub fn remove(&mut self, id: u64) {
        for entry in self.filters.remove(&id).unwrap_or_default() {
            match entry {
                IndexEntry::Unconditional => self.unconditional.remove(id),
                IndexEntry::Key { column, key } => {
                    self.remove_from(column, |column| column.remove_key(&key, id));
                }
                IndexEntry::Interval { column, node } => {
                    self.remove_from(column, |column| column.remove_interval(node, id));
                }
                IndexEntry::Set { operands, set } => {
                    if let Some(index) = self.sets.get_mut(&operands) {
                        index.remove(set, id);
                        if index.is_empty() {
                            self.sets.remove(&operands);
                        }
                    }
                }
                IndexEntry::ExpressionKey { expression, key } => {
                    if let Some(index) = self.expressions.get_mut(&expression) {
                        index.remove(&key, id);
                        if index.is_empty() {
                            self.expressions.remove(&expression);
                        }
                    }
                }
            }
        }
    }

    /// Adds each filter that may match the row to `found`, once, in no particular order. Filters
    /// that only a subquery's set excludes may be among them.
    pub fn candidates(&self, row: &dyn TextRow, found: &mut Vec<Candidate>) {
        self.search(row, None, found);
    }

    /// Adds each filter that may match the row, given the sets that have its values.
    pub fn candidates_with_sets(&self, row: &dyn TextRow, sets: &dyn SetLookup, found: &mut Vec<Candidate>) {
        self.search(row, Some(sets), found);
    }

    fn search(&self, row: &dyn TextRow, sets: Option<&dyn SetLookup>, found: &mut Vec<Candidate>) {
        let mut hits = SearchHits::new(found);
        hits.add(&self.unconditional);
        for (position, column) in &self.columns {
            // No condition is true of NULL.
            if let Some(text) = row.text(*position) {
                column.search(text, &mut hits);
            }
        }
        for (expression, index) in &self.expressions {
            index.search(expression, row, &mut hits);
        }
        for (operands, index) in &self.sets {
            index.search(operands, row, sets, &mut hits);
        }
        hits.finish();
    }

    /// Returns the number of filters.
    pub fn len(&self) -> usize {
        self.filters.len()
    }

    /// Returns whether the index has no filters.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Enters a filter under a condition on a column.
    fn enter_column(
        &mut self,
        condition: IndexCondition,
        id: u64,
        mark: FilterMark,
        schema: &Schema,
        entries: &mut Vec<IndexEntry>,
    ) {
        let position = condition.column().expect("a condition that is not of an expression has a column");
        let kind = &schema.columns[position].column_type;
        let column = self.columns.entry(position).or_insert_with(|| ColumnIndex::new(kind.clone()));
        enter(column, condition, id, mark, entries);
    }

    fn enter_set(
        &mut self,
        columns: Vec<usize>,
        set: SetId,
        id: u64,
        mark: FilterMark,
        schema: &Schema,
        entries: &mut Vec<IndexEntry>,
    ) {
        let types = || columns.iter().map(|column| schema.columns[*column].column_type.clone()).collect();
        let operands = SetOperands { columns: columns.as_slice().into(), family: set.family };
        let index = self.sets.entry(operands.clone()).or_insert_with(|| SetIndex::new(types()));
        if index.insert(set.number, id, mark) {
            entries.push(IndexEntry::Set { operands, set: set.number });
        }
    }

    /// Enters a filter under the keys of an expression. Entries share the copy that the index has.
    fn enter_expression(
        &mut self,
        expression: KeyExpression,
        keys: Vec<IndexKey>,
        id: u64,
        mark: FilterMark,
        entries: &mut Vec<IndexEntry>,
    ) {
        let expression = match self.expressions.get_key_value(&expression) {
            Some((same, _)) => same.clone(),
            None => expression,
        };
        let index = self.expressions.entry(expression.clone()).or_default();
        for key in keys {
            if index.insert(key.clone(), id, mark) {
                entries.push(IndexEntry::ExpressionKey { expression: expression.clone(), key });
            }
        }
    }

    /// Removes an entry of a column. A column without entries is removed, so that searches skip it.
    fn remove_from(&mut self, position: usize, remove: impl FnOnce(&mut ColumnIndex)) {
        if let Some(column) = self.columns.get_mut(&position) {
            remove(column);
            if column.is_empty() {
                self.columns.remove(&position);
            }
        }
    }

    /// Estimates how many candidates that do not match a condition finds. A filter is entered under
    /// its condition with the lowest cost.
    ///
    /// The first number ranks kinds of conditions. The second prefers keys with few filters: with
    /// many clauses `active AND owner = 7`, most are entered under `owner`.
    fn cost(&self, condition: &IndexCondition, sets: &[SetId]) -> (u8, usize) {
        let column = condition.column().and_then(|column| self.columns.get(&column));
        let filters_under = |key: &IndexKey| column.map_or(0, |column| column.filters_under(key));
        match condition {
            IndexCondition::Equals { keys, .. } => {
                (0, keys.len() + keys.iter().map(filters_under).sum::<usize>())
            }
            IndexCondition::Elements { keys, .. } => (1, keys.iter().map(filters_under).min().unwrap_or(0)),
            IndexCondition::Expression { expression, keys } => {
                let index = self.expressions.get(expression);
                let filters_under = |key| index.map_or(0, |index| index.filters_under(key));
                (2, keys.len() + keys.iter().map(filters_under).sum::<usize>())
            }
            IndexCondition::InSet { columns, set } => match sets.get(*set) {
                Some(SetId { family, number }) => {
                    let operands = SetOperands { columns: columns.as_slice().into(), family: *family };
                    (0, 1 + self.sets.get(&operands).map_or(0, |index| index.filters_under(*number)))
                }
                None => (5, 0),
            },
            IndexCondition::Prefix { prefix, .. } => (3, usize::MAX - prefix.len()),
            IndexCondition::Range { lower, upper, .. } => {
                (4, usize::from(lower.is_none() || upper.is_none()))
            }
        }
    }
}

/// Returns whether the schema has the columns of a condition, and its set is known.
fn fits(condition: &IndexCondition, schema: &Schema, sets: &[SetId]) -> bool {
    match condition {
        IndexCondition::InSet { columns, set } => {
            *set < sets.len() && columns.iter().all(|column| *column < schema.columns.len())
        }
        IndexCondition::Expression { expression, .. } => expression.columns() <= schema.columns.len(),
        other => other.column().is_some_and(|column| column < schema.columns.len()),
    }
}

/// Enters a filter under a condition.
fn enter(
    column: &mut ColumnIndex,
    condition: IndexCondition,
    id: u64,
    mark: FilterMark,
    entries: &mut Vec<IndexEntry>,
) {
    let (position, interval) = match condition {
        IndexCondition::Equals { column: position, keys } => {
            for key in keys {
                if column.insert_key(key.clone(), id, mark) {
                    entries.push(IndexEntry::Key { column: position, key });
                }
            }
            return;
        }
        IndexCondition::Elements { column: position, keys } => {
            // A match has all of these elements. The one with the fewest filters is looked up.
            let certain = mark.certain && keys.len() == 1;
            if let Some(key) = keys.into_iter().min_by_key(|key| column.filters_under(key))
                && column.insert_key(key.clone(), id, FilterMark { certain, ..mark })
            {
                entries.push(IndexEntry::Key { column: position, key });
            }
            return;
        }
        IndexCondition::Expression { .. } | IndexCondition::InSet { .. } => {
            unreachable!("it is a condition on one column with constants")
        }
        IndexCondition::Prefix { column: position, prefix } => (position, KeyInterval::of_prefix(&prefix)),
        IndexCondition::Range { column: position, lower, upper } => (position, KeyInterval { lower, upper }),
    };
    if let Some(node) = column.insert_interval(interval, id, mark) {
        entries.push(IndexEntry::Interval { column: position, node });
    }
}
