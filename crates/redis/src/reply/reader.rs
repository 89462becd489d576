//! A walk over the bytes of one reply.
//!
//! The framer has made sure that the reply is whole and its lengths are right; what it didn't look at, such as the digits
//! of a number, is checked here.

use std::borrow::Cow;

use bytes::Bytes;

use crate::core::frame::{Length, header};
use crate::error::{Mismatch, ReplyError};

/// Shorter pieces of a read are copied when they are kept, so that they don't keep all of it alive.
const COPY_BELOW: usize = 1024;

/// Reads one reply, element by element.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

/// One element of a reply; the items of an aggregate follow it in the reader.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Token<'a> {
    /// Null, in any of its three spellings.
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
    /// A string; owned only where the server streamed it in chunks.
    Bulk(Cow<'a, [u8]>),
    /// A string with its format, `txt` or `mkd`.
    Verbatim(&'a [u8], &'a [u8]),
    /// An array, and how many items it has.
    Array(Items),
    /// A set, likewise.
    Set(Items),
    /// A push message, likewise.
    Push(Items),
    /// A map; its items are keys and values in turn.
    Map(Items),
}

impl Token<'_> {
    /// Its type in an error message.
    pub fn name(&self) -> &'static str {
        match self {
            Token::Null => "null",
            Token::Simple(_) => "a status",
            Token::Error(_) => "an error",
            Token::Int(_) => "an integer",
            Token::Double(_) => "a double",
            Token::Bool(_) => "a boolean",
            Token::BigNumber(_) => "a big number",
            Token::Bulk(_) => "a string",
            Token::Verbatim(..) => "a verbatim string",
            Token::Array(_) => "an array",
            Token::Set(_) => "a set",
            Token::Push(_) => "a push message",
            Token::Map(_) => "a map",
        }
    }

    /// The error for this token where `expected` should have been: its own if it is one.
    pub fn mismatch(&self, expected: &'static str) -> ReplyError {
        match self {
            Token::Error(text) => crate::ServerError::new(text).into(),
            other => Box::new(Mismatch { expected, found: other.name().into(), path: Vec::new() }).into(),
        }
    }
}

/// How many items of an aggregate are still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Items(Length);

impl Items {
    /// The number of items, if the server announced it.
    pub fn announced(&self) -> Option<usize> {
        match self.0 {
            Length::Known(count) => Some(count as usize),
            Length::Null | Length::Streamed => None,
        }
    }

    /// True while there is another item, which must then be read.
    pub fn next(&mut self, reader: &mut Reader<'_>) -> bool {
        match &mut self.0 {
            Length::Known(0) => false,
            Length::Known(left) => {
                *left -= 1;
                true
            }
            Length::Null => false,
            Length::Streamed if reader.peek() == Some(b'.') => {
                reader.at += 3;
                self.0 = Length::Known(0);
                false
            }
            Length::Streamed => true,
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a Bytes, at: usize) -> Self {
        Reader { bytes, at }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Reads the next element. Attributes before it are passed over; see [`Attributed`](crate::Attributed) to keep them.
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, ReplyError> {
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

    /// The attributes that stand before the next element: keys and values in turn.
    pub fn attributes(&mut self) -> Result<Option<Items>, ReplyError> {
        if self.peek() != Some(b'|') {
            return Ok(None);
        }
        match self.aggregate(b'|')? {
            Token::Map(items) => Ok(Some(items)),
            _ => Err(truncated()),
        }
    }

    /// Passes over the next element with everything in it.
    pub fn skip(&mut self) -> Result<(), ReplyError> {
        match self.token()? {
            Token::Array(items) | Token::Set(items) | Token::Push(items) | Token::Map(items) => {
                self.skip_items(items)
            }
            Token::Null
            | Token::Simple(_)
            | Token::Error(_)
            | Token::Int(_)
            | Token::Double(_)
            | Token::Bool(_)
            | Token::BigNumber(_)
            | Token::Bulk(_)
            | Token::Verbatim(..) => Ok(()),
        }
    }

    /// True if the next element is null, whatever attributes it has; it stays unread.
    pub fn at_null(&self) -> bool {
        let rest = self.past_attributes();
        rest.starts_with(b"_") || rest.starts_with(b"$-1") || rest.starts_with(b"*-1")
    }

    /// True if the next element is an error; it stays unread.
    pub(crate) fn at_error(&self) -> bool {
        matches!(self.past_attributes(), [b'-' | b'!', ..])
    }

    /// True if the next element is an array; it stays unread.
    pub(crate) fn at_array(&self) -> bool {
        self.past_attributes().starts_with(b"*")
    }

    /// What is unread, less the attributes at its beginning.
    fn past_attributes(&self) -> &'a [u8] {
        let mut ahead = Reader { bytes: self.bytes, at: self.at };
        while let Ok(Some(items)) = ahead.attributes() {
            if ahead.skip_items(items).is_err() {
                break;
            }
        }
        self.bytes.get(ahead.at..).unwrap_or_default()
    }

    /// A slice of the reply as shared bytes. A short one is copied, so that keeping it doesn't keep the whole read alive.
    pub(crate) fn share(&self, slice: &[u8]) -> Bytes {
        if slice.len() < COPY_BELOW { Bytes::copy_from_slice(slice) } else { self.bytes.slice_ref(slice) }
    }

    fn skip_items(&mut self, mut items: Items) -> Result<(), ReplyError> {
        while items.next(self) {
            self.skip()?;
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn string(&mut self, tag: u8) -> Result<Token<'a>, ReplyError> {
        let header = header(self.bytes, self.at, tag).ok().flatten().ok_or_else(truncated)?;
        self.at = header.end;
        let length = match header.length {
            Length::Known(length) => length as usize,
            Length::Null => return Ok(Token::Null),
            Length::Streamed => return self.chunks(),
        };
        let bytes = self.bytes.get(self.at..self.at + length).ok_or_else(truncated)?;
        self.at += length + 2;
        match tag {
            b'$' => Ok(Token::Bulk(Cow::Borrowed(bytes))),
            b'!' => Ok(Token::Error(bytes)),
            _ => match (bytes.get(..3), bytes.get(3), bytes.get(4..)) {
                (Some(format), Some(b':'), Some(text)) => Ok(Token::Verbatim(format, text)),
                _ => Err(malformed("a verbatim string with a format")),
            },
        }
    }

    fn chunks(&mut self) -> Result<Token<'a>, ReplyError> {
        let mut whole = Vec::new();
        loop {
            let header = header(self.bytes, self.at, b';').ok().flatten().ok_or_else(truncated)?;
            self.at = header.end;
            match header.length {
                Length::Known(0) => return Ok(Token::Bulk(Cow::Owned(whole))),
                Length::Known(length) => {
                    let end = self.at + length as usize;
                    whole.extend_from_slice(self.bytes.get(self.at..end).ok_or_else(truncated)?);
                    self.at = end + 2;
                }
                Length::Null | Length::Streamed => return Err(truncated()),
            }
        }
    }

    fn aggregate(&mut self, tag: u8) -> Result<Token<'a>, ReplyError> {
        let header = header(self.bytes, self.at, tag).ok().flatten().ok_or_else(truncated)?;
        self.at = header.end;
        let length = match header.length {
            Length::Null => return Ok(Token::Null),
            Length::Known(pairs) if matches!(tag, b'%' | b'|') => Length::Known(pairs * 2),
            length => length,
        };
        Ok(match tag {
            b'*' => Token::Array(Items(length)),
            b'~' => Token::Set(Items(length)),
            b'>' => Token::Push(Items(length)),
            _ => Token::Map(Items(length)),
        })
    }

    fn scalar(&mut self, tag: u8) -> Result<Token<'a>, ReplyError> {
        let rest = &self.bytes[self.at + 1..];
        let end = memchr::memchr(b'\n', rest).filter(|&end| end > 0).ok_or_else(truncated)?;
        let line = &rest[..end - 1];
        self.at += end + 2;
        match tag {
            b'+' => Ok(Token::Simple(line)),
            b'-' => Ok(Token::Error(line)),
            b':' => parse(line).map(Token::Int).ok_or_else(|| malformed("an integer of 64 bits")),
            b',' => double(line).map(Token::Double).ok_or_else(|| malformed("a double")),
            b'(' if is_integer(line) => Ok(Token::BigNumber(line)),
            b'#' if line == b"t" => Ok(Token::Bool(true)),
            b'#' if line == b"f" => Ok(Token::Bool(false)),
            b'_' if line.is_empty() => Ok(Token::Null),
            _ => Err(malformed("a well-formed element")),
        }
    }
}

/// A number in decimal digits.
pub(crate) fn parse<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A double as RESP3 writes it: a number, `inf`, `-inf` or `nan`.
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
    Box::new(Mismatch { expected, found: "malformed bytes".into(), path: Vec::new() }).into()
}
