//! Statement rate: bounds the statements that judge rows, over all shapes, and divides them among
//! shapes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Statements that may run at once after a pause, beyond the rate.
const BURST: u32 = 10;
/// Duration of a turn that counts like a statement.
const TURN_UNIT: Duration = Duration::from_millis(50);
/// Maximum number of turns that a shape passes after a long one.
const MAX_DEBT: u32 = 100;

/// Maximum rate of statements, over all shapes.
#[derive(Debug)]
pub(crate) struct StatementRate {
    interval: Duration,
    /// When the next statement may run.
    next: Mutex<Instant>,
}

impl StatementRate {
    pub(crate) fn new(statements_per_s: u32) -> Self {
        let interval = Duration::from_secs(1) / statements_per_s.max(1);
        StatementRate { interval, next: Mutex::new(Instant::now()) }
    }

    /// Waits until a statement may run, and counts it.
    pub(crate) async fn wait(&self) {
        let at = self.reserve(Instant::now());
        sleep_until(at).await;
    }

    /// Counts a statement, and returns when it may run.
    fn reserve(&self, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let earliest = now.checked_sub(self.interval * (BURST - 1)).unwrap_or(now);
        let at = (*next).max(earliest);
        *next = at + self.interval;
        at
    }

    /// Counts statements that have run without waiting.
    pub(crate) fn charge(&self, statements: usize) {
        let statements = u32::try_from(statements).unwrap_or(u32::MAX);
        *self.next.lock() += self.interval.saturating_mul(statements);
    }
}

/// Turns of one shape: after a long turn it passes as many turns as others could have had.
///
/// Shapes whose rows fail need many statements, and slow clauses much time. The others get as much
/// in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct FairTurns {
    /// Number of turns to pass.
    debt: u32,
}

impl FairTurns {
    /// Charges a turn. One statement of less than [`TURN_UNIT`] is free.
    pub(crate) fn charge(&mut self, statements: usize, duration: Duration) {
        let units = duration.as_millis() / TURN_UNIT.as_millis();
        let cost = units.saturating_add(statements.saturating_sub(1) as u128);
        self.debt = u32::try_from(cost).unwrap_or(MAX_DEBT).saturating_add(self.debt).min(MAX_DEBT);
    }

    /// Passes a turn if one is to be passed. Returns whether it did.
    pub(crate) fn pass(&mut self) -> bool {
        let passes = self.debt > 0;
        self.debt = self.debt.saturating_sub(1);
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn statements_run_at_the_rate_after_a_burst() {
        let rate = StatementRate::new(100);
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        let waits: Vec<_> = (0..12).map(|_| rate.reserve(now).saturating_duration_since(now)).collect();
        assert!(waits[..10].iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(waits[10..], [Duration::from_millis(10), Duration::from_millis(20)]);
        rate.charge(100);
        rate.wait().await;
        assert_eq!(start.elapsed(), Duration::from_millis(2_030));
    }

    #[test]
    fn a_shape_passes_as_many_turns_as_it_had_statements_or_time() {
        let passed = |statements, ms| {
            let mut turns = FairTurns::default();
            turns.charge(statements, Duration::from_millis(ms));
            std::iter::from_fn(|| turns.pass().then_some(())).count()
        };
        assert_eq!(
            [(1, 0), (1, 49), (16, 10), (1, 500), (3, 5_000)].map(|turn| passed(turn.0, turn.1)),
            [0, 0, 15, 10, 100]
        );
    }
}
