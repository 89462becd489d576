//! Counting against real stores, by real processes.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod agreement;
#[cfg(feature = "dynamodb")]
mod dynamo;
mod faults;
mod processes;
mod redis;
mod support;
