//! The layer before real services, on memory and on Redis; clients on real sockets.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod cluster;
mod crowd;
mod hostile;
mod house;
mod layer;
mod leaving;
mod logs;
mod metrics;
mod support;
mod waiting;
