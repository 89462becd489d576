//! Effect of row changes on shapes.

use serde_json::json;

use crate::offset::Offset;
use crate::shape::ShapeGone;
use crate::simulation::follow_bench::{
    FollowBench, ITEMS, brief, expected, log, of_columns, options, row, snapshot_before,
};
use crate::simulation::message_bytes::{MessageBytes, WireValue};
use crate::simulation::simulated_database::table;

#[test]
fn a_change_reaches_exactly_the_shapes_that_it_concerns() {
    let mut bench = FollowBench::new();
    let (all, few) = (bench.shape(options(None)), bench.shape(options(Some("qty > 5"))));
    let (first, second) = (row(["1", "3", "a"]), row(["2", "9", "b"]));
    bench.transact(&[MessageBytes::insert(ITEMS, &first), MessageBytes::insert(ITEMS, &second)]);
    bench.transact(&[MessageBytes::delete(ITEMS, &first), MessageBytes::delete(ITEMS, &second)]);
    let insert = |op, id: &str, qty: &str, note: &str| {
        expected("insert", op, json!({"id": id, "qty": qty, "note": note}))
    };
    let delete = |op, id: &str| expected("delete", op, json!({"id": id}));
    assert_eq!(
        brief(&all),
        [insert(0, "1", "3", "a"), insert(2, "2", "9", "b"), delete(0, "1"), delete(2, "2")]
    );
    assert_eq!(brief(&few), [insert(2, "2", "9", "b"), delete(2, "2")]);
    let lasts =
        |shape| log(shape).iter().map(|message| message["headers"]["last"] == true).collect::<Vec<_>>();
    assert_eq!(lasts(&all), [false, true, false, true]);
    assert_eq!(lasts(&few), [true, true]);
    assert_eq!(log(&few)[1]["headers"]["lsn"], bench.lsn.to_string());
    assert_eq!(log(&few)[1]["headers"]["txids"], json!([bench.xid]));
}

#[test]
fn an_update_that_crosses_the_clauses_boundary_is_an_insert_or_a_delete() {
    let mut bench = FollowBench::new();
    let few = bench.shape(options(Some("qty > 5")));
    let (out, within, still) = (row(["1", "3", "a"]), row(["1", "7", "a"]), row(["1", "8", "a"]));
    bench.transact(&[
        MessageBytes::update(ITEMS, &out, &within),
        MessageBytes::update(ITEMS, &within, &still),
        MessageBytes::update(ITEMS, &still, &out),
        MessageBytes::update(ITEMS, &out, &row(["1", "NULL", "a"])),
    ]);
    let expected = [
        expected("insert", 0, json!({"id": "1", "qty": "7", "note": "a"})),
        expected("update", 2, json!({"id": "1", "qty": "8"})),
        expected("delete", 4, json!({"id": "1"})),
    ];
    assert_eq!(brief(&few), expected);
}

#[test]
fn a_key_change_becomes_a_delete_and_an_insert() {
    let mut bench = FollowBench::new();
    let all = bench.shape(options(None));
    let (old, new) = (row(["1", "3", "a"]), row(["2", "3", "a"]));
    bench.transact(&[MessageBytes::update(ITEMS, &old, &new), MessageBytes::delete(ITEMS, &new)]);
    let expected = [
        expected("delete", 0, json!({"id": "1"})),
        expected("insert", 1, json!({"id": "2", "qty": "3", "note": "a"})),
        expected("delete", 2, json!({"id": "2"})),
    ];
    assert_eq!(brief(&all), expected);
    assert_eq!(log(&all)[0]["headers"]["key_change_to"], "\"public\".\"items\"/\"2\"");
    // A client that has the first message gets the others.
    let page = all.log_after(Offset::new(bench.lsn, 0)).unwrap();
    assert_eq!(
        all.read_log(&page, page.from, page.to)
            .unwrap()
            .concat()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count(),
        2
    );
}

#[test]
fn an_unchanged_value_is_taken_from_the_old_row() {
    let mut bench = FollowBench::new();
    let shape = bench.shape(options(Some("note = 'long'")));
    let old = [WireValue::Text("1"), WireValue::Text("3"), WireValue::Text("long")];
    let new = [WireValue::Text("1"), WireValue::Text("4"), WireValue::Unchanged];
    bench.transact(&[MessageBytes::update_of(ITEMS, Some((b'O', &old)), &new)]);
    assert_eq!(brief(&shape), [expected("update", 0, json!({"id": "1", "qty": "4"}))]);
    // The old row doesn't contain the value either, so it is unknown.
    let old = [WireValue::Text("1"), WireValue::Text("4"), WireValue::Unchanged];
    bench.transact(&[MessageBytes::update_of(ITEMS, Some((b'O', &old)), &new)]);
    assert_eq!(shape.gone(), Some(ShapeGone::Deleted));
}

#[test]
fn a_change_of_columns_that_a_shape_lacks_sends_nothing() {
    let mut bench = FollowBench::new();
    let (narrow, same) = (bench.shape(of_columns(None, &["id", "qty"])), bench.shape(options(None)));
    let old = row(["1", "3", "a"]);
    bench.transact(&[
        MessageBytes::update(ITEMS, &old, &row(["1", "3", "b"])),
        MessageBytes::update(ITEMS, &old, &old),
    ]);
    assert_eq!(brief(&narrow), []);
    assert_eq!(brief(&same), [expected("update", 0, json!({"id": "1", "note": "b"}))]);
    assert_eq!(log(&same)[0]["headers"]["last"], true);
}

#[test]
fn shapes_with_equal_columns_share_the_encoded_bytes() {
    let mut bench = FollowBench::new();
    let shapes = [options(None), options(Some("qty > 1")), options(Some("qty > 2"))]
        .map(|options| bench.shape(options));
    bench.transact(&[
        MessageBytes::insert(ITEMS, &row(["1", "3", "a"])),
        MessageBytes::insert(ITEMS, &row(["2", "3", "a"])),
    ]);
    let pieces = shapes.each_ref().map(|shape| {
        let page = shape.log_after(Offset::SNAPSHOT_END).unwrap();
        shape.read_log(&page, page.from, page.to).unwrap()
    });
    assert_eq!(pieces[0][0].as_ptr(), pieces[1][0].as_ptr());
    assert_eq!(pieces[0][0].as_ptr(), pieces[2][0].as_ptr());
}

#[test]
fn a_missing_old_row_deletes_the_tables_shapes() {
    let key = [WireValue::Text("1"), WireValue::Null, WireValue::Null];
    let new = [WireValue::Text("1"), WireValue::Text("7"), WireValue::Text("a")];
    for untold in [
        MessageBytes::update_of(ITEMS, None, &new),
        MessageBytes::update_of(ITEMS, Some((b'K', &key)), &new),
        MessageBytes::delete_of(ITEMS, b'K', &key),
    ] {
        let mut bench = FollowBench::new();
        let (shape, other) =
            (bench.shape(options(None)), bench.create_of(table(300, "log", vec![0]), options(None)));
        other.follow();
        let other = bench.complete(other, &snapshot_before(bench.xid + 1), bench.lsn);
        bench.transact(&[untold]);
        assert_eq!((shape.gone(), other.gone()), (Some(ShapeGone::Deleted), None));
    }
}

#[test]
fn a_row_on_which_the_clause_fails_is_not_in_the_shape() {
    let mut bench = FollowBench::new();
    let shape = bench.shape(options(Some("10 / qty > 1")));
    let [five, zero] = [row(["1", "5", "a"]), row(["1", "0", "a"])];
    bench.transact(&[
        MessageBytes::insert(ITEMS, &five),
        MessageBytes::update(ITEMS, &five, &zero),
        MessageBytes::update(ITEMS, &zero, &five),
        MessageBytes::insert(ITEMS, &row(["2", "0", "a"])),
    ]);
    assert_eq!(shape.gone(), None);
    let operations: Vec<_> = brief(&shape).into_iter().map(|(operation, op, _)| (operation, op)).collect();
    assert_eq!(operations, [("insert".into(), 0), ("delete".into(), 2), ("insert".into(), 4)]);
}

#[test]
fn a_message_above_the_limit_deletes_the_shapes_that_would_get_it() {
    let mut bench = FollowBench::with(|config| config.message_bytes = 1000);
    let shapes = [options(None), options(Some("qty > 5")), of_columns(None, &["id"])]
        .map(|options| bench.shape(options));
    let note = "a".repeat(900);
    bench.transact(&[
        MessageBytes::insert(ITEMS, &row(["1", "0", &note])),
        MessageBytes::insert(ITEMS, &row(["2", "0", "a"])),
    ]);
    assert_eq!(shapes.each_ref().map(|shape| shape.gone().is_some()), [true, false, false]);
    assert_eq!(brief(&shapes[2]).len(), 2);
    // The row alone exceeds the limit, before it is encoded.
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "7", &note.repeat(2)]))]);
    assert_eq!(shapes.each_ref().map(|shape| shape.gone().is_some()), [true, true, true]);
}
