//! The client's rules, without a socket, a clock or a runtime.
//!
//! [`frame`] finds where replies end, [`pipeline`] knows whose reply comes next, [`link`] knows which state the
//! connection is in, and [`backoff`] how long to wait before the next try. `worker.rs` owns one of each, feeds them what
//! happens and does what they say.

pub(crate) mod backoff;
pub(crate) mod frame;
pub(crate) mod link;
pub(crate) mod pipeline;
