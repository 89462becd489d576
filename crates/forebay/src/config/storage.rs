//! Checked settings of `[storage]`.

use std::ops::RangeInclusive;

use forebay_shapes::StoreConfig;

use super::serve_file::StorageSection;
use super::value_reader::{ValueError, ValueReader};

const DIR: &str = "./forebay-data";
const KI: u64 = 1 << 10;
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const PI: u64 = 1 << 50;

/// Checks the section.
pub(super) fn check_storage(
    section: &StorageSection,
    reader: &ValueReader,
) -> Result<StoreConfig, ValueError> {
    let mut store = StoreConfig::new(section.dir.clone().unwrap_or_else(|| DIR.into()));
    if store.dir.as_os_str().is_empty() {
        return Err(reader.error(
            "storage.dir",
            String::new(),
            "must be a directory, such as ./forebay-data",
        ));
    }
    let bytes = |key, given, default, bounds| reader.bytes(key, given, default, bounds);
    let count = |key, given, default, bounds| reader.count_within(key, given, default, bounds);
    store.chunk_bytes = bytes("storage.chunk_bytes", section.chunk_bytes, store.chunk_bytes, KI..=GI)?;
    store.max_shapes = count("storage.max_shapes", section.max_shapes, store.max_shapes, 1..=10_000_000)?;
    store.open_files = count("storage.open_files", section.open_files, store.open_files, 1..=1_000_000)?;
    store.max_bytes = match section.max_bytes {
        None | Some(0) => None,
        given => Some(bytes("storage.max_bytes", given, 0, MI..=PI)?),
    };
    // Data in memory is bounded by the memory of common machines. The WAL is bounded, because the
    // next start replays it.
    store.unwritten_bytes =
        bytes("storage.unwritten_bytes", section.unwritten_bytes, store.unwritten_bytes, 64 * KI..=16 * GI)?;
    store.wal_bytes = bytes("storage.wal_bytes", section.wal_bytes, store.wal_bytes, MI..=64 * GI)?;
    store.compact_bytes = bytes("storage.compact_bytes", section.compact_bytes, store.compact_bytes, 0..=PI)?;
    let in_memory = |key, given, default: usize, bounds: RangeInclusive<u64>| {
        let bytes = reader.bytes(key, given, default as u64, bounds)?;
        usize::try_from(bytes)
            .map_err(|_| reader.error(key, bytes.to_string(), "is more than this machine can address"))
    };
    store.small_snapshot_bytes = in_memory(
        "storage.small_snapshot_bytes",
        section.small_snapshot_bytes,
        store.small_snapshot_bytes,
        0..=64 * MI,
    )?;
    store.held_bytes = in_memory("storage.held_bytes", section.held_bytes, store.held_bytes, 64 * KI..=GI)?;
    store.queued_bytes =
        in_memory("storage.queued_bytes", section.queued_bytes, store.queued_bytes, 64 * KI..=GI)?;
    Ok(store)
}
