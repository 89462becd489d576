//! Store of shapes from the settings of `[storage]`.

use forebay_shapes::StoreConfig;

use super::sections::StorageSection;

/// Returns the settings of the store.
pub(super) fn store_config(section: StorageSection) -> StoreConfig {
    // The bounds of the settings fit into the address space of any supported machine.
    let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut store = StoreConfig::new(section.dir);
    store.chunk_bytes = section.chunk_bytes;
    store.max_shapes = section.max_shapes as usize;
    store.open_files = section.open_files as usize;
    store.max_bytes = Some(section.max_bytes).filter(|bytes| *bytes > 0);
    store.unwritten_bytes = section.unwritten_bytes;
    store.wal_bytes = section.wal_bytes;
    store.compact_bytes = section.compact_bytes;
    store.small_snapshot_bytes = in_memory(section.small_snapshot_bytes);
    store.held_bytes = in_memory(section.held_bytes);
    store.total_held_bytes = in_memory(section.total_held_bytes);
    store.queued_bytes = in_memory(section.queued_bytes);
    store
}
