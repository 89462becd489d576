//! How long to wait before the next try, and for how long there have been tries.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Doubles from 1 s to 10 s. Each wait is shortened by up to a fifth, so that instances that lost the same server don't
/// come back as one.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    tries: u32,
    since: Option<Instant>,
    dice: u64,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Self {
        Backoff { next: FIRST, tries: 0, since: None, dice: seed }
    }

    /// How long to wait after one more failure.
    pub(crate) fn fail(&mut self, now: Instant) -> Duration {
        self.since.get_or_insert(now);
        self.tries += 1;
        let wait = self.next;
        self.next = (self.next * 2).min(LONGEST);
        wait.mul_f64(1.0 - 0.2 * self.roll())
    }

    /// How long the tries took, if there were any.
    pub(crate) fn succeed(&mut self, now: Instant) -> Option<Duration> {
        self.next = FIRST;
        self.tries = 0;
        self.since.take().map(|since| now.saturating_duration_since(since))
    }

    /// Failures since the last success.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    /// When the first of them was.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// From 0 to 1.
    fn roll(&mut self) -> f64 {
        // Splitmix64: it spreads, and needn't be secret.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.dice;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_ten_seconds_and_are_shortened_by_a_fifth_at_most() {
        let (now, mut backoff) = (Instant::now(), Backoff::new(7));
        for longest in [1, 2, 4, 8, 10, 10, 10] {
            let longest = Duration::from_secs(longest);
            let wait = backoff.fail(now);
            assert!(wait <= longest && wait >= longest.mul_f64(0.8), "{wait:?} for {longest:?}");
        }
        assert_eq!(backoff.tries(), 7);
    }

    #[test]
    fn a_success_tells_for_how_long_it_was_tried_and_starts_over() {
        let (now, mut backoff) = (Instant::now(), Backoff::new(7));
        assert_eq!(backoff.succeed(now), None);
        backoff.fail(now);
        backoff.fail(now + Duration::from_secs(1));
        assert_eq!(backoff.succeed(now + Duration::from_secs(3)), Some(Duration::from_secs(3)));
        assert!(backoff.fail(now) <= FIRST);
    }
}
