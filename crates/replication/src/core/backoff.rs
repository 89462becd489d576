//! Backoff between connection attempts.

use std::time::{Duration, Instant};

const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Exponential backoff from 1 s to 10 s. Each delay is shortened by up to a fifth, so that
/// instances that lost the same server don't reconnect at the same moment.
#[derive(Debug)]
pub(crate) struct RestartBackoff {
    next: Duration,
    tries: u32,
    since: Option<Instant>,
    rng: fastrand::Rng,
}

impl RestartBackoff {
    pub(crate) fn new(seed: u64) -> Self {
        RestartBackoff { next: MIN_DELAY, tries: 0, since: None, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Records a failure and returns the delay before the next attempt.
    pub(crate) fn fail(&mut self, now: Instant) -> Duration {
        self.since.get_or_insert(now);
        self.tries += 1;
        let wait = self.next;
        self.next = (self.next * 2).min(MAX_DELAY);
        wait.mul_f64(1.0 - 0.2 * self.rng.f64())
    }

    /// Resets the backoff. Returns the time since the first failure, if there was one.
    pub(crate) fn succeed(&mut self, now: Instant) -> Option<Duration> {
        self.next = MIN_DELAY;
        self.tries = 0;
        self.since.take().map(|since| now.saturating_duration_since(since))
    }

    /// Returns the number of failures since the last success.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns the time of the first failure since the last success.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_ten_seconds_and_are_shortened_by_a_fifth_at_most() {
        let (now, mut backoff) = (Instant::now(), RestartBackoff::new(7));
        for longest in [1, 2, 4, 8, 10, 10, 10] {
            let longest = Duration::from_secs(longest);
            let wait = backoff.fail(now);
            assert!(wait <= longest && wait >= longest.mul_f64(0.8), "{wait:?} for {longest:?}");
        }
        assert_eq!(backoff.tries(), 7);
    }

    #[test]
    fn a_success_returns_the_time_since_the_first_failure_and_resets_the_delay() {
        let (now, mut backoff) = (Instant::now(), RestartBackoff::new(7));
        assert_eq!(backoff.succeed(now), None);
        backoff.fail(now);
        backoff.fail(now + Duration::from_secs(1));
        assert_eq!(backoff.succeed(now + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert!(backoff.fail(now) <= MIN_DELAY);
    }
}
