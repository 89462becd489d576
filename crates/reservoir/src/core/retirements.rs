//! Retirements: the places of connections that the server hasn't closed yet, and since when they are waited for.
//!
//! Invariant: a place that is retired is counted until its [`Retirement`] is handed back, which can be done once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A server closes its end within milliseconds. One that hasn't after this lingers: it is busy, stopped, or out of reach.
pub(crate) const LINGERS_AFTER: Duration = Duration::from_secs(1);

/// The place of one connection, or dial, that the server hasn't closed yet. It isn't `Clone`.
#[derive(Debug)]
pub(crate) struct Retirement(u64);

/// Connections that the server hasn't closed within [`LINGERS_AFTER`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lingering {
    pub(crate) count: u32,
    /// How long the oldest of them has been waited for; `None` if there is none.
    pub(crate) longest: Option<Duration>,
}

/// In the order in which they began: numbers only grow.
#[derive(Debug, Default)]
pub(crate) struct Retirements {
    since: BTreeMap<u64, Instant>,
    next: u64,
}

impl Retirements {
    pub(crate) fn begin(&mut self, now: Instant) -> Retirement {
        let number = self.next;
        self.next += 1;
        self.since.insert(number, now);
        Retirement(number)
    }

    pub(crate) fn end(&mut self, Retirement(number): Retirement) {
        self.since.remove(&number).expect("a retirement isn't cloned, so it ends once");
    }

    pub(crate) fn count(&self) -> u32 {
        self.since.len() as u32
    }

    pub(crate) fn lingering(&self, now: Instant) -> Lingering {
        let ages = self.since.values().map(|since| now.saturating_duration_since(*since));
        let mut lingering = ages.take_while(|age| *age >= LINGERS_AFTER).peekable();
        Lingering { longest: lingering.peek().copied(), count: lingering.count() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_has_not_closed_within_a_second_lingers_and_the_oldest_is_told() {
        let (mut retirements, begun) = (Retirements::default(), Instant::now());
        let first = retirements.begin(begun);
        let second = retirements.begin(begun + Duration::from_millis(500));
        assert_eq!(retirements.lingering(begun + Duration::from_millis(999)), Lingering::default());
        let at = begun + Duration::from_millis(1_200);
        let longest = Some(Duration::from_millis(1_200));
        assert_eq!(retirements.lingering(at), Lingering { count: 1, longest });
        retirements.end(first);
        assert_eq!((retirements.lingering(at), retirements.count()), (Lingering::default(), 1));
        retirements.end(second);
        assert_eq!(retirements.count(), 0);
    }
}
