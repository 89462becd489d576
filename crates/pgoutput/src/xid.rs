//! Transaction ids, of which there are 2^32, over and over.
//!
//! Invariant: an id of 32 bits means the transaction of that number which is nearest to some known one of 64 bits. That is
//! exact while both lie within 2^31, and Postgres stops before it lets two live ids lie further apart.

/// A transaction's id as messages carry it: the low 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Xid(pub u32);

impl Xid {
    /// The first id that a transaction may get; those below stand for "none", and for what is older than all others.
    pub const FIRST_NORMAL: Xid = Xid(3);

    /// Whether this is the earlier one, going around: `Xid(u32::MAX)` precedes `Xid(3)`. No order for sorting, as there is
    /// no earliest.
    pub const fn precedes(self, other: Xid) -> bool {
        if self.is_normal() && other.is_normal() {
            self.0.wrapping_sub(other.0).cast_signed() < 0
        } else {
            self.0 < other.0
        }
    }

    /// The full id, given one of about the same time, such as a snapshot's `xmax`: that of all ids with these low 32 bits
    /// which lies from 2^31 before `near` to 2^31 - 1 after it.
    pub const fn widen(self, near: u64) -> u64 {
        if !self.is_normal() {
            return self.0 as u64; // older than all, whatever the epoch
        }
        let distance = self.0.wrapping_sub(near as u32).cast_signed();
        match near.checked_add_signed(distance as i64) {
            Some(full) => full,
            None => self.0 as u64, // there is nothing before the first epoch
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
    fn the_earlier_one_precedes_across_the_end_of_the_numbers() {
        assert!(Xid(7).precedes(Xid(8)) && !Xid(8).precedes(Xid(7)) && !Xid(8).precedes(Xid(8)));
        assert!(Xid(u32::MAX).precedes(Xid(3)) && !Xid(3).precedes(Xid(u32::MAX)));
        assert!(Xid(3).precedes(Xid(3 + (1 << 31) - 1)));
        assert!(!Xid(3).precedes(Xid(3 + (1 << 31) + 1)));
    }

    #[test]
    fn ids_that_no_transaction_gets_precede_all_others() {
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

    /// An id that a transaction may get.
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
