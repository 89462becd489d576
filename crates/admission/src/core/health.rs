//! Health state of an admission, from its usage.
//!
//! Invariant: the state rises when a threshold is reached, and falls only when the usage is below
//! the threshold by the hysteresis. A usage that oscillates around a threshold changes the state
//! once.
//! Enforced by: only [`HealthTracker::step`] changes the state. It returns each change once.
//! Out of scope: counting and admission. A stream is refused by the count, not by the state
//! `exhausted`.

use serde::Serialize;

/// Health states, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Below the first threshold (70 %).
    Healthy,
    /// At or above the first threshold: plan to scale.
    Degraded,
    /// At or above the second threshold (90 %): scale now.
    Critical,
    /// At the limit: new streams are refused, open ones stay.
    Exhausted,
}

impl State {
    /// All states, in rising order.
    pub const ALL: [State; 4] = [State::Healthy, State::Degraded, State::Critical, State::Exhausted];

    /// Returns the name in logs, metrics and JSON.
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

/// Thresholds in percent of the limit. Always `degraded <= critical <= 100`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thresholds {
    degraded: u8,
    critical: u8,
    hysteresis: u8,
}

impl Thresholds {
    /// Clamps percentages to 100, and `critical` to at least `degraded`.
    pub(crate) fn new(degraded: u8, critical: u8, hysteresis: u8) -> Self {
        let degraded = degraded.min(100);
        Thresholds { degraded, critical: critical.clamp(degraded, 100), hysteresis: hysteresis.min(100) }
    }

    /// Returns the usage at which `state` begins. At least 1 above `Healthy` unless the limit is 0,
    /// so that an empty admission is healthy.
    pub(crate) fn threshold(&self, state: State, limit: u32) -> u32 {
        match state {
            State::Healthy => 0,
            State::Degraded => percent_of(limit, self.degraded).max(1).min(limit),
            State::Critical => percent_of(limit, self.critical).max(1).min(limit),
            State::Exhausted => limit,
        }
    }

    /// Returns the usage below which `state` is left.
    fn exit_threshold(&self, state: State, limit: u32) -> u32 {
        let percent = match state {
            State::Healthy => return 0,
            State::Degraded => self.degraded,
            State::Critical => self.critical,
            State::Exhausted => 100,
        };
        let left = percent.saturating_sub(self.hysteresis);
        let rounded_up = (u64::from(limit) * u64::from(left)).div_ceil(100);
        u32::try_from(rounded_up).unwrap_or(u32::MAX).min(self.threshold(state, limit))
    }

    fn state_at(&self, used: u32, limit: u32) -> State {
        let reached = |state: &State| used >= self.threshold(*state, limit);
        State::ALL.into_iter().rev().find(reached).unwrap_or(State::Healthy)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds::new(70, 90, 5)
    }
}

/// Returns `percent` of a limit, rounded down.
pub(crate) fn percent_of(limit: u32, percent: u8) -> u32 {
    let part = u64::from(limit) * u64::from(percent.min(100)) / 100;
    u32::try_from(part).expect("at most 100 % of a u32")
}

/// Current state and its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HealthTracker {
    state: State,
    thresholds: Thresholds,
}

/// One state change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HealthChange {
    pub(crate) from: State,
    pub(crate) to: State,
}

impl HealthTracker {
    pub(crate) fn new(thresholds: Thresholds) -> Self {
        HealthTracker { state: State::Healthy, thresholds }
    }

    /// Updates the state for this usage. Returns the change, if any.
    pub(crate) fn step(&mut self, used: u32, limit: u32) -> Option<HealthChange> {
        let from = self.state;
        let mut to = from.max(self.thresholds.state_at(used, limit));
        while to > State::Healthy && used < self.thresholds.exit_threshold(to, limit) {
            to = to.lower();
        }
        self.state = to;
        (from != to).then_some(HealthChange { from, to })
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// Returns the usage range for which [`step`](Self::step) changes nothing: from the first value
    /// to below the second.
    pub(crate) fn stable_range(&self, limit: u32) -> (u32, u32) {
        let above = match self.state {
            State::Healthy => State::Degraded,
            State::Degraded => State::Critical,
            State::Critical => State::Exhausted,
            State::Exhausted => return (self.thresholds.exit_threshold(State::Exhausted, limit), u32::MAX),
        };
        (self.thresholds.exit_threshold(self.state, limit), self.thresholds.threshold(above, limit))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn health() -> HealthTracker {
        HealthTracker::new(Thresholds::default())
    }

    fn state_after(health: &mut HealthTracker, used: u32, limit: u32) -> State {
        health.step(used, limit);
        health.state()
    }

    #[test]
    fn the_default_thresholds_are_70_90_and_100_percent() {
        let thresholds = Thresholds::default();
        assert_eq!(thresholds.threshold(State::Degraded, 10_000), 7_000);
        assert_eq!(thresholds.threshold(State::Critical, 10_000), 9_000);
        assert_eq!(thresholds.threshold(State::Exhausted, 10_000), 10_000);
    }

    #[test]
    fn rising_usage_changes_the_state_once_per_threshold() {
        let mut health = health();
        let changes: Vec<_> =
            (0..=10_000).filter_map(|used| Some((used, health.step(used, 10_000)?.to))).collect();
        let expected = [(7_000, State::Degraded), (9_000, State::Critical), (10_000, State::Exhausted)];
        assert_eq!(changes, expected);
    }

    #[test]
    fn falling_usage_changes_the_state_five_points_below_each_threshold() {
        let mut health = health();
        health.step(10_000, 10_000);
        let downward = (0..=10_000).rev();
        let changes: Vec<_> =
            downward.filter_map(|used| Some((used, health.step(used, 10_000)?.to))).collect();
        let expected = [(9_499, State::Critical), (8_499, State::Degraded), (6_499, State::Healthy)];
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_usage_that_oscillates_around_a_threshold_changes_the_state_once() {
        let mut health = health();
        let changes = (0..1000).filter(|turn| health.step(6_999 + turn % 2, 10_000).is_some()).count();
        assert_eq!((changes, health.state()), (1, State::Degraded));
    }

    #[test]
    fn a_jump_over_several_states_is_one_change() {
        let mut health = health();
        let leap = HealthChange { from: State::Healthy, to: State::Exhausted };
        assert_eq!(health.step(10, 10), Some(leap));
        assert_eq!(health.step(0, 10), Some(HealthChange { from: State::Exhausted, to: State::Healthy }));
    }

    #[test]
    fn zero_usage_is_healthy_and_full_usage_exhausted_for_any_limit() {
        for limit in 1..100 {
            let mut health = health();
            assert_eq!(state_after(&mut health, 0, limit), State::Healthy, "limit {limit}");
            assert_eq!(state_after(&mut health, limit, limit), State::Exhausted, "limit {limit}");
            assert_eq!(state_after(&mut health, 0, limit), State::Healthy, "limit {limit}");
        }
        assert_eq!(state_after(&mut health(), 0, 0), State::Exhausted);
    }

    #[test]
    fn lowering_the_limit_below_the_usage_exhausts_and_raising_it_recovers() {
        let mut health = health();
        assert_eq!(state_after(&mut health, 50, 100), State::Healthy);
        assert_eq!(state_after(&mut health, 50, 40), State::Exhausted);
        assert_eq!(state_after(&mut health, 50, 1_000), State::Healthy);
    }

    #[test]
    fn thresholds_are_clamped_and_ordered() {
        assert_eq!(Thresholds::new(95, 80, 5), Thresholds::new(95, 95, 5));
        assert_eq!(Thresholds::new(200, 250, 200), Thresholds::new(100, 100, 100));
    }

    proptest! {
        #[test]
        fn the_state_changes_only_outside_the_stable_range_and_once_per_step(
            counts in prop::collection::vec((0_u32..150, 0_u32..120), 1..60),
            (degraded, critical, hysteresis) in (0_u8..120, 0_u8..120, 0_u8..120),
        ) {
            let mut health = HealthTracker::new(Thresholds::new(degraded, critical, hysteresis));
            for (used, limit) in counts {
                let (low, high) = health.stable_range(limit);
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
