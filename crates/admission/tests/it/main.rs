//! The layer in front of real services, with counts in memory and in Redis; clients on real
//! sockets.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod adaptive_limit;
mod client_disconnects;
mod cluster;
mod ending;
mod hostile;
mod layer;
mod limits;
mod logs;
mod many_streams;
mod metrics;
mod support;
mod wait_queue;
