//! Load shedding by memory and CPU.
//!
//! Invariant: shedding starts with a sample at or above a bound. It ends with a sample below the
//! bound minus the hysteresis. While shedding, new streams are refused; open streams stay open.
//! Enforced by: only [`ResourcePressure::step`] changes the decision. An unreadable value never
//! causes shedding.
//! Out of scope: reading `/proc` and control groups; see `resource_usage.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// Why new streams are refused before the limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ShedCause {
    /// Memory use has reached its bound.
    Memory,
    /// Average CPU use over the window has reached its bound.
    Cpu,
}

impl ShedCause {
    /// All causes.
    pub const ALL: [ShedCause; 2] = [ShedCause::Memory, ShedCause::Cpu];

    /// Returns the name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ShedCause::Memory => "memory",
            ShedCause::Cpu => "cpu",
        }
    }
}

/// Bounds at which shedding starts; `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PressureBounds {
    /// In the unit of [`ResourceSample::memory`].
    pub(crate) memory: Option<f64>,
    /// Fraction of the usable CPUs.
    pub(crate) cpu: Option<f64>,
    /// Averaging window of CPU use.
    pub(crate) window: Duration,
    /// How far below its bound a value must fall to end shedding.
    pub(crate) hysteresis: f64,
}

/// The adaptive limit regards this part of a bound as the whole, so that it falls before streams
/// are shed: its own bound is 90 % of the whole.
const ADAPTIVE_SCALE: f64 = 0.95 / 0.9;

impl PressureBounds {
    /// Returns memory and CPU use as the adaptive limit takes them: in relation to the bounds, if
    /// these are lower than its own. CPU use counts without a bound, too.
    pub(crate) fn for_adaptive_limit(
        &self,
        memory: Option<f64>,
        cpu: Option<f64>,
    ) -> (Option<f64>, Option<f64>) {
        let scaled = |value: Option<f64>, bound: Option<f64>| {
            value.map(|value| value / bound.map_or(1.0, |bound| (bound * ADAPTIVE_SCALE).clamp(0.01, 1.0)))
        };
        (scaled(memory, self.memory), scaled(cpu, self.cpu))
    }
}

/// Measurements at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ResourceSample {
    /// Resident memory, divided by the configured bound in bytes or by the memory limit.
    pub(crate) memory: Option<f64>,
    /// CPU time used since process start.
    pub(crate) cpu_time: Option<Duration>,
    /// Usable CPUs.
    pub(crate) cpus: f64,
}

/// Samples of the window and the resulting decision.
#[derive(Debug, Clone)]
pub(crate) struct ResourcePressure {
    bounds: PressureBounds,
    /// (time since start, CPU time used), oldest first; bounded by the window.
    history: VecDeque<(Duration, Duration)>,
    /// Fraction of the usable CPUs that was used over the window; `None` until the window is full.
    cpu: Option<f64>,
    shed_cause: Option<ShedCause>,
}

impl ResourcePressure {
    pub(crate) fn new(bounds: PressureBounds) -> Self {
        ResourcePressure { bounds, history: VecDeque::new(), cpu: None, shed_cause: None }
    }

    /// Adds a sample; `now` is the time since start. Returns whether the decision changed.
    pub(crate) fn step(&mut self, sample: ResourceSample, now: Duration) -> bool {
        self.cpu = self.average_cpu(sample, now);
        let over = |shed_cause, value: Option<f64>, bound: Option<f64>| {
            let (Some(value), Some(bound)) = (value, bound) else { return false };
            value >= if self.shed_cause == Some(shed_cause) { bound - self.bounds.hysteresis } else { bound }
        };
        let shed_cause = if over(ShedCause::Memory, sample.memory, self.bounds.memory) {
            Some(ShedCause::Memory)
        } else if over(ShedCause::Cpu, self.cpu, self.bounds.cpu) {
            Some(ShedCause::Cpu)
        } else {
            None
        };
        let changed = shed_cause != self.shed_cause;
        self.shed_cause = shed_cause;
        changed
    }

    /// Returns why new streams are refused, if they are.
    pub(crate) fn shed_cause(&self) -> Option<ShedCause> {
        self.shed_cause
    }

    /// Returns the fraction of the usable CPUs that the process used over the window.
    pub(crate) fn cpu(&self) -> Option<f64> {
        self.cpu
    }

    /// Returns the average CPU use over the window; `None` until the window is full.
    fn average_cpu(&mut self, sample: ResourceSample, now: Duration) -> Option<f64> {
        let used = sample.cpu_time?;
        self.history.push_back((now, used));
        // The latest sample at or before the start of the window is kept.
        while self.history.get(1).is_some_and(|(at, _)| *at + self.bounds.window <= now) {
            self.history.pop_front();
        }
        let (window_start, used_before) = *self.history.front()?;
        // There is no average before the window is full: a busy first second is not an overload.
        let elapsed = now.saturating_sub(window_start);
        let is_full = elapsed >= self.bounds.window && sample.cpus > 0.0 && !elapsed.is_zero();
        is_full.then(|| used.saturating_sub(used_before).as_secs_f64() / elapsed.as_secs_f64() / sample.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: PressureBounds = PressureBounds {
        memory: Some(0.9),
        cpu: Some(0.8),
        window: Duration::from_secs(5),
        hysteresis: 0.05,
    };

    fn memory(fraction: f64) -> ResourceSample {
        ResourceSample { memory: Some(fraction), cpu_time: None, cpus: 2.0 }
    }

    /// Adds one sample per second; the process uses `cpus` of two CPUs.
    fn busy(pressure: &mut ResourcePressure, from: u64, seconds: u64, spent: &mut f64, cpus: f64) {
        for second in from..from + seconds {
            let sample =
                ResourceSample { memory: None, cpu_time: Some(Duration::from_secs_f64(*spent)), cpus: 2.0 };
            pressure.step(sample, Duration::from_secs(second));
            *spent += cpus;
        }
    }

    #[test]
    fn memory_above_its_bound_sheds_until_it_is_below_by_the_hysteresis() {
        let mut pressure = ResourcePressure::new(BOUNDS);
        let mut at = |fraction| {
            let changed = pressure.step(memory(fraction), Duration::ZERO);
            (changed, pressure.shed_cause())
        };
        assert_eq!(at(0.89), (false, None));
        assert_eq!(at(0.90), (true, Some(ShedCause::Memory)));
        assert_eq!(at(0.86), (false, Some(ShedCause::Memory)));
        assert_eq!(at(0.84), (true, None));
        assert_eq!(at(0.86), (false, None));
    }

    #[test]
    fn cpu_is_averaged_over_the_window_so_a_short_burst_sheds_nothing() {
        let (mut pressure, mut spent) = (ResourcePressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 20, &mut spent, 0.2);
        busy(&mut pressure, 20, 3, &mut spent, 2.0);
        assert_eq!(pressure.shed_cause(), None, "{pressure:?}");
        busy(&mut pressure, 23, 5, &mut spent, 2.0);
        assert_eq!(pressure.shed_cause(), Some(ShedCause::Cpu), "{pressure:?}");
        busy(&mut pressure, 28, 6, &mut spent, 0.2);
        assert_eq!(pressure.shed_cause(), None, "{pressure:?}");
        assert!((pressure.cpu().unwrap() - 0.1).abs() < 1e-6, "{pressure:?}");
    }

    #[test]
    fn cpu_use_is_unknown_before_the_window_is_full() {
        let (mut pressure, mut spent) = (ResourcePressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 5, &mut spent, 2.0);
        assert_eq!((pressure.cpu(), pressure.shed_cause()), (None, None));
        busy(&mut pressure, 5, 1, &mut spent, 2.0);
        assert_eq!((pressure.cpu(), pressure.shed_cause()), (Some(1.0), Some(ShedCause::Cpu)));
    }

    #[test]
    fn the_history_is_bounded_by_the_window() {
        let (mut pressure, mut spent) = (ResourcePressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 1_000, &mut spent, 0.5);
        assert!(pressure.history.len() <= 7, "{}", pressure.history.len());
    }

    #[test]
    fn unreadable_values_and_missing_bounds_shed_nothing() {
        let mut pressure = ResourcePressure::new(BOUNDS);
        assert!(!pressure.step(ResourceSample::default(), Duration::ZERO));
        let mut unbound = ResourcePressure::new(PressureBounds { memory: None, cpu: None, ..BOUNDS });
        assert!(!unbound.step(memory(5.0), Duration::ZERO));
    }

    #[test]
    fn memory_is_reported_before_cpu_and_cpu_remains_when_memory_recovers() {
        let (mut pressure, mut spent) = (ResourcePressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 6, &mut spent, 2.0);
        let both =
            ResourceSample { memory: Some(0.95), cpu_time: Some(Duration::from_secs_f64(spent)), cpus: 2.0 };
        assert!(pressure.step(both, Duration::from_secs(6)));
        assert_eq!(pressure.shed_cause(), Some(ShedCause::Memory));
        busy(&mut pressure, 7, 1, &mut spent, 2.0);
        assert_eq!(pressure.shed_cause(), Some(ShedCause::Cpu));
    }

    #[test]
    fn the_adaptive_limit_reaches_its_own_bound_before_streams_are_shed() {
        let evidence = |memory, cpu, value| {
            let bounds = PressureBounds { memory, cpu, window: Duration::ZERO, hysteresis: 0.0 };
            bounds.for_adaptive_limit(Some(value), Some(value))
        };
        // By default: 95 % of the memory, no bound of the CPU.
        assert_eq!(evidence(Some(0.95), None, 0.9), (Some(0.9), Some(0.9)));
        let (memory, cpu) = evidence(Some(0.6), Some(0.5), 0.58);
        assert!(memory.unwrap() > 0.9 && cpu.unwrap() > 1.0, "{memory:?} {cpu:?}");
        let (memory, cpu) = evidence(Some(0.6), Some(0.7), 0.56);
        assert!(memory.unwrap() < 0.9 && cpu.unwrap() < 0.9, "{memory:?} {cpu:?}");
    }
}
