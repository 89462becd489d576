//! A token bucket, as the generic cell rate algorithm keeps it: one instant, the time at which it is full again.
//!
//! Invariant: over any span of time, at most `burst + per_second × span` tokens are given. A clock that jumps forward adds
//! a burst at most. One that jumps back adds nothing, and no caller waits for longer than an empty bucket makes it wait.
//! Enforced by: `full_at` is at most now + the depth of the last draw. A later time was written under another clock, and
//! counts as an empty bucket.

use std::time::Duration;

use crate::store::Drawn;

/// What is kept of a bucket. Times count from any origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Level {
    /// When it is full again.
    pub(crate) full_at: Duration,
    /// How long an empty bucket took to fill, for the member that drew last. Zero: unknown, as of a bucket that an
    /// earlier release wrote.
    pub(crate) depth: Duration,
}

/// Takes up to `want` tokens out of a bucket; returns what was given and what to keep. It must be kept if it differs, even
/// if nothing was given.
pub(crate) fn draw(level: Level, now: Duration, per_second: f64, burst: u32, want: u32) -> (Drawn, Level) {
    let spacing = Duration::from_secs_f64(1.0 / per_second);
    let depth = spacing * burst.max(1);
    let level = level.within_depth(now, depth);
    let full_at = level.full_at.max(now);
    // As many as fit below now + depth.
    let room = (now + depth).saturating_sub(full_at);
    let there = (room.as_nanos() / spacing.as_nanos().max(1)) as u64;
    let tokens = want.min(u32::try_from(there).unwrap_or(u32::MAX));
    if tokens == 0 {
        let wait = (full_at + spacing).saturating_sub(now + depth);
        return (Drawn { tokens: 0, wait }, level);
    }
    (Drawn { tokens, wait: Duration::ZERO }, Level { full_at: full_at + spacing * tokens, depth })
}

impl Level {
    /// As it is, or empty if it can't have been written under the clock that says `now`.
    fn within_depth(self, now: Duration, own_depth: Duration) -> Level {
        let depth = if self.depth.is_zero() { own_depth } else { self.depth };
        if self.full_at > now + depth { Level { full_at: now + depth, depth } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn written(full_at: Duration) -> Level {
        Level { full_at, depth: Duration::ZERO }
    }

    #[test]
    fn a_full_bucket_gives_its_burst_then_one_token_per_spacing() {
        let (drawn, level) = draw(Level::default(), MS(1000), 10.0, 3, 5);
        assert_eq!(drawn.tokens, 3);
        let (none, same) = draw(level, MS(1000), 10.0, 3, 1);
        assert_eq!((none, same), (Drawn { tokens: 0, wait: MS(100) }, level));
        assert_eq!(draw(level, MS(1099), 10.0, 3, 1).0, Drawn { tokens: 0, wait: MS(1) });
        assert_eq!(draw(level, MS(1100), 10.0, 3, 1).0.tokens, 1);
    }

    #[test]
    fn a_bucket_of_no_depth_still_gives_one_at_a_time() {
        let (drawn, level) = draw(Level::default(), MS(0), 100.0, 0, 9);
        assert_eq!(drawn.tokens, 1);
        assert_eq!(draw(level, MS(0), 100.0, 0, 1).0.wait, MS(10));
    }

    #[test]
    fn a_clock_that_goes_back_finds_an_empty_bucket_that_fills_at_its_rate() {
        for jump in [MS(10_000), MS(600_000)] {
            let origin = MS(1_000_000);
            let (_, level) = draw(Level::default(), origin + jump, 1.0, 2, 2);
            let (none, level) = draw(level, origin, 1.0, 2, 1);
            assert_eq!(none, Drawn { tokens: 0, wait: MS(1000) });
            assert_eq!(draw(level, origin + MS(999), 1.0, 2, 1).0.tokens, 0);
            assert_eq!(draw(level, origin + MS(1000), 1.0, 2, 9).0.tokens, 1);
            assert_eq!(draw(level, origin + MS(2000), 1.0, 2, 9).0.tokens, 2);
        }
    }

    #[test]
    fn an_earlier_releases_bucket_is_held_to_the_drawers_own_depth() {
        let (none, level) = draw(written(MS(600_000)), MS(1000), 1.0, 2, 1);
        assert_eq!((none.tokens, none.wait), (0, MS(1000)));
        assert_eq!(draw(level, MS(2000), 1.0, 2, 9).0.tokens, 1);
    }

    #[test]
    fn a_member_with_a_smaller_burst_does_not_empty_the_debt_of_one_with_a_larger() {
        let (_, level) = draw(Level::default(), MS(0), 1.0, 100, 100);
        let (none, kept) = draw(level, MS(0), 1.0, 1, 1);
        assert_eq!((none.tokens, kept), (0, level));
        assert_eq!(draw(kept, MS(0), 1.0, 100, 100).0.tokens, 0);
    }

    proptest::proptest! {
        #[test]
        fn no_span_gets_more_than_its_burst_and_its_rate(
            steps in proptest::collection::vec((0_u64..400, 1_u32..6), 1..200),
            burst in 1_u32..10,
            rate in 1_u32..200,
        ) {
            let per_second = f64::from(rate);
            let (mut now, mut level, mut given) = (MS(0), Level::default(), 0_u32);
            for (pause, want) in steps {
                now += MS(pause);
                let (drawn, after) = draw(level, now, per_second, burst, want);
                (level, given) = (after, given + drawn.tokens);
                let allowed = f64::from(burst) + per_second * now.as_secs_f64();
                proptest::prop_assert!(f64::from(given) <= allowed + 1e-6, "{given} of {allowed} at {now:?}");
                if drawn.tokens == 0 {
                    let (later, _) = draw(level, now + drawn.wait, per_second, burst, 1);
                    proptest::prop_assert_eq!(later.tokens, 1);
                }
            }
        }

        /// `skew` is by how much the clock is wrong; every other step changes it.
        #[test]
        fn a_clock_that_jumps_adds_a_burst_for_each_jump_forward_and_starves_nobody(
            steps in proptest::collection::vec((0_u64..400, 1_u32..6, 0_u64..1_200_000), 1..100),
            burst in 1_u32..10,
            rate in 1_u32..200,
        ) {
            let (per_second, epoch) = (f64::from(rate), MS(1_000_000));
            let (mut time, mut level, mut given, mut jumps, mut skew) = (MS(0), Level::default(), 0, 0, 0);
            for (number, (pause, want, next)) in steps.into_iter().enumerate() {
                time += MS(pause);
                if number % 2 == 1 {
                    jumps += u32::from(next > skew);
                    skew = next;
                }
                let now = epoch + time + MS(skew);
                let (drawn, after) = draw(level, now, per_second, burst, want);
                (level, given) = (after, given + drawn.tokens);
                let allowed = f64::from(burst * (1 + jumps)) + per_second * time.as_secs_f64();
                proptest::prop_assert!(f64::from(given) <= allowed + 1e-6, "{given} of {allowed} at {time:?}");
                let spacing = 1.0 / per_second;
                proptest::prop_assert!(drawn.wait.as_secs_f64() <= spacing + 1e-6, "{drawn:?}");
            }
        }
    }
}
