//! Decode errors.
//!
//! Invariant: an error has a position and a static description, never row data. Its text may be
//! logged.

use std::fmt;

/// Error for bytes that are not a valid message.
///
/// Either the server uses an unsupported protocol, or bytes were lost. Close the connection in both
/// cases: the meaning of an unreadable message is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// First byte of the message; `None` if the message is empty.
    pub tag: Option<u8>,
    /// Offset of the field from the first byte of the message.
    pub at: usize,
    /// Name of the field that could not be decoded.
    pub field: &'static str,
    /// Defect of the field.
    pub fault: DecodeFault,
}

/// Defect of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeFault {
    /// The message ends before the field does.
    #[error("bytes needed: {needed}, left: {left}")]
    Ended {
        /// Size of the field in bytes.
        needed: usize,
        /// Bytes remaining in the message.
        left: usize,
    },
    /// The message has bytes after its last field.
    #[error("bytes too many: {left}")]
    Trailing {
        /// Number of trailing bytes.
        left: usize,
    },
    /// The byte is not one of the allowed values.
    #[error("the byte is not one of {expected}")]
    Unexpected {
        /// The allowed values.
        expected: &'static str,
    },
    /// A string without its terminating zero byte.
    #[error("no zero byte ends it")]
    Unterminated,
    /// A string that is not UTF-8. Check the connection's `client_encoding`.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// A negative length or count.
    #[error("it is negative")]
    Negative,
    /// A message that is not allowed between `StreamStart` and `StreamStop`.
    #[error("it stands between StreamStart and StreamStop, where it may not")]
    Streaming,
    /// A `StreamStop` without a `StreamStart`.
    #[error("no StreamStart stands before it")]
    NotStreaming,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, at, field, fault } = self;
        match tag {
            None => f.write_str("an empty message")?,
            Some(tag) => match name(*tag) {
                Some(name) => f.write_str(name)?,
                None => write!(f, "a message of the unknown kind 0x{tag:02x}")?,
            },
        }
        write!(f, ", byte {at}, {field}: {fault}")
    }
}

impl std::error::Error for DecodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None // `Display` already includes `fault`
    }
}

/// Returns the manual's name of the message with this first byte.
fn name(tag: u8) -> Option<&'static str> {
    Some(match tag {
        b'w' => "XLogData",
        b'k' => "Primary keepalive",
        b'B' => "Begin",
        b'C' => "Commit",
        b'O' => "Origin",
        b'R' => "Relation",
        b'Y' => "Type",
        b'I' => "Insert",
        b'U' => "Update",
        b'D' => "Delete",
        b'T' => "Truncate",
        b'M' => "Message",
        b'S' => "Stream Start",
        b'E' => "Stream Stop",
        b'c' => "Stream Commit",
        b'A' => "Stream Abort",
        b'b' => "Begin Prepare",
        b'P' => "Prepare",
        b'K' => "Commit Prepared",
        b'r' => "Rollback Prepared",
        b'p' => "Stream Prepare",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_message_the_offset_and_the_field() {
        let fault = DecodeFault::Ended { needed: 4, left: 3 };
        let error = DecodeError { tag: Some(b'I'), at: 8, field: "length of a value", fault };
        assert_eq!(error.to_string(), "Insert, byte 8, length of a value: bytes needed: 4, left: 3");
    }

    #[test]
    fn an_unknown_message_is_named_by_its_first_byte() {
        let fault = DecodeFault::Unexpected { expected: "the protocol's" };
        let error = DecodeError { tag: Some(b'\n'), at: 0, field: "tag", fault };
        assert_eq!(
            error.to_string(),
            "a message of the unknown kind 0x0a, byte 0, tag: the byte is not one of the protocol's"
        );
        let error = DecodeError { tag: None, fault: DecodeFault::Ended { needed: 1, left: 0 }, ..error };
        assert_eq!(error.to_string(), "an empty message, byte 0, tag: bytes needed: 1, left: 0");
    }
}
