//! Contents of subqueries' sets: how many selected rows have each value.
//!
//! Invariant: a set has a value exactly if the number of its selected rows with the value is above
//! zero. A number is never negative.
//! Enforced by: [`SetCounts::apply`] refuses changes that would make a number negative, before it
//! changes anything; `random_changes_leave_what_a_recount_finds`.
//!
//! Memory: a value that one set has takes about 100 bytes, more if it is a long text; each further
//! set with the same value takes 16.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use thiserror::Error;

use super::index::{SetId, SetLookup};
use super::subquery::{SetContents, SetKey};

/// Contents of many sets.
#[derive(Debug, Default)]
pub struct SetCounts {
    families: HashMap<u64, SetFamily>,
}

/// Sets of the same table and columns.
#[derive(Debug, Default)]
struct SetFamily {
    values: HashMap<SetKey, Holders>,
    /// Rows of each set, by its number.
    rows: HashMap<u64, SetRows>,
    /// Number of removed sets whose values are still in `values`.
    removed: usize,
}

/// Sets that have a value, each with the number of its rows.
#[derive(Debug)]
enum Holders {
    One(u64, u64),
    /// Sorted by set.
    Many(Vec<(u64, u64)>),
}

/// Selected rows of one set.
#[derive(Clone, Copy, Debug, Default)]
struct SetRows {
    count: u64,
    /// Number of rows with a NULL.
    nulls: u64,
}

/// Changes of one set: for each value, by how much its number of rows changes. `None` is NULL.
pub type SetChanges = HashMap<Option<SetKey>, i64>;

/// Values that enter or leave a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetFlips {
    /// Values that are new in the set.
    pub entered: Vec<SetKey>,
    /// Values that the set doesn't have any more.
    pub left: Vec<SetKey>,
    /// Whether the set has a NULL now and had none, or the reverse.
    pub null_flipped: bool,
    /// Whether the set is empty now and wasn't, or the reverse. A NULL counts.
    pub emptiness_flipped: bool,
}

/// More rows of a set would leave it than it has: its contents are wrong.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("more rows would leave a subquery's set than it has")]
pub struct SetMiscount;

/// The sets of one filter, for its evaluation.
#[derive(Clone, Copy, Debug)]
pub struct FilterSets<'c> {
    counts: &'c SetCounts,
    ids: &'c [SetId],
}

impl SetFlips {
    /// Returns whether the set has the values that it had.
    pub fn is_empty(&self) -> bool {
        *self == SetFlips::default()
    }
}

impl SetCounts {
    /// Returns no sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the contents of a filter's sets, whose identities are `ids`.
    pub fn of_filter<'c>(&'c self, ids: &'c [SetId]) -> FilterSets<'c> {
        FilterSets { counts: self, ids }
    }

    /// Changes the numbers of rows of a set. A set without rows need not be added before.
    ///
    /// # Errors
    /// Fails, and changes nothing, if more rows of a value would leave than the set has.
    pub fn apply(&mut self, set: SetId, changes: SetChanges) -> Result<SetFlips, SetMiscount> {
        let family = self.families.entry(set.family).or_default();
        if changes
            .iter()
            .any(|(key, by)| family.count(set.number, key.as_ref()).checked_add_signed(*by).is_none())
        {
            return Err(SetMiscount);
        }
        let before = family.rows(set.number);
        let mut flips = SetFlips::default();
        for (key, by) in changes {
            family.change_rows(set.number, key.is_none(), by);
            let Some(key) = key else { continue };
            match family.change(set.number, &key, by) {
                (0, 1..) => flips.entered.push(key),
                (1.., 0) => flips.left.push(key),
                _ => {}
            }
        }
        let after = family.rows(set.number);
        flips.null_flipped = (before.nulls == 0) != (after.nulls == 0);
        flips.emptiness_flipped = (before.count == 0) != (after.count == 0);
        flips.entered.sort_unstable();
        flips.left.sort_unstable();
        Ok(flips)
    }

    /// Removes a set. Its memory is freed when half of the family's sets were removed. A number
    /// must not be used again.
    pub fn remove(&mut self, set: SetId) {
        let Some(family) = self.families.get_mut(&set.family) else { return };
        let had_rows = family.rows.remove(&set.number).is_some();
        family.removed += usize::from(had_rows);
        if family.rows.is_empty() {
            self.families.remove(&set.family);
        } else if had_rows && family.removed >= family.rows.len() {
            family.sweep();
        }
    }

    /// Calls `visit` for each value of a set, with the number of its rows. `None` is NULL.
    pub fn each_value(&self, set: SetId, visit: &mut dyn FnMut(Option<&SetKey>, u64)) {
        let Some(family) = self.families.get(&set.family) else { return };
        for (key, holders) in &family.values {
            match holders.count(set.number) {
                0 => {}
                count => visit(Some(key), count),
            }
        }
        match family.rows(set.number).nulls {
            0 => {}
            nulls => visit(None, nulls),
        }
    }
}

impl SetLookup for SetCounts {
    fn each_set_with(&self, family: u64, key: &SetKey, visit: &mut dyn FnMut(u64)) {
        let Some(family) = self.families.get(&family) else { return };
        match family.values.get(key) {
            None => {}
            Some(Holders::One(set, _)) => visit(*set),
            Some(Holders::Many(all)) => all.iter().for_each(|(set, _)| visit(*set)),
        }
    }
}

impl SetContents for FilterSets<'_> {
    fn contains(&self, set: usize, key: &SetKey) -> bool {
        let SetId { family, number } = self.ids[set];
        self.counts.families.get(&family).is_some_and(|family| family.count(number, Some(key)) > 0)
    }

    fn is_empty(&self, set: usize) -> bool {
        self.rows(set).count == 0
    }

    fn has_null(&self, set: usize) -> bool {
        self.rows(set).nulls > 0
    }
}

impl FilterSets<'_> {
    fn rows(&self, set: usize) -> SetRows {
        let SetId { family, number } = self.ids[set];
        self.counts.families.get(&family).map_or(SetRows::default(), |family| family.rows(number))
    }
}

impl SetFamily {
    fn rows(&self, set: u64) -> SetRows {
        self.rows.get(&set).copied().unwrap_or_default()
    }

    /// Returns the number of rows of a set with a value; `None` is NULL.
    fn count(&self, set: u64, key: Option<&SetKey>) -> u64 {
        match key {
            None => self.rows(set).nulls,
            Some(key) => self.values.get(key).map_or(0, |holders| holders.count(set)),
        }
    }

    fn change_rows(&mut self, set: u64, is_null: bool, by: i64) {
        let rows = self.rows.entry(set).or_default();
        rows.count = rows.count.saturating_add_signed(by);
        if is_null {
            rows.nulls = rows.nulls.saturating_add_signed(by);
        }
    }

    /// Changes the number of rows with a value. Returns the numbers before and after.
    fn change(&mut self, set: u64, key: &SetKey, by: i64) -> (u64, u64) {
        let before = self.count(set, Some(key));
        let after = before.saturating_add_signed(by);
        match self.values.entry(key.clone()) {
            Entry::Occupied(mut holders) => {
                holders.get_mut().set(set, after);
                if holders.get().is_empty() {
                    holders.remove();
                }
            }
            Entry::Vacant(vacant) if after > 0 => {
                vacant.insert(Holders::One(set, after));
            }
            Entry::Vacant(_) => {}
        }
        (before, after)
    }

    /// Frees the values of removed sets.
    fn sweep(&mut self) {
        let SetFamily { values, rows, removed } = self;
        values.retain(|_, holders| {
            holders.retain(|set| rows.contains_key(&set));
            !holders.is_empty()
        });
        values.shrink_to_fit();
        *removed = 0;
    }
}

impl Holders {
    fn count(&self, set: u64) -> u64 {
        match self {
            Holders::One(one, count) => {
                if *one == set {
                    *count
                } else {
                    0
                }
            }
            Holders::Many(all) => all.binary_search_by_key(&set, |(set, _)| *set).map_or(0, |at| all[at].1),
        }
    }

    fn set(&mut self, set: u64, count: u64) {
        match self {
            Holders::One(one, known) if *one == set && count > 0 => *known = count,
            Holders::One(one, _) if *one == set => *self = Holders::Many(Vec::new()),
            Holders::One(one, known) => {
                let mut both = vec![(*one, *known), (set, count)];
                both.retain(|(_, count)| *count > 0);
                both.sort_unstable();
                *self = Holders::Many(both);
            }
            Holders::Many(all) => match all.binary_search_by_key(&set, |(set, _)| *set) {
                Ok(at) if count > 0 => all[at].1 = count,
                Ok(at) => drop(all.remove(at)),
                Err(at) if count > 0 => all.insert(at, (set, count)),
                Err(_) => {}
            },
        }
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        match self {
            Holders::One(one, _) if keep(*one) => {}
            Holders::One(..) => *self = Holders::Many(Vec::new()),
            Holders::Many(all) => all.retain(|(set, _)| keep(*set)),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Holders::Many(all) if all.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use forebay_values::{Scalar, SqlValue};
    use proptest::prelude::*;

    use super::*;
    use crate::IndexKey;

    fn key(value: i64) -> SetKey {
        SetKey::Value(IndexKey::of(&SqlValue::Int(value), Scalar::Int8).expect("integers have keys"))
    }

    fn id(number: u64) -> SetId {
        SetId { family: 1, number }
    }

    fn changes(all: &[(Option<i64>, i64)]) -> SetChanges {
        all.iter().map(|(value, by)| (value.map(key), *by)).collect()
    }

    fn apply(counts: &mut SetCounts, set: u64, all: &[(Option<i64>, i64)]) -> SetFlips {
        counts.apply(id(set), changes(all)).expect("it has the rows")
    }

    #[test]
    fn a_value_enters_with_its_first_row_and_leaves_with_its_last() {
        let mut counts = SetCounts::new();
        let flips = apply(&mut counts, 1, &[(Some(5), 2), (Some(6), 1)]);
        assert_eq!(
            (flips.entered, flips.left, flips.emptiness_flipped),
            (vec![key(5), key(6)], vec![], true)
        );
        assert!(apply(&mut counts, 1, &[(Some(5), -1), (Some(6), 3)]).is_empty());
        let flips = apply(&mut counts, 1, &[(Some(5), -1), (Some(7), 0)]);
        assert_eq!((flips.entered, flips.left, flips.emptiness_flipped), (vec![], vec![key(5)], false));
        assert_eq!(counts.apply(id(1), changes(&[(Some(9), 1), (Some(5), -1)])), Err(SetMiscount));
        assert!(!counts.of_filter(&[id(1)]).contains(0, &key(9)), "nothing has changed");
    }

    #[test]
    fn null_is_counted_and_makes_a_set_not_empty() {
        let mut counts = SetCounts::new();
        let flips = apply(&mut counts, 1, &[(None, 1)]);
        assert!(flips.null_flipped && flips.emptiness_flipped && flips.entered.is_empty());
        let ids = [id(1), id(2)];
        let sets = counts.of_filter(&ids);
        assert!(sets.has_null(0) && !sets.is_empty(0) && !sets.has_null(1) && sets.is_empty(1));
        assert_eq!(counts.apply(id(1), changes(&[(None, -2)])), Err(SetMiscount));
        assert!(apply(&mut counts, 1, &[(None, -1)]).null_flipped);
    }

    #[test]
    fn memory_of_removed_sets_is_freed() {
        let mut counts = SetCounts::new();
        for set in 0..100 {
            apply(&mut counts, set, &[(Some(set as i64), 1), (Some(-1), 1)]);
        }
        (0..99).for_each(|set| counts.remove(id(set)));
        assert!(counts.families[&1].values.len() <= 4, "{:?}", counts.families[&1].values.len());
        counts.remove(id(99));
        assert!(counts.families.is_empty());
        apply(&mut counts, 100, &[]);
        counts.remove(id(100));
        assert!(counts.families.is_empty(), "a set that never had a row");
    }

    /// A value in a set of its own takes its entry in one map.
    #[test]
    fn a_value_takes_at_most_a_hundred_bytes() {
        let entry = size_of::<(SetKey, Holders)>() + 1;
        // A map is between 7/16 and 7/8 full: 2/3 on average.
        assert!(entry * 3 / 2 <= 100, "{entry} bytes an entry");
        assert_eq!(size_of::<(u64, u64)>(), 16, "each further set");
    }

    proptest! {
        #[test]
        fn random_changes_leave_what_a_recount_finds(
            steps in proptest::collection::vec((0..4_u64, proptest::option::of(0..5_i64), -2..4_i64, any::<bool>()), 1..80),
        ) {
            let mut counts = SetCounts::new();
            let mut model: BTreeMap<(u64, Option<i64>), u64> = BTreeMap::new();
            let mut removed = BTreeSet::new();
            for (set, value, by, removes) in steps {
                if removed.contains(&set) {
                    continue;
                }
                if removes && by < 0 {
                    counts.remove(id(set));
                    model.retain(|(of, _), _| *of != set);
                    removed.insert(set);
                    continue;
                }
                let before = model.get(&(set, value)).copied().unwrap_or(0);
                let applied = counts.apply(id(set), changes(&[(value, by)]));
                let Some(after) = before.checked_add_signed(by) else {
                    prop_assert_eq!(applied, Err(SetMiscount));
                    continue;
                };
                model.insert((set, value), after);
                let flips = applied.unwrap();
                let flipped = (before == 0) != (after == 0);
                prop_assert_eq!(flips.entered.len() + flips.left.len(), usize::from(flipped && value.is_some()));
                prop_assert_eq!(flips.null_flipped, flipped && value.is_none());
            }
            for set in 0..4 {
                let mut found = BTreeMap::new();
                counts.each_value(id(set), &mut |value, count| {
                    found.insert(value.cloned(), count);
                });
                let rows = model.iter().filter(|((of, _), count)| *of == set && **count > 0);
                let expected: BTreeMap<_, _> =
                    rows.map(|((_, value), count)| (value.map(key), *count)).collect();
                prop_assert_eq!(&found, if removed.contains(&set) { &found } else { &expected });
                let ids = [id(set)];
                let sets = counts.of_filter(&ids);
                if !removed.contains(&set) {
                    prop_assert_eq!(sets.is_empty(0), expected.is_empty());
                    prop_assert_eq!(sets.has_null(0), expected.contains_key(&None));
                }
            }
            for value in 0..5 {
                let mut found = BTreeSet::new();
                counts.each_set_with(1, &key(value), &mut |set| {
                    found.insert(set);
                });
                found.retain(|set| !removed.contains(set));
                let expected: BTreeSet<_> = (0..4)
                    .filter(|set| model.get(&(*set, Some(value))).is_some_and(|count| *count > 0))
                    .collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
