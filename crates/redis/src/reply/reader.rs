//! Reply reader: reads the elements of one reply.
//!
//! The framer has verified that the reply is complete and that its lengths are valid. The reader
//! validates the rest, such as the digits of numbers.

use std::borrow::Cow;

use bytes::Bytes;

use crate::core::frame::{AnnouncedLength, header};
use crate::error::{ReplyError, TypeMismatch};

/// Slices shorter than this are copied, so that they do not keep the whole read buffer alive.
const COPY_BELOW: usize = 1024;

/// Reads one reply, element by element.
#[derive(Debug)]
pub struct ReplyReader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

/// One element of a reply. The items of an aggregate follow it in the reader.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ReplyToken<'a> {
    /// Null, in any of its three encodings.
    Null,
    /// A status such as `OK`.
    Simple(&'a [u8]),
    /// An error, simple or bulk.
    Error(&'a [u8]),
    /// An integer.
    Int(i64),
    /// A floating point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// An integer of any length, in decimal.
    BigNumber(&'a [u8]),
    /// A string; owned only if the server streamed it in chunks.
    Bulk(Cow<'a, [u8]>),
    /// A string with its format, `txt` or `mkd`.
    Verbatim(&'a [u8], &'a [u8]),
    /// An array, with its number of items.
    Array(RemainingItems),
    /// A set, with its number of items.
    Set(RemainingItems),
    /// A push message, with its number of items.
    Push(RemainingItems),
    /// A map; its items are alternating keys and values.
    Map(RemainingItems),
}

impl ReplyToken<'_> {
    /// Returns the type's name for error messages.
    pub fn name(&self) -> &'static str {
        match self {
            ReplyToken::Null => "null",
            ReplyToken::Simple(_) => "a status",
            ReplyToken::Error(_) => "an error",
            ReplyToken::Int(_) => "an integer",
            ReplyToken::Double(_) => "a double",
            ReplyToken::Bool(_) => "a boolean",
            ReplyToken::BigNumber(_) => "a big number",
            ReplyToken::Bulk(_) => "a string",
            ReplyToken::Verbatim(..) => "a verbatim string",
            ReplyToken::Array(_) => "an array",
            ReplyToken::Set(_) => "a set",
            ReplyToken::Push(_) => "a push message",
            ReplyToken::Map(_) => "a map",
        }
    }

    /// Returns the error for this token in place of `expected`: the server's error, or a type
    /// mismatch.
    pub fn mismatch(&self, expected: &'static str) -> ReplyError {
        match self {
            ReplyToken::Error(text) => crate::RedisServerError::new(text).into(),
            other => Box::new(TypeMismatch { expected, found: other.name().into(), path: Vec::new() }).into(),
        }
    }
}

/// The items of an aggregate that are not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemainingItems(AnnouncedLength);

impl RemainingItems {
    /// Returns the number of items, if the server announced it.
    pub fn announced(&self) -> Option<usize> {
        match self.0 {
            AnnouncedLength::Known(count) => Some(count as usize),
            AnnouncedLength::Null | AnnouncedLength::Streamed => None,
        }
    }

    /// Returns true if there is another item. The caller must then read it.
    pub fn next(&mut self, reader: &mut ReplyReader<'_>) -> bool {
        match &mut self.0 {
            AnnouncedLength::Known(0) => false,
            AnnouncedLength::Known(left) => {
                *left -= 1;
                true
            }
            AnnouncedLength::Null => false,
            AnnouncedLength::Streamed if reader.peek() == Some(b'.') => {
                reader.at += 3;
                self.0 = AnnouncedLength::Known(0);
                false
            }
            AnnouncedLength::Streamed => true,
        }
    }
}

impl<'a> ReplyReader<'a> {
    pub(crate) fn new(bytes: &'a Bytes, at: usize) -> Self {
        ReplyReader { bytes, at }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Reads the next element and skips the attributes before it.
    /// [`WithAttributes`](crate::WithAttributes) keeps them.
    #[inline]
    pub fn token(&mut self) -> Result<ReplyToken<'a>, ReplyError> {
        while let Some(attributes) = self.attributes()? {
            self.skip_items(attributes)?;
        }
        let tag = self.peek().ok_or_else(truncated)?;
        match tag {
            b'$' | b'!' | b'=' => self.string(tag),
            b'*' | b'~' | b'>' | b'%' => self.aggregate(tag),
            _ => self.scalar(tag),
        }
    }

    /// Reads the attributes before the next element: alternating keys and values.
    pub fn attributes(&mut self) -> Result<Option<RemainingItems>, ReplyError> {
        if self.peek() != Some(b'|') {
            return Ok(None);
        }
        match self.aggregate(b'|')? {
            ReplyToken::Map(items) => Ok(Some(items)),
            _ => Err(truncated()),
        }
    }

    /// Skips the next element with everything nested in it.
    pub fn skip(&mut self) -> Result<(), ReplyError> {
        match self.token()? {
            ReplyToken::Array(items)
            | ReplyToken::Set(items)
            | ReplyToken::Push(items)
            | ReplyToken::Map(items) => self.skip_items(items),
            ReplyToken::Null
            | ReplyToken::Simple(_)
            | ReplyToken::Error(_)
            | ReplyToken::Int(_)
            | ReplyToken::Double(_)
            | ReplyToken::Bool(_)
            | ReplyToken::BigNumber(_)
            | ReplyToken::Bulk(_)
            | ReplyToken::Verbatim(..) => Ok(()),
        }
    }

    /// Returns true if the next element is null, ignoring attributes. Does not consume it.
    pub fn at_null(&self) -> bool {
        let rest = self.after_attributes();
        rest.starts_with(b"_") || rest.starts_with(b"$-1") || rest.starts_with(b"*-1")
    }

    /// Returns true if the next element is an error. Does not consume it.
    pub(crate) fn at_error(&self) -> bool {
        matches!(self.after_attributes(), [b'-' | b'!', ..])
    }

    /// Returns true if the next element is an array. Does not consume it.
    pub(crate) fn at_array(&self) -> bool {
        self.after_attributes().starts_with(b"*")
    }

    /// Returns the unread bytes after the attributes at their start.
    fn after_attributes(&self) -> &'a [u8] {
        let mut ahead = ReplyReader { bytes: self.bytes, at: self.at };
        while let Ok(Some(items)) = ahead.attributes() {
            if ahead.skip_items(items).is_err() {
                break;
            }
        }
        self.bytes.get(ahead.at..).unwrap_or_default()
    }

    /// Returns a slice of the reply as shared bytes. A short slice is copied, so that it does not
    /// keep the whole read buffer alive.
    pub(crate) fn to_bytes(&self, slice: &[u8]) -> Bytes {
        if slice.len() < COPY_BELOW { Bytes::copy_from_slice(slice) } else { self.bytes.slice_ref(slice) }
    }

    fn skip_items(&mut self, mut items: RemainingItems) -> Result<(), ReplyError> {
        while items.next(self) {
            self.skip()?;
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn string(&mut self, tag: u8) -> Result<ReplyToken<'a>, ReplyError> {
        let header = header(self.bytes, self.at, tag).ok().flatten().ok_or_else(truncated)?;
        self.at = header.end;
        let length = match header.length {
            AnnouncedLength::Known(length) => length as usize,
            AnnouncedLength::Null => return Ok(ReplyToken::Null),
            AnnouncedLength::Streamed => return self.chunks(),
        };
        let bytes = self.bytes.get(self.at..self.at + length).ok_or_else(truncated)?;
        self.at += length + 2;
        match tag {
            b'$' => Ok(ReplyToken::Bulk(Cow::Borrowed(bytes))),
            b'!' => Ok(ReplyToken::Error(bytes)),
            _ => match (bytes.get(..3), bytes.get(3), bytes.get(4..)) {
                (Some(format), Some(b':'), Some(text)) => Ok(ReplyToken::Verbatim(format, text)),
                _ => Err(malformed("a verbatim string with a format")),
            },
        }
    }

    fn chunks(&mut self) -> Result<ReplyToken<'a>, ReplyError> {
        let mut whole = Vec::new();
        loop {
            let header = header(self.bytes, self.at, b';').ok().flatten().ok_or_else(truncated)?;
            self.at = header.end;
            match header.length {
                AnnouncedLength::Known(0) => return Ok(ReplyToken::Bulk(Cow::Owned(whole))),
                AnnouncedLength::Known(length) => {
                    let end = self.at + length as usize;
                    whole.extend_from_slice(self.bytes.get(self.at..end).ok_or_else(truncated)?);
                    self.at = end + 2;
                }
                AnnouncedLength::Null | AnnouncedLength::Streamed => return Err(truncated()),
            }
        }
    }

    fn aggregate(&mut self, tag: u8) -> Result<ReplyToken<'a>, ReplyError> {
        let header = header(self.bytes, self.at, tag).ok().flatten().ok_or_else(truncated)?;
        self.at = header.end;
        let length = match header.length {
            AnnouncedLength::Null => return Ok(ReplyToken::Null),
            AnnouncedLength::Known(pairs) if matches!(tag, b'%' | b'|') => AnnouncedLength::Known(pairs * 2),
            length => length,
        };
        Ok(match tag {
            b'*' => ReplyToken::Array(RemainingItems(length)),
            b'~' => ReplyToken::Set(RemainingItems(length)),
            b'>' => ReplyToken::Push(RemainingItems(length)),
            _ => ReplyToken::Map(RemainingItems(length)),
        })
    }

    fn scalar(&mut self, tag: u8) -> Result<ReplyToken<'a>, ReplyError> {
        let rest = &self.bytes[self.at + 1..];
        let end = memchr::memchr(b'\n', rest).filter(|&end| end > 0).ok_or_else(truncated)?;
        let line = &rest[..end - 1];
        self.at += end + 2;
        match tag {
            b'+' => Ok(ReplyToken::Simple(line)),
            b'-' => Ok(ReplyToken::Error(line)),
            b':' => parse(line).map(ReplyToken::Int).ok_or_else(|| malformed("an integer of 64 bits")),
            b',' => double(line).map(ReplyToken::Double).ok_or_else(|| malformed("a double")),
            b'(' if is_integer(line) => Ok(ReplyToken::BigNumber(line)),
            b'#' if line == b"t" => Ok(ReplyToken::Bool(true)),
            b'#' if line == b"f" => Ok(ReplyToken::Bool(false)),
            b'_' if line.is_empty() => Ok(ReplyToken::Null),
            _ => Err(malformed("a well-formed element")),
        }
    }
}

/// Parses a number in decimal digits.
pub(crate) fn parse<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a RESP3 double: a number, `inf`, `-inf` or `nan`.
pub(crate) fn double(text: &[u8]) -> Option<f64> {
    match text {
        b"inf" | b"+inf" => Some(f64::INFINITY),
        b"-inf" => Some(f64::NEG_INFINITY),
        b"nan" | b"-nan" => Some(f64::NAN),
        [b'0'..=b'9' | b'-' | b'+' | b'.', ..] => parse(text),
        _ => None,
    }
}

fn is_integer(line: &[u8]) -> bool {
    let digits = line.strip_prefix(b"-").or(line.strip_prefix(b"+")).unwrap_or(line);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn truncated() -> ReplyError {
    malformed("a whole reply")
}

fn malformed(expected: &'static str) -> ReplyError {
    Box::new(TypeMismatch { expected, found: "malformed bytes".into(), path: Vec::new() }).into()
}
