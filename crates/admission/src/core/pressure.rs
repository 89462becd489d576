//! Whether this process has the strength for another stream.
//!
//! Invariant: new streams are refused from the sample that passes a bound until the sample that is below it by the
//! hysteresis; open streams are never touched.
//! Kept by: [`Pressure::step`] is the only function that changes the answer. A value that can't be read counts as no
//! pressure: not knowing is no reason to refuse.
//! Not here: reading `/proc` and the control group; see `machine.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// Why new streams are refused before the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strain {
    /// This process holds more memory than its bound.
    Memory,
    /// This process used more CPU than its bound, over the window.
    Cpu,
}

impl Strain {
    /// Both.
    pub const ALL: [Strain; 2] = [Strain::Memory, Strain::Cpu];

    /// The name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Strain::Memory => "memory",
            Strain::Cpu => "cpu",
        }
    }
}

/// What is too much. Both are compared with a fraction, of the memory limit and of the CPUs that the process may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) memory: Option<f64>,
    pub(crate) cpu: Option<f64>,
    /// CPU is averaged over so long.
    pub(crate) window: Duration,
    /// A strain ends when it is so much below its bound.
    pub(crate) hysteresis: f64,
}

/// What was read, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Sample {
    /// Resident memory as a fraction of its bound's base.
    pub(crate) memory: Option<f64>,
    /// CPU time that the process has used since it began.
    pub(crate) cpu_time: Option<Duration>,
    /// CPUs that it may use.
    pub(crate) cpus: f64,
}

/// The samples of the window, and what follows from them.
#[derive(Debug, Clone)]
pub(crate) struct Pressure {
    bounds: Bounds,
    /// (since the process watched, CPU time used), oldest first; bounded by the window.
    history: VecDeque<(Duration, Duration)>,
    cpu: Option<f64>,
    strain: Option<Strain>,
}

impl Pressure {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Pressure { bounds, history: VecDeque::new(), cpu: None, strain: None }
    }

    /// Takes a sample in, `now` since watching began. True if the answer changed.
    pub(crate) fn step(&mut self, sample: Sample, now: Duration) -> bool {
        self.cpu = self.average(sample, now);
        let over = |strain, value: Option<f64>, bound: Option<f64>| {
            let (Some(value), Some(bound)) = (value, bound) else { return false };
            value >= if self.strain == Some(strain) { bound - self.bounds.hysteresis } else { bound }
        };
        let strain = if over(Strain::Memory, sample.memory, self.bounds.memory) {
            Some(Strain::Memory)
        } else if over(Strain::Cpu, self.cpu, self.bounds.cpu) {
            Some(Strain::Cpu)
        } else {
            None
        };
        let changed = strain != self.strain;
        self.strain = strain;
        changed
    }

    /// Why new streams are refused now.
    pub(crate) fn strain(&self) -> Option<Strain> {
        self.strain
    }

    /// The share of its CPUs that the process used over the window.
    pub(crate) fn cpu(&self) -> Option<f64> {
        self.cpu
    }

    fn average(&mut self, sample: Sample, now: Duration) -> Option<f64> {
        let used = sample.cpu_time?;
        self.history.push_back((now, used));
        // One sample from before the window stays: it is where the window begins.
        while self.history.get(1).is_some_and(|(at, _)| *at + self.bounds.window <= now) {
            self.history.pop_front();
        }
        let (begun, before) = *self.history.front()?;
        // A young history says too little: a busy first second is no overload.
        let passed = now.saturating_sub(begun);
        let full = passed >= self.bounds.window && sample.cpus > 0.0 && !passed.is_zero();
        full.then(|| used.saturating_sub(before).as_secs_f64() / passed.as_secs_f64() / sample.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { memory: Some(0.9), cpu: Some(0.8), window: Duration::from_secs(5), hysteresis: 0.05 };

    fn memory(fraction: f64) -> Sample {
        Sample { memory: Some(fraction), cpu_time: None, cpus: 2.0 }
    }

    /// One sample in each second; the process used so many CPUs of two.
    fn busy(pressure: &mut Pressure, from: u64, seconds: u64, spent: &mut f64, cpus: f64) {
        for second in from..from + seconds {
            let sample = Sample { memory: None, cpu_time: Some(Duration::from_secs_f64(*spent)), cpus: 2.0 };
            pressure.step(sample, Duration::from_secs(second));
            *spent += cpus;
        }
    }

    #[test]
    fn memory_beyond_its_bound_refuses_until_it_is_well_below() {
        let mut pressure = Pressure::new(BOUNDS);
        let mut at = |fraction| {
            let changed = pressure.step(memory(fraction), Duration::ZERO);
            (changed, pressure.strain())
        };
        assert_eq!(at(0.89), (false, None));
        assert_eq!(at(0.90), (true, Some(Strain::Memory)));
        assert_eq!(at(0.86), (false, Some(Strain::Memory)));
        assert_eq!(at(0.84), (true, None));
        assert_eq!(at(0.86), (false, None));
    }

    #[test]
    fn cpu_is_averaged_over_the_window_so_a_burst_refuses_nobody() {
        let (mut pressure, mut spent) = (Pressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 20, &mut spent, 0.2);
        busy(&mut pressure, 20, 3, &mut spent, 2.0);
        assert_eq!(pressure.strain(), None, "{pressure:?}");
        busy(&mut pressure, 23, 5, &mut spent, 2.0);
        assert_eq!(pressure.strain(), Some(Strain::Cpu), "{pressure:?}");
        busy(&mut pressure, 28, 6, &mut spent, 0.2);
        assert_eq!(pressure.strain(), None, "{pressure:?}");
        assert!((pressure.cpu().unwrap() - 0.1).abs() < 1e-6, "{pressure:?}");
    }

    #[test]
    fn nothing_is_known_of_the_cpu_before_the_window_is_full() {
        let (mut pressure, mut spent) = (Pressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 5, &mut spent, 2.0);
        assert_eq!((pressure.cpu(), pressure.strain()), (None, None));
        busy(&mut pressure, 5, 1, &mut spent, 2.0);
        assert_eq!((pressure.cpu(), pressure.strain()), (Some(1.0), Some(Strain::Cpu)));
    }

    #[test]
    fn the_history_is_bounded_by_the_window() {
        let (mut pressure, mut spent) = (Pressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 1_000, &mut spent, 0.5);
        assert!(pressure.history.len() <= 7, "{}", pressure.history.len());
    }

    #[test]
    fn what_cannot_be_read_refuses_nobody_and_without_bounds_nothing_does() {
        let mut pressure = Pressure::new(BOUNDS);
        assert!(!pressure.step(Sample::default(), Duration::ZERO));
        let mut unbound = Pressure::new(Bounds { memory: None, cpu: None, ..BOUNDS });
        assert!(!unbound.step(memory(5.0), Duration::ZERO));
    }

    #[test]
    fn memory_is_named_before_cpu_and_cpu_remains_when_memory_is_gone() {
        let (mut pressure, mut spent) = (Pressure::new(BOUNDS), 0.0);
        busy(&mut pressure, 0, 6, &mut spent, 2.0);
        let both = Sample { memory: Some(0.95), cpu_time: Some(Duration::from_secs_f64(spent)), cpus: 2.0 };
        assert!(pressure.step(both, Duration::from_secs(6)));
        assert_eq!(pressure.strain(), Some(Strain::Memory));
        busy(&mut pressure, 7, 1, &mut spent, 2.0);
        assert_eq!(pressure.strain(), Some(Strain::Cpu));
    }
}
