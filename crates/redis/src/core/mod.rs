//! The client's rules, without a socket, a clock or a runtime.
//!
//! [`frame`] finds where replies end, [`pipeline`] knows whose reply comes next, [`link`] knows which state the
//! connection is in, [`backoff`] how long to wait before the next try, [`refusal`] which errors say that the server can't
//! serve now, [`sentinel`] whether a command had exactly one reply, and [`connection`] puts them together. `worker.rs`
//! owns a connection, feeds it what happens and does what it says.

pub(crate) mod backoff;
pub(crate) mod connection;
pub(crate) mod frame;
pub(crate) mod link;
pub(crate) mod pipeline;
pub(crate) mod refusal;
pub(crate) mod sentinel;
