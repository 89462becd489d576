//! Settings of a store.

use std::path::PathBuf;

/// Settings of a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Directory of the store. Created if it doesn't exist.
    pub dir: PathBuf,
    /// Minimum size of a closed chunk, in bytes. The message that reaches this size closes the
    /// chunk. 10 MiB, which clients and caches expect.
    pub chunk_bytes: u64,
    /// Maximum number of shapes. Beyond it, the least recently used shape is deleted. 100,000.
    pub max_shapes: usize,
    /// Maximum memory of the where clauses of all shapes, in bytes, as [`Filter::memory`] estimates
    /// it. Beyond it, shapes are deleted when one is created: those with long clauses first, and of
    /// these the least recently used. 2 GiB.
    ///
    /// [`Filter::memory`]: crate::filter::Filter::memory
    pub clause_bytes: usize,
    /// Maximum size of all shapes on disk, in bytes. Beyond it, the least recently used shapes are
    /// deleted. Checked after each checkpoint and each completed snapshot. `None`: unbounded.
    pub max_bytes: Option<u64>,
    /// Maximum size of a message, in bytes. A larger change deletes the shapes that it concerns.
    /// 256 MiB.
    pub message_bytes: usize,
    /// Maximum size of messages that are only in memory and in the write-ahead log (WAL), in bytes.
    /// Beyond it, they are written to the shapes' files. 64 MiB.
    pub unwritten_bytes: u64,
    /// Size of the last WAL segment at which a checkpoint starts, in bytes. 256 MiB, which a new
    /// process reads in a second or two.
    pub wal_bytes: u64,
    /// Minimum size of the old part of a shape's log to be merged, in bytes. The old part is older
    /// than the last two closed chunks. It is merged only if it is at least as large as the part
    /// that is merged already. Merging combines several updates of a row into one. 64 MiB. 0:
    /// never.
    pub compact_bytes: u64,
    /// Maximum number of open files of shapes. 512.
    pub open_files: usize,
    /// Maximum size of a snapshot that is written to the WAL instead of its own file, in bytes.
    /// Such a snapshot needs no separate sync. 256 KiB.
    pub small_snapshot_bytes: usize,
    /// Maximum size of the changes held for a shape until its snapshot is taken, or until Postgres
    /// has judged its rows, in bytes. Beyond it, the shape is deleted. 16 MiB.
    pub held_bytes: usize,
    /// Maximum size of the changes held for all shapes, in bytes. Beyond it, the shapes with the
    /// largest holds are deleted. 256 MiB.
    pub total_held_bytes: usize,
    /// Bytes, queued or being written, at which
    /// [`Shapes::wait_for_room`](crate::Shapes::wait_for_room) waits. 16 MiB.
    pub queued_bytes: usize,
    /// Size of the parts in which a transaction is queued, in bytes. It bounds the memory of a
    /// transaction. 1 MiB.
    pub(crate) part_bytes: usize,
    /// Whether the writer waits for its checkpoints, so that tests are deterministic.
    pub(crate) waits_for_checkpoints: bool,
}

impl StoreConfig {
    /// Returns the documented defaults for a directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        StoreConfig {
            dir: dir.into(),
            chunk_bytes: 10 << 20,
            max_shapes: 100_000,
            clause_bytes: 2 << 30,
            max_bytes: None,
            message_bytes: 256 << 20,
            unwritten_bytes: 64 << 20,
            wal_bytes: 256 << 20,
            compact_bytes: 64 << 20,
            open_files: 512,
            small_snapshot_bytes: 256 << 10,
            held_bytes: 16 << 20,
            total_held_bytes: 256 << 20,
            queued_bytes: 16 << 20,
            part_bytes: 1 << 20,
            waits_for_checkpoints: false,
        }
    }
}
