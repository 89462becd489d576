//! Snapshots: the transactions whose changes are visible to a query.
//!
//! Invariant: [`Snapshot::sees`] equals PostgreSQL's `pg_visible_in_snapshot` for any top-level
//! transaction whose full id is within 2^31 of `xmax`.
//! Out of scope: subtransactions, which the text form does not list, and whether a finished
//! transaction committed.

use std::str::FromStr;

use crate::xid::Xid;

/// Result of `pg_current_snapshot()`: which transactions had finished when it was taken.
///
/// To join a table copy and the stream of its changes, take the snapshot in the copying
/// transaction. Then skip each streamed transaction that it [`sees`](Self::sees). Comparing LSNs is
/// wrong: a transaction becomes visible some time after its commit record is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// All transactions below this id had finished.
    pub xmin: u64,
    /// No transaction at or above this id had finished.
    pub xmax: u64,
    /// Ids from `xmin` to below `xmax` that were in progress.
    pub xip: Vec<u64>,
}

impl Snapshot {
    /// Returns whether this transaction had finished when the snapshot was taken, so that its
    /// commit was visible.
    ///
    /// Takes the id of a top-level transaction, as in `Begin`, not of a subtransaction.
    pub fn sees(&self, xid: u32) -> bool {
        let full = Xid(xid).widen(self.xmax);
        full < self.xmin || full < self.xmax && !self.xip.contains(&full)
    }
}

impl FromStr for Snapshot {
    type Err = ParseSnapshotError;

    fn from_str(text: &str) -> Result<Self, ParseSnapshotError> {
        let mut parts = text.split(':');
        let (Some(xmin), Some(xmax), Some(list), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(ParseSnapshotError::Syntax);
        };
        let (xmin, xmax) = (number(xmin)?, number(xmax)?);
        let xip: Vec<u64> = match list {
            "" => Vec::new(),
            list => list.split(',').map(number).collect::<Result<_, _>>()?,
        };
        let ascending = xip.is_sorted_by(|earlier, later| earlier < later);
        let within = xip.iter().all(|xid| (xmin..xmax).contains(xid));
        if xmin == 0 || xmin > xmax || !ascending || !within {
            return Err(ParseSnapshotError::Inconsistent);
        }
        Ok(Snapshot { xmin, xmax, xip })
    }
}

/// Error for a text that is not a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSnapshotError {
    /// The text is not of the form `xmin:xmax:xid,xid,…`.
    #[error("not a snapshot: two numbers and a list of numbers expected, as in 10:20:10,14,15")]
    Syntax,
    /// The numbers contradict each other.
    #[error("not a snapshot: xmin must not be above xmax, and the list must ascend from xmin to below xmax")]
    Inconsistent,
}

fn number(digits: &str) -> Result<u64, ParseSnapshotError> {
    // `parse` accepts a sign, PostgreSQL does not.
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(ParseSnapshotError::Syntax);
    }
    digits.parse().map_err(|_| ParseSnapshotError::Syntax)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPOCH: u64 = 1 << 32;

    #[test]
    fn the_text_from_postgres_is_parsed() {
        assert_eq!("10:20:10,14,15".parse(), Ok(Snapshot { xmin: 10, xmax: 20, xip: vec![10, 14, 15] }));
        assert_eq!("795:795:".parse(), Ok(Snapshot { xmin: 795, xmax: 795, xip: vec![] }));
        let high = "18446744073709551614:18446744073709551615:18446744073709551614";
        assert_eq!(high.parse::<Snapshot>().unwrap().xip, [u64::MAX - 1]);
    }

    #[test]
    fn a_text_of_another_form_is_refused() {
        for text in [
            "",
            "10",
            "10:20",
            "10:20:10:",
            "10:20:,",
            "10:20:10,",
            "10:20:,10",
            "+10:20:",
            "10:-20:",
            "a:20:",
            ":20:",
            "10::",
            " 10:20:",
            "10:20:10, 14",
            "10:18446744073709551616:",
        ] {
            assert_eq!(text.parse::<Snapshot>(), Err(ParseSnapshotError::Syntax), "{text:?}");
        }
    }

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        for text in ["20:10:", "0:10:", "10:20:9", "10:20:20", "10:20:15,14", "10:20:14,14"] {
            assert_eq!(text.parse::<Snapshot>(), Err(ParseSnapshotError::Inconsistent), "{text:?}");
        }
    }

    #[test]
    fn a_snapshot_sees_exactly_the_finished_transactions() {
        let snapshot: Snapshot = "10:20:10,14,15".parse().unwrap();
        let seen: Vec<u32> = (3..25).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 18, 19]);
    }

    #[test]
    fn a_snapshot_sees_across_wraparound() {
        let (xmin, xmax) = (3 * EPOCH - 10, 3 * EPOCH + 10);
        let snapshot = Snapshot { xmin, xmax, xip: vec![3 * EPOCH - 10, 3 * EPOCH + 5] };
        assert!(snapshot.sees(u32::MAX - 10) && snapshot.sees(u32::MAX), "in the epoch before");
        assert!(!snapshot.sees(u32::MAX - 9), "in progress");
        assert!(snapshot.sees(4) && !snapshot.sees(5) && snapshot.sees(9) && !snapshot.sees(10));
        assert!(snapshot.sees(10 + (1 << 31)), "2^31 before xmax is the past");
        assert!(!snapshot.sees(9 + (1 << 31)), "2^31 - 1 after xmax is the future");
    }

    #[test]
    fn special_ids_are_always_seen() {
        let snapshot = Snapshot { xmin: 7 * EPOCH, xmax: 7 * EPOCH + 9, xip: vec![] };
        assert!((0..3).all(|xid| snapshot.sees(xid)));
    }

    /// Any snapshot, with in-progress transactions anywhere in it.
    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        let near_wrap =
            (1..5_u64, -60..60_i64).prop_map(|(epoch, near)| (epoch * EPOCH).wrapping_add_signed(near));
        let xmin = prop_oneof![3..100_u64, 3..u64::MAX / 2, near_wrap];
        (xmin, prop_oneof![0..60_u64, 0..1_u64 << 31]).prop_flat_map(|(xmin, length)| {
            let xip = prop::collection::btree_set(xmin..xmin + length.max(1), 0..20);
            xip.prop_map(move |xip| Snapshot {
                xmin,
                xmax: xmin + length,
                xip: xip.into_iter().filter(|xid| *xid < xmin + length).collect(),
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn parsing_the_text_of_any_snapshot_returns_the_snapshot(snapshot in any_snapshot()) {
            let xip: Vec<String> = snapshot.xip.iter().map(u64::to_string).collect();
            let text = format!("{}:{}:{}", snapshot.xmin, snapshot.xmax, xip.join(","));
            prop_assert_eq!(text.parse(), Ok(snapshot));
        }

        #[test]
        fn any_transaction_within_two_billion_of_xmax_is_judged_by_its_full_id(
            snapshot in any_snapshot(),
            distance in prop_oneof![-100..100_i32, any::<i32>()],
        ) {
            let Some(full) = snapshot.xmax.checked_add_signed(distance.into()) else { return Ok(()) };
            prop_assume!(full as u32 >= 3); // special ids are never assigned
            let ended = full < snapshot.xmax && !snapshot.xip.contains(&full);
            prop_assert_eq!(snapshot.sees(full as u32), ended);
        }

        #[test]
        fn any_text_is_a_snapshot_or_an_error(text in "[0-9:,]{0,40}|\\PC{0,20}") {
            if let Ok(snapshot) = text.parse::<Snapshot>() {
                prop_assert!(snapshot.xmin <= snapshot.xmax);
            }
        }
    }
}
