//! Files of a newer version and damaged files: they are refused with the file's name, and no byte
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::StoreConfig;
use crate::offset::Offset;
use crate::shape::LogListener;
use crate::shapes::Shapes;
use crate::simulation::follow_bench::{FollowBench, ITEMS, options, row};
use crate::simulation::message_bytes::MessageBytes;
use crate::store::catalog::{self, FORMAT};
use crate::store::disk::{Disk, SimulatedDisk};
use crate::store::frame::{self, framed_payload};
use crate::store::record::{CatalogHeader, Note, Record};
use crate::store::wal::{self, WalPosition};
use crate::store::writer_head::WriterHead;
use crate::store::{OpenError, StoreUnusable, shape_files};

/// Returns a disk with a shape, a checkpoint, and three records of changes after it.
fn written() -> SimulatedDisk {
    let mut bench = FollowBench::new();
    let _shape = bench.shape(options(None));
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
    shape_files::read_range(&*file, 0, file.len().unwrap()).unwrap()
}

fn write(disk: &SimulatedDisk, path: &str, bytes: &[u8]) {
    disk.create(path).unwrap().write_all_at(bytes, 0).unwrap();
}

/// Returns the bytes of every file.
fn contents(disk: &SimulatedDisk) -> BTreeMap<String, Vec<u8>> {
    let all = ["", "wal", "shapes"].into_iter().flat_map(|dir| {
        let slash = if dir.is_empty() { "" } else { "/" };
        disk.list(dir).unwrap().into_iter().map(move |name| format!("{dir}{slash}{name}"))
    });
    all.filter(|path| path != "wal" && path != "shapes")
        .map(|path| (path.clone(), read(disk, &path)))
        .collect()
}

/// Returns the end of the WAL.
fn end(disk: &SimulatedDisk) -> WalPosition {
    let segment = *wal::segments(disk).unwrap().last().unwrap();
    WalPosition { segment, at: read(disk, &wal::segment_path(segment)).len() as u64 }
}

fn append(disk: &SimulatedDisk, bytes: &[u8]) {
    let WalPosition { segment, at } = end(disk);
    disk.open(&wal::segment_path(segment)).unwrap().write_all_at(bytes, at).unwrap();
}

/// Writes a head file for which the whole WAL is durable.
fn write_head(disk: &SimulatedDisk, catalog: u64) {
    let head = WriterHead { durable: end(disk), catalog };
    head.write(&*WriterHead::open_or_create(disk).unwrap()).unwrap();
}

fn framed(note: Note) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _nothing = frame::write_frame(&Record::Note(note, Bytes::new()), &mut bytes);
    bytes
}

/// Changes the directory as another process does. Asserts that neither a new instance nor one that
/// was reading uses it or changes it.
#[track_caller]
fn assert_refused(
    change: impl Fn(&SimulatedDisk),
    expected: StoreUnusable,
    is_expected: impl Fn(&OpenError) -> bool,
) {
    let disk = written();
    let reader = open(&disk).unwrap();
    assert_eq!(reader.unusable(), None);
    change(&disk);
    let before = contents(&disk);
    let refused = |error: &OpenError| is_expected(error) && error.unusable() == Some(expected);

    let error = open(&disk).map(drop).unwrap_err();
    assert!(refused(&error), "{error}");
    let error = reader.begin_writing().unwrap_err();
    assert!(refused(&error), "{error}");
    assert_eq!(reader.unusable(), Some(expected));
    assert!(!reader.is_writing());
    assert!(disk.try_lock().unwrap().is_some(), "the directory is unlocked");
    assert_eq!(contents(&disk), before);
}

/// As [`assert_refused`]. Also asserts that an instance that reads while another one writes detects
/// it by a refresh.
#[track_caller]
fn assert_reader_refuses(
    change: impl Fn(&SimulatedDisk),
    expected: StoreUnusable,
    is_expected: impl Fn(&OpenError) -> bool,
) {
    let disk = written();
    let reader = open(&disk).unwrap();
    reader.refresh().unwrap();
    change(&disk);
    let before = contents(&disk);
    for _ in 0..2 {
        let error = reader.refresh().unwrap_err();
        assert!(is_expected(&error) && error.unusable() == Some(expected), "{error}");
        assert_eq!(reader.unusable(), Some(expected));
    }
    assert_eq!(contents(&disk), before);
    assert_refused(change, expected, is_expected);
}

fn unknown_payloads() -> [Vec<u8>; 3] {
    let note = |json: &str| [&[3, json.len() as u8], json.as_bytes()].concat();
    [vec![9, 1, 2, 3], note(r#"{"merge":{"id":5}}"#), note(r#"{"delete":{"handle":"1-2"}}"#)]
}

fn is_unreadable_wal(error: &OpenError) -> bool {
    matches!(error, OpenError::Unreadable { file, .. } if file.starts_with("wal/"))
}

#[test]
fn an_unknown_record_in_the_middle_of_the_wal_is_refused() {
    for payload in unknown_payloads() {
        let change = |disk: &SimulatedDisk| {
            append(disk, &framed_payload(&payload));
            append(disk, &framed(Note::Advance { lsn: 9000 }));
            write_head(disk, 1);
        };
        assert_reader_refuses(change, StoreUnusable::OtherVersion, is_unreadable_wal);
    }
}

#[test]
fn an_unknown_record_at_the_end_of_the_wal_is_refused_with_or_without_a_head_that_covers_it() {
    for payload in unknown_payloads() {
        let change = |disk: &SimulatedDisk| append(disk, &framed_payload(&payload));
        assert_refused(change, StoreUnusable::OtherVersion, is_unreadable_wal);
        let durable = |disk: &SimulatedDisk| {
            change(disk);
            write_head(disk, 1);
        };
        assert_reader_refuses(durable, StoreUnusable::OtherVersion, is_unreadable_wal);
        // After a power failure, the head may be missing.
        let without_head = |disk: &SimulatedDisk| {
            change(disk);
            disk.remove("head").unwrap();
        };
        assert_refused(without_head, StoreUnusable::OtherVersion, is_unreadable_wal);
    }
}

#[test]
fn an_unknown_record_after_a_whole_one_that_the_head_does_not_cover_is_refused() {
    let change = |disk: &SimulatedDisk| {
        append(disk, &framed(Note::Advance { lsn: 9000 }));
        append(disk, &framed_payload(&[9]));
    };
    assert_refused(change, StoreUnusable::OtherVersion, is_unreadable_wal);
}

/// Replaces the catalog's first record, and inserts a record after it.
fn rewrite_catalog(disk: &SimulatedDisk, first: Option<&[u8]>, second: &[u8]) {
    let bytes = read(disk, catalog::FILE_NAME);
    let (old, rest) = bytes.split_at(frame::framed_length(&bytes));
    write(disk, catalog::FILE_NAME, &[first.unwrap_or(old), second, rest].concat());
    // The head states that there is a new catalog.
    write_head(disk, 2);
}

#[test]
fn a_catalog_with_an_unknown_record_is_refused() {
    for payload in unknown_payloads() {
        let change = |disk: &SimulatedDisk| rewrite_catalog(disk, None, &framed_payload(&payload));
        let is_unreadable_catalog =
            |error: &OpenError| matches!(error, OpenError::Unreadable { file, .. } if file == "catalog");
        assert_reader_refuses(change, StoreUnusable::OtherVersion, is_unreadable_catalog);
    }
}

#[test]
fn a_catalog_of_a_newer_format_is_refused() {
    let newer = framed(Note::Catalog(CatalogHeader { format: FORMAT + 1, ..CatalogHeader::default() }));
    let change = |disk: &SimulatedDisk| rewrite_catalog(disk, Some(&newer), &[]);
    let is_format =
        |error: &OpenError| matches!(error, OpenError::Format { found, .. } if *found == FORMAT + 1);
    assert_reader_refuses(change, StoreUnusable::OtherVersion, is_format);
}

/// A newer version was killed after it wrote its catalog and before it wrote the head. Its last
/// record is beyond the old head.
#[test]
fn a_catalog_of_a_newer_format_is_refused_even_if_the_head_does_not_show_it() {
    let newer = framed(Note::Catalog(CatalogHeader { format: FORMAT + 1, ..CatalogHeader::default() }));
    let change = |disk: &SimulatedDisk| {
        append(disk, &framed(Note::Advance { lsn: u64::MAX }));
        write(disk, catalog::FILE_NAME, &newer);
    };
    let is_format =
        |error: &OpenError| matches!(error, OpenError::Format { found, .. } if *found == FORMAT + 1);
    assert_refused(change, StoreUnusable::OtherVersion, is_format);
}

#[test]
fn a_segment_of_another_version_is_refused_even_if_it_is_empty() {
    let magic = b"forebay wal 002\n";
    let all = |disk: &SimulatedDisk| {
        let last = disk.open(&wal::segment_path(end(disk).segment)).unwrap();
        last.write_all_at(magic, 0).unwrap();
    };
    assert_reader_refuses(all, StoreUnusable::OtherVersion, is_unreadable_wal);
    let next = |disk: &SimulatedDisk| write(disk, &wal::segment_path(end(disk).segment + 1), magic);
    assert_refused(next, StoreUnusable::OtherVersion, is_unreadable_wal);
}

fn is_damaged(error: &OpenError) -> bool {
    matches!(error, OpenError::Damaged { file: "the write-ahead log" })
}

#[test]
fn damage_before_the_durable_position_is_refused_and_never_truncated() {
    // Damage to a record that a reading instance has applied.
    let flip = |disk: &SimulatedDisk| {
        let WalPosition { segment, at } = end(disk);
        let byte = read(disk, &wal::segment_path(segment))[at as usize - 300] ^ 1;
        disk.open(&wal::segment_path(segment)).unwrap().write_all_at(&[byte], at - 300).unwrap();
    };
    let disk = written();
    flip(&disk);
    let before = contents(&disk);
    assert!(is_damaged(&open(&disk).map(drop).unwrap_err()));
    assert_eq!(contents(&disk), before);

    // Damage to a record that it has not applied.
    let damaged = |disk: &SimulatedDisk| {
        let mut bytes = framed(Note::Advance { lsn: 9000 });
        *bytes.last_mut().unwrap() ^= 1;
        append(disk, &bytes);
        append(disk, &framed(Note::Advance { lsn: 9001 }));
        write_head(disk, 1);
    };
    assert_reader_refuses(damaged, StoreUnusable::Damaged, is_damaged);
    let shorter = |disk: &SimulatedDisk| {
        append(disk, &framed(Note::Advance { lsn: 9000 }));
        write_head(disk, 1);
        let WalPosition { segment, at } = end(disk);
        disk.open(&wal::segment_path(segment)).unwrap().set_len(at - 1).unwrap();
    };
    assert_reader_refuses(shorter, StoreUnusable::Damaged, is_damaged);
}

#[test]
fn a_segment_with_a_successor_is_never_truncated() {
    let change = |disk: &SimulatedDisk| {
        let WalPosition { segment, at } = end(disk);
        append(disk, b"torn");
        write(disk, &wal::segment_path(segment + 1), b"forebay wal 001\n");
        WriterHead { durable: WalPosition { segment, at }, catalog: 1 }
            .write(&*WriterHead::open_or_create(disk).unwrap())
            .unwrap();
    };
    let disk = written();
    change(&disk);
    let (store, before) = (open(&disk).unwrap(), contents(&disk));
    assert!(is_damaged(&store.begin_writing().unwrap_err()));
    assert_eq!(contents(&disk), before);
}

#[test]
fn a_wal_without_the_segment_of_its_catalog_is_damaged() {
    let disk = written();
    disk.remove(&wal::segment_path(end(&disk).segment)).unwrap();
    assert!(is_damaged(&open(&disk).map(drop).unwrap_err()));
}

#[test]
fn a_torn_end_that_was_never_durable_is_truncated() {
    let disk = written();
    let (store, last, whole) = (open(&disk).unwrap(), end(&disk).segment, end(&disk));
    let mut torn = framed(Note::Advance { lsn: 9000 });
    *torn.last_mut().unwrap() ^= 1;
    // Records after the torn one may be on the disk, even those of a newer version.
    append(&disk, &torn);
    append(&disk, &framed_payload(&[9]));
    let again = open(&disk).unwrap();
    again.begin_writing().unwrap();
    again.end_writing();
    assert_eq!(store.position(), again.position());
    if let Ok(file) = disk.open(&wal::segment_path(last)) {
        assert_eq!(file.len().unwrap(), whole.at);
    }
    assert_eq!(again.unusable(), None);
}

#[derive(Debug, Default)]
struct CountingListener(parking_lot::Mutex<usize>);

impl LogListener for CountingListener {
    fn published(&self, _: &[Bytes], _: Offset, _: u64) -> bool {
        true
    }

    fn ended(&self) {
        *self.0.lock() += 1;
    }
}

#[test]
fn listeners_are_ended_when_the_store_becomes_unreadable() {
    let disk = written();
    let store = open(&disk).unwrap();
    let shape = store.all().remove(0);
    let listener = Arc::new(CountingListener::default());
    shape.lock().listener = Some(Arc::clone(&listener) as Arc<dyn LogListener>);
    store.refresh().unwrap();
    assert_eq!(*listener.0.lock(), 0);
    append(&disk, &framed_payload(&[9]));
    write_head(&disk, 1);
    store.refresh().unwrap_err();
    assert_eq!(*listener.0.lock(), 1);
    assert_eq!(shape.gone(), None);
}
