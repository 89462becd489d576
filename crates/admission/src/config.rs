//! How an admission behaves.

use std::fmt;
use std::time::Duration;

use forebay_quota::Quota;

use crate::admission::Admission;
use crate::core::health::Thresholds;
use crate::visitor::Class;

/// How an [`Admission`] behaves. Made by [`Admission::builder`], with the seed's defaults.
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
    pub(crate) salt: Option<Vec<u8>>,
}

/// How much memory this process may hold before it takes no new streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryBound {
    /// Any amount.
    Off,
    /// So many bytes of resident memory.
    Bytes(u64),
    /// This fraction of the limit of its control group, or of the machine's memory where there is none.
    Fraction(f64),
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
            salt: None,
        }
    }
}

impl Builder {
    /// The name of the limits in the store: admissions of one name share them. Default `streams`.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Streams that may be open in the whole cluster. Default 10,000.
    pub fn total(mut self, limit: u32) -> Self {
        self.total = limit;
        self
    }

    /// Streams that one user, or one address, may have open in the whole cluster. Default 3.
    pub fn per_user(mut self, limit: u32) -> Self {
        self.per_user = limit;
        self
    }

    /// From how many percent of the total on the state is `degraded`, and `critical`. Default 70 and 90. More than 100 is
    /// 100; a critical below degraded is degraded.
    pub fn thresholds(mut self, degraded_percent: u8, critical_percent: u8) -> Self {
        self.thresholds = Thresholds::new(degraded_percent, critical_percent, HYSTERESIS_POINTS);
        self
    }

    /// Visitors of a class are refused from so many percent of the total on, so that the rest is left for others; 0 refuses
    /// them all. Default: `anonymous` 90, `user` 100.
    pub fn class(mut self, class: Class, percent: u8) -> Self {
        self.classes.retain(|(known, _)| *known != class);
        self.classes.push((class, percent.min(100)));
        self
    }

    /// The classes that have a share by now.
    pub fn classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().map(|(class, _)| class)
    }

    /// How long a visitor may wait for a stream to come free, before the 503. Default 0: not at all. Users take turns.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = at_most;
        self
    }

    /// How many may wait at once, in all and of one user. Default 1,024 and 8; more are refused at once. The anonymous are
    /// bounded by the first alone.
    pub fn max_waiting(mut self, in_all: usize, per_user: usize) -> Self {
        (self.max_waiting, self.max_waiting_per_user) = (in_all, per_user);
        self
    }

    /// Beyond how much memory this process takes no new streams. Default: 95 % of what it may have.
    pub fn shed_by_memory(mut self, bound: MemoryBound) -> Self {
        self.memory = bound;
        self
    }

    /// Beyond which fraction of the CPU that it may use, over a window of 5 s, this process takes no new streams. Default
    /// none: a busy process is not yet one that can't keep up.
    pub fn shed_by_cpu(mut self, fraction: f64) -> Self {
        self.cpu = Some(fraction);
        self
    }

    /// The salt under which users are hashed in logs and status, so that a user has the same hash in every process. Default:
    /// a random one for each process.
    pub fn log_salt(mut self, salt: &[u8]) -> Self {
        self.salt = Some(salt.to_vec());
        self
    }

    /// Ready to admit, under limits that hold across all members of the quota. Metrics go to the recorder that is installed
    /// by now.
    ///
    /// # Panics
    /// Outside a tokio runtime: a task looks after health and metrics once a second.
    pub fn build(self, quota: Quota) -> Admission {
        Admission::new(self, quota)
    }
}

/// Without the salt: whoever has it can tell users by their hashes.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every field by name, so that the next one is thought about here, too.
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
            salt,
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
            .field("salted", &salt.is_some())
            .finish()
    }
}

/// How far below a threshold its state is left.
const HYSTERESIS_POINTS: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_tells_no_salt() {
        let text = format!("{:?}", Admission::builder().name("house").log_salt(b"~~~~"));
        assert!(text.contains("house") && text.contains("salted: true"), "{text}");
        assert!(!text.contains("126") && !text.contains('~'), "{text}");
    }
}
