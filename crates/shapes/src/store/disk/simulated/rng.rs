//! Random numbers of a simulation. The same seed gives the same numbers.

/// Random number generator of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedRng(forebay_testkit::TestRng);

/// Probability that an unsynced change survives, in eighths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SurvivalOdds(u64);

impl SimulatedRng {
    pub(crate) fn new(seed: u64) -> SimulatedRng {
        SimulatedRng(forebay_testkit::TestRng::new(seed))
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        self.0.between(low, high)
    }

    /// Returns `true` in half of the calls.
    pub(crate) fn coin(&mut self) -> bool {
        self.between(0, 1) == 1
    }

    /// Draws one probability for many changes. With a fixed one, it would almost never happen that
    /// all changes survive, or none, or all but one.
    pub(crate) fn odds(&mut self) -> SurvivalOdds {
        SurvivalOdds([0, 1, 4, 7, 8][self.between(0, 4)])
    }

    /// Returns whether an unsynced change survives.
    pub(crate) fn survives(&mut self, odds: SurvivalOdds) -> bool {
        self.0.roll() % 8 < odds.0
    }
}
