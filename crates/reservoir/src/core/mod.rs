//! Pure core of the reservoir: no sockets, no tasks, no clock. Callers pass `now`.

pub(crate) mod checkout_queue;
pub(crate) mod connection_counts;
pub(crate) mod connection_table;
pub(crate) mod ledger;
pub(crate) mod ledger_effects;
pub(crate) mod ledger_entry;
pub(crate) mod ledger_rules;
#[cfg(test)]
mod ledger_tests;
pub(crate) mod retirements;
