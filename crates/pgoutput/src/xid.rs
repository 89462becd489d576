//! Transaction ids, which wrap around after 2^32.
//!
//! Invariant: a 32-bit id denotes the transaction nearest to a reference 64-bit id. This is correct
//! if both are within 2^31 of each other. PostgreSQL never has ids in use that are further apart.

/// Transaction id as messages carry it: the low 32 bits of the full id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Xid(pub u32);

impl Xid {
    /// First id that PostgreSQL assigns (`FirstNormalTransactionId`). Lower ids are special and
    /// older than all others.
    pub const FIRST_NORMAL: Xid = Xid(3);

    /// Returns whether this id is earlier than `other`, modulo 2^32: `Xid(u32::MAX)` precedes
    /// `Xid(3)`. This is not a total order; do not sort by it.
    pub const fn precedes(self, other: Xid) -> bool {
        if self.is_normal() && other.is_normal() {
            self.0.wrapping_sub(other.0).cast_signed() < 0
        } else {
            self.0 < other.0
        }
    }

    /// Returns the full 64-bit id nearest to `near`, such as the `xmax` of a recent snapshot.
    /// The result is between `near - 2^31` and `near + 2^31 - 1`.
    pub const fn widen(self, near: u64) -> u64 {
        if !self.is_normal() {
            return self.0 as u64; // special ids have no epoch
        }
        let distance = self.0.wrapping_sub(near as u32).cast_signed();
        match near.checked_add_signed(distance as i64) {
            Some(full) => full,
            None => self.0 as u64, // no epoch precedes the first
        }
    }

    const fn is_normal(self) -> bool {
        self.0 >= Self::FIRST_NORMAL.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPOCH: u64 = 1 << 32;

    #[test]
    fn the_earlier_id_precedes_across_wraparound() {
        assert!(Xid(7).precedes(Xid(8)) && !Xid(8).precedes(Xid(7)) && !Xid(8).precedes(Xid(8)));
        assert!(Xid(u32::MAX).precedes(Xid(3)) && !Xid(3).precedes(Xid(u32::MAX)));
        assert!(Xid(3).precedes(Xid(3 + (1 << 31) - 1)));
        assert!(!Xid(3).precedes(Xid(3 + (1 << 31) + 1)));
    }

    #[test]
    fn special_ids_precede_all_others() {
        for special in 0..3 {
            assert!(Xid(special).precedes(Xid(3)) && Xid(special).precedes(Xid(u32::MAX)));
            assert!(!Xid(u32::MAX).precedes(Xid(special)));
            assert_eq!(Xid(special).widen(5 * EPOCH + 7), u64::from(special));
        }
    }

    #[test]
    fn the_full_id_is_the_nearest_one() {
        assert_eq!(Xid(90).widen(5 * EPOCH + 100), 5 * EPOCH + 90);
        assert_eq!(Xid(110).widen(5 * EPOCH + 100), 5 * EPOCH + 110);
        assert_eq!(Xid(u32::MAX).widen(5 * EPOCH + 100), 5 * EPOCH - 1);
        assert_eq!(Xid(100).widen(5 * EPOCH - 1), 5 * EPOCH + 100);
    }

    #[test]
    fn nothing_lies_before_the_first_epoch_or_after_the_last() {
        assert_eq!(Xid(u32::MAX).widen(100), u64::from(u32::MAX));
        assert_eq!(Xid(100).widen(u64::MAX), 100);
    }

    /// Ids that PostgreSQL assigns.
    fn assigned() -> impl Strategy<Value = u64> {
        (3..u64::MAX).prop_filter("no transaction gets it", |full| *full as u32 >= 3)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_id_within_two_billion_is_found_again(full in assigned(), distance: i32) {
            if let Some(near) = full.checked_sub_signed(distance.into()) {
                prop_assert_eq!(Xid(full as u32).widen(near), full);
            }
        }

        #[test]
        fn the_order_is_that_of_the_full_ids(left in assigned(), distance in -(1_i64 << 31) + 1..1 << 31) {
            let right = left.checked_add_signed(distance).filter(|right| *right as u32 >= 3);
            if let Some(right) = right {
                prop_assert_eq!(Xid(left as u32).precedes(Xid(right as u32)), left < right);
            }
        }
    }
}
