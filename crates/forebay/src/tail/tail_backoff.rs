//! Delays between requests of `forebay tail` that make no progress. Pure.

use std::time::Duration;

/// First delay. Each further one is twice as long.
const MIN_DELAY: Duration = Duration::from_millis(100);

/// Delay that doubles each time it is taken, up to a maximum.
#[derive(Debug)]
pub(super) struct TailBackoff {
    next: Duration,
    max: Duration,
}

impl TailBackoff {
    pub(super) fn new(max: Duration) -> TailBackoff {
        TailBackoff { next: MIN_DELAY, max }
    }

    /// Returns the delay before the next request, and doubles the one after it.
    pub(super) fn take(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        delay
    }

    /// Starts again with the first delay.
    pub(super) fn reset(&mut self) {
        self.next = MIN_DELAY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_start_again_after_progress() {
        let mut backoff = TailBackoff::new(Duration::from_millis(500));
        let delays: Vec<_> = (0..5).map(|_| backoff.take().as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 500, 500]);
        backoff.reset();
        assert_eq!(backoff.take(), MIN_DELAY);
    }
}
