//! A token bucket, as the generic cell rate algorithm keeps it: one instant, the time at which it is full again.
//!
//! Invariant: over any span of time, at most `burst + per_second × span` tokens are given, whatever the clock does: one
//! that jumps forward gives a burst at most, one that jumps back gives nothing until it has caught up.

use std::time::Duration;

use crate::store::Drawn;

/// Takes up to `want` tokens out of a bucket that is full again at `full_at`; returns what was given and when it is full
/// again now. Times count from any origin.
pub(crate) fn draw(
    full_at: Duration,
    now: Duration,
    per_second: f64,
    burst: u32,
    want: u32,
) -> (Drawn, Duration) {
    let spacing = Duration::from_secs_f64(1.0 / per_second);
    let depth = spacing * burst.max(1);
    let full_at = full_at.max(now);
    // As many as fit below now + depth.
    let room = (now + depth).saturating_sub(full_at);
    let there = (room.as_nanos() / spacing.as_nanos().max(1)) as u64;
    let tokens = want.min(u32::try_from(there).unwrap_or(u32::MAX));
    if tokens == 0 {
        let wait = (full_at + spacing).saturating_sub(now + depth);
        return (Drawn { tokens: 0, wait }, full_at);
    }
    (Drawn { tokens, wait: Duration::ZERO }, full_at + spacing * tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_full_bucket_gives_its_burst_then_one_token_per_spacing() {
        let (drawn, full_at) = draw(MS(0), MS(1000), 10.0, 3, 5);
        assert_eq!(drawn.tokens, 3);
        let (none, same) = draw(full_at, MS(1000), 10.0, 3, 1);
        assert_eq!((none, same), (Drawn { tokens: 0, wait: MS(100) }, full_at));
        assert_eq!(draw(full_at, MS(1099), 10.0, 3, 1).0, Drawn { tokens: 0, wait: MS(1) });
        assert_eq!(draw(full_at, MS(1100), 10.0, 3, 1).0.tokens, 1);
    }

    #[test]
    fn a_bucket_of_no_depth_still_gives_one_at_a_time() {
        let (drawn, full_at) = draw(MS(0), MS(0), 100.0, 0, 9);
        assert_eq!(drawn.tokens, 1);
        assert_eq!(draw(full_at, MS(0), 100.0, 0, 1).0.wait, MS(10));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_until_it_has_caught_up() {
        let (_, full_at) = draw(MS(0), MS(50_000), 1.0, 2, 2);
        assert_eq!(draw(full_at, MS(40_000), 1.0, 2, 1).0.wait, MS(11_000));
    }

    proptest::proptest! {
        #[test]
        fn no_span_gets_more_than_its_burst_and_its_rate(
            steps in proptest::collection::vec((0_u64..400, 1_u32..6), 1..200),
            burst in 1_u32..10,
            rate in 1_u32..200,
        ) {
            let per_second = f64::from(rate);
            let (mut now, mut full_at, mut given) = (MS(0), MS(0), 0_u32);
            for (pause, want) in steps {
                now += MS(pause);
                let (drawn, after) = draw(full_at, now, per_second, burst, want);
                (full_at, given) = (after, given + drawn.tokens);
                let allowed = f64::from(burst) + per_second * now.as_secs_f64();
                proptest::prop_assert!(f64::from(given) <= allowed + 1e-6, "{given} of {allowed} at {now:?}");
                if drawn.tokens == 0 {
                    let (later, _) = draw(full_at, now + drawn.wait, per_second, burst, 1);
                    proptest::prop_assert_eq!(later.tokens, 1);
                }
            }
        }
    }
}
