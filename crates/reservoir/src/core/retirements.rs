//! Retirements: slots of closed connections and abandoned dials that the server hasn't closed yet.
//!
//! Invariant: a retired slot is counted until its [`Retirement`] is passed to [`Retirements::end`].
//! Enforced by: a `Retirement` is not `Clone`, and `end` consumes it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A retired connection counts as lingering after this time; servers usually close in milliseconds.
///
/// The backend of a lingering connection is busy, stopped or unreachable.
pub(crate) const LINGERS_AFTER: Duration = Duration::from_secs(1);

/// Slot of one connection or dial that the server hasn't closed yet.
#[derive(Debug)]
pub(crate) struct Retirement(u64);

/// Connections that the server hasn't closed within [`LINGERS_AFTER`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LingeringConnections {
    pub(crate) count: u32,
    /// Time since the oldest of them was retired; `None` if there is none.
    pub(crate) longest: Option<Duration>,
}

/// Start times by sequence number, so iteration is in order of time.
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

    pub(crate) fn lingering(&self, now: Instant) -> LingeringConnections {
        let ages = self.since.values().map(|since| now.saturating_duration_since(*since));
        let mut lingering = ages.take_while(|age| *age >= LINGERS_AFTER).peekable();
        LingeringConnections { longest: lingering.peek().copied(), count: lingering.count() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_the_server_does_not_close_within_a_second_lingers() {
        let (mut retirements, begun) = (Retirements::default(), Instant::now());
        let first = retirements.begin(begun);
        let second = retirements.begin(begun + Duration::from_millis(500));
        assert_eq!(
            retirements.lingering(begun + Duration::from_millis(999)),
            LingeringConnections::default()
        );
        let at = begun + Duration::from_millis(1_200);
        let longest = Some(Duration::from_millis(1_200));
        assert_eq!(retirements.lingering(at), LingeringConnections { count: 1, longest });
        retirements.end(first);
        assert_eq!((retirements.lingering(at), retirements.count()), (LingeringConnections::default(), 1));
        retirements.end(second);
        assert_eq!(retirements.count(), 0);
    }
}
