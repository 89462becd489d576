//! A folder that an earlier version wrote, and what its clients were served. Every later version
//! opens it without a refetch.
//!
//! `tests/fixtures/README.md` says how a folder is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use crate::config::StoreConfig;
use crate::creation::ShapeCreation;
use crate::definition::{LogMode, ReplicaMode, ShapeOptions, TableSchema};
use crate::offset::Offset;
use crate::shape::Shape;
use crate::shapes::Shapes;
use crate::simulation::follow_bench::{FollowBench, ITEMS, choice, of_columns, row, snapshot_before};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::table;
use crate::store::disk::{Disk, SimulatedDisk};
use crate::store::record::framed_payload;
use crate::store::{OpenError, StoreSummary, files};

const EVENTS: u32 = 200;
const ORIGIN: &str = "{\"timeline\":1,\"publication\":16401}";

/// What clients of the folder's shapes had been served when it was written.
#[derive(Debug, Serialize, Deserialize)]
struct Expected {
    origin: String,
    durable: u64,
    seen: u64,
    /// The last transaction that was committed. The one after it is in the log in part.
    lsn: u64,
    xid: u32,
    complete: Vec<ExpectedShape>,
    /// Handles of shapes that were deleted, or whose snapshot wasn't complete.
    gone: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ExpectedShape {
    handle: String,
    table: String,
    choice: ShapeOptions,
    snapshot: String,
    /// The offset after which each page of the log was asked for, and its text.
    log: Vec<(String, String)>,
    log_end: String,
}

/// Logs of some lines are long, large snapshots have a file, and transactions of some rows have
/// parts.
fn small(config: &mut StoreConfig) {
    (config.chunk_bytes, config.compact_bytes) = (300, 400);
    (config.small_snapshot_bytes, config.part_bytes) = (300, 400);
}

fn described(oid: u32, name: &str, key: Vec<usize>) -> TableSchema {
    let notes = ["int4", "int4", "text"].map(|kind| format!("{{\"type\":\"{kind}\"}}"));
    TableSchema {
        numbers: vec![1, 2, 4],
        lineage: "16404".to_owned(),
        notes: notes.to_vec(),
        ..table(oid, name, key)
    }
}

fn items() -> TableSchema {
    described(ITEMS, "items", vec![0])
}

fn events() -> TableSchema {
    described(EVENTS, "events", vec![])
}

fn rows(name: &str, ids: std::ops::Range<u32>) -> Bytes {
    let row = |id| {
        format!(
            "{{\"headers\":{{\"operation\":\"insert\",\"relation\":[\"public\",\"{name}\"]}},\
             \"key\":\"\\\"public\\\".\\\"{name}\\\"/\\\"{id}\\\"\",\
             \"value\":{{\"id\":\"{id}\",\"qty\":\"6\",\"note\":\"a\"}}}},\n"
        )
    };
    ids.map(row).collect::<String>().into()
}

/// A shape whose snapshot has these rows.
fn filled(bench: &mut FollowBench, table: TableSchema, choice: ShapeOptions, rows: Bytes) -> Arc<Shape> {
    let creation = bench.create_of(table, choice);
    creation.follow();
    complete(bench, creation, rows, bench.xid + 1)
}

/// `unseen`: the first transaction that the snapshot doesn't see.
fn complete(bench: &FollowBench, mut creation: ShapeCreation, rows: Bytes, unseen: u32) -> Arc<Shape> {
    assert!(creation.snapshot_taken(&snapshot_before(unseen), bench.lsn + 8));
    if !rows.is_empty() {
        creation.rows(rows).unwrap();
    }
    creation.seal().unwrap();
    let shape = Arc::clone(creation.shape());
    bench.runtime.block_on(creation.complete()).unwrap();
    shape
}

fn inserts(oid: u32, ids: std::ops::Range<u32>) -> Vec<MessageBytes> {
    ids.map(|id| MessageBytes::insert(oid, &row([&id.to_string(), "7", "added"]))).collect()
}

fn update(bench: &mut FollowBench, times: std::ops::Range<u32>) {
    for time in times {
        let (old, new) = (time.to_string(), (time + 1).to_string());
        bench.transact(&[MessageBytes::update(ITEMS, &row(["1", &old, "a"]), &row(["1", &new, "a"]))]);
    }
}

/// The transaction of which the folder has only some parts.
fn unfinished() -> Vec<MessageBytes> {
    [inserts(ITEMS, 300..306), inserts(EVENTS, 300..306)].concat()
}

/// Everything that a client can read of a shape.
fn served(shape: &Shape) -> ExpectedShape {
    let (mut after, mut log) = (Offset::SNAPSHOT_END, Vec::new());
    let text = |bytes: Vec<Bytes>| String::from_utf8(bytes.concat()).unwrap();
    loop {
        let page = shape.log_after(after).unwrap();
        log.push((after.to_string(), text(shape.read_log(&page, page.from, page.to).unwrap())));
        if page.is_end {
            break;
        }
        after = page.last;
    }
    ExpectedShape {
        handle: shape.handle().to_owned(),
        table: shape.definition().table.name.clone(),
        choice: shape.definition().choice.clone(),
        snapshot: text(shape.read_snapshot(0, shape.snapshot_end()).unwrap()),
        log,
        log_end: shape.log_end().to_string(),
    }
}

/// Writes everything that a folder may have. Returns what clients were served, and the creations
/// that must not be dropped before the folder was copied.
fn write_everything() -> (FollowBench, Expected, Vec<ShapeCreation>) {
    let mut bench = FollowBench::with(small);
    bench.runtime.block_on(bench.store.adopt(ORIGIN.to_owned())).unwrap();
    bench.send(&[MessageBytes::relation(&items()), MessageBytes::relation(&events())]);
    let changes_only = ShapeOptions { log: LogMode::ChangesOnly, ..choice(None) };
    let full = ShapeOptions { replica: ReplicaMode::Full, ..choice(Some("note LIKE 'a%'")) };
    let mut shapes = vec![
        filled(&mut bench, items(), choice(None), rows("items", 1..6)),
        filled(&mut bench, items(), choice(Some("qty > 5")), rows("items", 1..2)),
        filled(&mut bench, items(), of_columns(Some("id < 1000"), &["id", "qty"]), rows("items", 1..3)),
        filled(&mut bench, items(), full, rows("items", 1..2)),
        filled(&mut bench, items(), changes_only, Bytes::new()),
        filled(&mut bench, events(), choice(None), rows("events", 1..3)),
    ];
    let deleted_first = filled(&mut bench, items(), choice(Some("qty = 1")), rows("items", 1..6));
    let deleted_later = filled(&mut bench, items(), choice(Some("qty = 2")), rows("items", 1..6));
    bench.transact(&[inserts(ITEMS, 100..104), inserts(EVENTS, 100..104)].concat());
    update(&mut bench, 6..18);
    assert!(bench.store.delete(deleted_first.handle()));
    let incomplete_first = bench.create_of(items(), choice(Some("qty = 3")));
    incomplete_first.follow();
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();

    update(&mut bench, 18..20);
    assert!(bench.store.delete(deleted_later.handle()));
    // Its snapshot doesn't see a transaction that came before it was taken.
    let late = bench.create_of(events(), choice(Some("qty > 6")));
    late.follow();
    bench.transact(&[inserts(EVENTS, 110..112), inserts(ITEMS, 110..112)].concat());
    shapes.push(complete(&bench, late, rows("events", 1..2), bench.xid));
    let delete = MessageBytes::delete(EVENTS, &row(["110", "7", "added"]));
    bench.transact(&[inserts(ITEMS, 200..206), inserts(EVENTS, 200..206), vec![delete]].concat());
    bench.store.advance(bench.lsn + 9);
    let incomplete_later = bench.create_of(items(), choice(Some("qty = 4")));
    incomplete_later.follow();
    bench.store.inner.queue().release();
    let gone = [&deleted_first, &deleted_later, incomplete_first.shape(), incomplete_later.shape()];
    let expected = Expected {
        origin: ORIGIN.to_owned(),
        durable: bench.store.position().unwrap().lsn,
        seen: bench.store.seen(),
        lsn: bench.lsn,
        xid: bench.xid,
        complete: shapes.iter().map(|shape| served(shape)).collect(),
        gone: gone.map(|shape| shape.handle().to_owned()).to_vec(),
    };
    let begin = bench.begin();
    bench.send(&[vec![begin], unfinished()].concat());
    bench.store.inner.queue().release();
    (bench, expected, vec![incomplete_first, incomplete_later])
}

/// Copies a simulated disk to a folder.
fn copy_out(disk: &SimulatedDisk, to: &Path) {
    for dir in ["", "wal", "shapes"] {
        fs::create_dir_all(to.join(dir)).unwrap();
        for name in disk.list(dir).unwrap() {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            if let Ok(file) = disk.open(&path) {
                let bytes = files::read(&*file, 0, file.len().unwrap()).unwrap();
                fs::write(to.join(path), bytes).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "writes a fixture to the folder that FOREBAY_FIXTURE names"]
fn write_fixture() {
    let to = PathBuf::from(std::env::var_os("FOREBAY_FIXTURE").expect("FOREBAY_FIXTURE names a new folder"));
    assert!(!to.exists(), "a fixture stays as it was written");
    let (bench, expected, _incomplete) = write_everything();
    copy_out(&bench.disk, &to.join("store"));
    fs::write(to.join("expected.json"), serde_json::to_string_pretty(&expected).unwrap() + "\n").unwrap();
}

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let fixtures: Vec<_> = entries.filter(|path| path.join("expected.json").exists()).collect();
    assert!(!fixtures.is_empty());
    fixtures
}

/// A copy of a fixture's folder, removed when it is dropped.
struct Copied(PathBuf);

impl Copied {
    fn of(fixture: &Path, test: &str) -> Self {
        let name =
            format!("forebay-{test}-{}-{}", fixture.file_name().unwrap().display(), std::process::id());
        let to = std::env::temp_dir().join(name);
        for dir in ["", "wal", "shapes"] {
            fs::create_dir_all(to.join(dir)).unwrap();
            for entry in fs::read_dir(fixture.join("store").join(dir)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    fs::copy(&path, to.join(dir).join(path.file_name().unwrap())).unwrap();
                }
            }
        }
        Copied(to)
    }

    fn open(&self) -> Result<Shapes, OpenError> {
        let mut config = StoreConfig { waits_for_checkpoints: true, ..StoreConfig::new(&self.0) };
        small(&mut config);
        // A log that is merged by the first checkpoint leads to the same rows, but has other bytes.
        config.compact_bytes = 0;
        Shapes::open(config)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn check(store: &Shapes, expected: &Expected) {
    let position = store.position().unwrap();
    assert_eq!((&position.origin, position.lsn), (&expected.origin, expected.durable));
    assert_eq!(store.seen(), expected.seen);
    for shape in &expected.complete {
        let found = store.find(&shape.handle).unwrap_or_else(|| panic!("{} is lost", shape.handle));
        assert_eq!(&served(&found), shape);
        let same = store.find_same(found.definition()).expect("it is found by what it is");
        assert_eq!(same.handle(), shape.handle);
        // Handles, and the log's names for tables, are made of hashes that two versions must agree
        // on.
        let hash = found.definition().fingerprint().to_string();
        assert_eq!(shape.handle.split_once('-').map(|(hash, _)| hash), Some(&*hash));
    }
}

/// A bench that goes on with the stream after the last transaction that the folder has.
fn go_on(store: Shapes, expected: &Expected) -> FollowBench {
    let (follower, runtime) = (store.follower(), Builder::new_current_thread().build().unwrap());
    let (lsn, xid) = (expected.lsn, expected.xid);
    let mut bench = FollowBench { disk: SimulatedDisk::new(0), store, follower, runtime, lsn, xid };
    bench.send(&[MessageBytes::relation(&items()), MessageBytes::relation(&events())]);
    bench
}

#[test]
fn a_folder_of_an_earlier_version_is_read_and_written_on() {
    for fixture in fixtures() {
        let expected = fs::read(fixture.join("expected.json")).unwrap();
        let expected: Expected = serde_json::from_slice(&expected).unwrap();
        let folder = Copied::of(&fixture, "earlier");
        let store = folder.open().unwrap();
        check(&store, &expected);
        store.begin_writing().unwrap();
        check(&store, &expected);
        let handles: Vec<_> = store.all().iter().map(|shape| shape.handle().to_owned()).collect();
        assert_eq!(handles.len(), expected.complete.len(), "{handles:?}");
        assert!(expected.gone.iter().all(|handle| store.find(handle).is_none()));

        // The transaction of which the log has parts comes again, and another one after it.
        let mut bench = go_on(store.clone(), &expected);
        bench.transact(&unfinished());
        bench.transact(&inserts(ITEMS, 400..401));
        let find = |index: usize| store.find(&expected.complete[index].handle).unwrap();
        for (index, added) in [(0, 7), (1, 7), (2, 7), (3, 7), (4, 7), (5, 6), (6, 6)] {
            let (shape, before) = (find(index), &expected.complete[index]);
            let after = served(&shape);
            let text = |served: &ExpectedShape| -> String {
                served.log.iter().map(|(_, text)| text.as_str()).collect()
            };
            let rest = text(&after).strip_prefix(&text(before)).expect("the log goes on").to_owned();
            assert_eq!(rest.lines().count(), added, "{:?}: {rest}", before.choice);
            assert_eq!(after.snapshot, before.snapshot);
        }
        let now: Vec<_> = (0..7).map(|index| served(&find(index))).collect();
        bench.runtime.block_on(store.checkpoint()).unwrap();
        store.end_writing();
        let again = folder.open().unwrap();
        for shape in &now {
            assert_eq!(&served(&again.find(&shape.handle).unwrap()), shape);
        }
    }
}

#[test]
fn looking_at_a_folder_of_a_newer_version_says_so() {
    for fixture in fixtures().into_iter().filter(|fixture| fixture.ends_with("store-1")) {
        let folder = Copied::of(&fixture, "newer");
        assert_eq!(StoreSummary::at(&folder.0).unwrap().unwrap().shapes, 8);
        let log = folder.0.join("wal/0000000000000001");
        let bytes = [fs::read(&log).unwrap(), framed_payload(&[9])].concat();
        fs::write(&log, &bytes).unwrap();
        assert!(matches!(StoreSummary::at(&folder.0), Err(OpenError::Unreadable { .. })));
        assert!(matches!(folder.open(), Err(OpenError::Unreadable { .. })));
        assert_eq!(fs::read(&log).unwrap(), bytes);
    }
}
