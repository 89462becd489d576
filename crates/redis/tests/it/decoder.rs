//! The decoder agrees with another decoder, with the specification and with a real server, for any
//! split into reads.

#[path = "../../fuzz/check.rs"]
mod check;
mod oracle;
mod vectors;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::Duration;

use forebay_redis::{
    BigNumber, ConnectionLoss, IntoConfig, ProtocolError, RedisClient, ReplyError, ReplyLimits, RequestError,
    RespValue, VerbatimString, WithAttributes,
};
use forebay_sandbox::Redis;
use proptest::prelude::*;

use check::{DecodeOutcome, assert_same, check, decode, encode, pieces};
use vectors::{DecoderOracle, MALFORMED, UNREADABLE, WELL_FORMED, by_hand};

/// Returns an error value; only a decoder can create one.
fn error(text: &str) -> RespValue {
    one(format!("!{}\r\n{text}\r\n", text.len()).as_bytes())
}

/// Decodes a stream of exactly one value.
#[track_caller]
fn one(stream: &[u8]) -> RespValue {
    let outcome = decode(ReplyLimits::default(), [stream]);
    match <[_; 1]>::try_from(outcome.values) {
        Ok([Ok(value)]) => value,
        other => panic!("expected one value, found {other:?}, {:?}", outcome.end),
    }
}

/// Decodes a stream at once, byte by byte, and split in two at every position. All results must be
/// equal.
#[track_caller]
fn decode_every_way(stream: &[u8]) -> DecodeOutcome {
    let whole = decode(ReplyLimits::default(), [stream]);
    assert_same(&whole, &decode(ReplyLimits::default(), stream.chunks(1)));
    for cut in 1..stream.len() {
        let (left, right) = stream.split_at(cut);
        assert_same(&whole, &decode(ReplyLimits::default(), [left, right]));
    }
    whole
}

#[test]
fn every_type_is_decoded_as_the_oracle_does_however_it_is_cut() {
    for (name, bytes, oracle) in WELL_FORMED {
        let outcome = decode_every_way(bytes);
        assert_eq!((outcome.values.len(), &outcome.end), (1, &None), "{name}");
        let Ok(value) = outcome.values.into_iter().next().expect("there is one") else {
            panic!("{name} is no value")
        };
        let value = Some(oracle::canonical(value));
        if matches!(oracle, DecoderOracle::Both | DecoderOracle::Resp2) {
            assert_same(&(name, &oracle::resp2(bytes)), &(name, &value));
        }
        if matches!(oracle, DecoderOracle::Both | DecoderOracle::Resp3) {
            assert_same(&(name, &oracle::resp3(bytes)), &(name, &value));
        }
        if *oracle == DecoderOracle::Deviates {
            assert_ne!(
                (name, oracle::resp3(bytes)),
                (name, value),
                "it agrees now: let it be the oracle here, too"
            );
        }
    }
}

#[test]
fn every_type_is_decoded_as_the_specification_says() {
    let expected = by_hand();
    for (name, expected) in &expected {
        let (_, bytes, _) = WELL_FORMED.iter().find(|vector| vector.0 == *name).expect("it has a vector");
        assert_same(&(name, &one(bytes)), &(name, expected));
    }
    for (name, _, oracle) in WELL_FORMED {
        let checked = *oracle != DecoderOracle::Deviates || expected.iter().any(|(named, _)| named == name);
        assert!(checked, "{name} has neither an oracle nor a value written by hand");
    }
}

#[test]
fn values_follow_each_other_in_one_stream() {
    let stream: Vec<u8> = WELL_FORMED.iter().flat_map(|(_, bytes, _)| bytes.iter().copied()).collect();
    let expected: Vec<_> = WELL_FORMED.iter().map(|(_, bytes, _)| Ok(one(bytes))).collect();
    let outcome = decode_every_way(&stream);
    assert_same(&outcome, &DecodeOutcome { values: expected, end: None });
}

#[test]
fn an_incomplete_value_is_not_returned() {
    for (name, bytes, _) in WELL_FORMED {
        for end in 0..bytes.len() {
            let outcome = decode(ReplyLimits::default(), [&bytes[..end]]);
            assert_eq!(outcome, DecodeOutcome { values: vec![], end: None }, "{name}, its first {end} bytes");
        }
    }
}

#[test]
fn malformed_bytes_end_the_stream_with_the_reason() {
    for (name, bytes, expected) in MALFORMED {
        let mut stream = b"+before\r\n".to_vec();
        stream.extend(*bytes);
        let DecodeOutcome { values, end } = decode_every_way(&stream);
        assert_eq!(values, [Ok(RespValue::Simple("before".into()))], "{name}");
        assert_eq!(end.as_ref(), Some(expected), "{name}");
    }
}

#[test]
fn an_invalid_value_affects_no_other() {
    for (name, bytes) in UNREADABLE {
        let stream = [b"+before\r\n", *bytes, b"+after\r\n"].concat();
        let DecodeOutcome { values, end } = decode_every_way(&stream);
        assert_eq!(end, None, "{name}");
        match &values[..] {
            [Ok(before), Err(ReplyError::Mismatch(_)), Ok(after)] => {
                assert_eq!(
                    (before, after),
                    (&RespValue::Simple("before".into()), &RespValue::Simple("after".into()))
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_long_string_is_whole_wherever_it_is_cut() {
    let text: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
    let stream = [b"*2\r\n$100000\r\n", &*text, b"\r\n:1\r\n"].concat();
    let expected = RespValue::Array(vec![RespValue::Bulk(text.into()), RespValue::Int(1)]);
    for size in [1000, 4096, 65_536] {
        let outcome = decode(ReplyLimits::default(), stream.chunks(size));
        assert_eq!(outcome, DecodeOutcome { values: vec![Ok(expected.clone())], end: None });
    }
}

#[test]
fn any_number_of_attributes_in_a_row_is_one() {
    let stream = [b"|1\r\n+a\r\n:1\r\n".repeat(100_000), b":2\r\n".to_vec()].concat();
    let RespValue::Attributed(inner) = one(&stream) else { panic!("the value has attributes") };
    assert_eq!((inner.attributes.len(), inner.value), (100_000, RespValue::Int(2)));
}

#[test]
fn every_file_of_the_fuzz_corpus_passes_and_every_vector_is_among_them() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/decoder");
    let mut replayed = 0;
    for file in std::fs::read_dir(&corpus).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(std::panic::catch_unwind(|| check(&bytes)).is_ok(), "{}", path.display());
        replayed += 1;
    }
    let well_formed = WELL_FORMED.iter().map(|(name, bytes, _)| (name, bytes));
    let malformed = MALFORMED.iter().map(|(name, bytes, _)| (name, bytes));
    let vectors: Vec<_> =
        well_formed.chain(malformed).chain(UNREADABLE.iter().map(|(name, bytes)| (name, bytes))).collect();
    for (name, bytes) in &vectors {
        let file = std::fs::read(corpus.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(file.ends_with(bytes), "the corpus has another {name} than the vectors");
    }
    assert!(replayed >= vectors.len(), "only {replayed} files");
}

/// Generates any value that a server could send, several levels deep.
fn any_value() -> impl Strategy<Value = RespValue> {
    let leaf = prop_oneof![
        Just(RespValue::Null),
        "[^\r\n]{0,20}".prop_map(|text| RespValue::Simple(text.into())),
        "[A-Z]{1,9}( [^\r\n]{0,20})?".prop_map(|text| error(&text)),
        any::<i64>().prop_map(RespValue::Int),
        any::<f64>().prop_map(RespValue::Double),
        any::<bool>().prop_map(RespValue::Bool),
        "-?[0-9]{1,60}".prop_map(|digits| RespValue::BigNumber(BigNumber(digits))),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| RespValue::Bulk(bytes.into())),
        (900..1200_usize).prop_map(|length| RespValue::Bulk(vec![b'\n'; length].into())),
        ("[a-z]{3}", ".{0,20}")
            .prop_map(|(format, text)| RespValue::Verbatim(VerbatimString { format, text })),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..6);
        let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..4);
        prop_oneof![
            list.clone().prop_map(RespValue::Array),
            list.clone().prop_map(RespValue::Set),
            list.prop_map(RespValue::Push),
            pairs.clone().prop_map(RespValue::Map),
            (pairs, inner).prop_map(|(mut attributes, value)| match value {
                // Consecutive attributes are decoded as one.
                RespValue::Attributed(inner) => {
                    attributes.extend(inner.attributes);
                    RespValue::Attributed(Box::new(WithAttributes { attributes, value: inner.value }))
                }
                value => RespValue::Attributed(Box::new(WithAttributes { attributes, value })),
            }),
        ]
    })
}

fn encode_all(values: &[(RespValue, bool)]) -> Vec<u8> {
    let mut stream = Vec::new();
    values.iter().for_each(|(value, streamed)| encode(value, *streamed, &mut stream));
    stream
}

/// Generates bytes that often look like the start of a RESP value.
fn almost_resp() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(b"+-:$*_#,(!=%~>|;.".as_slice()).prop_map(|tag| vec![tag]),
        8 => "[0-9]{1,2}|-1|\\?|t|f|inf|[0-9]{19}|txt:".prop_map(String::into_bytes),
        8 => Just(b"\r\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_values_come_out_as_they_went_in_wherever_they_are_cut(
        values in prop::collection::vec((any_value(), any::<bool>()), 1..5),
        sizes in prop::collection::vec(1..40_usize, 1..10),
    ) {
        let stream = encode_all(&values);
        let expected = DecodeOutcome { values: values.into_iter().map(|(value, _)| Ok(value)).collect(), end: None };
        assert_same(&expected, &decode(ReplyLimits::default(), pieces(&stream, &sizes)));
        assert_same(&expected, &decode(ReplyLimits::default(), [&*stream]));
    }

    #[test]
    fn changed_bytes_never_panic_and_end_the_same_wherever_they_are_cut(
        head in "[0-7]",
        values in prop::collection::vec((any_value(), any::<bool>()), 1..3),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4, any::<u8>()), 1..5),
    ) {
        let mut input = head.into_bytes();
        input.extend(encode_all(&values));
        for (index, change, byte) in changes {
            let index = index.index(input.len());
            match change {
                0 => input[index] = byte,
                1 => input.insert(index, byte),
                2 if input.len() > 1 => drop(input.remove(index)),
                _ => input.truncate(index + 1),
            }
        }
        check(&input);
    }

    #[test]
    fn almost_resp_never_panics_and_ends_the_same_wherever_it_is_cut(head in "[0-7]", stream in almost_resp()) {
        check(&[head.as_bytes(), &*stream].concat());
    }
}

fn debug_server() -> Redis {
    Redis::builder().debug_command().start().expect("a Redis server starts")
}

#[expect(clippy::approx_constant, reason = "it is what the server sends")]
const DOUBLE: f64 = 3.141;
const ATTRIBUTED: &str = "Some real reply following the attribute";
const PUSHED: &str = "Some real reply following the push reply";
const BIG_NUMBER: &str = "1234567999999999999999999999999999999";
const VERBATIM: &str = "This is a verbatim\nstring";

fn bulk(text: &'static str) -> RespValue {
    RespValue::Bulk(text.into())
}

/// The attributes of `DEBUG PROTOCOL attrib`.
fn popularity() -> Vec<(RespValue, RespValue)> {
    vec![(bulk("key-popularity"), RespValue::Array(vec![bulk("key:123"), RespValue::Int(90)]))]
}

#[tokio::test]
async fn all_types_of_a_real_server_keep_their_kind_in_resp3() {
    let server = debug_server();
    let client = RedisClient::connect(server.url()).await.unwrap();
    let verbatim = VerbatimString { format: "txt".into(), text: VERBATIM.into() };
    let numbers = || (0..3).map(RespValue::Int).collect::<Vec<_>>();
    let map = vec![
        (RespValue::Int(0), RespValue::Bool(false)),
        (RespValue::Int(1), RespValue::Bool(true)),
        (RespValue::Int(2), RespValue::Bool(false)),
    ];
    let attributed = WithAttributes { attributes: popularity(), value: bulk(ATTRIBUTED) };
    let expected = [
        ("string", bulk("Hello World")),
        ("integer", RespValue::Int(12345)),
        ("double", RespValue::Double(DOUBLE)),
        ("null", RespValue::Null),
        ("array", RespValue::Array(numbers())),
        ("set", RespValue::Set(numbers())),
        ("map", RespValue::Map(map)),
        ("attrib", RespValue::Attributed(Box::new(attributed))),
        ("push", bulk(PUSHED)),
        ("verbatim", RespValue::Verbatim(verbatim)),
        ("true", RespValue::Bool(true)),
        ("false", RespValue::Bool(false)),
        ("bignum", RespValue::BigNumber(BigNumber(BIG_NUMBER.into()))),
    ];
    for (kind, expected) in &expected {
        assert_eq!(&client.exec::<RespValue>(("DEBUG", "PROTOCOL", kind)).await.unwrap(), expected, "{kind}");
    }
    let all = client
        .pipeline::<Vec<RespValue>>(expected.each_ref().map(|(kind, _)| ("DEBUG", "PROTOCOL", kind)))
        .await
        .unwrap();
    for (result, (kind, expected)) in all.into_iter().zip(&expected) {
        assert_eq!(result.as_ref(), Ok(expected), "{kind}");
    }
}

#[tokio::test]
async fn all_types_of_a_real_server_in_resp2_are_what_resp2_has() {
    let server = debug_server();
    let client = RedisClient::connect(format!("{}?protocol=2", server.url())).await.unwrap();
    let numbers = |numbers: &[i64]| RespValue::Array(numbers.iter().copied().map(RespValue::Int).collect());
    for (kind, expected) in [
        ("string", bulk("Hello World")),
        ("integer", RespValue::Int(12345)),
        ("double", bulk("3.141")),
        ("null", RespValue::Null),
        ("array", numbers(&[0, 1, 2])),
        ("set", numbers(&[0, 1, 2])),
        ("map", numbers(&[0, 0, 1, 1, 2, 0])),
        ("attrib", bulk(ATTRIBUTED)),
        ("verbatim", bulk(VERBATIM)),
        ("true", RespValue::Int(1)),
        ("false", RespValue::Int(0)),
        ("bignum", bulk(BIG_NUMBER)),
    ] {
        assert_eq!(client.exec::<RespValue>(("DEBUG", "PROTOCOL", kind)).await.unwrap(), expected, "{kind}");
    }
    let refused = client.exec::<RespValue>(("DEBUG", "PROTOCOL", "push")).await.unwrap_err();
    assert_eq!(
        refused.server().expect("the server refuses").text(),
        "ERR RESP2 is not supported by this command"
    );
}

#[tokio::test]
async fn all_types_of_a_real_server_become_the_same_rust_types_in_both_protocols() {
    let server = debug_server();
    for protocol in [2, 3] {
        let client = RedisClient::connect(format!("{}?protocol={protocol}", server.url())).await.unwrap();
        let (string, integer, double, null, array, set, map, attrib, verbatim, yes, no, bignum) = client
            .pipeline::<(
                String,
                u16,
                f64,
                Option<String>,
                Vec<i64>,
                HashSet<u8>,
                BTreeMap<i64, bool>,
                String,
                VerbatimString,
                bool,
                bool,
                u128,
            )>((
                ("DEBUG", "PROTOCOL", "string"),
                ("DEBUG", "PROTOCOL", "integer"),
                ("DEBUG", "PROTOCOL", "double"),
                ("DEBUG", "PROTOCOL", "null"),
                ("DEBUG", "PROTOCOL", "array"),
                ("DEBUG", "PROTOCOL", "set"),
                ("DEBUG", "PROTOCOL", "map"),
                ("DEBUG", "PROTOCOL", "attrib"),
                ("DEBUG", "PROTOCOL", "verbatim"),
                ("DEBUG", "PROTOCOL", "true"),
                ("DEBUG", "PROTOCOL", "false"),
                ("DEBUG", "PROTOCOL", "bignum"),
            ))
            .await
            .unwrap();
        assert_eq!((string, integer, double), (Ok("Hello World".into()), Ok(12345), Ok(DOUBLE)));
        assert_eq!((null, array, set), (Ok(None), Ok(vec![0, 1, 2]), Ok(HashSet::from([0, 1, 2]))));
        assert_eq!(map, Ok(BTreeMap::from([(0, false), (1, true), (2, false)])));
        assert_eq!(attrib.as_deref(), Ok(ATTRIBUTED));
        assert_eq!(verbatim, Ok(VerbatimString { format: "txt".into(), text: VERBATIM.into() }));
        assert_eq!(
            (yes, no, bignum),
            (Ok(true), Ok(false), Ok(1_234_567_999_999_999_999_999_999_999_999_999_999))
        );
        let text: BigNumber = client.exec(("DEBUG", "PROTOCOL", "bignum")).await.unwrap();
        assert_eq!(text, BigNumber(BIG_NUMBER.into()));
        let set: BTreeSet<u8> = client.exec(("DEBUG", "PROTOCOL", "set")).await.unwrap();
        assert_eq!(set, BTreeSet::from([0, 1, 2]));
    }
}

#[tokio::test]
async fn attributes_are_kept_on_request_and_skipped_otherwise() {
    let server = debug_server();
    let client = RedisClient::connect(server.url()).await.unwrap();
    let command = ("DEBUG", "PROTOCOL", "attrib");
    let kept: WithAttributes<String> = client.exec(command).await.unwrap();
    assert_eq!(kept, WithAttributes { attributes: popularity(), value: ATTRIBUTED.into() });
    let kept: Option<WithAttributes<RespValue>> = client.exec(command).await.unwrap();
    assert_eq!(kept, Some(WithAttributes { attributes: popularity(), value: bulk(ATTRIBUTED) }));
    let passed_over: Option<String> = client.exec(command).await.unwrap();
    assert_eq!(passed_over.as_deref(), Some(ATTRIBUTED));
    let none: WithAttributes<i64> = client.exec(("DEBUG", "PROTOCOL", "integer")).await.unwrap();
    assert_eq!(none, WithAttributes { attributes: vec![], value: 12345 });
}

#[tokio::test]
async fn pushes_and_attributes_between_replies_misroute_none_of_them() {
    let server = debug_server();
    let client = RedisClient::connect(server.url()).await.unwrap();
    let mut pushes = client.pushes();
    client.exec::<()>(("SET", "key", "value")).await.unwrap();
    // The server sends a push message and then a reply to this command.
    let push = ("DEBUG", "PROTOCOL", "push");
    let get = ("GET", "key");
    for _ in 0..50 {
        let (a, b, c, d, e, f) = client
            .pipeline::<(String, String, Option<String>, WithAttributes<String>, String, String)>((
                get,
                push,
                get,
                ("DEBUG", "PROTOCOL", "attrib"),
                get,
                push,
            ))
            .await
            .unwrap();
        assert_eq!((a.as_deref(), b.as_deref()), (Ok("value"), Ok(PUSHED)));
        assert_eq!(c, Ok(Some("value".to_owned())));
        assert_eq!(d, Ok(WithAttributes { attributes: popularity(), value: ATTRIBUTED.into() }));
        assert_eq!((e.as_deref(), f.as_deref()), (Ok("value"), Ok(PUSHED)));
    }
    for _ in 0..100 {
        let push =
            tokio::time::timeout(Duration::from_secs(10), pushes.next()).await.expect("every push arrives");
        assert_eq!(push, Some(RespValue::Push(vec![bulk("server-cpu-usage"), RespValue::Int(42)])));
    }
    let more = tokio::time::timeout(Duration::from_millis(50), pushes.next()).await;
    assert!(more.is_err(), "nothing else is a push: {more:?}");
}

#[tokio::test]
async fn a_reply_over_the_limits_ends_the_connection_and_says_why() {
    let mut config = Redis::shared().url().into_config().unwrap();
    config.limits = ReplyLimits { max_reply_bytes: 10_000, max_elements: 1000, max_depth: 8 };
    let client = RedisClient::connect(config).await.unwrap();
    let nested = "local t = {} for i = 1, 9 do t = {t, 1} end return t";
    let many = "local t = {} for i = 1, 1000 do t[i] = i end return t";
    let long = "return string.rep('x', 10000)";
    for (script, expected) in [
        (long, ProtocolError::TooLong { found: 10_010, limit: 10_000 }),
        (many, ProtocolError::TooMany { found: 1001, limit: 1000 }),
        (nested, ProtocolError::TooDeep { limit: 8 }),
    ] {
        match client.pipeline::<(String, RespValue)>((("ECHO", "before"), ("EVAL", script, 0))).await {
            Err(RequestError::Lost(ConnectionLoss::Protocol(error))) => assert_eq!(error, expected),
            other => panic!("{other:?} in index of {expected}"),
        }
        // The client reconnects, and replies within the limits still arrive.
        let again = async {
            while client.exec::<String>(("ECHO", "after")).await.ok().as_deref() != Some("after") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), again).await.expect("the connection is made again");
    }
}
