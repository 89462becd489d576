//! The Message message: written by `pg_logical_emit_message`.

use std::fmt;

use crate::Lsn;
use crate::error::DecodeError;
use crate::message_reader::MessageReader;

/// `M`: a logical decoding message, written by `pg_logical_emit_message`. Sent only if the stream
/// was started with `messages`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Id of the (sub)transaction, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// Whether it belongs to the surrounding transaction. If not, it is sent immediately, outside
    /// any transaction, even if its writer rolls back.
    pub transactional: bool,
    /// WAL position of the message.
    pub lsn: Lsn,
    /// Prefix, which identifies the addressed application.
    pub prefix: &'a str,
    /// Content, any bytes.
    pub content: &'a [u8],
}

impl<'a> LogicalMessage<'a> {
    pub(super) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        Ok(LogicalMessage {
            xid,
            transactional: reader.bool("flags")?,
            lsn: reader.lsn("LSN")?,
            prefix: reader.text("prefix")?,
            content: reader.length_prefixed("length of the content", "content")?,
        })
    }
}

/// Prints the length of the content, never the content.
impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { xid, transactional, lsn, prefix, content } = self;
        f.debug_struct("LogicalMessage")
            .field("xid", xid)
            .field("transactional", transactional)
            .field("lsn", lsn)
            .field("prefix", prefix)
            .field("content", &format_args!("{} bytes", content.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DecodeFault;
    use crate::message::{
        PgOutputMessage, assert_rejects_other_lengths, decode_in_stream, decode_outside_stream,
    };

    const MESSAGE: &[u8] = b"M\x01\0\0\0\0\x01\x50\x22\xA0audit\0\0\0\0\x03a\0b";

    #[test]
    fn a_message_has_a_prefix_and_any_bytes_as_content() {
        let expected = LogicalMessage {
            xid: None,
            transactional: true,
            lsn: Lsn(0x0150_22A0),
            prefix: "audit",
            content: b"a\0b",
        };
        assert_eq!(decode_outside_stream(MESSAGE), Ok(PgOutputMessage::Logical(expected)));
        assert_rejects_other_lengths(MESSAGE, decode_outside_stream);
    }

    #[test]
    fn a_message_may_be_non_transactional() {
        let mut bytes = MESSAGE.to_vec();
        bytes[1] = 0;
        let Ok(PgOutputMessage::Logical(message)) = decode_outside_stream(&bytes) else {
            panic!("it is a message")
        };
        assert!(!message.transactional);
        bytes[1] = 2;
        assert_eq!(decode_outside_stream(&bytes).unwrap_err().field, "flags");
    }

    #[test]
    fn a_message_in_a_stream_has_an_xid() {
        let bytes = [b"M\0\0\x02\xF0", &MESSAGE[1..]].concat();
        let Ok(PgOutputMessage::Logical(message)) = decode_in_stream(&bytes) else {
            panic!("it is a message")
        };
        assert_eq!((message.xid, message.prefix), (Some(752), "audit"));
        assert_rejects_other_lengths(&bytes, decode_in_stream);
    }

    #[test]
    fn content_of_negative_length_is_refused() {
        let mut bytes = MESSAGE.to_vec();
        bytes[16] = 0xFF;
        let error = decode_outside_stream(&bytes).unwrap_err();
        assert_eq!((error.at, error.fault), (16, DecodeFault::Negative));
    }

    #[test]
    fn debug_output_contains_no_content() {
        let printed = format!("{:?}", decode_outside_stream(MESSAGE).unwrap());
        assert!(
            printed.contains("audit") && printed.contains("3 bytes") && !printed.contains("97"),
            "{printed}"
        );
    }
}
