//! Transition from the snapshot to the log.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;

use crate::shape::ShapeGone;
use crate::simulation::follow_bench::{FollowBench, ITEMS, brief, log, options, row, snapshot_before};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::table;

#[test]
fn transactions_before_the_snapshot_are_held_and_dropped_if_it_sees_them() {
    let mut bench = FollowBench::new();
    let creation = bench.create(options(None));
    creation.follow();
    for id in ["1", "2", "3"] {
        bench.transact(&[MessageBytes::insert(ITEMS, &row([id, "0", "a"]))]);
    }
    // The second transaction was still running.
    let first = u64::from(bench.xid) - 2;
    let seen = Snapshot { xmin: first + 1, xmax: first + 3, xip: vec![first + 1] };
    assert_eq!(brief(creation.shape()), []);
    let shape = bench.complete(creation, &seen, bench.lsn + 5);
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["4", "0", "a"]))]);
    let ids: Vec<_> = log(&shape).iter().map(|message| message["value"]["id"].clone()).collect();
    assert_eq!(ids, ["2", "4"]);
    assert!(log(&shape).iter().all(|message| message["headers"]["last"] == true));
}

#[test]
fn a_snapshot_taken_within_a_transaction_is_settled_after_it() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 1);
    let mut creation = bench.create(options(None));
    let shape = Arc::clone(creation.shape());
    creation.follow();
    let begin = bench.begin();
    bench.send(&[begin, MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
    assert!(creation.snapshot_taken(&snapshot_before(bench.xid), bench.lsn + 5).is_in_time());
    bench.send(&[MessageBytes::insert(ITEMS, &row(["2", "0", "a"]))]);
    creation.seal().unwrap();
    bench.send(&[bench.commit()]);
    bench.runtime.block_on(creation.complete()).unwrap();
    let ops: Vec<_> = brief(&shape).into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(ops, [0, 2]);
    let lasts: Vec<_> = log(&shape).iter().map(|message| message["headers"]["last"] == true).collect();
    assert_eq!(lasts, [false, true]);
}

#[test]
fn transactions_from_before_a_shape_was_followed_must_be_in_its_snapshot() {
    for (sees_it, is_of_table) in [(true, true), (false, true), (false, false)] {
        let mut bench = FollowBench::new();
        bench.shape(options(Some("qty = 0")));
        bench.send(&[MessageBytes::relation(&table(300, "log", vec![0]))]);
        bench.transact(&[MessageBytes::insert(if is_of_table { ITEMS } else { 300 }, &row(["1", "0", "a"]))]);
        let mut creation = bench.create(options(None));
        creation.follow();
        let is_in_time = creation
            .snapshot_taken(&snapshot_before(bench.xid + u32::from(sees_it)), bench.lsn + 8)
            .is_in_time();
        assert_eq!(is_in_time, sees_it || !is_of_table);
        // A later snapshot sees it.
        let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
        assert_eq!(brief(&shape), []);
    }
}

#[test]
fn a_transaction_that_began_before_a_shape_was_followed_must_be_in_its_snapshot() {
    for is_over in [true, false] {
        let mut bench = FollowBench::new();
        let mut creation = bench.create(options(None));
        let begin = bench.begin();
        bench.send(&[begin, MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
        creation.follow();
        bench.send(&[MessageBytes::insert(ITEMS, &row(["2", "0", "a"]))]);
        if is_over {
            bench.send(&[bench.commit()]);
        }
        assert!(!creation.snapshot_taken(&snapshot_before(bench.xid), bench.lsn + 8).is_in_time());
        if !is_over {
            bench.send(&[bench.commit()]);
        }
        let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
        assert_eq!(brief(&shape), []);
    }
}

#[test]
fn an_unfit_held_transaction_deletes_the_shape_only_if_the_snapshot_misses_it() {
    for (has_seen, xip) in [(true, vec![]), (false, vec![701])] {
        let mut bench = FollowBench::new();
        let mut creation = bench.create(options(None));
        let shape = Arc::clone(creation.shape());
        creation.follow();
        bench.transact(&[MessageBytes::truncate(&[ITEMS])]);
        bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
        assert_eq!(shape.gone(), None);
        assert!(creation.snapshot_taken(&Snapshot { xmin: 701, xmax: 702, xip }, bench.lsn).is_in_time());
        assert_eq!(shape.gone().is_none(), has_seen);
    }
}

#[test]
fn held_bytes_are_bounded_within_a_transaction_and_across_many() {
    let insert = MessageBytes::insert(ITEMS, &row(["1", "0", &"a".repeat(100)]));
    for is_one in [true, false] {
        let mut bench = FollowBench::with(|config| (config.held_bytes, config.part_bytes) = (2000, 500));
        let creation = bench.create(options(None));
        creation.follow();
        if is_one {
            let begin = bench.begin();
            bench.send(&[begin]);
            bench.send(&vec![insert.clone(); 20]);
        } else {
            (0..20).for_each(|_| bench.transact(std::slice::from_ref(&insert)));
        }
        assert_eq!(creation.shape().gone(), Some(ShapeGone::Deleted));
    }
}

#[test]
fn a_held_transaction_that_was_interrupted_is_held_once() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 1);
    let creation = bench.create(options(None));
    creation.follow();
    let begin = bench.begin();
    let inserts = ["1", "2"].map(|id| MessageBytes::insert(ITEMS, &row([id, "0", "a"])));
    bench.send(std::slice::from_ref(&begin));
    bench.send(&inserts);
    bench.follower.restart();
    bench.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0])), begin]);
    bench.send(&inserts);
    bench.send(&[bench.commit()]);
    let shape = bench.complete(creation, &snapshot_before(bench.xid), bench.lsn + 5);
    assert_eq!(brief(&shape).len(), 2);
}

#[test]
fn an_invisible_commit_is_detected_however_many_commits_follow() {
    let mut bench = FollowBench::new();
    let insert = MessageBytes::insert(ITEMS, &row(["1", "0", "a"]));
    bench.store.engine.store.role.queue().hold();
    for _ in 0..5001 {
        let begin = bench.begin();
        let commit = bench.commit();
        bench.send(&[begin, insert.clone(), commit]);
    }
    bench.store.engine.store.role.queue().release();
    // The first commit waits for its standby.
    let first = u64::from(bench.xid) - 5000;
    let early = Snapshot { xmin: first, xmax: u64::from(bench.xid) + 1, xip: vec![first] };
    let mut creation = bench.create(options(None));
    creation.follow();
    assert!(!creation.snapshot_taken(&early, bench.lsn + 8).is_in_time());
    bench.store.forget_visible(&early);
    assert!(!creation.snapshot_taken(&early, bench.lsn + 8).is_in_time());
    let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
    assert_eq!(brief(&shape), []);
}

#[test]
fn a_slow_snapshot_is_checked_against_the_transactions_from_when_it_was_taken() {
    let mut bench = FollowBench::new();
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
    let (early, later) = (snapshot_before(bench.xid), snapshot_before(bench.xid + 1));
    let mut slow = bench.create(options(None));
    slow.follow();
    // Another shape of the table is followed later, and its snapshot sees all transactions.
    let quick = bench.create(options(Some("qty > 5")));
    quick.follow();
    bench.complete(quick, &later, bench.lsn + 8);
    bench.store.forget_visible(&later);
    assert!(!slow.snapshot_taken(&early, bench.lsn + 8).is_in_time());
    assert!(slow.snapshot_taken(&later, bench.lsn + 8).is_in_time());
    // No shape waits any more, so the transaction is dropped, and no longer counts as missed.
    bench.store.forget_visible(&later);
    let mut next = bench.create(options(Some("qty > 6")));
    next.follow();
    assert!(next.snapshot_taken(&early, bench.lsn + 8).is_in_time());
}
