//! Dynamically typed replies, and the RESP3 types that have no Rust equivalent.

use bytes::Bytes;

use super::decode::{FromReply, mismatch};
use super::reader::{RemainingItems, ReplyReader, ReplyToken};
use crate::error::{RedisServerError, ReplyError};

/// A reply of any type, with everything nested in it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RespValue {
    /// Null, in any of its three encodings.
    Null,
    /// A status such as `OK`.
    Simple(Bytes),
    /// An error inside a reply. A top-level error is returned as `Err` instead.
    Error(RedisServerError),
    /// An integer.
    Int(i64),
    /// A floating point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// An integer of any length.
    BigNumber(BigNumber),
    /// A string.
    Bulk(Bytes),
    /// A string with its format.
    Verbatim(VerbatimString),
    /// An array.
    Array(Vec<RespValue>),
    /// A set, in the server's order.
    Set(Vec<RespValue>),
    /// A map, in the server's order.
    Map(Vec<(RespValue, RespValue)>),
    /// A push message.
    Push(Vec<RespValue>),
    /// A value with attributes.
    Attributed(Box<WithAttributes<RespValue>>),
}

/// An integer of any length, in decimal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BigNumber(pub String);

/// A string with its format.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VerbatimString {
    /// `txt` for plain text, `mkd` for Markdown.
    pub format: String,
    /// The text.
    pub text: String,
}

/// A value with the attributes that the server sent before it. Other types skip attributes.
#[derive(Debug, Clone, PartialEq)]
pub struct WithAttributes<T> {
    /// Keys and values.
    pub attributes: Vec<(RespValue, RespValue)>,
    /// The value that the attributes belong to.
    pub value: T,
}

impl FromReply for RespValue {
    /// Fails for a top-level error, as every other type does.
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        if reader.at_error() {
            return Err(reader.token()?.mismatch("any value"));
        }
        any(reader)
    }
}

pub(super) fn any(reader: &mut ReplyReader<'_>) -> Result<RespValue, ReplyError> {
    if let Some(attributes) = attributes(reader)? {
        return Ok(RespValue::Attributed(Box::new(WithAttributes { attributes, value: any(reader)? })));
    }
    Ok(match reader.token()? {
        ReplyToken::Null => RespValue::Null,
        ReplyToken::Simple(text) => RespValue::Simple(reader.to_bytes(text)),
        ReplyToken::Error(text) => RespValue::Error(RedisServerError::new(text)),
        ReplyToken::Int(value) => RespValue::Int(value),
        ReplyToken::Double(value) => RespValue::Double(value),
        ReplyToken::Bool(value) => RespValue::Bool(value),
        ReplyToken::BigNumber(digits) => RespValue::BigNumber(BigNumber(utf8(digits)?)),
        ReplyToken::Bulk(std::borrow::Cow::Borrowed(text)) => RespValue::Bulk(reader.to_bytes(text)),
        ReplyToken::Bulk(std::borrow::Cow::Owned(text)) => RespValue::Bulk(text.into()),
        ReplyToken::Verbatim(format, text) => {
            RespValue::Verbatim(VerbatimString { format: utf8(format)?, text: utf8(text)? })
        }
        ReplyToken::Array(items) => RespValue::Array(values(reader, items)?),
        ReplyToken::Set(items) => RespValue::Set(values(reader, items)?),
        ReplyToken::Push(items) => RespValue::Push(values(reader, items)?),
        ReplyToken::Map(items) => RespValue::Map(into_pairs(values(reader, items)?)?),
    })
}

/// Reads the attributes before the next element and merges consecutive ones. A loop, not a
/// recursion: only the limit on elements bounds their number.
fn attributes(reader: &mut ReplyReader<'_>) -> Result<Option<Vec<(RespValue, RespValue)>>, ReplyError> {
    let mut all = None;
    while let Some(items) = reader.attributes()? {
        all.get_or_insert_with(Vec::new).append(&mut into_pairs(values(reader, items)?)?);
    }
    Ok(all)
}

fn values(reader: &mut ReplyReader<'_>, mut items: RemainingItems) -> Result<Vec<RespValue>, ReplyError> {
    let mut values = Vec::with_capacity(items.announced().unwrap_or(0));
    while items.next(reader) {
        values.push(any(reader).map_err(|error| error.at(values.len()))?);
    }
    Ok(values)
}

fn into_pairs(values: Vec<RespValue>) -> Result<Vec<(RespValue, RespValue)>, ReplyError> {
    let mut pairs = Vec::with_capacity(values.len() / 2);
    let mut values = values.into_iter();
    while let Some(key) = values.next() {
        pairs.push((key, values.next().ok_or_else(|| mismatch("a map", "an odd number of items"))?));
    }
    Ok(pairs)
}

fn utf8(text: &[u8]) -> Result<String, ReplyError> {
    String::from_utf8(text.into()).map_err(|_| mismatch("a UTF-8 string", "a string of other bytes"))
}

impl FromReply for VerbatimString {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            ReplyToken::Verbatim(format, text) => {
                Ok(VerbatimString { format: utf8(format)?, text: utf8(text)? })
            }
            // RESP2 has only plain strings.
            ReplyToken::Bulk(text) => Ok(VerbatimString { format: "txt".into(), text: utf8(&text)? }),
            other => Err(other.mismatch("a verbatim string")),
        }
    }
}

impl FromReply for BigNumber {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            ReplyToken::BigNumber(digits) => utf8(digits).map(BigNumber),
            ReplyToken::Int(value) => Ok(BigNumber(value.to_string())),
            ReplyToken::Bulk(digits) => utf8(&digits).map(BigNumber),
            other => Err(other.mismatch("a big number")),
        }
    }
}

impl<T: FromReply> FromReply for WithAttributes<T> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let attributes = attributes(reader)?.unwrap_or_default();
        Ok(WithAttributes { attributes, value: T::from_reply(reader)? })
    }
}
