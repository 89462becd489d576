//! Round trip time to a server, and the difference of the clocks.

use std::time::{Duration, Instant, SystemTime};

use super::finding::{CheckArea, Finding};

const ROUND_TRIPS: usize = 7;
/// Round trip time from which a warning is given. A new shape takes several round trips, and each
/// change half of one.
const SLOW_ROUND_TRIP_MS: f64 = 50.0;
/// Clock difference from which a warning is given. Above it, the reported lag is mostly the
/// difference of the clocks.
const MAX_CLOCK_DIFFERENCE_MS: i128 = 1_000;

/// Queries the time of a server several times, in milliseconds since 1970. The median is the round
/// trip time. The quickest query gives the clock difference.
///
/// # Errors
/// Returns the first error of a query.
#[allow(clippy::disallowed_methods, reason = "it compares wall clocks")]
pub(super) async fn measure<E>(
    area: CheckArea,
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
    let mut findings = vec![latency(area, median_ms(times))];
    findings.extend(quickest.map(|(_, ahead_ms)| clock(area, ahead_ms)));
    Ok(findings)
}

/// Returns how far another clock is ahead of ours. `before` is our clock when the query was sent.
fn ahead_ms(theirs: i128, before: SystemTime, took: Duration) -> i128 {
    let middle = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    theirs - i128::try_from(middle.as_millis()).unwrap_or_default()
}

fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// Evaluates the round trip time.
fn latency(area: CheckArea, median_ms: f64) -> Finding {
    let what = format!("a round trip takes {median_ms:.1} ms");
    if median_ms < SLOW_ROUND_TRIP_MS {
        return Finding::ok(area, "latency", what);
    }
    Finding::warn(
        area,
        "latency",
        what,
        "run Forebay closer to it: new shapes and limits wait for several round trips",
    )
}

/// Evaluates the clock difference.
fn clock(area: CheckArea, ahead_ms: i128) -> Finding {
    let (by, how) = (ahead_ms.abs(), if ahead_ms < 0 { "behind" } else { "ahead of" });
    if by < MAX_CLOCK_DIFFERENCE_MS {
        return Finding::ok(area, "clock", format!("its clock differs from ours by {by} ms"));
    }
    let what = format!("its clock is {:.1} s {how} ours", by as f64 / 1e3);
    Finding::warn(
        area,
        "clock",
        what,
        "synchronize both clocks with NTP: the reported lag is wrong by that much",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::*;

    const AREA: CheckArea = CheckArea::Postgres;

    #[test]
    fn the_other_clock_is_compared_with_the_middle_of_the_round_trip() {
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(ahead_ms(100_010, before, Duration::from_millis(20)), 0);
        assert_eq!(ahead_ms(99_010, before, Duration::from_millis(20)), -1000);
    }

    #[test]
    fn one_slow_round_trip_does_not_change_the_median() {
        assert!((median_ms([1, 2, 900].map(Duration::from_millis).to_vec()) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_clock_difference_is_reported_with_amount_and_direction() {
        assert_eq!(clock(AREA, -20).level, FindingLevel::Ok);
        let late = clock(AREA, -90_500);
        assert!(late.level == FindingLevel::Warn && late.what.contains("90.5 s behind"), "{late:?}");
    }

    #[test]
    fn a_long_round_trip_is_a_warning_with_milliseconds() {
        assert_eq!(latency(AREA, 0.4).level, FindingLevel::Ok);
        let far = latency(AREA, 80.0);
        assert!(far.level == FindingLevel::Warn && far.what.contains("80.0 ms"), "{far:?}");
    }
}
