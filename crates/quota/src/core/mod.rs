//! The pure part: no tokio, no clock, no store.

pub(crate) mod account;
pub(crate) mod bucket;
pub(crate) mod ledger;
pub(crate) mod member;
