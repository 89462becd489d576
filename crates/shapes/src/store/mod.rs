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
//! # Formats
//! | format | what is new |
//! |---|---|
//! | 1 | |
//! | 2 | Commits may state from which commit on a shape is held. So may a shape in the catalog. |
//!
//! This version reads both. When it begins to write to a directory of format 1, it first rewrites
//! the catalog in format 2. That needs no more space than the catalog, so a full disk with so much
//! free suffices.
//!
//! # Versions
//! A directory that this version can't read is refused ([`OpenError::Format`],
//! [`OpenError::Unreadable`]), and no byte of it changes.
//! - The catalog's first record has the format of the whole directory ([`catalog::FORMAT`]). A
//!   version refuses formats that it doesn't know.
//! - These changes raise the format: a new kind of record or note, a field that readers must
//!   understand, a new kind of file, and another encoding of the shapes' files. A writer writes the
//!   catalog with its format before the first such record: see
//!   [`engine::writer`](crate::engine::writer).
//! - A field that older versions may ignore, and lose, doesn't raise the format. It has
//!   `#[serde(default)]`.
//! - These parts are the same in every version, so that each version recognises the others: the
//!   frame of a record, the catalog's first record with its `format`, the start of a segment
//!   (`forebay wal `, a version, a line break), and the first 28 bytes of `head`.
//! - A whole record that this version can't decode is refused under any format.

pub(crate) mod catalog;
pub(crate) mod disk;
mod error;
pub(crate) mod frame;
mod health;
pub(crate) mod message_sequence;
mod progress;
mod queue_sync;
pub(crate) mod record;
pub(crate) mod shape_files;
mod summary;
#[cfg(test)]
mod upgrade_tests;
pub(crate) mod wal;
pub(crate) mod write_queue;
pub(crate) mod writer_head;
pub(crate) mod writer_role;

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use self::disk::Disk;
pub use self::error::{OpenError, StoreFailure, StoreUnusable};
use self::health::StoreHealth;
use self::progress::StoreProgress;
use self::shape_files::{FileKind, ShapeFiles};
pub use self::summary::StoreSummary;
use self::writer_role::WriterRole;
use crate::config::StoreConfig;
use crate::lock_order::{LockRank, RankedMutex};

/// The storage directory, and the role, progress and health of this process in it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) config: StoreConfig,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) files: Arc<ShapeFiles>,
    pub(crate) role: WriterRole,
    pub(crate) progress: StoreProgress,
    pub(crate) health: StoreHealth,
    /// Ids of the shapes that have parts of a transaction without its commit.
    pub(crate) staged: Mutex<HashSet<u64>>,
    /// Ids of deleted shapes whose deletion isn't in the WAL yet.
    pub(crate) unlogged_deletions: RankedMutex<HashSet<u64>>,
    /// Old files of logs that were merged. The checkpoint that writes the next catalog removes
    /// them. Locked while messages are written to shapes' files to free memory, and while a
    /// checkpoint replaces such files.
    pub(crate) replaced_files: RankedMutex<Vec<(u64, FileKind)>>,
}

impl Store {
    pub(crate) fn new(disk: Arc<dyn Disk>, config: StoreConfig) -> Self {
        Store {
            files: Arc::new(ShapeFiles::new(Arc::clone(&disk), config.open_files)),
            config,
            disk,
            role: WriterRole::default(),
            progress: StoreProgress::default(),
            health: StoreHealth::default(),
            staged: Mutex::default(),
            unlogged_deletions: RankedMutex::new(LockRank::Deletions, HashSet::new()),
            replaced_files: RankedMutex::new(LockRank::Replaced, Vec::new()),
        }
    }

    /// Returns whether a shape has staged parts of an uncommitted transaction.
    pub(crate) fn is_inside_transaction(&self) -> bool {
        !self.staged.lock().is_empty()
    }
}
