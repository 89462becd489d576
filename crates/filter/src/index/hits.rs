//! What a search has found so far.
//!
//! Invariant: each shape is given once.
//! Kept by: what only one condition finds is given at once; what others may find as well waits for the end.

use super::Candidate;
use super::members::Members;
use super::visits;

/// Of one row.
pub(super) struct Hits<'f> {
    found: &'f mut Vec<Candidate>,
    /// Not yet given; perhaps more than once in here.
    shared: Vec<Candidate>,
}

impl<'f> Hits<'f> {
    pub(super) fn new(found: &'f mut Vec<Candidate>) -> Self {
        Hits { found, shared: Vec::new() }
    }

    /// Shapes whose condition holds.
    pub(super) fn take(&mut self, members: &Members) {
        members.each(|shape, mark| {
            visits::count();
            let list = if mark.shared { &mut self.shared } else { &mut *self.found };
            list.push(Candidate { shape, certain: mark.certain });
        });
    }

    /// Shapes of whose conditions nothing is known, not even that each is met once.
    pub(super) fn suspect(&mut self, members: &Members) {
        members.each(|shape, _| self.shared.push(Candidate { shape, certain: false }));
    }

    pub(super) fn give(mut self) {
        // The certain first, since the first of each shape stays.
        self.shared.sort_unstable_by_key(|candidate| (candidate.shape, !candidate.certain));
        self.shared.dedup_by_key(|candidate| candidate.shape);
        self.found.append(&mut self.shared);
    }
}
