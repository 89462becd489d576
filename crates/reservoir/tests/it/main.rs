//! The reservoir against real servers, files and programs.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]
#![allow(clippy::print_stdout, reason = "output of a child process")]

#[cfg(all(feature = "postgres", feature = "deadpool", feature = "bb8"))]
mod adapters;
mod backoff;
#[cfg(all(feature = "postgres", feature = "redis"))]
mod cluster;
#[cfg(feature = "postgres")]
mod hooks;
mod lifecycle;
#[cfg(all(feature = "postgres", feature = "deadpool", feature = "bb8"))]
mod lingering;
#[cfg(feature = "postgres")]
mod metrics;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod servers;
#[cfg(feature = "postgres")]
mod soak;
#[cfg(feature = "postgres")]
mod statements;
mod tokens;
