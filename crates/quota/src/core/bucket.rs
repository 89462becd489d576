//! Token bucket by the generic cell rate algorithm. Its state is one instant: when the bucket is
//! full again.
//!
//! Invariant: over any span of time, at most `burst + per_second × span` tokens are given. A clock
//! that jumps forward adds at most one burst. A clock that jumps back adds nothing, and no caller
//! waits longer than for an empty bucket.
//! Enforced by: `full_at` is at most now + the depth of the last draw. A later time was written
//! under another clock, and counts as an empty bucket.

use std::time::Duration;

use crate::store::TokenReply;

/// State of a bucket. Times count from any origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BucketLevel {
    /// When the bucket is full again.
    pub(crate) full_at: Duration,
    /// Time that an empty bucket takes to fill, by the burst of the last draw. Zero if unknown, as
    /// in a bucket written by release 0.1.
    pub(crate) depth: Duration,
}

/// Takes up to `want` tokens. Returns the reply and the new level, which must be stored if it
/// differs, even without tokens.
pub(crate) fn draw(
    level: BucketLevel,
    now: Duration,
    per_second: f64,
    burst: u32,
    want: u32,
) -> (TokenReply, BucketLevel) {
    let spacing = Duration::from_secs_f64(1.0 / per_second);
    let depth = spacing * burst.max(1);
    let level = level.within_depth(now, depth);
    let full_at = level.full_at.max(now);
    // As many tokens as fit below now + depth.
    let room = (now + depth).saturating_sub(full_at);
    let available = (room.as_nanos() / spacing.as_nanos().max(1)) as u64;
    let tokens = want.min(u32::try_from(available).unwrap_or(u32::MAX));
    if tokens == 0 {
        let wait = (full_at + spacing).saturating_sub(now + depth);
        return (TokenReply { tokens: 0, wait }, level);
    }
    (TokenReply { tokens, wait: Duration::ZERO }, BucketLevel { full_at: full_at + spacing * tokens, depth })
}

impl BucketLevel {
    /// Returns the level, or an empty bucket if the level can't have been written under the clock
    /// that shows `now`.
    fn within_depth(self, now: Duration, own_depth: Duration) -> BucketLevel {
        let depth = if self.depth.is_zero() { own_depth } else { self.depth };
        if self.full_at > now + depth { BucketLevel { full_at: now + depth, depth } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn written(full_at: Duration) -> BucketLevel {
        BucketLevel { full_at, depth: Duration::ZERO }
    }

    #[test]
    fn a_full_bucket_gives_its_burst_then_one_token_per_spacing() {
        let (reply, level) = draw(BucketLevel::default(), MS(1000), 10.0, 3, 5);
        assert_eq!(reply.tokens, 3);
        let (none, same) = draw(level, MS(1000), 10.0, 3, 1);
        assert_eq!((none, same), (TokenReply { tokens: 0, wait: MS(100) }, level));
        assert_eq!(draw(level, MS(1099), 10.0, 3, 1).0, TokenReply { tokens: 0, wait: MS(1) });
        assert_eq!(draw(level, MS(1100), 10.0, 3, 1).0.tokens, 1);
    }

    #[test]
    fn a_burst_of_zero_gives_one_token_at_a_time() {
        let (reply, level) = draw(BucketLevel::default(), MS(0), 100.0, 0, 9);
        assert_eq!(reply.tokens, 1);
        assert_eq!(draw(level, MS(0), 100.0, 0, 1).0.wait, MS(10));
    }

    #[test]
    fn after_a_clock_jump_back_the_bucket_is_empty_and_fills_at_its_rate() {
        for jump in [MS(10_000), MS(600_000)] {
            let origin = MS(1_000_000);
            let (_, level) = draw(BucketLevel::default(), origin + jump, 1.0, 2, 2);
            let (none, level) = draw(level, origin, 1.0, 2, 1);
            assert_eq!(none, TokenReply { tokens: 0, wait: MS(1000) });
            assert_eq!(draw(level, origin + MS(999), 1.0, 2, 1).0.tokens, 0);
            assert_eq!(draw(level, origin + MS(1000), 1.0, 2, 9).0.tokens, 1);
            assert_eq!(draw(level, origin + MS(2000), 1.0, 2, 9).0.tokens, 2);
        }
    }

    #[test]
    fn a_bucket_without_depth_uses_the_depth_of_the_draw() {
        let (none, level) = draw(written(MS(600_000)), MS(1000), 1.0, 2, 1);
        assert_eq!((none.tokens, none.wait), (0, MS(1000)));
        assert_eq!(draw(level, MS(2000), 1.0, 2, 9).0.tokens, 1);
    }

    #[test]
    fn a_draw_with_a_smaller_burst_keeps_the_level_of_a_larger_one() {
        let (_, level) = draw(BucketLevel::default(), MS(0), 1.0, 100, 100);
        let (none, kept) = draw(level, MS(0), 1.0, 1, 1);
        assert_eq!((none.tokens, kept), (0, level));
        assert_eq!(draw(kept, MS(0), 1.0, 100, 100).0.tokens, 0);
    }

    proptest::proptest! {
        #[test]
        fn no_span_gets_more_than_the_burst_and_the_rate(
            steps in proptest::collection::vec((0_u64..400, 1_u32..6), 1..200),
            burst in 1_u32..10,
            rate in 1_u32..200,
        ) {
            let per_second = f64::from(rate);
            let (mut now, mut level, mut given) = (MS(0), BucketLevel::default(), 0_u32);
            for (pause, want) in steps {
                now += MS(pause);
                let (reply, after) = draw(level, now, per_second, burst, want);
                (level, given) = (after, given + reply.tokens);
                let allowed = f64::from(burst) + per_second * now.as_secs_f64();
                proptest::prop_assert!(f64::from(given) <= allowed + 1e-6, "{given} of {allowed} at {now:?}");
                if reply.tokens == 0 {
                    let (later, _) = draw(level, now + reply.wait, per_second, burst, 1);
                    proptest::prop_assert_eq!(later.tokens, 1);
                }
            }
        }

        /// `skew` is the clock's error; every other step changes it.
        #[test]
        fn a_clock_jump_adds_one_burst_if_forward_and_blocks_no_caller(
            steps in proptest::collection::vec((0_u64..400, 1_u32..6, 0_u64..1_200_000), 1..100),
            burst in 1_u32..10,
            rate in 1_u32..200,
        ) {
            let (per_second, epoch) = (f64::from(rate), MS(1_000_000));
            let (mut time, mut level, mut given, mut jumps, mut skew) = (MS(0), BucketLevel::default(), 0, 0, 0);
            for (number, (pause, want, next)) in steps.into_iter().enumerate() {
                time += MS(pause);
                if number % 2 == 1 {
                    jumps += u32::from(next > skew);
                    skew = next;
                }
                let now = epoch + time + MS(skew);
                let (reply, after) = draw(level, now, per_second, burst, want);
                (level, given) = (after, given + reply.tokens);
                let allowed = f64::from(burst * (1 + jumps)) + per_second * time.as_secs_f64();
                proptest::prop_assert!(f64::from(given) <= allowed + 1e-6, "{given} of {allowed} at {time:?}");
                let spacing = 1.0 / per_second;
                proptest::prop_assert!(reply.wait.as_secs_f64() <= spacing + 1e-6, "{reply:?}");
            }
        }
    }
}
