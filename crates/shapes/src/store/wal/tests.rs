use proptest::prelude::*;

use super::*;
use crate::store::disk::SimulatedDisk;
use crate::store::record::Note;

fn note(lsn: u64, bytes: usize) -> Record {
    Record::Note(Note::Advance { lsn }, Bytes::from(vec![7; bytes]))
}

/// Returns a disk with one segment of these records, and the end of each record.
fn written(records: &[Record]) -> (SimulatedDisk, Vec<u64>) {
    let disk = SimulatedDisk::new(1);
    disk.make_dir(DIR).unwrap();
    disk.sync_dir("").unwrap();
    let mut wal = WalWriter::create(Arc::new(disk.clone()), 3).unwrap();
    let ends = records.iter().map(|record| {
        let mut head = Vec::new();
        let text = frame::write_frame(record, &mut head);
        wal.append(&[IoSlice::new(&head), IoSlice::new(&text)]).unwrap();
        wal.position().at
    });
    let ends = ends.collect();
    (disk, ends)
}

fn read(disk: &SimulatedDisk, from: WalPosition, to: Option<u64>) -> (Vec<Record>, u64, bool) {
    let mut records = WalRecords::open(disk, from, to).unwrap().expect("the segment exists");
    let read = std::iter::from_fn(|| records.next().unwrap()).collect();
    (read, records.at(), records.is_at_end())
}

#[test]
fn a_segment_is_read_from_any_record_up_to_any_position() {
    let records =
        [note(1, 10), note(2, WINDOW_BYTES + 5), note(3, 0), note(4, WINDOW_BYTES - 30), note(5, 1)];
    let (disk, ends) = written(&records);
    let start = WalPosition::start(3);
    assert_eq!(read(&disk, start, None), (records.to_vec(), ends[4], true));
    assert_eq!(
        read(&disk, WalPosition { at: ends[1], ..start }, None),
        (records[2..].to_vec(), ends[4], true)
    );
    assert_eq!(read(&disk, start, Some(ends[2])), (records[..3].to_vec(), ends[2], true));
    // The durable position is always the end of a record, but readers don't rely on it.
    assert_eq!(read(&disk, start, Some(ends[2] - 1)), (records[..2].to_vec(), ends[1], false));
    assert_eq!(read(&disk, WalPosition { at: ends[4], ..start }, None), (Vec::new(), ends[4], true));
    assert!(WalRecords::open(&disk, WalPosition::start(4), None).unwrap().is_none());
}

#[test]
fn a_segment_without_magic_bytes_is_damaged_unless_it_has_no_records() {
    let (disk, _) = written(&[note(1, 10)]);
    disk.open(&segment_path(3)).unwrap().write_all_at(b"F", 0).unwrap();
    assert!(matches!(WalRecords::open(&disk, WalPosition::start(3), None), Err(OpenError::Damaged { .. })));
    for torn in [&b""[..], b"foreb", &[0; 16]] {
        disk.create(&segment_path(4)).unwrap().write_all_at(torn, 0).unwrap();
        assert_eq!(read(&disk, WalPosition::start(4), None), (vec![], 16, true));
    }
}

#[test]
fn records_that_were_never_synced_are_rewritten_and_durable() {
    let records = [note(1, 10), note(2, 2000), note(3, 10)];
    for seed in 0..50 {
        let (disk, ends) = written(&records);
        let file = disk.open(&segment_path(3)).unwrap();
        file.write_all_at(&[9; 700], ends[2]).unwrap();
        // After the failed sync the bytes are readable but not durable, and a second sync doesn't
        // help.
        disk.fail_sync();
        assert!(file.sync_data().is_err() && file.sync_data().is_ok());
        rewrite_unsynced(&disk, Some(WalPosition::default())).unwrap();
        let left = disk.after_crash(seed);
        assert_eq!(read(&left, WalPosition::start(3), None).0, records);
        truncate_after(&left, WalPosition { segment: 3, at: ends[2] }).unwrap();
        let (again, at, is_at_end) = read(&left.after_crash(seed), WalPosition::start(3), None);
        assert_eq!((again, at, is_at_end), (records.to_vec(), ends[2], true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_torn_segment_yields_the_records_before_the_tear(
        sizes in prop::collection::vec(0..3000_usize, 1..8),
        tear in 0..20_000_u64,
        flip in 1_u8..,
    ) {
        let records: Vec<_> = sizes.iter().enumerate().map(|(at, size)| note(at as u64, *size)).collect();
        let (disk, ends) = written(&records);
        let (start, file) = (WalPosition::start(3), disk.open(&segment_path(3)).unwrap());
        let tear = start.at + tear % (ends[ends.len() - 1] - start.at);
        let byte = shape_files::read_range(&*file, tear, tear + 1).unwrap()[0] ^ flip;
        file.write_all_at(&[byte], tear).unwrap();
        let whole = ends.iter().filter(|end| **end <= tear).count();
        let (read_back, at, is_at_end) = read(&disk, start, None);
        prop_assert_eq!(read_back, &records[..whole]);
        prop_assert_eq!((at, is_at_end), (if whole == 0 { start.at } else { ends[whole - 1] }, false));
        file.set_len(tear).unwrap();
        prop_assert_eq!(read(&disk, start, None).0, &records[..whole]);
    }
}
