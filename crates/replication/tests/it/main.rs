//! Integration tests of the manager with real servers.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]
#![allow(clippy::print_stdout, reason = "output of child processes, and figures")]

mod connectivity;
mod data;
mod exactly_once;
mod followed_database;
mod journal;
mod lifecycle;
mod load;
mod lock;
mod other_client;
mod position;
mod publication;
mod refusals;
mod shutdown;
mod sleep;
mod slot;
mod supervision;
mod timeline;
