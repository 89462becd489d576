//! Samples of the last ten minutes, so that a new page can draw its plots at once.
//!
//! Invariant: at most [`MAX_SAMPLES`] samples, ordered by time.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum number of samples: one a second for ten minutes.
const MAX_SAMPLES: usize = 600;

/// Values that are measured each second, even while no page is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DashboardSample {
    /// Bytes of WAL that were received and aren't durable here yet. `None`: unknown.
    pub lag_bytes: Option<u64>,
    /// Bytes of WAL that Postgres retains for the slot.
    pub retained_bytes: Option<u64>,
    /// Number of open streams.
    pub streams: u64,
    /// Number of requests since the start.
    pub requests: u64,
}

/// Ring buffer of samples with their times since the start.
#[derive(Debug, Default)]
pub(crate) struct SampleHistory {
    samples: VecDeque<(Duration, DashboardSample)>,
}

impl SampleHistory {
    /// Adds a sample, and removes the oldest one if the buffer is full.
    pub(crate) fn add(&mut self, at: Duration, sample: DashboardSample) {
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at, sample));
    }

    /// Returns the samples as a JSON array, each with its age.
    pub(crate) fn json(&self, now: Duration) -> String {
        let mut text = String::with_capacity(2 + self.samples.len() * 32);
        for (at, sample) in &self.samples {
            text.push(if text.is_empty() { '[' } else { ',' });
            text.push_str(&sample_json(now.saturating_sub(*at), sample));
        }
        if text.is_empty() {
            text.push('[');
        }
        text.push(']');
        text
    }
}

/// Returns a sample as `[age in milliseconds, lag, retained, streams, requests]`.
pub(crate) fn sample_json(age: Duration, sample: &DashboardSample) -> String {
    let mut text = format!("[{}", age.as_millis());
    for number in [sample.lag_bytes, sample.retained_bytes, Some(sample.streams), Some(sample.requests)] {
        let _infallible = match number {
            Some(number) => write!(text, ",{number}"),
            None => write!(text, ",null"),
        };
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_kept_for_ten_minutes_and_have_their_age() {
        let mut history = SampleHistory::default();
        assert_eq!(history.json(Duration::ZERO), "[]");
        for second in 0..700 {
            history.add(
                Duration::from_secs(second),
                DashboardSample { streams: second, ..DashboardSample::default() },
            );
        }
        let samples: Vec<Vec<Option<u64>>> =
            serde_json::from_str(&history.json(Duration::from_secs(700))).unwrap();
        assert_eq!(samples.len(), MAX_SAMPLES);
        assert_eq!(samples[0], [Some(600_000), None, None, Some(100), Some(0)]);
        assert_eq!(samples[MAX_SAMPLES - 1], [Some(1_000), None, None, Some(699), Some(0)]);
    }
}
