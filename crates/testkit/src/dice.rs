//! Chance that can be had again.

use std::hash::{DefaultHasher, Hash, Hasher};

/// What a random test begins with: `FOREBAY_SEED`, or always the same. It should print it.
///
/// # Panics
/// When `FOREBAY_SEED` is no number.
pub fn seed() -> u64 {
    std::env::var("FOREBAY_SEED").map_or(20_261_116, |seed| seed.parse().expect("FOREBAY_SEED is a number"))
}

/// SplitMix64: it spreads, and needn't be secret.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The same for the same seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// Others of the same seed, by name: what one task rolls doesn't depend on when the others do.
    pub fn of(seed: u64, name: &str, number: usize) -> Self {
        let mut hasher = DefaultHasher::new();
        (seed, name, number).hash(&mut hasher);
        Dice(hasher.finish())
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    /// From `least` to `most`, both included.
    pub fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
