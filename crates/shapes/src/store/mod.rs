//! Store: the durable logs of all shapes, in one directory on disk.
//!
//! The files of the directory:
//! - `catalog`: every table and shape, as of the start of a WAL segment. `catalog.new` is the next
//!   one, until it is renamed.
//! - `wal/`: the write-ahead log (WAL) from that segment on, one file for each segment. The name is
//!   the segment's number in 16 hexadecimal digits. A record is acknowledged after it is synced
//!   here.
//! - `shapes/`: for each shape a snapshot and a log, in the bytes that clients receive. `ID` is the
//!   shape's id in 16 hexadecimal digits.
//!   - `ID.snapshot`: the rows. The creation of the shape writes a large snapshot, and syncs it
//!     before the snapshot is complete. A small one is in the WAL first.
//!   - `ID.log`: the log. A checkpoint writes it. The writer thread also writes it when more than
//!     `unwritten_bytes` are only in memory and in the WAL.
//!   - `ID.BASE.past` and `ID.BASE.log`: instead of `ID.log` after a compaction. The old part of
//!     the log is merged into the first file. The second one starts at position `BASE` of the log,
//!     in hexadecimal digits.
//! - `head`: the durable position of the WAL, for processes that read while another one writes.
//! - `lock`: locked by the process that writes.
//!
//! Invariant: an acknowledged record survives a crash. Once a shape's snapshot is complete, its
//! visible bytes survive, too, and never change. The exception is compaction, which merges updates
//! of the same row.
//! Enforced by: a record is neither visible nor acknowledged before it is synced. The catalog
//! states how many bytes of each shape file are valid. Recovery ignores the bytes after them, and
//! restores those of committed transactions from the WAL.
//!
//! # Versions
//! A directory that this version can't read is refused ([`OpenError::Format`],
//! [`OpenError::Unreadable`]), and no byte of it changes.
//! - The catalog's first record has the format of the whole directory ([`catalog::FORMAT`]). A
//!   version refuses every other format.
//! - These changes raise the format: a new kind of record or note, a field that readers must
//!   understand, a new kind of file, and another encoding of the shapes' files. A writer writes the
//!   catalog with its format before the first such record: see [`writer::begin`].
//! - A field that older versions may ignore, and lose, doesn't raise the format. It has
//!   `#[serde(default)]`.
//! - These parts are the same in every version, so that each version recognises the others: the
//!   frame of a record, the catalog's first record with its `format`, the start of a segment
//!   (`forebay wal `, a version, a line break), and the first 28 bytes of `head`.
//! - A whole record that this version can't decode is refused under any format.

mod apply;
pub(crate) mod catalog;
pub(crate) mod checkpoint;
mod compaction;
pub(crate) mod disk;
pub(crate) mod frame;
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

/// Why a storage directory can't be opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another version wrote the directory in another format.
    #[error(
        "the storage directory was written by another version of Forebay (format {found}; this one reads {known}): run that version, or begin with an empty directory, from which clients start over"
    )]
    Format {
        /// Format of the directory.
        found: u32,
        /// Format that this version reads.
        known: u32,
    },
    /// A whole record, or the start of a segment, that this version can't decode.
    #[error(
        "this version of Forebay can't read {file} in the storage directory ({what}): a newer version wrote it; run that version, or begin with an empty directory, from which clients start over"
    )]
    Unreadable {
        /// Path of the file within the directory.
        file: String,
        /// Which record, without its values.
        what: String,
    },
    /// The bytes are not those that were written.
    #[error(
        "{file} in the storage directory is damaged: restore it, or begin with an empty directory, from which clients start over"
    )]
    Damaged {
        /// The damaged file.
        file: &'static str,
    },
    /// Another process holds the lock of the directory.
    #[error("another process writes to the storage directory")]
    Locked,
    /// An earlier write failed.
    #[error(transparent)]
    Failed(#[from] StoreFailure),
    /// An operation of the filesystem failed.
    #[error("the storage directory can't be used: {0}")]
    Io(#[from] io::Error),
}

/// Why a storage directory can't be served. Shown to clients and probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreUnusable {
    /// Another version wrote the directory.
    OtherVersion,
    /// The bytes are not those that were written.
    Damaged,
}

impl StoreUnusable {
    /// Returns one sentence for clients. The details are in the log.
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
    /// Returns why the directory can't be served, or `None` if it may become usable.
    pub fn unusable(&self) -> Option<StoreUnusable> {
        match self {
            OpenError::Format { .. } | OpenError::Unreadable { .. } => Some(StoreUnusable::OtherVersion),
            OpenError::Damaged { .. } => Some(StoreUnusable::Damaged),
            OpenError::Locked | OpenError::Failed(_) | OpenError::Io(_) => None,
        }
    }
}
