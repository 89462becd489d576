//! The connections that wait for their next request.
//!
//! Invariant: at most `max` wait, none longer than `timeout`; the one that waited least is lent first, so that those that
//! a burst needed age and leave.
//! Kept by: `put` and `make_room` take from the old end; `take` and `sweep` leave out, or drop, what is too old.
//! Not here: sockets and clocks; this file is pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Idle<T> {
    /// The oldest in front.
    waiting: VecDeque<(Instant, T)>,
    max: usize,
    timeout: Duration,
}

impl<T> Idle<T> {
    pub(crate) fn new(max: usize, timeout: Duration) -> Idle<T> {
        Idle { waiting: VecDeque::new(), max, timeout }
    }

    /// Gives back who had to leave: the oldest if there was no room, or `item` itself if there never is.
    pub(crate) fn put(&mut self, item: T, now: Instant) -> Option<T> {
        if self.max == 0 {
            return Some(item);
        }
        let left = if self.waiting.len() >= self.max { self.waiting.pop_front() } else { None };
        self.waiting.push_back((now, item));
        left.map(|(_, item)| item)
    }

    /// The one that came last, unless it has waited too long; then all others have, too.
    pub(crate) fn take(&mut self, now: Instant) -> Option<T> {
        let (since, _) = self.waiting.back()?;
        if self.is_over(*since, now) {
            return None; // `sweep` ends them
        }
        self.waiting.pop_back().map(|(_, item)| item)
    }

    /// Those that have waited too long.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<T> {
        let mut over = Vec::new();
        while let Some((since, _)) = self.waiting.front()
            && self.is_over(*since, now)
        {
            over.extend(self.waiting.pop_front().map(|(_, item)| item));
        }
        over
    }

    /// Those that have waited too long; the oldest, if nobody has.
    pub(crate) fn make_room(&mut self, now: Instant) -> Vec<T> {
        let mut left = self.sweep(now);
        if left.is_empty() {
            left.extend(self.waiting.pop_front().map(|(_, item)| item));
        }
        left
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn is_over(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn three(now: Instant) -> Idle<u8> {
        let mut idle = Idle::new(3, SECOND * 10);
        for (item, after) in [(1, 0), (2, 1), (3, 2)] {
            assert_eq!(idle.put(item, now + SECOND * after), None);
        }
        idle
    }

    #[test]
    fn the_last_to_come_is_the_first_to_go() {
        let now = Instant::now();
        let mut idle = three(now);
        assert_eq!(idle.take(now + SECOND * 3), Some(3));
        assert_eq!(idle.take(now + SECOND * 3), Some(2));
        assert_eq!(idle.len(), 1);
    }

    #[test]
    fn when_full_the_oldest_leaves() {
        let now = Instant::now();
        let mut idle = three(now);
        assert_eq!(idle.put(4, now + SECOND * 3), Some(1));
        assert_eq!(idle.len(), 3);
        assert_eq!(Idle::new(0, SECOND).put(1, now), Some(1), "no room at all");
    }

    #[test]
    fn nobody_waits_longer_than_the_timeout() {
        let now = Instant::now();
        let mut idle = three(now);
        assert_eq!(idle.sweep(now + SECOND * 9), Vec::<u8>::new());
        assert_eq!(idle.sweep(now + SECOND * 11), [1, 2]);
        assert_eq!(idle.take(now + SECOND * 12), None);
        assert_eq!(idle.sweep(now + SECOND * 12), [3]);
    }

    #[test]
    fn room_is_made_by_those_that_waited_too_long_or_else_by_the_oldest() {
        let now = Instant::now();
        assert_eq!(three(now).make_room(now + SECOND * 11), [1, 2]);
        let mut idle = three(now);
        assert_eq!(idle.make_room(now + SECOND * 3), [1]);
        assert_eq!(idle.make_room(now + SECOND * 12), [2, 3], "also when `take` would find none");
        assert_eq!(idle.make_room(now), Vec::<u8>::new());
    }
}
