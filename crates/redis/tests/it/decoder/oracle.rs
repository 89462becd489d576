//! The redis-protocol crate as an oracle: its values for the same bytes, converted to
//! [`RespValue`].
//!
//! Its maps and sets are unordered, so both sides are compared in [`canonical`] form.

use bytes::Bytes;
use forebay_redis::{BigNumber, RespValue, VerbatimString, WithAttributes};
use redis_protocol::resp2::types::OwnedFrame as Frame2;
use redis_protocol::resp3::decode::{complete, streaming};
use redis_protocol::resp3::types::{DecodedFrame, OwnedFrame as Frame3, VerbatimStringFormat};

use super::error;

/// Decodes one whole RESP2 value, or returns `None` if it rejects the bytes.
pub(super) fn resp2(bytes: &[u8]) -> Option<RespValue> {
    let (frame, used) = redis_protocol::resp2::decode::decode(bytes).ok()??;
    (used == bytes.len()).then(|| canonical(from_resp2(frame)))
}

/// Decodes one whole RESP3 value, or returns `None` if it rejects the bytes. Parts of a streamed
/// value are joined.
pub(super) fn resp3(bytes: &[u8]) -> Option<RespValue> {
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

fn from_resp2(frame: Frame2) -> RespValue {
    match frame {
        Frame2::SimpleString(text) => RespValue::Simple(text.into()),
        Frame2::Error(text) => error(&text),
        Frame2::Integer(number) => RespValue::Int(number),
        Frame2::BulkString(bytes) => RespValue::Bulk(bytes.into()),
        Frame2::Array(items) => RespValue::Array(items.into_iter().map(from_resp2).collect()),
        Frame2::Null => RespValue::Null,
    }
}

fn from_resp3(frame: Frame3) -> RespValue {
    let list = |items: Vec<Frame3>| items.into_iter().map(from_resp3).collect();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (value, attributes) = match frame {
        Frame3::BlobString { data, attributes } => (RespValue::Bulk(data.into()), attributes),
        Frame3::BlobError { data, attributes } => (error(&text(data)), attributes),
        Frame3::SimpleString { data, attributes } => (RespValue::Simple(data.into()), attributes),
        Frame3::SimpleError { data, attributes } => (error(&data), attributes),
        Frame3::Boolean { data, attributes } => (RespValue::Bool(data), attributes),
        Frame3::Null => (RespValue::Null, None),
        Frame3::Number { data, attributes } => (RespValue::Int(data), attributes),
        Frame3::Double { data, attributes } => (RespValue::Double(data), attributes),
        Frame3::BigNumber { data, attributes } => (RespValue::BigNumber(BigNumber(text(data))), attributes),
        Frame3::VerbatimString { data, format, attributes } => {
            let format = match format {
                VerbatimStringFormat::Text => "txt".to_owned(),
                VerbatimStringFormat::Markdown => "mkd".to_owned(),
            };
            (RespValue::Verbatim(VerbatimString { format, text: text(data) }), attributes)
        }
        Frame3::Array { data, attributes } => (RespValue::Array(list(data)), attributes),
        Frame3::Map { data, attributes } => (RespValue::Map(pairs(data)), attributes),
        Frame3::Set { data, attributes } => (RespValue::Set(list(data.into_iter().collect())), attributes),
        Frame3::Push { data, attributes } => (RespValue::Push(list(data)), attributes),
        Frame3::ChunkedString(part) => (RespValue::Bulk(Bytes::from(part)), None),
        Frame3::Hello { .. } => panic!("HELLO is no reply"),
    };
    match attributes {
        Some(attributes) => {
            RespValue::Attributed(Box::new(WithAttributes { attributes: pairs(attributes), value }))
        }
        None => value,
    }
}

fn pairs(map: impl IntoIterator<Item = (Frame3, Frame3)>) -> Vec<(RespValue, RespValue)> {
    map.into_iter().map(|(key, value)| (from_resp3(key), from_resp3(value))).collect()
}

/// Returns the same value with maps, sets and attributes in a fixed order.
pub(super) fn canonical(value: RespValue) -> RespValue {
    let list = |items: Vec<RespValue>| items.into_iter().map(canonical).collect::<Vec<_>>();
    let sorted = |pairs: Vec<(RespValue, RespValue)>| {
        let mut pairs: Vec<_> =
            pairs.into_iter().map(|(key, value)| (canonical(key), canonical(value))).collect();
        pairs.sort_by_cached_key(|pair| format!("{pair:?}"));
        pairs
    };
    match value {
        RespValue::Array(items) => RespValue::Array(list(items)),
        RespValue::Push(items) => RespValue::Push(list(items)),
        RespValue::Set(items) => {
            let mut items = list(items);
            items.sort_by_cached_key(|item| format!("{item:?}"));
            RespValue::Set(items)
        }
        RespValue::Map(pairs) => RespValue::Map(sorted(pairs)),
        RespValue::Attributed(inner) => RespValue::Attributed(Box::new(WithAttributes {
            attributes: sorted(inner.attributes),
            value: canonical(inner.value),
        })),
        scalar => scalar,
    }
}
