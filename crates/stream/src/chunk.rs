//! Chunked framing: what goes onto the socket in one write.
//!
//! Invariant: the bytes of a batch are whole chunks, in order; whatever part of them was written, `take_unsent` gives
//! exactly the rest.
//! Small chunks are copied together, since a copy of a few hundred bytes costs less than two more slices in a system
//! call. Large ones are shared, so that a thousand slow clients of one topic hold its events once.
//! Not here: sockets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// A chunk up to this size is copied.
const COPIED: usize = 2048;
/// Large chunks in one write.
const SHARED: usize = 15;
/// Slices in one write: each large chunk with text before it, and text at the end.
pub(crate) const SLICES: usize = 2 * SHARED + 1;
/// A batch takes no further chunk from here on.
const FULL: usize = 64 * 1024;
/// The room that a batch keeps for its next use.
const KEPT: usize = FULL + 2 * COPIED;

/// Chunks that were ready together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    text: Vec<u8>,
    /// Large chunks, each with the length of the text before it.
    shared: Vec<(usize, Bytes)>,
    len: usize,
}

thread_local! {
    /// One for each thread, not for each connection. Taken out while it is used, since a body may do anything.
    static KEPT_BATCH: Cell<Option<Box<Batch>>> = const { Cell::new(None) };
}

impl Batch {
    /// An empty one, with room that was used before.
    pub(crate) fn of_this_thread() -> Box<Batch> {
        KEPT_BATCH.take().unwrap_or_default()
    }

    /// Keeps it, empty as it is after a write, for the next on this thread.
    pub(crate) fn keep(self: Box<Self>) {
        debug_assert_eq!(self.len, 0, "what isn't written is nobody else's");
        KEPT_BATCH.set(Some(self));
    }

    /// Bytes that are no chunk: a response's head.
    pub(crate) fn push_raw(&mut self, bytes: &[u8]) {
        self.push_text(|text| text.extend_from_slice(bytes));
    }

    /// What is written here, which is no chunk either.
    pub(crate) fn push_text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.text.len();
        write(&mut self.text);
        self.len += self.text.len() - before;
    }

    /// A piece of a body that has a length.
    pub(crate) fn push_piece(&mut self, data: &Bytes) {
        if data.len() <= COPIED {
            return self.push_raw(data);
        }
        self.len += data.len();
        self.shared.push((self.text.len(), data.clone()));
    }

    /// One chunk. An empty one would be the last, so it is left out.
    pub(crate) fn push_chunk(&mut self, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        self.push_text(|text| {
            push_hex(text, data.len());
            text.extend_from_slice(b"\r\n");
        });
        self.push_piece(data);
        self.push_raw(b"\r\n");
    }

    /// The last chunk.
    pub(crate) fn push_last(&mut self) {
        self.push_raw(b"0\r\n\r\n");
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= FULL || self.shared.len() == SHARED
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The one slice that it is, if it is one.
    pub(crate) fn as_slice(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.text)
    }

    /// Fills `slices` with all of it, and says how many there are.
    pub(crate) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut used, mut from) = (0, 0);
        for (until, data) in &self.shared {
            slices[used] = IoSlice::new(&self.text[from..*until]);
            slices[used + 1] = IoSlice::new(data);
            (used, from) = (used + 2, *until);
        }
        slices[used] = IoSlice::new(&self.text[from..]);
        used + 1
    }

    /// Takes all but the first `written` bytes, and leaves the batch empty.
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
        self.text.shrink_to(KEPT);
        self.shared.clear();
        self.len = 0;
    }
}

/// Removes what was written from the front.
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
    debug_assert_eq!(written, 0, "a socket takes no more than it is given");
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

    fn written(batch: &Batch) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let used = batch.fill(&mut slices);
        slices[..used].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn chunks_are_framed_in_order_and_empty_ones_left_out() {
        let mut batch = Batch::default();
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
        let large = Bytes::from(vec![b'x'; COPIED + 1]);
        let mut batch = Batch::default();
        batch.push_chunk(&large);
        assert_eq!(batch.as_slice(), None);
        let unsent = batch.take_unsent(2);
        assert_eq!(unsent[1].as_ptr(), large.as_ptr());
        assert_eq!(batch.len(), 0);
    }

    #[test]
    fn it_is_full_by_bytes_or_by_large_chunks() {
        let mut batch = Batch::default();
        (0..SHARED).for_each(|_| batch.push_chunk(&Bytes::from(vec![0; COPIED + 1])));
        assert!(batch.is_full());
        let mut batch = Batch::default();
        batch.push_chunk(&Bytes::from(vec![0; FULL]));
        assert!(batch.is_full());
    }

    proptest! {
        #[test]
        fn any_part_that_was_written_leaves_exactly_the_rest(
            sizes in proptest::collection::vec(prop_oneof![0_usize..40, 2000_usize..2100, Just(5000)], 0..SHARED),
            cut in 0.0_f64..=1.0,
        ) {
            let mut batch = Batch::default();
            for (byte, size) in sizes.iter().enumerate() {
                batch.push_chunk(&Bytes::from(vec![byte as u8; *size]));
            }
            let all = written(&batch);
            prop_assert_eq!(all.len(), batch.len());
            let cut = (all.len() as f64 * cut) as usize;
            let unsent = batch.take_unsent(cut);
            prop_assert!(unsent.iter().all(|piece| !piece.is_empty()));
            let rest: Vec<u8> = unsent.into_iter().flatten().collect();
            prop_assert_eq!(&all[cut..], &rest[..]);
        }

        #[test]
        fn sizes_are_written_in_hexadecimal(number: usize) {
            let mut out = Vec::new();
            push_hex(&mut out, number);
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("{number:x}"));
        }
    }
}
