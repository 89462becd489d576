//! Read buffer: bytes that were read and not yet consumed, split into messages.
//!
//! Invariants: `start <= end <= bytes.len()`. A message longer than the limit is refused. The
//! buffer grows with the bytes received, not with the announced length: at most to twice as much.
//! It shrinks back after a long message.
//! Enforced by: [`ReadBuffer::free_space`] and [`length`].
//! Out of scope: sockets, and the meaning of messages.

use super::error::WireError;

/// Maximum size of one read, and size of the buffer unless a message is longer.
pub(super) const BASE_BYTES: usize = 256 * 1024;
/// Up to this many bytes are moved to the front before a read: cheaper than a short read.
const MOVED_BYTES: usize = 16 * 1024;
/// Size of a message's tag and length.
const HEAD_BYTES: usize = 5;

/// Buffer of received messages.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    /// Initialized in full; bytes beyond `end` are meaningless.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    limit: usize,
}

/// A complete message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawMessage<'a> {
    pub(super) tag: u8,
    pub(super) body: &'a [u8],
}

impl ReadBuffer {
    /// Creates a buffer for messages of up to `limit` bytes, tag and length included.
    pub(super) fn new(limit: usize) -> Self {
        ReadBuffer { bytes: vec![0; BASE_BYTES], start: 0, end: 0, limit }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns whether the next message is complete.
    ///
    /// # Errors
    /// Fails if its length is invalid.
    pub(super) fn has_message(&self) -> Result<bool, WireError> {
        let waiting = &self.bytes[self.start..self.end];
        Ok(length(waiting, self.limit)?.is_some_and(|length| length <= waiting.len()))
    }

    /// Consumes the next message, if it is complete. Returns it with its tag and length.
    ///
    /// # Errors
    /// Fails if its length is invalid.
    pub(super) fn take(&mut self) -> Result<Option<&[u8]>, WireError> {
        let waiting = &self.bytes[self.start..self.end];
        let Some(length) = length(waiting, self.limit)?.filter(|length| *length <= waiting.len()) else {
            return Ok(None);
        };
        let taken = self.start..self.start + length;
        self.start = taken.end;
        Ok(Some(&self.bytes[taken]))
    }

    /// Returns the buffered messages, which are consumed one by one.
    pub(super) fn messages(&mut self) -> BufferedMessages<'_> {
        let ReadBuffer { bytes, start, end, limit } = self;
        BufferedMessages { waiting: &bytes[*start..*end], start, limit: *limit }
    }

    /// Returns the space for the next read. It is never empty.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        let waiting = self.end - self.start;
        if self.bytes.len() > BASE_BYTES && waiting <= MOVED_BYTES {
            let mut base = vec![0; BASE_BYTES];
            base[..waiting].copy_from_slice(&self.bytes[self.start..self.end]);
            self.moved_to_front(base);
        } else if self.start > 0 && (waiting <= MOVED_BYTES || self.end == self.bytes.len()) {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.copy_within(self.start..self.end, 0);
            self.moved_to_front(bytes);
        }
        if self.end == self.bytes.len() {
            let wanted = self.bytes.len() * 2;
            self.bytes.reserve_exact(wanted - self.bytes.len());
            self.bytes.resize(wanted, 0);
        }
        let until = self.bytes.len().min(self.end + BASE_BYTES);
        &mut self.bytes[self.end..until]
    }

    /// Records that `bytes` were read into the free space.
    pub(super) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.bytes.len(), "a read fits the free space");
    }

    fn moved_to_front(&mut self, bytes: Vec<u8>) {
        (self.bytes, self.start, self.end) = (bytes, 0, self.end - self.start);
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Complete messages in the buffer.
#[derive(Debug)]
pub(super) struct BufferedMessages<'a> {
    waiting: &'a [u8],
    start: &'a mut usize,
    limit: usize,
}

impl<'a> BufferedMessages<'a> {
    /// Returns the next message without consuming it; `None` if it isn't complete.
    #[inline]
    pub(super) fn peek(&self) -> Result<Option<RawMessage<'a>>, WireError> {
        // Fast path: a complete message with a valid length.
        if let Some((&[tag, a, b, c, d], rest)) = self.waiting.split_first_chunk() {
            let body = (u32::from_be_bytes([a, b, c, d]) as usize).wrapping_sub(4);
            if body <= rest.len() && body + HEAD_BYTES <= self.limit {
                return Ok(Some(RawMessage { tag, body: &rest[..body] }));
            }
        }
        match length(self.waiting, self.limit) {
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Consumes a peeked message.
    #[inline]
    pub(super) fn consume(&mut self, message: RawMessage<'a>) {
        let length = HEAD_BYTES + message.body.len();
        self.waiting = &self.waiting[length..];
        *self.start += length;
    }
}

/// Returns the length of the next message with its tag and length; `None` if these aren't complete.
fn length(waiting: &[u8], limit: usize) -> Result<Option<usize>, WireError> {
    let Some((&[tag, a, b, c, d], _)) = waiting.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    // The protocol's length field is signed.
    let announced = i32::from_be_bytes([a, b, c, d]);
    match usize::try_from(announced) {
        Ok(bytes) if bytes >= 4 && bytes < limit => Ok(Some(1 + bytes)),
        Ok(bytes) if bytes >= 4 => Err(WireError::TooLong { tag, bytes: 1 + bytes, limit }),
        _ => Err(WireError::protocol(format!("a message 0x{tag:02x} whose length is {announced}"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[tag][..], &length, body].concat()
    }

    fn read(input: &mut ReadBuffer, bytes: &[u8]) -> usize {
        let free = input.free_space();
        let taken = bytes.len().min(free.len());
        free[..taken].copy_from_slice(&bytes[..taken]);
        input.filled(taken);
        assert!(input.start <= input.end && input.end <= input.bytes.len());
        taken
    }

    /// Returns all complete messages, read by `take` or by `peek` and `consume`.
    fn drain(input: &mut ReadBuffer, by_take: bool) -> Vec<(u8, Vec<u8>)> {
        let mut drained = Vec::new();
        if by_take {
            while let Some(message) = input.take().unwrap() {
                drained.push((message[0], message[5..].to_vec()));
            }
        } else {
            let mut messages = input.messages();
            while let Some(message) = messages.peek().unwrap() {
                assert_eq!(messages.peek().unwrap(), Some(message), "peeking consumes nothing");
                drained.push((message.tag, message.body.to_vec()));
                messages.consume(message);
            }
        }
        assert!(!input.has_message().unwrap());
        drained
    }

    proptest! {
        #[test]
        fn messages_are_split_correctly_for_any_read_sizes(
            bodies in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..600)), 0..20),
            cuts in prop::collection::vec((1_usize..700, any::<bool>()), 1..40),
        ) {
            let mut wire: &[u8] = &bodies.iter().flat_map(|(tag, body)| message(*tag, body)).collect::<Vec<_>>();
            let (mut input, mut seen) = (ReadBuffer::new(1 << 20), Vec::new());
            for (cut, by_take) in cuts.iter().cycle() {
                if wire.is_empty() {
                    break;
                }
                let taken = read(&mut input, &wire[..wire.len().min(*cut)]);
                wire = &wire[taken..];
                seen.extend(drain(&mut input, *by_take));
            }
            prop_assert_eq!(seen, bodies);
        }

        #[test]
        fn no_bytes_cause_a_panic_or_growth(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            limit in 5_usize..400,
        ) {
            let mut input = ReadBuffer::new(limit);
            read(&mut input, &bytes);
            let mut messages = input.messages();
            while let Ok(Some(message)) = messages.peek() {
                prop_assert!(message.body.len() + HEAD_BYTES <= limit);
                messages.consume(message);
            }
            let (is_ready, is_taken) = (input.has_message().is_ok(), input.take().is_ok());
            prop_assert_eq!(is_ready, is_taken);
            prop_assert_eq!(input.size(), BASE_BYTES);
        }
    }

    #[test]
    fn a_message_with_an_invalid_length_is_refused() {
        for (length, limit) in
            [(0_i32, 100), (3, 100), (-1, 100), (i32::MIN, 100), (100, 100), (i32::MAX, 100)]
        {
            let mut input = ReadBuffer::new(limit);
            read(&mut input, &[&b"d"[..], &length.to_be_bytes()].concat());
            let errors = [
                input.has_message().unwrap_err(),
                input.take().unwrap_err(),
                input.messages().peek().unwrap_err(),
            ];
            for error in errors {
                let is_long = matches!(error, WireError::TooLong { tag: b'd', .. });
                assert_eq!(is_long, length >= 100, "{length}: {error}");
            }
        }
        let mut input = ReadBuffer::new(100);
        read(&mut input, &message(b'd', &[7; 95]));
        assert_eq!(drain(&mut input, false), [(b'd', vec![7; 95])], "the limit itself is allowed");
    }

    #[test]
    fn the_buffer_grows_with_received_bytes_and_shrinks_back() {
        let long = message(b'd', &vec![7; 20_000_000]);
        let mut input = ReadBuffer::new(1 << 30);
        let (mut rest, mut received) = (&long[..], 0);
        while !rest.is_empty() {
            let taken = read(&mut input, rest);
            assert!((1..=BASE_BYTES).contains(&taken));
            (rest, received) = (&rest[taken..], received + taken);
            assert!(
                input.size() <= BASE_BYTES.max(received * 2),
                "{received} bytes received, {} allocated",
                input.size()
            );
        }
        read(&mut input, b"d\0\0");
        assert_eq!(drain(&mut input, false), [(b'd', vec![7; 20_000_000])]);
        read(&mut input, b"\0\x04");
        assert_eq!(input.size(), BASE_BYTES);
        assert_eq!(drain(&mut input, false), [(b'd', vec![])], "the start of the next message is kept");
    }

    #[test]
    fn an_announced_length_allocates_no_memory() {
        let mut input = ReadBuffer::new(1 << 30);
        read(&mut input, b"d\x3f\xff\xff\xff");
        assert!(!input.has_message().unwrap());
        input.free_space();
        assert_eq!(input.size(), BASE_BYTES);
    }
}
