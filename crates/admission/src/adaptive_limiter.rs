//! Adaptive limiter: counts the open streams of this process against its adaptive limit, and times
//! the starts of streams.
//!
//! Invariant: at most as many [`StreamSlot`]s exist as the limit was when the last one was taken.
//! A lower limit ends no stream.
//! Enforced by: [`AdaptiveLimiter::take`] compares and increments `open` in one atomic operation.
//! Locks: `core` is held for a few arithmetic operations, never across an await. It is taken once
//! per start and once per second, not for a decision.
//! Out of scope: the limit itself; see `core/adaptive_limit.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;
use tracing::{debug, info};

use crate::config::AdaptiveSignals;
use crate::core::adaptive_limit::AdaptiveLimit;
use crate::core::health::percent_of;
use crate::core::limit_evidence::{LimitDecrease, ProcessSample, StartResult, StartSample};
use crate::metrics::AdaptiveMetrics;
use crate::statistics::{AdaptiveDecrease, AdaptiveStatus};
use crate::stream_log::code;

/// How the start of a stream counts for the adaptive limit.
///
/// [`AdmissionLayer`](crate::AdmissionLayer) derives it from the status and the time of a response.
/// A service that knows better puts it into the extensions of its response, or reports it
/// ([`StartReport`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamStart {
    /// The response began after this time, as fast as the service can at its load.
    Answered(Duration),
    /// The service failed: it can't carry its load.
    Failed,
    /// The client left after it had waited for the response for this time.
    Abandoned(Duration),
    /// The start says nothing about the load of the service.
    Ignored,
}

impl StreamStart {
    /// Returns how a response with this status counts that began after `took`.
    ///
    /// Successful responses and 101 count with their time. Every 5xx is a failure, 503 included.
    /// Other responses are ignored: a redirect or a refusal such as 404 or 429 is often faster than
    /// any stream.
    pub fn of(status: StatusCode, took: Duration) -> StreamStart {
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            StreamStart::Answered(took)
        } else if status.is_server_error() {
            StreamStart::Failed
        } else {
            StreamStart::Ignored
        }
    }
}

/// How the start of a stream counts, as its service reports it, also if the client leaves before
/// the response. Clones share it.
///
/// A request has it in its extensions while the adaptive limit times its start, and not otherwise.
#[derive(Debug, Clone, Default)]
pub struct StartReport(Arc<Mutex<Option<StreamStart>>>);

impl StartReport {
    /// Reports how the start counts. Takes precedence over the response.
    pub fn set(&self, start: StreamStart) {
        *self.0.lock() = Some(start);
    }

    /// Returns what was reported last.
    pub fn get(&self) -> Option<StreamStart> {
        *self.0.lock()
    }
}

/// Minimum interval of log lines at info about decreases. Near its capacity the limit falls and
/// rises all the time.
const INFO_INTERVAL: Duration = Duration::from_secs(60);

/// Counts open streams against the adaptive limit.
pub(crate) struct AdaptiveLimiter {
    /// The current limit, cached from `core`.
    limit: AtomicU32,
    /// Slots that exist.
    open: AtomicU32,
    /// Timers that exist.
    starting: AtomicU32,
    /// Whether the limit refused a request since the last sample of the process.
    has_refused: AtomicBool,
    signals: AdaptiveSignals,
    created_at: Instant,
    core: Mutex<AdaptiveLimit>,
    /// When a decrease was last logged at info.
    logged_at: Mutex<Option<Duration>>,
    metrics: AdaptiveMetrics,
}

impl AdaptiveLimiter {
    pub(crate) fn new(floor: u32, total: u32, signals: AdaptiveSignals) -> Self {
        let core = AdaptiveLimit::new(floor, total, signals.initial_limit(floor, total));
        let metrics = AdaptiveMetrics::new();
        metrics.limit.set(f64::from(core.limit()));
        AdaptiveLimiter {
            limit: AtomicU32::new(core.limit()),
            open: AtomicU32::new(0),
            starting: AtomicU32::new(0),
            has_refused: AtomicBool::new(false),
            signals,
            created_at: Instant::now(),
            core: Mutex::new(core),
            logged_at: Mutex::new(None),
            metrics,
        }
    }

    /// Returns the current limit.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns the number of open streams that have a slot.
    pub(crate) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Takes a slot. Returns `None` if the limit is reached.
    pub(crate) fn take(self: &Arc<Self>) -> Option<StreamSlot> {
        let limit = self.limit();
        let taken = self
            .open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < limit).then(|| open + 1));
        match taken {
            Ok(before) => Some(StreamSlot { limiter: Arc::clone(self), open_at_start: before + 1 }),
            Err(_) => {
                self.has_refused.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Returns whether `more` streams would exceed this share of the limit, in percent.
    pub(crate) fn exceeds_share(&self, percent: u8, more: u32) -> bool {
        let least = u32::from(percent > 0);
        let exceeds = self.open().saturating_add(more) > percent_of(self.limit(), percent).max(least);
        if exceeds {
            self.has_refused.store(true, Ordering::Relaxed);
        }
        exceeds
    }

    /// Changes the highest possible limit.
    pub(crate) fn set_total(&self, total: u32) {
        let mut core = self.core.lock();
        core.set_total(total);
        self.publish(&core, None);
    }

    /// Adds the memory and CPU use of this process as fractions of what it may use, once per
    /// second.
    pub(crate) fn sample(&self, memory: Option<f64>, cpu: Option<f64>, now: Instant) {
        let sample = ProcessSample {
            memory,
            cpu,
            open: self.open(),
            starting: self.starting.load(Ordering::Relaxed),
            has_refused: self.has_refused.swap(false, Ordering::Relaxed),
        };
        let mut core = self.core.lock();
        let decrease = core.record_process(sample, self.since_created(now));
        self.publish(&core, decrease);
    }

    /// Returns the state for operators.
    pub(crate) fn status(&self) -> AdaptiveStatus {
        let (core, now) = (self.core.lock(), self.created_at.elapsed());
        AdaptiveStatus {
            limit: core.limit(),
            floor: core.floor(),
            open: self.open(),
            first_byte_seconds: core.latest_seconds(),
            baseline_seconds: core.baseline_seconds(),
            last_decrease: core.last_decrease().map(|LimitDecrease { cause, from, to, at }| {
                AdaptiveDecrease { cause, from, to, seconds_ago: now.saturating_sub(at).as_secs() }
            }),
        }
    }

    fn record_start(&self, sample: StartSample, now: Duration) {
        let mut core = self.core.lock();
        let decrease = core.record_start(sample, now);
        self.publish(&core, decrease);
    }

    /// Makes a change of the limit visible. The caller holds the lock, so changes stay in order.
    fn publish(&self, core: &AdaptiveLimit, decrease: Option<LimitDecrease>) {
        let limit = core.limit();
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            self.metrics.limit.set(f64::from(limit));
        }
        if let Some(LimitDecrease { cause, from, to, at }) = decrease {
            self.metrics.decreased(cause);
            let (stage, cause, open) = (code::HEALTH, cause.as_str(), self.open());
            if self.may_log(at) {
                info!(stage, cause, from, to, open, "adaptive limit lowered");
            } else {
                debug!(stage, cause, from, to, open, "adaptive limit lowered");
            }
        }
    }

    /// Returns whether a decrease at this time is logged at info.
    fn may_log(&self, at: Duration) -> bool {
        let mut logged_at = self.logged_at.lock();
        let may = logged_at.is_none_or(|logged| at.saturating_sub(logged) >= INFO_INTERVAL);
        if may {
            *logged_at = Some(at);
        }
        may
    }

    fn since_created(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.created_at)
    }
}

/// Right of one stream to be open in this process. Dropping it frees the slot.
pub(crate) struct StreamSlot {
    limiter: Arc<AdaptiveLimiter>,
    open_at_start: u32,
}

impl StreamSlot {
    /// Returns a timer for the start of the stream, if its time is evidence.
    pub(crate) fn timer(&self) -> Option<StartTimer> {
        (self.limiter.signals == AdaptiveSignals::StartsAndProcess).then(|| {
            self.limiter.starting.fetch_add(1, Ordering::Relaxed);
            StartTimer {
                limiter: Arc::clone(&self.limiter),
                open_at_start: self.open_at_start,
                started_at: Instant::now(),
                outcome: None,
                report: StartReport::default(),
            }
        })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.limiter.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Times the start of a stream. If it is dropped before [`finish`](Self::finish), the client left
/// before the first byte.
pub(crate) struct StartTimer {
    limiter: Arc<AdaptiveLimiter>,
    open_at_start: u32,
    started_at: Instant,
    outcome: Option<StreamStart>,
    report: StartReport,
}

impl StartTimer {
    /// Returns what the service may report.
    pub(crate) fn report(&self) -> &StartReport {
        &self.report
    }

    /// Returns what the service has reported.
    pub(crate) fn reported(&self) -> Option<StreamStart> {
        self.report.get()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub(crate) fn finish(mut self, outcome: StreamStart) {
        self.outcome = Some(outcome);
    }
}

impl Drop for StartTimer {
    fn drop(&mut self) {
        let (limiter, now) = (&*self.limiter, Instant::now());
        limiter.starting.fetch_sub(1, Ordering::Relaxed);
        let result = match self.outcome.or_else(|| self.reported()) {
            Some(StreamStart::Answered(took)) => StartResult::Answered(took),
            Some(StreamStart::Failed) => StartResult::Failed,
            Some(StreamStart::Abandoned(waited)) => StartResult::Abandoned(waited),
            Some(StreamStart::Ignored) => return,
            None => StartResult::Abandoned(now.saturating_duration_since(self.started_at)),
        };
        let sample = StartSample {
            started_at: limiter.since_created(self.started_at),
            result,
            open_at_start: self.open_at_start,
            open: limiter.open(),
            has_refused: limiter.has_refused.load(Ordering::Relaxed),
        };
        limiter.record_start(sample, limiter.since_created(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(floor: u32, total: u32, signals: AdaptiveSignals) -> Arc<AdaptiveLimiter> {
        Arc::new(AdaptiveLimiter::new(floor, total, signals))
    }

    #[test]
    fn slots_are_bounded_by_the_limit_and_reused() {
        let limiter = limiter(2, 100, AdaptiveSignals::StartsAndProcess);
        let (one, _two) = (limiter.take().unwrap(), limiter.take().unwrap());
        assert!(limiter.take().is_none());
        drop(one);
        assert!(limiter.take().is_some());
        assert_eq!(limiter.open(), 1);
    }

    #[test]
    fn without_start_times_the_limit_begins_at_the_total() {
        assert_eq!(limiter(2, 100, AdaptiveSignals::Process).limit(), 100);
        assert_eq!(limiter(2, 100, AdaptiveSignals::StartsAndProcess).limit(), 2);
        assert_eq!(limiter(200, 100, AdaptiveSignals::StartsAndProcess).limit(), 100);
        let limiter = limiter(2, 100, AdaptiveSignals::Process);
        limiter.set_total(50);
        assert_eq!(limiter.limit(), 50);
        assert!(limiter.take().unwrap().timer().is_none());
    }

    #[test]
    fn a_timer_counts_as_pending_until_it_ends() {
        let limiter = limiter(2, 100, AdaptiveSignals::StartsAndProcess);
        let slot = limiter.take().unwrap();
        let (first, second) = (slot.timer().unwrap(), slot.timer().unwrap());
        assert_eq!(limiter.starting.load(Ordering::Relaxed), 2);
        first.finish(StreamStart::Ignored);
        drop(second);
        assert_eq!(limiter.starting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn decreases_are_logged_at_info_once_a_minute() {
        let limiter = limiter(2, 100, AdaptiveSignals::Process);
        let at = [0, 1, 59, 60, 61, 120].map(Duration::from_secs);
        assert_eq!(at.map(|at| limiter.may_log(at)), [true, false, false, true, false, true]);
    }

    #[test]
    fn a_response_counts_by_its_status() {
        let took = Duration::from_millis(3);
        let of = |status: u16| StreamStart::of(StatusCode::from_u16(status).unwrap(), took);
        for status in [101, 200, 204, 206] {
            assert_eq!(of(status), StreamStart::Answered(took), "{status}");
        }
        for status in [500, 502, 503, 504] {
            assert_eq!(of(status), StreamStart::Failed, "{status}");
        }
        for status in [301, 304, 400, 401, 404, 408, 429] {
            assert_eq!(of(status), StreamStart::Ignored, "{status}");
        }
    }
}
