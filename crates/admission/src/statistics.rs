//! What can be read about an admission: the seed's statistics, and the whole status.

use serde::Serialize;

use crate::core::health::State;
use crate::core::pressure::Strain;
use crate::health::HealthStatus;
use crate::stage::UserHash;
use crate::thread_id::ThreadId;

/// The seed's pool statistics, member for member.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Statistics {
    /// Streams open in the whole cluster, as far as this process knows.
    pub total_connections: u32,
    /// How many may be.
    pub max_connections: u32,
    /// The first of these in percent of the second, to one decimal place.
    pub utilization_percent: f64,
    /// The state of health.
    pub state: State,
    /// From how many on it is `degraded`.
    pub degraded_threshold: u32,
    /// From how many on it is `critical`.
    pub critical_threshold: u32,
    /// Whether Redis keeps the counts.
    pub redis_enabled: bool,
}

/// Everything, for `/v1/status`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The seed's statistics.
    pub statistics: Statistics,
    /// The state of health, since when and why.
    pub health: HealthStatus,
    /// The limits.
    pub limits: Limits,
    /// Visitors that wait in the queue.
    pub waiting: usize,
    /// Why this process takes no new streams, if it doesn't.
    pub shedding: Option<Strain>,
    /// Whether it takes none because it is about to end.
    pub draining: bool,
    /// What it uses.
    pub process: Process,
    /// Streams open in this process.
    pub open: usize,
    /// The oldest of them, at most [`MAX_LISTED`].
    pub streams: Vec<OpenStream>,
    /// Who has most of them here, at most [`MAX_USERS`]; the anonymous are not among them.
    pub users: Vec<UserStreams>,
    /// The quota underneath: mode, members, slices.
    pub quota: forebay_quota::Status,
}

/// How many streams a [`Status`] lists.
pub const MAX_LISTED: usize = 1_000;

/// How many users a [`Status`] lists.
pub const MAX_USERS: usize = 8;

/// The limits that hold now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Streams in the whole cluster.
    pub total: u32,
    /// Streams of one user in the whole cluster.
    pub per_user: u32,
}

/// What this process uses, as last sampled.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Process {
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// What it may hold: the limit of its control group, or the machine's memory.
    pub memory_limit_bytes: Option<u64>,
    /// The part of its CPUs that it used over the window.
    pub cpu_ratio: Option<f64>,
    /// The CPUs that it may use.
    pub cpus: f64,
}

/// One stream.
#[derive(Debug, Clone, Serialize)]
pub struct OpenStream {
    /// Its id.
    pub thread_id: ThreadId,
    /// Its user, hashed. Nothing for the anonymous.
    pub(crate) user: Option<UserHash>,
    /// For how long it has been open.
    pub since_seconds: u64,
}

/// A user, and how many streams it has in this process.
#[derive(Debug, Clone, Serialize)]
pub struct UserStreams {
    /// Hashed.
    pub(crate) user: UserHash,
    /// How many.
    pub streams: usize,
}

impl UserStreams {
    /// The hash under which logs show it, too.
    pub fn user(&self) -> String {
        self.user.to_string()
    }
}

impl OpenStream {
    /// The hash under which logs show its user, too.
    pub fn user(&self) -> Option<String> {
        self.user.map(|hash| hash.to_string())
    }
}

/// In percent, to one decimal place.
pub(crate) fn percent(used: u32, limit: u32) -> f64 {
    if limit == 0 { 100.0 } else { (f64::from(used) * 1_000.0 / f64::from(limit)).round() / 10.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_are_the_seeds_member_for_member() {
        let statistics = Statistics {
            total_connections: 150,
            max_connections: 10_000,
            utilization_percent: percent(150, 10_000),
            state: State::Healthy,
            degraded_threshold: 7_000,
            critical_threshold: 9_000,
            redis_enabled: true,
        };
        let expected = serde_json::json!({
            "total_connections": 150,
            "max_connections": 10_000,
            "utilization_percent": 1.5,
            "state": "healthy",
            "degraded_threshold": 7_000,
            "critical_threshold": 9_000,
            "redis_enabled": true,
        });
        assert_eq!(serde_json::to_value(statistics).unwrap(), expected);
    }

    #[test]
    fn a_house_without_room_is_full() {
        assert_eq!(percent(0, 0), 100.0);
        assert_eq!(percent(1, 3), 33.3);
    }
}
