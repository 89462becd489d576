//! What is decided, without sockets, tasks or clocks.

pub(crate) mod dice;
pub(crate) mod ledger;
#[cfg(test)]
mod ledger_tests;
pub(crate) mod line;
pub(crate) mod retirements;
