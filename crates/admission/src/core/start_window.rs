//! Window of stream starts: their times to the first byte, their failures, and the streams that
//! were open meanwhile.
//!
//! Invariant: memory is fixed. Of more than [`MAX_TIMES`] times, the latest are kept.
//! Out of scope: what follows from a window; see `adaptive_limit.rs`.

use std::time::Duration;

/// Maximum number of times that a window keeps.
const MAX_TIMES: usize = 256;
/// A window with [`FULL_SAMPLES`] samples is complete after this time.
const FULL_AFTER: Duration = Duration::from_millis(250);
const FULL_SAMPLES: u32 = 16;
/// A window with [`SPARSE_SAMPLES`] samples is complete after this time.
const SPARSE_AFTER: Duration = Duration::from_secs(2);
const SPARSE_SAMPLES: u32 = 8;
/// A window lasts at least for this multiple of the mean time. In a shorter one, most streams with
/// long times would not have started completely, and the mean would be too low.
const MIN_TIMES: f64 = 3.0;

/// Stream starts since the last change of the limit.
#[derive(Debug, Clone)]
pub(crate) struct StartWindow {
    began: Duration,
    /// Times to the first byte in seconds; a ring.
    times: [f32; MAX_TIMES],
    /// Number of times so far, also of those that were overwritten.
    timed: u32,
    failed: u32,
    /// Sum of the open streams at each sample.
    open_sum: f64,
    /// Sum and number of the times of starts in the window, in seconds.
    seconds_sum: f64,
    begun: u32,
    peak_open: u32,
    /// Open streams at the last observation before the window, and in it.
    open_before: u32,
    last_open: u32,
    has_refused: bool,
}

/// Summary of a complete window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WindowSummary {
    /// Mean time to the first byte in seconds; times above the 90th percentile count as that
    /// percentile. `None` if every start failed.
    pub(crate) seconds: Option<f64>,
    /// Standard error of `seconds`.
    pub(crate) error_seconds: f64,
    /// Number of failed starts.
    pub(crate) failed: u32,
    /// Failed starts, as a fraction of all.
    pub(crate) failed_ratio: f64,
    /// Number of starts.
    pub(crate) samples: f64,
    /// Mean number of open streams.
    pub(crate) open: f64,
    /// Maximum number of open streams.
    pub(crate) peak_open: u32,
    /// Number of streams that ended, about.
    pub(crate) ended: f64,
    /// Whether the limit refused a request.
    pub(crate) has_refused: bool,
}

impl StartWindow {
    /// Returns an empty window that follows this one.
    pub(crate) fn next(&self, began: Duration) -> Self {
        StartWindow { open_before: self.last_open, last_open: self.last_open, ..StartWindow::new(began) }
    }

    pub(crate) fn new(began: Duration) -> Self {
        StartWindow {
            began,
            times: [0.0; MAX_TIMES],
            timed: 0,
            failed: 0,
            open_sum: 0.0,
            seconds_sum: 0.0,
            begun: 0,
            peak_open: 0,
            open_before: 0,
            last_open: 0,
            has_refused: false,
        }
    }

    /// Returns when the window began.
    pub(crate) fn began(&self) -> Duration {
        self.began
    }

    /// Adds a start that succeeded after `took`, while `open` streams were open on average.
    pub(crate) fn add_time(&mut self, took: Duration, open: f64) {
        self.seconds_sum += took.as_secs_f64();
        self.begun = self.begun.saturating_add(1);
        self.add_late_time(took, open);
    }

    /// Adds a start that succeeded after `took`, and began before the window. It doesn't make the
    /// window longer.
    pub(crate) fn add_late_time(&mut self, took: Duration, open: f64) {
        self.times[self.timed as usize % MAX_TIMES] = took.as_secs_f32();
        self.timed = self.timed.saturating_add(1);
        self.open_sum += open;
    }

    /// Adds a start that failed.
    pub(crate) fn add_failure(&mut self, open: f64) {
        self.failed = self.failed.saturating_add(1);
        self.open_sum += open;
    }

    /// Records the number of open streams now and its maximum, and whether the limit refused a
    /// request.
    pub(crate) fn observe(&mut self, open: u32, peak_open: u32, has_refused: bool) {
        self.peak_open = self.peak_open.max(peak_open);
        self.last_open = open;
        self.has_refused |= has_refused;
    }

    /// Returns whether the window has samples, and too few for a summary.
    pub(crate) fn has_too_few(&self) -> bool {
        (1..SPARSE_SAMPLES).contains(&(self.timed + self.failed))
    }

    /// Returns whether the window has no samples.
    pub(crate) fn is_empty(&self) -> bool {
        self.timed + self.failed == 0
    }

    /// Returns the summary if the window has lasted long enough and has enough samples.
    pub(crate) fn summary(&mut self, now: Duration) -> Option<WindowSummary> {
        let (elapsed, samples) = (now.saturating_sub(self.began), self.timed + self.failed);
        let full = elapsed >= FULL_AFTER && samples >= FULL_SAMPLES;
        let sparse = elapsed >= SPARSE_AFTER && samples >= SPARSE_SAMPLES;
        let mean_seconds = self.seconds_sum / f64::from(self.begun.max(1));
        let long = elapsed.as_secs_f64() >= mean_seconds * MIN_TIMES;
        ((full || sparse) && long).then(|| self.summarize(f64::from(samples)))
    }

    fn summarize(&mut self, samples: f64) -> WindowSummary {
        let (seconds, error_seconds) = self.mean_time();
        WindowSummary {
            seconds,
            error_seconds,
            failed: self.failed,
            failed_ratio: f64::from(self.failed) / samples,
            samples,
            open: self.open_sum / samples,
            peak_open: self.peak_open,
            ended: f64::from(self.open_before) + samples - f64::from(self.last_open),
            has_refused: self.has_refused,
        }
    }

    /// Returns the mean time and its standard error.
    fn mean_time(&mut self) -> (Option<f64>, f64) {
        let count = (self.timed as usize).min(MAX_TIMES);
        let times = &mut self.times[..count];
        let Some(last) = count.checked_sub(1) else { return (None, 0.0) };
        // A few stuck requests must not look like an overload, so the largest tenth is cut down.
        let (_, cap, _) = times.select_nth_unstable_by(last * 9 / 10, f32::total_cmp);
        let cap = f64::from(*cap);
        let capped = || times.iter().map(|time| f64::from(*time).min(cap));
        let mean = capped().sum::<f64>() / count as f64;
        let variance = capped().map(|time| (time - mean).powi(2)).sum::<f64>() / last.max(1) as f64;
        (Some(mean), (variance / count as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(7);

    fn filled(millis: impl Iterator<Item = u64>) -> StartWindow {
        let mut window = StartWindow::new(START);
        millis.for_each(|millis| window.add_time(Duration::from_millis(millis), 10.0));
        window
    }

    #[test]
    fn a_window_needs_time_and_samples() {
        let mut window = filled([5; 8].into_iter());
        assert_eq!(window.summary(START + FULL_AFTER), None);
        assert!(window.summary(START + SPARSE_AFTER).is_some());
        let mut window = filled([5; 16].into_iter());
        assert_eq!(window.summary(START + FULL_AFTER / 2), None);
        assert!(window.summary(START + FULL_AFTER).is_some());
        assert_eq!(filled([5; 7].into_iter()).summary(START + SPARSE_AFTER * 100), None);
    }

    #[test]
    fn the_largest_tenth_counts_as_the_90th_percentile() {
        let mut window = filled([10; 18].into_iter().chain([60_000; 2]));
        let summary = window.summary(START + FULL_AFTER * 1_000).unwrap();
        assert!((summary.seconds.unwrap() - 0.010).abs() < 1e-6, "{summary:?}");
        assert!(summary.error_seconds < 1e-6, "{summary:?}");
    }

    #[test]
    fn failures_and_open_streams_are_averaged() {
        let mut window = filled([20; 12].into_iter());
        (0..4).for_each(|_| window.add_failure(30.0));
        window.observe(20, 31, true);
        window.observe(5, 5, false);
        let summary = window.summary(START + FULL_AFTER).unwrap();
        assert_eq!((summary.failed_ratio, summary.open), (0.25, 15.0));
        assert_eq!((summary.peak_open, summary.has_refused), (31, true));
        assert_eq!(summary.ended, 11.0, "16 have started, and 5 are open");
        let mut next = window.next(START);
        (0..16).for_each(|_| next.add_failure(1.0));
        next.observe(1, 9, false);
        assert_eq!(next.summary(START + FULL_AFTER).unwrap().ended, 20.0);
        let mut failures = StartWindow::new(START);
        (0..16).for_each(|_| failures.add_failure(1.0));
        let summary = failures.summary(START + FULL_AFTER).unwrap();
        assert_eq!((summary.seconds, summary.failed_ratio), (None, 1.0));
    }

    #[test]
    fn a_window_lasts_for_several_times() {
        let mut window = filled([1_000; 16].into_iter());
        assert_eq!(window.summary(START + Duration::from_millis(2_999)), None);
        assert!(window.summary(START + Duration::from_millis(3_001)).is_some());
    }

    #[test]
    fn starts_of_before_the_window_count_without_making_it_longer() {
        let mut window = filled([10; 16].into_iter());
        (0..16).for_each(|_| window.add_late_time(Duration::from_secs(60), 10.0));
        let summary = window.summary(START + FULL_AFTER).unwrap();
        assert!(summary.seconds.unwrap() > 29.0, "{summary:?}");
    }

    #[test]
    fn of_many_times_the_latest_are_kept() {
        let mut window = filled([1_000; 5_000].into_iter().chain([10; MAX_TIMES]));
        assert!((window.summary(START + FULL_AFTER * 1_000).unwrap().seconds.unwrap() - 0.010).abs() < 1e-6);
    }
}
