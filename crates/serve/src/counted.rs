//! How much of all shapes is in memory only because clients haven't taken it yet.
//!
//! Invariant: what was read for some client, or is kept for many, counts until the last of them has it.
//! Bounds: `MAX_BYTES` for the topics; from half of it on, whoever reads for a client alone reads little at a time, so that thousands of clients
//! that take nothing can't fill the memory either.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// What is kept for the streams of all shapes, together with what is being written to clients. Beyond it, streams read from the log: slower, but
/// many shapes that want the same changes can't fill the memory with them.
pub(super) const MAX_BYTES: usize = 256 * 1024 * 1024;
/// How much is read at once for one client.
const PIECE: u64 = 256 * 1024;
/// And how much if others have a lot.
const SMALL_PIECE: u64 = 16 * 1024;

/// It is for clients of all shapes, and so belongs to none alone.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Bytes that count for as long as anybody needs them.
pub(super) struct Counted(Bytes);

impl Counted {
    pub(super) fn bytes(bytes: Bytes) -> Bytes {
        TOTAL.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Counted(bytes))
    }
}

/// Of all that count.
pub(super) fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// How much to read at once.
pub(super) fn piece() -> u64 {
    if total() < MAX_BYTES / 2 { PIECE } else { SMALL_PIECE }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_nobody_has_them_and_with_many_less_is_read() {
        // Alone in its process under nextest; other tests of this one count little.
        let before = total();
        let one = Counted::bytes(Bytes::from(vec![0; MAX_BYTES / 2]));
        let shared = one.slice(5..10);
        drop(one);
        assert!(total() >= MAX_BYTES / 2);
        assert_eq!(piece(), SMALL_PIECE);
        drop(shared);
        assert!(total() < before + MAX_BYTES / 4);
        assert_eq!(piece(), PIECE);
    }
}
