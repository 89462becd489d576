//! Transition from the snapshot to the log.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;

use crate::shape::ShapeGone;
use crate::simulation::bench::{Bench, ITEMS, brief, choice, log, row, snapshot_before};
use crate::simulation::database::table;
use crate::simulation::wire::Wire;

#[test]
fn what_comes_before_the_snapshot_is_held_and_dropped_if_it_was_seen() {
    let mut bench = Bench::new();
    let creation = bench.create(choice(None));
    creation.follow();
    for id in ["1", "2", "3"] {
        bench.transact(&[Wire::insert(ITEMS, &row([id, "0", "a"]))]);
    }
    // The second transaction was still running.
    let first = u64::from(bench.xid) - 2;
    let seen = Snapshot { xmin: first + 1, xmax: first + 3, xip: vec![first + 1] };
    assert_eq!(brief(creation.shape()), []);
    let shape = bench.complete(creation, &seen, bench.lsn + 5);
    bench.transact(&[Wire::insert(ITEMS, &row(["4", "0", "a"]))]);
    let ids: Vec<_> = log(&shape).iter().map(|message| message["value"]["id"].clone()).collect();
    assert_eq!(ids, ["2", "4"]);
    assert!(log(&shape).iter().all(|message| message["headers"]["last"] == true));
}

#[test]
fn a_snapshot_that_begins_inside_of_a_transaction_is_settled_after_it() {
    let mut bench = Bench::with(|config| config.part_bytes = 1);
    let mut creation = bench.create(choice(None));
    let shape = Arc::clone(creation.shape());
    creation.follow();
    let begin = bench.begin();
    bench.send(&[begin, Wire::insert(ITEMS, &row(["1", "0", "a"]))]);
    assert!(creation.begun(&snapshot_before(bench.xid), bench.lsn + 5));
    bench.send(&[Wire::insert(ITEMS, &row(["2", "0", "a"]))]);
    creation.seal().unwrap();
    bench.send(&[bench.commit()]);
    bench.runtime.block_on(creation.complete()).unwrap();
    let ops: Vec<_> = brief(&shape).into_iter().map(|(_, op, _)| op).collect();
    assert_eq!(ops, [0, 2]);
    let lasts: Vec<_> = log(&shape).iter().map(|message| message["headers"]["last"] == true).collect();
    assert_eq!(lasts, [false, true]);
}

#[test]
fn what_came_before_a_shape_was_followed_must_be_in_its_snapshot() {
    for (sees_it, is_of_table) in [(true, true), (false, true), (false, false)] {
        let mut bench = Bench::new();
        bench.shape(choice(Some("qty = 0")));
        bench.send(&[Wire::relation(&table(300, "log", vec![0]))]);
        bench.transact(&[Wire::insert(if is_of_table { ITEMS } else { 300 }, &row(["1", "0", "a"]))]);
        let mut creation = bench.create(choice(None));
        creation.follow();
        let is_in_time = creation.begun(&snapshot_before(bench.xid + u32::from(sees_it)), bench.lsn + 8);
        assert_eq!(is_in_time, sees_it || !is_of_table);
        // A later snapshot sees it.
        let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
        assert_eq!(brief(&shape), []);
    }
}

#[test]
fn a_transaction_of_which_the_first_half_came_before_must_be_in_the_snapshot_as_a_whole() {
    for is_over in [true, false] {
        let mut bench = Bench::new();
        let mut creation = bench.create(choice(None));
        let begin = bench.begin();
        bench.send(&[begin, Wire::insert(ITEMS, &row(["1", "0", "a"]))]);
        creation.follow();
        bench.send(&[Wire::insert(ITEMS, &row(["2", "0", "a"]))]);
        if is_over {
            bench.send(&[bench.commit()]);
        }
        assert!(!creation.begun(&snapshot_before(bench.xid), bench.lsn + 8));
        if !is_over {
            bench.send(&[bench.commit()]);
        }
        let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
        assert_eq!(brief(&shape), []);
    }
}

#[test]
fn what_cant_be_told_is_held_as_well_and_matters_only_unseen() {
    for (has_seen, xip) in [(true, vec![]), (false, vec![701])] {
        let mut bench = Bench::new();
        let mut creation = bench.create(choice(None));
        let shape = Arc::clone(creation.shape());
        creation.follow();
        bench.transact(&[Wire::truncate(&[ITEMS])]);
        bench.transact(&[Wire::insert(ITEMS, &row(["1", "0", "a"]))]);
        assert_eq!(shape.gone(), None);
        assert!(creation.begun(&Snapshot { xmin: 701, xmax: 702, xip }, bench.lsn));
        assert_eq!(shape.gone().is_none(), has_seen);
    }
}

#[test]
fn what_is_held_is_bounded_within_a_transaction_and_over_many() {
    let insert = Wire::insert(ITEMS, &row(["1", "0", &"a".repeat(100)]));
    for is_one in [true, false] {
        let mut bench = Bench::with(|config| (config.held_bytes, config.part_bytes) = (2000, 500));
        let creation = bench.create(choice(None));
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
fn what_was_held_of_a_transaction_that_was_cut_comes_again() {
    let mut bench = Bench::with(|config| config.part_bytes = 1);
    let creation = bench.create(choice(None));
    creation.follow();
    let begin = bench.begin();
    let inserts = ["1", "2"].map(|id| Wire::insert(ITEMS, &row([id, "0", "a"])));
    bench.send(std::slice::from_ref(&begin));
    bench.send(&inserts);
    bench.follower.restart();
    bench.send(&[Wire::relation(&table(ITEMS, "items", vec![0])), begin]);
    bench.send(&inserts);
    bench.send(&[bench.commit()]);
    let shape = bench.complete(creation, &snapshot_before(bench.xid), bench.lsn + 5);
    assert_eq!(brief(&shape).len(), 2);
}

#[test]
fn a_commit_that_isnt_visible_is_missed_however_many_come_after_it() {
    let mut bench = Bench::new();
    let insert = Wire::insert(ITEMS, &row(["1", "0", "a"]));
    bench.store.inner.queue().hold();
    for _ in 0..5001 {
        let begin = bench.begin();
        let commit = bench.commit();
        bench.send(&[begin, insert.clone(), commit]);
    }
    bench.store.inner.queue().release();
    // The first commit waits for its standby.
    let first = u64::from(bench.xid) - 5000;
    let early = Snapshot { xmin: first, xmax: u64::from(bench.xid) + 1, xip: vec![first] };
    let mut creation = bench.create(choice(None));
    creation.follow();
    assert!(!creation.begun(&early, bench.lsn + 8));
    bench.store.forget_visible(&early);
    assert!(!creation.begun(&early, bench.lsn + 8));
    let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
    assert_eq!(brief(&shape), []);
}

#[test]
fn a_snapshot_that_comes_late_is_judged_by_what_was_there_when_it_was_taken() {
    let mut bench = Bench::new();
    bench.transact(&[Wire::insert(ITEMS, &row(["1", "0", "a"]))]);
    let (early, later) = (snapshot_before(bench.xid), snapshot_before(bench.xid + 1));
    let mut slow = bench.create(choice(None));
    slow.follow();
    // Another shape of the table is followed later, and its snapshot sees all transactions.
    let quick = bench.create(choice(Some("qty > 5")));
    quick.follow();
    bench.complete(quick, &later, bench.lsn + 8);
    bench.store.forget_visible(&later);
    assert!(!slow.begun(&early, bench.lsn + 8));
    assert!(slow.begun(&later, bench.lsn + 8));
    // No shape waits any more, so the transaction is dropped, and no longer counts as missed.
    bench.store.forget_visible(&later);
    let mut next = bench.create(choice(Some("qty > 6")));
    next.follow();
    assert!(next.begun(&early, bench.lsn + 8));
}
