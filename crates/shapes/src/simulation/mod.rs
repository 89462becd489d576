//! The whole store against a model of it, on a disk that fails.
//!
//! A [`World`] is a database, what clients were promised, and a store that follows the one to keep the other. It takes random steps until its
//! disk crashes; then a new store is opened on what the crash left, and has to keep every promise.

pub(crate) mod bench;
mod crashes;
pub(crate) mod database;
mod faults;
mod making;
mod many;
mod readers;
mod turns;
mod verdict;
pub(crate) mod wire;
mod world;

/// How many seeds a test tries: a few, or as many as the environment says.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("FOREBAY_SEEDS").ok().and_then(|count| count.parse().ok());
    0..asked.unwrap_or(few)
}
