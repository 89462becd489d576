//! What a newer version wrote, and what is damaged, is refused by name; no byte of the folder
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::StoreConfig;
use crate::offset::Offset;
use crate::registry::lock;
use crate::shape::LogListener;
use crate::shapes::Shapes;
use crate::simulation::follow_bench::{FollowBench, ITEMS, choice, row};
use crate::simulation::message_bytes::MessageBytes;
use crate::store::catalog::{self, FORMAT};
use crate::store::disk::{Disk, SimulatedDisk};
use crate::store::head::Head;
use crate::store::record::{self, CatalogHead, Note, Record, framed_payload};
use crate::store::wal::{self, Place};
use crate::store::{OpenError, StoreUnusable, files};

/// A store with a shape, a checkpoint, and three records of changes after it.
fn written() -> SimulatedDisk {
    let mut bench = FollowBench::new();
    let _shape = bench.shape(choice(None));
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "5", "a"]))]);
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    for id in ["2", "3", "4"] {
        bench.transact(&[MessageBytes::insert(ITEMS, &row([id, "5", "a"]))]);
    }
    bench.disk.after_kill()
}

fn open(disk: &SimulatedDisk) -> Result<Shapes, OpenError> {
    Shapes::on(Arc::new(disk.clone()), StoreConfig::new("/nowhere"))
}

fn read(disk: &SimulatedDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path).unwrap();
    files::read(&*file, 0, file.len().unwrap()).unwrap()
}

fn write(disk: &SimulatedDisk, path: &str, bytes: &[u8]) {
    disk.create(path).unwrap().write_all_at(bytes, 0).unwrap();
}

/// Every file, with its bytes.
fn contents(disk: &SimulatedDisk) -> BTreeMap<String, Vec<u8>> {
    let all = ["", "wal", "shapes"].into_iter().flat_map(|dir| {
        let slash = if dir.is_empty() { "" } else { "/" };
        disk.list(dir).unwrap().into_iter().map(move |name| format!("{dir}{slash}{name}"))
    });
    all.filter(|path| path != "wal" && path != "shapes")
        .map(|path| (path.clone(), read(disk, &path)))
        .collect()
}

/// Where the log ends.
fn end(disk: &SimulatedDisk) -> Place {
    let segment = *wal::segments(disk).unwrap().last().unwrap();
    Place { segment, at: read(disk, &wal::path(segment)).len() as u64 }
}

fn append(disk: &SimulatedDisk, bytes: &[u8]) {
    let Place { segment, at } = end(disk);
    disk.open(&wal::path(segment)).unwrap().write_all_at(bytes, at).unwrap();
}

/// Says that everything is durable that the log has.
fn tell(disk: &SimulatedDisk, catalog: u64) {
    let head = Head { durable: end(disk), catalog };
    head.write(&*Head::file(disk).unwrap()).unwrap();
}

fn framed(note: Note) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _nothing = record::frame(&Record::Note(note, Bytes::new()), &mut bytes);
    bytes
}

/// Changes a folder as another process does; then neither an instance that starts, nor one that was
/// reading, uses it or changes it.
#[track_caller]
fn is_refused(
    change: impl Fn(&SimulatedDisk),
    expected: StoreUnusable,
    is_expected: impl Fn(&OpenError) -> bool,
) {
    let disk = written();
    let beside = open(&disk).unwrap();
    assert_eq!(beside.unusable(), None);
    change(&disk);
    let before = contents(&disk);
    let refused = |error: &OpenError| is_expected(error) && error.unusable() == Some(expected);

    let error = open(&disk).map(drop).unwrap_err();
    assert!(refused(&error), "{error}");
    let error = beside.begin_writing().unwrap_err();
    assert!(refused(&error), "{error}");
    assert_eq!(beside.unusable(), Some(expected));
    assert!(!beside.is_writing());
    assert!(disk.try_lock().unwrap().is_some(), "the lock is given back");
    assert_eq!(contents(&disk), before);
}

/// The same, and an instance that reads beside the writer finds out by itself.
#[track_caller]
fn is_refused_beside(
    change: impl Fn(&SimulatedDisk),
    expected: StoreUnusable,
    is_expected: impl Fn(&OpenError) -> bool,
) {
    let disk = written();
    let beside = open(&disk).unwrap();
    beside.refresh().unwrap();
    change(&disk);
    let before = contents(&disk);
    for _ in 0..2 {
        let error = beside.refresh().unwrap_err();
        assert!(is_expected(&error) && error.unusable() == Some(expected), "{error}");
        assert_eq!(beside.unusable(), Some(expected));
    }
    assert_eq!(contents(&disk), before);
    is_refused(change, expected, is_expected);
}

fn unknown_payloads() -> [Vec<u8>; 3] {
    let note = |json: &str| [&[3, json.len() as u8], json.as_bytes()].concat();
    [vec![9, 1, 2, 3], note(r#"{"merge":{"id":5}}"#), note(r#"{"delete":{"handle":"1-2"}}"#)]
}

fn in_the_log(error: &OpenError) -> bool {
    matches!(error, OpenError::Unreadable { file, .. } if file.starts_with("wal/"))
}

#[test]
fn an_unknown_record_in_the_middle_of_the_log_is_refused() {
    for payload in unknown_payloads() {
        let change = |disk: &SimulatedDisk| {
            append(disk, &framed_payload(&payload));
            append(disk, &framed(Note::Advance { lsn: 9000 }));
            tell(disk, 1);
        };
        is_refused_beside(change, StoreUnusable::OtherVersion, in_the_log);
    }
}

#[test]
fn an_unknown_record_at_the_end_of_the_log_is_refused_whether_it_is_known_to_be_durable_or_not() {
    for payload in unknown_payloads() {
        let change = |disk: &SimulatedDisk| append(disk, &framed_payload(&payload));
        is_refused(change, StoreUnusable::OtherVersion, in_the_log);
        let told = |disk: &SimulatedDisk| {
            change(disk);
            tell(disk, 1);
        };
        is_refused_beside(told, StoreUnusable::OtherVersion, in_the_log);
        // After a power failure, the head may be gone.
        let headless = |disk: &SimulatedDisk| {
            change(disk);
            disk.remove("head").unwrap();
        };
        is_refused(headless, StoreUnusable::OtherVersion, in_the_log);
    }
}

#[test]
fn an_unknown_record_after_a_whole_one_beyond_the_head_is_refused() {
    let change = |disk: &SimulatedDisk| {
        append(disk, &framed(Note::Advance { lsn: 9000 }));
        append(disk, &framed_payload(&[9]));
    };
    is_refused(change, StoreUnusable::OtherVersion, in_the_log);
}

/// The catalog, with its first record replaced, and one more after it.
fn recatalog(disk: &SimulatedDisk, first: Option<&[u8]>, second: &[u8]) {
    let bytes = read(disk, catalog::NAME);
    let (old, rest) = bytes.split_at(record::length(&bytes));
    write(disk, catalog::NAME, &[first.unwrap_or(old), second, rest].concat());
    // The writer says that there is another catalog.
    tell(disk, 2);
}

#[test]
fn a_catalog_with_an_unknown_record_is_refused() {
    for payload in unknown_payloads() {
        let change = |disk: &SimulatedDisk| recatalog(disk, None, &framed_payload(&payload));
        let in_the_catalog =
            |error: &OpenError| matches!(error, OpenError::Unreadable { file, .. } if file == "catalog");
        is_refused_beside(change, StoreUnusable::OtherVersion, in_the_catalog);
    }
}

#[test]
fn a_catalog_of_a_newer_format_is_refused() {
    let newer = framed(Note::Catalog(CatalogHead { format: FORMAT + 1, ..CatalogHead::default() }));
    let change = |disk: &SimulatedDisk| recatalog(disk, Some(&newer), &[]);
    let is_format =
        |error: &OpenError| matches!(error, OpenError::Format { found, .. } if *found == FORMAT + 1);
    is_refused_beside(change, StoreUnusable::OtherVersion, is_format);
}

#[test]
fn a_segment_of_another_version_is_refused_though_nothing_is_in_it() {
    let magic = b"forebay wal 002\n";
    let all = |disk: &SimulatedDisk| {
        let last = disk.open(&wal::path(end(disk).segment)).unwrap();
        last.write_all_at(magic, 0).unwrap();
    };
    is_refused_beside(all, StoreUnusable::OtherVersion, in_the_log);
    let next = |disk: &SimulatedDisk| write(disk, &wal::path(end(disk).segment + 1), magic);
    is_refused(next, StoreUnusable::OtherVersion, in_the_log);
}

fn is_damaged(error: &OpenError) -> bool {
    matches!(error, OpenError::Damaged { file: "the log" })
}

#[test]
fn damage_before_what_is_durable_is_refused_and_never_cut() {
    // In the record before the last, of which an instance that was reading has heard.
    let flip = |disk: &SimulatedDisk| {
        let Place { segment, at } = end(disk);
        let byte = read(disk, &wal::path(segment))[at as usize - 300] ^ 1;
        disk.open(&wal::path(segment)).unwrap().write_all_at(&[byte], at - 300).unwrap();
    };
    let disk = written();
    flip(&disk);
    let before = contents(&disk);
    assert!(is_damaged(&open(&disk).map(drop).unwrap_err()));
    assert_eq!(contents(&disk), before);

    // In one that it hasn't.
    let damaged = |disk: &SimulatedDisk| {
        let mut bytes = framed(Note::Advance { lsn: 9000 });
        *bytes.last_mut().unwrap() ^= 1;
        append(disk, &bytes);
        append(disk, &framed(Note::Advance { lsn: 9001 }));
        tell(disk, 1);
    };
    is_refused_beside(damaged, StoreUnusable::Damaged, is_damaged);
    let shorter = |disk: &SimulatedDisk| {
        append(disk, &framed(Note::Advance { lsn: 9000 }));
        tell(disk, 1);
        let Place { segment, at } = end(disk);
        disk.open(&wal::path(segment)).unwrap().set_len(at - 1).unwrap();
    };
    is_refused_beside(shorter, StoreUnusable::Damaged, is_damaged);
}

#[test]
fn a_segment_that_another_follows_is_never_cut() {
    let change = |disk: &SimulatedDisk| {
        let Place { segment, at } = end(disk);
        append(disk, b"torn");
        write(disk, &wal::path(segment + 1), b"forebay wal 001\n");
        Head { durable: Place { segment, at }, catalog: 1 }.write(&*Head::file(disk).unwrap()).unwrap();
    };
    let disk = written();
    change(&disk);
    let (store, before) = (open(&disk).unwrap(), contents(&disk));
    assert!(is_damaged(&store.begin_writing().unwrap_err()));
    assert_eq!(contents(&disk), before);
}

#[test]
fn a_log_without_the_segment_that_its_catalog_names_is_damaged() {
    let disk = written();
    disk.remove(&wal::path(end(&disk).segment)).unwrap();
    assert!(is_damaged(&open(&disk).map(drop).unwrap_err()));
}

#[test]
fn a_torn_end_that_was_never_durable_is_cut() {
    let disk = written();
    let (store, last, whole) = (open(&disk).unwrap(), end(&disk).segment, end(&disk));
    let mut torn = framed(Note::Advance { lsn: 9000 });
    *torn.last_mut().unwrap() ^= 1;
    // What was appended with it may have come to the disk, also of a newer version.
    append(&disk, &torn);
    append(&disk, &framed_payload(&[9]));
    let again = open(&disk).unwrap();
    again.begin_writing().unwrap();
    again.end_writing();
    assert_eq!(store.position(), again.position());
    if let Ok(file) = disk.open(&wal::path(last)) {
        assert_eq!(file.len().unwrap(), whole.at);
    }
    assert_eq!(again.unusable(), None);
}

#[derive(Debug, Default)]
struct Ends(std::sync::Mutex<usize>);

impl LogListener for Ends {
    fn published(&self, _: &[Bytes], _: Offset, _: u64) -> bool {
        true
    }

    fn ended(&self) {
        *lock(&self.0) += 1;
    }
}

#[test]
fn listeners_to_a_store_that_cant_be_read_on_are_ended() {
    let disk = written();
    let store = open(&disk).unwrap();
    let shape = store.all().remove(0);
    let listener = Arc::new(Ends::default());
    shape.lock().listener = Some(Arc::clone(&listener) as Arc<dyn LogListener>);
    store.refresh().unwrap();
    assert_eq!(*lock(&listener.0), 0);
    append(&disk, &framed_payload(&[9]));
    tell(&disk, 1);
    store.refresh().unwrap_err();
    assert_eq!(*lock(&listener.0), 1);
    assert_eq!(shape.gone(), None);
}
