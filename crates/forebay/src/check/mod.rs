//! `forebay check`: verifies that the database, Redis, the storage directory and this machine are
//! ready for `forebay serve`, and prints what to change.
//!
//! Invariant: nothing is changed in the database or in Redis. A server that can't be reached is one
//! finding, and the other checks continue.
//! Enforced by: `postgres.rs` and `redis.rs` only send queries that read. `storage.rs` writes one
//! file to the storage directory and removes it.
//!
//! | topic | file |
//! |---|---|
//! | findings and their output | `finding.rs` |
//! | queries to the database | `postgres.rs` |
//! | version, rights, slots, connections, TLS | `postgres_server.rs`, pure |
//! | tables, slot, publication | `postgres_objects.rs`, pure |
//! | Redis | `redis.rs` |
//! | round trips, clocks | `round_trips.rs` |
//! | disk, files, lock | `storage.rs` |
//! | file descriptors, addresses | `machine.rs` |

mod catalog_row;
mod finding;
mod machine;
mod postgres;
mod postgres_objects;
#[cfg(test)]
mod postgres_samples;
mod postgres_server;
mod redis;
mod round_trips;
mod storage;

pub use finding::{CheckArea, Finding, FindingLevel, Findings};

use crate::config::ServeConfig;

/// Runs all checks. Calls `report` with each finding as it is made.
pub async fn check(config: &ServeConfig, mut report: impl FnMut(&Finding)) -> Findings {
    let mut findings = Findings::default();
    let mut add = |some: Vec<Finding>| {
        for finding in some {
            report(&finding);
            findings.add(finding);
        }
    };
    add(postgres::check(config).await);
    add(redis::check(config.quota.redis.as_ref()).await);
    add(storage::check(&config.store.dir));
    add(machine::check(config));
    findings
}
