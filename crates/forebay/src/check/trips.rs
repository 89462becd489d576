//! How far away a server is, and how far apart the clocks are.

use std::time::{Duration, Instant, SystemTime};

use super::finding::{Area, Finding};
use super::judging;

const ROUND_TRIPS: usize = 7;

/// Asks a server for its time, in milliseconds since 1970, several times: the middle round trip counts, and the clock as the
/// quickest one has it.
///
/// # Errors
/// The first that a question ends with.
#[allow(clippy::disallowed_methods, reason = "wall clocks are what is compared")]
pub(super) async fn measure<E>(
    area: Area,
    mut now_ms: impl AsyncFnMut() -> Result<Option<i128>, E>,
) -> Result<Vec<Finding>, E> {
    let (mut times, mut quickest) = (Vec::new(), None);
    for _ in 0..ROUND_TRIPS {
        let (begun, before) = (Instant::now(), SystemTime::now());
        let theirs = now_ms().await?;
        let took = begun.elapsed();
        times.push(took);
        if let Some(theirs) = theirs
            && quickest.is_none_or(|(time, _)| took < time)
        {
            quickest = Some((took, ahead_ms(theirs, before, took)));
        }
    }
    let mut findings = vec![judging::latency(area, median_ms(times))];
    findings.extend(quickest.map(|(_, ahead_ms)| judging::clock(area, ahead_ms)));
    Ok(findings)
}

/// How far another clock is ahead of ours, which said `before` when the other was asked.
fn ahead_ms(theirs: i128, before: SystemTime, took: Duration) -> i128 {
    let middle = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    theirs - i128::try_from(middle.as_millis()).unwrap_or_default()
}

fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_clock_is_compared_with_the_middle_of_the_round_trip() {
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(ahead_ms(100_010, before, Duration::from_millis(20)), 0);
        assert_eq!(ahead_ms(99_010, before, Duration::from_millis(20)), -1000);
    }

    #[test]
    fn one_slow_round_trip_does_not_count() {
        assert!((median_ms([1, 2, 900].map(Duration::from_millis).to_vec()) - 2.0).abs() < 1e-9);
    }
}
