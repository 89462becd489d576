//! Changes of partitions, sent under the partition or under the partitioned table.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;
use serde_json::json;

use crate::definition::{ShapeOptions, TableSchema};
use crate::follow::relation::PartitionTree;
use crate::shape::{Shape, ShapeGone};
use crate::simulation::bench::{Bench, ITEMS, brief, choice, row, snapshot_before, told};
use crate::simulation::database::table;
use crate::simulation::wire::{Row, Wire};

const LEAF: u32 = 101;
const OTHER: u32 = 102;

fn leaf() -> TableSchema {
    table(LEAF, "items_1", vec![0])
}

fn shape_of(bench: &mut Bench, table: TableSchema, choice: ShapeOptions) -> Arc<Shape> {
    let creation = bench.create_of(table, choice);
    creation.follow();
    bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8)
}

/// Returns the relatives of a partition of items.
fn below_items() -> PartitionTree {
    PartitionTree { ancestors: vec![ITEMS], descendants: Vec::new() }
}

/// Returns the relatives of items.
fn above_leaves() -> PartitionTree {
    PartitionTree { ancestors: Vec::new(), descendants: vec![OTHER, LEAF] }
}

/// Describes two partitions: one with the columns of items, one with another order of columns.
fn describe_leaves(bench: &mut Bench) {
    bench.follower.relate(LEAF, below_items());
    bench.send(&[Wire::relation(&leaf())]);
    bench.follower.relate(OTHER, below_items());
    let columns = [("note", (25, -1)), ("id", (23, -1)), ("qty", (23, -1))];
    bench.send(&[Wire::described(OTHER, "public", "items_2", &columns)]);
}

fn turned(note: &str, id: &str, qty: &str) -> Row {
    row([note, id, qty])
}

#[test]
fn a_change_of_a_partition_goes_to_its_shapes_and_to_those_of_the_partitioned_table() {
    let mut bench = Bench::new();
    let whole = bench.shape(choice(Some("qty > 5")));
    let part = shape_of(&mut bench, leaf(), choice(None));
    describe_leaves(&mut bench);
    let messages = [
        Wire::insert(LEAF, &row(["1", "7", "a"])),
        Wire::insert(OTHER, &turned("b", "2", "8")),
        Wire::insert(LEAF, &row(["3", "4", "c"])),
        Wire::update(OTHER, &turned("b", "2", "8"), &turned("b", "2", "9")),
        Wire::delete(LEAF, &row(["1", "7", "a"])),
    ];
    bench.transact(&messages);
    let insert =
        |op, id: &str, qty: &str, note: &str| told("insert", op, json!({"id": id, "qty": qty, "note": note}));
    let update = told("update", 6, json!({"id": "2", "qty": "9"}));
    let delete = told("delete", 8, json!({"id": "1"}));
    assert_eq!(brief(&whole), [insert(0, "1", "7", "a"), insert(2, "2", "8", "b"), update, delete.clone()]);
    assert_eq!(brief(&part), [insert(0, "1", "7", "a"), insert(4, "3", "4", "c"), delete]);
}

#[test]
fn a_partition_of_another_form_ends_the_shapes_of_the_partitioned_table() {
    let mut bench = Bench::new();
    let (whole, part) = (bench.shape(choice(None)), shape_of(&mut bench, leaf(), choice(None)));
    describe_leaves(&mut bench);
    bench.transact(&[Wire::insert(LEAF, &row(["1", "7", "a"]))]);
    bench.follower.relate(OTHER, below_items());
    let columns = [("id", (23, -1)), ("qty", (20, -1)), ("note", (25, -1))];
    bench.send(&[Wire::described(OTHER, "public", "items_2", &columns)]);
    bench.transact(&[Wire::insert(LEAF, &row(["2", "7", "a"])), Wire::insert(OTHER, &row(["3", "7", "a"]))]);
    assert_eq!((whole.gone(), part.gone()), (Some(ShapeGone::Deleted), None));
}

#[test]
fn a_partition_that_was_detached_concerns_the_partitioned_table_no_more() {
    let mut bench = Bench::new();
    let whole = bench.shape(choice(None));
    describe_leaves(&mut bench);
    bench.transact(&[Wire::insert(LEAF, &row(["1", "7", "a"]))]);
    bench.follower.relate(LEAF, PartitionTree::default());
    bench.send(&[Wire::relation(&leaf())]);
    bench.transact(&[Wire::insert(LEAF, &row(["2", "7", "a"]))]);
    assert_eq!(brief(&whole).len(), 1);
}

#[test]
fn a_partitioned_table_that_was_renamed_is_followed_under_its_new_name() {
    let mut bench = Bench::new();
    describe_leaves(&mut bench);
    bench.transact(&[Wire::insert(LEAF, &row(["1", "7", "a"]))]);
    // ALTER TABLE items RENAME TO things: the stream doesn't describe the partitions again.
    let whole = shape_of(&mut bench, table(ITEMS, "things", vec![0]), choice(None));
    bench.transact(&[Wire::insert(LEAF, &row(["2", "7", "a"]))]);
    assert_eq!((whole.gone(), brief(&whole).len()), (None, 1));
}

#[test]
fn a_truncated_partition_ends_the_shapes_of_the_partitioned_table_and_no_others() {
    let mut bench = Bench::new();
    let (whole, part) = (bench.shape(choice(None)), shape_of(&mut bench, leaf(), choice(None)));
    describe_leaves(&mut bench);
    bench.transact(&[Wire::truncate(&[OTHER])]);
    assert_eq!((whole.gone(), part.gone()), (Some(ShapeGone::Deleted), None));
    bench.transact(&[Wire::truncate(&[LEAF])]);
    assert_eq!(part.gone(), Some(ShapeGone::Deleted));
}

#[test]
fn a_change_that_comes_under_the_partitioned_table_ends_the_shapes_of_its_partitions() {
    let insert = Wire::insert(ITEMS, &row(["1", "7", "a"]));
    for message in [insert, Wire::truncate(&[ITEMS])] {
        let mut bench = Bench::new();
        let part = shape_of(&mut bench, leaf(), choice(None));
        let alien = shape_of(&mut bench, table(300, "log", vec![0]), choice(None));
        let creation = bench.create_of(leaf(), choice(Some("qty > 5")));
        creation.follow();
        let next = u64::from(bench.xid) + 2;
        let seen = Snapshot { xmin: next, xmax: next, xip: Vec::new() };
        let later = bench.complete(creation, &seen, bench.lsn + 50);
        bench.follower.relate(ITEMS, above_leaves());
        bench.send(&[Wire::relation(&table(ITEMS, "items", vec![0]))]);
        bench.transact(&[message]);
        assert_eq!([&part, &alien, &later].map(|shape| shape.gone().is_some()), [true, false, false]);
        assert!(bench.store.follows(LEAF) && !bench.store.follows(OTHER));
    }
}

#[test]
fn a_snapshot_has_to_see_what_came_under_a_relative_before() {
    // A change under a partition for a shape of the partitioned table, and the reverse.
    let (items, leaf) = (|| table(ITEMS, "items", vec![0]), leaf);
    for (made, comes_under) in [(items(), LEAF), (leaf(), ITEMS), (leaf(), LEAF), (items(), ITEMS)] {
        for sees_it in [true, false] {
            let mut bench = Bench::new();
            describe_leaves(&mut bench);
            bench.follower.relate(ITEMS, above_leaves());
            bench.send(&[Wire::relation(&items())]);
            bench.transact(&[Wire::insert(comes_under, &row(["1", "7", "a"]))]);
            let mut creation = bench.create_of(made.clone(), choice(None));
            creation.follow();
            let snapshot = snapshot_before(bench.xid + u32::from(sees_it));
            assert_eq!(
                creation.begun(&snapshot, bench.lsn + 8),
                sees_it,
                "{} under {comes_under}",
                made.name
            );
        }
    }
}

#[test]
fn more_partitions_than_are_kept_in_mind_are_all_followed() {
    let mut bench = Bench::new();
    let whole = bench.shape(choice(None));
    for leaf in 0..2000 {
        bench.follower.relate(1000 + leaf, below_items());
        bench.send(&[Wire::relation(&table(1000 + leaf, "a_leaf", vec![0]))]);
    }
    for _ in 0..2 {
        let inserts: Vec<_> =
            (0..2000).map(|leaf| Wire::insert(1000 + leaf, &row([&leaf.to_string(), "7", "a"]))).collect();
        bench.transact(&inserts);
    }
    assert_eq!(whole.gone(), None);
    assert_eq!(whole.log_end().op, 2 * 1999);
}
