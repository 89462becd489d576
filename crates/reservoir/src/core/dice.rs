//! Chance, the same again for the same seed.

use std::time::Duration;

/// Splitmix64: it spreads, and needn't be secret.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    #[cfg(test)]
    pub(crate) fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// Seeded by the system.
    pub(crate) fn from_system() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Dice(hasher.finish())
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly from nothing to all of `whole`.
    pub(crate) fn part_of(&mut self, whole: Duration) -> Duration {
        // 53 bits are what a float holds exactly.
        whole.mul_f64((self.roll() >> 11) as f64 / (1_u64 << 53) as f64)
    }
}
