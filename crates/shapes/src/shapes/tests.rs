//! Tests of lookup, creation and deletion of shapes.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::definition::ShapeOptions;
use crate::engine::apply::{self, VisibleChanges};
use crate::shape::{LogListener, ShapeGone, SnapshotChunk, SnapshotFailure};
use crate::simulation::follow_bench::{FollowBench, ITEMS, options, row, snapshot_before};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::table;
use crate::store::disk::Disk;
use crate::store::record::{Note, Record};
use crate::store::wal::{self, WalRecords};

fn definition(options: ShapeOptions) -> ShapeDefinition {
    ShapeDefinition { table: Arc::new(table(ITEMS, "items", vec![0])), options }
}

/// Returns the names of the shapes' files.
fn files(bench: &FollowBench) -> Vec<String> {
    bench.disk.list("shapes").unwrap()
}

#[test]
fn equal_definitions_find_the_same_shape() {
    let mut bench = FollowBench::new();
    let shape = bench.shape(options(Some("qty > 5")));
    let (found, creation) = bench.store.find_or_create(definition(options(Some("qty > 5"))), 9).unwrap();
    assert!(Arc::ptr_eq(&found, &shape) && creation.is_none());
    assert!(Arc::ptr_eq(&bench.store.find(shape.handle()).unwrap(), &shape));
    assert!(bench.store.find_same(&definition(options(Some("qty > 6")))).is_none());
    assert!(bench.store.find("1-2").is_none());
    assert!(matches!(
        bench.store.find_or_create(definition(options(Some("no such thing"))), 9),
        Err(CreateError::Clause(_))
    ));
}

#[test]
fn a_handle_is_never_reused_even_if_the_clock_goes_back() {
    let bench = FollowBench::new();
    let mut handles = std::collections::HashSet::new();
    for micros in [5, 5, 3, 900, 2] {
        let (shape, creation) = bench.store.find_or_create(definition(options(None)), micros).unwrap();
        assert!(handles.insert(shape.handle().to_owned()), "{} was used before", shape.handle());
        drop(creation);
        bench.store.end_writing();
        bench.store.begin_writing().unwrap();
    }
    assert!(handles.iter().any(|handle| handle.ends_with("-900")));
    bench.store.engine.store.role.queue().release();
}

#[test]
fn a_reader_neither_creates_nor_deletes_shapes() {
    let mut bench = FollowBench::new();
    let shape = bench.shape(options(None));
    bench.store.end_writing();
    let made = bench.store.find_or_create(definition(options(Some("qty > 5"))), 9);
    assert!(matches!(made, Err(CreateError::ReadOnly)));
    assert!(!bench.store.delete(shape.handle()));
    bench.store.delete_table(ITEMS);
    bench.store.check_schema(&table(ITEMS, "goods", vec![0]));
    assert!(bench.store.find(shape.handle()).is_some() && shape.gone().is_none());
    bench.store.begin_writing().unwrap();
    assert!(bench.store.delete(shape.handle()));
    assert!(!bench.store.delete(shape.handle()));
    assert_eq!(shape.gone(), Some(ShapeGone::Deleted));
}

#[test]
fn the_least_recently_used_shape_is_deleted_for_a_new_one() {
    let mut bench = FollowBench::with(|config| config.max_shapes = 3);
    let shapes = ["qty > 1", "qty > 2", "qty > 3"].map(|clause| bench.shape(options(Some(clause))));
    bench.store.find(shapes[0].handle()).unwrap();
    let another = bench.shape(options(None));
    let gone = shapes.each_ref().map(|shape| shape.gone().is_some());
    assert_eq!((gone, another.gone()), ([false, true, false], None));
    assert_eq!(bench.store.all().len(), 3);
}

#[test]
fn the_least_recently_used_shapes_are_deleted_for_one_with_a_long_clause() {
    let mut bench = FollowBench::with(|config| config.clause_bytes = 8 << 10);
    let shapes = ["qty > 1", "qty > 2", "qty > 3"].map(|clause| bench.shape(options(Some(clause))));
    bench.store.find(shapes[0].handle()).unwrap();
    let of_two = |number: u32| format!("qty = {number}{}", " OR qty = 0".repeat(7));
    let long = [10, 11].map(|number| bench.shape(options(Some(&of_two(number)))));
    let gone = |shapes: &[Arc<Shape>]| shapes.iter().map(|shape| shape.gone().is_some()).collect::<Vec<_>>();
    assert_eq!((gone(&shapes), gone(&long)), (vec![true, true, true], vec![true, false]));
    let huge = bench.shape(options(Some(&format!("qty = 1{}", " OR qty = 0".repeat(100)))));
    assert_eq!((gone(&long), huge.gone()), (vec![true, true], None), "the new shape stays");
}

#[test]
fn shapes_with_short_clauses_outlive_those_with_long_ones() {
    let mut bench = FollowBench::with(|config| config.clause_bytes = 1 << 20);
    let short = ["qty > 1", "qty > 2"].map(|clause| bench.shape(options(Some(clause))));
    let of_many = |number: u32| format!("qty = {number}{}", " OR qty = 0".repeat(1_000));
    // Each takes more than half of the limit.
    let long = [10, 11, 12, 13].map(|number| bench.shape(options(Some(&of_many(number)))));
    let gone = |shapes: &[Arc<Shape>]| shapes.iter().map(|shape| shape.gone().is_some()).collect::<Vec<_>>();
    assert_eq!((gone(&short), gone(&long)), (vec![false; 2], vec![true, true, true, false]));
}

#[test]
fn shapes_beyond_max_bytes_are_deleted_at_a_checkpoint() {
    let mut bench = FollowBench::with(|config| config.max_bytes = Some(3000));
    let (large, small) = (bench.shape(options(None)), bench.shape(options(Some("qty = 1"))));
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "0", &"a".repeat(4000)]))]);
    assert_eq!(large.gone(), None);
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    assert_eq!((large.gone(), small.gone()), (Some(ShapeGone::Deleted), None));
    bench.store.engine.store.role.queue().release();
    assert!(files(&bench).iter().all(|name| name.starts_with(&format!("{:016x}.", small.id))));
}

#[test]
fn shapes_beyond_max_bytes_are_deleted_when_a_snapshot_completes() {
    let mut bench =
        FollowBench::with(|config| (config.max_bytes, config.small_snapshot_bytes) = (Some(3000), 100));
    let large = |bench: &mut FollowBench, clause| {
        let mut creation = bench.create(options(Some(clause)));
        creation.follow();
        assert!(creation.snapshot_taken(&snapshot_before(701), 1000).is_in_time());
        creation.rows(Bytes::from("a".repeat(1200) + ",\n")).unwrap();
        creation.seal().unwrap();
        let shape = Arc::clone(creation.shape());
        bench.runtime.block_on(creation.complete()).unwrap();
        shape
    };
    let (first, second) = (large(&mut bench, "qty = 1"), large(&mut bench, "qty = 2"));
    bench.store.find(first.handle()).unwrap();
    assert_eq!((first.gone(), second.gone()), (None, None));
    let third = large(&mut bench, "qty = 3");
    assert_eq!((first.gone(), second.gone(), third.gone()), (None, Some(ShapeGone::Deleted), None));
}

#[test]
fn the_snapshot_end_message_is_not_a_row() {
    let mut bench = FollowBench::with(|config| config.chunk_bytes = 30);
    let empty = bench.shape(options(None));
    let mut creation = bench.create(options(Some("qty = 1")));
    creation.follow();
    assert!(creation.snapshot_taken(&snapshot_before(701), 1000).is_in_time());
    creation.rows(Bytes::from("a".repeat(40) + ",\n")).unwrap();
    let some = Arc::clone(creation.shape());
    assert!(some.has_rows(0));
    creation.seal().unwrap();
    let check_rows = |empty: &Shape, some: &Shape| {
        assert_eq!([empty.has_rows(0), some.has_rows(0), some.has_rows(42)], [false, true, false]);
    };
    check_rows(&empty, &some);
    bench.runtime.block_on(creation.complete()).unwrap();
    check_rows(&empty, &some);
    bench.store.end_writing();
    let again = Shapes::on(Arc::new(bench.disk.clone()), StoreConfig::new("/nowhere")).unwrap();
    let find = |shape: &Shape| again.find(shape.handle()).unwrap();
    check_rows(&find(&empty), &find(&some));
}

#[test]
fn a_snapshot_can_be_read_while_it_is_written() {
    let mut bench = FollowBench::with(|config| (config.small_snapshot_bytes, config.chunk_bytes) = (20, 30));
    let mut creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    let chunk = |bench: &FollowBench, index| bench.runtime.block_on(shape.snapshot_chunk(index)).unwrap();
    let read = |from, to| shape.read_snapshot(from, to).unwrap().concat();
    creation.follow();
    assert!(creation.snapshot_taken(&snapshot_before(701), 1000).is_in_time());
    assert!(!creation.rows_block(20) && creation.rows_block(21));
    creation.rows(Bytes::from_static(b"first row,\n")).unwrap();
    assert_eq!(chunk(&bench, 0), SnapshotChunk::Open { from: 0, to: 11 });
    assert_eq!(files(&bench), [""; 0]);
    assert!(!creation.rows_block(9) && creation.rows_block(10) && creation.seal_blocks());
    creation.rows(Bytes::from_static(b"second row,\nthird row,\n")).unwrap();
    assert_eq!(files(&bench).len(), 1);
    assert!(creation.rows_block(0) && !creation.is_sealed());
    assert_eq!(chunk(&bench, 0), SnapshotChunk::Closed { from: 0, to: 34 });
    assert_eq!(read(0, 34), b"first row,\nsecond row,\nthird row,\n");
    bench.runtime.block_on(shape.wait_for_snapshot_after(11)).unwrap();
    creation.seal().unwrap();
    assert!(matches!(chunk(&bench, 1), SnapshotChunk::Closed { from: 34, .. }));
    bench.runtime.block_on(creation.complete()).unwrap();
    bench.runtime.block_on(shape.wait_until_complete()).unwrap();
    assert_eq!(chunk(&bench, 2), SnapshotChunk::None);
    assert_eq!(read(11, 23), b"second row,\n");
}

#[test]
fn readers_of_a_failed_snapshot_get_the_reason() {
    let mut bench = FollowBench::new();
    let creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    let failure = SnapshotFailure { is_refusal: true, message: "division by zero".into() };
    creation.fail(failure.clone());
    assert_eq!(bench.runtime.block_on(shape.snapshot_chunk(0)), Err(ShapeGone::Failed(failure.clone())));
    assert_eq!(bench.runtime.block_on(shape.wait_until_complete()), Err(ShapeGone::Failed(failure)));
    assert!(bench.store.find(shape.handle()).is_none());
    let creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    drop(creation);
    assert!(matches!(shape.gone(), Some(ShapeGone::Failed(SnapshotFailure { is_refusal: false, .. }))));
}

#[test]
fn a_shape_whose_snapshot_failed_is_not_found_by_its_definition_while_it_is_still_registered() {
    let mut bench = FollowBench::new();
    let creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    assert!(bench.store.find_same(shape.definition()).is_some());
    // The first step of `fail`: waiting readers get the failure before the shape is removed.
    shape.end(ShapeGone::Failed(SnapshotFailure { is_refusal: false, message: "it was given up".into() }));
    assert!(bench.store.find(shape.handle()).is_some());
    assert!(bench.store.find_same(shape.definition()).is_none());
    let next = bench.create(options(None));
    assert_ne!(next.shape().handle(), shape.handle());
}

#[test]
fn a_shape_deleted_before_its_creation_is_logged_does_not_reappear() {
    let mut bench = FollowBench::new();
    bench.store.engine.store.role.queue().hold();
    let creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    let ShapeDefinition { table, options } = shape.definition().clone();
    let (id, handle) = (shape.id, shape.handle().to_owned());
    assert!(bench.store.delete(&handle));
    // The writer applies the creation, and hasn't applied the deletion yet.
    let record = Note::Create { id, handle: handle.clone(), table: table.fingerprint(), options };
    let record = Record::Note(record, Bytes::new());
    apply::apply(&bench.store.engine, &record, &mut VisibleChanges::default());
    assert!(bench.store.find(&handle).is_none());
    assert!(bench.store.find_same(shape.definition()).is_none());
    bench.store.engine.store.role.queue().release();
    assert!(bench.store.all().is_empty());
}

#[test]
fn an_unsealed_snapshot_never_completes() {
    let mut bench = FollowBench::new();
    let mut creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    creation.follow();
    assert!(creation.seal().is_err(), "no snapshot was taken");
    assert!(creation.snapshot_taken(&snapshot_before(701), 1000).is_in_time());
    assert!(bench.runtime.block_on(creation.complete()).is_err());
    assert!(shape.gone().is_some());
}

#[test]
fn a_shape_deleted_during_its_creation_leaves_no_file() {
    let mut bench = FollowBench::with(|config| config.small_snapshot_bytes = 5);
    let mut creation = bench.create(options(None));
    creation.follow();
    assert!(creation.snapshot_taken(&snapshot_before(701), 1000).is_in_time());
    assert!(bench.store.delete(creation.shape().handle()));
    bench.store.engine.store.role.queue().release();
    creation.rows(Bytes::from_static(b"a row that comes late,\n")).unwrap();
    creation.seal().unwrap();
    assert_eq!(bench.runtime.block_on(creation.complete()), Err(ShapeGone::Deleted));
    bench.store.engine.store.role.queue().release();
    assert_eq!(files(&bench), [""; 0]);
}

/// Listener that counts bytes and calls of `ended`. Detaches itself after 500 bytes.
#[derive(Debug, Default)]
struct LimitedListener(parking_lot::Mutex<(usize, usize)>);

impl LogListener for LimitedListener {
    fn published(&self, messages: &[Bytes], _: Offset, _: u64) -> bool {
        self.0.lock().0 += messages.iter().map(Bytes::len).sum::<usize>();
        self.0.lock().0 < 500
    }

    fn ended(&self) {
        self.0.lock().1 += 1;
    }
}

#[test]
fn a_listener_receives_messages_until_it_detaches_or_must_read_a_file() {
    let mut bench = FollowBench::with(|config| (config.part_bytes, config.unwritten_bytes) = (300, 300));
    let shape = bench.shape(options(None));
    let insert = MessageBytes::insert(ITEMS, &row(["1", "0", "a"]));
    let attach = || shape.attach(LimitedListener::default, |counting| *counting.0.lock()).unwrap();
    let (counts, end) = attach();
    assert_eq!((counts, end.to), ((0, 0), 0));
    bench.transact(std::slice::from_ref(&insert));
    let (counts, end) = attach();
    assert_eq!(counts, (end.to as usize, 0));
    // The listener detaches itself, so `attach` creates a new one, whose counts are 0.
    (0..3).for_each(|_| bench.transact(std::slice::from_ref(&insert)));
    assert_eq!(attach().0, (0, 0));
    // A transaction that was written to the file before it was published must be read there.
    bench.transact(&vec![insert; 10]);
    assert_eq!(attach().0, (0, 0));
    assert!(bench.store.delete(shape.handle()));
    assert!(shape.attach(LimitedListener::default, |_| ()).is_none());
}

#[test]
fn waiting_for_an_offset_ends_when_the_position_advances() {
    let bench = FollowBench::new();
    assert!(bench.store.engine.store.progress.is_behind(Offset::new(1500, 0)));
    bench.store.advance(1500);
    bench.runtime.block_on(bench.store.wait_until_reached(Offset::new(1500, 0)));
    bench.runtime.block_on(async {
        let (_, reset) = tokio::join!(
            bench.store.wait_until_reached(Offset::new(2000, 0)),
            bench.store.reset("there".into(), 2000)
        );
        reset.unwrap();
        bench.store.reset("there".into(), 10).await.unwrap();
    });
    assert_eq!(bench.store.position(), Some(StorePosition { origin: "there".into(), lsn: 10 }));
    assert!(
        bench.store.engine.store.progress.is_behind(Offset::new(11, 0))
            && !bench.store.engine.store.progress.is_behind(Offset::new(10, 0))
    );
}

/// Returns the table with a filenode and a publication.
fn in_state(filenode: u32, publication: &str) -> TableSchema {
    let publication = publication.to_owned();
    let state = CatalogState { filenode, publication, ..CatalogState::default() };
    TableSchema { state: Some(state), ..table(ITEMS, "items", vec![0]) }
}

fn shape_in(bench: &mut FollowBench, table: &TableSchema, options: ShapeOptions) -> Arc<Shape> {
    let creation = bench.create_of(table.clone(), options);
    creation.follow();
    bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8)
}

#[test]
fn tables_that_differ_only_in_catalog_state_are_equal() {
    assert_eq!(in_state(1, "a"), in_state(2, "b"));
    assert_eq!(in_state(1, "a").fingerprint(), table(ITEMS, "items", vec![0]).fingerprint());
    let deferrable = TableSchema { key_is_deferrable: true, ..in_state(1, "a") };
    assert_ne!(deferrable, in_state(1, "a"));
    assert_ne!(deferrable.fingerprint(), in_state(1, "a").fingerprint());
}

#[test]
fn a_catalog_state_deletes_the_shapes_that_are_incorrect_for_it() {
    let mut bench = FollowBench::new();
    let other = bench.create_of(table(300, "log", vec![0]), options(None));
    // A shape of an earlier release: its state is unknown.
    let shape = bench.shape(options(None));
    assert_eq!(bench.store.baseline(ITEMS), None);
    bench.store.check_schema(&in_state(1, "a"));
    assert_eq!(bench.store.baseline(ITEMS), in_state(1, "a").state);
    bench.store.check_schema(&in_state(2, "a"));
    assert_eq!((bench.store.baseline(ITEMS), shape.gone()), (in_state(2, "a").state, None));
    bench.store.check_schema(&table(ITEMS, "items", vec![0]));
    assert_eq!((bench.store.baseline(ITEMS), shape.gone()), (in_state(2, "a").state, None));
    // A shape that isn't followed yet is deleted, too.
    let creation = bench.create_of(in_state(2, "a"), options(Some("qty > 5")));
    bench.store.check_schema(&in_state(2, "b"));
    assert_eq!((shape.gone(), creation.shape().gone()), (Some(ShapeGone::Deleted), Some(ShapeGone::Deleted)));
    assert_eq!((bench.store.baseline(ITEMS), other.shape().gone()), (None, None));
    // A table without shapes has no baseline.
    bench.store.check_schema(&in_state(2, "b"));
    assert_eq!(bench.store.baseline(ITEMS), None);
}

#[test]
fn a_shape_created_in_another_catalog_state_replaces_earlier_ones() {
    let mut bench = FollowBench::new();
    let first = shape_in(&mut bench, &in_state(1, "a"), options(None));
    let found = bench
        .store
        .find_or_create(ShapeDefinition { table: in_state(2, "a").into(), options: options(None) }, 9);
    assert!(Arc::ptr_eq(&found.unwrap().0, &first));
    assert_eq!(bench.store.baseline(ITEMS), in_state(2, "a").state);
    let second = shape_in(&mut bench, &in_state(2, "b"), options(None));
    assert_eq!((first.gone(), second.gone()), (Some(ShapeGone::Deleted), None));
    assert_eq!(bench.store.baseline(ITEMS), in_state(2, "b").state);
    let third = shape_in(&mut bench, &in_state(2, "b"), options(Some("qty > 5")));
    assert!(bench.store.delete(second.handle()));
    assert_eq!(bench.store.baseline(ITEMS), in_state(2, "b").state);
    assert!(bench.store.delete(third.handle()));
    assert_eq!(bench.store.baseline(ITEMS), None);
}

#[test]
fn a_baseline_survives_with_and_without_a_checkpoint() {
    for (with_checkpoint, with_gap) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut bench = FollowBench::new();
        shape_in(&mut bench, &in_state(1, "a"), options(None));
        if with_gap {
            // The WAL has the table already, and the baseline was dropped with the last shape.
            bench.store.delete_table(ITEMS);
            shape_in(&mut bench, &in_state(2, "a"), options(None));
        }
        bench.store.check_schema(&in_state(3, "a"));
        bench.store.engine.store.role.queue().release();
        if with_checkpoint {
            bench.runtime.block_on(bench.store.checkpoint()).unwrap();
        }
        let reader = Shapes::on(Arc::new(bench.disk.clone()), StoreConfig::new("/nowhere")).unwrap();
        assert_eq!(reader.baseline(ITEMS), in_state(3, "a").state);
        bench.store.check_schema(&in_state(4, "a"));
        bench.store.engine.store.role.queue().release();
        reader.refresh().unwrap();
        assert_eq!(reader.baseline(ITEMS), in_state(4, "a").state);
        bench.store.end_writing();
        reader.begin_writing().unwrap();
        assert_eq!(reader.baseline(ITEMS), in_state(4, "a").state);
        reader.check_schema(&in_state(4, "b"));
        assert!(reader.all().is_empty());
        reader.end_writing();
    }
}

#[test]
fn a_reader_keeps_the_old_baseline_until_the_log_has_the_deletions() {
    let mut bench = FollowBench::new();
    let shape = shape_in(&mut bench, &in_state(1, "a"), options(None));
    let before = bench.disk.clone();
    // The queue is held, so nothing reaches the WAL: after a crash, the old state applies.
    bench.store.engine.store.role.queue().hold();
    bench.store.check_schema(&in_state(1, "b"));
    let reader = Shapes::on(Arc::new(before), StoreConfig::new("/nowhere")).unwrap();
    assert_eq!(reader.baseline(ITEMS), in_state(1, "a").state);
    assert!(reader.find(shape.handle()).is_some());
    bench.store.engine.store.role.queue().release();
    reader.refresh().unwrap();
    assert_eq!((reader.baseline(ITEMS), reader.all().len()), (None, 0));
}

#[test]
fn the_log_has_the_deletions_before_the_new_baseline_and_the_new_shape() {
    let mut bench = FollowBench::new();
    let first = shape_in(&mut bench, &in_state(1, "a"), options(None));
    let creation = bench.create_of(in_state(1, "b"), options(None));
    bench.store.engine.store.role.queue().release();
    let segment = *wal::segments(&bench.disk).unwrap().last().unwrap();
    let mut records = WalRecords::open(&bench.disk, wal::WalPosition::start(segment), None).unwrap().unwrap();
    let mut notes = Vec::new();
    while let Some(record) = records.next().unwrap() {
        notes.extend(match record {
            Record::Note(note, _) => Some(note),
            Record::Part(_) | Record::Commit(..) => None,
        });
    }
    let [.., Note::Delete { id }, Note::Table { table, .. }, Note::Create { id: second, .. }] = &notes[..]
    else {
        panic!("{notes:?}");
    };
    assert_eq!((*id, *second), (first.id, creation.shape().id));
    assert_eq!(table.state, in_state(1, "b").state);
}

#[test]
fn tables_lists_each_table_with_shapes_once() {
    let mut bench = FollowBench::new();
    let shapes = [options(None), options(Some("qty > 5"))].map(|options| bench.shape(options));
    let other = bench.create_of(table(300, "log", vec![0]), options(None));
    let mut oids: Vec<_> = bench.store.tables().iter().map(|table| table.oid).collect();
    oids.sort_unstable();
    assert_eq!(oids, [ITEMS, 300]);
    drop((shapes, other));
}
