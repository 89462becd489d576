//! The shapes that are found by one column.

use std::collections::HashMap;

use super::hits::Hits;
use super::interval::Interval;
use super::intervals::{Intervals, NodeId};
use super::members::{Mark, Members};
use super::visits;
use crate::{ColumnType, Key};

/// Shapes by what a row has in this column.
#[derive(Debug)]
pub(super) struct Column {
    kind: ColumnType,
    /// By the column's value, or by an element of it where it is an array.
    by_key: HashMap<Key, Members>,
    by_interval: Intervals,
}

impl Column {
    pub(super) fn new(kind: ColumnType) -> Self {
        Column { kind, by_key: HashMap::new(), by_interval: Intervals::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.by_interval.is_empty()
    }

    /// How many shapes are found by this key.
    pub(super) fn crowd(&self, key: &Key) -> usize {
        self.by_key.get(key).map_or(0, Members::len)
    }

    /// `false`: the shape is there already.
    pub(super) fn insert_key(&mut self, key: Key, shape: u64, mark: Mark) -> bool {
        self.by_key.entry(key).or_default().insert(shape, mark)
    }

    /// `None`: the shape is there already.
    pub(super) fn insert_interval(&mut self, interval: Interval, shape: u64, mark: Mark) -> Option<NodeId> {
        self.by_interval.insert(interval, shape, mark)
    }

    pub(super) fn remove_key(&mut self, key: &Key, shape: u64) {
        if let Some(members) = self.by_key.get_mut(key) {
            members.remove(shape);
            if members.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    pub(super) fn remove_interval(&mut self, id: NodeId, shape: u64) {
        self.by_interval.remove(id, shape);
    }

    /// By the column's text in a row.
    pub(super) fn search(&self, text: &[u8], hits: &mut Hits<'_>) {
        if let Ok(Some(key)) = Key::of_row(&self.kind, text) {
            self.look_up(&key, hits);
        } else if let Ok(Some(mut elements)) = Key::of_elements(&self.kind, text) {
            elements.sort_unstable();
            elements.dedup();
            elements.iter().for_each(|key| self.look_up(key, hits));
        } else {
            // What can't be read may make any of the clauses fail, and that is for them to say.
            self.by_key.values().for_each(|members| hits.suspect(members));
            self.by_interval.each(&mut |members| hits.suspect(members));
        }
    }

    fn look_up(&self, key: &Key, hits: &mut Hits<'_>) {
        if !self.by_key.is_empty() {
            visits::count();
            if let Some(members) = self.by_key.get(key) {
                hits.take(members);
            }
        }
        self.by_interval.around(key, &mut |members| hits.take(members));
    }
}
