//! The cache of open files, and seeking in a file, compared with a scan of all messages.

use proptest::prelude::*;

use super::*;
use crate::store::disk::SimulatedDisk;
use crate::store::message_sequence::tests::message;

/// Returns a file with messages at these offsets, the start of each, and the end of the last.
fn file(messages: &[(Offset, usize)]) -> (Arc<dyn DiskFile>, Vec<u64>, u64) {
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    for (offset, width) in messages {
        starts.push(bytes.len() as u64);
        bytes.extend_from_slice(&message(*offset, *width));
    }
    let file = SimulatedDisk::new(0).create("log").unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    // Bytes after the end must not matter.
    file.write_all_at(b"\"lsn\":\"1\",\"op_position\":0,\"txids\":[1]}},\n\0\0\n", bytes.len() as u64)
        .unwrap();
    (file, starts, bytes.len() as u64)
}

#[test]
fn the_longest_offset_fits_in_the_bytes_read_from_the_end_of_a_message() {
    let longest = Offset::new(u64::MAX - 1, u64::MAX - 1);
    check(&[(Offset::new(10, 0), 500), (longest, 500)]);
    assert!(message(longest, 0).len() as u64 > OFFSET_BYTES);
}

fn check(messages: &[(Offset, usize)]) {
    let (file, starts, end) = file(messages);
    let beside = |offset: Offset| {
        [offset, Offset::new(offset.lsn, offset.op + 1), Offset::new(offset.lsn - 1, u64::MAX)]
    };
    for offset in messages.iter().flat_map(|(offset, _)| beside(*offset)).chain([Offset::FIRST]) {
        let before = messages.iter().take_while(|(other, _)| *other <= offset).count();
        let expected = starts.get(before).copied().unwrap_or(end);
        assert_eq!(seek(&*file, 0, end, offset).unwrap(), expected, "after {offset}");
    }
}

#[test]
fn open_files_are_bounded_and_the_least_recently_used_one_is_closed() {
    let disk = SimulatedDisk::new(0);
    disk.make_dir(DIR).unwrap();
    let files = ShapeFiles::new(Arc::new(disk), 2);
    let is_open = |shape: u64| files.open.lock().files.contains_key(&(shape, FileKind::Log(0)));
    for shape in [1, 2] {
        files.open_or_create(shape, FileKind::Log(0)).unwrap().write_all_at(&[shape as u8], 0).unwrap();
    }
    files.open(1, FileKind::Log(0)).unwrap();
    files.open_or_create(3, FileKind::Log(0)).unwrap();
    assert_eq!([1, 2, 3].map(is_open), [true, false, true]);
    assert_eq!(read_range(&*files.open_or_create(2, FileKind::Log(0)).unwrap(), 0, 1).unwrap(), [2]);
    assert_eq!(files.open(2, FileKind::Snapshot).unwrap_err().kind(), io::ErrorKind::NotFound);
    // An open file stays readable after its removal, and can't be opened again.
    let file = files.open(2, FileKind::Log(0)).unwrap();
    files.remove(2);
    assert_eq!(read_range(&*file, 0, 1).unwrap(), [2]);
    assert_eq!(files.open(2, FileKind::Log(0)).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn seeking_in_a_file_without_messages_returns_its_end() {
    let (file, ..) = file(&[]);
    assert_eq!(seek(&*file, 0, 0, Offset::new(5, 0)).unwrap(), 0);
}

#[test]
fn a_message_of_any_length_is_found() {
    for width in [0, 1, 4000, 4096, 65_536, 300_000] {
        check(&[(Offset::new(10, 0), width)]);
    }
}

#[test]
fn a_message_is_skipped_even_if_a_read_stops_within_its_end() {
    let (offset, head) = (Offset::new(10, 0), message(Offset::new(10, 0), 0).len());
    for edge in [4096_usize, 65_536] {
        for beyond in 0..40 {
            let (file, _, end) = file(&[(offset, edge + beyond - head)]);
            assert_eq!(seek(&*file, 0, end, offset).unwrap(), end, "{beyond} bytes after {edge}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn seeking_returns_the_same_as_a_scan_of_all_messages(
        steps in prop::collection::vec((0..3_u64, prop_oneof![9 => 0..200_usize, 2 => 3900..4200_usize, 1 => 60_000..140_000_usize]), 0..60),
    ) {
        let mut at = Offset::new(10, 0);
        let mut messages = Vec::new();
        for (step, width) in steps {
            at = if step == 0 { Offset::new(at.lsn + 7, 0) } else { Offset::new(at.lsn, at.op + step) };
            messages.push((at, width));
        }
        check(&messages);
    }
}
