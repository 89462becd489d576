//! How long to wait before the next try to connect.
//!
//! A few quick tries bridge a restart; after those the wait doubles, so that a server that is down for an hour isn't
//! hammered. Every wait is jittered, so that a thousand clients don't come back in one instant.

use std::time::Duration;

/// When to try again after a lost connection. The defaults suit a server that restarts within a second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    /// How many tries come quickly. Default 8.
    pub quick_tries: u32,
    /// The wait before each quick try. Default 50 ms: eight of them bridge a restart.
    pub quick_delay: Duration,
    /// The wait after the quick tries; it doubles with each try. Default 100 ms.
    pub first_delay: Duration,
    /// The longest wait. Default 30 s.
    pub max_delay: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            quick_tries: 8,
            quick_delay: Duration::from_millis(50),
            first_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// Likewise, with no wait longer than `longest`, unless the owner begins with longer ones.
    pub(crate) fn capped(&self, longest: Duration) -> Backoff {
        Backoff { max_delay: self.max_delay.min(longest.max(self.first_delay)), ..self.clone() }
    }

    /// The wait before try number `attempt` (from 1), between half of the full delay and all of it, as `dice` falls.
    pub(crate) fn delay(&self, attempt: u32, dice: u64) -> Duration {
        let full = match attempt.saturating_sub(1).checked_sub(self.quick_tries) {
            None => self.quick_delay,
            Some(doublings) => self
                .first_delay
                .saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX))
                .min(self.max_delay),
        };
        let half = full / 2;
        half + half.mul_f64(dice as f64 / u64::MAX as f64)
    }
}

/// A small random generator (SplitMix64) whose seed a test can choose.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    #[cfg(test)]
    pub(crate) fn seeded(seed: u64) -> Self {
        Dice(seed)
    }

    /// Seeded from the standard library's own source of hash keys.
    pub(crate) fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Dice(RandomState::new().hash_one(0u8))
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_tries_come_first_then_the_wait_doubles_up_to_its_bound() {
        let backoff = Backoff::default();
        let full: Vec<u128> = (1..=20).map(|attempt| backoff.delay(attempt, u64::MAX).as_millis()).collect();
        assert_eq!(full[..8], [50; 8]);
        assert_eq!(full[8..17], [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600]);
        assert_eq!(full[17..], [30_000; 3]);
    }

    #[test]
    fn there_may_be_nothing_but_quick_tries() {
        let backoff = Backoff { quick_tries: u32::MAX, ..Backoff::default() };
        assert_eq!(backoff.delay(u32::MAX, u64::MAX), backoff.quick_delay);
    }

    #[test]
    fn jitter_takes_away_at_most_half() {
        let backoff = Backoff::default();
        let mut dice = Dice::seeded(7);
        for attempt in [0, 1, 9, 12, 100, u32::MAX] {
            let full = backoff.delay(attempt, u64::MAX);
            for _ in 0..100 {
                let delay = backoff.delay(attempt, dice.roll());
                assert!(delay >= full / 2 && delay <= full, "{delay:?} of {full:?}");
            }
        }
    }
}
