//! What a server announces costs nothing: decoding allocates not one byte, whatever counts and lengths a message names; what is kept of
//! a table, or of a snapshot, is a small multiple of the bytes that have arrived.
//!
//! A binary of its own, because its allocator counts what each thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_pgoutput::{Decoder, Frame, Message, Relation, Relations, Snapshot};

/// The system's allocator, with a count of what the current thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call goes to the system's allocator as it came; counting touches two cells that need no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old block may live until the new one is filled.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Times the bytes that have arrived: a name of no letters is one byte on the wire, and a `String` here.
const MULTIPLE: usize = 20;
/// For what is there before the first table.
const CONSTANT: usize = 1024;

/// The most that is allocated at a time while it runs.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let done = work();
    (done, (PEAK.get() - before) as usize)
}

/// Reads a message and walks over all that is in it; says whether it is one.
fn read(bytes: &[u8], streamed: bool) -> bool {
    let mut decoder = Decoder::new();
    if streamed {
        assert!(decoder.decode(b"S\0\0\x02\xF0\x01").is_ok(), "a stream begins");
    }
    match decoder.decode(bytes) {
        Ok(Message::Insert(insert)) => insert.new.iter().count() == insert.new.len(),
        Ok(Message::Relation(relation)) => relation.columns.iter().count() == relation.columns.len(),
        Ok(Message::Truncate(truncate)) => truncate.relations.iter().count() < usize::MAX,
        other => other.is_ok(),
    }
}

#[track_caller]
fn refused_for_nothing(bytes: &[u8]) {
    let (is_read, peak) = peak_of(|| read(bytes, false));
    assert!(!is_read, "{bytes:?} is no message");
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
    match Decoder::new().decode(bytes) {
        Ok(Message::Relation(relation)) => relation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn absurd_counts_and_lengths_are_refused_before_anything_is_allocated() {
    refused_for_nothing(b"I\0\0\x40\x07N\xFF\xFF"); // 65,535 values
    refused_for_nothing(b"I\0\0\x40\x07N\0\x01t\xFF\xFF\xFF\xFF"); // a value of 4 GiB
    refused_for_nothing(b"U\0\0\x40\x07O\xFF\xFFn");
    refused_for_nothing(b"D\0\0\x40\x07K\0\x01b\x7F\xFF\xFF\xFF");
    refused_for_nothing(b"T\xFF\xFF\xFF\xFF\0"); // four thousand million tables
    refused_for_nothing(b"R\0\0\x40\x07\0t\0d\xFF\xFF"); // 65,535 columns
    refused_for_nothing(b"M\0\0\0\0\0\0\0\0\0p\0\xFF\xFF\xFF\xFF"); // a message of 4 GiB
}

#[test]
fn what_never_ends_is_refused_for_nothing() {
    let name = [b"R\0\0\x40\x07".as_slice(), &[b'n'; 1 << 20]].concat();
    let (is_read, peak) = peak_of(|| read(&name, false));
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
            let (_, peak) = peak_of(|| read(&message[..length], false) | read(&message[..length], true));
            assert_eq!(peak, 0, "bytes allocated for {:?}", &message[..length]);
        }
        let mut wrong = message.to_vec();
        for at in 0..wrong.len() {
            for byte in [0, 1, 0x7F, 0x80, 0xFF] {
                let right = std::mem::replace(&mut wrong[at], byte);
                let (_, peak) = peak_of(|| read(&wrong, false) | Frame::decode(&wrong).is_ok());
                assert_eq!(peak, 0, "bytes allocated for {wrong:?}");
                wrong[at] = right;
            }
        }
    }
}

#[test]
fn a_table_takes_a_small_multiple_of_the_message_that_announced_it() {
    for (columns, name) in [(0, ""), (1, ""), (1_600, ""), (u16::MAX, ""), (u16::MAX, "a_name_of_a_column")] {
        let bytes = relation(7, columns, name);
        let mut relations = Relations::new();
        let (is_new, peak) = peak_of(|| relations.apply(&decoded(&bytes)));
        assert!(is_new && peak <= MULTIPLE * bytes.len() + CONSTANT, "{peak} bytes for {}", bytes.len());
    }
}

#[test]
fn a_table_that_is_announced_again_and_again_is_kept_once() {
    let (bytes, other) = (relation(7, 100, "name"), relation(7, 100, "other"));
    let mut relations = Relations::new();
    relations.apply(&decoded(&bytes));
    let (_, peak) = peak_of(|| (0..1_000).for_each(|_| _ = relations.apply(&decoded(&bytes))));
    assert_eq!(peak, 0, "it is the same");
    let (_, peak) = peak_of(|| {
        for announced in [&other, &bytes].into_iter().cycle().take(1_000) {
            relations.apply(&decoded(announced));
        }
    });
    assert!(peak <= MULTIPLE * other.len() + CONSTANT, "{peak} bytes: the one before is gone");
    assert_eq!(relations.len(), 1);
}

#[test]
fn many_tables_take_a_small_multiple_of_all_that_announced_them() {
    let messages: Vec<_> = (0..20_000).map(|oid| relation(oid, 1, "")).collect();
    let arrived: usize = messages.iter().map(Vec::len).sum();
    let mut relations = Relations::new();
    let (_, peak) = peak_of(|| messages.iter().for_each(|bytes| _ = relations.apply(&decoded(bytes))));
    assert_eq!(relations.len(), messages.len());
    assert!(peak <= MULTIPLE * arrived + CONSTANT, "{peak} bytes for {arrived}");
}

#[test]
fn a_snapshot_takes_a_small_multiple_of_its_text() {
    let running: Vec<_> = (10..50_000).map(|xid: u32| xid.to_string()).collect();
    let text = format!("10:50000:{}", running.join(","));
    let (snapshot, peak) = peak_of(|| text.parse::<Snapshot>());
    assert_eq!(snapshot.unwrap().xip.len(), running.len());
    assert!(peak <= MULTIPLE * text.len() + CONSTANT, "{peak} bytes for {}", text.len());
}
