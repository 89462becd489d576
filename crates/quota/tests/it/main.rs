//! Counting against real stores, by real processes.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]
#![allow(clippy::print_stdout, reason = "figures for whoever runs a test by hand, and a child's answers")]

mod agreement;
mod clock;
mod driving;
#[cfg(feature = "dynamodb")]
mod dynamo;
mod faults;
mod members;
mod names;
mod processes;
mod refusals;
mod release_0_1;
mod rolling;
mod silence;
mod storm;
mod support;
