//! Buffered bytes: counts the bytes of all shapes that are in memory only until clients read them.
//!
//! Invariant: bytes that were read for one client, or are kept for many, count until the last
//! reference to them is dropped.
//! Topics stop buffering at [`MAX_BYTES`]. From half of it on, each client's reads shrink to
//! [`SMALL_READ`]. So thousands of clients that don't read can't fill the memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// Maximum bytes kept for the event streams of all shapes, plus the bytes being sent to clients.
/// Beyond it, streams read from the log, which is slower.
pub(super) const MAX_BYTES: usize = 256 * 1024 * 1024;
/// Bytes of one read for one client.
const LARGE_READ: u64 = 256 * 1024;
/// Bytes of one read while more than half of [`MAX_BYTES`] is buffered.
const SMALL_READ: u64 = 16 * 1024;

/// Buffered bytes of all shapes and clients of this process.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Number of bytes that is part of the total until it is dropped.
#[derive(Debug)]
pub(super) struct BufferedCount(usize);

/// Bytes that are part of the total until they are dropped.
pub(super) struct BufferedBytes<T> {
    bytes: T,
    _count: BufferedCount,
}

impl BufferedCount {
    pub(super) fn new(bytes: usize) -> BufferedCount {
        TOTAL.fetch_add(bytes, Ordering::Relaxed);
        BufferedCount(bytes)
    }
}

impl<T: AsRef<[u8]> + Send + 'static> BufferedBytes<T> {
    /// Counts the bytes until the returned ones and all their clones and slices are dropped.
    pub(super) fn count(bytes: T) -> Bytes {
        let _count = BufferedCount::new(bytes.as_ref().len());
        Bytes::from_owner(BufferedBytes { bytes, _count })
    }
}

/// Returns the number of buffered bytes.
pub(super) fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// Returns the number of bytes to read at once for one client.
pub(super) fn read_size() -> u64 {
    if total() < MAX_BYTES / 2 { LARGE_READ } else { SMALL_READ }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for BufferedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Drop for BufferedCount {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_the_last_reference_is_dropped_and_many_make_reads_small() {
        // nextest runs each test in its own process. Under `cargo test`, the other tests buffer few
        // bytes.
        let before = total();
        let one = BufferedBytes::count(Bytes::from(vec![0; MAX_BYTES / 2]));
        let shared = one.slice(5..10);
        drop(one);
        assert!(total() >= MAX_BYTES / 2);
        assert_eq!(read_size(), SMALL_READ);
        drop(shared);
        assert!(total() < before + MAX_BYTES / 4);
        assert_eq!(read_size(), LARGE_READ);
    }
}
