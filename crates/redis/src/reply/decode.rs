//! Decoding of replies into standard types.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

use bytes::Bytes;

use super::reader::{RemainingItems, ReplyReader, ReplyToken, double, parse};
use crate::error::{PathStep, RedisServerError, ReplyError};

/// A type that a reply can be decoded into.
///
/// Implement it for your own types on top of the existing implementations:
///
/// ```
/// use forebay_redis::{FromReply, ReplyReader, ReplyError};
///
/// struct Position { longitude: f64, latitude: f64 }
///
/// impl FromReply for Position {
///     fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
///         let (longitude, latitude) = FromReply::from_reply(reader)?;
///         Ok(Position { longitude, latitude })
///     }
/// }
/// ```
pub trait FromReply: Sized {
    /// Reads one element with everything nested in it.
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError>;

    /// Reads a list of values of this type. `u8` overrides it to read a string, and pairs
    /// override it to read a map or a flat array.
    #[doc(hidden)]
    fn list_from_reply(reader: &mut ReplyReader<'_>) -> Result<Vec<Self>, ReplyError> {
        let mut items = list_header(reader, "an array")?;
        let mut list = Vec::with_capacity(items.announced().unwrap_or(0));
        while items.next(reader) {
            list.push(Self::from_reply(reader).map_err(|error| error.at(list.len()))?);
        }
        Ok(list)
    }
}

/// Reads the header of an array, a set or a push message.
fn list_header(reader: &mut ReplyReader<'_>, expected: &'static str) -> Result<RemainingItems, ReplyError> {
    match reader.token()? {
        ReplyToken::Array(items) | ReplyToken::Set(items) | ReplyToken::Push(items) => Ok(items),
        other => Err(other.mismatch(expected)),
    }
}

/// Accepts any reply except an error.
impl FromReply for () {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            error @ ReplyToken::Error(_) => Err(error.mismatch("any value")),
            ReplyToken::Array(mut items)
            | ReplyToken::Set(mut items)
            | ReplyToken::Push(mut items)
            | ReplyToken::Map(mut items) => {
                while items.next(reader) {
                    reader.skip()?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl<T: FromReply> FromReply for Option<T> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        if reader.at_null() {
            reader.skip()?;
            return Ok(None);
        }
        T::from_reply(reader).map(Some)
    }
}

/// Decodes an error inside a reply, such as in the results of EXEC, as `Err`.
impl<T: FromReply> FromReply for Result<T, RedisServerError> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        if !reader.at_error() {
            return T::from_reply(reader).map(Ok);
        }
        match reader.token()? {
            ReplyToken::Error(text) => Ok(Err(RedisServerError::new(text))),
            other => Err(other.mismatch("an error")),
        }
    }
}

impl<T: FromReply> FromReply for Box<T> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        T::from_reply(reader).map(Box::new)
    }
}

/// Reads the text of a string-like element.
pub(super) fn text<'a>(
    reader: &mut ReplyReader<'a>,
    expected: &'static str,
) -> Result<Cow<'a, [u8]>, ReplyError> {
    match reader.token()? {
        ReplyToken::Bulk(text) => Ok(text),
        ReplyToken::Simple(text) | ReplyToken::Verbatim(_, text) | ReplyToken::BigNumber(text) => {
            Ok(Cow::Borrowed(text))
        }
        other => Err(other.mismatch(expected)),
    }
}

impl FromReply for String {
    #[inline]
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let text = match reader.token()? {
            ReplyToken::Bulk(text) => text,
            ReplyToken::Simple(text) | ReplyToken::Verbatim(_, text) | ReplyToken::BigNumber(text) => {
                Cow::Borrowed(text)
            }
            ReplyToken::Int(number) => return Ok(number.to_string()),
            ReplyToken::Double(number) => return Ok(number.to_string()),
            other => return Err(other.mismatch("a string")),
        };
        match std::str::from_utf8(&text) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(mismatch("a UTF-8 string", "a string of other bytes")),
        }
    }
}

impl FromReply for Bytes {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        match text(reader, "a string")? {
            Cow::Borrowed(text) => Ok(reader.to_bytes(text)),
            Cow::Owned(text) => Ok(text.into()),
        }
    }
}

impl FromReply for bool {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        match reader.token()? {
            ReplyToken::Bool(value) => Ok(value),
            ReplyToken::Int(0) => Ok(false),
            ReplyToken::Int(1) => Ok(true),
            ReplyToken::Bulk(text) if *text == *b"0" => Ok(false),
            ReplyToken::Bulk(text) if *text == *b"1" => Ok(true),
            other => Err(other.mismatch("a boolean, 0 or 1")),
        }
    }
}

impl FromReply for u8 {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        integer(reader, "an integer that fits u8")
    }

    fn list_from_reply(reader: &mut ReplyReader<'_>) -> Result<Vec<Self>, ReplyError> {
        text(reader, "a string").map(Cow::into_owned)
    }
}

fn integer<T>(reader: &mut ReplyReader<'_>, expected: &'static str) -> Result<T, ReplyError>
where
    T: TryFrom<i64> + std::str::FromStr,
{
    let token = reader.token()?;
    let value = match &token {
        ReplyToken::Int(value) => T::try_from(*value).ok(),
        ReplyToken::Bulk(text) => parse(text),
        ReplyToken::BigNumber(text) | ReplyToken::Simple(text) => parse(text),
        _ => None,
    };
    value.ok_or_else(|| match token {
        ReplyToken::Int(_) => mismatch(expected, "an integer out of its range"),
        ReplyToken::Bulk(_) | ReplyToken::BigNumber(_) | ReplyToken::Simple(_) => {
            mismatch(expected, "another string")
        }
        other => other.mismatch(expected),
    })
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl FromReply for $type {
            #[inline]
            fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
                integer(reader, concat!("an integer that fits ", stringify!($type)))
            }
        }
    )*};
}
integers!(i8 i16 u16 i32 u32 i64 u64 i128 u128 isize usize);

impl FromReply for f64 {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        const EXPECTED: &str = "a number";
        match reader.token()? {
            ReplyToken::Double(value) => Ok(value),
            ReplyToken::Int(value) => Ok(value as f64),
            ReplyToken::Bulk(text) => double(&text).ok_or_else(|| mismatch(EXPECTED, "another string")),
            ReplyToken::Simple(text) | ReplyToken::BigNumber(text) => {
                double(text).ok_or_else(|| mismatch(EXPECTED, "another string"))
            }
            other => Err(other.mismatch(EXPECTED)),
        }
    }
}

impl FromReply for f32 {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        f64::from_reply(reader).map(|value| value as f32)
    }
}

impl<T: FromReply> FromReply for Vec<T> {
    #[inline]
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        T::list_from_reply(reader)
    }
}

impl<T: FromReply + Eq + Hash, H: BuildHasher + Default> FromReply for HashSet<T, H> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let mut items = list_header(reader, "a set")?;
        let mut set = HashSet::with_capacity_and_hasher(items.announced().unwrap_or(0), H::default());
        let mut index = 0;
        while items.next(reader) {
            set.insert(T::from_reply(reader).map_err(|error| error.at(index))?);
            index += 1;
        }
        Ok(set)
    }
}

impl<T: FromReply + Ord> FromReply for BTreeSet<T> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let mut items = list_header(reader, "a set")?;
        let mut set = BTreeSet::new();
        let mut index = 0;
        while items.next(reader) {
            set.insert(T::from_reply(reader).map_err(|error| error.at(index))?);
            index += 1;
        }
        Ok(set)
    }
}

impl<K: FromReply + Eq + Hash, V: FromReply, H: BuildHasher + Default> FromReply for HashMap<K, V, H> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let mut map = HashMap::default();
        read_pairs(reader, "a map", |key, value| {
            map.insert(key, value);
        })?;
        Ok(map)
    }
}

impl<K: FromReply + Ord, V: FromReply> FromReply for BTreeMap<K, V> {
    fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
        let mut map = BTreeMap::new();
        read_pairs(reader, "a map", |key, value| {
            map.insert(key, value);
        })?;
        Ok(map)
    }
}

/// Reads pairs from a map, from an array of two-element arrays, or from alternating keys and values
/// (RESP2).
fn read_pairs<K: FromReply, V: FromReply>(
    reader: &mut ReplyReader<'_>,
    expected: &'static str,
    mut each: impl FnMut(K, V),
) -> Result<(), ReplyError> {
    let (mut items, nested) = match reader.token()? {
        ReplyToken::Map(items) => (items, false),
        ReplyToken::Array(items) | ReplyToken::Set(items) => (items, reader.at_array()),
        other => return Err(other.mismatch(expected)),
    };
    let mut index = 0;
    while items.next(reader) {
        if nested {
            let (key, value) = <(K, V)>::from_reply(reader).map_err(|error| error.at(index))?;
            each(key, value);
        } else {
            let key = K::from_reply(reader).map_err(|error| error.at(PathStep::Key(index)))?;
            if !items.next(reader) {
                return Err(mismatch(expected, "an odd number of items"));
            }
            each(key, V::from_reply(reader).map_err(|error| error.at(PathStep::Value(index)))?);
        }
        index += 1;
    }
    Ok(())
}

macro_rules! tuples {
    ($count:literal: $($name:ident)+; $($overrides:tt)*) => {
        impl<$($name: FromReply),+> FromReply for ($($name,)+) {
            fn from_reply(reader: &mut ReplyReader<'_>) -> Result<Self, ReplyError> {
                const EXPECTED: &str = concat!("an array of ", $count, " items");
                let mut items = list_header(reader, EXPECTED)?;
                let mut index = 0;
                let tuple = ($({
                    if !items.next(reader) {
                        return Err(mismatch(EXPECTED, "a shorter array"));
                    }
                    index += 1;
                    $name::from_reply(reader).map_err(|error| error.at(index - 1))?
                },)+);
                if items.next(reader) {
                    return Err(mismatch(EXPECTED, "a longer array"));
                }
                Ok(tuple)
            }

            $($overrides)*
        }
    };
}
tuples!(1: A;);
tuples!(2: A B;
    fn list_from_reply(reader: &mut ReplyReader<'_>) -> Result<Vec<Self>, ReplyError> {
        let mut list = Vec::new();
        read_pairs(reader, "a list of pairs", |a, b| list.push((a, b)))?;
        Ok(list)
    }
);
tuples!(3: A B C;);
tuples!(4: A B C D;);
tuples!(5: A B C D E;);
tuples!(6: A B C D E F;);
tuples!(7: A B C D E F G;);
tuples!(8: A B C D E F G H;);
tuples!(9: A B C D E F G H I;);
tuples!(10: A B C D E F G H I J;);
tuples!(11: A B C D E F G H I J K;);
tuples!(12: A B C D E F G H I J K L;);

pub(super) fn mismatch(expected: &'static str, found: &'static str) -> ReplyError {
    Box::new(crate::TypeMismatch { expected, found: found.into(), path: Vec::new() }).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: FromReply>(reply: &'static [u8]) -> Result<T, ReplyError> {
        T::from_reply(&mut ReplyReader::new(&Bytes::from_static(reply), 0))
    }

    #[test]
    fn attributes_before_any_element_are_skipped() {
        assert_eq!(read::<Option<i64>>(b"|1\r\n+a\r\n:1\r\n_\r\n"), Ok(None));
        assert_eq!(read::<Option<i64>>(b"|1\r\n+a\r\n:1\r\n|0\r\n:2\r\n"), Ok(Some(2)));
        let error = RedisServerError::new(b"ERR no");
        assert_eq!(
            read::<Result<i64, RedisServerError>>(b"|?\r\n+a\r\n:1\r\n.\r\n-ERR no\r\n"),
            Ok(Err(error.clone()))
        );
        assert_eq!(read::<crate::RespValue>(b"|1\r\n+a\r\n:1\r\n-ERR no\r\n"), Err(error.into()));
        let pairs = b"*1\r\n|1\r\n+a\r\n:1\r\n*2\r\n:1\r\n:2\r\n";
        assert_eq!(read::<Vec<(i64, i64)>>(pairs), Ok(vec![(1, 2)]));
        assert_eq!(read::<Vec<i64>>(b"|1\r\n+a\r\n:1\r\n*1\r\n|1\r\n+a\r\n:1\r\n:7\r\n"), Ok(vec![7]));
    }

    #[test]
    fn streamed_replies_decode_to_the_same_types() {
        assert_eq!(read::<String>(b"$?\r\n;2\r\nab\r\n;1\r\nc\r\n;0\r\n").as_deref(), Ok("abc"));
        assert_eq!(read::<(i64, Vec<i64>)>(b"*?\r\n:1\r\n~?\r\n:2\r\n.\r\n.\r\n"), Ok((1, vec![2])));
        assert_eq!(read::<BTreeMap<i64, i64>>(b"%?\r\n:1\r\n:2\r\n.\r\n"), Ok(BTreeMap::from([(1, 2)])));
        assert_eq!(read::<Vec<(i64, i64)>>(b"*?\r\n*2\r\n:1\r\n:2\r\n.\r\n"), Ok(vec![(1, 2)]));
    }
}
