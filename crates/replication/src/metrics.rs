//! What is counted. Names are constants; the label is `reason` where there are several.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

/// 1 for the step that the manager is at, by `step`.
pub const STEP: &str = "forebay_postgres_step";
/// 1 for each condition that holds, by `condition`.
pub const CONDITION: &str = "forebay_postgres_condition";
/// Times that the connection side was started again, by `reason`.
pub const RESTARTS: &str = "forebay_postgres_restarts_total";
/// Times that the consumer started over, by `reason`.
pub const RESETS: &str = "forebay_postgres_resets_total";
/// The last log position that the server told of.
pub const RECEIVED: &str = "forebay_postgres_received_lsn_bytes";
/// The log position up to which the consumer is durable; what the server is told is applied, too.
pub const DURABLE: &str = "forebay_postgres_durable_lsn_bytes";
/// Log that the server has written and the consumer hasn't made durable.
pub const LAG_BYTES: &str = "forebay_postgres_lag_bytes";
/// Since the commit of what has come and isn't durable; 0 when everything that has come is.
pub const LAG_SECONDS: &str = "forebay_postgres_lag_seconds";
/// Log that the server keeps for the slot.
pub const RETAINED: &str = "forebay_postgres_slot_retained_bytes";
/// Log that may still be written before the slot is invalidated; absent without a limit.
pub const SAFE: &str = "forebay_postgres_slot_safe_bytes";
/// Transactions handed to the consumer by the connection that there is.
pub const TRANSACTIONS: &str = "forebay_postgres_connection_transactions";

pub(crate) fn describe() {
    describe_gauge!(STEP, "1 for the step that the manager is at.");
    describe_gauge!(CONDITION, "1 for each condition of readiness that holds.");
    describe_counter!(RESTARTS, "Times that the connection side was started again, by reason.");
    describe_counter!(RESETS, "Times that the consumer started over, by reason.");
    describe_gauge!(RECEIVED, Unit::Bytes, "The last log position that the server told of.");
    describe_gauge!(DURABLE, Unit::Bytes, "The log position up to which the consumer is durable.");
    describe_gauge!(
        LAG_BYTES,
        Unit::Bytes,
        "Log that the server has written and the consumer has not made durable."
    );
    describe_gauge!(
        LAG_SECONDS,
        Unit::Seconds,
        "Age of what has come and the consumer has not made durable, since its commit; 0 when there is nothing."
    );
    describe_gauge!(RETAINED, Unit::Bytes, "Log that the server keeps for the slot.");
    describe_gauge!(SAFE, Unit::Bytes, "Log that may still be written before the slot is invalidated.");
    describe_gauge!(TRANSACTIONS, "Transactions handed to the consumer by the connection that there is.");
}

pub(crate) fn entered(from: &'static str, to: &'static str) {
    gauge!(STEP, "step" => from).set(0.0);
    gauge!(STEP, "step" => to).set(1.0);
}

pub(crate) fn restarted(reason: &'static str) {
    counter!(RESTARTS, "reason" => reason).increment(1);
}

pub(crate) fn reset(reason: &'static str) {
    counter!(RESETS, "reason" => reason).increment(1);
}
