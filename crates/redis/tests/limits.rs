//! Memory of the decoder: absurd lengths, counts and depths are rejected before anything is
//! allocated for them.
//!
//! A separate binary, because its allocator counts the bytes that each thread holds.

use forebay_redis::{ProtocolError, ReplyLimits, RespDecoder};
use forebay_testkit::PeakAllocator;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// Feeds `start`, then `again` repeatedly, until the decoder fails. Returns the error, the number
/// of bytes fed, and the peak of allocated bytes.
#[track_caller]
fn feed_until_error(limits: ReplyLimits, start: &[u8], again: &[u8]) -> (ProtocolError, usize, usize) {
    let ((error, fed), peak) = ALLOCATOR.peak_of(|| {
        let mut decoder = RespDecoder::new(limits);
        let mut fed = 0;
        let mut piece = start;
        loop {
            decoder.feed(piece);
            fed += piece.len();
            match decoder.next() {
                Ok(None) if !again.is_empty() => piece = again,
                Ok(None) => panic!("not refused"),
                Ok(Some(value)) => panic!("a value came out: {value:?}"),
                Err(error) => return (error, fed),
            }
        }
    });
    (error, fed, peak)
}

/// Returns the error for bytes that must be rejected with less than a kilobyte of memory.
#[track_caller]
fn reject_without_allocation(bytes: &[u8]) -> ProtocolError {
    let (error, _, peak) = feed_until_error(ReplyLimits::default(), bytes, b"");
    assert!(peak < 1024, "{peak} bytes allocated for {:?}", String::from_utf8_lossy(bytes));
    error
}

const GIB: usize = 1 << 30;
const ELEMENTS: usize = 1 << 24;

/// Limits that a test can reach.
const SMALL: ReplyLimits = ReplyLimits { max_reply_bytes: 4096, max_elements: 100, max_depth: 8 };

#[test]
fn absurd_lengths_are_refused_before_anything_is_allocated() {
    assert_eq!(
        reject_without_allocation(b"$9999999999\r\n"),
        ProtocolError::TooLong { found: 10_000_000_014, limit: GIB }
    );
    assert_eq!(
        reject_without_allocation(b"!1073741824\r\n"),
        ProtocolError::TooLong { found: 1_073_741_839, limit: GIB }
    );
    assert_eq!(
        reject_without_allocation(b"=4294967296\r\n"),
        ProtocolError::TooLong { found: 4_294_967_311, limit: GIB }
    );
    let chunk = reject_without_allocation(b"$?\r\n;999999999999999999\r\n");
    assert_eq!(chunk, ProtocolError::TooLong { found: 1_000_000_000_000_000_026, limit: GIB });
    // All strings of a reply count together.
    let second = reject_without_allocation(b"*2\r\n$3\r\nabc\r\n$1073741810\r\n");
    assert_eq!(second, ProtocolError::TooLong { found: 1_073_741_838, limit: GIB });
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    assert_eq!(
        reject_without_allocation(b"*2147483647\r\n"),
        ProtocolError::TooMany { found: 2_147_483_648, limit: ELEMENTS }
    );
    assert_eq!(
        reject_without_allocation(b"~16777216\r\n"),
        ProtocolError::TooMany { found: 16_777_217, limit: ELEMENTS }
    );
    assert_eq!(
        reject_without_allocation(b">99999999\r\n"),
        ProtocolError::TooMany { found: 100_000_000, limit: ELEMENTS }
    );
    // A map's entry is two elements.
    assert_eq!(
        reject_without_allocation(b"%8388608\r\n"),
        ProtocolError::TooMany { found: 16_777_217, limit: ELEMENTS }
    );
    assert_eq!(
        reject_without_allocation(b"|8388608\r\n"),
        ProtocolError::TooMany { found: 16_777_217, limit: ELEMENTS }
    );
    // All aggregates of a reply count together.
    let second = reject_without_allocation(b"*2\r\n*16777213\r\n");
    assert_eq!(second, ProtocolError::TooMany { found: 16_777_217, limit: ELEMENTS });
}

#[test]
fn out_of_range_lengths_are_malformed() {
    for (bytes, tag) in [
        (b"%9223372036854775807\r\n".as_slice(), b'%'), // doubled it would overflow
        (b"*18446744073709551615\r\n", b'*'),
        (b"$18446744073709551616\r\n", b'$'),
        (b"$99999999999999999999999999999999999999999\r\n", b'$'),
        (b"$-9223372036854775808\r\n", b'$'),
        (b"*-2\r\n", b'*'),
        (b"!-1\r\n", b'!'),
        (b"~-1\r\n", b'~'),
    ] {
        assert_eq!(
            reject_without_allocation(bytes),
            ProtocolError::Length(tag),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
}

#[test]
fn a_length_without_end_is_refused_after_its_19th_digit() {
    let (error, fed, peak) = feed_until_error(ReplyLimits::default(), b"$", b"1");
    assert_eq!((error, fed), (ProtocolError::Length(b'$'), 20));
    assert!(peak < 1024, "{peak} bytes allocated");
}

#[test]
fn nesting_is_rejected_at_the_first_level_beyond_the_limit() {
    let too_deep = ProtocolError::TooDeep { limit: 64 };
    let levels = [
        "*1\r\n",
        "~1\r\n",
        ">1\r\n",
        "%1\r\n",
        "|1\r\n",
        "*?\r\n",
        "%?\r\n",
        "~?\r\n",
        "|?\r\n",
        "*2\r\n:1\r\n",
    ];
    for level in levels.map(str::as_bytes) {
        let (error, fed, peak) = feed_until_error(ReplyLimits::default(), level, level);
        assert_eq!((&error, fed), (&too_deep, 65 * level.len()), "{}", String::from_utf8_lossy(level));
        assert!(peak < 8192, "{peak} bytes allocated");
    }
    // The same holds for one large read: only the bytes themselves are allocated.
    let nested = b"*1\r\n".repeat(100_000);
    let (error, fed, peak) = feed_until_error(ReplyLimits::default(), &nested, b"");
    assert_eq!(error, too_deep);
    assert!(peak < fed + 8192, "{peak} bytes allocated for {fed}");
}

#[test]
fn endless_input_is_rejected_at_the_limit() {
    let cases: [(&str, &[u8], &[u8], bool); 9] = [
        ("a line", b"+", b"0123456789", false),
        ("a line in an array", b"*1\r\n-", b"0123456789", false),
        ("a big number", b"(", b"7", false),
        ("chunks of a string", b"$?\r\n", b";10\r\n0123456789\r\n", false),
        ("attributes", b"", b"|1\r\n+a\r\n+b\r\n", true),
        ("empty attributes", b"", b"|0\r\n", true),
        ("items of a streamed array", b"*?\r\n", b":1\r\n", true),
        ("items of a streamed map", b"%?\r\n", b"+a\r\n*0\r\n", true),
        ("aggregates in a streamed set", b"~?\r\n", b"*2\r\n:1\r\n:2\r\n", true),
    ];
    for (what, start, again, many) in cases {
        let (error, fed, peak) = feed_until_error(SMALL, start, again);
        match error {
            ProtocolError::TooMany { found, limit: 100 } if many => {
                assert!((101..105).contains(&found), "{what}: {found}")
            }
            ProtocolError::TooLong { found, limit: 4096 } if !many => {
                assert!((4097..4200).contains(&found), "{what}: {found}")
            }
            other => panic!("{what}: {other:?}"),
        }
        // Only the input is allocated, in a buffer that doubles.
        assert!(fed <= 4200 && peak < 4 * 4200, "{what}: {peak} bytes allocated for {fed}");
    }
}

#[test]
fn input_just_within_the_limits_is_decoded() {
    let cases: [(&str, Vec<u8>); 3] = [
        ("length", [b"$4087\r\n", &*vec![b'x'; 4087], b"\r\n"].concat()),
        ("count", [b"*99\r\n".to_vec(), b"_\r\n".repeat(99)].concat()),
        ("depth", [b"*1\r\n".repeat(8), b"_\r\n".to_vec()].concat()),
    ];
    for (what, bytes) in cases {
        let mut decoder = RespDecoder::new(SMALL);
        // Each reply is measured separately.
        for _ in 0..3 {
            decoder.feed(&bytes);
            assert!(matches!(decoder.next(), Ok(Some(Ok(_)))), "{what}");
            assert_eq!(decoder.next(), Ok(None), "{what}");
        }
    }
}

#[test]
fn a_reply_is_too_long_however_it_is_split_into_reads() {
    for (end, what) in [("*0\r\n", "an array"), ("$-1\r\n", "null"), ("*?\r\n.\r\n", "an end marker")] {
        let rest = 4096 - "*2\r\n$4000\r\n\r\n".len() - end.len();
        for length in [rest, rest + 1] {
            let reply = format!("*2\r\n${length}\r\n{}\r\n{end}", "x".repeat(length));
            let too_long = reply.len() > SMALL.max_reply_bytes;
            for size in [1, 1000, reply.len()] {
                let mut decoder = RespDecoder::new(SMALL);
                let mut last = Ok(None);
                for piece in reply.as_bytes().chunks(size) {
                    decoder.feed(piece);
                    last = decoder.next();
                }
                match last {
                    Ok(Some(Ok(_))) => assert!(!too_long, "{what}, {} bytes in reads of {size}", reply.len()),
                    Err(ProtocolError::TooLong { found: 4097, limit: 4096 }) => assert!(too_long, "{what}"),
                    other => panic!("{what}, {} bytes in reads of {size}: {other:?}", reply.len()),
                }
            }
        }
    }
}
