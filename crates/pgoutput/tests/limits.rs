//! Allocation limits. Decoding allocates nothing, for any counts and lengths in a message.
//! A cached relation or a snapshot uses a small multiple of the bytes received.
//!
//! This is a separate binary because its global allocator counts each thread's bytes.

use forebay_pgoutput::{Frame, PgOutputDecoder, PgOutputMessage, Relation, RelationCache, Snapshot};
use forebay_testkit::PeakAllocator;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// Allowed bytes per received byte. An empty name is one byte on the wire and a `String` in memory.
const MULTIPLE: usize = 20;
/// Allowed bytes independent of the input.
const CONSTANT: usize = 1024;

/// Decodes a message and iterates over its contents. Returns whether it is valid.
fn read(bytes: &[u8], streamed: bool) -> bool {
    let mut decoder = PgOutputDecoder::new();
    if streamed {
        assert!(decoder.decode(b"S\0\0\x02\xF0\x01").is_ok(), "a StreamStart is valid");
    }
    match decoder.decode(bytes) {
        Ok(PgOutputMessage::Insert(insert)) => insert.new.iter().count() == insert.new.len(),
        Ok(PgOutputMessage::Relation(relation)) => relation.columns.iter().count() == relation.columns.len(),
        Ok(PgOutputMessage::Truncate(truncate)) => truncate.relations.iter().count() < usize::MAX,
        other => other.is_ok(),
    }
}

#[track_caller]
fn assert_refused_without_allocation(bytes: &[u8]) {
    let (is_read, peak) = ALLOCATOR.peak_of(|| read(bytes, false));
    assert!(!is_read, "{bytes:?} is not a message");
    assert_eq!(peak, 0, "bytes allocated for {bytes:?}");
}

fn relation(oid: u32, columns: u16, name: &str) -> Vec<u8> {
    let mut bytes = vec![b'R'];
    bytes.extend(oid.to_be_bytes());
    bytes.extend(b"\0t\0d");
    bytes.extend(columns.to_be_bytes());
    for _ in 0..columns {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        bytes.extend(b"\0\0\0\0\x19\xFF\xFF\xFF\xFF");
    }
    bytes
}

fn decoded(bytes: &[u8]) -> Relation<'_> {
    match PgOutputDecoder::new().decode(bytes) {
        Ok(PgOutputMessage::Relation(relation)) => relation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn absurd_counts_and_lengths_are_refused_before_anything_is_allocated() {
    assert_refused_without_allocation(b"I\0\0\x40\x07N\xFF\xFF"); // 65,535 values
    assert_refused_without_allocation(b"I\0\0\x40\x07N\0\x01t\xFF\xFF\xFF\xFF"); // a value of 4 GiB
    assert_refused_without_allocation(b"U\0\0\x40\x07O\xFF\xFFn");
    assert_refused_without_allocation(b"D\0\0\x40\x07K\0\x01b\x7F\xFF\xFF\xFF");
    assert_refused_without_allocation(b"T\xFF\xFF\xFF\xFF\0"); // 4,294,967,295 tables
    assert_refused_without_allocation(b"R\0\0\x40\x07\0t\0d\xFF\xFF"); // 65,535 columns
    // A message of 4 GiB.
    assert_refused_without_allocation(b"M\0\0\0\0\0\0\0\0\0p\0\xFF\xFF\xFF\xFF");
}

#[test]
fn an_unterminated_name_is_refused_without_allocation() {
    let name = [b"R\0\0\x40\x07".as_slice(), &[b'n'; 1 << 20]].concat();
    let (is_read, peak) = ALLOCATOR.peak_of(|| read(&name, false));
    assert_eq!((is_read, peak), (false, 0));
}

#[test]
fn decoding_allocates_nothing_wherever_a_message_ends_and_whatever_byte_is_wrong() {
    let messages: [&[u8]; 6] = [
        b"I\0\0\x40\x07N\0\x03t\0\0\0\x011nt\0\0\0\x03ann",
        b"U\0\0\x40\x07O\0\x01t\0\0\0\x011N\0\x01u",
        b"D\0\0\x40\x07K\0\x01t\0\0\0\x011",
        b"T\0\0\0\x02\0\0\0\x40\x07\0\0\x40\x08",
        b"R\0\0\x40\x07s\0t\0d\0\x01\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF",
        b"M\0\0\0\0\0\0\0\0\0p\0\0\0\0\x02hi",
    ];
    for message in messages {
        assert!(read(message, false), "{message:?} is a message");
        for length in 0..=message.len() {
            let (_, peak) =
                ALLOCATOR.peak_of(|| read(&message[..length], false) | read(&message[..length], true));
            assert_eq!(peak, 0, "bytes allocated for {:?}", &message[..length]);
        }
        let mut wrong = message.to_vec();
        for at in 0..wrong.len() {
            for byte in [0, 1, 0x7F, 0x80, 0xFF] {
                let right = std::mem::replace(&mut wrong[at], byte);
                let (_, peak) = ALLOCATOR.peak_of(|| read(&wrong, false) | Frame::decode(&wrong).is_ok());
                assert_eq!(peak, 0, "bytes allocated for {wrong:?}");
                wrong[at] = right;
            }
        }
    }
}

#[test]
fn a_cached_relation_takes_a_small_multiple_of_its_relation_message() {
    for (columns, name) in [(0, ""), (1, ""), (1_600, ""), (u16::MAX, ""), (u16::MAX, "a_name_of_a_column")] {
        let bytes = relation(7, columns, name);
        let mut relations = RelationCache::new();
        let (is_new, peak) = ALLOCATOR.peak_of(|| relations.apply(&decoded(&bytes)));
        assert!(is_new && peak <= MULTIPLE * bytes.len() + CONSTANT, "{peak} bytes for {}", bytes.len());
    }
}

#[test]
fn a_relation_that_is_announced_repeatedly_is_cached_once() {
    let (bytes, other) = (relation(7, 100, "name"), relation(7, 100, "other"));
    let mut relations = RelationCache::new();
    relations.apply(&decoded(&bytes));
    let (_, peak) = ALLOCATOR.peak_of(|| (0..1_000).for_each(|_| _ = relations.apply(&decoded(&bytes))));
    assert_eq!(peak, 0, "an equal relation allocates nothing");
    let (_, peak) = ALLOCATOR.peak_of(|| {
        for announced in [&other, &bytes].into_iter().cycle().take(1_000) {
            relations.apply(&decoded(announced));
        }
    });
    assert!(peak <= MULTIPLE * other.len() + CONSTANT, "{peak} bytes: the replaced relation is freed");
    assert_eq!(relations.len(), 1);
}

#[test]
fn many_cached_relations_take_a_small_multiple_of_their_messages() {
    let messages: Vec<_> = (0..20_000).map(|oid| relation(oid, 1, "")).collect();
    let arrived: usize = messages.iter().map(Vec::len).sum();
    let mut relations = RelationCache::new();
    let (_, peak) =
        ALLOCATOR.peak_of(|| messages.iter().for_each(|bytes| _ = relations.apply(&decoded(bytes))));
    assert_eq!(relations.len(), messages.len());
    assert!(peak <= MULTIPLE * arrived + CONSTANT, "{peak} bytes for {arrived}");
}

#[test]
fn a_snapshot_takes_a_small_multiple_of_its_text() {
    let running: Vec<_> = (10..50_000).map(|xid: u32| xid.to_string()).collect();
    let text = format!("10:50000:{}", running.join(","));
    let (snapshot, peak) = ALLOCATOR.peak_of(|| text.parse::<Snapshot>());
    assert_eq!(snapshot.unwrap().xip.len(), running.len());
    assert!(peak <= MULTIPLE * text.len() + CONSTANT, "{peak} bytes for {}", text.len());
}
