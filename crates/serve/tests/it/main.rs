//! Integration tests of `forebay_serve::database` with real Postgres servers.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

mod database;
mod deadline;
