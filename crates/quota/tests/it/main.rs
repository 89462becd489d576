//! Integration tests: members in real processes, with real stores.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]
#![allow(clippy::print_stdout, reason = "measurements for manual runs, and a child's replies")]

mod clock;
mod driven_calls;
#[cfg(feature = "dynamodb")]
mod dynamo;
mod faults;
mod frozen_store;
mod members;
mod names;
mod processes;
mod random_faults;
mod rebuild;
mod redis_errors;
mod release_0_1;
mod rolling_upgrade;
mod store_conformance;
mod support;
