//! Set of filters that share one condition.
//!
//! Invariant: each filter is in the set once. Insertion and removal take O(log n), iteration O(n).
//! Enforced by: a `BTreeMap`. A set of one, which is the usual size, allocates nothing.

use std::collections::BTreeMap;

/// Filters by id.
#[derive(Debug)]
pub(super) enum FilterSet {
    One(u64, FilterMark),
    Many(BTreeMap<u64, FilterMark>),
}

/// How one filter depends on the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterMark {
    /// The condition is the whole clause: if it holds, the clause is true.
    pub(super) certain: bool,
    /// Another condition may find the filter, too.
    pub(super) shared: bool,
}

impl Default for FilterSet {
    fn default() -> Self {
        FilterSet::Many(BTreeMap::new())
    }
}

impl FilterSet {
    /// Adds a filter. Returns `false` if it was already in the set.
    pub(super) fn insert(&mut self, id: u64, mark: FilterMark) -> bool {
        match self {
            FilterSet::Many(all) if all.is_empty() => {
                *self = FilterSet::One(id, mark);
                return true;
            }
            FilterSet::One(one, known) if *one != id => {
                *self = FilterSet::Many(BTreeMap::from([(*one, *known)]));
            }
            FilterSet::One(..) | FilterSet::Many(_) => {}
        }
        let known = match self {
            FilterSet::One(_, known) => known,
            FilterSet::Many(all) => match all.get_mut(&id) {
                Some(known) => known,
                None => {
                    all.insert(id, mark);
                    return true;
                }
            },
        };
        // Two alternatives of one clause have this condition. The filter is certain if one of them
        // is.
        known.certain |= mark.certain;
        false
    }

    pub(super) fn remove(&mut self, id: u64) {
        match self {
            FilterSet::One(one, _) if *one == id => *self = FilterSet::default(),
            FilterSet::One(..) => {}
            FilterSet::Many(all) => {
                all.remove(&id);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            FilterSet::One(..) => 1,
            FilterSet::Many(all) => all.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn for_each(&self, mut visit: impl FnMut(u64, FilterMark)) {
        match self {
            FilterSet::One(one, mark) => visit(*one, *mark),
            FilterSet::Many(all) => all.iter().for_each(|(id, mark)| visit(*id, *mark)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNCERTAIN: FilterMark = FilterMark { certain: false, shared: false };

    fn all(filters: &FilterSet) -> Vec<(u64, bool)> {
        let mut all = Vec::new();
        filters.for_each(|id, mark| all.push((id, mark.certain)));
        all
    }

    #[test]
    fn a_filter_is_in_the_set_once_and_certain_if_one_alternative_makes_it_so() {
        let mut filters = FilterSet::default();
        assert!(filters.insert(7, UNCERTAIN));
        assert!(!filters.insert(7, FilterMark { certain: true, ..UNCERTAIN }));
        assert!(filters.insert(3, UNCERTAIN));
        assert!(!filters.insert(7, UNCERTAIN));
        assert_eq!(all(&filters), [(3, false), (7, true)]);
    }

    #[test]
    fn removal_takes_out_only_the_named_filter() {
        let mut filters = FilterSet::default();
        filters.remove(1);
        filters.insert(1, UNCERTAIN);
        filters.remove(2);
        assert_eq!(all(&filters), [(1, false)]);
        filters.insert(2, UNCERTAIN);
        filters.remove(1);
        assert_eq!(all(&filters), [(2, false)]);
        filters.remove(2);
        assert!(filters.is_empty() && all(&filters).is_empty());
    }
}
