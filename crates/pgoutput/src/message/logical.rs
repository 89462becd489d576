//! What someone wrote into the log by hand.

use std::fmt;

use crate::Lsn;
use crate::error::DecodeError;
use crate::reader::Reader;

/// `M`: what someone wrote with `pg_logical_emit_message`; only if the stream was started with `messages`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// The (sub)transaction, if it is streamed.
    pub xid: Option<u32>,
    /// Whether it belongs to the transaction around it. If not, it comes at once, outside of any transaction, and even if the
    /// one that wrote it is rolled back.
    pub transactional: bool,
    /// Where it is in the log.
    pub lsn: Lsn,
    /// Whom it is for.
    pub prefix: &'a str,
    /// What it says.
    pub content: &'a [u8],
}

impl<'a> LogicalMessage<'a> {
    pub(super) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(LogicalMessage {
            xid,
            transactional: reader.bool("flags")?,
            lsn: reader.lsn("LSN")?,
            prefix: reader.text("prefix")?,
            content: reader.counted("length of the content", "content")?,
        })
    }
}

/// Tells how long the content is, never what it says.
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
    use crate::error::Fault;
    use crate::message::{Message, alone, assert_needs_all, streamed};

    const MESSAGE: &[u8] = b"M\x01\0\0\0\0\x01\x50\x22\xA0audit\0\0\0\0\x03a\0b";

    #[test]
    fn a_message_is_for_a_prefix_and_says_any_bytes() {
        let expected = LogicalMessage {
            xid: None,
            transactional: true,
            lsn: Lsn(0x0150_22A0),
            prefix: "audit",
            content: b"a\0b",
        };
        assert_eq!(alone(MESSAGE), Ok(Message::Logical(expected)));
        assert_needs_all(MESSAGE, alone);
    }

    #[test]
    fn a_message_may_belong_to_no_transaction() {
        let mut bytes = MESSAGE.to_vec();
        bytes[1] = 0;
        let Ok(Message::Logical(message)) = alone(&bytes) else { panic!("it is a message") };
        assert!(!message.transactional);
        bytes[1] = 2;
        assert_eq!(alone(&bytes).unwrap_err().field, "flags");
    }

    #[test]
    fn a_message_in_a_stream_tells_its_transaction() {
        let bytes = [b"M\0\0\x02\xF0", &MESSAGE[1..]].concat();
        let Ok(Message::Logical(message)) = streamed(&bytes) else { panic!("it is a message") };
        assert_eq!((message.xid, message.prefix), (Some(752), "audit"));
        assert_needs_all(&bytes, streamed);
    }

    #[test]
    fn a_content_of_negative_length_is_refused() {
        let mut bytes = MESSAGE.to_vec();
        bytes[16] = 0xFF;
        let error = alone(&bytes).unwrap_err();
        assert_eq!((error.at, error.fault), (16, Fault::Negative));
    }

    #[test]
    fn what_is_printed_holds_no_content() {
        let printed = format!("{:?}", alone(MESSAGE).unwrap());
        assert!(
            printed.contains("audit") && printed.contains("3 bytes") && !printed.contains("97"),
            "{printed}"
        );
    }
}
