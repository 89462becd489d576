//! Intervals of keys: ranges, and the texts that begin alike.

use std::cmp::Ordering;

use crate::{Bound, Key};

/// From one end to the other; without an end, it goes on for ever. Nothing is within if they have crossed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) lower: Option<Bound>,
    pub(super) upper: Option<Bound>,
}

impl Interval {
    /// The texts that begin with this one, which are those from it to the next that doesn't.
    pub(super) fn of_prefix(prefix: &str) -> Self {
        let bound = |text: &str, inclusive| Bound { key: Key::of_text(text), inclusive };
        let next = next(prefix).map(|next| bound(&next, false));
        Interval { lower: Some(bound(prefix, true)), upper: next }
    }

    /// Whether the key isn't below the lower end.
    pub(super) fn begins_by(&self, key: &Key) -> bool {
        self.lower.as_ref().is_none_or(|bound| match bound.key.cmp(key) {
            Ordering::Less => true,
            Ordering::Equal => bound.inclusive,
            Ordering::Greater => false,
        })
    }

    /// Whether the key isn't above the upper end.
    pub(super) fn reaches(&self, key: &Key) -> bool {
        self.upper.as_ref().is_none_or(|bound| match bound.key.cmp(key) {
            Ordering::Less => false,
            Ordering::Equal => bound.inclusive,
            Ordering::Greater => true,
        })
    }

    /// Which begins first, or else ends first.
    pub(super) fn order(&self, other: &Interval) -> Ordering {
        let lower = match (&self.lower, &other.lower) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(ours), Some(theirs)) => {
                ours.key.cmp(&theirs.key).then(theirs.inclusive.cmp(&ours.inclusive))
            }
        };
        lower.then_with(|| self.order_of_ends(other))
    }

    /// Which ends first.
    pub(super) fn order_of_ends(&self, other: &Interval) -> Ordering {
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

/// The least text that is greater than all that begin with this one. UTF-8 is ordered as its characters are.
fn next(prefix: &str) -> Option<String> {
    let kept = prefix.trim_end_matches(char::MAX);
    let last = kept.chars().next_back()?;
    // Ranges of characters step over the surrogates.
    let following = (last..=char::MAX).nth(1)?;
    Some(format!("{}{following}", &kept[..kept.len() - last.len_utf8()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_the_interval_of_what_begins_with_it() {
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
            let interval = Interval::of_prefix(prefix);
            for text in texts {
                let key = Key::of_text(text);
                let within = interval.begins_by(&key) && interval.reaches(&key);
                assert_eq!(within, text.starts_with(prefix), "{text:?} LIKE {prefix:?} || '%'");
            }
        }
    }

    #[test]
    fn ends_that_are_within_begin_first_and_end_last() {
        let bound = |inclusive| Some(Bound { key: Key::of_text("m"), inclusive });
        let from = |lower| Interval { lower, upper: None };
        let to = |upper| Interval { lower: None, upper };
        let begun = [from(None), from(bound(true)), from(bound(false))];
        let ended = [to(bound(false)), to(bound(true)), to(None)];
        for (place, other) in [(0, 1), (1, 2), (0, 2)] {
            assert_eq!(begun[place].order(&begun[other]), Ordering::Less);
            assert_eq!(begun[other].order(&begun[place]), Ordering::Greater);
            assert_eq!(ended[place].order_of_ends(&ended[other]), Ordering::Less);
            assert_eq!(ended[place].order(&ended[other]), Ordering::Less);
        }
        assert_eq!(begun[1].order(&begun[1]), Ordering::Equal);
    }
}
