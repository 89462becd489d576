//! How soon a refused visitor should come again.
//!
//! Invariant: an answer is between 1 and 60 seconds, and is what the measured rate of releases says: with `ahead` of you and
//! `rate` streams ending in a second, your turn comes in `(ahead + 1) / rate` seconds. Without a release there is nothing to
//! hope for soon: 60.
//! Kept by: rates are averages of what was counted, smoothed over about ten seconds; nothing is drawn by lot, so that a test
//! and an operator can follow it.
//! Not here: the clock and the counters; the sampler brings both, once a second.

use std::time::Duration;

/// The least and the most that is ever told, in seconds.
pub(crate) const RETRY_AFTER_SECONDS: (u32, u32) = (1, 60);
/// The weight of what is new falls to 1/e in so long.
const MEMORY: Duration = Duration::from_secs(10);

/// Rates per second, smoothed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Pace {
    /// Streams that end.
    pub(crate) releases: f64,
    /// Visitors that are refused for want of room, each of whom will come again and compete.
    pub(crate) refusals: f64,
    measured: Duration,
}

impl Pace {
    /// Takes in what was counted in the time that passed.
    pub(crate) fn step(&mut self, releases: u64, refusals: u64, passed: Duration) {
        if passed.is_zero() {
            return;
        }
        self.measured += passed;
        // Young, it is the plain average of what there is; later, the exponential one.
        let memory = MEMORY.min(self.measured).as_secs_f64();
        let weight = 1.0 - (-passed.as_secs_f64() / memory).exp();
        let weight = if self.measured == passed { 1.0 } else { weight };
        let smooth = |old: f64, count: u64| old + weight * (count as f64 / passed.as_secs_f64() - old);
        self.releases = smooth(self.releases, releases);
        self.refusals = smooth(self.refusals, refusals);
    }

    /// For one who found everything taken: the queue and those who will return are ahead.
    pub(crate) fn until_any(&self, waiting: usize) -> u32 {
        bounded((waiting as f64 + self.refusals + 1.0) / self.releases)
    }

    /// For one who holds as many as he may: a stream lasts `open / releases` on average, and the first of `held` ends in a
    /// part of that.
    pub(crate) fn until_own(&self, open: usize, held: u32) -> u32 {
        bounded(open as f64 / self.releases / f64::from(held.max(1)))
    }
}

fn bounded(seconds: f64) -> u32 {
    let (least, most) = RETRY_AFTER_SECONDS;
    // 0 / 0 is not a number: nothing is known, so the most.
    if seconds.is_nan() { most } else { seconds.ceil().clamp(f64::from(least), f64::from(most)) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn steady(releases: u64, refusals: u64) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..60 {
            pace.step(releases, refusals, SECOND);
        }
        pace
    }

    #[test]
    fn without_any_release_it_is_the_most() {
        assert_eq!(Pace::default().until_any(0), 60);
        assert_eq!(Pace::default().until_own(0, 3), 60);
        assert_eq!(steady(0, 5).until_any(10), 60);
    }

    #[test]
    fn a_steady_rate_is_found_and_divides_who_is_ahead() {
        let pace = steady(10, 0);
        assert!((pace.releases - 10.0).abs() < 1e-9);
        assert_eq!(pace.until_any(0), 1);
        assert_eq!(pace.until_any(99), 10);
        assert_eq!(pace.until_any(100_000), 60);
    }

    #[test]
    fn those_who_were_refused_too_will_come_again() {
        assert_eq!(steady(10, 200).until_any(0), 21);
    }

    #[test]
    fn ones_own_stream_ends_after_the_mean_life_divided_by_how_many_one_holds() {
        // 300 open, 10 end in a second: each lives for 30 s, and the first of three ends after 10 s.
        assert_eq!(steady(10, 0).until_own(300, 3), 10);
        assert_eq!(steady(10, 0).until_own(300, 0), 30);
    }

    #[test]
    fn the_first_second_counts_in_full_and_a_change_shows_within_ten_seconds() {
        let mut pace = Pace::default();
        pace.step(8, 0, SECOND);
        assert_eq!(pace.releases, 8.0);
        let mut pace = steady(100, 0);
        for _ in 0..10 {
            pace.step(0, 0, SECOND);
        }
        assert!((30.0..40.0).contains(&pace.releases), "{pace:?}");
    }

    #[test]
    fn no_time_changes_nothing() {
        let mut pace = steady(3, 1);
        let before = pace;
        pace.step(1_000, 1_000, Duration::ZERO);
        assert_eq!(pace, before);
    }
}
