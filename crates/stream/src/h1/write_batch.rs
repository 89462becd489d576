//! Batch of bytes for one write: response heads, chunks and body data.
//!
//! Invariant: after a partial write, [`WriteBatch::take_unsent`] returns exactly the rest.
//! Out of scope: sockets; see `socket_writer.rs`.
//!
//! Small chunks are copied into one buffer, which costs less than two more slices in a system call.
//! Large chunks are shared, so a thousand slow clients of one topic hold its events once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Maximum size of a chunk that is copied, in bytes.
const MAX_COPIED_CHUNK: usize = 2048;
/// Maximum shared chunks of one write.
const MAX_SHARED_CHUNKS: usize = 15;
/// Maximum slices of one write: text before each shared chunk, the chunks, and text at the end.
pub(crate) const MAX_SLICES: usize = 2 * MAX_SHARED_CHUNKS + 1;
/// Size from which a batch is full, in bytes.
const FULL_BYTES: usize = 64 * 1024;
/// Buffer capacity that a recycled batch keeps, in bytes.
const MAX_SPARE_CAPACITY: usize = FULL_BYTES + 2 * MAX_COPIED_CHUNK;

/// Data that was available together, framed for one write.
#[derive(Debug, Default)]
pub(crate) struct WriteBatch {
    text: Vec<u8>,
    /// Shared chunks, each with the length of the text before it.
    shared: Vec<(usize, Bytes)>,
    len: usize,
}

thread_local! {
    /// Memory to reuse: one spare batch per thread, because one per connection would cost 68 KiB
    /// for each stream. It is removed while in use, because polling a body may use another batch.
    static SPARE_BATCH: Cell<Option<Box<WriteBatch>>> = const { Cell::new(None) };
}

impl WriteBatch {
    /// Takes this thread's spare batch, or creates one.
    pub(crate) fn take_spare() -> Box<WriteBatch> {
        SPARE_BATCH.take().unwrap_or_default()
    }

    /// Keeps the batch, which must be empty, as this thread's spare.
    pub(crate) fn recycle(self: Box<Self>) {
        debug_assert_eq!(self.len, 0, "a recycled batch is empty");
        SPARE_BATCH.set(Some(self));
    }

    /// Appends bytes without chunk framing: a response head.
    pub(crate) fn push_raw(&mut self, bytes: &[u8]) {
        self.push_text(|text| text.extend_from_slice(bytes));
    }

    /// Appends the bytes that `write` appends, without chunk framing.
    pub(crate) fn push_text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.text.len();
        write(&mut self.text);
        self.len += self.text.len() - before;
    }

    /// Appends data of a body with a `content-length`.
    pub(crate) fn push_data(&mut self, data: &Bytes) {
        if data.len() <= MAX_COPIED_CHUNK {
            return self.push_raw(data);
        }
        self.len += data.len();
        self.shared.push((self.text.len(), data.clone()));
    }

    /// Appends one chunk. Empty data is skipped, since an empty chunk ends the body.
    pub(crate) fn push_chunk(&mut self, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        self.push_text(|text| {
            push_hex(text, data.len());
            text.extend_from_slice(b"\r\n");
        });
        self.push_data(data);
        self.push_raw(b"\r\n");
    }

    /// Appends the last chunk.
    pub(crate) fn push_last(&mut self) {
        self.push_raw(b"0\r\n\r\n");
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= FULL_BYTES || self.shared.len() == MAX_SHARED_CHUNKS
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns all bytes if they are one slice.
    pub(crate) fn as_slice(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.text)
    }

    /// Fills `slices` with all bytes and returns the number of slices.
    pub(crate) fn fill_slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let (mut used, mut from) = (0, 0);
        for (until, data) in &self.shared {
            slices[used] = IoSlice::new(&self.text[from..*until]);
            slices[used + 1] = IoSlice::new(data);
            (used, from) = (used + 2, *until);
        }
        slices[used] = IoSlice::new(&self.text[from..]);
        used + 1
    }

    /// Returns all bytes after the first `written`, and empties the batch.
    pub(crate) fn take_unsent(&mut self, written: usize) -> VecDeque<Bytes> {
        let mut unsent = VecDeque::new();
        let mut from = 0;
        if written < self.len {
            for (until, data) in self.shared.drain(..) {
                unsent.push_back(Bytes::copy_from_slice(&self.text[from..until]));
                unsent.push_back(data);
                from = until;
            }
            if from < self.text.len() {
                unsent.push_back(Bytes::copy_from_slice(&self.text[from..]));
            }
            advance(&mut unsent, written);
        }
        self.clear();
        unsent
    }

    fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(MAX_SPARE_CAPACITY);
        self.shared.clear();
        self.len = 0;
    }
}

/// Removes `written` bytes from the front.
pub(crate) fn advance(unsent: &mut VecDeque<Bytes>, mut written: usize) {
    while written > 0
        && let Some(first) = unsent.front_mut()
    {
        let part = written.min(first.len());
        first.advance(part);
        written -= part;
        if first.is_empty() {
            unsent.pop_front();
        }
    }
    debug_assert_eq!(written, 0, "a socket accepts at most the bytes it is given");
}

fn push_hex(out: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - (number | 1).leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[number >> (4 * digit) & 15]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(batch: &WriteBatch) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let used = batch.fill_slices(&mut slices);
        slices[..used].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn chunks_are_framed_in_order_and_empty_ones_skipped() {
        let mut batch = WriteBatch::default();
        batch.push_raw(b"head\r\n\r\n");
        for data in ["data: 1\n\n", "", "0123456789abcdef!"] {
            batch.push_chunk(&Bytes::from_static(data.as_bytes()));
        }
        batch.push_last();
        let text = b"head\r\n\r\n9\r\ndata: 1\n\n\r\n11\r\n0123456789abcdef!\r\n0\r\n\r\n";
        assert_eq!(batch.as_slice(), Some(&text[..]));
        assert_eq!(batch.len(), text.len());
    }

    #[test]
    fn a_large_chunk_is_shared_and_not_copied() {
        let large = Bytes::from(vec![b'x'; MAX_COPIED_CHUNK + 1]);
        let mut batch = WriteBatch::default();
        batch.push_chunk(&large);
        assert_eq!(batch.as_slice(), None);
        let unsent = batch.take_unsent(2);
        assert_eq!(unsent[1].as_ptr(), large.as_ptr());
        assert_eq!(batch.len(), 0);
    }

    #[test]
    fn a_batch_is_full_by_bytes_or_by_shared_chunks() {
        let mut batch = WriteBatch::default();
        (0..MAX_SHARED_CHUNKS).for_each(|_| batch.push_chunk(&Bytes::from(vec![0; MAX_COPIED_CHUNK + 1])));
        assert!(batch.is_full());
        let mut batch = WriteBatch::default();
        batch.push_chunk(&Bytes::from(vec![0; FULL_BYTES]));
        assert!(batch.is_full());
    }

    proptest! {
        #[test]
        fn a_partial_write_leaves_exactly_the_rest(
            sizes in proptest::collection::vec(prop_oneof![0_usize..40, 2000_usize..2100, Just(5000)], 0..MAX_SHARED_CHUNKS),
            cut in 0.0_f64..=1.0,
        ) {
            let mut batch = WriteBatch::default();
            for (byte, size) in sizes.iter().enumerate() {
                batch.push_chunk(&Bytes::from(vec![byte as u8; *size]));
            }
            let all = written(&batch);
            prop_assert_eq!(all.len(), batch.len());
            let cut = (all.len() as f64 * cut) as usize;
            let unsent = batch.take_unsent(cut);
            prop_assert!(unsent.iter().all(|part| !part.is_empty()));
            let rest: Vec<u8> = unsent.into_iter().flatten().collect();
            prop_assert_eq!(&all[cut..], &rest[..]);
        }

        #[test]
        fn chunk_sizes_are_hexadecimal(number: usize) {
            let mut out = Vec::new();
            push_hex(&mut out, number);
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("{number:x}"));
        }
    }
}
