//! Transactions in parts, interrupted transactions, and repeated ones.

use serde_json::json;

use crate::follower::FollowError;
use crate::simulation::follow_bench::{
    FollowBench, ITEMS, brief, log, of_columns, options, row, snapshot_before,
};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::{collated_table, table};

#[test]
fn a_large_transaction_is_queued_in_parts_and_becomes_visible_at_once() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 500);
    let (all, first) = (bench.shape(options(None)), bench.shape(options(Some("qty = 1"))));
    let begin = bench.begin();
    bench.send(&[begin, MessageBytes::insert(ITEMS, &row(["0", "1", "a"]))]);
    for id in 1..50 {
        bench.send(&[MessageBytes::insert(ITEMS, &row([&id.to_string(), "2", "a"]))]);
    }
    bench.store.engine.store.role.queue().hold();
    bench.store.engine.store.role.queue().release();
    assert!(bench.store.engine.store.is_inside_transaction());
    assert_eq!(brief(&all), []);
    bench.send(&[bench.commit()]);
    bench.store.engine.store.role.queue().release();
    let ops: Vec<_> = brief(&all).into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(ops, (0..50).map(|index| 2 * index).collect::<Vec<_>>());
    let lasts = log(&all).iter().filter(|message| message["headers"]["last"] == true).count();
    assert_eq!((lasts, &log(&all)[49]["headers"]["last"]), (1, &json!(true)));
    assert_eq!(log(&first)[0]["headers"]["last"], true);
    assert!(!bench.store.engine.store.is_inside_transaction());
}

#[test]
fn the_ranges_of_messages_that_wait_for_the_commit_are_bounded() {
    let mut bench = FollowBench::with(|config| (config.part_bytes, config.held_bytes) = (1, 4000));
    for least in 0..20 {
        // Only Postgres can evaluate it on rows with an `ß`.
        let clause = format!("upper(note) LIKE 'A%' AND qty > -{least}");
        let creation = bench.create_of(collated_table(ITEMS, "items", vec![0]), options(Some(&clause)));
        creation.follow();
        bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
    }
    let begin = bench.begin();
    bench.send(&[begin]);
    // Returns whether the message or an earlier one is queued.
    let is_queued_with = |bench: &mut FollowBench, id: &str| {
        bench.send(&[MessageBytes::insert(ITEMS, &row([id, "1", "a"]))]);
        bench.store.engine.store.role.queue().release();
        bench.store.engine.store.is_inside_transaction()
    };
    assert!(!is_queued_with(&mut bench, "0"), "the message waits for the commit");
    // All shapes share a message of less than 250 bytes, and each one has its range.
    assert!((1..10).any(|id| is_queued_with(&mut bench, &id.to_string())), "the parts are queued");
    bench.send(&[bench.commit()]);
    bench.store.engine.store.role.queue().release();
    assert!(bench.store.all().iter().all(|shape| shape.gone().is_none() && !log(shape).is_empty()));
}

#[test]
fn the_debug_output_of_a_follower_has_no_row_values() {
    let mut bench = FollowBench::new();
    let _all = bench.shape(options(None));
    let begin = bench.begin();
    bench.send(&[begin, MessageBytes::insert(ITEMS, &row(["1", "2", "secret"]))]);
    let shown = format!("{:?}", bench.follower);
    assert!(shown.contains("OpenTransaction"));
    for message in ["secret".to_owned(), format!("{:?}", b"secret").replace(['[', ']'], "")] {
        assert!(!shown.contains(&message), "{shown}");
    }
}

#[test]
fn a_repeated_transaction_is_skipped_and_an_interrupted_one_starts_over() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 1);
    let shape = bench.shape(options(None));
    let (one, two) = (
        MessageBytes::insert(ITEMS, &row(["1", "0", "a"])),
        MessageBytes::insert(ITEMS, &row(["2", "0", "a"])),
    );
    bench.transact(std::slice::from_ref(&one));
    let (before, first) = ((bench.lsn, bench.xid), log(&shape));
    let begin = bench.begin();
    bench.send(&[begin.clone(), one.clone()]);
    bench.follower.restart();
    // Skipped whether or not the store has acknowledged it.
    bench.send(&[
        MessageBytes::begin(before.0, before.1),
        MessageBytes::relation(&table(ITEMS, "items", vec![0])),
    ]);
    bench.send(&[one.clone(), two.clone(), MessageBytes::commit(before.0, before.0 + 8)]);
    bench.store.engine.store.role.queue().release();
    assert_eq!(log(&shape), first);
    bench.send(&[begin, one, two, bench.commit()]);
    bench.store.engine.store.role.queue().release();
    let ops: Vec<_> = brief(&shape).into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(ops, [0, 0, 2]);
}

#[test]
fn an_interrupted_transaction_may_be_smaller_when_repeated() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 300);
    let (shape, other) = (bench.shape(options(Some("qty = 0"))), bench.shape(of_columns(None, &["id"])));
    let begin = bench.begin();
    let messages = [begin, MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))];
    bench.send(&messages);
    bench.store.engine.store.role.queue().release();
    assert!(bench.store.engine.store.is_inside_transaction());
    bench.store.delete(other.handle());
    bench.follower.restart();
    bench.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0]))]);
    bench.send(&messages);
    bench.send(&[bench.commit()]);
    bench.store.engine.store.role.queue().release();
    assert_eq!(brief(&shape).len(), 1);
}

#[test]
fn an_inconsistent_stream_is_refused() {
    let mut bench = FollowBench::new();
    let insert = MessageBytes::insert(ITEMS, &row(["1", "0", "a"]));
    assert_eq!(insert.send(&mut bench.follower), Err(FollowError::NoTransaction));
    assert_eq!(MessageBytes::truncate(&[ITEMS]).send(&mut bench.follower), Err(FollowError::NoTransaction));
    assert_eq!(bench.commit().send(&mut bench.follower), Err(FollowError::NoTransaction));
    let begin = bench.begin();
    bench.send(&[begin]);
    assert_eq!(MessageBytes::stream_start().send(&mut bench.follower), Err(FollowError::Unexpected));
    let unknown = MessageBytes::insert(5, &row(["1", "0", "a"]));
    assert_eq!(unknown.send(&mut bench.follower), Err(FollowError::NoRelation { oid: 5 }));
    bench.follower.restart();
    assert_eq!(insert.send(&mut bench.follower), Err(FollowError::NoTransaction));
}

#[test]
fn a_stream_from_before_the_store_was_opened_or_reset_is_refused() {
    for is_reset in [true, false] {
        let mut bench = FollowBench::new();
        let begin = bench.begin();
        bench.send(std::slice::from_ref(&begin));
        if is_reset {
            bench.runtime.block_on(bench.store.reset("there".into(), 500)).unwrap();
        } else {
            bench.store.end_writing();
            bench.store.begin_writing().unwrap();
        }
        let insert = MessageBytes::insert(ITEMS, &row(["1", "0", "a"]));
        assert_eq!(insert.send(&mut bench.follower), Err(FollowError::Stale));
        assert_eq!(bench.commit().send(&mut bench.follower), Err(FollowError::Stale));
        assert_eq!(begin.send(&mut bench.follower), Err(FollowError::Stale));
        bench.follower.restart();
        bench.send(&[begin, bench.commit()]);
        bench.store.engine.store.role.queue().release();
        assert_eq!(bench.store.position().unwrap().lsn, bench.lsn + 8);
    }
}
