//! Pure core: no tokio, no clock, no I/O.

pub(crate) mod account;
pub(crate) mod bucket;
pub(crate) mod grant;
pub(crate) mod ledger;
pub(crate) mod member;
