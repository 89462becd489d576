//! Candidates that one search has found so far.
//!
//! Invariant: each filter is reported once.
//! Enforced by: a filter that only one condition can find is reported at once. Filters that several
//! conditions may find are collected, and `finish` removes duplicates.

use super::Candidate;
use super::filter_set::FilterSet;
use super::visits;

/// The candidates of one row.
pub(super) struct SearchHits<'f> {
    found: &'f mut Vec<Candidate>,
    /// Filters that other conditions may find, too. May hold duplicates.
    shared: Vec<Candidate>,
}

impl<'f> SearchHits<'f> {
    pub(super) fn new(found: &'f mut Vec<Candidate>) -> Self {
        SearchHits { found, shared: Vec::new() }
    }

    /// Adds the filters of a condition that holds.
    pub(super) fn add(&mut self, filters: &FilterSet) {
        filters.for_each(|id, mark| {
            visits::count();
            let list = if mark.shared { &mut self.shared } else { &mut *self.found };
            list.push(Candidate { id, certain: mark.certain });
        });
    }

    /// Adds the filters of a condition that can't be checked. They may be added several times.
    pub(super) fn add_unchecked(&mut self, filters: &FilterSet) {
        filters.for_each(|id, _| self.shared.push(Candidate { id, certain: false }));
    }

    /// Reports the shared filters, each once.
    pub(super) fn finish(mut self) {
        // Certain candidates sort first: `dedup_by_key` keeps the first of each id.
        self.shared.sort_unstable_by_key(|candidate| (candidate.id, !candidate.certain));
        self.shared.dedup_by_key(|candidate| candidate.id);
        self.found.append(&mut self.shared);
    }
}
