//! Decoder of the chunked transfer coding (RFC 9112, 7.1). It copies no bytes.
//!
//! Invariant: each input byte is read once and none is kept. The output is the payload, in order.
//! `decode` returns `End` only after the last chunk and its trailers.
//! Enforced by: one state for each position in the grammar, so that the input may be split
//! anywhere. Lines end in CRLF only: parsers that disagree about line ends allow smuggling.
//! Out of scope: sockets. This file is pure.

use bytes::{Buf, Bytes};

/// Maximum bytes of chunk extensions and trailers in one body. They are discarded.
const MAX_OVERHEAD_BYTES: u32 = 64 * 1024;

/// Incremental decoder of one chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkedDecoder {
    state: ChunkState,
    /// Bytes of extensions and trailers so far.
    overhead_bytes: u32,
}

/// Position in the grammar of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// Hexadecimal digits of a chunk size. At least one is required.
    Size {
        size: u64,
        digits: u8,
    },
    /// After the size, up to the end of the line.
    Extension {
        size: u64,
    },
    /// After the CR of the size line.
    SizeEnd {
        size: u64,
    },
    /// Payload. `left` is the number of bytes of the chunk that are still to come.
    Data {
        left: u64,
    },
    /// Before the CR that ends a chunk.
    DataCr,
    /// Before the LF that ends a chunk.
    DataLf,
    /// Start of a line after the last chunk: a trailer, or the empty line that ends the body.
    TrailerStart,
    /// Inside a trailer line.
    Trailer,
    /// After the CR of a trailer line.
    TrailerEnd,
    /// After the CR of the empty line that ends the body.
    LastLf,
    Done,
}

/// Result of decoding a piece of input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkOutput {
    /// Payload bytes. The input may hold more.
    Data(Bytes),
    /// The input is used up.
    More,
    /// The body is complete.
    End,
}

/// Why a chunked body is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// A chunk size is not a hexadecimal number of 1 to 16 digits.
    #[error("a chunk size is not a hexadecimal number")]
    Size,
    /// A line doesn't end in CRLF.
    #[error("a line of the chunked coding does not end in CRLF")]
    Line,
    /// Extensions and trailers are too long.
    #[error("chunk extensions and trailers have more than {MAX_OVERHEAD_BYTES} bytes")]
    Overhead,
}

impl ChunkedDecoder {
    pub(crate) fn new() -> ChunkedDecoder {
        ChunkedDecoder { state: ChunkState::Size { size: 0, digits: 0 }, overhead_bytes: 0 }
    }

    /// Decodes from the front of `input`, up to the next payload bytes.
    pub(crate) fn decode(&mut self, input: &mut Bytes) -> Result<ChunkOutput, ChunkError> {
        loop {
            if self.state == ChunkState::Done {
                return Ok(ChunkOutput::End);
            }
            let Some(&byte) = input.first() else { return Ok(ChunkOutput::More) };
            if let ChunkState::Data { left } = self.state {
                let length = left.min(input.len() as u64);
                let data = input.split_to(usize::try_from(length).unwrap_or(usize::MAX).min(input.len()));
                self.state = if left == length {
                    ChunkState::DataCr
                } else {
                    ChunkState::Data { left: left - length }
                };
                return Ok(ChunkOutput::Data(data));
            }
            input.advance(1);
            self.state = self.step(byte)?;
        }
    }

    /// Returns whether the body is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    fn step(&mut self, byte: u8) -> Result<ChunkState, ChunkError> {
        Ok(match self.state {
            ChunkState::Size { size, digits } => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) if digits < 16 => {
                    ChunkState::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
                }
                (None, b'\r') if digits > 0 => ChunkState::SizeEnd { size },
                (None, b';' | b' ' | b'\t') if digits > 0 => ChunkState::Extension { size },
                (Some(_) | None, _) => return Err(ChunkError::Size),
            },
            ChunkState::Extension { size } => match byte {
                b'\r' => ChunkState::SizeEnd { size },
                b'\n' => return Err(ChunkError::Line),
                _ => self.count_overhead(ChunkState::Extension { size })?,
            },
            ChunkState::SizeEnd { size: 0 } => expect(byte, b'\n', ChunkState::TrailerStart)?,
            ChunkState::SizeEnd { size } => expect(byte, b'\n', ChunkState::Data { left: size })?,
            ChunkState::DataCr => expect(byte, b'\r', ChunkState::DataLf)?,
            ChunkState::DataLf => expect(byte, b'\n', ChunkState::Size { size: 0, digits: 0 })?,
            ChunkState::TrailerStart => match byte {
                b'\r' => ChunkState::LastLf,
                b'\n' => return Err(ChunkError::Line),
                _ => self.count_overhead(ChunkState::Trailer)?,
            },
            ChunkState::Trailer => match byte {
                b'\r' => ChunkState::TrailerEnd,
                b'\n' => return Err(ChunkError::Line),
                _ => self.count_overhead(ChunkState::Trailer)?,
            },
            ChunkState::TrailerEnd => expect(byte, b'\n', ChunkState::TrailerStart)?,
            ChunkState::LastLf => expect(byte, b'\n', ChunkState::Done)?,
            // `decode` passes no byte in these states.
            ChunkState::Data { .. } | ChunkState::Done => self.state,
        })
    }

    /// Counts a byte of an extension or trailer. Fails above [`MAX_OVERHEAD_BYTES`].
    fn count_overhead(&mut self, state: ChunkState) -> Result<ChunkState, ChunkError> {
        self.overhead_bytes += 1;
        if self.overhead_bytes > MAX_OVERHEAD_BYTES { Err(ChunkError::Overhead) } else { Ok(state) }
    }
}

fn expect(byte: u8, expected: u8, then: ChunkState) -> Result<ChunkState, ChunkError> {
    if byte == expected { Ok(then) } else { Err(ChunkError::Line) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the payload, and whether the body is complete.
    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), ChunkError> {
        let (mut decoder, mut payload) = (ChunkedDecoder::new(), Vec::new());
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while let ChunkOutput::Data(data) = decoder.decode(&mut input)? {
                payload.extend_from_slice(&data);
            }
        }
        Ok((payload, decoder.is_done()))
    }

    #[test]
    fn the_payload_is_the_data_between_the_chunk_sizes() {
        let body = b"3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(decode(&[body]), Ok((b"abc0123456789".to_vec(), true)));
        assert_eq!(decode(&[b"5 \r\nabcde\r\n"]), Ok((b"abcde".to_vec(), false)), "not yet complete");
        assert_eq!(decode(&[b"0\r\nExpires: never\r\nA: b\r\n\r\n"]), Ok((Vec::new(), true)), "trailers");
    }

    #[test]
    fn malformed_chunks_are_errors() {
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
        let endless = [&b"1;"[..], &[b'x'; MAX_OVERHEAD_BYTES as usize + 1]].concat();
        assert_eq!(decode(&[&endless]), Err(ChunkError::Overhead));
    }

    proptest! {
        #[test]
        fn the_payload_does_not_depend_on_how_the_input_is_split(
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
        fn no_input_panics_the_decoder(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[&body]);
        }
    }
}
