//! Integration tests on real sockets, on current-thread and multi-thread runtimes.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod client;
mod direct_delivery;
mod drain;
mod h1;
mod hostile;
mod http2;
mod live;
mod many_streams;
mod requests;
mod test_server;
mod transport;
mod upgrade;
