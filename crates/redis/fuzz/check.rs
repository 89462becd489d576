//! Properties that hold for any bytes from a server.
//!
//! Invariant: how a stream is split into reads changes neither its values nor its end. Every value
//! can be encoded and decoded again. The fuzz target checks random inputs, the ordinary tests check
//! the corpus.

use forebay_redis::{ProtocolError, ReplyError, ReplyLimits, RespDecoder, RespValue};

/// Checks one input.
///
/// The low three bits of the first byte are the number of sizes that follow. The low four bits of
/// each size are the length of a read, in turn. The rest is the stream. ASCII digits are valid:
/// `213*0\r\n` is `*0\r\n` in reads of 1, 3, 1, … bytes.
pub(crate) fn check(input: &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return };
    let (sizes, stream) = rest.split_at(rest.len().min(usize::from(count & 7)));
    let sizes: Vec<usize> = sizes.iter().map(|size| usize::from(size & 15)).collect();

    let limits = ReplyLimits::default();
    let whole = decode(limits, [stream]);
    assert_same(&whole, &decode(limits, stream.chunks(1)));
    assert_same(&whole, &decode(limits, pieces(stream, &sizes)));
    whole.values.iter().flatten().for_each(assert_round_trip);

    // A reply with two faults fails with the one that arrives first, so the errors may differ.
    let limits = ReplyLimits { max_reply_bytes: 64, max_elements: 16, max_depth: 4 };
    let whole = decode(limits, [stream]);
    for cut in [decode(limits, stream.chunks(1)), decode(limits, pieces(stream, &sizes))] {
        assert_same(&whole.values, &cut.values);
        assert_eq!(whole.end.is_some(), cut.end.is_some(), "{whole:?} but in pieces {cut:?}");
    }
}

/// Everything that was decoded from a stream.
#[derive(Debug, PartialEq)]
pub(crate) struct DecodeOutcome {
    /// The values, in order.
    pub(crate) values: Vec<Result<RespValue, ReplyError>>,
    /// The error that ended the stream early.
    pub(crate) end: Option<ProtocolError>,
}

/// Decodes a stream that arrives in these pieces.
pub(crate) fn decode<'a>(limits: ReplyLimits, pieces: impl IntoIterator<Item = &'a [u8]>) -> DecodeOutcome {
    let mut decoder = RespDecoder::new(limits);
    let mut values = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(error) => return DecodeOutcome { values, end: Some(error) },
            }
        }
    }
    DecodeOutcome { values, end: None }
}

/// Splits a stream into pieces of these sizes in turn, or into single bytes if there are no sizes.
pub(crate) fn pieces<'a>(mut stream: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut sizes = sizes.iter().copied().chain([1].into_iter().take(usize::from(sizes.is_empty()))).cycle();
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        let size = sizes.next().unwrap_or(1).clamp(1, stream.len());
        let (piece, rest) = stream.split_at(size);
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

/// Asserts equality; NaN equals NaN.
#[track_caller]
pub(crate) fn assert_same<T: PartialEq + std::fmt::Debug>(left: &T, right: &T) {
    if left != right {
        assert_eq!(format!("{left:?}"), format!("{right:?}"));
    }
}

fn assert_round_trip(value: &RespValue) {
    // A streamed string nests one level deeper than a plain one.
    let limits = ReplyLimits { max_depth: 2 * ReplyLimits::default().max_depth, ..ReplyLimits::default() };
    for streamed in [false, true] {
        let mut bytes = Vec::new();
        encode(value, streamed, &mut bytes);
        assert_same(
            &decode(limits, [&*bytes]),
            &DecodeOutcome { values: vec![Ok(value.clone())], end: None },
        );
    }
}

/// Encodes a value as a server would. `streamed` omits every length that is optional.
pub(crate) fn encode(value: &RespValue, streamed: bool, out: &mut Vec<u8>) {
    match value {
        RespValue::Null => out.extend(b"_\r\n"),
        RespValue::Simple(text) => line(b'+', text, out),
        RespValue::Error(error) => string(b'!', error.text().as_bytes(), out),
        RespValue::Int(number) => line(b':', number.to_string().as_bytes(), out),
        RespValue::Double(number) => line(b',', number.to_string().to_ascii_lowercase().as_bytes(), out),
        RespValue::Bool(value) => line(b'#', if *value { b"t" } else { b"f" }, out),
        RespValue::BigNumber(number) => line(b'(', number.0.as_bytes(), out),
        RespValue::Bulk(bytes) if streamed => {
            out.extend(b"$?\r\n");
            bytes.chunks(5).for_each(|chunk| string(b';', chunk, out));
            out.extend(b";0\r\n");
        }
        RespValue::Bulk(bytes) => string(b'$', bytes, out),
        RespValue::Verbatim(verbatim) => {
            string(b'=', format!("{}:{}", verbatim.format, verbatim.text).as_bytes(), out)
        }
        RespValue::Array(items) => aggregate(b'*', items.len(), items, streamed, out),
        RespValue::Set(items) => aggregate(b'~', items.len(), items, streamed, out),
        RespValue::Push(items) => aggregate(b'>', items.len(), items, streamed, out),
        RespValue::Map(pairs) => {
            aggregate(b'%', pairs.len(), pairs.iter().flat_map(|(k, v)| [k, v]), streamed, out)
        }
        RespValue::Attributed(inner) => {
            let pairs = &inner.attributes;
            aggregate(b'|', pairs.len(), pairs.iter().flat_map(|(k, v)| [k, v]), streamed, out);
            encode(&inner.value, streamed, out);
        }
        other => panic!("no encoding for {other:?}"),
    }
}

fn line(tag: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend(text);
    out.extend(b"\r\n");
}

fn string(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    line(tag, bytes.len().to_string().as_bytes(), out);
    out.extend(bytes);
    out.extend(b"\r\n");
}

fn aggregate<'a>(
    tag: u8,
    announced: usize,
    items: impl IntoIterator<Item = &'a RespValue>,
    streamed: bool,
    out: &mut Vec<u8>,
) {
    let length = if streamed { "?".to_owned() } else { announced.to_string() };
    line(tag, length.as_bytes(), out);
    items.into_iter().for_each(|item| encode(item, streamed, out));
    if streamed {
        out.extend(b".\r\n");
    }
}
