//! What the redis-protocol crate makes of the same bytes, as our values.
//!
//! Its maps and sets have no order; ours is compared only after [`canonical`], too.

use bytes::Bytes;
use forebay_redis::{Attributed, BigNumber, Value, Verbatim};
use redis_protocol::resp2::types::OwnedFrame as Frame2;
use redis_protocol::resp3::decode::{complete, streaming};
use redis_protocol::resp3::types::{DecodedFrame, OwnedFrame as Frame3, VerbatimStringFormat};

use super::error;

/// One whole RESP2 value, if it takes it for one.
pub(super) fn resp2(bytes: &[u8]) -> Option<Value> {
    let (frame, used) = redis_protocol::resp2::decode::decode(bytes).ok()??;
    (used == bytes.len()).then(|| canonical(from_resp2(frame)))
}

/// One whole RESP3 value, if it takes it for one; one that is streamed is put together of its parts.
pub(super) fn resp3(bytes: &[u8]) -> Option<Value> {
    let (first, mut used) = streaming::decode(bytes).ok()??;
    let frame = match first {
        DecodedFrame::Complete(frame) => frame,
        DecodedFrame::Streaming(mut stream) => {
            while !stream.is_finished() {
                let (part, more) = complete::decode(&bytes[used..]).ok()??;
                stream.add_frame(part);
                used += more;
            }
            stream.take().ok()?
        }
    };
    (used == bytes.len()).then(|| canonical(from_resp3(frame)))
}

fn from_resp2(frame: Frame2) -> Value {
    match frame {
        Frame2::SimpleString(text) => Value::Simple(text.into()),
        Frame2::Error(text) => error(&text),
        Frame2::Integer(number) => Value::Int(number),
        Frame2::BulkString(bytes) => Value::Bulk(bytes.into()),
        Frame2::Array(items) => Value::Array(items.into_iter().map(from_resp2).collect()),
        Frame2::Null => Value::Null,
    }
}

fn from_resp3(frame: Frame3) -> Value {
    let list = |items: Vec<Frame3>| items.into_iter().map(from_resp3).collect();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (value, attributes) = match frame {
        Frame3::BlobString { data, attributes } => (Value::Bulk(data.into()), attributes),
        Frame3::BlobError { data, attributes } => (error(&text(data)), attributes),
        Frame3::SimpleString { data, attributes } => (Value::Simple(data.into()), attributes),
        Frame3::SimpleError { data, attributes } => (error(&data), attributes),
        Frame3::Boolean { data, attributes } => (Value::Bool(data), attributes),
        Frame3::Null => (Value::Null, None),
        Frame3::Number { data, attributes } => (Value::Int(data), attributes),
        Frame3::Double { data, attributes } => (Value::Double(data), attributes),
        Frame3::BigNumber { data, attributes } => (Value::BigNumber(BigNumber(text(data))), attributes),
        Frame3::VerbatimString { data, format, attributes } => {
            let format = match format {
                VerbatimStringFormat::Text => "txt".to_owned(),
                VerbatimStringFormat::Markdown => "mkd".to_owned(),
            };
            (Value::Verbatim(Verbatim { format, text: text(data) }), attributes)
        }
        Frame3::Array { data, attributes } => (Value::Array(list(data)), attributes),
        Frame3::Map { data, attributes } => (Value::Map(pairs(data)), attributes),
        Frame3::Set { data, attributes } => (Value::Set(list(data.into_iter().collect())), attributes),
        Frame3::Push { data, attributes } => (Value::Push(list(data)), attributes),
        Frame3::ChunkedString(part) => (Value::Bulk(Bytes::from(part)), None),
        Frame3::Hello { .. } => panic!("HELLO is no reply"),
    };
    match attributes {
        Some(attributes) => Value::Attributed(Box::new(Attributed { attributes: pairs(attributes), value })),
        None => value,
    }
}

fn pairs(map: impl IntoIterator<Item = (Frame3, Frame3)>) -> Vec<(Value, Value)> {
    map.into_iter().map(|(key, value)| (from_resp3(key), from_resp3(value))).collect()
}

/// The same value with maps, sets and attributes in a fixed order.
pub(super) fn canonical(value: Value) -> Value {
    let list = |items: Vec<Value>| items.into_iter().map(canonical).collect::<Vec<_>>();
    let sorted = |pairs: Vec<(Value, Value)>| {
        let mut pairs: Vec<_> =
            pairs.into_iter().map(|(key, value)| (canonical(key), canonical(value))).collect();
        pairs.sort_by_cached_key(|pair| format!("{pair:?}"));
        pairs
    };
    match value {
        Value::Array(items) => Value::Array(list(items)),
        Value::Push(items) => Value::Push(list(items)),
        Value::Set(items) => {
            let mut items = list(items);
            items.sort_by_cached_key(|item| format!("{item:?}"));
            Value::Set(items)
        }
        Value::Map(pairs) => Value::Map(sorted(pairs)),
        Value::Attributed(inner) => Value::Attributed(Box::new(Attributed {
            attributes: sorted(inner.attributes),
            value: canonical(inner.value),
        })),
        scalar => scalar,
    }
}
