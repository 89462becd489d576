//! Holds: rows that only Postgres can judge.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_pgoutput::Snapshot;
use serde_json::json;

use crate::config::StoreConfig;
use crate::filter::RowVerdict::{self, Match, NoMatch, Undecided};
use crate::filter::TypeKind;
use crate::offset::Offset;
use crate::shape::{Shape, ShapeGone};
use crate::shapes::Shapes;
use crate::simulation::follow_bench::{
    FollowBench, ITEMS, brief, log, of_columns, options, row, snapshot_before,
};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::{collated_table, table};

/// Only Postgres can evaluate it on rows with an `ß`.
const CLAUSE: &str = "upper(note) LIKE 'A%'";

fn undecided_shape(bench: &mut FollowBench, clause: &str) -> Arc<Shape> {
    let creation = bench.create_of(collated_table(ITEMS, "items", vec![0]), options(Some(clause)));
    creation.follow();
    bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8)
}

fn insert(values: [&str; 3]) -> MessageBytes {
    MessageBytes::insert(ITEMS, &row(values))
}

fn ids(shape: &Shape) -> Vec<String> {
    log(shape).iter().map(|message| message["value"]["id"].as_str().unwrap().to_owned()).collect()
}

/// Decides all rows that wait, each batch with the same verdict for all rows. Returns their number.
fn decide(bench: &FollowBench, verdict: RowVerdict) -> usize {
    let mut count = 0;
    while let Some(rows) = bench.store.take_undecided() {
        count += rows.len();
        let verdicts = vec![verdict; rows.len()];
        bench.store.decide(rows, &verdicts);
        if verdict == Undecided {
            break;
        }
    }
    bench.store.engine.store.role.queue().release();
    count
}

fn position(bench: &FollowBench) -> u64 {
    bench.store.position().unwrap().lsn
}

#[test]
fn an_undecided_row_holds_its_shape_and_no_other() {
    let mut bench = FollowBench::new();
    let (held, other) = (undecided_shape(&mut bench, CLAUSE), bench.shape(options(None)));
    bench.transact(&[insert(["1", "0", "a"]), insert(["2", "0", "aß"]), insert(["3", "0", "ab"])]);
    let first = bench.lsn;
    bench.transact(&[insert(["4", "0", "ac"])]);
    assert_eq!((ids(&other).len(), ids(&held).len()), (4, 0));
    assert_eq!((bench.store.held_shapes(), held.is_held(), other.is_held()), (1, true, false));
    // No up-to-date, and no acknowledgement, is beyond the held transaction.
    assert!(bench.store.seen_of(&held) < first && bench.store.seen_of(&other) == bench.lsn + 1);
    assert_eq!(position(&bench), first);

    assert_eq!(decide(&bench, Match), 1);
    // As if the row had been decided at once.
    assert_eq!(brief(&held), brief(&other));
    assert_eq!(log(&held), log(&other));
    assert_eq!((bench.store.held_shapes(), bench.store.seen_of(&held)), (0, bench.lsn + 1));
    assert_eq!(position(&bench), bench.lsn + 8);
}

#[test]
fn a_hold_that_ends_without_messages_is_up_to_date() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    bench.transact(&[insert(["1", "0", "ß"])]);
    assert!(bench.store.seen_of(&held) < bench.lsn);
    decide(&bench, NoMatch);
    assert_eq!(held.log_end(), Offset::SNAPSHOT_END);
    assert_eq!((bench.store.seen_of(&held), position(&bench)), (bench.lsn + 1, bench.lsn + 8));
}

#[test]
fn held_transactions_reach_the_log_in_order_whatever_is_decided_first() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    bench.transact(&[insert(["1", "0", "aß1"])]);
    bench.transact(&[insert(["2", "0", "aß2"]), insert(["3", "0", "b"])]);
    let second_lsn = bench.lsn;
    let both = bench.store.take_undecided().unwrap();
    bench.transact(&[insert(["4", "0", "a"])]);
    bench.store.decide(both, &[Undecided, Match]);
    bench.store.engine.store.role.queue().release();
    assert_eq!(ids(&held), [] as [&str; 0]);
    let first = bench.store.take_undecided().unwrap();
    assert_eq!(first.rows().collect::<Vec<_>>(), [[Some("aß1".as_bytes())]]);
    bench.transact(&[insert(["5", "0", "aß5"])]);
    let last_lsn = bench.lsn;
    bench.store.decide(first, &[NoMatch]);
    bench.store.engine.store.role.queue().release();
    assert_eq!(ids(&held), ["2", "4"]);
    assert_eq!(log(&held)[0]["headers"]["lsn"], json!(second_lsn.to_string()));
    assert!(log(&held).iter().all(|message| message["headers"]["last"] == true));
    // The hold continues with the next undecided transaction.
    assert!(held.is_held() && position(&bench) == last_lsn && bench.store.seen_of(&held) == last_lsn - 1);
    decide(&bench, Match);
    assert_eq!(ids(&held), ["2", "4", "5"]);
}

#[test]
fn updates_of_another_column_ask_for_a_row_once() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    let update = |from: u32, to: u32| {
        let (old, new) = (from.to_string(), to.to_string());
        MessageBytes::update(ITEMS, &row(["1", &old, "aß"]), &row(["1", &new, "aß"]))
    };
    for qty in 0..10 {
        bench.transact(&[update(qty, qty + 1)]);
    }
    assert_eq!(decide(&bench, Match), 1);
    assert_eq!(brief(&held).len(), 10);
    // The verdict is remembered, so nothing is held any more.
    bench.transact(&[update(10, 11)]);
    assert_eq!((brief(&held).len(), bench.store.held_shapes(), decide(&bench, Match)), (11, 0, 0));
}

#[test]
fn a_batch_that_is_dropped_or_undecided_is_asked_again() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    bench.transact(&[insert(["1", "0", "aß"]), insert(["2", "0", "ß"])]);
    drop(bench.store.take_undecided().unwrap());
    assert_eq!(decide(&bench, Undecided), 2);
    let rows = bench.store.take_undecided().unwrap();
    assert!(bench.store.take_undecided().is_none());
    bench.store.decide(rows, &[NoMatch]);
    let rows = bench.store.take_undecided().unwrap();
    assert_eq!(rows.rows().collect::<Vec<_>>(), [[Some("ß".as_bytes())]], "the first row is decided");
    bench.store.decide(rows, &[Match]);
    bench.store.engine.store.role.queue().release();
    assert_eq!(ids(&held), ["2"]);
}

#[test]
fn a_task_that_waits_for_undecided_rows_is_woken() {
    let mut bench = FollowBench::new();
    let _held = undecided_shape(&mut bench, CLAUSE);
    let (store, (found, finding)) = (bench.store.clone(), mpsc::sync_channel(1));
    let waiting = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        found.send(runtime.block_on(store.undecided_rows()).len()).unwrap();
    });
    bench.transact(&[insert(["1", "0", "ß"])]);
    assert_eq!(finding.recv_timeout(Duration::from_secs(30)), Ok(1));
    waiting.join().unwrap();
}

#[test]
fn giving_up_deletes_only_that_shape() {
    let mut bench = FollowBench::new();
    let held = [CLAUSE, "upper(note) LIKE 'B%'"].map(|clause| undecided_shape(&mut bench, clause));
    bench.transact(&[insert(["1", "0", "ß"])]);
    let rows = bench.store.take_undecided().unwrap();
    let given_up = Arc::clone(rows.shape());
    bench.store.give_up(rows, "a test gave up");
    bench.store.engine.store.role.queue().release();
    assert_eq!(given_up.gone(), Some(ShapeGone::Deleted));
    assert_eq!((held.iter().filter(|shape| shape.gone().is_none()).count(), decide(&bench, Match)), (1, 1));
    assert_eq!((bench.store.held_shapes(), position(&bench)), (0, bench.lsn + 8));
}

#[test]
fn an_interrupted_transaction_leaves_no_hold() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    let begin = bench.begin();
    bench.send(&[begin.clone(), insert(["1", "0", "a"]), insert(["2", "0", "aß"])]);
    bench.follower.restart();
    assert_eq!(bench.store.held_shapes(), 0);
    bench.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0])), begin, insert(["3", "0", "a"])]);
    bench.send(&[bench.commit()]);
    bench.store.engine.store.role.queue().release();
    assert_eq!((ids(&held), position(&bench)), (vec!["3".to_owned()], bench.lsn + 8));
}

#[test]
fn a_shape_may_become_held_after_parts_of_the_transaction_were_queued() {
    let mut bench = FollowBench::with(|config| config.part_bytes = 1);
    let (held, other) = (undecided_shape(&mut bench, CLAUSE), bench.shape(options(None)));
    let inserts = [["1", "0", "a1"], ["2", "0", "a2"], ["3", "0", "aß"], ["4", "0", "a4"]].map(insert);
    bench.transact(&inserts);
    assert_eq!((ids(&other).len(), ids(&held).len()), (4, 0));
    decide(&bench, Match);
    assert_eq!(log(&held), log(&other));
    // Without an undecided row, the parts are written at the commit.
    bench.transact(&[insert(["5", "0", "a"]), insert(["6", "0", "a"])]);
    assert_eq!(log(&held), log(&other));
}

#[test]
fn what_is_held_is_bounded() {
    let limits = |config: &mut StoreConfig| (config.part_bytes, config.held_bytes) = (500, 2000);
    let many = |note: &str| vec![insert(["1", "0", &note.repeat(50)]); 30];
    // Undecided rows of one transaction, of many, and after so many messages that they were queued.
    let undecided = many("aß");
    for (transactions, is_deleted) in [
        (vec![undecided.clone()], true),
        (undecided.chunks(1).map(<[_]>::to_vec).collect(), true),
        (vec![[many("a"), vec![insert(["2", "0", "aß"])]].concat()], true),
        (vec![many("a")], false),
    ] {
        let mut bench = FollowBench::with(limits);
        let (held, other) = (undecided_shape(&mut bench, CLAUSE), bench.shape(options(None)));
        let count: usize = transactions.iter().map(Vec::len).sum();
        transactions.iter().for_each(|messages| bench.transact(messages));
        assert_eq!((held.gone().is_some(), other.gone()), (is_deleted, None));
        assert_eq!((brief(&other).len(), bench.store.held_shapes()), (count, 0));
        assert_eq!(position(&bench), bench.lsn + 8, "the deleted shape holds nothing back");
    }
}

#[test]
fn shapes_with_undecided_rows_take_turns() {
    let mut bench = FollowBench::new();
    let shapes = [CLAUSE, "upper(note) LIKE 'B%'"].map(|clause| undecided_shape(&mut bench, clause));
    bench.transact(&[insert(["1", "0", "ß1"])]);
    let turn = |bench: &FollowBench| bench.store.take_undecided().map(|rows| (rows.shape().id, rows));
    let (first, rows) = turn(&bench).unwrap();
    let (second, of_second) = turn(&bench).unwrap();
    assert!(first != second && shapes.iter().all(|shape| [first, second].contains(&shape.id)));
    // A shape has at most one batch, and its next one comes after those of the others.
    bench.transact(&[insert(["2", "0", "ß2"])]);
    assert!(turn(&bench).is_none());
    drop(of_second);
    drop(rows);
    let order: Vec<_> = [(); 2].map(|()| turn(&bench).unwrap()).into();
    assert_eq!(
        order.iter().map(|(shape, rows)| (*shape, rows.len())).collect::<Vec<_>>(),
        [(second, 2), (first, 2)]
    );
}

#[test]
fn what_is_held_for_all_shapes_is_bounded() {
    let mut bench = FollowBench::with(|config| config.total_held_bytes = 6000);
    let clauses = [CLAUSE, "upper(note) LIKE 'B%' AND qty > 5", "upper(note) LIKE 'C%' AND qty > 7"];
    let shapes = clauses.map(|clause| undecided_shape(&mut bench, clause));
    let other = bench.shape(options(None));
    let is_gone = |shapes: &[Arc<Shape>; 3]| shapes.each_ref().map(|shape| shape.gone().is_some());
    let mut steps = vec![is_gone(&shapes)];
    for id in 0..100 {
        let qty = ["4", "6", "9"][id % 3];
        bench.transact(&[insert([&id.to_string(), qty, "ß"])]);
        assert!(bench.store.held_bytes() <= 6000);
        steps.push(is_gone(&shapes));
    }
    steps.dedup();
    // The first one holds all rows, the second one two thirds, the third one a third.
    assert_eq!(steps, [[false; 3], [true, false, false], [true, true, false]]);
    assert_eq!((bench.store.overfull_shapes(), other.gone(), brief(&other).len()), (2, None, 100));
    decide(&bench, Match);
    assert_eq!(bench.store.held_bytes(), 0);
}

/// Opens the store of another process on the disk that a kill leaves.
fn killed(bench: &FollowBench) -> FollowBench {
    let disk = bench.disk.after_kill();
    let config = StoreConfig { waits_for_checkpoints: true, ..StoreConfig::new("/nowhere") };
    let store = Shapes::on(Arc::new(disk.clone()), config).unwrap();
    store.begin_writing().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let follower = store.follower();
    let mut killed = FollowBench { disk, store, follower, runtime, lsn: bench.lsn, xid: bench.xid };
    killed.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0]))]);
    killed
}

fn transaction(lsn: u64, xid: u32, messages: &[MessageBytes]) -> Vec<MessageBytes> {
    [&[MessageBytes::begin(lsn, xid)], messages, &[MessageBytes::commit(lsn, lsn + 8)]].concat()
}

#[test]
fn a_kill_keeps_a_held_shape_and_the_stream_repeats_its_transactions() {
    for has_checkpoint in [false, true] {
        let mut bench = FollowBench::new();
        let (held, other) = (undecided_shape(&mut bench, CLAUSE), bench.shape(options(None)));
        bench.transact(&[insert(["1", "0", "a"])]);
        let transactions = [[insert(["2", "0", "aß"])], [insert(["3", "0", "a"])], [insert(["4", "0", "ß"])]];
        let before = (bench.lsn, bench.xid);
        transactions.iter().for_each(|messages| bench.transact(messages));
        if has_checkpoint {
            bench.runtime.block_on(bench.store.checkpoint()).unwrap();
        }
        let mut next = killed(&bench);
        let [found, others] = [&held, &other].map(|shape| next.store.find(shape.handle()).unwrap());
        assert_eq!((position(&next), ids(&found)), (before.0 + 10, vec!["1".to_owned()]));
        assert_eq!(next.store.seen_of(&found), before.0 + 9);
        // The stream starts over: within the last transaction, then within one that was repeated.
        let interrupted = |lsn: u64, xid: u32| [MessageBytes::begin(lsn, xid), insert(["4", "0", "ß"])];
        for count in [2, 1, 3] {
            for (at, messages) in (1..).zip(&transactions[..count]) {
                next.send(&transaction(before.0 + at * 10, before.1 + at as u32, messages));
            }
            if count < 3 {
                next.send(&interrupted(before.0 + (count as u64 + 1) * 10, before.1 + count as u32 + 1));
                next.follower.restart();
                next.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0]))]);
            }
        }
        next.store.engine.store.role.queue().release();
        assert_eq!((ids(&found).len(), ids(&others).len()), (1, 4), "other shapes don't get them again");
        assert_eq!(decide(&next, Match), 2);
        assert_eq!((log(&found), next.store.held_shapes()), (log(&other), 0));
        assert_eq!(position(&next), bench.lsn + 8);
        next.transact(&[insert(["5", "0", "a"])]);
        assert_eq!((ids(&found).len(), ids(&others).len()), (5, 5));
    }
}

#[test]
fn a_stored_table_without_enum_labels_is_judged_by_postgres_after_a_restart() {
    let mut bench = FollowBench::new();
    // Earlier releases stored no labels.
    let mut schema = collated_table(ITEMS, "items", vec![0]);
    let note = &mut schema.types.columns[2].column_type;
    (note.oid, note.kind, note.name, note.collation) = (70_000, TypeKind::Enum, "mood".to_owned(), None);
    schema.stream_types[2] = (70_000, -1);
    bench.send(&[MessageBytes::relation(&schema)]);
    let creation = bench.create_of(schema.clone(), options(Some("note > 'sad'")));
    creation.follow();
    let held = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
    let mut next = killed(&bench);
    next.send(&[MessageBytes::relation(&schema)]);
    let found = next.store.find(held.handle()).unwrap();
    next.transact(&[insert(["1", "0", "glad"])]);
    assert!(found.is_held());
    assert_eq!((decide(&next, Match), ids(&found)), (1, vec!["1".to_owned()]));
}

#[test]
fn a_hold_that_the_stream_does_not_repeat_deletes_only_its_shape() {
    for is_idle in [false, true] {
        let mut bench = FollowBench::new();
        let (held, other) = (undecided_shape(&mut bench, CLAUSE), bench.shape(options(None)));
        bench.transact(&[insert(["1", "0", "ß"])]);
        let mut next = killed(&bench);
        if is_idle {
            next.store.advance(bench.lsn + 20);
            next.store.engine.store.role.queue().release();
        } else {
            next.transact(&[insert(["2", "0", "a"])]);
        }
        assert!(next.store.find(held.handle()).is_none());
        assert!(next.store.find(other.handle()).is_some());
        assert!(position(&next) > bench.lsn, "nothing is held back any more");
    }
}

#[test]
fn a_repeated_transaction_never_deletes_a_shape_that_has_it() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    let narrow = bench.create_of(table(ITEMS, "items", vec![0]), of_columns(None, &["id"]));
    narrow.follow();
    bench.transact(&[insert(["1", "0", "ß"])]);
    let narrow = bench.complete(narrow, &snapshot_before(bench.xid), bench.lsn + 8);
    let mut next = killed(&bench);
    let late = next.shape(options(Some("qty > 5")));
    // The stream describes the table as it was at that commit.
    let mut before = table(ITEMS, "items", vec![0]);
    before.types.columns.pop();
    before.stream_types.pop();
    next.send(&[MessageBytes::relation(&before)]);
    next.send(&transaction(
        bench.lsn,
        bench.xid,
        &[MessageBytes::insert(ITEMS, &row(["1", "0", "ß"])[..2].to_vec())],
    ));
    next.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0]))]);
    next.transact(&[insert(["2", "7", "b"])]);
    assert_eq!(late.gone(), None);
    assert_eq!(ids(&next.store.find(narrow.handle()).unwrap()), ["1", "2"]);
    assert!(next.store.find(held.handle()).is_none(), "it had the column");
}

#[test]
fn a_hold_before_the_snapshot_begins_if_the_snapshot_misses_the_transaction() {
    for sees_it in [true, false] {
        let mut bench = FollowBench::new();
        let mut creation = bench.create_of(collated_table(ITEMS, "items", vec![0]), options(Some(CLAUSE)));
        let shape = Arc::clone(creation.shape());
        creation.follow();
        bench.transact(&[insert(["1", "0", "a"])]);
        bench.transact(&[insert(["2", "0", "aß"])]);
        let undecided = bench.lsn;
        bench.transact(&[insert(["3", "0", "a"])]);
        assert_eq!(decide(&bench, Match), 0, "Postgres isn't asked before the snapshot is taken");
        let first = u64::from(bench.xid) - 2;
        let xip = if sees_it { vec![first + 2] } else { vec![first + 1, first + 2] };
        let seen = Snapshot { xmin: first + 1, xmax: first + 3, xip };
        assert!(creation.snapshot_taken(&seen, bench.lsn + 8).is_in_time());
        creation.seal().unwrap();
        // The creation doesn't wait for verdicts.
        bench.runtime.block_on(creation.complete()).unwrap();
        assert_eq!(shape.is_held(), !sees_it);
        assert_eq!(ids(&shape), if sees_it { vec!["3"] } else { vec![] });
        assert_eq!(bench.store.seen_of(&shape), if sees_it { bench.lsn + 1 } else { undecided - 1 });
        assert_eq!(position(&bench), if sees_it { bench.lsn + 8 } else { undecided });
        assert_eq!(decide(&bench, Match), usize::from(!sees_it));
        assert_eq!(ids(&shape), if sees_it { vec!["3"] } else { vec!["2", "3"] });
        assert_eq!(position(&bench), bench.lsn + 8);
    }
}

#[test]
fn truncate_and_a_clients_deletion_end_a_hold() {
    for is_truncated in [true, false] {
        let mut bench = FollowBench::new();
        let held = undecided_shape(&mut bench, CLAUSE);
        bench.transact(&[insert(["1", "0", "ß"])]);
        let rows = bench.store.take_undecided().unwrap();
        if is_truncated {
            bench.transact(&[MessageBytes::truncate(&[ITEMS])]);
        } else {
            assert!(bench.store.delete(held.handle()));
        }
        bench.store.decide(rows, &[Match]);
        bench.store.engine.store.role.queue().release();
        assert_eq!((held.gone(), position(&bench)), (Some(ShapeGone::Deleted), bench.lsn + 8));
    }
}

#[test]
fn rows_of_a_table_without_a_key_are_counted_when_they_reach_the_log() {
    for verdict in [Match, NoMatch] {
        let mut bench = FollowBench::new();
        let keyless = || collated_table(ITEMS, "items", vec![]);
        bench.send(&[MessageBytes::relation(&keyless())]);
        let creation = bench.create_of(keyless(), options(Some(CLAUSE)));
        creation.follow();
        let held = bench.complete(creation, &snapshot_before(bench.xid + 1), bench.lsn + 8);
        bench.transact(&[insert(["1", "0", "a"]), insert(["2", "0", "ß"])]);
        bench.transact(&[insert(["2", "0", "ß"])]);
        bench.transact(&[MessageBytes::delete(ITEMS, &row(["2", "0", "ß"]))]);
        assert_eq!(held.gone(), None);
        decide(&bench, verdict);
        // One of two equal rows left the shape, if they were in it.
        assert_eq!(held.gone().is_some(), verdict == Match);
    }
}

#[test]
fn a_reader_beside_the_writer_shows_no_more_than_the_writer() {
    let mut bench = FollowBench::new();
    let held = undecided_shape(&mut bench, CLAUSE);
    let config = StoreConfig::new("/nowhere");
    let reader = Shapes::on(Arc::new(bench.disk.read_only()), config).unwrap();
    bench.transact(&[insert(["1", "0", "aß"])]);
    reader.refresh().unwrap();
    let theirs = reader.find(held.handle()).unwrap();
    assert_eq!((reader.seen_of(&theirs), ids(&theirs).len()), (bench.lsn - 1, 0));
    assert!(reader.take_undecided().is_none(), "a reader never judges");
    decide(&bench, Match);
    reader.refresh().unwrap();
    assert_eq!((reader.seen_of(&theirs), ids(&theirs).len()), (bench.lsn + 1, 1));
}
