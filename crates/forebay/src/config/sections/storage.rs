//! Settings of `[storage]`.
//!
//! Limits in memory are bounded by the memory of common machines. The WAL is replayed at the next
//! start, so its size is bounded, too.

use std::path::PathBuf;

use crate::config::electric_variables::own_directory;
use crate::config::imported_variables::text;
use crate::config::settings_macro::settings;

const KI: u64 = 1 << 10;
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const PI: u64 = 1 << 50;

settings! {
    /// The storage directory of shapes.
    StorageSection: "storage" {
        /// Storage directory for shapes. It is created if it does not exist. Instances with the
        /// same slot share it; other instances must not.
        dir: PathBuf = "./forebay-data",
            rule(check_directory),
            flag("--storage", "DIR"),
            electric(
                "ELECTRIC_STORAGE_DIR",
                own_directory,
                "the directory `forebay` in it, so that the files of Electric are not changed",
            );

        /// A chunk ends with the message that reaches this size. The default of 10 MiB is what
        /// clients and caches expect.
        chunk_bytes: u64 = 10_485_760,
            bounds(KI, GI),
            electric("ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD", text, "");

        /// Maximum number of shapes. Above it, the least recently used is deleted.
        max_shapes: u32 = 100_000,
            bounds(1, 10_000_000),
            electric("ELECTRIC_EXPERIMENTAL_MAX_SHAPES", text, "the older name of the next variable"),
            electric("ELECTRIC_MAX_SHAPES", text, "applied at once, not after a minute");

        /// Maximum size of all shapes on disk; 0: no limit. Above it, the least recently used are
        /// deleted.
        max_bytes: u64 = 0, bounds(MI, PI), or_zero();

        /// Maximum size of the messages that are only in memory and in the WAL of the store. Above
        /// it, they are written to the files of their shapes.
        unwritten_bytes: u64 = 67_108_864, bounds(64 * KI, 16 * GI);

        /// Size of the WAL of the store above which it is truncated. After a crash, all of it is
        /// replayed: 256 MiB in a second or two.
        wal_bytes: u64 = 268_435_456, bounds(MI, 64 * GI);

        /// Size of a shape's log before its last two chunks from which that part is compacted; 0:
        /// never. Several updates of a row become one, with the values of all of them. Clients that
        /// have read only some of that part can continue.
        compact_bytes: u64 = 67_108_864, bounds(0, PI);

        /// Maximum number of shape files that are open at once.
        open_files: u32 = 512, bounds(1, 1_000_000);

        /// Maximum size of a snapshot that is written through the WAL of the store and needs no
        /// sync of its own.
        small_snapshot_bytes: u64 = 262_144, bounds(0, 64 * MI);

        /// Maximum size of the changes that are held for a shape until its snapshot starts, or
        /// until Postgres has evaluated its clause on them. Above it, the shape is dropped, and
        /// clients request it again.
        held_bytes: u64 = 16_777_216, bounds(64 * KI, GI);

        /// Maximum size of the changes that are held for all shapes. Above it, the shapes with the
        /// most are dropped, and clients request them again.
        total_held_bytes: u64 = 268_435_456, bounds(64 * KI, 64 * GI);

        /// Maximum size of the changes that wait to be written or are being written. Above it, the
        /// replication stream pauses.
        queued_bytes: u64 = 16_777_216, bounds(64 * KI, GI);
    }
}

fn check_directory(path: &str) -> Result<(), String> {
    if path.is_empty() { Err("must be a directory, such as ./forebay-data".to_owned()) } else { Ok(()) }
}
