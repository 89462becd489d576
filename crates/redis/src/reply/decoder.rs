//! A RESP decoder for whoever has bytes and no connection.

use bytes::BytesMut;

use super::reader::Reader;
use super::value::{Value, any};
use crate::core::frame::{Framer, Limits, ProtocolError, Step};
use crate::error::ReplyError;

/// Decodes a stream of RESP2 or RESP3 that comes in pieces of any size, with the decoder that the connection uses.
///
/// ```
/// use forebay_redis::{Decoder, Limits, Value};
///
/// let mut decoder = Decoder::new(Limits::default());
/// decoder.feed(b"*2\r\n:1\r\n$5\r\nhe");
/// assert_eq!(decoder.next(), Ok(None));
/// decoder.feed(b"llo\r\n");
/// assert_eq!(decoder.next(), Ok(Some(Ok(Value::Array(vec![Value::Int(1), Value::Bulk("hello".into())])))));
/// ```
#[derive(Debug)]
pub struct Decoder {
    framer: Framer,
    input: BytesMut,
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new(limits: Limits) -> Self {
        Decoder { framer: Framer::new(limits), input: BytesMut::new() }
    }

    /// Adds bytes to the end.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Takes the next value off the beginning; `None` if it isn't whole yet. The outer error ends the stream; the inner one
    /// spoils only this value. Errors that the server sent are values here.
    #[expect(clippy::should_implement_trait, reason = "None means not yet, not the end")]
    pub fn next(&mut self) -> Result<Option<Result<Value, ReplyError>>, ProtocolError> {
        match self.framer.next(&self.input)? {
            Step::Need(_) => Ok(None),
            Step::Frame(_, range) => {
                self.framer.consumed(range.end);
                let frame = self.input.split_to(range.end).freeze();
                Ok(Some(any(&mut Reader::new(&frame, 0))))
            }
        }
    }
}
