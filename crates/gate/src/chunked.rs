//! Takes the chunked coding off a body (RFC 9112, 7.1), without copying.
//!
//! Invariant: every byte is looked at once and none is kept; what comes out is the payload, in order, and an end only
//! after the last chunk and its trailers.
//! Kept by: one state per place in the grammar, where a piece of input may end anywhere. Line ends are CRLF and nothing
//! else: two readers that disagree about them is how requests are smuggled.
//! Not here: sockets. Pure.

use bytes::{Buf, Bytes};

/// Extensions of chunks, and trailers, may have so many bytes, all together: they are thrown away, and only cost.
const MAX_IDLE_BYTES: u32 = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunked {
    state: State,
    idle_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The digits of a chunk's size, of which there must be one at least.
    Size {
        size: u64,
        digits: u8,
    },
    /// After them, up to the line's end.
    Extension {
        size: u64,
    },
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// At the start of a line after the last chunk: a trailer, or the empty line.
    TrailerStart,
    Trailer,
    TrailerEnd,
    LastLf,
    Done,
}

/// What a piece of input gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// Some payload; there may be more in the same input.
    Data(Bytes),
    /// The input is used up.
    More,
    /// The body is complete.
    End,
}

/// Why a body is no chunked one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// A chunk's size is no hexadecimal number.
    #[error("a chunk's size is not one")]
    Size,
    /// A line ends in something else than CRLF.
    #[error("a line of the chunked coding does not end in CRLF")]
    Line,
    /// Extensions and trailers are too long.
    #[error("chunk extensions and trailers have more than {MAX_IDLE_BYTES} bytes")]
    Idle,
}

impl Chunked {
    pub(crate) fn new() -> Chunked {
        Chunked { state: State::Size { size: 0, digits: 0 }, idle_bytes: 0 }
    }

    /// Decodes from the front of `input`, up to the next payload.
    pub(crate) fn decode(&mut self, input: &mut Bytes) -> Result<Decoded, ChunkError> {
        loop {
            if self.state == State::Done {
                return Ok(Decoded::End);
            }
            let Some(&byte) = input.first() else { return Ok(Decoded::More) };
            if let State::Data { left } = self.state {
                let length = left.min(input.len() as u64);
                let data = input.split_to(usize::try_from(length).unwrap_or(usize::MAX).min(input.len()));
                self.state = if left == length { State::DataCr } else { State::Data { left: left - length } };
                return Ok(Decoded::Data(data));
            }
            input.advance(1);
            self.state = self.step(byte)?;
        }
    }

    /// Whether the stream may end here.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn step(&mut self, byte: u8) -> Result<State, ChunkError> {
        Ok(match self.state {
            State::Size { size, digits } => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) if digits < 16 => {
                    State::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
                }
                (None, b'\r') if digits > 0 => State::SizeEnd { size },
                (None, b';' | b' ' | b'\t') if digits > 0 => State::Extension { size },
                (Some(_) | None, _) => return Err(ChunkError::Size),
            },
            State::Extension { size } => match byte {
                b'\r' => State::SizeEnd { size },
                b'\n' => return Err(ChunkError::Line),
                _ => self.idle(State::Extension { size })?,
            },
            State::SizeEnd { size: 0 } => expect(byte, b'\n', State::TrailerStart)?,
            State::SizeEnd { size } => expect(byte, b'\n', State::Data { left: size })?,
            State::DataCr => expect(byte, b'\r', State::DataLf)?,
            State::DataLf => expect(byte, b'\n', State::Size { size: 0, digits: 0 })?,
            State::TrailerStart => match byte {
                b'\r' => State::LastLf,
                b'\n' => return Err(ChunkError::Line),
                _ => self.idle(State::Trailer)?,
            },
            State::Trailer => match byte {
                b'\r' => State::TrailerEnd,
                b'\n' => return Err(ChunkError::Line),
                _ => self.idle(State::Trailer)?,
            },
            State::TrailerEnd => expect(byte, b'\n', State::TrailerStart)?,
            State::LastLf => expect(byte, b'\n', State::Done)?,
            State::Data { .. } | State::Done => self.state, // `decode` takes no byte there
        })
    }

    fn idle(&mut self, state: State) -> Result<State, ChunkError> {
        self.idle_bytes += 1;
        if self.idle_bytes > MAX_IDLE_BYTES { Err(ChunkError::Idle) } else { Ok(state) }
    }
}

fn expect(byte: u8, expected: u8, then: State) -> Result<State, ChunkError> {
    if byte == expected { Ok(then) } else { Err(ChunkError::Line) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The payload, and whether it is complete.
    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), ChunkError> {
        let (mut decoder, mut payload) = (Chunked::new(), Vec::new());
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while let Decoded::Data(data) = decoder.decode(&mut input)? {
                payload.extend_from_slice(&data);
            }
        }
        Ok((payload, decoder.is_done()))
    }

    #[test]
    fn the_payload_is_what_is_between_the_sizes() {
        let body = b"3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(decode(&[body]), Ok((b"abc0123456789".to_vec(), true)));
        assert_eq!(decode(&[b"5 \r\nabcde\r\n"]), Ok((b"abcde".to_vec(), false)), "not yet complete");
        assert_eq!(decode(&[b"0\r\nExpires: never\r\nA: b\r\n\r\n"]), Ok((Vec::new(), true)), "trailers");
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for (body, error) in [
            (&b"x\r\n"[..], ChunkError::Size),
            (b"\r\n", ChunkError::Size),
            (b"-1\r\n", ChunkError::Size),
            (b"11111111111111111\r\n", ChunkError::Size),
            (b"3\nabc", ChunkError::Size),
            (b"3;\nabc", ChunkError::Line),
            (b"3\rabc", ChunkError::Line),
            (b"3\r\nabcd\r\n", ChunkError::Line),
            (b"3\r\nabc\n", ChunkError::Line),
            (b"0\r\n\n", ChunkError::Line),
            (b"0\r\nA: b\n\r\n", ChunkError::Line),
        ] {
            assert_eq!(decode(&[body]), Err(error), "{}", String::from_utf8_lossy(body));
        }
        let endless = [&b"1;"[..], &[b'x'; MAX_IDLE_BYTES as usize + 1]].concat();
        assert_eq!(decode(&[&endless]), Err(ChunkError::Idle));
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_payload_is_the_same(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            cuts in prop::collection::vec(0_usize..400, 0..12),
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend(format!("{:X};e\r\n", chunk.len()).into_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\nT: x\r\n\r\n");
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&body[from..cut]);
                from = cut;
            }
            pieces.push(&body[from..]);
            prop_assert_eq!(decode(&pieces), Ok((chunks.concat(), true)));
        }

        #[test]
        fn no_bytes_upset_it(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[&body]);
        }
    }
}
