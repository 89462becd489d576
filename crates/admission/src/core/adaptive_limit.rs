//! Adaptive limit: how many streams this process may have open at present, between a floor and the
//! total limit.
//!
//! Invariant 1: `floor <= limit <= total` after every method. If the total is below the floor, the
//! limit is the total.
//! Invariant 2: the limit changes only on evidence: a complete window of starts, memory or CPU
//! pressure, or refused requests while no start is pending.
//! Enforced by: only [`AdaptiveLimit::lower`], [`AdaptiveLimit::raise`] and
//! [`AdaptiveLimit::set_total`] change the limit, and all clamp it.
//!
//! The evidence is the time to the first byte of new streams, compared with a baseline: the time
//! without overload. A window has the streams that started in it, so each change is judged by its
//! own effect. Of older streams it has only failures and starts that took longer than a window, if
//! they began after the last decrease: otherwise requests that hang would never count while others
//! are fast.
//!
//! - Slower than the baseline: the limit becomes the number of streams that were open, divided by
//!   the square root of the slowdown.
//! - Not slower, and the limit is in use: the limit rises. Up to the number of streams at which it
//!   was last lowered, a step is half of the distance; beyond it, steps double. After a small
//!   decrease it first stays for some windows.
//! - The slowdown remains after the number of open streams fell twice: load is not its cause. The
//!   slower time becomes the baseline. So the limit recovers if the upstream is slower for good.
//! - More starts fail than the baseline's fraction: the limit falls to 70 % of the open streams. If
//!   as many fail with fewer open streams, or at the floor, load is not the cause: this fraction
//!   becomes the baseline. An upstream that fails nearly always keeps the limit at the floor.
//!
//! Out of scope: counting open streams, and clocks; see `adaptive_limiter.rs`.

use std::time::Duration;

use super::limit_evidence::{DecreaseCause, LimitDecrease, ProcessSample, StartResult, StartSample};
use super::start_window::{StartWindow, WindowSummary};

/// A window is slow if its time exceeds the baseline by this factor, and by [`SIGNIFICANCE`]
/// standard errors.
const TOLERANCE: f64 = 1.1;
/// Number of standard errors that count as chance.
const SIGNIFICANCE: f64 = 3.0;
/// Failed starts beyond the baseline's fraction, as a fraction of all, that lower the limit.
const MAX_FAILED_RATIO: f64 = 0.1;
/// Fraction of failed starts that is never the baseline: more streams would only fail, too.
const MAX_BASELINE_FAILED: f64 = 0.9;
/// Number of standard errors by which failures must exceed what fewer streams would explain.
const FAILED_SIGNIFICANCE: f64 = 2.0;
/// Fewer failed starts in a window count as chance.
const MIN_FAILED: u32 = 4;
/// Factor of a decrease because of failures.
const FAILURE_FACTOR: f64 = 0.7;
/// Windows without a slowdown that the limit stays after a small decrease.
const PLATEAU_WINDOWS: u32 = 4;
/// Lowest factor of a decrease because of slow starts.
const MIN_FACTOR: f64 = 0.5;
/// Weight of a faster window in the baseline.
const BASELINE_WEIGHT: f64 = 0.25;
/// Fraction of the limit from which it counts as used.
const USED_RATIO: f64 = 0.9;
/// The effect of a decrease is judged once this fraction of the streams is open.
const JUDGED_RATIO: f64 = 0.8;
/// Decreases without an effect after which the slower time becomes the baseline.
const MAX_FUTILE_DECREASES: u32 = 2;
/// If a time grows by more than this factor after a decrease, the upstream has changed meanwhile.
const MAX_STEADY_FACTOR: f64 = 1.2;
/// Slow windows at the floor after which their time becomes the baseline.
const MAX_FLOOR_WINDOWS: u32 = 3;
/// Memory and CPU use, as fractions, at which the limit is lowered.
const HIGH_PRESSURE: f64 = 0.9;
/// Memory and CPU use, as fractions, from which the limit is not raised.
const RAISED_PRESSURE: f64 = 0.85;
/// Factor of a decrease because of pressure.
const PRESSURE_FACTOR: f64 = 0.9;
/// Interval of decreases because of pressure: CPU use is an average over this time.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without samples after which refused requests raise the limit.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// The same after a decrease because of slow or failed starts.
const CAUTIOUS_PROBE_AFTER: Duration = Duration::from_secs(30);
/// This time doubles with each such increase that overloaded again, at most so many times.
const MAX_PROBE_DOUBLINGS: u32 = 5;
/// Streams are short if a window sees the end of at least this fraction of them.
const SHORT_ENDED_RATIO: f64 = 0.25;
/// Maximum increase of the limit of long streams, as a part of the limit: too many of them stay
/// open for long.
const LONG_STREAMS_STEP: u32 = 5;

/// The limit and its evidence.
#[derive(Debug, Clone)]
pub(crate) struct AdaptiveLimit {
    floor: u32,
    total: u32,
    limit: u32,
    begins_at_total: bool,
    /// Next increase beyond `last_overload`; doubles with each, and is reset by a decrease.
    step: u32,
    /// Open streams at the last decrease because of slow or failed starts.
    last_overload: u32,
    /// Windows without a slowdown since the last decrease.
    calm_windows: u32,
    /// Time to the first byte without overload, in seconds.
    baseline: Option<f64>,
    /// Fraction of starts that fail without overload.
    baseline_failed: f64,
    /// Time to the first byte in the last window, in seconds.
    latest: Option<f64>,
    window: StartWindow,
    /// When the window before `window` began.
    window_before: Duration,
    /// When the limit was last lowered, or would have been if it weren't at the floor.
    lowered_at: Duration,
    /// The window that last lowered the limit, until a window is not slow.
    overload: Option<Overload>,
    /// Consecutive slow windows at the floor.
    floor_windows: u32,
    /// Whether refused requests have raised the limit, and no window has ended since.
    is_probing: bool,
    /// Consecutive such increases that ended in an overload.
    failed_probes: u32,
    /// Time of the last sample, or of the last change without samples.
    last_evidence: Duration,
    last_pressure: Option<Duration>,
    is_pressed: bool,
    last_decrease: Option<LimitDecrease>,
}

/// A window because of which the limit was lowered.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Overload {
    Slow {
        open: f64,
        seconds: f64,
        /// Decreases since then that changed nothing.
        futile: u32,
    },
    /// The first of consecutive windows with failures.
    Failing { open: f64, failed_ratio: f64, samples: f64 },
}

impl AdaptiveLimit {
    /// Creates a limit that begins at `limit`.
    pub(crate) fn new(floor: u32, total: u32, limit: u32) -> Self {
        let mut adaptive = AdaptiveLimit {
            floor,
            total,
            limit,
            begins_at_total: limit >= total,
            step: limit,
            last_overload: 0,
            calm_windows: 0,
            baseline: None,
            baseline_failed: 0.0,
            latest: None,
            window: StartWindow::new(Duration::ZERO),
            window_before: Duration::ZERO,
            lowered_at: Duration::ZERO,
            overload: None,
            floor_windows: 0,
            is_probing: false,
            failed_probes: 0,
            last_evidence: Duration::ZERO,
            last_pressure: None,
            is_pressed: false,
            last_decrease: None,
        };
        adaptive.set_total(total);
        adaptive
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the lowest possible limit.
    pub(crate) fn floor(&self) -> u32 {
        self.floor.min(self.total)
    }

    pub(crate) fn last_decrease(&self) -> Option<LimitDecrease> {
        self.last_decrease
    }

    /// Returns the time to the first byte without overload, in seconds.
    pub(crate) fn baseline_seconds(&self) -> Option<f64> {
        self.baseline
    }

    /// Returns the time to the first byte in the last window, in seconds.
    pub(crate) fn latest_seconds(&self) -> Option<f64> {
        self.latest
    }

    /// Changes the highest possible limit. A limit that began there, and is there, follows it.
    pub(crate) fn set_total(&mut self, total: u32) {
        let limit = if self.begins_at_total && self.limit == self.total { total } else { self.limit };
        self.total = total;
        self.limit = limit.clamp(self.floor(), total);
    }

    /// Adds the start of a stream.
    pub(crate) fn record_start(&mut self, sample: StartSample, now: Duration) -> Option<LimitDecrease> {
        let is_late = sample.started_at < self.window.began();
        // The start of an older stream says nothing about the present limit.
        if is_late && sample.started_at < self.lowered_at {
            return None;
        }
        let outlived_window = sample.started_at <= self.window_before;
        let peak_open = sample.open_at_start.max(sample.open);
        let open = f64::from(peak_open);
        let is_slow = |took: Duration| self.is_slow(took.as_secs_f64(), 0.0);
        match sample.result {
            StartResult::Failed => self.window.add_failure(open),
            // Its time would have been at least this. A shorter wait says nothing.
            StartResult::Abandoned(waited) if !is_slow(waited) => return None,
            StartResult::Answered(took) | StartResult::Abandoned(took) => match is_late {
                false => self.window.add_time(took, open),
                true if outlived_window && is_slow(took) => self.window.add_late_time(took, open),
                true => return None,
            },
        }
        self.window.observe(sample.open, peak_open, sample.has_refused);
        self.last_evidence = now;
        self.judge_window(now)
    }

    /// Adds the state of the process. Lowers the limit under pressure. Raises it if requests are
    /// refused and no stream starts that could show what the upstream carries.
    pub(crate) fn record_process(&mut self, sample: ProcessSample, now: Duration) -> Option<LimitDecrease> {
        self.window.observe(sample.open, sample.open, sample.has_refused);
        let reaches = |value: Option<f64>, bound: f64| value.is_some_and(|value| value >= bound);
        self.is_pressed = reaches(sample.memory, RAISED_PRESSURE) || reaches(sample.cpu, RAISED_PRESSURE);
        let cause = if reaches(sample.memory, HIGH_PRESSURE) {
            Some(DecreaseCause::Memory)
        } else {
            reaches(sample.cpu, HIGH_PRESSURE).then_some(DecreaseCause::Cpu)
        };
        if let Some(cause) = cause
            && self.last_pressure.is_none_or(|last| now.saturating_sub(last) >= PRESSURE_INTERVAL)
        {
            self.last_pressure = Some(now);
            // An unused limit falls step by step to the number of open streams.
            let used = if self.is_used(sample.open, sample.has_refused) { sample.open } else { self.limit };
            return self.lower(cause, f64::from(used) * PRESSURE_FACTOR, now);
        }
        let window_began = self.window.began();
        let decrease = self.judge_window(now);
        if self.window.began() != window_began {
            return decrease;
        }
        let wait = match self.overload {
            Some(_) => CAUTIOUS_PROBE_AFTER * 2_u32.pow(self.failed_probes.min(MAX_PROBE_DOUBLINGS)),
            None => PROBE_AFTER,
        };
        let no_evidence = now.saturating_sub(self.last_evidence) >= wait && sample.starting == 0;
        // A window with enough samples is judged soon. A few samples stay: they must not be lost
        // with each increase, or no window would ever be complete.
        let has_few = self.window.has_too_few();
        if sample.has_refused && no_evidence && (has_few || self.window.is_empty()) {
            self.last_evidence = now;
            if !has_few {
                self.begin_window(now);
            }
            self.calm_windows = self.calm_windows.saturating_add(1);
            self.is_probing = true;
            self.raise(false);
        }
        None
    }

    /// Judges the window if it is complete, and begins the next one.
    fn judge_window(&mut self, now: Duration) -> Option<LimitDecrease> {
        let summary = self.window.summary(now)?;
        let is_used = self.is_used(summary.peak_open, summary.has_refused);
        self.begin_window(now);
        self.latest = summary.seconds.or(self.latest);
        if self.is_failing(&summary) {
            if self.failures_depend_on_load(&summary) {
                self.last_overload = summary.peak_open;
                let target =
                    if is_used { summary.open * FAILURE_FACTOR } else { f64::from(summary.peak_open) };
                return self.lower(DecreaseCause::Errors, target, now);
            }
            self.baseline_failed = summary.failed_ratio;
            self.forget_overload();
        }
        if summary.failed_ratio < self.baseline_failed {
            self.baseline_failed += (summary.failed_ratio - self.baseline_failed) * BASELINE_WEIGHT;
        }
        let seconds = summary.seconds?;
        let baseline = *self.baseline.get_or_insert(seconds);
        if !self.is_slow(seconds, summary.error_seconds) {
            if seconds + summary.error_seconds < baseline {
                self.baseline = Some(baseline + (seconds - baseline) * BASELINE_WEIGHT);
            }
            (self.overload, self.floor_windows) = (None, 0);
            (self.is_probing, self.failed_probes) = (false, 0);
            if is_used {
                self.calm_windows = self.calm_windows.saturating_add(1);
                self.raise(summary.ended >= summary.open * SHORT_ENDED_RATIO);
            }
            return None;
        }
        if self.is_unrelated_to_load(summary, seconds) {
            self.baseline = Some(seconds);
            self.forget_overload();
            return None;
        }
        // An unused limit first becomes the number of open streams: that many may be well.
        let target = match is_used {
            true => summary.open * (baseline / seconds).sqrt().max(MIN_FACTOR),
            false => f64::from(summary.peak_open),
        };
        self.last_overload = summary.peak_open;
        self.lower(DecreaseCause::Latency, target, now)
    }

    /// Returns whether the limit is used. A refusal is enough: a class of clients may use only its
    /// share of the limit.
    fn is_used(&self, open: u32, has_refused: bool) -> bool {
        has_refused || f64::from(open) >= f64::from(self.limit) * USED_RATIO
    }

    fn is_slow(&self, seconds: f64, error_seconds: f64) -> bool {
        self.baseline.is_some_and(|baseline| seconds > baseline * TOLERANCE + error_seconds * SIGNIFICANCE)
    }

    /// Records a slow window. Returns whether it has other causes than the number of open streams:
    /// twice, fewer were open than in an earlier slow window, and the time was about the same. Or
    /// the limit is at the floor, and was in earlier slow windows.
    fn is_unrelated_to_load(&mut self, summary: WindowSummary, seconds: f64) -> bool {
        if self.limit == self.floor() {
            self.floor_windows += 1;
            return self.floor_windows >= MAX_FLOOR_WINDOWS;
        }
        let latest = |futile| Some(Overload::Slow { open: summary.open, seconds, futile });
        let Some(Overload::Slow { open, seconds: before, futile }) = self.overload else {
            self.overload = latest(0);
            return false;
        };
        let open_ratio = summary.open / open.max(1.0);
        if seconds > before * MAX_STEADY_FACTOR || seconds < before * (1.0 + open_ratio) / 2.0 {
            self.overload = latest(0);
        } else if open_ratio <= JUDGED_RATIO {
            self.overload = latest(futile + 1);
            return futile + 1 >= MAX_FUTILE_DECREASES;
        }
        false
    }

    /// Returns whether significantly more starts fail than without overload.
    fn is_failing(&self, summary: &WindowSummary) -> bool {
        let chance = failed_variance(self.baseline_failed, summary.samples).sqrt() * SIGNIFICANCE;
        summary.failed >= MIN_FAILED
            && summary.failed_ratio > self.baseline_failed + MAX_FAILED_RATIO.max(chance)
    }

    /// Records a window with failures. Returns whether the number of open streams may be their
    /// cause. It isn't if clearly more fail than fewer open streams would explain. Or the limit is
    /// at the floor, and was in earlier windows with failures.
    fn failures_depend_on_load(&mut self, summary: &WindowSummary) -> bool {
        let WindowSummary { open, failed_ratio, samples, .. } = *summary;
        let Some(Overload::Failing { open: open_before, failed_ratio: before, samples: samples_before }) =
            self.overload
        else {
            self.overload = Some(Overload::Failing { open, failed_ratio, samples });
            self.floor_windows = 0;
            return true;
        };
        if failed_ratio > MAX_BASELINE_FAILED {
            self.floor_windows = 0;
            return true;
        }
        if self.limit == self.floor() {
            self.floor_windows += 1;
            return self.floor_windows < MAX_FLOOR_WINDOWS;
        }
        let open_ratio = open / open_before.max(1.0);
        // Half of the way from no effect to failures in proportion to the open streams.
        let factor = (1.0 + open_ratio) / 2.0;
        let variance =
            failed_variance(before, samples_before) * factor.powi(2) + failed_variance(failed_ratio, samples);
        let clearly_more = failed_ratio - variance.sqrt() * FAILED_SIGNIFICANCE > before * factor;
        open_ratio > JUDGED_RATIO || !clearly_more
    }

    /// Load is not the cause of the last slow or failed windows: raises the limit as at the start.
    fn forget_overload(&mut self) {
        (self.overload, self.floor_windows) = (None, 0);
        (self.step, self.last_overload) = (self.limit, 0);
    }

    fn begin_window(&mut self, now: Duration) {
        self.window_before = self.window.began();
        self.window = self.window.next(now);
    }

    fn lower(&mut self, cause: DecreaseCause, target: f64, now: Duration) -> Option<LimitDecrease> {
        (self.step, self.calm_windows) = (0, 0);
        self.failed_probes = self.failed_probes.saturating_add(u32::from(self.is_probing));
        self.is_probing = false;
        // Streams that started before are no evidence for the new limit.
        self.begin_window(now);
        self.lowered_at = now;
        let (from, to) = (self.limit, (target as u32).clamp(self.floor(), self.limit));
        if to == from {
            return None;
        }
        self.limit = to;
        self.last_decrease = Some(LimitDecrease { cause, from, to, at: now });
        self.last_decrease
    }

    fn raise(&mut self, are_short: bool) {
        if self.is_pressed {
            return;
        }
        let least = (f64::from(self.limit).sqrt() / 2.0).ceil() as u32;
        let step = match self.last_overload.checked_sub(self.limit) {
            Some(distance) if distance <= self.limit / 4 && self.calm_windows < PLATEAU_WINDOWS => return,
            Some(distance) => (distance / 2).max(least),
            None => {
                let step = self.step.max(least);
                self.step = step.saturating_mul(2).min(self.limit);
                step
            }
        };
        let max = if are_short { u32::MAX } else { (self.limit / LONG_STREAMS_STEP).max(least) };
        self.limit = self.limit.saturating_add(step.min(max)).min(self.total);
    }
}

/// Returns the variance of a fraction of failed starts.
fn failed_variance(ratio: f64, samples: f64) -> f64 {
    ratio * (1.0 - ratio) / samples.max(1.0)
}

#[cfg(test)]
#[path = "adaptive_limit_tests.rs"]
mod tests;
