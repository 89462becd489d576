//! Changes of partitions, sent with the oid of the partition or of the partitioned table.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;
use serde_json::json;

use crate::definition::{ShapeOptions, TableSchema};
use crate::follow::PartitionTree;
use crate::shape::{Shape, ShapeGone};
use crate::simulation::follow_bench::{FollowBench, ITEMS, brief, expected, options, row, snapshot_before};
use crate::simulation::message_bytes::{MessageBytes, SimulatedRow};
use crate::simulation::simulated_database::table;

const LEAF: u32 = 101;
const OTHER: u32 = 102;

fn leaf() -> TableSchema {
    table(LEAF, "items_1", vec![0])
}

fn shape_of(bench: &mut FollowBench, table: TableSchema, options: ShapeOptions) -> Arc<Shape> {
    let creation = bench.create_of(table, options);
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
fn describe_leaves(bench: &mut FollowBench) {
    bench.follower.set_partition_tree(LEAF, below_items());
    bench.send(&[MessageBytes::relation(&leaf())]);
    bench.follower.set_partition_tree(OTHER, below_items());
    let columns = [("note", (25, -1)), ("id", (23, -1)), ("qty", (23, -1))];
    bench.send(&[MessageBytes::described(OTHER, "public", "items_2", &columns)]);
}

fn reordered(note: &str, id: &str, qty: &str) -> SimulatedRow {
    row([note, id, qty])
}

#[test]
fn a_partitions_change_reaches_its_shapes_and_those_of_the_partitioned_table() {
    let mut bench = FollowBench::new();
    let whole = bench.shape(options(Some("qty > 5")));
    let part = shape_of(&mut bench, leaf(), options(None));
    describe_leaves(&mut bench);
    let messages = [
        MessageBytes::insert(LEAF, &row(["1", "7", "a"])),
        MessageBytes::insert(OTHER, &reordered("b", "2", "8")),
        MessageBytes::insert(LEAF, &row(["3", "4", "c"])),
        MessageBytes::update(OTHER, &reordered("b", "2", "8"), &reordered("b", "2", "9")),
        MessageBytes::delete(LEAF, &row(["1", "7", "a"])),
    ];
    bench.transact(&messages);
    let insert = |op, id: &str, qty: &str, note: &str| {
        expected("insert", op, json!({"id": id, "qty": qty, "note": note}))
    };
    let update = expected("update", 6, json!({"id": "2", "qty": "9"}));
    let delete = expected("delete", 8, json!({"id": "1"}));
    assert_eq!(brief(&whole), [insert(0, "1", "7", "a"), insert(2, "2", "8", "b"), update, delete.clone()]);
    assert_eq!(brief(&part), [insert(0, "1", "7", "a"), insert(4, "3", "4", "c"), delete]);
}

#[test]
fn a_partition_with_other_column_types_deletes_the_shapes_of_the_partitioned_table() {
    let mut bench = FollowBench::new();
    let (whole, part) = (bench.shape(options(None)), shape_of(&mut bench, leaf(), options(None)));
    describe_leaves(&mut bench);
    bench.transact(&[MessageBytes::insert(LEAF, &row(["1", "7", "a"]))]);
    bench.follower.set_partition_tree(OTHER, below_items());
    let columns = [("id", (23, -1)), ("qty", (20, -1)), ("note", (25, -1))];
    bench.send(&[MessageBytes::described(OTHER, "public", "items_2", &columns)]);
    bench.transact(&[
        MessageBytes::insert(LEAF, &row(["2", "7", "a"])),
        MessageBytes::insert(OTHER, &row(["3", "7", "a"])),
    ]);
    assert_eq!((whole.gone(), part.gone()), (Some(ShapeGone::Deleted), None));
}

#[test]
fn a_detached_partition_no_longer_changes_the_partitioned_table() {
    let mut bench = FollowBench::new();
    let whole = bench.shape(options(None));
    describe_leaves(&mut bench);
    bench.transact(&[MessageBytes::insert(LEAF, &row(["1", "7", "a"]))]);
    bench.follower.set_partition_tree(LEAF, PartitionTree::default());
    bench.send(&[MessageBytes::relation(&leaf())]);
    bench.transact(&[MessageBytes::insert(LEAF, &row(["2", "7", "a"]))]);
    assert_eq!(brief(&whole).len(), 1);
}

#[test]
fn a_renamed_partitioned_table_is_followed_under_its_new_name() {
    let mut bench = FollowBench::new();
    describe_leaves(&mut bench);
    bench.transact(&[MessageBytes::insert(LEAF, &row(["1", "7", "a"]))]);
    // ALTER TABLE items RENAME TO things: the stream doesn't describe the partitions again.
    let whole = shape_of(&mut bench, table(ITEMS, "things", vec![0]), options(None));
    bench.transact(&[MessageBytes::insert(LEAF, &row(["2", "7", "a"]))]);
    assert_eq!((whole.gone(), brief(&whole).len()), (None, 1));
}

#[test]
fn truncating_a_partition_deletes_the_shapes_of_the_partitioned_table_and_of_no_sibling() {
    let mut bench = FollowBench::new();
    let (whole, part) = (bench.shape(options(None)), shape_of(&mut bench, leaf(), options(None)));
    describe_leaves(&mut bench);
    bench.transact(&[MessageBytes::truncate(&[OTHER])]);
    assert_eq!((whole.gone(), part.gone()), (Some(ShapeGone::Deleted), None));
    bench.transact(&[MessageBytes::truncate(&[LEAF])]);
    assert_eq!(part.gone(), Some(ShapeGone::Deleted));
}

#[test]
fn a_change_sent_under_the_partitioned_table_deletes_the_shapes_of_its_partitions() {
    let insert = MessageBytes::insert(ITEMS, &row(["1", "7", "a"]));
    for message in [insert, MessageBytes::truncate(&[ITEMS])] {
        let mut bench = FollowBench::new();
        let part = shape_of(&mut bench, leaf(), options(None));
        let alien = shape_of(&mut bench, table(300, "log", vec![0]), options(None));
        let creation = bench.create_of(leaf(), options(Some("qty > 5")));
        creation.follow();
        let next = u64::from(bench.xid) + 2;
        let seen = Snapshot { xmin: next, xmax: next, xip: Vec::new() };
        let later = bench.complete(creation, &seen, bench.lsn + 50);
        bench.follower.set_partition_tree(ITEMS, above_leaves());
        bench.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0]))]);
        bench.transact(&[message]);
        assert_eq!([&part, &alien, &later].map(|shape| shape.gone().is_some()), [true, false, false]);
        assert!(bench.store.follows(LEAF) && !bench.store.follows(OTHER));
    }
}

#[test]
fn a_snapshot_must_see_earlier_changes_sent_under_a_relative() {
    // A change sent with the oid of a partition, and a shape of the partitioned table. Then the
    // reverse.
    let (items, leaf) = (|| table(ITEMS, "items", vec![0]), leaf);
    for (made, comes_under) in [(items(), LEAF), (leaf(), ITEMS), (leaf(), LEAF), (items(), ITEMS)] {
        for sees_it in [true, false] {
            let mut bench = FollowBench::new();
            describe_leaves(&mut bench);
            bench.follower.set_partition_tree(ITEMS, above_leaves());
            bench.send(&[MessageBytes::relation(&items())]);
            bench.transact(&[MessageBytes::insert(comes_under, &row(["1", "7", "a"]))]);
            let mut creation = bench.create_of(made.clone(), options(None));
            creation.follow();
            let snapshot = snapshot_before(bench.xid + u32::from(sees_it));
            assert_eq!(
                creation.snapshot_taken(&snapshot, bench.lsn + 8).is_in_time(),
                sees_it,
                "{} under {comes_under}",
                made.name
            );
        }
    }
}

#[test]
fn more_partitions_than_the_mapping_cache_holds_are_all_followed() {
    let mut bench = FollowBench::new();
    let whole = bench.shape(options(None));
    for leaf in 0..2000 {
        bench.follower.set_partition_tree(1000 + leaf, below_items());
        bench.send(&[MessageBytes::relation(&table(1000 + leaf, "a_leaf", vec![0]))]);
    }
    for _ in 0..2 {
        let inserts: Vec<_> = (0..2000)
            .map(|leaf| MessageBytes::insert(1000 + leaf, &row([&leaf.to_string(), "7", "a"])))
            .collect();
        bench.transact(&inserts);
    }
    assert_eq!(whole.gone(), None);
    assert_eq!(whole.log_end().op, 2 * 1999);
}
