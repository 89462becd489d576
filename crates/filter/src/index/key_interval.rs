//! Interval of keys: a range, or all texts with one prefix.

use std::cmp::Ordering;

use crate::{Bound, IndexKey};

/// The keys between two bounds. `None` is unbounded. Empty if `lower` is above `upper`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyInterval {
    pub(super) lower: Option<Bound>,
    pub(super) upper: Option<Bound>,
}

impl KeyInterval {
    /// Returns the interval of all texts that begin with `prefix`.
    pub(super) fn of_prefix(prefix: &str) -> Self {
        let bound = |text: &str, inclusive| Bound { key: IndexKey::of_text(text), inclusive };
        let end = next_text(prefix).map(|end| bound(&end, false));
        KeyInterval { lower: Some(bound(prefix, true)), upper: end }
    }

    /// Returns whether the key is not below the lower bound.
    pub(super) fn lower_admits(&self, key: &IndexKey) -> bool {
        self.lower.as_ref().is_none_or(|bound| match bound.key.cmp(key) {
            Ordering::Less => true,
            Ordering::Equal => bound.inclusive,
            Ordering::Greater => false,
        })
    }

    /// Returns whether the key is not above the upper bound.
    pub(super) fn upper_admits(&self, key: &IndexKey) -> bool {
        self.upper.as_ref().is_none_or(|bound| match bound.key.cmp(key) {
            Ordering::Less => false,
            Ordering::Equal => bound.inclusive,
            Ordering::Greater => true,
        })
    }

    /// Orders intervals by their lower bounds, then by their upper bounds.
    pub(super) fn cmp_by_bounds(&self, other: &KeyInterval) -> Ordering {
        let lower = match (&self.lower, &other.lower) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(ours), Some(theirs)) => {
                ours.key.cmp(&theirs.key).then(theirs.inclusive.cmp(&ours.inclusive))
            }
        };
        lower.then_with(|| self.cmp_by_upper(other))
    }

    /// Orders intervals by their upper bounds.
    pub(super) fn cmp_by_upper(&self, other: &KeyInterval) -> Ordering {
        match (&self.upper, &other.upper) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(ours), Some(theirs)) => {
                ours.key.cmp(&theirs.key).then(ours.inclusive.cmp(&theirs.inclusive))
            }
        }
    }
}

/// Returns the smallest text that is greater than all texts with this prefix. UTF-8 bytes have the
/// order of their characters.
fn next_text(prefix: &str) -> Option<String> {
    let kept = prefix.trim_end_matches(char::MAX);
    let last = kept.chars().next_back()?;
    // A range of `char` skips the surrogates.
    let following = (last..=char::MAX).nth(1)?;
    Some(format!("{}{following}", &kept[..kept.len() - last.len_utf8()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_prefix_has_exactly_the_texts_with_it() {
        let texts = [
            "",
            "a",
            "a\0",
            "aa",
            "ab",
            "abz",
            "ab\u{10ffff}z",
            "ac",
            "é",
            "éa",
            "ê",
            "\u{d7ff}",
            "\u{d7ff}x",
            "\u{e000}",
            "\u{10ffff}",
            "\u{10ffff}\u{10ffff}",
            "a\u{10ffff}",
            "a\u{10ffff}b",
            "b",
            "日",
            "日本",
        ];
        for prefix in texts.iter().filter(|prefix| !prefix.is_empty()) {
            let interval = KeyInterval::of_prefix(prefix);
            for text in texts {
                let key = IndexKey::of_text(text);
                let within = interval.lower_admits(&key) && interval.upper_admits(&key);
                assert_eq!(within, text.starts_with(prefix), "{text:?} LIKE {prefix:?} || '%'");
            }
        }
    }

    #[test]
    fn inclusive_bounds_start_first_and_end_last() {
        let bound = |inclusive| Some(Bound { key: IndexKey::of_text("m"), inclusive });
        let from = |lower| KeyInterval { lower, upper: None };
        let to = |upper| KeyInterval { lower: None, upper };
        let by_lower = [from(None), from(bound(true)), from(bound(false))];
        let by_upper = [to(bound(false)), to(bound(true)), to(None)];
        for (position, other) in [(0, 1), (1, 2), (0, 2)] {
            assert_eq!(by_lower[position].cmp_by_bounds(&by_lower[other]), Ordering::Less);
            assert_eq!(by_lower[other].cmp_by_bounds(&by_lower[position]), Ordering::Greater);
            assert_eq!(by_upper[position].cmp_by_upper(&by_upper[other]), Ordering::Less);
            assert_eq!(by_upper[position].cmp_by_bounds(&by_upper[other]), Ordering::Less);
        }
        assert_eq!(by_lower[1].cmp_by_bounds(&by_lower[1]), Ordering::Equal);
    }
}
