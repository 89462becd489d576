//! Tables, clauses and snapshots, as real Postgres servers have them.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

mod database;
mod deadline;
