//! Random numbers for ids: seeds of epochs, stamps of items in DynamoDB.

use std::hash::{BuildHasher, RandomState};

/// Returns a random number from the keys of std's hasher, which come from the system.
///
/// Ids must differ between processes and machines; they need not be secret. fastrand isn't enough
/// for that: it is seeded by a clock and a thread id.
pub(crate) fn random_id() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
