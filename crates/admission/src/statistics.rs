//! Statistics and status of an admission.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::core::health::State;
use crate::core::limit_evidence::DecreaseCause;
use crate::core::pressure::ShedCause;
use crate::health_monitor::HealthStatus;
use crate::open_stream_registry::StreamRecord;
use crate::thread_id::ThreadId;
use crate::user_hash::UserHash;

/// Counts and health state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmissionStatistics {
    /// Streams open in the cluster, as known to this process.
    pub total_connections: u32,
    /// Limit of `total_connections`.
    pub max_connections: u32,
    /// `total_connections` in percent of `max_connections`, to one decimal place.
    pub utilization_percent: f64,
    /// Health state.
    pub state: State,
    /// Number of streams at which the state becomes `degraded`.
    pub degraded_threshold: u32,
    /// Number of streams at which the state becomes `critical`.
    pub critical_threshold: u32,
    /// Whether the counts are in Redis.
    pub redis_enabled: bool,
}

/// Complete status, for `/v1/status`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Counts and health state.
    pub statistics: AdmissionStatistics,
    /// Health state with its age and cause.
    pub health: HealthStatus,
    /// Current limits.
    pub limits: StreamLimits,
    /// Adaptive limit of this process; `None` if it is off.
    pub adaptive: Option<AdaptiveStatus>,
    /// Requests in the wait queue.
    pub waiting: usize,
    /// Why this process sheds load, if it does.
    pub shedding: Option<ShedCause>,
    /// Whether this process is shutting down and refuses new streams.
    pub draining: bool,
    /// Resource usage of this process.
    pub process: ProcessUsage,
    /// Streams open in this process.
    pub open: usize,
    /// The oldest of them, at most [`MAX_LISTED`].
    pub streams: Vec<OpenStream>,
    /// The users with the most streams in this process, at most [`MAX_USERS`]; without anonymous
    /// clients.
    pub users: Vec<UserStreams>,
    /// Status of the quota: mode, members, slices.
    pub quota: forebay_quota::Status,
}

/// Maximum number of streams in a [`Status`].
pub const MAX_LISTED: usize = 1_000;

/// Maximum number of users in a [`Status`].
pub const MAX_USERS: usize = 8;

/// Limits of open streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StreamLimits {
    /// Streams in the cluster.
    pub total: u32,
    /// Streams per user in the cluster.
    pub per_user: u32,
}

/// Adaptive limit of this process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AdaptiveStatus {
    /// Current limit of open streams.
    pub limit: u32,
    /// Lowest possible limit.
    pub floor: u32,
    /// Open streams that count against the limit.
    pub open: u32,
    /// Time to the first byte of new streams, in seconds, as last measured.
    pub first_byte_seconds: Option<f64>,
    /// Time to the first byte without overload, in seconds.
    pub baseline_seconds: Option<f64>,
    /// The last decrease of the limit.
    pub last_decrease: Option<AdaptiveDecrease>,
}

/// A decrease of the adaptive limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AdaptiveDecrease {
    /// Why the limit was lowered.
    pub cause: DecreaseCause,
    /// Limit before.
    pub from: u32,
    /// Limit afterwards.
    pub to: u32,
    /// Age of the decrease in seconds.
    pub seconds_ago: u64,
}

/// Resource usage of this process, as last sampled.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ProcessUsage {
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Memory limit in bytes: the control group's, or the machine's memory.
    pub memory_limit_bytes: Option<u64>,
    /// Fraction of its CPUs used over the window.
    pub cpu_ratio: Option<f64>,
    /// Usable CPUs.
    pub cpus: f64,
}

/// One open stream.
#[derive(Debug, Clone, Serialize)]
pub struct OpenStream {
    /// Thread id of its request.
    pub thread_id: ThreadId,
    /// Hash of its user; `None` for anonymous clients.
    pub(crate) user: Option<UserHash>,
    /// What the stream is for, such as the pattern of its route.
    pub route: Option<Arc<str>>,
    /// Age in seconds.
    pub since_seconds: u64,
    /// Age.
    #[serde(skip)]
    pub age: Duration,
}

impl From<StreamRecord> for OpenStream {
    fn from(record: StreamRecord) -> Self {
        let StreamRecord { thread: thread_id, user, route, since } = record;
        let age = since.elapsed();
        OpenStream { thread_id, user, route, since_seconds: age.as_secs(), age }
    }
}

/// Number of streams of one user in this process.
#[derive(Debug, Clone, Serialize)]
pub struct UserStreams {
    /// Hash of the user.
    pub(crate) user: UserHash,
    /// Number of open streams.
    pub streams: usize,
}

impl UserStreams {
    /// Returns the hash of the user, as in logs.
    pub fn user(&self) -> String {
        self.user.to_string()
    }
}

impl OpenStream {
    /// Returns the hash of the user, as in logs.
    pub fn user(&self) -> Option<String> {
        self.user.map(|hash| hash.to_string())
    }
}

/// Returns the usage in percent, to one decimal place.
pub(crate) fn percent(used: u32, limit: u32) -> f64 {
    if limit == 0 { 100.0 } else { (f64::from(used) * 1_000.0 / f64::from(limit)).round() / 10.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_json_has_exactly_these_members() {
        let statistics = AdmissionStatistics {
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
    fn a_limit_of_zero_is_100_percent_used() {
        assert_eq!(percent(0, 0), 100.0);
        assert_eq!(percent(1, 3), 33.3);
    }
}
