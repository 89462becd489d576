//! Reads messages one after the other.
//!
//! Invariant: a message is read whole or not at all; one that can't be read changes nothing here.
//! Kept state: whether a `StreamStart` is open, for only that says whether messages carry an xid. Nothing else.

use crate::error::DecodeError;
use crate::message::Message;
use crate::reader::Reader;

/// Reads the messages of one connection, in the order in which they came. A new connection needs a new one.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    streaming: bool,
}

impl Decoder {
    /// For a stream that begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the next message stands between `StreamStart` and `StreamStop`.
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Reads one message, the `payload` of a [`Frame::Data`](crate::Frame::Data), without copying or allocating.
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let decoded = Message::read(&mut reader, self.streaming);
        if let Ok(message) = &decoded {
            reader.end()?;
            match message {
                Message::StreamStart(_) => self.streaming = true,
                Message::StreamStop => self.streaming = false,
                _ => {} // all others leave it as it is
            }
        }
        decoded // as it came: it is long, and taking it apart would copy it once more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    const START: &[u8] = b"S\0\0\x02\xF0\x01";
    const TRUNCATE: &[u8] = b"T\0\0\0\0\0";
    const TRUNCATE_STREAMED: &[u8] = b"T\0\0\x02\xF0\0\0\0\0\0";

    #[test]
    fn messages_carry_an_xid_from_stream_start_to_stream_stop() {
        let mut decoder = Decoder::new();
        assert!(decoder.decode(TRUNCATE).is_ok() && decoder.decode(TRUNCATE_STREAMED).is_err());
        decoder.decode(START).unwrap();
        assert!(decoder.is_streaming());
        assert!(decoder.decode(TRUNCATE).is_err() && decoder.decode(TRUNCATE_STREAMED).is_ok());
        decoder.decode(b"E").unwrap();
        assert!(!decoder.is_streaming());
        assert!(decoder.decode(TRUNCATE).is_ok());
    }

    #[test]
    fn a_message_that_cannot_be_read_opens_and_ends_no_stream() {
        let mut decoder = Decoder::new();
        assert!(decoder.decode(&START[..5]).is_err());
        assert!(decoder.decode(&[START, b"\0"].concat()).is_err());
        assert!(!decoder.is_streaming());
        decoder.decode(START).unwrap();
        assert!(decoder.decode(b"E\0").is_err());
        assert_eq!(decoder.decode(START).unwrap_err().fault, Fault::Streaming);
        assert!(decoder.is_streaming());
    }
}
