//! Errors of a store.

use std::io;
use std::sync::Arc;

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

/// Fatal error: the store can't be written any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store can't be written: {0}")]
pub struct StoreFailure(pub(crate) Arc<str>);
