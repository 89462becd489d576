//! Test vectors: every type of RESP2 and RESP3, valid and invalid. Each vector is also a file in
//! the fuzz corpus.

use forebay_redis::{BigNumber, ProtocolError, RespValue, VerbatimString, WithAttributes};

use super::error;

/// Which decoder of redis-protocol agrees on a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecoderOracle {
    /// Its RESP2 and RESP3 decoders, which must agree.
    Both,
    /// Its RESP2 decoder: nulls have another encoding in RESP3.
    Resp2,
    /// Its RESP3 decoder.
    Resp3,
    /// None: redis-protocol deviates from the specification, as the vector's comment says. See
    /// [`by_hand`].
    Deviates,
}
use DecoderOracle::{Both, Deviates, Resp2, Resp3};

/// Name, bytes, and the decoder that agrees.
pub(super) const WELL_FORMED: &[(&str, &[u8], DecoderOracle)] = &[
    ("simple", b"+OK\r\n", Both),
    ("simple-empty", b"+\r\n", Both),
    ("error", b"-ERR unknown command 'GTE'\r\n", Both),
    ("error-of-one-word", b"-EXECABORT\r\n", Both),
    ("int", b":1000\r\n", Both),
    ("int-negative", b":-1\r\n", Both),
    ("int-with-plus", b":+7\r\n", Both),
    ("int-least", b":-9223372036854775808\r\n", Both),
    ("int-greatest", b":9223372036854775807\r\n", Both),
    ("bulk", b"$5\r\nhello\r\n", Both),
    ("bulk-empty", b"$0\r\n\r\n", Both),
    ("bulk-binary", b"$9\r\n\r\n\0\xff$1*\r\n\r\n", Both),
    ("bulk-null", b"$-1\r\n", Resp2),
    ("array", b"*2\r\n$5\r\nhello\r\n:3\r\n", Both),
    ("array-empty", b"*0\r\n", Both),
    ("array-null", b"*-1\r\n", Resp2),
    ("array-nested", b"*2\r\n*3\r\n:1\r\n*0\r\n$0\r\n\r\n*2\r\n+OK\r\n-ERR no\r\n", Both),
    ("array-of-nulls", b"*3\r\n$-1\r\n*-1\r\n:1\r\n", Resp2),
    ("null", b"_\r\n", Resp3),
    ("true", b"#t\r\n", Resp3),
    ("false", b"#f\r\n", Resp3),
    ("double", b",3.141\r\n", Resp3),
    ("double-negative", b",-0.5\r\n", Resp3),
    ("double-without-fraction", b",10\r\n", Resp3),
    ("double-exponent", b",1.5e-300\r\n", Resp3),
    ("double-exponent-with-plus", b",-2E+10\r\n", Resp3),
    ("double-of-17-digits", b",0.30000000000000004\r\n", Resp3),
    ("double-inf", b",inf\r\n", Resp3),
    ("double-negative-inf", b",-inf\r\n", Resp3),
    ("double-nan", b",nan\r\n", Resp3),
    // Servers before 7.2 send what their C library prints.
    ("double-negative-nan", b",-nan\r\n", Resp3),
    ("big-number", b"(3492890328409238509324850943850943825024385\r\n", Resp3),
    ("big-number-negative", b"(-12345678901234567890\r\n", Resp3),
    ("bulk-error", b"!21\r\nSYNTAX invalid syntax\r\n", Resp3),
    ("bulk-error-of-two-lines", b"!10\r\nERR a\r\nb c\r\n", Resp3),
    ("verbatim-txt", b"=15\r\ntxt:Some string\r\n", Resp3),
    ("verbatim-mkd", b"=10\r\nmkd:# Head\r\n", Resp3),
    ("verbatim-empty", b"=4\r\ntxt:\r\n", Resp3),
    // The specification allows other formats; redis-protocol supports two.
    ("verbatim-of-another-format", b"=8\r\nhtm:<br>\r\n", Deviates),
    ("set", b"~5\r\n+orange\r\n+apple\r\n#t\r\n:100\r\n:999\r\n", Resp3),
    ("set-empty", b"~0\r\n", Resp3),
    // redis-protocol hashes members and keys. It rejects aggregates there and drops duplicates.
    ("set-of-arrays", b"~2\r\n*1\r\n:1\r\n*0\r\n", Deviates),
    ("map", b"%2\r\n+first\r\n:1\r\n+second\r\n*2\r\n:2\r\n#f\r\n", Resp3),
    ("map-empty", b"%0\r\n", Resp3),
    ("map-nested", b"%1\r\n$1\r\na\r\n%1\r\n:1\r\n~1\r\n,0.5\r\n", Resp3),
    ("map-with-an-array-as-key", b"%1\r\n*1\r\n:1\r\n:2\r\n", Deviates),
    ("map-with-a-key-twice", b"%2\r\n+a\r\n:1\r\n+a\r\n:2\r\n", Deviates),
    ("push", b">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$2\r\nhi\r\n", Resp3),
    ("push-of-invalidation", b">2\r\n+invalidate\r\n*1\r\n$3\r\nkey\r\n", Resp3),
    ("attribute", b"|1\r\n+ttl\r\n:3600\r\n$5\r\nhello\r\n", Resp3),
    ("attribute-empty", b"|0\r\n:1\r\n", Resp3),
    ("attribute-of-array", b"|1\r\n+key-popularity\r\n%1\r\n$1\r\na\r\n,0.19\r\n*2\r\n:1\r\n:2\r\n", Resp3),
    ("attribute-inside-array", b"*3\r\n:1\r\n|1\r\n+ttl\r\n:3600\r\n:2\r\n:3\r\n", Resp3),
    ("attribute-inside-map", b"%1\r\n+a\r\n|2\r\n+x\r\n:1\r\n+y\r\n:2\r\n#t\r\n", Resp3),
    ("attribute-inside-attribute", b"|1\r\n+a\r\n|1\r\n+b\r\n:1\r\n:2\r\n:3\r\n", Resp3),
    ("attribute-of-push", b"|1\r\n+a\r\n+b\r\n>1\r\n+hi\r\n", Resp3),
    ("attribute-of-error", b"|1\r\n+a\r\n+b\r\n-ERR no\r\n", Resp3),
    // redis-protocol cannot represent attributes of null, and rejects a second attribute.
    ("attribute-of-null", b"|1\r\n+a\r\n+b\r\n_\r\n", Deviates),
    ("attributes-in-a-row", b"|1\r\n+a\r\n:1\r\n|0\r\n|1\r\n+b\r\n:2\r\n:3\r\n", Deviates),
    // redis-protocol treats a length of -1 in RESP3 as streamed, and requires an attribute's
    // length.
    ("null-in-three-spellings", b"*3\r\n_\r\n$-1\r\n*-1\r\n", Deviates),
    ("attribute-streamed", b"|?\r\n+a\r\n:1\r\n.\r\n:2\r\n", Deviates),
    ("streamed-string", b"$?\r\n;4\r\nHell\r\n;6\r\no worl\r\n;1\r\nd\r\n;0\r\n", Resp3),
    ("streamed-string-empty", b"$?\r\n;0\r\n", Resp3),
    ("streamed-array", b"*?\r\n:1\r\n*2\r\n:2\r\n:3\r\n+four\r\n.\r\n", Resp3),
    ("streamed-array-empty", b"*?\r\n.\r\n", Resp3),
    ("streamed-set", b"~?\r\n+a\r\n:1\r\n#t\r\n.\r\n", Resp3),
    ("streamed-map", b"%?\r\n+a\r\n:1\r\n+b\r\n:2\r\n.\r\n", Resp3),
    ("streamed-array-with-attribute", b"|1\r\n+ttl\r\n:9\r\n*?\r\n:1\r\n.\r\n", Resp3),
    // redis-protocol supports streaming only at the top level.
    ("streamed-inside-streamed", b"*?\r\n%?\r\n+a\r\n~?\r\n.\r\n.\r\n:1\r\n.\r\n", Deviates),
    ("streamed-string-inside-array", b"*2\r\n$?\r\n;1\r\na\r\n;2\r\nbc\r\n;0\r\n:1\r\n", Deviates),
];

/// Expected values, written by hand: vectors without an oracle, and one of each type.
pub(super) fn by_hand() -> Vec<(&'static str, RespValue)> {
    use RespValue::{Array, Bool, Double, Int, Map, Null, Push, Set};
    let simple = |text: &'static str| RespValue::Simple(text.into());
    let bulk = |text: &'static str| RespValue::Bulk(text.into());
    let attributed = |attributes: &[(&'static str, RespValue)], value| {
        let attributes = attributes.iter().map(|(key, value)| (simple(key), value.clone())).collect();
        RespValue::Attributed(Box::new(WithAttributes { attributes, value }))
    };
    let verbatim = |format: &str, text: &str| {
        RespValue::Verbatim(VerbatimString { format: format.into(), text: text.into() })
    };
    vec![
        ("simple", simple("OK")),
        ("error", error("ERR unknown command 'GTE'")),
        ("int-least", Int(i64::MIN)),
        ("bulk-binary", RespValue::Bulk(b"\r\n\0\xff$1*\r\n".as_slice().into())),
        ("bulk-null", Null),
        (
            "array-nested",
            Array(vec![
                Array(vec![Int(1), Array(vec![]), bulk("")]),
                Array(vec![simple("OK"), error("ERR no")]),
            ]),
        ),
        ("array-null", Null),
        ("null", Null),
        ("true", Bool(true)),
        ("double-exponent", Double(1.5e-300)),
        ("double-inf", Double(f64::INFINITY)),
        ("double-negative-nan", Double(f64::NAN)),
        ("big-number", RespValue::BigNumber(BigNumber("3492890328409238509324850943850943825024385".into()))),
        ("bulk-error-of-two-lines", error("ERR a\r\nb c")),
        ("verbatim-txt", verbatim("txt", "Some string")),
        ("verbatim-of-another-format", verbatim("htm", "<br>")),
        ("set", Set(vec![simple("orange"), simple("apple"), Bool(true), Int(100), Int(999)])),
        ("set-of-arrays", Set(vec![Array(vec![Int(1)]), Array(vec![])])),
        ("map-nested", Map(vec![(bulk("a"), Map(vec![(Int(1), Set(vec![Double(0.5)]))]))])),
        ("map-with-an-array-as-key", Map(vec![(Array(vec![Int(1)]), Int(2))])),
        ("map-with-a-key-twice", Map(vec![(simple("a"), Int(1)), (simple("a"), Int(2))])),
        ("push", Push(vec![bulk("message"), bulk("ch"), bulk("hi")])),
        ("attribute", attributed(&[("ttl", Int(3600))], bulk("hello"))),
        ("attribute-inside-array", Array(vec![Int(1), attributed(&[("ttl", Int(3600))], Int(2)), Int(3)])),
        ("attribute-inside-attribute", attributed(&[("a", attributed(&[("b", Int(1))], Int(2)))], Int(3))),
        ("attribute-of-null", attributed(&[("a", simple("b"))], Null)),
        ("attributes-in-a-row", attributed(&[("a", Int(1)), ("b", Int(2))], Int(3))),
        ("attribute-streamed", attributed(&[("a", Int(1))], Int(2))),
        ("null-in-three-spellings", Array(vec![Null, Null, Null])),
        ("streamed-string", bulk("Hello world")),
        ("streamed-map", Map(vec![(simple("a"), Int(1)), (simple("b"), Int(2))])),
        ("streamed-inside-streamed", Array(vec![Map(vec![(simple("a"), Set(vec![]))]), Int(1)])),
        ("streamed-string-inside-array", Array(vec![bulk("abc"), Int(1)])),
    ]
}

/// Name, bytes, and the error that ends the stream.
pub(super) const MALFORMED: &[(&str, &[u8], ProtocolError)] = &[
    ("not-resp", b"HTTP/1.1 400 Bad Request\r\n", ProtocolError::Type(b'H')),
    ("not-resp-but-tls", b"\x15\x03\x03\x00\x02\x02\x46", ProtocolError::Type(0x15)),
    ("no-element-in-array", b"*1\r\n\r\n", ProtocolError::Type(b'\r')),
    ("line-without-cr", b"+OK\n", ProtocolError::Terminator("a line")),
    ("line-of-newline", b"+\n", ProtocolError::Terminator("a line")),
    ("bulk-longer-than-announced", b"$3\r\nabcde\r\n", ProtocolError::Terminator("a string")),
    ("bulk-without-length", b"$\r\n\r\n", ProtocolError::Length(b'$')),
    ("bulk-with-letters-for-length", b"$3a\r\nabc\r\n", ProtocolError::Length(b'$')),
    ("bulk-with-length-minus-2", b"$-2\r\n", ProtocolError::Length(b'$')),
    ("bulk-with-length-minus-10", b"$-10\r\n", ProtocolError::Length(b'$')),
    ("bulk-with-plus-in-length", b"$+3\r\nabc\r\n", ProtocolError::Length(b'$')),
    ("bulk-error-null", b"!-1\r\n", ProtocolError::Length(b'!')),
    ("bulk-error-streamed", b"!?\r\n", ProtocolError::Length(b'!')),
    ("verbatim-null", b"=-1\r\n", ProtocolError::Length(b'=')),
    ("array-with-length-minus-3", b"*-3\r\n", ProtocolError::Length(b'*')),
    ("map-null", b"%-1\r\n", ProtocolError::Length(b'%')),
    ("set-null", b"~-1\r\n", ProtocolError::Length(b'~')),
    ("push-null", b">-1\r\n", ProtocolError::Length(b'>')),
    ("header-without-lf", b"*1\r:1\r\n", ProtocolError::Length(b'*')),
    ("chunk-outside", b";1\r\na\r\n", ProtocolError::Misplaced(b';')),
    ("chunk-missing", b"$?\r\n$1\r\na\r\n", ProtocolError::Misplaced(b'$')),
    ("chunk-null", b"$?\r\n;-1\r\n", ProtocolError::Length(b';')),
    ("end-outside", b".\r\n", ProtocolError::Misplaced(b'.')),
    ("end-in-counted", b"*1\r\n.\r\n", ProtocolError::Misplaced(b'.')),
    ("end-between-key-and-value", b"%?\r\n+a\r\n.\r\n", ProtocolError::Misplaced(b'.')),
    ("end-without-crlf", b"*?\r\n.\n\n", ProtocolError::Terminator("an end marker")),
];

/// Name and bytes of frames that are valid but hold no valid value. Only that value is lost.
pub(super) const UNREADABLE: &[(&str, &[u8])] = &[
    ("int-with-letters", b":12a\r\n"),
    ("int-empty", b":\r\n"),
    ("int-too-great", b":9223372036854775808\r\n"),
    ("double-with-letters", b",1.5x\r\n"),
    ("double-of-words", b",infinite\r\n"),
    ("bool-of-another-letter", b"#y\r\n"),
    ("bool-empty", b"#\r\n"),
    ("null-with-letters", b"_null\r\n"),
    ("big-number-with-letters", b"(12x\r\n"),
    ("big-number-empty", b"(-\r\n"),
    ("verbatim-without-format", b"=3\r\nabc\r\n"),
    ("verbatim-without-colon", b"=5\r\ntxt-a\r\n"),
    ("big-number-not-utf8-in-array", b"*2\r\n:1\r\n(\xff\r\n"),
    ("attribute-of-nothing", b"*?\r\n|1\r\n+a\r\n+b\r\n.\r\n"),
];
