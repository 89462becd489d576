//! Index of one key expression: finds filters by the expression's value for a row.

use std::collections::HashMap;

use super::filter_set::{FilterMark, FilterSet};
use super::search_hits::SearchHits;
use super::visits;
use crate::{IndexKey, KeyExpression, TextRow};

/// Filters that compare one key expression with constants for equality.
#[derive(Debug, Default)]
pub(super) struct ExpressionIndex {
    by_key: HashMap<IndexKey, FilterSet>,
}

impl ExpressionIndex {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns the number of filters under a key.
    pub(super) fn filters_under(&self, key: &IndexKey) -> usize {
        self.by_key.get(key).map_or(0, FilterSet::len)
    }

    /// Adds a filter under a key. Returns `false` if it was already there.
    pub(super) fn insert(&mut self, key: IndexKey, id: u64, mark: FilterMark) -> bool {
        self.by_key.entry(key).or_default().insert(id, mark)
    }

    pub(super) fn remove(&mut self, key: &IndexKey, id: u64) {
        if let Some(filters) = self.by_key.get_mut(key) {
            filters.remove(id);
            if filters.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// Adds the filters whose constants equal the expression's value for the row. If evaluation
    /// fails, all are candidates: each clause may fail on the row.
    pub(super) fn search(&self, expression: &KeyExpression, row: &dyn TextRow, hits: &mut SearchHits<'_>) {
        visits::count();
        match expression.key(row) {
            Ok(Some(key)) => {
                if let Some(filters) = self.by_key.get(&key) {
                    hits.add(filters);
                }
            }
            Ok(None) => {}
            Err(_) => self.by_key.values().for_each(|filters| hits.add_unchecked(filters)),
        }
    }
}
