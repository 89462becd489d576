//! Index of columns that are compared with the sets of subqueries.

use std::collections::HashMap;

use super::filter_set::{FilterMark, FilterSet};
use super::search_hits::SearchHits;
use super::visits;
use crate::{ColumnType, IndexKey, SetKey, TextRow};

/// Identity of a subquery's set among all filters of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId {
    /// Sets of one family are of the same table and columns. A search asks once for all of them.
    pub family: u64,
    /// The set, within its family.
    pub number: u64,
}

/// Finds the sets that have a value. A search costs one step for each set found.
pub trait SetLookup {
    /// Calls `visit` with the number of each set of the family that has the value.
    fn each_set_with(&self, family: u64, key: &SetKey, visit: &mut dyn FnMut(u64));
}

/// Columns, and the family of sets that they are compared with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SetOperands {
    pub(super) columns: Box<[usize]>,
    pub(super) family: u64,
}

/// Filters that compare the same columns with sets of one family.
#[derive(Debug)]
pub(super) struct SetIndex {
    types: Box<[ColumnType]>,
    by_set: HashMap<u64, FilterSet>,
}

impl SetIndex {
    /// `types` are those of the columns.
    pub(super) fn new(types: Box<[ColumnType]>) -> Self {
        SetIndex { types, by_set: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_set.is_empty()
    }

    /// Returns the number of filters under a set.
    pub(super) fn filters_under(&self, set: u64) -> usize {
        self.by_set.get(&set).map_or(0, FilterSet::len)
    }

    /// Adds a filter under a set. Returns `false` if it was already there.
    pub(super) fn insert(&mut self, set: u64, id: u64, mark: FilterMark) -> bool {
        self.by_set.entry(set).or_default().insert(id, mark)
    }

    pub(super) fn remove(&mut self, set: u64, id: u64) {
        if let Some(filters) = self.by_set.get_mut(&set) {
            filters.remove(id);
            if filters.is_empty() {
                self.by_set.remove(&set);
            }
        }
    }

    /// Adds the filters whose set has the row's values. Without a lookup, or if a value can't be
    /// read, all are candidates.
    pub(super) fn search(
        &self,
        operands: &SetOperands,
        row: &dyn TextRow,
        lookup: Option<&dyn SetLookup>,
        hits: &mut SearchHits<'_>,
    ) {
        match (self.key(&operands.columns, row), lookup) {
            // NULL is in no set.
            (Ok(None), _) => {}
            (Ok(Some(key)), Some(lookup)) => {
                visits::count();
                lookup.each_set_with(operands.family, &key, &mut |set| {
                    visits::count();
                    if let Some(filters) = self.by_set.get(&set) {
                        hits.add(filters);
                    }
                });
            }
            (Ok(Some(_)), None) | (Err(_), _) => {
                self.by_set.values().for_each(|filters| hits.add_unchecked(filters));
            }
        }
    }

    fn key(&self, columns: &[usize], row: &dyn TextRow) -> Result<Option<SetKey>, forebay_values::EvalError> {
        let key = |(column, column_type): (&usize, &ColumnType)| match row.text(*column) {
            Some(text) => IndexKey::of_row(column_type, text),
            None => Ok(None),
        };
        let mut keys = columns.iter().zip(&self.types).map(key);
        match columns.len() {
            1 => Ok(keys.next().transpose()?.flatten().map(SetKey::Value)),
            _ => Ok(keys.collect::<Result<Option<_>, _>>()?.map(SetKey::Row)),
        }
    }
}
