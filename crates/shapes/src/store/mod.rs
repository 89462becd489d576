//! The store: where the logs of shapes are kept.
//!
//! On disk, in one directory:
//! - `catalog`: every shape, as it was when a segment of the log began;
//! - `wal/`: the write-ahead log from there on, what is synced and what is acknowledged;
//! - `shapes/`: for each shape a snapshot and a log, in exactly the bytes that clients get, written when it suits; of a long log, what is old
//!   apart, merged;
//! - `head`: how far the log is durable, for those who read beside the writer;
//! - `lock`: who has it writes.
//!
//! Invariant: what was acknowledged is there after a crash, and what was served is what is there.
//! Kept by: nothing is visible, and nothing is acknowledged, before the record that says so was synced. The catalog says how much of a
//! shape's files counts; what lies beyond was never visible, and is written again from the log.

pub(crate) mod catalog;
pub(crate) mod checkpoint;
mod compaction;
pub(crate) mod disk;
pub(crate) mod files;
mod glance;
pub(crate) mod head;
mod history;
pub(crate) mod queue;
pub(crate) mod reading;
pub(crate) mod record;
pub(crate) mod strand;
#[cfg(test)]
mod upgrade_tests;
pub(crate) mod wal;
pub(crate) mod writer;

use std::io;

pub use self::glance::Glance;

use crate::shapes::StoreFailure;

/// Why a store can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its files are of another version.
    #[error(
        "the storage directory was written by another version of Forebay (format {found}; this one reads {known}): run that version, or begin with an empty directory, from which clients start over"
    )]
    Format {
        /// What is there.
        found: u32,
        /// What can be read.
        known: u32,
    },
    /// It isn't what was written.
    #[error(
        "{file} in the storage directory is damaged: restore it, or begin with an empty directory, from which clients start over"
    )]
    Damaged {
        /// Which file.
        file: &'static str,
    },
    /// Somebody else has it.
    #[error("another process writes to the storage directory")]
    Locked,
    /// It failed before.
    #[error(transparent)]
    Failed(#[from] StoreFailure),
    /// The operating system says no.
    #[error("the storage directory can't be used: {0}")]
    Io(#[from] io::Error),
}
