//! Metrics of a reservoir.
//!
//! All metrics have the label `service`; those with several causes have `reason`.
//!
//! Invariant: a checkout looks up no metric. Handles are created with the reservoir, so the
//! recorder must be installed before.

use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::core::connection_counts::ConnectionCounts;
use crate::core::retirements::LingeringConnections;
use crate::status::DiscardReason;

/// Gauge: ready connections.
pub const SIZE: &str = "forebay_reservoir_size";
/// Gauge: connections by `state`: ready, dialing, lent, resetting, retiring.
pub const CONNECTIONS: &str = "forebay_reservoir_connections";
/// Counter: checkouts that got a connection.
pub const CHECKOUTS: &str = "forebay_reservoir_checkouts_total";
/// Counter: checkouts that found no ready connection, whether or not they got one later.
pub const EMPTY: &str = "forebay_reservoir_empty_total";
/// Counter: checkouts that failed, by `reason`.
pub const SHORTAGES: &str = "forebay_reservoir_shortages_total";
/// Counter: connections retired, by `reason`.
pub const DISCARDS: &str = "forebay_reservoir_discards_total";
/// Counter: connections opened.
pub const REFILLS: &str = "forebay_reservoir_refills_total";
/// Counter: failed dials, by `reason`.
pub const REFILL_FAILURES: &str = "forebay_reservoir_refill_failures_total";
/// Histogram: time to open a connection, without credentials and rate limit.
pub const DIAL_SECONDS: &str = "forebay_reservoir_dial_seconds";
/// Histogram: age of connections when they were retired.
pub const RETIREMENT_AGE_SECONDS: &str = "forebay_reservoir_retirement_age_seconds";
/// Gauge: retired connections that the server has not closed within a second.
pub const LINGERING: &str = "forebay_reservoir_lingering";
/// Gauge: time since the oldest lingering connection was retired.
pub const LONGEST_LINGERING_SECONDS: &str = "forebay_reservoir_longest_lingering_seconds";
/// Counter: slots released because the server did not close the connection within `close_timeout`.
pub const CLOSE_TIMEOUTS: &str = "forebay_reservoir_close_timeouts_total";
/// Gauge: callers that wait.
pub const WAITING: &str = "forebay_reservoir_waiting_callers";
/// Histogram: waiting time of checkouts that found no ready connection.
pub const WAIT_SECONDS: &str = "forebay_reservoir_wait_seconds";
/// Counter: connections held for longer than `leak_after`.
pub const LEAKS: &str = "forebay_reservoir_leaks_total";
/// Gauge: this process's slice of the cluster's connection budget.
pub const SLICE: &str = "forebay_reservoir_budget_slice";
/// Gauge: 1 while the store of the budget is unavailable and only local limits apply.
pub const LOCAL_ONLY: &str = "forebay_reservoir_local_limits_only";

/// Describes all metrics to the recorder.
pub fn describe() {
    describe_gauge!(SIZE, "Connections that are ready to be lent.");
    describe_gauge!(CONNECTIONS, "Connections by state.");
    describe_counter!(CHECKOUTS, "Checkouts that got a connection.");
    describe_counter!(EMPTY, "Checkouts that found no ready connection.");
    describe_counter!(SHORTAGES, "Checkouts that failed, by reason.");
    describe_counter!(DISCARDS, "Connections retired, by reason.");
    describe_counter!(REFILLS, "Connections opened.");
    describe_counter!(REFILL_FAILURES, "Failed dials, by reason.");
    describe_histogram!(DIAL_SECONDS, Unit::Seconds, "Time to open a connection.");
    describe_histogram!(RETIREMENT_AGE_SECONDS, Unit::Seconds, "Age of connections when they were retired.");
    describe_gauge!(LINGERING, "Retired connections that the server has not closed within a second.");
    describe_gauge!(
        LONGEST_LINGERING_SECONDS,
        Unit::Seconds,
        "Time since the oldest lingering connection was retired."
    );
    describe_counter!(
        CLOSE_TIMEOUTS,
        "Connection slots released because the server did not close the connection within the close timeout."
    );
    describe_gauge!(WAITING, "Callers that wait for a connection.");
    describe_histogram!(
        WAIT_SECONDS,
        Unit::Seconds,
        "Waiting time of checkouts that found no ready connection."
    );
    describe_counter!(LEAKS, "Connections held for longer than leak_after.");
    describe_gauge!(SLICE, "This process's slice of the cluster's connection budget.");
    describe_gauge!(
        LOCAL_ONLY,
        "1 while the store of the budget is unavailable and only local limits apply."
    );
}

/// Metric handles of one reservoir.
pub(crate) struct ReservoirMetrics {
    service: String,
    size: Gauge,
    states: [Gauge; 5],
    pub(crate) checkouts: Counter,
    pub(crate) empty: Counter,
    discards: [Counter; DiscardReason::ALL.len()],
    pub(crate) refills: Counter,
    pub(crate) dial_seconds: Histogram,
    pub(crate) retirement_age: Histogram,
    lingering: Gauge,
    longest_lingering: Gauge,
    pub(crate) close_timeouts: Counter,
    pub(crate) waiting: Gauge,
    pub(crate) wait_seconds: Histogram,
    pub(crate) leaks: Counter,
    pub(crate) slice: Gauge,
    pub(crate) local_only: Gauge,
}

impl ReservoirMetrics {
    pub(crate) fn new(service: &str) -> Self {
        describe();
        let of = |name: &'static str| counter!(name, "service" => service.to_string());
        let level = |name: &'static str| gauge!(name, "service" => service.to_string());
        let spread = |name: &'static str| histogram!(name, "service" => service.to_string());
        ReservoirMetrics {
            size: level(SIZE),
            states: ["ready", "dialing", "lent", "resetting", "retiring"]
                .map(|state| gauge!(CONNECTIONS, "service" => service.to_string(), "state" => state)),
            checkouts: of(CHECKOUTS),
            empty: of(EMPTY),
            discards: DiscardReason::ALL
                .map(|why| counter!(DISCARDS, "service" => service.to_string(), "reason" => why.as_str())),
            refills: of(REFILLS),
            dial_seconds: spread(DIAL_SECONDS),
            retirement_age: spread(RETIREMENT_AGE_SECONDS),
            lingering: level(LINGERING),
            longest_lingering: level(LONGEST_LINGERING_SECONDS),
            close_timeouts: of(CLOSE_TIMEOUTS),
            waiting: level(WAITING),
            wait_seconds: spread(WAIT_SECONDS),
            leaks: of(LEAKS),
            slice: level(SLICE),
            local_only: level(LOCAL_ONLY),
            service: service.into(),
        }
    }

    pub(crate) fn count_discard(&self, why: DiscardReason) {
        self.discards[why as usize].increment(1);
    }

    pub(crate) fn count_refill_failure(&self, reason: &'static str) {
        counter!(REFILL_FAILURES, "service" => self.service.clone(), "reason" => reason).increment(1);
    }

    pub(crate) fn count_shortage(&self, reason: &'static str) {
        counter!(SHORTAGES, "service" => self.service.clone(), "reason" => reason).increment(1);
    }

    pub(crate) fn set_lingering(&self, lingering: LingeringConnections) {
        self.lingering.set(f64::from(lingering.count));
        self.longest_lingering.set(lingering.longest.unwrap_or_default().as_secs_f64());
    }

    pub(crate) fn set_levels(&self, counts: ConnectionCounts, waiting: usize) {
        let ConnectionCounts { ready, dialing, lent, resetting, retiring } = counts;
        self.size.set(f64::from(ready));
        for (gauge, count) in self.states.iter().zip([ready, dialing, lent, resetting, retiring]) {
            gauge.set(f64::from(count));
        }
        self.waiting.set(waiting as f64);
    }
}
