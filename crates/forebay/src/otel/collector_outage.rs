//! State of an outage of the collector, and the delay before the next attempt.
//!
//! Invariant: the first failure after a success starts an outage, and the next success ends it.
//! Each is reported once.
//! Out of scope: sockets and clocks; this file is pure.

use std::time::Duration;

/// Delay after the first failure. It doubles after each further one, as OTLP specifies.
const INITIAL_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Number of consecutive failures.
#[derive(Debug, Default)]
pub(super) struct CollectorOutage {
    failures: u32,
}

impl CollectorOutage {
    /// Records a failure. Returns whether it starts an outage.
    pub(super) fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }

    /// Records a success. Returns the number of failures if it ends an outage.
    pub(super) fn succeeded(&mut self) -> Option<u32> {
        Some(std::mem::take(&mut self.failures)).filter(|failures| *failures > 0)
    }

    /// Returns the delay before the next attempt.
    pub(super) fn retry_delay(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(8);
        (INITIAL_DELAY * 2_u32.pow(doublings)).min(MAX_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_at_its_start_and_once_at_its_end() {
        let mut outage = CollectorOutage::default();
        assert_eq!(outage.succeeded(), None);
        assert!(outage.failed());
        assert!(!outage.failed() && !outage.failed());
        assert_eq!(outage.succeeded(), Some(3));
        assert_eq!(outage.succeeded(), None);
        assert!(outage.failed(), "a new outage");
    }

    #[test]
    fn the_delays_double_up_to_thirty_seconds() {
        let mut outage = CollectorOutage::default();
        let delays: Vec<_> = std::iter::repeat_with(|| {
            outage.failed();
            outage.retry_delay().as_secs()
        })
        .take(8)
        .collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30, 30]);
        outage.failures = u32::MAX;
        assert!(!outage.failed());
        assert_eq!(outage.retry_delay(), MAX_DELAY);
    }
}
