//! Bounds-checked reader over the bytes of one message.
//!
//! Invariant: it never reads past the end, panics or allocates. A failed read names the field and
//! consumes nothing.
//! Enforced by: the reader advances only through slice methods that return an `Option`.

use std::fmt;

use crate::error::{DecodeError, DecodeFault};
use crate::{Lsn, PgTime};

/// Unread part of a message.
#[derive(Clone, Copy)]
pub(crate) struct MessageReader<'a> {
    tag: Option<u8>,
    /// Length of the whole message in bytes, including its tag.
    whole: usize,
    rest: &'a [u8],
}

impl<'a> MessageReader<'a> {
    /// Creates a reader at the first byte of a message, its tag.
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { tag: message.first().copied(), whole: message.len(), rest: message }
    }

    /// Returns the unread bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the bytes between an earlier state of this reader and the current one.
    pub(crate) fn since(&self, before: &Self) -> &'a [u8] {
        let read = before.rest.len().saturating_sub(self.rest.len());
        before.rest.get(..read).unwrap_or_default()
    }

    /// Creates the error for the field that starts at the current position.
    #[cold]
    pub(crate) fn fault(self, field: &'static str, fault: DecodeFault) -> DecodeError {
        DecodeError { tag: self.tag, at: self.whole.saturating_sub(self.rest.len()), field, fault }
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array(field).map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.array(field).map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    #[inline]
    pub(crate) fn clock(&mut self, field: &'static str) -> Result<PgTime, DecodeError> {
        self.array(field).map(|bytes| PgTime(i64::from_be_bytes(bytes)))
    }

    /// Reads one byte that must be 0 or 1.
    #[inline]
    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        self.flags(1, field).map(|flag| flag != 0)
    }

    /// Reads one byte of flags. Fails if it sets a bit outside `known`.
    #[inline]
    pub(crate) fn flags(&mut self, known: u8, field: &'static str) -> Result<u8, DecodeError> {
        let before = *self;
        let flags = self.u8(field)?;
        if flags & !known != 0 {
            return Err(before.fault(field, DecodeFault::Unexpected { expected: "the known flags" }));
        }
        Ok(flags)
    }

    /// Reads a 32-bit length, then that many bytes.
    #[inline]
    pub(crate) fn length_prefixed(
        &mut self,
        length: &'static str,
        field: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let before = *self;
        match usize::try_from(self.i32(length)?) {
            Ok(length) => self.bytes(length, field),
            Err(_) => Err(before.fault(length, DecodeFault::Negative)),
        }
    }

    #[inline]
    pub(crate) fn bytes(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(length) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.fault(field, DecodeFault::Ended { needed: length, left: self.rest.len() })),
        }
    }

    /// Reads a zero-terminated UTF-8 string.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let Some(length) = self.rest.iter().position(|byte| *byte == 0) else {
            return Err(self.fault(field, DecodeFault::Unterminated));
        };
        let (text, rest) = self.rest.split_at(length);
        let text = str::from_utf8(text).map_err(|_| self.fault(field, DecodeFault::NotUtf8))?;
        self.rest = rest.get(1..).unwrap_or_default();
        Ok(text)
    }

    /// Fails if the message has unread bytes.
    #[inline]
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.fault("end", DecodeFault::Trailing { left })),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.rest.split_first_chunk() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(*head)
            }
            None => Err(self.fault(field, DecodeFault::Ended { needed: N, left: self.rest.len() })),
        }
    }
}

/// Prints the number of unread bytes, never the bytes: they may be row data.
impl fmt::Debug for MessageReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageReader({} bytes left)", self.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reader after the tag.
    fn reader(message: &[u8]) -> MessageReader<'_> {
        let mut reader = MessageReader::new(message);
        reader.u8("tag").unwrap();
        reader
    }

    #[test]
    fn numbers_are_big_endian() {
        let mut reader = reader(
            b"I\x01\x02\x03\x04\x05\x06\xFF\xFF\xFF\xFE\0\0\0\0\0\0\x01\x02\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
        );
        assert_eq!(reader.u16("a"), Ok(0x0102));
        assert_eq!(reader.u32("b"), Ok(0x0304_0506));
        assert_eq!(reader.i32("c"), Ok(-2));
        assert_eq!(reader.lsn("d"), Ok(Lsn(0x0102)));
        assert_eq!(reader.clock("e"), Ok(PgTime(-1)));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_read_past_the_end_reports_the_fields_offset_and_consumes_nothing() {
        let mut reader = reader(b"I\x01\x02\x03");
        let fault = DecodeFault::Ended { needed: 4, left: 3 };
        assert_eq!(reader.u32("oid"), Err(DecodeError { tag: Some(b'I'), at: 1, field: "oid", fault }));
        assert_eq!(reader.rest(), b"\x01\x02\x03");
        assert_eq!(reader.bytes(4, "value").unwrap_err().fault, fault);
        assert_eq!(reader.rest(), b"\x01\x02\x03");
    }

    #[test]
    fn a_text_ends_before_its_zero_byte() {
        let mut reader = reader("Yé\0\0z".as_bytes());
        assert_eq!(reader.text("a"), Ok("é"));
        assert_eq!(reader.text("b"), Ok(""));
        let error = reader.text("c").unwrap_err();
        assert_eq!((error.at, error.fault), (5, DecodeFault::Unterminated));
    }

    #[test]
    fn a_text_in_another_encoding_is_refused() {
        let error = reader(b"Ycaf\xE9\0").text("name").unwrap_err();
        assert_eq!((error.at, error.fault), (1, DecodeFault::NotUtf8));
    }

    #[test]
    fn a_length_below_zero_or_past_the_end_is_refused() {
        let error = reader(b"M\xFF\xFF\xFF\xFF").length_prefixed("length", "content").unwrap_err();
        assert_eq!((error.at, error.field, error.fault), (1, "length", DecodeFault::Negative));
        let error = reader(b"M\x7F\xFF\xFF\xFFx").length_prefixed("length", "content").unwrap_err();
        let fault = DecodeFault::Ended { needed: 0x7FFF_FFFF, left: 1 };
        assert_eq!((error.at, error.field, error.fault), (5, "content", fault));
        assert_eq!(reader(b"M\0\0\0\0").length_prefixed("length", "content"), Ok(&b""[..]));
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(reader(b"C\x02").flags(3, "flags"), Ok(2));
        let error = reader(b"C\x04").flags(3, "flags").unwrap_err();
        assert_eq!((error.at, error.fault), (1, DecodeFault::Unexpected { expected: "the known flags" }));
        assert_eq!((reader(b"k\0").bool("reply"), reader(b"k\x01").bool("reply")), (Ok(false), Ok(true)));
        assert!(reader(b"k\x02").bool("reply").is_err());
    }

    #[test]
    fn debug_output_of_the_reader_contains_no_bytes() {
        assert_eq!(format!("{:?}", reader(b"Isecret")), "MessageReader(6 bytes left)");
    }
}
