//! Pseudo-random generator for lifetimes and back-off delays; the same seed repeats the sequence.

use std::time::Duration;

/// SplitMix64 generator. Its output is uniform and predictable: unfit for secrets.
#[derive(Debug)]
pub(crate) struct JitterRng(u64);

impl JitterRng {
    #[cfg(test)]
    pub(crate) fn new(seed: u64) -> Self {
        JitterRng(seed)
    }

    /// Returns a generator seeded by the standard library's random hash keys.
    pub(crate) fn from_system() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        JitterRng(hasher.finish())
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a uniformly distributed duration from zero to `max`.
    pub(crate) fn up_to(&mut self, max: Duration) -> Duration {
        // An f64 represents 53 bits exactly.
        max.mul_f64((self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64)
    }
}
