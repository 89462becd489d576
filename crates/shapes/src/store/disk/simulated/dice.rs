//! Chance, the same for the same seed.

/// Splitmix64: it spreads, and needn't be secret.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

/// How likely it is that something unsynced survives, in eighths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Odds(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.roll() % (high - low + 1) as u64) as usize
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.between(0, 1) == 1
    }

    /// Drawn once for many things, or it would never happen that all of them survive, or none, or all but one.
    pub(crate) fn odds(&mut self) -> Odds {
        Odds([0, 1, 4, 7, 8][self.between(0, 4)])
    }

    pub(crate) fn survives(&mut self, odds: Odds) -> bool {
        self.roll() % 8 < odds.0
    }
}
