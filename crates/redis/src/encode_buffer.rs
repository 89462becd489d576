//! Encode buffer: memory in which a caller encodes its request before it locks the inbox.
//!
//! Invariant: while a buffer is in use, no other encoding uses it. A `ToArgs` that sends a request
//! of its own gets another buffer.
//! Bounds: one spare buffer for each thread, of at most [`MAX_SPARE_BYTES`].

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Maximum capacity of a buffer that is kept for the thread's next request.
const MAX_SPARE_BYTES: usize = 64 << 10;

thread_local! {
    /// Memory to reuse. Without it, each request would allocate.
    static SPARE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An empty buffer at first. Dropping it keeps its memory for the thread's next request.
#[derive(Debug)]
pub(crate) struct EncodeBuffer(Vec<u8>);

impl EncodeBuffer {
    /// Takes the thread's spare buffer, or an empty one without memory if that is in use.
    #[inline]
    pub(crate) fn take() -> EncodeBuffer {
        // Thread-local storage is not accessible while a thread is ending.
        EncodeBuffer(SPARE_BUFFER.try_with(Cell::take).unwrap_or_default())
    }
}

impl Deref for EncodeBuffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for EncodeBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for EncodeBuffer {
    #[inline]
    fn drop(&mut self) {
        if self.0.capacity() <= MAX_SPARE_BYTES {
            let mut bytes = std::mem::take(&mut self.0);
            bytes.clear();
            let _ending = SPARE_BUFFER.try_with(|spare| spare.set(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_reused_unless_it_is_in_use_or_too_large() {
        let mut first = EncodeBuffer::take();
        first.extend_from_slice(b"a request");
        let memory = first.as_ptr();
        let second = EncodeBuffer::take();
        assert_eq!((second.len(), second.capacity()), (0, 0), "the first one is in use");
        drop(second);
        drop(first);
        let mut again = EncodeBuffer::take();
        assert_eq!((again.as_ptr(), again.len()), (memory, 0));
        again.reserve(MAX_SPARE_BYTES + 1);
        drop(again);
        assert_eq!(EncodeBuffer::take().capacity(), 0, "a large buffer is freed");
    }
}
