//! Metrics. Names are constants, and label values come from enums.
//!
//! Invariant: no metric is looked up on a stream's path. Per-stream metrics are handles created
//! when the admission is built, so the recorder must be installed before. Rare metrics are looked
//! up at use.
//! Two metrics are histograms. A Prometheus exporter that buffers samples between scrapes needs its
//! upkeep run regularly.

use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use forebay_quota::QuotaMode;
use http::HeaderName;

use crate::client_identity::Class;
use crate::core::health::State;
use crate::core::limit_evidence::DecreaseCause;
use crate::core::pressure::ShedCause;
use crate::identity::IdentifyError;
use crate::rejection::RejectionReason;

/// Streams open in this process.
pub const ACTIVE_STREAMS: &str = "forebay_admission_active_streams";
/// Streams open in the cluster, as known to this process.
pub const USED_STREAMS: &str = "forebay_admission_used_streams";
/// Limit of open streams, by `scope`: `total` or `user`.
pub const LIMIT_STREAMS: &str = "forebay_admission_limit_streams";
/// Adaptive limit of open streams in this process, if it is on.
pub const ADAPTIVE_LIMIT_STREAMS: &str = "forebay_admission_adaptive_limit_streams";
/// Decreases of the adaptive limit, by `cause`.
pub const ADAPTIVE_DECREASES: &str = "forebay_admission_adaptive_decreases_total";
/// Used streams divided by the total limit.
pub const UTILIZATION: &str = "forebay_admission_utilization_ratio";
/// Streams admitted, by `class`.
pub const ADMITTED: &str = "forebay_admission_admitted_total";
/// Requests rejected, by `reason`.
pub const REJECTED: &str = "forebay_admission_rejected_total";
/// Streams ended.
pub const RELEASED: &str = "forebay_admission_released_total";
/// Streams that an operator ended.
pub const ENDED: &str = "forebay_admission_ended_total";
/// Duration of streams.
pub const STREAM_SECONDS: &str = "forebay_admission_stream_seconds";
/// Time in the wait queue, whether admitted or not.
pub const WAIT_SECONDS: &str = "forebay_admission_wait_seconds";
/// Requests in the wait queue.
pub const WAITING: &str = "forebay_admission_waiting_visitors";
/// 1 for the current `state`, 0 for the others.
pub const HEALTH: &str = "forebay_admission_health_state";
/// Health state changes, by the new state (`to`).
pub const HEALTH_CHANGES: &str = "forebay_admission_health_changes_total";
/// 1 while new streams are refused for this `cause`: `memory` or `cpu`.
pub const SHEDDING: &str = "forebay_admission_shedding";
/// Credentials rejected, by `reason`.
pub const BAD_CREDENTIALS: &str = "forebay_admission_bad_credentials_total";
/// Identity headers removed because the peer is not a trusted proxy, by `header`.
pub const UNTRUSTED_HEADERS: &str = "forebay_admission_untrusted_headers_total";
/// Reloads of the JWKS file, by `outcome`.
pub const JWKS_READS: &str = "forebay_admission_jwks_reads_total";
/// 1 for the current `mode` of the quota, 0 for the others.
pub const QUOTA_MODE: &str = "forebay_quota_mode";
/// Live members of the quota.
pub const QUOTA_MEMBERS: &str = "forebay_quota_members";
/// Resident memory of this process.
pub const RESIDENT_BYTES: &str = "forebay_process_resident_memory_bytes";
/// Fraction of its CPUs that this process used recently.
pub const CPU_RATIO: &str = "forebay_process_cpu_ratio";

/// Describes all metrics to the recorder.
pub fn describe() {
    describe_gauge!(ACTIVE_STREAMS, "Streams open in this process.");
    describe_gauge!(USED_STREAMS, "Streams open in the cluster, as known to this process.");
    describe_gauge!(LIMIT_STREAMS, "Limit of open streams in the cluster, in total and per user.");
    describe_gauge!(ADAPTIVE_LIMIT_STREAMS, "Adaptive limit of open streams in this process, if it is on.");
    describe_counter!(ADAPTIVE_DECREASES, "Decreases of the adaptive limit, by cause.");
    describe_gauge!(UTILIZATION, "Used streams divided by the total limit.");
    describe_counter!(ADMITTED, "Streams admitted, by class of the client.");
    describe_counter!(REJECTED, "Stream requests rejected, by reason.");
    describe_counter!(RELEASED, "Streams ended.");
    describe_counter!(ENDED, "Streams that an operator ended.");
    describe_histogram!(STREAM_SECONDS, Unit::Seconds, "Duration of streams.");
    describe_histogram!(WAIT_SECONDS, Unit::Seconds, "Time that stream requests spent in the wait queue.");
    describe_gauge!(WAITING, "Stream requests in the wait queue.");
    describe_gauge!(HEALTH, "1 for the current health state, 0 for the others.");
    describe_counter!(HEALTH_CHANGES, "Health state changes, by the new state.");
    describe_gauge!(SHEDDING, "1 while new streams are refused because of memory or CPU use.");
    describe_counter!(BAD_CREDENTIALS, "Tokens, API keys and user ids rejected, by reason.");
    describe_counter!(UNTRUSTED_HEADERS, "Identity headers removed because the peer is not a trusted proxy.");
    describe_counter!(JWKS_READS, "Reloads of the JWKS file, by outcome.");
    describe_gauge!(QUOTA_MODE, "1 for the current mode of the quota, 0 for the others.");
    describe_gauge!(QUOTA_MEMBERS, "Live members of the quota.");
    describe_gauge!(RESIDENT_BYTES, Unit::Bytes, "Resident memory of this process.");
    describe_gauge!(CPU_RATIO, "Fraction of its CPUs that this process used recently.");
}

/// Handles of per-stream and sampled metrics.
pub(crate) struct AdmissionMetrics {
    pub(crate) active: Gauge,
    pub(crate) released: Counter,
    pub(crate) ended: Counter,
    pub(crate) stream_seconds: Histogram,
    pub(crate) wait_seconds: Histogram,
    pub(crate) waiting: Gauge,
    pub(crate) used: Gauge,
    pub(crate) limit_total: Gauge,
    pub(crate) limit_user: Gauge,
    pub(crate) utilization: Gauge,
    pub(crate) members: Gauge,
    pub(crate) resident_bytes: Gauge,
    pub(crate) cpu_ratio: Gauge,
    admitted: Vec<Counter>,
    rejected: [Counter; RejectionReason::ALL.len()],
    health: [Gauge; State::ALL.len()],
    shedding: [Gauge; ShedCause::ALL.len()],
    modes: [Gauge; QuotaMode::ALL.len()],
}

impl AdmissionMetrics {
    pub(crate) fn new<'a>(classes: impl Iterator<Item = &'a Class>) -> Self {
        describe();
        // Metrics that are looked up at use are exported from the start, too.
        State::ALL.iter().for_each(|state| drop(counter!(HEALTH_CHANGES, "to" => state.as_str())));
        ["read", "failed"].iter().for_each(|outcome| drop(counter!(JWKS_READS, "outcome" => *outcome)));
        let admitted =
            classes.map(|class| counter!(ADMITTED, "class" => class.as_str().to_owned())).collect();
        AdmissionMetrics {
            active: gauge!(ACTIVE_STREAMS),
            released: counter!(RELEASED),
            ended: counter!(ENDED),
            stream_seconds: histogram!(STREAM_SECONDS),
            wait_seconds: histogram!(WAIT_SECONDS),
            waiting: gauge!(WAITING),
            used: gauge!(USED_STREAMS),
            limit_total: gauge!(LIMIT_STREAMS, "scope" => "total"),
            limit_user: gauge!(LIMIT_STREAMS, "scope" => "user"),
            utilization: gauge!(UTILIZATION),
            members: gauge!(QUOTA_MEMBERS),
            resident_bytes: gauge!(RESIDENT_BYTES),
            cpu_ratio: gauge!(CPU_RATIO),
            admitted,
            rejected: RejectionReason::ALL.map(|reason| counter!(REJECTED, "reason" => reason.as_str())),
            health: State::ALL.map(|state| gauge!(HEALTH, "state" => state.as_str())),
            shedding: ShedCause::ALL.map(|shed_cause| gauge!(SHEDDING, "cause" => shed_cause.as_str())),
            modes: QuotaMode::ALL.map(|mode| gauge!(QUOTA_MODE, "mode" => mode.as_str())),
        }
    }

    pub(crate) fn admitted(&self, class: usize) {
        if let Some(counter) = self.admitted.get(class) {
            counter.increment(1);
        }
    }

    pub(crate) fn rejected(&self, reason: RejectionReason) {
        self.rejected[reason as usize].increment(1);
    }

    pub(crate) fn health(&self, now: State) {
        set_one_hot(&self.health, State::ALL.iter().position(|state| *state == now));
    }

    pub(crate) fn shedding(&self, now: Option<ShedCause>) {
        set_one_hot(&self.shedding, ShedCause::ALL.iter().position(|shed_cause| Some(*shed_cause) == now));
    }

    pub(crate) fn mode(&self, now: QuotaMode) {
        set_one_hot(&self.modes, QuotaMode::ALL.iter().position(|mode| *mode == now));
    }
}

/// Handles of the adaptive limit's metrics. They exist only if it is on.
pub(crate) struct AdaptiveMetrics {
    pub(crate) limit: Gauge,
    decreases: [Counter; DecreaseCause::ALL.len()],
}

impl AdaptiveMetrics {
    pub(crate) fn new() -> Self {
        AdaptiveMetrics {
            limit: gauge!(ADAPTIVE_LIMIT_STREAMS),
            decreases: DecreaseCause::ALL
                .map(|cause| counter!(ADAPTIVE_DECREASES, "cause" => cause.as_str())),
        }
    }

    pub(crate) fn decreased(&self, cause: DecreaseCause) {
        self.decreases[cause as usize].increment(1);
    }
}

/// Sets one gauge to 1 and the others to 0.
fn set_one_hot(gauges: &[Gauge], chosen: Option<usize>) {
    for (at, gauge) in gauges.iter().enumerate() {
        gauge.set(if Some(at) == chosen { 1.0 } else { 0.0 });
    }
}

pub(crate) fn health_changed(to: State) {
    counter!(HEALTH_CHANGES, "to" => to.as_str()).increment(1);
}

pub(crate) fn bad_credentials(fault: &IdentifyError) {
    counter!(BAD_CREDENTIALS, "reason" => fault.as_str()).increment(1);
}

/// Counts a removed header. Header names are configured, so there are few.
pub(crate) fn untrusted_header(name: &HeaderName) {
    counter!(UNTRUSTED_HEADERS, "header" => name.as_str().to_owned()).increment(1);
}

pub(crate) fn jwks_read(worked: bool) {
    counter!(JWKS_READS, "outcome" => if worked { "read" } else { "failed" }).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_and_cause_has_its_own_counter() {
        for (at, reason) in RejectionReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?}");
        }
        for (at, cause) in DecreaseCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at, "{cause:?}");
        }
    }
}
