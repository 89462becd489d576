//! The server on real sockets: every test on a current-thread and on a multi-thread runtime.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod brief;
mod client;
mod direct;
mod drain;
mod hostile;
mod http2;
mod lean;
mod many;
mod ordinary;
mod site;
mod wrapped;
