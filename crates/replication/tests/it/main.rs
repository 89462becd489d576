//! The manager against real servers.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]
#![allow(clippy::print_stdout, reason = "a child's answers, and figures")]

mod data;
mod exactly_once;
mod journal;
mod life;
mod load;
mod lock;
mod publication;
mod reaching;
mod refusals;
mod shutdown;
mod sleep;
mod slot;
mod stranger;
mod supervision;
mod support;
mod timeline;
