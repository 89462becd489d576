//! How full the house is, in four words.
//!
//! Invariant: the state rises as soon as a threshold is reached, and falls only when the use is below that threshold by the
//! hysteresis; so a count that trembles around a threshold changes the state once.
//! Kept by: [`Health::step`] is the only function that changes a state, and it returns each change once.
//! Not here: who counts, and whether somebody is admitted. `exhausted` is what an operator reads; a stream is refused by
//! the count itself.

use serde::Serialize;

/// The four states of the seed, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Below the first threshold (70 %).
    Healthy,
    /// From the first threshold on: think of scaling.
    Degraded,
    /// From the second threshold (90 %) on: scale now.
    Critical,
    /// The limit is reached; new streams are refused, open ones go on.
    Exhausted,
}

impl State {
    /// All of them, in rising order.
    pub const ALL: [State; 4] = [State::Healthy, State::Degraded, State::Critical, State::Exhausted];

    /// The state's name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Degraded => "degraded",
            State::Critical => "critical",
            State::Exhausted => "exhausted",
        }
    }

    fn lower(self) -> State {
        match self {
            State::Healthy | State::Degraded => State::Healthy,
            State::Critical => State::Degraded,
            State::Exhausted => State::Critical,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the states begin, in percent of the limit. Always `degraded <= critical <= 100`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thresholds {
    degraded: u8,
    critical: u8,
    hysteresis: u8,
}

impl Thresholds {
    /// Percentages above 100 are taken for 100, and a `critical` below `degraded` for `degraded`.
    pub(crate) fn new(degraded: u8, critical: u8, hysteresis: u8) -> Self {
        let degraded = degraded.min(100);
        Thresholds { degraded, critical: critical.clamp(degraded, 100), hysteresis: hysteresis.min(100) }
    }

    /// The count at which `state` begins. Never 0 above `Healthy`, unless the limit is: an empty house is healthy.
    pub(crate) fn begins(&self, state: State, limit: u32) -> u32 {
        match state {
            State::Healthy => 0,
            State::Degraded => share(limit, self.degraded).max(1).min(limit),
            State::Critical => share(limit, self.critical).max(1).min(limit),
            State::Exhausted => limit,
        }
    }

    /// The count below which `state` is left again.
    fn ends(&self, state: State, limit: u32) -> u32 {
        let percent = match state {
            State::Healthy => return 0,
            State::Degraded => self.degraded,
            State::Critical => self.critical,
            State::Exhausted => 100,
        };
        let left = percent.saturating_sub(self.hysteresis);
        let rounded_up = (u64::from(limit) * u64::from(left)).div_ceil(100);
        u32::try_from(rounded_up).unwrap_or(u32::MAX).min(self.begins(state, limit))
    }

    fn reached(&self, used: u32, limit: u32) -> State {
        let reached = |state: &State| used >= self.begins(*state, limit);
        State::ALL.into_iter().rev().find(reached).unwrap_or(State::Healthy)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds::new(70, 90, 5)
    }
}

/// So many percent of a limit, rounded down, as the seed's `int(max * 0.7)`.
pub(crate) fn share(limit: u32, percent: u8) -> u32 {
    let part = u64::from(limit) * u64::from(percent.min(100)) / 100;
    u32::try_from(part).expect("a part of a u32 is one")
}

/// The state now, and the counts between which nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Health {
    state: State,
    thresholds: Thresholds,
}

/// One change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) from: State,
    pub(crate) to: State,
}

impl Health {
    pub(crate) fn new(thresholds: Thresholds) -> Self {
        Health { state: State::Healthy, thresholds }
    }

    /// Takes the count in; gives the change that it makes, if it makes one.
    pub(crate) fn step(&mut self, used: u32, limit: u32) -> Option<Change> {
        let from = self.state;
        let mut to = from.max(self.thresholds.reached(used, limit));
        while to > State::Healthy && used < self.thresholds.ends(to, limit) {
            to = to.lower();
        }
        self.state = to;
        (from != to).then_some(Change { from, to })
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// The counts for which [`step`](Self::step) changes nothing: from the first up to, not including, the second.
    pub(crate) fn calm(&self, limit: u32) -> (u32, u32) {
        let above = match self.state {
            State::Healthy => State::Degraded,
            State::Degraded => State::Critical,
            State::Critical => State::Exhausted,
            State::Exhausted => return (self.thresholds.ends(State::Exhausted, limit), u32::MAX),
        };
        (self.thresholds.ends(self.state, limit), self.thresholds.begins(above, limit))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn health() -> Health {
        Health::new(Thresholds::default())
    }

    fn state_after(health: &mut Health, used: u32, limit: u32) -> State {
        health.step(used, limit);
        health.state()
    }

    #[test]
    fn the_seeds_thresholds_are_the_seeds_numbers() {
        let thresholds = Thresholds::default();
        assert_eq!(thresholds.begins(State::Degraded, 10_000), 7_000);
        assert_eq!(thresholds.begins(State::Critical, 10_000), 9_000);
        assert_eq!(thresholds.begins(State::Exhausted, 10_000), 10_000);
    }

    #[test]
    fn the_way_up_changes_at_each_threshold_once() {
        let mut health = health();
        let changes: Vec<_> =
            (0..=10_000).filter_map(|used| Some((used, health.step(used, 10_000)?.to))).collect();
        let expected = [(7_000, State::Degraded), (9_000, State::Critical), (10_000, State::Exhausted)];
        assert_eq!(changes, expected);
    }

    #[test]
    fn the_way_down_changes_five_points_lower() {
        let mut health = health();
        health.step(10_000, 10_000);
        let downward = (0..=10_000).rev();
        let changes: Vec<_> =
            downward.filter_map(|used| Some((used, health.step(used, 10_000)?.to))).collect();
        let expected = [(9_499, State::Critical), (8_499, State::Degraded), (6_499, State::Healthy)];
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_count_that_trembles_around_a_threshold_changes_the_state_once() {
        let mut health = health();
        let changes = (0..1000).filter(|turn| health.step(6_999 + turn % 2, 10_000).is_some()).count();
        assert_eq!((changes, health.state()), (1, State::Degraded));
    }

    #[test]
    fn a_leap_is_one_change() {
        let mut health = health();
        let leap = Change { from: State::Healthy, to: State::Exhausted };
        assert_eq!(health.step(10, 10), Some(leap));
        assert_eq!(health.step(0, 10), Some(Change { from: State::Exhausted, to: State::Healthy }));
    }

    #[test]
    fn an_empty_house_is_healthy_and_a_full_one_exhausted_however_small_the_limit() {
        for limit in 1..100 {
            let mut health = health();
            assert_eq!(state_after(&mut health, 0, limit), State::Healthy, "limit {limit}");
            assert_eq!(state_after(&mut health, limit, limit), State::Exhausted, "limit {limit}");
            assert_eq!(state_after(&mut health, 0, limit), State::Healthy, "limit {limit}");
        }
        assert_eq!(state_after(&mut health(), 0, 0), State::Exhausted);
    }

    #[test]
    fn lowering_the_limit_below_the_use_exhausts_and_raising_it_heals() {
        let mut health = health();
        assert_eq!(state_after(&mut health, 50, 100), State::Healthy);
        assert_eq!(state_after(&mut health, 50, 40), State::Exhausted);
        assert_eq!(state_after(&mut health, 50, 1_000), State::Healthy);
    }

    #[test]
    fn odd_thresholds_are_put_in_order() {
        assert_eq!(Thresholds::new(95, 80, 5), Thresholds::new(95, 95, 5));
        assert_eq!(Thresholds::new(200, 250, 200), Thresholds::new(100, 100, 100));
    }

    proptest! {
        #[test]
        fn nothing_changes_between_the_calm_counts_and_nothing_is_left_to_change_after_a_step(
            counts in prop::collection::vec((0_u32..150, 0_u32..120), 1..60),
            (degraded, critical, hysteresis) in (0_u8..120, 0_u8..120, 0_u8..120),
        ) {
            let mut health = Health::new(Thresholds::new(degraded, critical, hysteresis));
            for (used, limit) in counts {
                let (low, high) = health.calm(limit);
                let changed = health.step(used, limit).is_some();
                prop_assert_eq!(changed, used < low || used >= high, "{} of {}", used, limit);
                prop_assert_eq!(health.step(used, limit), None);
                if used >= limit {
                    prop_assert_eq!(health.state(), State::Exhausted);
                }
            }
        }
    }
}
