//! Whether a signal arrives at its collector, and when to try again.
//!
//! Invariant: the first failure after a success begins an outage, the next success ends it, and each is told once.
//! Not here: sockets and clocks; this file is pure.

use std::time::Duration;

/// As OTLP asks: a moment, then longer.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// How many times in a row it didn't arrive.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failures: u32,
}

impl Outage {
    /// Whether that begins an outage.
    pub(super) fn failed(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }

    /// How many failures that ends; none if there was no outage.
    pub(super) fn arrived(&mut self) -> Option<u32> {
        Some(std::mem::take(&mut self.failures)).filter(|failures| *failures > 0)
    }

    /// How long to wait before the next try.
    pub(super) fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(8);
        (FIRST * 2_u32.pow(doublings)).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_once_at_its_beginning_and_once_at_its_end() {
        let mut outage = Outage::default();
        assert_eq!(outage.arrived(), None);
        assert!(outage.failed());
        assert!(!outage.failed() && !outage.failed());
        assert_eq!(outage.arrived(), Some(3));
        assert_eq!(outage.arrived(), None);
        assert!(outage.failed(), "another one");
    }

    #[test]
    fn the_pauses_double_up_to_half_a_minute() {
        let mut outage = Outage::default();
        let pauses: Vec<_> = std::iter::repeat_with(|| {
            outage.failed();
            outage.pause().as_secs()
        })
        .take(8)
        .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        outage.failures = u32::MAX;
        assert!(!outage.failed());
        assert_eq!(outage.pause(), LONGEST);
    }
}
