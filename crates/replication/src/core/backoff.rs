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
    /// The first failure since the last confirmed stream.
    outage_since: Option<Instant>,
    rng: fastrand::Rng,
}

impl RestartBackoff {
    pub(crate) fn new(seed: u64) -> Self {
        RestartBackoff {
            next: MIN_DELAY,
            tries: 0,
            since: None,
            outage_since: None,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Records a failure and returns the delay before the next attempt.
    pub(crate) fn fail(&mut self, now: Instant) -> Duration {
        self.since.get_or_insert(now);
        self.outage_since.get_or_insert(now);
        self.tries += 1;
        let wait = self.next;
        self.next = (self.next * 2).min(MAX_DELAY);
        wait.mul_f64(1.0 - 0.2 * self.rng.f64())
    }

    /// Records that the server streams again. Returns the total retry time: the time since the
    /// first failure of this outage, if there was one. The delays keep growing until
    /// [`reset`](Self::reset).
    pub(crate) fn recover(&mut self, now: Instant) -> Option<Duration> {
        self.outage_since.take().map(|since| now.saturating_duration_since(since))
    }

    /// Resets delays and counts: the stream is stable.
    pub(crate) fn reset(&mut self) {
        (self.next, self.tries, self.since) = (MIN_DELAY, 0, None);
    }

    /// Returns the number of failures since the last stable stream.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns the time of the first failure since the last stable stream.
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
    fn a_recovery_returns_the_time_since_the_first_failure_of_its_outage() {
        let (now, mut backoff) = (Instant::now(), RestartBackoff::new(7));
        let after = |secs| now + Duration::from_secs(secs);
        assert_eq!(backoff.recover(now), None);
        backoff.fail(now);
        backoff.fail(after(1));
        assert_eq!(backoff.recover(after(3)), Some(Duration::from_secs(3)));
        assert_eq!((backoff.recover(after(4)), backoff.tries()), (None, 2));
        assert!(backoff.fail(after(10)) > MIN_DELAY, "a recovery alone doesn't reset the delay");
        assert_eq!(backoff.recover(after(12)), Some(Duration::from_secs(2)));
        backoff.reset();
        assert_eq!((backoff.tries(), backoff.since()), (0, None));
        assert!(backoff.fail(after(20)) <= MIN_DELAY);
    }
}
