//! Pure protocol core: no socket, no clock, no runtime.
//!
//! [`frame`] finds where replies end. [`pipeline`] matches replies to requests. [`link`] is the
//! state machine of the connection. [`backoff`] computes reconnect delays. [`refusal`] lists the
//! errors that mean that a server cannot serve. [`echo_probe`] checks that a command had exactly
//! one reply. [`connection`] combines them. `worker.rs` owns a [`connection::ConnectionCore`],
//! reports events to it and performs its effects.

pub(crate) mod backoff;
pub(crate) mod connection;
pub(crate) mod echo_probe;
mod expected_replies;
pub(crate) mod frame;
pub(crate) mod link;
pub(crate) mod pipeline;
pub(crate) mod refusal;
