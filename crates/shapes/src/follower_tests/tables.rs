//! Shapes of altered and truncated tables.

use forebay_pgoutput::Snapshot;
use serde_json::json;

use crate::definition::TableSchema;
use crate::filter::{Collation, Column};
use crate::shape::ShapeGone;
use crate::simulation::follow_bench::{
    FollowBench, ITEMS, brief, expected, of_columns, options, row, snapshot_before,
};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::table;

#[test]
fn truncate_deletes_all_shapes_except_those_whose_snapshot_sees_it() {
    let mut bench = FollowBench::new();
    let before = bench.shape(options(None));
    let creation = bench.create(options(Some("qty > 5")));
    creation.follow();
    let seen = Snapshot { xmin: u64::from(bench.xid) + 2, xmax: u64::from(bench.xid) + 2, xip: Vec::new() };
    let after = bench.complete(creation, &seen, bench.lsn + 50);
    bench.transact(&[MessageBytes::truncate(&[5, ITEMS])]);
    assert_eq!(before.gone(), Some(ShapeGone::Deleted));
    assert_eq!(after.gone(), None);
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "7", "a"]))]);
    assert_eq!(brief(&after).len(), 1);
}

#[test]
fn a_new_column_deletes_the_shapes_of_all_columns() {
    let mut bench = FollowBench::new();
    let (all, some) = (bench.shape(options(None)), bench.shape(of_columns(Some("qty > 5"), &["id", "note"])));
    let columns = [("extra", (23, -1)), ("id", (23, -1)), ("qty", (23, -1)), ("note", (25, -1))];
    let insert =
        MessageBytes::insert(ITEMS, &["0", "1", "7", "a"].map(|text| Some(text.to_owned())).to_vec());
    bench.transact(&[MessageBytes::described(ITEMS, "public", "items", &columns), insert]);
    assert_eq!(all.gone(), Some(ShapeGone::Deleted));
    assert_eq!(brief(&some), [expected("insert", 0, json!({"id": "1", "note": "a"}))]);
    // A shape that was created with the old schema, too late for the relation message, is deleted,
    // too.
    let late = bench.shape(options(None));
    bench.transact(&[]);
    assert_eq!(late.gone(), None);
    let insert =
        MessageBytes::insert(ITEMS, &["0", "2", "7", "a"].map(|text| Some(text.to_owned())).to_vec());
    bench.transact(&[insert]);
    assert_eq!(late.gone(), Some(ShapeGone::Deleted));
    assert_eq!(brief(&some).len(), 2);
}

#[test]
fn an_altered_table_deletes_the_shapes_that_need_the_altered_columns() {
    // The new description, and which shapes remain: all columns, id only, id where qty > 5.
    let items = "items";
    type StreamColumns = &'static [(&'static str, (u32, i32))];
    let cases: [(&str, StreamColumns, [bool; 3]); 6] = [
        (items, &[("id", (23, -1)), ("qty", (23, -1)), ("note", (25, -1))], [true, true, true]),
        (items, &[("id", (23, -1)), ("qty", (23, -1))], [false, true, true]),
        (items, &[("id", (23, -1)), ("note", (25, -1))], [false, true, false]),
        (items, &[("id", (23, -1)), ("quantity", (23, -1)), ("note", (25, -1))], [false, true, false]),
        (items, &[("id", (23, -1)), ("qty", (20, -1)), ("note", (25, -1))], [false, true, false]),
        ("goods", &[("id", (23, -1)), ("qty", (23, -1)), ("note", (25, -1))], [false, false, false]),
    ];
    for (name, columns, remains) in cases {
        let mut bench = FollowBench::new();
        let all_options = [options(None), of_columns(None, &["id"]), of_columns(Some("qty > 5"), &["id"])];
        let shapes = all_options.map(|options| bench.shape(options));
        let mut values = vec![Some("7".to_owned()); columns.len()];
        values[0] = Some("1".to_owned());
        bench.transact(&[
            MessageBytes::described(ITEMS, "public", name, columns),
            MessageBytes::insert(ITEMS, &values),
        ]);
        assert_eq!(shapes.each_ref().map(|shape| shape.gone().is_none()), remains, "{name}: {columns:?}");
    }
}

#[test]
fn any_alteration_deletes_the_shapes_of_a_table_without_a_key() {
    let mut bench = FollowBench::new();
    let definition = table(300, "log", Vec::new());
    let creation = bench.create_of(definition.clone(), of_columns(None, &["id", "qty"]));
    creation.follow();
    let shape = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn);
    bench.transact(&[MessageBytes::relation(&definition), MessageBytes::insert(300, &row(["1", "2", "a"]))]);
    assert_eq!(brief(&shape).len(), 1);
    let columns = [("id", (23, -1)), ("qty", (23, -1))];
    let insert = MessageBytes::insert(300, &vec![Some("1".to_owned()); 2]);
    bench.transact(&[MessageBytes::described(300, "public", "log", &columns), insert]);
    assert_eq!(shape.gone(), Some(ShapeGone::Deleted));
}

#[test]
fn an_old_relation_message_does_not_affect_a_shape_whose_snapshot_sees_its_changes() {
    let mut bench = FollowBench::new();
    // The table has another column by now, and the stream hasn't described it yet.
    let mut newer = table(ITEMS, "items", vec![0]);
    newer.types.columns.push(Column::new("extra", 23, "int4"));
    newer.stream_types.push((23, -1));
    let creation = bench.create_of(newer.clone(), options(None));
    creation.follow();
    let seen = Snapshot { xmin: u64::from(bench.xid) + 2, xmax: u64::from(bench.xid) + 2, xip: Vec::new() };
    let shape = bench.complete(creation, &seen, bench.lsn + 15);
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "7", "a"]))]);
    assert_eq!(shape.gone(), None);
    let insert =
        MessageBytes::insert(ITEMS, &["1", "7", "a", "5"].map(|text| Some(text.to_owned())).to_vec());
    bench.transact(&[MessageBytes::relation(&newer), insert]);
    assert_eq!(
        brief(&shape),
        [expected("insert", 0, json!({"id": "1", "qty": "7", "note": "a", "extra": "5"}))]
    );
}

#[test]
fn check_schema_deletes_shapes_after_an_alteration_that_the_stream_did_not_describe() {
    let mut bench = FollowBench::new();
    let (all, some) = (bench.shape(options(None)), bench.shape(of_columns(None, &["id", "qty"])));
    let mut now = table(ITEMS, "items", vec![0]);
    bench.store.check_schema(&now);
    assert_eq!((all.gone(), some.gone()), (None, None));
    now.types.columns.pop();
    now.stream_types.pop();
    bench.store.check_schema(&now);
    assert_eq!((all.gone(), some.gone()), (Some(ShapeGone::Deleted), None));
}

#[test]
fn another_key_collation_or_lineage_deletes_the_shapes_that_depend_on_it() {
    // Which shapes remain: all columns, id only, id where note > 'b'.
    type AlterTable = fn(&mut TableSchema);
    let cases: [(AlterTable, [bool; 3]); 5] = [
        (|now| now.key = vec![0, 1], [false, false, false]),
        (|now| now.key.clear(), [false, false, false]),
        (|now| now.key_is_deferrable = true, [false, false, false]),
        (|now| now.lineage.push('2'), [false, false, false]),
        (|now| now.types.columns[2].column_type.collation = Some(Collation::Builtin), [false, true, false]),
    ];
    for (index, (change, remains)) in cases.into_iter().enumerate() {
        let mut bench = FollowBench::new();
        let all_options = [options(None), of_columns(None, &["id"]), of_columns(Some("note > 'b'"), &["id"])];
        let shapes = all_options.map(|options| bench.shape(options));
        let mut now = table(ITEMS, "items", vec![0]);
        change(&mut now);
        bench.store.check_schema(&now);
        assert_eq!(shapes.each_ref().map(|shape| shape.gone().is_none()), remains, "the change {index}");
    }
}
