//! Rows that a client can't tell apart.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;
use serde_json::json;

use crate::definition::{Choice, Table};
use crate::shape::{Gone, Shape};
use crate::simulation::bench::{Bench, ITEMS, brief, choice, row, snapshot_before, told};
use crate::simulation::database::table;
use crate::simulation::wire::Wire;

fn shape_of(bench: &mut Bench, table: &Table, choice: Choice) -> Arc<Shape> {
    let creation = bench.create_of(table.clone(), choice);
    creation.follow();
    bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8)
}

fn deferrable() -> Table {
    Table { key_is_deferrable: true, ..table(ITEMS, "items", vec![0]) }
}

fn rekey(from: &str, to: &str) -> Wire {
    Wire::update(ITEMS, &row([from, "7", "a"]), &row([to, "7", "a"]))
}

#[test]
fn a_deferrable_key_that_two_rows_have_for_a_while_ends_the_shapes() {
    let insert = || Wire::insert(ITEMS, &row(["3", "0", "b"]));
    let delete = || Wire::delete(ITEMS, &row(["3", "7", "a"]));
    // UPDATE items SET id = id + 1; the other way round; and two that trade places over a third.
    let cases = [
        (vec![rekey("1", "2"), rekey("2", "3")], true),
        (vec![rekey("2", "3"), rekey("1", "2")], false),
        (vec![rekey("1", "9"), rekey("2", "1"), rekey("9", "2")], true),
        (vec![insert(), delete()], true),
        (vec![delete(), insert()], false),
        (vec![insert(), Wire::update(ITEMS, &row(["3", "0", "b"]), &row(["3", "1", "b"]))], false),
    ];
    for (index, (changes, ends)) in cases.into_iter().enumerate() {
        let mut bench = Bench::new();
        let choices = [choice(None), choice(Some("qty > 5")), choice(Some("qty = 99"))];
        let shapes = choices.clone().map(|choice| shape_of(&mut bench, &deferrable(), choice));
        let creation = bench.create_of(deferrable(), choice(Some("qty > 1")));
        creation.follow();
        let next = u64::from(bench.xid) + 2;
        let sees_it = Snapshot { xmin: next, xmax: next, xip: Vec::new() };
        let later = bench.complete(creation, &sees_it, bench.lsn + 50);
        bench.transact(&changes);
        assert_eq!(shapes.each_ref().map(|shape| shape.gone().is_some()), [ends; 3], "case {index}");
        assert_eq!(later.gone(), None);
        // A key that can't be shared, even for a while.
        let mut bench = Bench::new();
        let shapes = choices.map(|choice| bench.shape(choice));
        bench.transact(&changes);
        assert!(shapes.iter().all(|shape| shape.gone().is_none()));
    }
}

#[test]
fn each_transaction_has_its_own_deferred_keys_and_one_that_was_cut_begins_anew() {
    let mut bench = Bench::new();
    let shape = shape_of(&mut bench, &deferrable(), choice(None));
    bench.transact(&[rekey("1", "2")]);
    bench.transact(&[rekey("2", "3")]);
    let begin = bench.begin();
    bench.send(&[begin.clone(), rekey("3", "4")]);
    bench.follower.restart();
    bench.send(&[Wire::relation(&deferrable()), begin, rekey("3", "4"), bench.commit()]);
    bench.transact(&[rekey("4", "5")]);
    assert_eq!(shape.gone(), None);
    let last = told("insert", 1, json!({"id": "5", "qty": "7", "note": "a"}));
    assert_eq!(brief(&shape).last(), Some(&last));
}

#[test]
fn a_deferrable_key_of_a_snapshot_that_begins_later_counts_if_it_doesnt_see_it() {
    for sees_it in [true, false] {
        let mut bench = Bench::new();
        let mut creation = bench.create_of(deferrable(), choice(None));
        creation.follow();
        bench.transact(&[rekey("1", "2"), rekey("2", "3")]);
        assert!(creation.begun(&snapshot_before(bench.xid + u32::from(sees_it)), bench.lsn + 8));
        let gone = if sees_it { None } else { Some(Gone::Deleted) };
        assert_eq!(creation.shape().gone(), gone);
    }
}
