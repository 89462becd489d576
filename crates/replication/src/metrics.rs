//! Names of the metrics.

use std::time::Duration;

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// 1 for the manager's current step, 0 for the previous one; by `step`.
pub const STEP: &str = "forebay_postgres_step";
/// 1 for each condition that holds, by `condition`.
pub const CONDITION: &str = "forebay_postgres_condition";
/// Restarts of the replication connection, by `reason`.
pub const RESTARTS: &str = "forebay_postgres_restarts_total";
/// 1 while a failure that needs an operator has halted the manager, by `reason`. It stays 1 during
/// the attempts that follow.
pub const HALTED: &str = "forebay_postgres_halted";
/// Time from the first failure until the server streams again.
pub const RECOVERY_SECONDS: &str = "forebay_postgres_recovery_seconds";
/// Resets of the consumer, by `reason`.
pub const RESETS: &str = "forebay_postgres_resets_total";
/// The last WAL position that the server sent.
pub const RECEIVED: &str = "forebay_postgres_received_lsn_bytes";
/// The consumer's durable WAL position, which is acknowledged as flushed and applied.
pub const DURABLE: &str = "forebay_postgres_durable_lsn_bytes";
/// WAL that the server has written and the consumer hasn't made durable.
pub const LAG_BYTES: &str = "forebay_postgres_lag_bytes";
/// Age of the received changes that aren't durable, since their commit; 0 if there are none.
pub const LAG_SECONDS: &str = "forebay_postgres_lag_seconds";
/// WAL that the server retains for the slot.
pub const RETAINED: &str = "forebay_postgres_slot_retained_bytes";
/// WAL that can be written before the server invalidates the slot; absent without a limit.
pub const SAFE: &str = "forebay_postgres_slot_safe_bytes";
/// Transactions received on the current replication connection.
pub const TRANSACTIONS: &str = "forebay_postgres_connection_transactions";

/// Describes all metrics to the recorder.
pub fn describe() {
    describe_gauge!(STEP, "1 for the manager's current step.");
    describe_gauge!(CONDITION, "1 for each condition of readiness that holds.");
    describe_counter!(RESTARTS, "Restarts of the replication connection, by reason.");
    describe_gauge!(
        HALTED,
        "1 while a failure that needs an operator has halted the manager, by reason; also during retries."
    );
    describe_histogram!(
        RECOVERY_SECONDS,
        Unit::Seconds,
        "Total retry time of an outage: from the first failure until the server streams again."
    );
    describe_counter!(RESETS, "Resets of the consumer, by reason.");
    describe_gauge!(RECEIVED, Unit::Bytes, "The last WAL position that the server sent.");
    describe_gauge!(DURABLE, Unit::Bytes, "The consumer's durable WAL position.");
    describe_gauge!(
        LAG_BYTES,
        Unit::Bytes,
        "WAL that the server has written and the consumer has not made durable."
    );
    describe_gauge!(
        LAG_SECONDS,
        Unit::Seconds,
        "Age of the received changes that are not durable, since their commit; 0 if there are none."
    );
    describe_gauge!(RETAINED, Unit::Bytes, "WAL that the server retains for the slot.");
    describe_gauge!(SAFE, Unit::Bytes, "WAL that can be written before the server invalidates the slot.");
    describe_gauge!(TRANSACTIONS, "Transactions received on the current replication connection.");
}

pub(crate) fn entered(from: &'static str, to: &'static str) {
    gauge!(STEP, "step" => from).set(0.0);
    gauge!(STEP, "step" => to).set(1.0);
}

pub(crate) fn restarted(reason: &'static str) {
    counter!(RESTARTS, "reason" => reason).increment(1);
}

/// Sets the reason of a halt, or of none.
pub(crate) fn halted(last: Option<&'static str>, reason: Option<&'static str>) {
    if let Some(last) = last.filter(|last| Some(*last) != reason) {
        gauge!(HALTED, "reason" => last).set(0.0);
    }
    if let Some(reason) = reason {
        gauge!(HALTED, "reason" => reason).set(1.0);
    }
}

pub(crate) fn recovered(retried_for: Duration) {
    histogram!(RECOVERY_SECONDS).record(retried_for.as_secs_f64());
}

pub(crate) fn reset(reason: &'static str) {
    counter!(RESETS, "reason" => reason).increment(1);
}
