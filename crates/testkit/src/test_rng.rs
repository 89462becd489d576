//! Reproducible random numbers for tests.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns the environment variable `FOREBAY_SEED`, or else a constant. Tests that use it should
/// print it, so that a failure can be repeated.
///
/// # Panics
/// Panics if `FOREBAY_SEED` is not a number.
pub fn seed() -> u64 {
    std::env::var("FOREBAY_SEED").map_or(20_261_116, |seed| seed.parse().expect("FOREBAY_SEED is a number"))
}

/// Random number generator (SplitMix64). Not for cryptography.
///
/// It is written here because its numbers may never change: they decide which histories a seed
/// gives, and seeds are named in the docs and in reports of failures. A library may change its
/// numbers with a new version.
#[derive(Debug, Clone)]
pub struct TestRng(u64);

impl TestRng {
    /// Creates a generator; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        TestRng(seed)
    }

    /// Creates an independent generator for a task, from the seed and the task's name and number.
    pub fn of(seed: u64, name: &str, number: usize) -> Self {
        let mut hasher = DefaultHasher::new();
        (seed, name, number).hash(&mut hasher);
        TestRng(hasher.finish())
    }

    /// Returns a random `u64`.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    /// Returns a random number from `least` to `most`, both included.
    pub fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// Returns true with a probability of `chance` percent.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// Returns a random one of the values.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
