//! Live streams: the task that owns a stream's socket, and topics that publish to many streams.

mod delivery;
pub(crate) mod direct_writes;
mod event_ring;
#[cfg(all(test, forebay_loom))]
mod loom_tests;
pub(crate) mod stream;
pub(crate) mod tail;
pub(crate) mod topic;
