//! Idle connections of a pool, which wait for their next request.
//!
//! Invariant: at most `max` connections are idle, and none is reused after `timeout`. The most
//! recently used one is taken first, so connections of a past burst expire.
//! Enforced by: `put` and `make_room` remove the oldest first. `take` returns no expired
//! connection. The pool's task calls `remove_expired` regularly.
//! Out of scope: sockets and clocks. This file is pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Idle connections of a pool, in the order in which they became idle.
#[derive(Debug)]
pub(crate) struct IdleConnections<T> {
    /// Each connection, and when it became idle. The oldest is in front.
    waiting: VecDeque<(Instant, T)>,
    max: usize,
    timeout: Duration,
}

impl<T> IdleConnections<T> {
    pub(crate) fn new(max: usize, timeout: Duration) -> IdleConnections<T> {
        IdleConnections { waiting: VecDeque::new(), max, timeout }
    }

    /// Adds a connection. Returns the one to close: the oldest if the pool is full, or `item`
    /// itself if `max` is 0.
    pub(crate) fn put(&mut self, item: T, now: Instant) -> Option<T> {
        if self.max == 0 {
            return Some(item);
        }
        let evicted = if self.waiting.len() >= self.max { self.waiting.pop_front() } else { None };
        self.waiting.push_back((now, item));
        evicted.map(|(_, item)| item)
    }

    /// Returns the most recently used connection. Returns `None` if it has expired: then all others
    /// have, too.
    pub(crate) fn take(&mut self, now: Instant) -> Option<T> {
        let (since, _) = self.waiting.back()?;
        if self.is_expired(*since, now) {
            return None; // `remove_expired` closes them
        }
        self.waiting.pop_back().map(|(_, item)| item)
    }

    /// Removes and returns the expired connections.
    pub(crate) fn remove_expired(&mut self, now: Instant) -> Vec<T> {
        let mut expired = Vec::new();
        while let Some((since, _)) = self.waiting.front()
            && self.is_expired(*since, now)
        {
            expired.extend(self.waiting.pop_front().map(|(_, item)| item));
        }
        expired
    }

    /// Removes and returns the expired connections, or else the oldest.
    pub(crate) fn make_room(&mut self, now: Instant) -> Vec<T> {
        let mut removed = self.remove_expired(now);
        if removed.is_empty() {
            removed.extend(self.waiting.pop_front().map(|(_, item)| item));
        }
        removed
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn is_expired(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn three(now: Instant) -> IdleConnections<u8> {
        let mut idle = IdleConnections::new(3, SECOND * 10);
        for (item, after) in [(1, 0), (2, 1), (3, 2)] {
            assert_eq!(idle.put(item, now + SECOND * after), None);
        }
        idle
    }

    #[test]
    fn the_most_recently_used_connection_is_taken_first() {
        let now = Instant::now();
        let mut idle = three(now);
        assert_eq!(idle.take(now + SECOND * 3), Some(3));
        assert_eq!(idle.take(now + SECOND * 3), Some(2));
        assert_eq!(idle.len(), 1);
    }

    #[test]
    fn a_full_pool_evicts_the_oldest_connection() {
        let now = Instant::now();
        let mut idle = three(now);
        assert_eq!(idle.put(4, now + SECOND * 3), Some(1));
        assert_eq!(idle.len(), 3);
        assert_eq!(IdleConnections::new(0, SECOND).put(1, now), Some(1), "the maximum is 0");
    }

    #[test]
    fn no_connection_is_idle_longer_than_the_timeout() {
        let now = Instant::now();
        let mut idle = three(now);
        assert_eq!(idle.remove_expired(now + SECOND * 9), Vec::<u8>::new());
        assert_eq!(idle.remove_expired(now + SECOND * 11), [1, 2]);
        assert_eq!(idle.take(now + SECOND * 12), None);
        assert_eq!(idle.remove_expired(now + SECOND * 12), [3]);
    }

    #[test]
    fn make_room_removes_expired_connections_or_else_the_oldest() {
        let now = Instant::now();
        assert_eq!(three(now).make_room(now + SECOND * 11), [1, 2]);
        let mut idle = three(now);
        assert_eq!(idle.make_room(now + SECOND * 3), [1]);
        assert_eq!(idle.make_room(now + SECOND * 12), [2, 3], "both have expired");
        assert_eq!(idle.make_room(now), Vec::<u8>::new());
    }
}
