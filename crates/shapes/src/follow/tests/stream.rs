//! Transactions in parts, interrupted transactions, and repeated ones.

use serde_json::json;

use crate::follow::FollowError;
use crate::simulation::bench::{Bench, ITEMS, brief, choice, log, of_columns, row};
use crate::simulation::database::table;
use crate::simulation::wire::Wire;

#[test]
fn a_large_transaction_comes_in_parts_and_is_visible_at_once() {
    let mut bench = Bench::with(|config| config.part_bytes = 500);
    let (all, first) = (bench.shape(choice(None)), bench.shape(choice(Some("qty = 1"))));
    let begin = bench.begin();
    bench.send(&[begin, Wire::insert(ITEMS, &row(["0", "1", "a"]))]);
    for id in 1..50 {
        bench.send(&[Wire::insert(ITEMS, &row([&id.to_string(), "2", "a"]))]);
    }
    bench.store.inner.queue().hold();
    bench.store.inner.queue().release();
    assert!(bench.store.inner.is_inside());
    assert_eq!(brief(&all), []);
    bench.send(&[bench.commit()]);
    bench.store.inner.queue().release();
    let ops: Vec<_> = brief(&all).into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(ops, (0..50).map(|index| 2 * index).collect::<Vec<_>>());
    let lasts = log(&all).iter().filter(|message| message["headers"]["last"] == true).count();
    assert_eq!((lasts, &log(&all)[49]["headers"]["last"]), (1, &json!(true)));
    assert_eq!(log(&first)[0]["headers"]["last"], true);
    assert!(!bench.store.inner.is_inside());
}

#[test]
fn a_transaction_that_comes_again_is_passed_over_and_one_that_was_cut_begins_anew() {
    let mut bench = Bench::with(|config| config.part_bytes = 1);
    let shape = bench.shape(choice(None));
    let (one, two) = (Wire::insert(ITEMS, &row(["1", "0", "a"])), Wire::insert(ITEMS, &row(["2", "0", "a"])));
    bench.transact(std::slice::from_ref(&one));
    let (before, first) = ((bench.lsn, bench.xid), log(&shape));
    let begin = bench.begin();
    bench.send(&[begin.clone(), one.clone()]);
    bench.follower.restart();
    // Skipped whether or not the store has acknowledged it.
    bench.send(&[Wire::begin(before.0, before.1), Wire::relation(&table(ITEMS, "items", vec![0]))]);
    bench.send(&[one.clone(), two.clone(), Wire::commit(before.0, before.0 + 8)]);
    bench.store.inner.queue().release();
    assert_eq!(log(&shape), first);
    bench.send(&[begin, one, two, bench.commit()]);
    bench.store.inner.queue().release();
    let ops: Vec<_> = brief(&shape).into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(ops, [0, 0, 2]);
}

#[test]
fn a_transaction_that_was_cut_may_be_smaller_when_it_comes_again() {
    let mut bench = Bench::with(|config| config.part_bytes = 300);
    let (shape, other) = (bench.shape(choice(Some("qty = 0"))), bench.shape(of_columns(None, &["id"])));
    let begin = bench.begin();
    let messages = [begin, Wire::insert(ITEMS, &row(["1", "0", "a"]))];
    bench.send(&messages);
    bench.store.inner.queue().release();
    assert!(bench.store.inner.is_inside());
    bench.store.delete(other.handle());
    bench.follower.restart();
    bench.send(&[Wire::relation(&table(ITEMS, "items", vec![0]))]);
    bench.send(&messages);
    bench.send(&[bench.commit()]);
    bench.store.inner.queue().release();
    assert_eq!(brief(&shape).len(), 1);
}

#[test]
fn a_stream_that_makes_no_sense_is_refused() {
    let mut bench = Bench::new();
    let insert = Wire::insert(ITEMS, &row(["1", "0", "a"]));
    assert_eq!(insert.send(&mut bench.follower), Err(FollowError::NoTransaction));
    assert_eq!(Wire::truncate(&[ITEMS]).send(&mut bench.follower), Err(FollowError::NoTransaction));
    assert_eq!(bench.commit().send(&mut bench.follower), Err(FollowError::NoTransaction));
    let begin = bench.begin();
    bench.send(&[begin]);
    assert_eq!(Wire::stream_start().send(&mut bench.follower), Err(FollowError::Unexpected));
    let unknown = Wire::insert(5, &row(["1", "0", "a"]));
    assert_eq!(unknown.send(&mut bench.follower), Err(FollowError::NoRelation { oid: 5 }));
    bench.follower.restart();
    assert_eq!(insert.send(&mut bench.follower), Err(FollowError::NoTransaction));
}

#[test]
fn a_stream_from_before_the_store_was_opened_or_reset_is_refused() {
    for is_reset in [true, false] {
        let mut bench = Bench::new();
        let begin = bench.begin();
        bench.send(std::slice::from_ref(&begin));
        if is_reset {
            bench.runtime.block_on(bench.store.reset("there".into(), 500)).unwrap();
        } else {
            bench.store.end_writing();
            bench.store.begin_writing().unwrap();
        }
        let insert = Wire::insert(ITEMS, &row(["1", "0", "a"]));
        assert_eq!(insert.send(&mut bench.follower), Err(FollowError::Stale));
        assert_eq!(bench.commit().send(&mut bench.follower), Err(FollowError::Stale));
        assert_eq!(begin.send(&mut bench.follower), Err(FollowError::Stale));
        bench.follower.restart();
        bench.send(&[begin, bench.commit()]);
        bench.store.inner.queue().release();
        assert_eq!(bench.store.position().unwrap().lsn, bench.lsn + 8);
    }
}
