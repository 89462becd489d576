//! Stand-alone RESP decoder, for bytes that do not come from a client's connection.

use bytes::BytesMut;

use super::reader::ReplyReader;
use super::value::{RespValue, any};
use crate::core::frame::{FrameStep, Framer, ProtocolError, ReplyLimits};
use crate::error::ReplyError;

/// Decodes a RESP2 or RESP3 stream that arrives in pieces of any size. The connection uses the same
/// framer and reader.
///
/// ```
/// use forebay_redis::{RespDecoder, ReplyLimits, RespValue};
///
/// let mut decoder = RespDecoder::new(ReplyLimits::default());
/// decoder.feed(b"*2\r\n:1\r\n$5\r\nhe");
/// assert_eq!(decoder.next(), Ok(None));
/// decoder.feed(b"llo\r\n");
/// let items = vec![RespValue::Int(1), RespValue::Bulk("hello".into())];
/// assert_eq!(decoder.next(), Ok(Some(Ok(RespValue::Array(items)))));
/// ```
#[derive(Debug)]
pub struct RespDecoder {
    framer: Framer,
    input: BytesMut,
}

impl RespDecoder {
    /// Creates a decoder for the start of a stream.
    pub fn new(limits: ReplyLimits) -> Self {
        RespDecoder { framer: Framer::new(limits), input: BytesMut::new() }
    }

    /// Appends received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Removes and returns the next value, or `None` if it is incomplete.
    ///
    /// The outer error ends the stream. The inner error concerns only this value. Errors that the
    /// server sent are values.
    #[expect(clippy::should_implement_trait, reason = "None means not yet, not the end")]
    pub fn next(&mut self) -> Result<Option<Result<RespValue, ReplyError>>, ProtocolError> {
        match self.framer.next(&self.input)? {
            FrameStep::Need(_) => Ok(None),
            FrameStep::Frame(_, range) => {
                self.framer.consumed(range.end);
                let frame = self.input.split_to(range.end).freeze();
                Ok(Some(any(&mut ReplyReader::new(&frame, 0))))
            }
        }
    }
}
