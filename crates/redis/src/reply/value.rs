//! Any reply, kept as it is, and the few RESP3 types that Rust has no word for.

use bytes::Bytes;

use super::decode::{FromReply, mismatch};
use super::reader::{Items, Reader, Token};
use crate::error::{ReplyError, ServerError};

/// A reply of any type, with everything in it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Null, in any of its three spellings.
    Null,
    /// A status such as `OK`.
    Simple(Bytes),
    /// An error inside a reply; at the top it is an `Err` instead.
    Error(ServerError),
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
    Verbatim(Verbatim),
    /// An array.
    Array(Vec<Value>),
    /// A set, in the server's order.
    Set(Vec<Value>),
    /// A map, in the server's order.
    Map(Vec<(Value, Value)>),
    /// A push message.
    Push(Vec<Value>),
    /// A value with attributes.
    Attributed(Box<Attributed<Value>>),
}

/// An integer of any length, in decimal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BigNumber(pub String);

/// A string that says how it is formatted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verbatim {
    /// `txt` for plain text, `mkd` for Markdown.
    pub format: String,
    /// The text.
    pub text: String,
}

/// A value and the attributes that the server sent with it; other types pass over attributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Attributed<T> {
    /// Keys and values.
    pub attributes: Vec<(Value, Value)>,
    /// What they belong to.
    pub value: T,
}

impl FromReply for Value {
    /// An error at the top of a reply is an `Err`, as for every other type.
    fn from_reply(reader: &mut Reader<'_>) -> Result<Self, ReplyError> {
        if reader.at_error() {
            return Err(reader.token()?.mismatch("any value"));
        }
        any(reader)
    }
}

pub(super) fn any(reader: &mut Reader<'_>) -> Result<Value, ReplyError> {
    if let Some(attributes) = attributes(reader)? {
        return Ok(Value::Attributed(Box::new(Attributed { attributes, value: any(reader)? })));
    }
    Ok(match reader.token()? {
        Token::Null => Value::Null,
        Token::Simple(text) => Value::Simple(reader.share(text)),
        Token::Error(text) => Value::Error(ServerError::new(text)),
        Token::Int(value) => Value::Int(value),
        Token::Double(value) => Value::Double(value),
        Token::Bool(value) => Value::Bool(value),
        Token::BigNumber(digits) => Value::BigNumber(BigNumber(utf8(digits)?)),
        Token::Bulk(std::borrow::Cow::Borrowed(text)) => Value::Bulk(reader.share(text)),
        Token::Bulk(std::borrow::Cow::Owned(text)) => Value::Bulk(text.into()),
        Token::Verbatim(format, text) => {
            Value::Verbatim(Verbatim { format: utf8(format)?, text: utf8(text)? })
        }
        Token::Array(items) => Value::Array(values(reader, items)?),
        Token::Set(items) => Value::Set(values(reader, items)?),
        Token::Push(items) => Value::Push(values(reader, items)?),
        Token::Map(items) => Value::Map(into_pairs(values(reader, items)?)?),
    })
}

/// The attributes before the next element. Several in a row are one: they say the same, and nothing bounds how many there
/// are but the limit on elements, which is no limit for a recursion.
fn attributes(reader: &mut Reader<'_>) -> Result<Option<Vec<(Value, Value)>>, ReplyError> {
    let mut all = None;
    while let Some(items) = reader.attributes()? {
        all.get_or_insert_with(Vec::new).append(&mut into_pairs(values(reader, items)?)?);
    }
    Ok(all)
}

fn values(reader: &mut Reader<'_>, mut items: Items) -> Result<Vec<Value>, ReplyError> {
    let mut values = Vec::with_capacity(items.announced().unwrap_or(0));
    while items.next(reader) {
        values.push(any(reader).map_err(|error| error.at(values.len()))?);
    }
    Ok(values)
}

fn into_pairs(values: Vec<Value>) -> Result<Vec<(Value, Value)>, ReplyError> {
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

impl FromReply for Verbatim {
    fn from_reply(reader: &mut Reader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            Token::Verbatim(format, text) => Ok(Verbatim { format: utf8(format)?, text: utf8(text)? }),
            // RESP2 has only plain strings.
            Token::Bulk(text) => Ok(Verbatim { format: "txt".into(), text: utf8(&text)? }),
            other => Err(other.mismatch("a verbatim string")),
        }
    }
}

impl FromReply for BigNumber {
    fn from_reply(reader: &mut Reader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            Token::BigNumber(digits) => utf8(digits).map(BigNumber),
            Token::Int(value) => Ok(BigNumber(value.to_string())),
            Token::Bulk(digits) => utf8(&digits).map(BigNumber),
            other => Err(other.mismatch("a big number")),
        }
    }
}

impl<T: FromReply> FromReply for Attributed<T> {
    fn from_reply(reader: &mut Reader<'_>) -> Result<Self, ReplyError> {
        let attributes = attributes(reader)?.unwrap_or_default();
        Ok(Attributed { attributes, value: T::from_reply(reader)? })
    }
}
