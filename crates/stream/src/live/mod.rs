//! Live streams: the task that owns a stream's socket, and topics that publish to many streams.

mod delivery;
pub(crate) mod direct_writes;
mod event_ring;
pub(crate) mod stream;
pub(crate) mod tail;
pub(crate) mod topic;
