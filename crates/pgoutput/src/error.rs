//! Why bytes are no message.
//!
//! Invariant: an error tells where and what, and holds nothing of a row: its text may be logged.

use std::fmt;

/// Bytes that are not what the protocol says.
///
/// Either the server speaks a protocol that this crate doesn't know, or bytes were lost on the way. Both end the
/// connection: what a message meant that could not be read, nobody can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// The message's first byte; `None` if there was none.
    pub tag: Option<u8>,
    /// Where the field begins, counted from the message's first byte.
    pub at: usize,
    /// The field that could not be read.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The message ends before the field does.
    #[error("bytes needed: {needed}, left: {left}")]
    Ended {
        /// How many bytes the field takes.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// The message goes on after its last field.
    #[error("bytes too many: {left}")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// The byte is none of those that may stand here.
    #[error("the byte is not one of {expected}")]
    Unexpected {
        /// Those that may.
        expected: &'static str,
    },
    /// A text without the zero byte at its end.
    #[error("no zero byte ends it")]
    Unterminated,
    /// A text that is not UTF-8. Is `client_encoding` of the connection UTF8?
    #[error("it is not UTF-8")]
    NotUtf8,
    /// A length below zero.
    #[error("it is negative")]
    Negative,
    /// A message that never stands between `StreamStart` and `StreamStop`.
    #[error("it stands between StreamStart and StreamStop, where it may not")]
    Streaming,
    /// A `StreamStop` without its `StreamStart`.
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
        None // `fault` is part of the text already
    }
}

/// What the manual calls a message of this first byte.
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
    fn the_text_names_the_message_the_place_and_the_field() {
        let fault = Fault::Ended { needed: 4, left: 3 };
        let error = DecodeError { tag: Some(b'I'), at: 8, field: "length of a value", fault };
        assert_eq!(error.to_string(), "Insert, byte 8, length of a value: bytes needed: 4, left: 3");
    }

    #[test]
    fn a_message_without_a_name_is_told_by_its_first_byte() {
        let fault = Fault::Unexpected { expected: "the protocol's" };
        let error = DecodeError { tag: Some(b'\n'), at: 0, field: "tag", fault };
        assert_eq!(
            error.to_string(),
            "a message of the unknown kind 0x0a, byte 0, tag: the byte is not one of the protocol's"
        );
        let error = DecodeError { tag: None, fault: Fault::Ended { needed: 1, left: 0 }, ..error };
        assert_eq!(error.to_string(), "an empty message, byte 0, tag: bytes needed: 1, left: 0");
    }
}
