//! Simulation: compares a whole store with a model, on a disk that fails.
//!
//! A [`StoreSimulation`] has a simulated database, a store that follows it, and a model of what
//! clients may rely on. It takes random steps until the disk crashes. Then a new store is opened on
//! the bytes that the crash left on the disk, and must satisfy the model.

mod crashes;
mod faults;
pub(crate) mod follow_bench;
mod many_shapes;
pub(crate) mod message_bytes;
mod readers;
mod simulated_creation;
pub(crate) mod simulated_database;
mod store_simulation;
mod turns;
mod verification;

/// Returns the seeds of a test: `FOREBAY_SEEDS` of them if it is set, otherwise `few`.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let requested = std::env::var("FOREBAY_SEEDS").ok().and_then(|count| count.parse().ok());
    0..requested.unwrap_or(few)
}
