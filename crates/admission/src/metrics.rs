//! What is counted. Names are constants, label values come from enums.
//!
//! Invariant: nothing on the way of a stream looks a metric up: what is counted per stream is a handle that was made when the
//! admission was built, so the recorder must be installed before. What happens rarely is looked up where it happens.
//! Two are histograms: a Prometheus exporter that keeps their samples until somebody asks needs its upkeep run now and then.

use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use forebay_quota::QuotaMode;
use http::HeaderName;

use crate::core::health::State;
use crate::core::pressure::Strain;
use crate::identity::Unidentified;
use crate::rejection::Reason;
use crate::visitor::Class;

/// Streams that are open in this process.
pub const ACTIVE_STREAMS: &str = "forebay_admission_active_streams";
/// Streams that are open in the whole cluster, as far as this process knows.
pub const USED_STREAMS: &str = "forebay_admission_used_streams";
/// How many may be, by `scope`: `total` or `user`.
pub const LIMIT_STREAMS: &str = "forebay_admission_limit_streams";
/// Used streams divided by the total limit.
pub const UTILIZATION: &str = "forebay_admission_utilization_ratio";
/// Streams admitted, by `class`.
pub const ADMITTED: &str = "forebay_admission_admitted_total";
/// Visitors refused, by `reason`.
pub const REJECTED: &str = "forebay_admission_rejected_total";
/// Streams that have ended.
pub const RELEASED: &str = "forebay_admission_released_total";
/// How long streams were open.
pub const STREAM_SECONDS: &str = "forebay_admission_stream_seconds";
/// How long visitors waited in the queue, whether they got in or not.
pub const WAIT_SECONDS: &str = "forebay_admission_wait_seconds";
/// Visitors that wait now.
pub const WAITING: &str = "forebay_admission_waiting_visitors";
/// 1 for the `state` that holds, 0 for the others.
pub const HEALTH: &str = "forebay_admission_health_state";
/// Changes of state, by the state that they led `to`.
pub const HEALTH_CHANGES: &str = "forebay_admission_health_changes_total";
/// 1 while new streams are refused because of this `cause`: `memory` or `cpu`.
pub const SHEDDING: &str = "forebay_admission_shedding";
/// Credentials that were refused, by `reason`.
pub const BAD_CREDENTIALS: &str = "forebay_admission_bad_credentials_total";
/// Headers that only a trusted proxy may set and that came from somebody else, by `header`.
pub const UNTRUSTED_HEADERS: &str = "forebay_admission_untrusted_headers_total";
/// Times that the file of keys was read because it changed, by `outcome`.
pub const JWKS_READS: &str = "forebay_admission_jwks_reads_total";
/// 1 for the `mode` in which the quota decides, 0 for the others.
pub const QUOTA_MODE: &str = "forebay_quota_mode";
/// Members of the quota that are alive.
pub const QUOTA_MEMBERS: &str = "forebay_quota_members";
/// Resident memory of this process.
pub const RESIDENT_BYTES: &str = "forebay_process_resident_memory_bytes";
/// The part of its CPUs that this process used lately.
pub const CPU_RATIO: &str = "forebay_process_cpu_ratio";

/// Gives every metric its help text.
pub(crate) fn describe() {
    describe_gauge!(ACTIVE_STREAMS, "Streams that are open in this process.");
    describe_gauge!(
        USED_STREAMS,
        "Streams that are open in the whole cluster, as far as this process knows."
    );
    describe_gauge!(LIMIT_STREAMS, "Streams that may be open in the whole cluster, in all and for one user.");
    describe_gauge!(UTILIZATION, "Used streams divided by the total limit.");
    describe_counter!(ADMITTED, "Streams admitted, by class of visitor.");
    describe_counter!(REJECTED, "Visitors refused, by reason.");
    describe_counter!(RELEASED, "Streams that have ended.");
    describe_histogram!(STREAM_SECONDS, Unit::Seconds, "How long streams were open.");
    describe_histogram!(WAIT_SECONDS, Unit::Seconds, "How long visitors waited in the queue.");
    describe_gauge!(WAITING, "Visitors that wait in the queue.");
    describe_gauge!(HEALTH, "1 for the state that holds, 0 for the others.");
    describe_counter!(HEALTH_CHANGES, "Changes of the state of health, by the state that they led to.");
    describe_gauge!(SHEDDING, "1 while new streams are refused for want of memory or CPU.");
    describe_counter!(BAD_CREDENTIALS, "Tokens, keys and ids that were refused, by reason.");
    describe_counter!(UNTRUSTED_HEADERS, "Headers ignored because no trusted proxy sent them.");
    describe_counter!(JWKS_READS, "Times that the file of keys was read again, by outcome.");
    describe_gauge!(QUOTA_MODE, "1 for the mode in which the quota decides, 0 for the others.");
    describe_gauge!(QUOTA_MEMBERS, "Members of the quota that are alive.");
    describe_gauge!(RESIDENT_BYTES, Unit::Bytes, "Resident memory of this process.");
    describe_gauge!(CPU_RATIO, "The part of its CPUs that this process used lately.");
}

/// The handles of what is counted per stream, and of what the sampler tells.
pub(crate) struct Meters {
    pub(crate) active: Gauge,
    pub(crate) released: Counter,
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
    rejected: [Counter; Reason::ALL.len()],
    health: [Gauge; State::ALL.len()],
    shedding: [Gauge; Strain::ALL.len()],
    modes: [Gauge; QuotaMode::ALL.len()],
}

impl Meters {
    pub(crate) fn new<'a>(classes: impl Iterator<Item = &'a Class>) -> Self {
        describe();
        // What is looked up where it happens is on the page from the start, too.
        State::ALL.iter().for_each(|state| drop(counter!(HEALTH_CHANGES, "to" => state.as_str())));
        ["read", "failed"].iter().for_each(|outcome| drop(counter!(JWKS_READS, "outcome" => *outcome)));
        let admitted =
            classes.map(|class| counter!(ADMITTED, "class" => class.as_str().to_owned())).collect();
        Meters {
            active: gauge!(ACTIVE_STREAMS),
            released: counter!(RELEASED),
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
            rejected: Reason::ALL.map(|reason| counter!(REJECTED, "reason" => reason.as_str())),
            health: State::ALL.map(|state| gauge!(HEALTH, "state" => state.as_str())),
            shedding: Strain::ALL.map(|strain| gauge!(SHEDDING, "cause" => strain.as_str())),
            modes: QuotaMode::ALL.map(|mode| gauge!(QUOTA_MODE, "mode" => mode.as_str())),
        }
    }

    pub(crate) fn admitted(&self, class: usize) {
        if let Some(counter) = self.admitted.get(class) {
            counter.increment(1);
        }
    }

    pub(crate) fn rejected(&self, reason: Reason) {
        self.rejected[reason as usize].increment(1);
    }

    pub(crate) fn health(&self, now: State) {
        one_of(&self.health, State::ALL.iter().position(|state| *state == now));
    }

    pub(crate) fn shedding(&self, now: Option<Strain>) {
        one_of(&self.shedding, Strain::ALL.iter().position(|strain| Some(*strain) == now));
    }

    pub(crate) fn mode(&self, now: QuotaMode) {
        one_of(&self.modes, QuotaMode::ALL.iter().position(|mode| *mode == now));
    }
}

/// 1 for one of them, 0 for the others.
fn one_of(gauges: &[Gauge], chosen: Option<usize>) {
    for (at, gauge) in gauges.iter().enumerate() {
        gauge.set(if Some(at) == chosen { 1.0 } else { 0.0 });
    }
}

pub(crate) fn health_changed(to: State) {
    counter!(HEALTH_CHANGES, "to" => to.as_str()).increment(1);
}

pub(crate) fn bad_credentials(fault: &Unidentified) {
    counter!(BAD_CREDENTIALS, "reason" => fault.as_str()).increment(1);
}

/// The names of these headers are configured, so there are few.
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
    fn every_reason_has_its_own_counter() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?}");
        }
    }
}
