//! Configuration of an admission.

use std::fmt;
use std::time::Duration;

use forebay_quota::Quota;

use crate::admission::Admission;
use crate::client_identity::Class;
use crate::core::health::Thresholds;
use crate::stream_log::StageLevel;

/// Configuration of an [`Admission`]; created by [`Admission::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) total: u32,
    pub(crate) per_user: u32,
    pub(crate) thresholds: Thresholds,
    pub(crate) classes: Vec<(Class, u8)>,
    pub(crate) wait: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) max_waiting_per_user: usize,
    pub(crate) memory: MemoryBound,
    pub(crate) cpu: Option<f64>,
    pub(crate) cpu_window: Duration,
    pub(crate) adaptive: Option<(u32, AdaptiveSignals)>,
    pub(crate) salt: Option<Vec<u8>>,
    pub(crate) stage_level: StageLevel,
}

/// Memory use above which this process refuses new streams.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum MemoryBound {
    /// No bound.
    Off,
    /// Resident memory in bytes.
    Bytes(u64),
    /// Fraction of the cgroup's memory limit, or of the machine's memory if there is none.
    Fraction(f64),
}

/// What lowers the adaptive limit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdaptiveSignals {
    /// Time to the first byte and failures of new streams, and memory and CPU use of this process.
    /// The limit begins at the floor, because the time without overload must be measured first.
    StartsAndProcess,
    /// Memory and CPU use of this process only, for services whose time to the first byte doesn't
    /// depend on their load, such as long-polls. The limit begins at the total.
    Process,
}

impl AdaptiveSignals {
    pub(crate) fn initial_limit(self, floor: u32, total: u32) -> u32 {
        match self {
            AdaptiveSignals::StartsAndProcess => floor,
            AdaptiveSignals::Process => total,
        }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            name: "streams".to_owned(),
            total: 10_000,
            per_user: 3,
            thresholds: Thresholds::default(),
            classes: vec![(Class::ANONYMOUS, 90), (Class::USER, 100)],
            wait: Duration::ZERO,
            max_waiting: 1_024,
            max_waiting_per_user: 8,
            memory: MemoryBound::Fraction(0.95),
            cpu: None,
            cpu_window: Duration::from_secs(5),
            adaptive: None,
            salt: None,
            stage_level: StageLevel::Debug,
        }
    }
}

impl Builder {
    /// Sets the name of the limits in the store. Admissions with the same name share their limits.
    /// Default `streams`.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Sets the maximum number of open streams in the cluster. Default 10,000.
    pub fn total(mut self, limit: u32) -> Self {
        self.total = limit;
        self
    }

    /// Sets the maximum number of open streams per user, or per address, in the cluster. Default 3.
    pub fn per_user(mut self, limit: u32) -> Self {
        self.per_user = limit;
        self
    }

    /// Sets the percentages of the total at which the health state becomes `degraded` and
    /// `critical`. Default 70 and 90. Values above 100 count as 100; a critical below degraded
    /// counts as degraded.
    pub fn thresholds(mut self, degraded_percent: u8, critical_percent: u8) -> Self {
        self.thresholds = Thresholds::new(degraded_percent, critical_percent, HYSTERESIS_POINTS);
        self
    }

    /// Sets the share of the total, in percent, that a class may use; 0 refuses the class. The rest
    /// is left for other classes. Default: `anonymous` 90, `user` 100.
    pub fn class(mut self, class: Class, percent: u8) -> Self {
        self.classes.retain(|(listed, _)| *listed != class);
        self.classes.push((class, percent.min(100)));
        self
    }

    /// Returns the configured classes.
    pub fn classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().map(|(class, _)| class)
    }

    /// Sets how long a request may wait for a free stream before the 503. Default 0: no wait. Users
    /// are served in turn.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = at_most;
        self
    }

    /// Sets how many requests may wait, in total and per user. Default 1,024 and 8. Further
    /// requests are rejected immediately. Anonymous clients are bounded by the first only.
    pub fn max_waiting(mut self, in_all: usize, per_user: usize) -> Self {
        (self.max_waiting, self.max_waiting_per_user) = (in_all, per_user);
        self
    }

    /// Sets the memory use above which this process refuses new streams. Default: 95 % of its
    /// limit.
    pub fn shed_by_memory(mut self, bound: MemoryBound) -> Self {
        self.memory = bound;
        self
    }

    /// Sets the fraction of its CPUs, averaged over 5 s, above which this process refuses new
    /// streams. Off by default: a busy process may still keep up.
    pub fn shed_by_cpu(mut self, fraction: f64) -> Self {
        self.cpu = Some(fraction);
        self
    }

    /// Bounds the open streams of this process by a limit that follows what it and the service
    /// behind it can carry, between `floor` and the total. Off by default. Open streams survive a
    /// lower limit.
    ///
    /// [`AdmissionLayer`](crate::AdmissionLayer) measures the starts of streams. With
    /// [`Admission::admit`] alone, use [`AdaptiveSignals::Process`].
    pub fn adaptive(mut self, floor: u32, signals: AdaptiveSignals) -> Self {
        self.adaptive = Some((floor.max(1), signals));
        self
    }

    /// Sets the salt of user hashes in logs and status. With the same salt, all processes log the
    /// same hash for a user. Default: random per process.
    pub fn log_salt(mut self, salt: &[u8]) -> Self {
        self.salt = Some(salt.to_vec());
        self
    }

    /// Sets the level of the log lines about the stages of a stream. Default: debug.
    pub fn stage_level(mut self, level: StageLevel) -> Self {
        self.stage_level = level;
        self
    }

    /// Creates the admission. Its limits hold across all members of the quota. Metrics go to the
    /// recorder that is installed at this point.
    ///
    /// # Panics
    /// Panics outside a tokio runtime: a task samples health and metrics once per second.
    pub fn build(self, quota: Quota) -> Admission {
        Admission::new(self, quota)
    }
}

/// Omits the salt: with it, an attacker could find users by their hashes.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Exhaustive destructuring: a new field does not compile until it is listed.
        let Builder {
            name,
            total,
            per_user,
            thresholds,
            classes,
            wait,
            max_waiting,
            max_waiting_per_user,
            memory,
            cpu,
            cpu_window,
            adaptive,
            salt,
            stage_level,
        } = self;
        f.debug_struct("Builder")
            .field("name", name)
            .field("total", total)
            .field("per_user", per_user)
            .field("thresholds", thresholds)
            .field("classes", classes)
            .field("wait", wait)
            .field("max_waiting", max_waiting)
            .field("max_waiting_per_user", max_waiting_per_user)
            .field("memory", memory)
            .field("cpu", cpu)
            .field("cpu_window", cpu_window)
            .field("adaptive", adaptive)
            .field("salted", &salt.is_some())
            .field("stage_level", stage_level)
            .finish()
    }
}

/// Percentage points below a threshold at which its state is left.
const HYSTERESIS_POINTS: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_contains_no_salt() {
        let text = format!("{:?}", Admission::builder().name("chat").log_salt(b"~~~~"));
        assert!(text.contains("chat") && text.contains("salted: true"), "{text}");
        assert!(!text.contains("126") && !text.contains('~'), "{text}");
    }
}
