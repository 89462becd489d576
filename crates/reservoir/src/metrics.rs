//! What is counted. Names are constants; the labels are `service`, and `reason` where there are several.
//!
//! Invariant: nothing on the way of a checkout looks a metric up: handles are made when the reservoir is, so the recorder must
//! be installed before.

use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::core::ledger::Counts;
use crate::core::retirements::Lingering;
use crate::status::Discard;

/// Connections that are ready.
pub const SIZE: &str = "forebay_reservoir_size";
/// Connections by `state`: ready, dialing, lent, resetting, retiring.
pub const CONNECTIONS: &str = "forebay_reservoir_connections";
/// Connections lent.
pub const CHECKOUTS: &str = "forebay_reservoir_checkouts_total";
/// Callers that found none ready, whether they got one later or not.
pub const EMPTY: &str = "forebay_reservoir_empty_total";
/// Callers that went without, by `reason`.
pub const SHORTAGES: &str = "forebay_reservoir_shortages_total";
/// Connections closed, by `reason`.
pub const DISCARDS: &str = "forebay_reservoir_discards_total";
/// Connections opened.
pub const REFILLS: &str = "forebay_reservoir_refills_total";
/// Connections that couldn't be opened, by `reason`.
pub const REFILL_FAILURES: &str = "forebay_reservoir_refill_failures_total";
/// How long it took to open a connection, credentials included.
pub const DIAL_SECONDS: &str = "forebay_reservoir_dial_seconds";
/// How old connections were when they were closed.
pub const RETIREMENT_AGE_SECONDS: &str = "forebay_reservoir_retirement_age_seconds";
/// Connections that the server hasn't closed within a second after they were closed here.
pub const LINGERING: &str = "forebay_reservoir_lingering";
/// How long the server has been waited for to close the oldest of them.
pub const LONGEST_LINGERING_SECONDS: &str = "forebay_reservoir_longest_lingering_seconds";
/// Connections whose places were given back though the server hadn't closed them within the close timeout.
pub const CLOSE_TIMEOUTS: &str = "forebay_reservoir_close_timeouts_total";
/// Callers that wait.
pub const WAITING: &str = "forebay_reservoir_waiting_callers";
/// How long callers waited that found none ready.
pub const WAIT_SECONDS: &str = "forebay_reservoir_wait_seconds";
/// Connections held for longer than is believable.
pub const LEAKS: &str = "forebay_reservoir_leaks_total";
/// This process's slice of the cluster's budget.
pub const SLICE: &str = "forebay_reservoir_budget_slice";
/// 1 while only local limits hold because the store of the budget is away.
pub const LOCAL_ONLY: &str = "forebay_reservoir_local_limits_only";

fn describe() {
    describe_gauge!(SIZE, "Connections that are ready to be lent.");
    describe_gauge!(CONNECTIONS, "Connections by state.");
    describe_counter!(CHECKOUTS, "Connections lent.");
    describe_counter!(EMPTY, "Callers that found no connection ready.");
    describe_counter!(SHORTAGES, "Callers that went without a connection, by reason.");
    describe_counter!(DISCARDS, "Connections closed, by reason.");
    describe_counter!(REFILLS, "Connections opened.");
    describe_counter!(REFILL_FAILURES, "Connections that could not be opened, by reason.");
    describe_histogram!(DIAL_SECONDS, Unit::Seconds, "How long it took to open a connection.");
    describe_histogram!(
        RETIREMENT_AGE_SECONDS,
        Unit::Seconds,
        "How old connections were when they were closed."
    );
    describe_gauge!(
        LINGERING,
        "Connections that the server has not closed within a second after they were closed here."
    );
    describe_gauge!(
        LONGEST_LINGERING_SECONDS,
        Unit::Seconds,
        "How long the server has been waited for to close the oldest lingering connection."
    );
    describe_counter!(
        CLOSE_TIMEOUTS,
        "Connections given back to the budget though the server had not closed them within the close timeout."
    );
    describe_gauge!(WAITING, "Callers that wait for a connection.");
    describe_histogram!(WAIT_SECONDS, Unit::Seconds, "How long callers waited that found none ready.");
    describe_counter!(LEAKS, "Connections held for longer than is believable.");
    describe_gauge!(SLICE, "This process's slice of the cluster's connection budget.");
    describe_gauge!(LOCAL_ONLY, "1 while only local limits hold because the store of the budget is away.");
}

/// The metrics of one reservoir.
pub(crate) struct Meters {
    service: String,
    size: Gauge,
    states: [Gauge; 5],
    pub(crate) checkouts: Counter,
    pub(crate) empty: Counter,
    discards: [Counter; Discard::ALL.len()],
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

impl Meters {
    pub(crate) fn new(service: &str) -> Self {
        describe();
        let of = |name: &'static str| counter!(name, "service" => service.to_string());
        let level = |name: &'static str| gauge!(name, "service" => service.to_string());
        let spread = |name: &'static str| histogram!(name, "service" => service.to_string());
        Meters {
            size: level(SIZE),
            states: ["ready", "dialing", "lent", "resetting", "retiring"]
                .map(|state| gauge!(CONNECTIONS, "service" => service.to_string(), "state" => state)),
            checkouts: of(CHECKOUTS),
            empty: of(EMPTY),
            discards: Discard::ALL
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

    pub(crate) fn discard(&self, why: Discard) {
        self.discards[why as usize].increment(1);
    }

    pub(crate) fn refill_failure(&self, reason: &'static str) {
        counter!(REFILL_FAILURES, "service" => self.service.clone(), "reason" => reason).increment(1);
    }

    pub(crate) fn shortage(&self, reason: &'static str) {
        counter!(SHORTAGES, "service" => self.service.clone(), "reason" => reason).increment(1);
    }

    pub(crate) fn lingering(&self, lingering: Lingering) {
        self.lingering.set(f64::from(lingering.count));
        self.longest_lingering.set(lingering.longest.unwrap_or_default().as_secs_f64());
    }

    pub(crate) fn levels(&self, counts: Counts, waiting: usize) {
        let Counts { ready, dialing, lent, resetting, retiring } = counts;
        self.size.set(f64::from(ready));
        for (gauge, count) in self.states.iter().zip([ready, dialing, lent, resetting, retiring]) {
            gauge.set(f64::from(count));
        }
        self.waiting.set(waiting as f64);
    }
}
