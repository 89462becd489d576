//! Index of one column: finds filters by the column's value in a row.

use std::collections::HashMap;

use super::filter_set::{FilterMark, FilterSet};
use super::interval_tree::{IntervalTree, NodeId};
use super::key_interval::KeyInterval;
use super::search_hits::SearchHits;
use super::visits;
use crate::{ColumnType, IndexKey};

/// Filters with a condition on one column.
#[derive(Debug)]
pub(super) struct ColumnIndex {
    column_type: ColumnType,
    /// By the column's value; in an array column, by one of its elements.
    by_key: HashMap<IndexKey, FilterSet>,
    by_interval: IntervalTree,
}

impl ColumnIndex {
    pub(super) fn new(column_type: ColumnType) -> Self {
        ColumnIndex { column_type, by_key: HashMap::new(), by_interval: IntervalTree::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.by_interval.is_empty()
    }

    /// Returns the number of filters under a key.
    pub(super) fn filters_under(&self, key: &IndexKey) -> usize {
        self.by_key.get(key).map_or(0, FilterSet::len)
    }

    /// Adds a filter under a key. Returns `false` if it was already there.
    pub(super) fn insert_key(&mut self, key: IndexKey, id: u64, mark: FilterMark) -> bool {
        self.by_key.entry(key).or_default().insert(id, mark)
    }

    /// Adds a filter under an interval. Returns the interval's node, or `None` if the filter was
    /// already there.
    pub(super) fn insert_interval(
        &mut self,
        interval: KeyInterval,
        id: u64,
        mark: FilterMark,
    ) -> Option<NodeId> {
        self.by_interval.insert(interval, id, mark)
    }

    pub(super) fn remove_key(&mut self, key: &IndexKey, id: u64) {
        if let Some(filters) = self.by_key.get_mut(key) {
            filters.remove(id);
            if filters.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    pub(super) fn remove_interval(&mut self, node: NodeId, id: u64) {
        self.by_interval.remove(node, id);
    }

    /// Adds the filters whose condition holds for the column's text in a row.
    pub(super) fn search(&self, text: &[u8], hits: &mut SearchHits<'_>) {
        if let Ok(Some(key)) = IndexKey::of_row(&self.column_type, text) {
            self.look_up(&key, hits);
        } else if let Ok(Some(mut elements)) = IndexKey::of_elements(&self.column_type, text) {
            elements.sort_unstable();
            elements.dedup();
            elements.iter().for_each(|key| self.look_up(key, hits));
        } else {
            // If the text is not a value of the type, any of these clauses may fail on the row. All
            // of them are candidates; evaluation decides.
            self.by_key.values().for_each(|filters| hits.add_unchecked(filters));
            self.by_interval.for_each(&mut |filters| hits.add_unchecked(filters));
        }
    }

    fn look_up(&self, key: &IndexKey, hits: &mut SearchHits<'_>) {
        if !self.by_key.is_empty() {
            visits::count();
            if let Some(filters) = self.by_key.get(key) {
                hits.add(filters);
            }
        }
        self.by_interval.containing(key, &mut |filters| hits.add(filters));
    }
}
