//! Lookups in arrays: sets, containment and overlap.
//!
//! Bound: containment and overlap of `n` and `m` elements take `O((n + m) log n)` comparisons.
//! A lookup in a set of `n` elements takes `O(log n)`.

use std::cmp::Ordering;

use crate::array::Array;
use crate::sql_value::SqlValue;

/// Maximum number of lookups, or of elements, for which an array isn't sorted first.
const MAX_SCANS: usize = 8;

impl Array {
    /// Returns a list of the distinct elements in their order, NULL last. Lookups of the same
    /// comparison search it. `ignore_blanks`: as bpchar.
    pub fn into_set(self, ignore_blanks: bool) -> Self {
        let order = |left: &Option<SqlValue<'_>>, right: &Option<SqlValue<'_>>| match (left, right) {
            (Some(left), Some(right)) => compare(left, right, ignore_blanks),
            (left, right) => left.is_none().cmp(&right.is_none()),
        };
        let mut items = self.into_items();
        items.sort_by(order);
        items.dedup_by(|left, right| order(left, right).is_eq());
        Array { is_set: true, ..Array::list(items) }
    }

    /// Returns whether the array was made by [`Array::into_set`].
    pub fn is_set(&self) -> bool {
        self.is_set
    }

    /// Returns whether an element is NULL.
    pub fn has_null(&self) -> bool {
        if self.is_set { self.items.last() == Some(&None) } else { self.items.contains(&None) }
    }

    /// Returns whether an element equals the value. `ignore_blanks`: as bpchar.
    pub fn has(&self, wanted: &SqlValue<'_>, ignore_blanks: bool) -> bool {
        self.find(wanted, ignore_blanks).is_some()
    }

    /// Returns the position of an element that equals the value.
    pub(crate) fn find(&self, wanted: &SqlValue<'_>, ignore_blanks: bool) -> Option<usize> {
        if self.is_set {
            let order = |item: &Option<SqlValue<'_>>| match item {
                Some(item) => compare(item, wanted, ignore_blanks),
                None => Ordering::Greater,
            };
            return self.items.binary_search_by(order).ok();
        }
        let is_equal = |item: &SqlValue<'_>| compare(item, wanted, ignore_blanks).is_eq();
        self.items.iter().position(|item| item.as_ref().is_some_and(is_equal))
    }

    /// Returns a lookup that is fast for this number of calls.
    fn finder(&self, calls: usize, ignore_blanks: bool) -> impl Fn(&SqlValue<'_>) -> bool {
        let sort = !self.is_set && self.items.len().min(calls) > MAX_SCANS;
        let sorted = sort.then(|| {
            let mut items: Vec<_> = self.items.iter().flatten().collect();
            items.sort_by(|left, right| compare(left, right, ignore_blanks));
            items
        });
        move |wanted| match &sorted {
            Some(items) => items.binary_search_by(|item| compare(item, wanted, ignore_blanks)).is_ok(),
            None => self.has(wanted, ignore_blanks),
        }
    }

    /// Returns whether each element of `other` equals one of `self`: `@>`. NULL equals none.
    pub fn contains(&self, other: &Array, ignore_blanks: bool) -> bool {
        if other.has_null() || other.is_set && other.items.len() > self.items.len() {
            return false;
        }
        let has = self.finder(other.items.len(), ignore_blanks);
        other.items.iter().flatten().all(has)
    }

    /// Returns whether the arrays have an element in common: `&&`. NULL equals none.
    pub fn overlaps(&self, other: &Array, ignore_blanks: bool) -> bool {
        let (set, items) = if other.is_set { (other, self) } else { (self, other) };
        let has = set.finder(items.items.len(), ignore_blanks);
        items.items.iter().flatten().any(has)
    }
}

fn compare(left: &SqlValue<'_>, right: &SqlValue<'_>, ignore_blanks: bool) -> Ordering {
    #[cfg(test)]
    steps::count();
    left.compare(right, ignore_blanks)
}

/// Counter of comparisons. Unlike durations, they do not depend on the machine.
#[cfg(test)]
pub(crate) mod steps {
    thread_local! {
        static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    pub(super) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Returns the number of comparisons during the call.
    pub(crate) fn during(call: impl FnOnce()) -> usize {
        STEPS.set(0);
        call();
        STEPS.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: impl Iterator<Item = i64>) -> Array {
        Array::list(numbers.map(|number| Some(SqlValue::Int(number))).collect())
    }

    #[test]
    fn a_set_has_each_element_once_and_null_last() {
        let items = [Some(3), None, Some(1), Some(3), None].map(|item| item.map(SqlValue::Int));
        let set = Array::list(items.to_vec()).into_set(false);
        assert_eq!(set.items(), [Some(SqlValue::Int(1)), Some(SqlValue::Int(3)), None]);
        assert!(set.is_set() && set.has_null() && set.has(&SqlValue::Int(3), false));
        assert!(!set.has(&SqlValue::Int(2), false) && !set.has(&SqlValue::Int(4), false));
        let texts = ["a ", "a", "b"].map(|text| Some(SqlValue::text(text)));
        let set = Array::list(texts.to_vec()).into_set(true);
        assert_eq!(set.items().len(), 2);
        assert!(set.has(&SqlValue::text("b  "), true));
    }

    #[test]
    fn sets_and_lists_of_any_size_contain_and_overlap_alike() {
        let with_null = |mut array: Array| {
            array.items[0] = None;
            array
        };
        for (left, right) in [(0, 0), (3, 20), (20, 3), (20, 20), (40, 9), (9, 40)] {
            let left = numbers((0..left).map(|number| number * 2 % 30));
            for right in [numbers(0..right), numbers((0..right).map(|number| number * 4 % 28))] {
                let nulls = (!right.items.is_empty()).then(|| with_null(right.clone()));
                for right in nulls.into_iter().chain([right]) {
                    let has = |wanted: &Option<SqlValue<'_>>| wanted.is_some() && left.items.contains(wanted);
                    let (all, any) = (right.items.iter().all(has), right.items.iter().any(has));
                    let (set, other_set) = (left.clone().into_set(false), right.clone().into_set(false));
                    for (left, right) in
                        [(&left, &right), (&set, &right), (&left, &other_set), (&set, &other_set)]
                    {
                        assert_eq!(left.contains(right, false), all, "{left:?} {right:?}");
                        assert_eq!(left.overlaps(right, false), any, "{left:?} {right:?}");
                        assert_eq!(right.overlaps(left, false), any, "{left:?} {right:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn ten_thousand_elements_are_compared_with_ten_thousand_in_few_steps() {
        const COUNT: i64 = 10_000;
        let row = numbers((0..COUNT).map(|number| number * 7 % COUNT));
        let other = numbers((0..COUNT).rev().map(|number| number + COUNT));
        let (same, none) = (row.clone().into_set(false), other.clone().into_set(false));
        for (holds, steps) in [
            (true, steps::during(|| assert!(row.contains(&same, false)))),
            (true, steps::during(|| assert!(same.contains(&row, false)))),
            (true, steps::during(|| assert!(row.contains(&row, false)))),
            (false, steps::during(|| assert!(!row.overlaps(&none, false)))),
            (false, steps::during(|| assert!(!none.overlaps(&row, false)))),
            (false, steps::during(|| assert!(!row.overlaps(&other, false)))),
        ] {
            assert!(steps < 500_000, "{steps} steps, {holds}");
        }
        // What is sorted once isn't sorted for each row.
        let tags = numbers(0..3);
        for steps in [
            steps::during(|| assert!(!tags.overlaps(&none, false))),
            steps::during(|| assert!(!tags.contains(&none, false))),
            steps::during(|| assert!(same.contains(&tags, false))),
        ] {
            assert!(steps < 60, "{steps} steps");
        }
    }
}
