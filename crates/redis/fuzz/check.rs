//! What holds for any bytes from a server.
//!
//! Invariant: how a stream is cut into reads changes neither its values nor its end, and every value can be written again
//! and read back. The fuzz target checks it on whatever it invents, the ordinary tests on the corpus.

use forebay_redis::{Decoder, Limits, ProtocolError, ReplyError, Value};

/// Checks one input. Its first byte's low three bits say how many sizes follow; the low four bits of each say how long the
/// next read is, in turn. The rest is the stream. ASCII digits will do: `213*0\r\n` is `*0\r\n` in reads of 1, 3, 1, … bytes.
pub(crate) fn check(input: &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return };
    let (sizes, stream) = rest.split_at(rest.len().min(usize::from(count & 7)));
    let sizes: Vec<usize> = sizes.iter().map(|size| usize::from(size & 15)).collect();

    let limits = Limits::default();
    let whole = decode(limits, [stream]);
    assert_same(&whole, &decode(limits, stream.chunks(1)));
    assert_same(&whole, &decode(limits, pieces(stream, &sizes)));
    whole.values.iter().flatten().for_each(assert_round_trip);

    // Where a reply is too long, that and another fault of it are found in the order in which reads bring them.
    let limits = Limits { max_reply_bytes: 64, max_elements: 16, max_depth: 4 };
    let whole = decode(limits, [stream]);
    for cut in [decode(limits, stream.chunks(1)), decode(limits, pieces(stream, &sizes))] {
        assert_same(&whole.values, &cut.values);
        assert_eq!(whole.end.is_some(), cut.end.is_some(), "{whole:?} but in pieces {cut:?}");
    }
}

/// All that a stream held.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The values, one by one.
    pub(crate) values: Vec<Result<Value, ReplyError>>,
    /// What ended the stream before its bytes did.
    pub(crate) end: Option<ProtocolError>,
}

/// Decodes a stream that comes in these pieces.
pub(crate) fn decode<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let mut values = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(error) => return Outcome { values, end: Some(error) },
            }
        }
    }
    Outcome { values, end: None }
}

/// Cuts a stream into pieces of these sizes in turn; single bytes if there is none.
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

/// Equal, where a NaN equals a NaN.
#[track_caller]
pub(crate) fn assert_same<T: PartialEq + std::fmt::Debug>(left: &T, right: &T) {
    if left != right {
        assert_eq!(format!("{left:?}"), format!("{right:?}"));
    }
}

fn assert_round_trip(value: &Value) {
    // A streamed string is a level more than a plain one.
    let limits = Limits { max_depth: 2 * Limits::default().max_depth, ..Limits::default() };
    for streamed in [false, true] {
        let mut bytes = Vec::new();
        encode(value, streamed, &mut bytes);
        assert_same(&decode(limits, [&*bytes]), &Outcome { values: vec![Ok(value.clone())], end: None });
    }
}

/// Writes a value as a server would; `streamed` without announcing any length that needn't be.
pub(crate) fn encode(value: &Value, streamed: bool, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend(b"_\r\n"),
        Value::Simple(text) => line(b'+', text, out),
        Value::Error(error) => string(b'!', error.text().as_bytes(), out),
        Value::Int(number) => line(b':', number.to_string().as_bytes(), out),
        Value::Double(number) => line(b',', number.to_string().to_ascii_lowercase().as_bytes(), out),
        Value::Bool(value) => line(b'#', if *value { b"t" } else { b"f" }, out),
        Value::BigNumber(number) => line(b'(', number.0.as_bytes(), out),
        Value::Bulk(bytes) if streamed => {
            out.extend(b"$?\r\n");
            bytes.chunks(5).for_each(|chunk| string(b';', chunk, out));
            out.extend(b";0\r\n");
        }
        Value::Bulk(bytes) => string(b'$', bytes, out),
        Value::Verbatim(verbatim) => {
            string(b'=', format!("{}:{}", verbatim.format, verbatim.text).as_bytes(), out)
        }
        Value::Array(items) => aggregate(b'*', items.len(), items, streamed, out),
        Value::Set(items) => aggregate(b'~', items.len(), items, streamed, out),
        Value::Push(items) => aggregate(b'>', items.len(), items, streamed, out),
        Value::Map(pairs) => {
            aggregate(b'%', pairs.len(), pairs.iter().flat_map(|(k, v)| [k, v]), streamed, out)
        }
        Value::Attributed(inner) => {
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
    items: impl IntoIterator<Item = &'a Value>,
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
