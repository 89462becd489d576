//! `Retry-After`, from the measured rate of releases.
//!
//! Invariant: the result is between 1 and 60 seconds. With `ahead` competing requests and `rate`
//! releases per second, it is `(ahead + 1) / rate`. Without releases it is 60.
//! Enforced by: rates are measured and smoothed over about ten seconds. There is no random jitter,
//! so results are reproducible.
//! Out of scope: clock and counters; the sampler passes both once per second.

use std::time::Duration;

/// Minimum and maximum of `Retry-After`, in seconds.
pub(crate) const RETRY_AFTER_SECONDS: (u32, u32) = (1, 60);
/// Time constant of the exponential smoothing.
const SMOOTHING: Duration = Duration::from_secs(10);

/// Smoothed rates per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ReleaseRate {
    /// Streams that end.
    pub(crate) releases: f64,
    /// Requests refused for lack of capacity. Each is expected to retry and compete.
    pub(crate) refusals: f64,
    measured: Duration,
}

impl ReleaseRate {
    /// Adds the counts of the elapsed time.
    pub(crate) fn step(&mut self, releases: u64, refusals: u64, passed: Duration) {
        if passed.is_zero() {
            return;
        }
        self.measured += passed;
        // At first the plain average of the measurements, later the exponential one.
        let smoothing = SMOOTHING.min(self.measured).as_secs_f64();
        let weight = 1.0 - (-passed.as_secs_f64() / smoothing).exp();
        let weight = if self.measured == passed { 1.0 } else { weight };
        let smooth = |old: f64, count: u64| old + weight * (count as f64 / passed.as_secs_f64() - old);
        self.releases = smooth(self.releases, releases);
        self.refusals = smooth(self.refusals, refusals);
    }

    /// Returns the wait for any unit: queued requests and expected retries are ahead.
    pub(crate) fn seconds_until_free(&self, waiting: usize) -> u32 {
        bounded((waiting as f64 + self.refusals + 1.0) / self.releases)
    }

    /// Returns the wait for one of the user's `held` streams to end. A stream lasts `open /
    /// releases` on average, and the first of `held` ends after a fraction of that.
    pub(crate) fn seconds_until_own_release(&self, open: usize, held: u32) -> u32 {
        bounded(open as f64 / self.releases / f64::from(held.max(1)))
    }
}

fn bounded(seconds: f64) -> u32 {
    let (least, most) = RETRY_AFTER_SECONDS;
    // 0 / 0: nothing is measured yet, so the maximum.
    if seconds.is_nan() { most } else { seconds.ceil().clamp(f64::from(least), f64::from(most)) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn steady(releases: u64, refusals: u64) -> ReleaseRate {
        let mut rate = ReleaseRate::default();
        for _ in 0..60 {
            rate.step(releases, refusals, SECOND);
        }
        rate
    }

    #[test]
    fn without_releases_it_is_the_maximum() {
        assert_eq!(ReleaseRate::default().seconds_until_free(0), 60);
        assert_eq!(ReleaseRate::default().seconds_until_own_release(0, 3), 60);
        assert_eq!(steady(0, 5).seconds_until_free(10), 60);
    }

    #[test]
    fn a_steady_rate_is_measured_and_divides_the_requests_ahead() {
        let rate = steady(10, 0);
        assert!((rate.releases - 10.0).abs() < 1e-9);
        assert_eq!(rate.seconds_until_free(0), 1);
        assert_eq!(rate.seconds_until_free(99), 10);
        assert_eq!(rate.seconds_until_free(100_000), 60);
    }

    #[test]
    fn refused_requests_count_as_competing_retries() {
        assert_eq!(steady(10, 200).seconds_until_free(0), 21);
    }

    #[test]
    fn a_users_stream_ends_after_the_mean_lifetime_divided_by_its_open_streams() {
        // 300 open, 10 end per second: each lasts 30 s, and the first of three ends after 10 s.
        assert_eq!(steady(10, 0).seconds_until_own_release(300, 3), 10);
        assert_eq!(steady(10, 0).seconds_until_own_release(300, 0), 30);
    }

    #[test]
    fn the_first_second_counts_fully_and_a_change_shows_within_ten_seconds() {
        let mut rate = ReleaseRate::default();
        rate.step(8, 0, SECOND);
        assert_eq!(rate.releases, 8.0);
        let mut rate = steady(100, 0);
        for _ in 0..10 {
            rate.step(0, 0, SECOND);
        }
        assert!((30.0..40.0).contains(&rate.releases), "{rate:?}");
    }

    #[test]
    fn zero_elapsed_time_changes_nothing() {
        let mut rate = steady(3, 1);
        let before = rate;
        rate.step(1_000, 1_000, Duration::ZERO);
        assert_eq!(rate, before);
    }
}
