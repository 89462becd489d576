//! The client against real servers, with and without faults.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod abort;
mod caller_code;
mod connecting;
mod credentials;
mod decoder;
mod faults;
mod features;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod observed;
mod pubsub;
mod refusals;
mod replies;
mod support;
mod types;
