//! Decoding of replies into any `Deserialize` type, such as HGETALL into a struct.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor};

use super::decode::{FromReply, mismatch, text};
use super::reader::{RemainingItems, ReplyReader, ReplyToken, double, parse};
use crate::error::{ReplyError, TypeMismatch};

/// Decodes a reply with serde: a map into a struct, an array into a list or a tuple.
///
/// Strings are parsed as numbers and booleans if the type requires it, because hashes hold only
/// strings.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = forebay_sandbox::Redis::start()?;
/// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
/// # client.exec::<()>(("HSET", "player:1", "name", "Ada", "score", 7)).await?;
/// use forebay_redis::Serde;
///
/// #[derive(serde::Deserialize)]
/// struct Player { name: String, score: i64 }
///
/// let Serde(player) = client.exec::<Serde<Player>>(("HGETALL", "player:1")).await?;
/// assert_eq!((player.name.as_str(), player.score), ("Ada", 7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Serde<T>(pub T);

impl<T: DeserializeOwned> FromReply for Serde<T> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        T::deserialize(ReplyDeserializer(reader)).map(Serde)
    }
}

/// Serde's own messages quote values, which must not be logged. These messages name only the type.
impl de::Error for ReplyError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        let found = Cow::Owned(message.to_string());
        Box::new(TypeMismatch { expected: "a value of the given type", found, path: Vec::new() }).into()
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let kind = match unexpected {
            Unexpected::Bool(_) => "a boolean",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => "an integer",
            Unexpected::Float(_) => "a double",
            Unexpected::Char(_) | Unexpected::Str(_) | Unexpected::Bytes(_) => "a string",
            Unexpected::Unit | Unexpected::Option => "null",
            Unexpected::Seq => "an array",
            Unexpected::Map => "a map",
            _ => "another type",
        };
        Self::custom(format_args!("{kind} in place of {expected}"))
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(unexpected, expected)
    }

    fn unknown_variant(_: &str, _: &'static [&'static str]) -> Self {
        mismatch("a variant of the enum", "another string")
    }
}

struct ReplyDeserializer<'r, 'a>(&'r mut ReplyReader<'a>);

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
            visitor.$visit(<$type>::from_reply(self.0)?)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for ReplyDeserializer<'_, '_> {
    type Error = ReplyError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        match self.0.token()? {
            ReplyToken::Null => visitor.visit_unit(),
            ReplyToken::Int(value) => visitor.visit_i64(value),
            ReplyToken::Double(value) => visitor.visit_f64(value),
            ReplyToken::Bool(value) => visitor.visit_bool(value),
            ReplyToken::Simple(text) | ReplyToken::BigNumber(text) | ReplyToken::Verbatim(_, text) => {
                visit_text(text, visitor)
            }
            ReplyToken::Bulk(text) => visit_text(&text, visitor),
            ReplyToken::Array(items) | ReplyToken::Set(items) | ReplyToken::Push(items) => {
                visit_list(self.0, items, visitor)
            }
            ReplyToken::Map(items) => visitor.visit_map(ReplyMap { reader: self.0, items, field: None }),
            error @ ReplyToken::Error(_) => Err(error.mismatch("a value")),
        }
    }

    numbers! {
        deserialize_i8 visit_i8 i8  deserialize_i16 visit_i16 i16  deserialize_i32 visit_i32 i32
        deserialize_i64 visit_i64 i64  deserialize_i128 visit_i128 i128
        deserialize_u8 visit_u8 u8  deserialize_u16 visit_u16 u16  deserialize_u32 visit_u32 u32
        deserialize_u64 visit_u64 u64  deserialize_u128 visit_u128 u128
        deserialize_f32 visit_f32 f32  deserialize_f64 visit_f64 f64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        match self.0.token()? {
            ReplyToken::Bool(value) => visitor.visit_bool(value),
            ReplyToken::Int(value @ (0 | 1)) => visitor.visit_bool(value == 1),
            ReplyToken::Bulk(text) => match &*text {
                b"0" | b"false" => visitor.visit_bool(false),
                b"1" | b"true" => visitor.visit_bool(true),
                _ => Err(mismatch("a boolean", "another string")),
            },
            other => Err(other.mismatch("a boolean")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        if self.0.at_null() {
            self.0.skip()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        visitor.visit_bytes(&text(self.0, "a string")?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        match self.0.token()? {
            // RESP2 has no maps: keys and values alternate.
            ReplyToken::Map(items) | ReplyToken::Array(items) => {
                visitor.visit_map(ReplyMap { reader: self.0, items, field: None })
            }
            other => Err(other.mismatch("a map")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReplyError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReplyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReplyError> {
        let name = String::from_reply(self.0)?;
        let variant: StrDeserializer<'_, ReplyError> = name.as_str().into_deserializer();
        visitor.visit_enum(variant)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        self.0.skip()?;
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        char str string unit unit_struct seq tuple tuple_struct identifier
    }
}

fn visit_text<'de, V: Visitor<'de>>(text: &[u8], visitor: V) -> Result<V::Value, ReplyError> {
    match std::str::from_utf8(text) {
        Ok(text) => visitor.visit_str(text),
        Err(_) => visitor.visit_bytes(text),
    }
}

fn visit_list<'de, V: Visitor<'de>>(
    reader: &mut ReplyReader<'_>,
    items: RemainingItems,
    visitor: V,
) -> Result<V::Value, ReplyError> {
    let mut list = ReplySeq { reader, items, index: 0 };
    let value = visitor.visit_seq(&mut list)?;
    if list.items.next(list.reader) {
        return Err(mismatch("a shorter array", "further items"));
    }
    Ok(value)
}

struct ReplySeq<'r, 'a> {
    reader: &'r mut ReplyReader<'a>,
    items: RemainingItems,
    index: usize,
}

impl<'de> de::SeqAccess<'de> for &mut ReplySeq<'_, '_> {
    type Error = ReplyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReplyError> {
        if !self.items.next(self.reader) {
            return Ok(None);
        }
        self.index += 1;
        seed.deserialize(ReplyDeserializer(self.reader)).map(Some).map_err(|error| error.at(self.index - 1))
    }

    fn size_hint(&self) -> Option<usize> {
        self.items.announced()
    }
}

struct ReplyMap<'r, 'a> {
    reader: &'r mut ReplyReader<'a>,
    items: RemainingItems,
    /// Key whose value comes next, for the error's path.
    field: Option<Box<str>>,
}

impl<'de> de::MapAccess<'de> for ReplyMap<'_, '_> {
    type Error = ReplyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReplyError> {
        if !self.items.next(self.reader) {
            return Ok(None);
        }
        let key = String::from_reply(self.reader)?;
        let value = seed.deserialize(MapKeyDeserializer(&key))?;
        self.field = Some(key.into());
        Ok(Some(value))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReplyError> {
        if !self.items.next(self.reader) {
            return Err(mismatch("a map", "an odd number of items"));
        }
        let field = self.field.take().unwrap_or_default();
        seed.deserialize(ReplyDeserializer(self.reader))
            .map_err(|error| error.at(crate::PathStep::Field(field)))
    }
}

/// Deserializes a map key: a string that may be requested as a number.
struct MapKeyDeserializer<'k>(&'k str);

macro_rules! key_numbers {
    ($($method:ident $visit:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
            visitor.$visit(parse(self.0.as_bytes()).ok_or_else(|| mismatch("a number as key", "another string"))?)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for MapKeyDeserializer<'_> {
    type Error = ReplyError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        visitor.visit_str(self.0)
    }

    key_numbers! {
        deserialize_i8 visit_i8 deserialize_i16 visit_i16 deserialize_i32 visit_i32 deserialize_i64 visit_i64
        deserialize_u8 visit_u8 deserialize_u16 visit_u16 deserialize_u32 visit_u32 deserialize_u64 visit_u64
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReplyError> {
        visitor.visit_f64(
            double(self.0.as_bytes()).ok_or_else(|| mismatch("a number as key", "another string"))?,
        )
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReplyError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReplyError> {
        let variant: StrDeserializer<'_, ReplyError> = self.0.into_deserializer();
        visitor.visit_enum(variant)
    }

    serde::forward_to_deserialize_any! {
        bool i128 u128 f32 char str string bytes byte_buf option unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}
