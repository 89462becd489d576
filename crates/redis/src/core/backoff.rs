//! Reconnect backoff: how long to wait before the next attempt to connect.
//!
//! A few quick attempts bridge a server restart. After those the delay doubles, so that a server
//! that is down for an hour is not flooded. Every delay is jittered, so that a thousand clients do
//! not reconnect at the same instant.

use std::time::Duration;

/// Delays between attempts to reconnect. The defaults suit a server that restarts within a second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconnectBackoff {
    /// Number of quick attempts. Default 8.
    pub quick_tries: u32,
    /// Delay before each quick attempt. Default 50 ms: eight of them bridge a restart.
    pub quick_delay: Duration,
    /// Delay before the first attempt after the quick ones; it doubles with each attempt. Default
    /// 100 ms.
    pub first_delay: Duration,
    /// Maximum delay. Default 30 s.
    pub max_delay: Duration,
}

impl Default for ReconnectBackoff {
    fn default() -> Self {
        ReconnectBackoff {
            quick_tries: 8,
            quick_delay: Duration::from_millis(50),
            first_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(30),
        }
    }
}

impl ReconnectBackoff {
    /// Returns a backoff whose delays are at most `longest`, or at most `first_delay` if that is
    /// longer.
    pub(crate) fn capped(&self, longest: Duration) -> ReconnectBackoff {
        ReconnectBackoff { max_delay: self.max_delay.min(longest.max(self.first_delay)), ..self.clone() }
    }

    /// Returns the delay before attempt number `attempt` (from 1). `random` picks a value between
    /// half of the full delay and all of it.
    pub(crate) fn delay(&self, attempt: u32, random: u64) -> Duration {
        let full = match attempt.saturating_sub(1).checked_sub(self.quick_tries) {
            None => self.quick_delay,
            Some(doublings) => self
                .first_delay
                .saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX))
                .min(self.max_delay),
        };
        let half = full / 2;
        half + half.mul_f64(random as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_attempts_come_first_then_the_delay_doubles_up_to_its_maximum() {
        let backoff = ReconnectBackoff::default();
        let full: Vec<u128> = (1..=20).map(|attempt| backoff.delay(attempt, u64::MAX).as_millis()).collect();
        assert_eq!(full[..8], [50; 8]);
        assert_eq!(full[8..17], [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600]);
        assert_eq!(full[17..], [30_000; 3]);
    }

    #[test]
    fn all_attempts_may_be_quick() {
        let backoff = ReconnectBackoff { quick_tries: u32::MAX, ..ReconnectBackoff::default() };
        assert_eq!(backoff.delay(u32::MAX, u64::MAX), backoff.quick_delay);
    }

    #[test]
    fn jitter_shortens_a_delay_by_at_most_half() {
        let backoff = ReconnectBackoff::default();
        let mut rng = fastrand::Rng::with_seed(7);
        for attempt in [0, 1, 9, 12, 100, u32::MAX] {
            let full = backoff.delay(attempt, u64::MAX);
            for _ in 0..100 {
                let delay = backoff.delay(attempt, rng.u64(..));
                assert!(delay >= full / 2 && delay <= full, "{delay:?} of {full:?}");
            }
        }
    }
}
