//! Rows that clients can't distinguish: deferrable keys, and tables without a primary key.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;
use serde_json::json;

use crate::definition::{LogMode, ShapeOptions, TableSchema};
use crate::encode::{LogPosition, ShapeChange};
use crate::offset::Offset;
use crate::shape::{Shape, ShapeGone};
use crate::simulation::follow_bench::{FollowBench, ITEMS, brief, expected, options, row, snapshot_before};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::table;
use crate::store::record::{CommitRecord, MessageRange, Record, ShapeTouch, TransactionPart};

fn shape_of(bench: &mut FollowBench, table: &TableSchema, options: ShapeOptions) -> Arc<Shape> {
    let creation = bench.create_of(table.clone(), options);
    creation.follow();
    bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8)
}

fn deferrable() -> TableSchema {
    TableSchema { key_is_deferrable: true, ..table(ITEMS, "items", vec![0]) }
}

fn rekey(from: &str, to: &str) -> MessageBytes {
    MessageBytes::update(ITEMS, &row([from, "7", "a"]), &row([to, "7", "a"]))
}

#[test]
fn two_rows_with_one_deferrable_key_in_a_transaction_delete_the_shapes() {
    let insert = || MessageBytes::insert(ITEMS, &row(["3", "0", "b"]));
    let delete = || MessageBytes::delete(ITEMS, &row(["3", "7", "a"]));
    // UPDATE items SET id = id + 1, the reverse order, and two rows that swap keys over a third
    // key.
    let cases = [
        (vec![rekey("1", "2"), rekey("2", "3")], true),
        (vec![rekey("2", "3"), rekey("1", "2")], false),
        (vec![rekey("1", "9"), rekey("2", "1"), rekey("9", "2")], true),
        (vec![insert(), delete()], true),
        (vec![delete(), insert()], false),
        (vec![insert(), MessageBytes::update(ITEMS, &row(["3", "0", "b"]), &row(["3", "1", "b"]))], false),
    ];
    for (index, (changes, is_deleted)) in cases.into_iter().enumerate() {
        let mut bench = FollowBench::new();
        let all_options = [options(None), options(Some("qty > 5")), options(Some("qty = 99"))];
        let shapes = all_options.clone().map(|options| shape_of(&mut bench, &deferrable(), options));
        let creation = bench.create_of(deferrable(), options(Some("qty > 1")));
        creation.follow();
        let next = u64::from(bench.xid) + 2;
        let sees_it = Snapshot { xmin: next, xmax: next, xip: Vec::new() };
        let later = bench.complete(creation, &sees_it, bench.lsn + 50);
        bench.transact(&changes);
        assert_eq!(shapes.each_ref().map(|shape| shape.gone().is_some()), [is_deleted; 3], "case {index}");
        assert_eq!(later.gone(), None);
        // A key that isn't deferrable is never shared.
        let mut bench = FollowBench::new();
        let shapes = all_options.map(|options| bench.shape(options));
        bench.transact(&changes);
        assert!(shapes.iter().all(|shape| shape.gone().is_none()));
    }
}

#[test]
fn deferrable_keys_are_tracked_per_transaction_and_an_interrupted_one_starts_over() {
    let mut bench = FollowBench::new();
    let shape = shape_of(&mut bench, &deferrable(), options(None));
    bench.transact(&[rekey("1", "2")]);
    bench.transact(&[rekey("2", "3")]);
    let begin = bench.begin();
    bench.send(&[begin.clone(), rekey("3", "4")]);
    bench.follower.restart();
    bench.send(&[MessageBytes::relation(&deferrable()), begin, rekey("3", "4"), bench.commit()]);
    bench.transact(&[rekey("4", "5")]);
    assert_eq!(shape.gone(), None);
    let last = expected("insert", 1, json!({"id": "5", "qty": "7", "note": "a"}));
    assert_eq!(brief(&shape).last(), Some(&last));
}

#[test]
fn a_held_deferrable_key_conflict_counts_only_if_the_snapshot_misses_it() {
    for sees_it in [true, false] {
        let mut bench = FollowBench::new();
        let mut creation = bench.create_of(deferrable(), options(None));
        creation.follow();
        bench.transact(&[rekey("1", "2"), rekey("2", "3")]);
        assert!(
            creation
                .snapshot_taken(&snapshot_before(bench.xid + u32::from(sees_it)), bench.lsn + 8)
                .is_in_time()
        );
        let gone = if sees_it { None } else { Some(ShapeGone::Deleted) };
        assert_eq!(creation.shape().gone(), gone);
    }
}

const LOG: u32 = 300;

fn keyless() -> TableSchema {
    table(LOG, "log", Vec::new())
}

fn message(shape: &Shape, values: [&str; 3]) -> Vec<u8> {
    let mut message = Vec::new();
    shape.encoder().snapshot_row(&mut message, &values.map(|value| Some(value.as_bytes())));
    message
}

/// Creates a shape of a table without a key. Its snapshot has these rows, and sees all transactions
/// so far.
fn keyless_shape(bench: &mut FollowBench, options: ShapeOptions, rows: &[[&str; 3]]) -> Arc<Shape> {
    bench.send(&[MessageBytes::relation(&keyless())]);
    let mut creation = bench.create_of(keyless(), options);
    creation.follow();
    let shape = Arc::clone(creation.shape());
    assert!(creation.snapshot_taken(&snapshot_before(bench.xid + 1), bench.lsn + 8).is_in_time());
    rows.iter().for_each(|values| creation.rows(message(&shape, *values).into()).unwrap());
    creation.seal().unwrap();
    bench.runtime.block_on(creation.complete()).unwrap();
    shape
}

const A: [&str; 3] = ["1", "7", "a"];
const B: [&str; 3] = ["2", "7", "b"];
const LESS: [&str; 3] = ["1", "3", "a"];

fn insert(values: [&str; 3]) -> MessageBytes {
    MessageBytes::insert(LOG, &row(values))
}

fn delete(values: [&str; 3]) -> MessageBytes {
    MessageBytes::delete(LOG, &row(values))
}

fn update(old: [&str; 3], new: [&str; 3]) -> MessageBytes {
    MessageBytes::update(LOG, &row(old), &row(new))
}

type SnapshotRows = &'static [[&'static str; 3]];

/// Rows of the snapshot, changes of one transaction, and whether they delete the shape.
fn cases() -> Vec<(SnapshotRows, Vec<MessageBytes>, bool)> {
    vec![
        (&[A, B], vec![delete(A), delete(B)], false),
        (&[A, A], vec![delete(A)], true),
        (&[A, A, B], vec![delete(B)], false),
        (&[A], vec![insert(A)], false),
        (&[A], vec![insert(A), delete(A)], true),
        (&[A], vec![delete(A), insert(A), delete(A)], false),
        (&[], vec![insert(A), insert(A), delete(A)], true),
        (&[A, A], vec![update(A, B)], true),
        (&[A, B], vec![update(A, B)], false),
        (&[A, B], vec![update(A, B), delete(B)], true),
        (&[A, A], vec![update(A, A)], false),
        // The row leaves the clause.
        (&[A, A], vec![update(A, LESS)], true),
        (&[A], vec![update(A, LESS), insert(A), delete(A)], false),
        (&[A], vec![insert(LESS), insert(LESS), delete(LESS)], false),
    ]
}

#[test]
fn a_row_that_leaves_while_an_equal_row_remains_deletes_the_shape() {
    for (index, (rows, changes, is_deleted)) in cases().into_iter().enumerate() {
        let mut bench = FollowBench::new();
        let shape = keyless_shape(&mut bench, options(Some("qty > 5")), rows);
        bench.transact(&changes);
        assert_eq!(shape.gone().is_some(), is_deleted, "case {index}");
        // Each change in its own transaction.
        let mut bench = FollowBench::new();
        let shape = keyless_shape(&mut bench, options(Some("qty > 5")), rows);
        changes.iter().for_each(|change| bench.transact(std::slice::from_ref(change)));
        assert_eq!(shape.gone().is_some(), is_deleted, "case {index}, one by one");
    }
}

#[test]
fn key_changes_before_the_snapshot_completes_count_after_its_rows() {
    for is_held in [true, false] {
        for (index, (rows, changes, is_deleted)) in cases().into_iter().enumerate() {
            let mut bench = FollowBench::new();
            bench.send(&[MessageBytes::relation(&keyless())]);
            let mut creation = bench.create_of(keyless(), options(Some("qty > 5")));
            let shape = Arc::clone(creation.shape());
            creation.follow();
            let snapshot = snapshot_before(bench.xid + 1);
            if is_held {
                bench.transact(&changes);
                assert!(creation.snapshot_taken(&snapshot, bench.lsn).is_in_time());
            } else {
                assert!(creation.snapshot_taken(&snapshot, bench.lsn).is_in_time());
                bench.transact(&changes);
            }
            rows.iter().for_each(|values| creation.rows(message(&shape, *values).into()).unwrap());
            creation.seal().unwrap();
            let done = bench.runtime.block_on(creation.complete());
            assert_eq!(done, if is_deleted { Err(ShapeGone::Deleted) } else { Ok(()) }, "case {index}");
            assert_eq!(shape.gone().is_some(), is_deleted, "case {index}");
        }
    }
}

#[test]
fn transactions_that_the_snapshot_sees_are_not_counted_again() {
    let mut bench = FollowBench::new();
    bench.send(&[MessageBytes::relation(&keyless())]);
    let mut creation = bench.create_of(keyless(), options(None));
    let shape = Arc::clone(creation.shape());
    creation.follow();
    bench.transact(&[insert(A)]);
    assert!(creation.snapshot_taken(&snapshot_before(bench.xid + 1), bench.lsn + 8).is_in_time());
    creation.rows(message(&shape, A).into()).unwrap();
    creation.seal().unwrap();
    bench.runtime.block_on(creation.complete()).unwrap();
    bench.transact(&[delete(A)]);
    assert_eq!(shape.gone(), None);
}

#[test]
fn an_interrupted_transaction_is_counted_once() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 1);
    let shape = keyless_shape(&mut bench, options(None), &[]);
    let begin = bench.begin();
    bench.send(&[begin.clone(), insert(A)]);
    bench.follower.restart();
    bench.send(&[MessageBytes::relation(&keyless()), begin, insert(A), bench.commit()]);
    bench.transact(&[delete(A)]);
    assert_eq!((shape.gone(), brief(&shape).len()), (None, 2));
}

#[test]
fn rows_are_counted_again_after_a_takeover() {
    // Rows of the snapshot, changes before and after the takeover, and whether the latter delete
    // the shape.
    type TakeoverCase = (SnapshotRows, Vec<MessageBytes>, Vec<MessageBytes>, bool);
    let cases: [TakeoverCase; 5] = [
        (&[A], vec![], vec![delete(A)], false),
        (&[A, A], vec![], vec![delete(A)], true),
        (&[A], vec![insert(A)], vec![delete(A)], true),
        (&[A], vec![delete(A), insert(B)], vec![insert(A), delete(A)], false),
        (&[A, B], vec![update(A, B)], vec![delete(B)], true),
    ];
    for (index, (rows, before, after, is_deleted)) in cases.into_iter().enumerate() {
        for with_checkpoint in [true, false] {
            let mut bench =
                FollowBench::with(|config| (config.chunk_bytes, config.small_snapshot_bytes) = (10, 10));
            let handle = keyless_shape(&mut bench, options(None), rows).handle().to_owned();
            bench.transact(&before);
            if with_checkpoint {
                bench.runtime.block_on(bench.store.checkpoint()).unwrap();
            }
            bench.store.end_writing();
            bench.store.begin_writing().unwrap();
            bench.follower = bench.store.follower();
            bench.send(&[MessageBytes::relation(&keyless())]);
            let shape = bench.store.find(&handle).unwrap();
            bench.transact(&after);
            assert_eq!(shape.gone().is_some(), is_deleted, "case {index}");
        }
    }
}

#[test]
fn a_shape_of_a_release_without_counts_is_deleted_if_its_log_removed_one_of_two_equal_rows() {
    let mut bench = FollowBench::new();
    let shapes =
        [options(None), options(Some("qty > 5"))].map(|options| keyless_shape(&mut bench, options, &[A, A]));
    let (mut text, place) = (Vec::new(), LogPosition { lsn: bench.lsn + 100, op: 0, xid: 900 });
    let gone = ShapeChange::Delete { row: &A.map(|value| Some(value.as_bytes())), to: None };
    assert!(shapes[0].encoder().change(&mut text, gone, place));
    let ranges = vec![MessageRange { from: 0, to: text.len() as u32, last_op: 0 }];
    let touches = vec![ShapeTouch { shape: shapes[0].id, ranges }];
    let changes = TransactionPart { lsn: place.lsn, is_first: true, touches, text: text.into() };
    bench
        .store
        .engine
        .store
        .role
        .enqueue(Record::Commit(changes, CommitRecord { end: place.lsn + 8, ..CommitRecord::default() }));
    bench.store.end_writing();
    assert_eq!(brief(&shapes[0]).len(), 1);
    bench.store.begin_writing().unwrap();
    bench.store.engine.store.role.queue().release();
    assert_eq!(shapes.map(|shape| shape.gone().is_some()), [true, false]);
}

#[test]
fn an_update_without_a_change_is_not_held_for_a_snapshot() {
    let mut bench = FollowBench::new();
    bench.send(&[MessageBytes::relation(&keyless())]);
    let mut creation = bench.create_of(keyless(), options(None));
    let shape = Arc::clone(creation.shape());
    creation.follow();
    bench.transact(&[update(A, A)]);
    assert!(creation.snapshot_taken(&snapshot_before(bench.xid), bench.lsn).is_in_time());
    creation.rows(message(&shape, A).into()).unwrap();
    creation.seal().unwrap();
    bench.runtime.block_on(creation.complete()).unwrap();
    assert_eq!(shape.log_end(), Offset::SNAPSHOT_END);
    assert!(shape.log_after(Offset::new(1, 0)).unwrap().is_end);
}

#[test]
fn any_row_that_leaves_deletes_a_changes_only_shape_without_a_key() {
    let changes_only = || ShapeOptions { log: LogMode::ChangesOnly, ..options(None) };
    for is_rebuilt in [false, true] {
        let mut bench = FollowBench::new();
        let handle = keyless_shape(&mut bench, changes_only(), &[]).handle().to_owned();
        if is_rebuilt {
            bench.store.end_writing();
            bench.store.begin_writing().unwrap();
            bench.follower = bench.store.follower();
            bench.send(&[MessageBytes::relation(&keyless())]);
        }
        let shape = bench.store.find(&handle).unwrap();
        bench.transact(&[insert(B), update(B, B)]);
        assert_eq!(shape.gone(), None);
        // A client may have two such rows from subset queries.
        bench.transact(&[delete(A)]);
        assert_eq!(shape.gone(), Some(ShapeGone::Deleted), "rebuilt: {is_rebuilt}");
    }
}
