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
//!
//! # Versions
//! A directory that this version can't read is refused ([`OpenError::Format`],
//! [`OpenError::Unreadable`]), and no byte of it changes.
//! - The catalog's first record has the format of the whole directory ([`catalog::FORMAT`]).
//!   A version refuses every other one.
//! - The format is raised with a new kind of record or note, with a field that readers must
//!   understand, with another kind of file, or with another form of the shapes' files. A writer
//!   writes the catalog with its format before the first such record: see [`writer::begin`].
//! - A field that older versions may ignore, and lose, needs no other format: it has
//!   `#[serde(default)]`.
//! - These stay as they are in every version, so that each can recognise the others: the frame of
//!   a record, the catalog's first record with its `format`, the beginning of a segment
//!   (`forebay wal `, a version, a line break), and the first 28 bytes of `head`.
//! - A whole record that this version doesn't understand is refused under any format.

mod apply;
pub(crate) mod catalog;
pub(crate) mod checkpoint;
mod compaction;
pub(crate) mod disk;
pub(crate) mod message_sequence;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod shape_files;
mod summary;
#[cfg(test)]
mod upgrade_tests;
pub(crate) mod wal;
pub(crate) mod write_queue;
pub(crate) mod writer;
pub(crate) mod writer_head;

use std::io;

pub use self::summary::StoreSummary;

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
    /// It has something that is whole, and that this version doesn't understand.
    #[error(
        "this version of Forebay can't read {file} in the storage directory ({what}): a newer version wrote it; run that version, or begin with an empty directory, from which clients start over"
    )]
    Unreadable {
        /// Which file, by its path in the directory.
        file: String,
        /// What of it.
        what: String,
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

/// Why what is in the storage directory can't be served, as clients and probes are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUnusable {
    /// Another version wrote it.
    OtherVersion,
    /// It isn't what was written.
    Damaged,
}

impl StoreUnusable {
    /// One sentence, without details: those are in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreUnusable::OtherVersion => {
                "the storage was written by a newer version of Forebay, which this instance can't read"
            }
            StoreUnusable::Damaged => "the storage is damaged",
        }
    }
}

impl OpenError {
    /// What is wrong with the directory itself; `None`: it may be used later.
    pub fn unusable(&self) -> Option<StoreUnusable> {
        match self {
            OpenError::Format { .. } | OpenError::Unreadable { .. } => Some(StoreUnusable::OtherVersion),
            OpenError::Damaged { .. } => Some(StoreUnusable::Damaged),
            OpenError::Locked | OpenError::Failed(_) | OpenError::Io(_) => None,
        }
    }
}
