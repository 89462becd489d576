//! Cursor: distinguishes one live request from the next, for caches.
//!
//! Invariant: a client's next cursor differs from its last. Otherwise a cache would answer a live
//! request with the previous response. Clients that wait at the same time usually get the same
//! cursor, so that a cache forwards one request for all.

use std::time::Duration;

/// 2024-10-09 00:00 UTC, in seconds since 1970.
const EPOCH_S: u64 = 1_728_432_000;

/// Maximum jump from the last cursor, in seconds, if the time alone doesn't advance it.
const JUMP_S: u64 = 3_600;

/// Returns the cursor of a live response: the time since 2024-10-09 in seconds, rounded up to the
/// long-poll interval. If that isn't after `last`, returns `last` plus a random jump.
///
/// `since_1970` is the wall-clock time, `last` the client's cursor, `random` any number.
pub fn next(since_1970: Duration, long_poll: Duration, last: Option<u64>, random: u64) -> u64 {
    let interval_s = long_poll.as_secs().max(1);
    let now_s = since_1970.as_secs().saturating_sub(EPOCH_S);
    let next = now_s.checked_next_multiple_of(interval_s).unwrap_or(now_s);
    match last {
        Some(last) if next <= last => {
            // On overflow there is no greater cursor; a different one is enough.
            last.checked_add(1 + random % JUMP_S).unwrap_or(next)
        }
        Some(_) | None => next,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLL: Duration = Duration::from_secs(20);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(EPOCH_S + seconds)
    }

    #[test]
    fn a_cursor_is_the_time_rounded_up_to_the_interval() {
        for (seconds, cursor) in [(0, 0), (1, 20), (19, 20), (20, 20), (21, 40), (57_000_001, 57_000_020)] {
            assert_eq!(next(at(seconds), POLL, None, 5), cursor, "{seconds}");
        }
        assert_eq!(next(at(21) + Duration::from_millis(999), POLL, Some(20), 5), 40);
    }

    #[test]
    fn a_cursor_jumps_if_the_time_does_not_advance_it() {
        assert_eq!(next(at(30), POLL, Some(40), 0), 41);
        assert_eq!(next(at(30), POLL, Some(40), 3_599), 3_640);
        assert_eq!(next(at(30), POLL, Some(40), 3_600), 41);
        assert_eq!(next(at(30), POLL, Some(1_000), 9), 1_010, "the client's cursor is ahead of the time");
    }

    #[test]
    fn extreme_clocks_and_intervals_do_not_panic() {
        assert_eq!(next(Duration::ZERO, POLL, None, 0), 0);
        assert_eq!(next(at(30), Duration::ZERO, None, 0), 30);
        assert_eq!(next(Duration::MAX, Duration::MAX, None, 0), u64::MAX);
    }

    proptest! {
        #[test]
        fn the_next_cursor_differs_from_the_last(
            now in 0..u64::MAX / 2,
            poll in 0_u64..100_000,
            last in prop_oneof![any::<u64>(), 0_u64..100_000_000, Just(u64::MAX)],
            random: u64,
        ) {
            for now in [now, EPOCH_S + now % 100_000_000] {
                let cursor = next(Duration::from_secs(now), Duration::from_secs(poll), Some(last), random);
                prop_assert_ne!(cursor, last);
                prop_assert!(cursor > last || last > u64::MAX - JUMP_S);
            }
        }
    }
}
