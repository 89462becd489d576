//! What was measured in the last minutes, so that a new page has something to draw.
//!
//! Invariant: at most [`KEPT`] samples, in the order of their times.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

/// Ten minutes of seconds.
const KEPT: usize = 600;

/// What is measured each second: cheap, whoever looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of the database's log that are received and not durable here; `None`: nobody knows.
    pub lag_bytes: Option<u64>,
    /// Bytes of log that the database keeps for the slot.
    pub retained_bytes: Option<u64>,
    /// Open streams.
    pub streams: u64,
    /// Requests so far.
    pub requests: u64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    samples: VecDeque<(Duration, Sample)>,
}

impl History {
    pub(crate) fn add(&mut self, at: Duration, sample: Sample) {
        if self.samples.len() >= KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back((at, sample));
    }

    /// A JSON array of the samples, each with its age.
    pub(crate) fn json(&self, now: Duration) -> String {
        let mut text = String::with_capacity(2 + self.samples.len() * 32);
        for (at, sample) in &self.samples {
            text.push(if text.is_empty() { '[' } else { ',' });
            text.push_str(&json(now.saturating_sub(*at), sample));
        }
        if text.is_empty() {
            text.push('[');
        }
        text.push(']');
        text
    }
}

/// `[age in milliseconds, lag, retained, streams, requests]`.
pub(crate) fn json(age: Duration, sample: &Sample) -> String {
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
    fn it_keeps_ten_minutes_and_tells_how_old_each_is() {
        let mut history = History::default();
        assert_eq!(history.json(Duration::ZERO), "[]");
        for second in 0..700 {
            history.add(Duration::from_secs(second), Sample { streams: second, ..Sample::default() });
        }
        let told: Vec<Vec<Option<u64>>> =
            serde_json::from_str(&history.json(Duration::from_secs(700))).unwrap();
        assert_eq!(told.len(), KEPT);
        assert_eq!(told[0], [Some(600_000), None, None, Some(100), Some(0)]);
        assert_eq!(told[KEPT - 1], [Some(1_000), None, None, Some(699), Some(0)]);
    }
}
