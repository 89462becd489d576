//! `forebay check`: is everything fit for `forebay serve`, and what is to be done about what isn't.
//!
//! Invariant: nothing is changed in the database or in Redis; whatever can't be reached is one line, and the rest goes on.
//! Kept by: only questions are asked (`postgres.rs`, `redis.rs`); the storage directory sees one file come and go (`storage.rs`).
//!
//! | to find | look in |
//! |---|---|
//! | a line, and how it is printed | `finding.rs` |
//! | versions, rights, slots, connections, TLS, clock | `postgres.rs` asks, `judging.rs` decides |
//! | Redis | `redis.rs` |
//! | round trips, clocks | `trips.rs` |
//! | disk, files, lock | `storage.rs` |
//! | file descriptors, addresses | `machine.rs` |

mod finding;
mod judging;
mod machine;
mod postgres;
mod redis;
mod storage;
mod trips;

pub use finding::{Area, Finding, Findings, Level};

use crate::config::ServeConfig;

/// Looks at everything, and tells `seen` of each finding as it comes.
pub async fn check(config: &ServeConfig, mut seen: impl FnMut(&Finding)) -> Findings {
    let mut findings = Findings::default();
    let mut add = |some: Vec<Finding>| {
        for finding in some {
            seen(&finding);
            findings.add(finding);
        }
    };
    add(postgres::check(config).await);
    add(redis::check(config.quota.redis.as_ref()).await);
    add(storage::check(&config.store.dir));
    add(machine::check(config));
    findings
}
