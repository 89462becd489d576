//! How a store is kept.

use std::path::PathBuf;

/// How a store is kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Where. Made if it isn't there.
    pub dir: PathBuf,
    /// A chunk closes with the message that reaches this size: 10 MiB, as clients and caches expect.
    pub chunk_bytes: u64,
    /// How many shapes there may be; the least recently used goes for another. 100,000.
    pub max_shapes: usize,
    /// How much they may take on disk together; the least recently used go. `None`: as much as there is.
    pub max_bytes: Option<u64>,
    /// A change that is larger, as a message, can't be told to its shapes, which are deleted: 256 MiB.
    pub message_bytes: usize,
    /// Messages that are only in memory and in the log are written to the shapes' files beyond this: 64 MiB.
    pub unwritten_bytes: u64,
    /// The log is made short beyond this: 256 MiB, which are read again in a second or two.
    pub wal_bytes: u64,
    /// When so much of a shape's log is older than its last two chunks, and no less than what was merged before, then of several changes of a row
    /// only the last is kept there: 64 MiB. 0: never.
    pub compact_bytes: u64,
    /// How many of the shapes' files are open at once: 512.
    pub open_files: usize,
    /// A snapshot up to this size goes through the log, and needs no sync of its own: 256 KiB.
    pub small_snapshot_bytes: usize,
    /// How much of the stream is held for a shape whose snapshot is about to begin: 16 MiB. With more, it is given up.
    pub held_bytes: usize,
    /// How much waits to be written: 16 MiB. With more, the stream waits.
    pub queued_bytes: usize,
    /// A transaction is written in parts of this size, so that none is too large for memory: 1 MiB.
    pub(crate) part_bytes: usize,
    /// Whether the writer waits for its checkpoints, so that a test sees the same order each time.
    pub(crate) waits_for_checkpoints: bool,
}

impl StoreConfig {
    /// In this directory, with everything else as documented.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        StoreConfig {
            dir: dir.into(),
            chunk_bytes: 10 << 20,
            max_shapes: 100_000,
            max_bytes: None,
            message_bytes: 256 << 20,
            unwritten_bytes: 64 << 20,
            wal_bytes: 256 << 20,
            compact_bytes: 64 << 20,
            open_files: 512,
            small_snapshot_bytes: 256 << 10,
            held_bytes: 16 << 20,
            queued_bytes: 16 << 20,
            part_bytes: 1 << 20,
            waits_for_checkpoints: false,
        }
    }
}
