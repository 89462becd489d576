use proptest::prelude::*;

use super::*;
use crate::store::disk::SimulatedDisk;
use crate::store::record::Note;

fn note(lsn: u64, bytes: usize) -> Record {
    Record::Note(Note::Advance { lsn }, Bytes::from(vec![7; bytes]))
}

/// A disk with a segment that has these records, and where each ends.
fn written(records: &[Record]) -> (SimulatedDisk, Vec<u64>) {
    let disk = SimulatedDisk::new(1);
    disk.make_dir(DIR).unwrap();
    disk.sync_dir("").unwrap();
    let mut wal = Wal::begin(Arc::new(disk.clone()), 3).unwrap();
    let ends = records.iter().map(|record| {
        let mut head = Vec::new();
        let text = record::frame(record, &mut head);
        wal.append(&[IoSlice::new(&head), IoSlice::new(&text)]).unwrap();
        wal.place().at
    });
    let ends = ends.collect();
    (disk, ends)
}

fn read(disk: &SimulatedDisk, from: Place, to: Option<u64>) -> (Vec<Record>, u64, bool) {
    let mut records = Records::open(disk, from, to).unwrap().expect("it is there");
    let read = std::iter::from_fn(|| records.next().unwrap()).collect();
    (read, records.at(), records.is_at_end())
}

#[test]
fn a_segment_is_read_from_any_record_up_to_any_place() {
    let records =
        [note(1, 10), note(2, WINDOW_BYTES + 5), note(3, 0), note(4, WINDOW_BYTES - 30), note(5, 1)];
    let (disk, ends) = written(&records);
    let start = Place::start(3);
    assert_eq!(read(&disk, start, None), (records.to_vec(), ends[4], true));
    assert_eq!(read(&disk, Place { at: ends[1], ..start }, None), (records[2..].to_vec(), ends[4], true));
    assert_eq!(read(&disk, start, Some(ends[2])), (records[..3].to_vec(), ends[2], true));
    // What is said to be durable ends with a record, but a reader needn't rely on it.
    assert_eq!(read(&disk, start, Some(ends[2] - 1)), (records[..2].to_vec(), ends[1], false));
    assert_eq!(read(&disk, Place { at: ends[4], ..start }, None), (Vec::new(), ends[4], true));
    assert!(Records::open(&disk, Place::start(4), None).unwrap().is_none());
}

#[test]
fn a_segment_that_doesnt_begin_as_one_is_damaged_unless_nothing_was_written_to_it() {
    let (disk, _) = written(&[note(1, 10)]);
    disk.open(&path(3)).unwrap().write_all_at(b"F", 0).unwrap();
    assert!(matches!(Records::open(&disk, Place::start(3), None), Err(OpenError::Damaged { .. })));
    for torn in [&b""[..], b"foreb", &[0; 16]] {
        disk.create(&path(4)).unwrap().write_all_at(torn, 0).unwrap();
        assert_eq!(read(&disk, Place::start(4), None), (vec![], 16, true));
    }
}

#[test]
fn what_was_written_but_never_synced_is_made_sure_of() {
    let records = [note(1, 10), note(2, 2000), note(3, 10)];
    for seed in 0..50 {
        let (disk, ends) = written(&records);
        let file = disk.open(&path(3)).unwrap();
        file.write_all_at(&[9; 700], ends[2]).unwrap();
        // It can be read, and isn't there, and another sync doesn't help.
        disk.fail_sync();
        assert!(file.sync_data().is_err() && file.sync_data().is_ok());
        secure(&disk, Some(Place::default())).unwrap();
        let left = disk.after_crash(seed);
        assert_eq!(read(&left, Place::start(3), None).0, records);
        cut(&left, Place { segment: 3, at: ends[2] }).unwrap();
        let (again, at, is_at_end) = read(&left.after_crash(seed), Place::start(3), None);
        assert_eq!((again, at, is_at_end), (records.to_vec(), ends[2], true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_torn_segment_has_the_records_before_the_tear(
        sizes in prop::collection::vec(0..3000_usize, 1..8),
        tear in 0..20_000_u64,
        flip in 1_u8..,
    ) {
        let records: Vec<_> = sizes.iter().enumerate().map(|(at, size)| note(at as u64, *size)).collect();
        let (disk, ends) = written(&records);
        let (start, file) = (Place::start(3), disk.open(&path(3)).unwrap());
        let tear = start.at + tear % (ends[ends.len() - 1] - start.at);
        let byte = files::read(&*file, tear, tear + 1).unwrap()[0] ^ flip;
        file.write_all_at(&[byte], tear).unwrap();
        let whole = ends.iter().filter(|end| **end <= tear).count();
        let (read_back, at, is_at_end) = read(&disk, start, None);
        prop_assert_eq!(read_back, &records[..whole]);
        prop_assert_eq!((at, is_at_end), (if whole == 0 { start.at } else { ends[whole - 1] }, false));
        file.set_len(tear).unwrap();
        prop_assert_eq!(read(&disk, start, None).0, &records[..whole]);
    }
}
