//! Fixtures: storage directories that earlier versions wrote, and what their clients were served.
//! Every later version opens them, and no client has to fetch a shape again.
//!
//! `tests/fixtures/README.md` describes how to write one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use crate::config::StoreConfig;
use crate::creation::ShapeCreation;
use crate::definition::{LogMode, ReplicaMode, ShapeOptions, TableSchema};
use crate::engine::writer;
use crate::offset::Offset;
use crate::shape::Shape;
use crate::shapes::Shapes;
use crate::simulation::follow_bench::{FollowBench, ITEMS, of_columns, options, row, snapshot_before};
use crate::simulation::message_bytes::MessageBytes;
use crate::simulation::simulated_database::table;
use crate::store::catalog::{FORMAT, StoreCatalog};
use crate::store::disk::{Disk, RealDisk, SimulatedDisk};
use crate::store::frame::framed_payload;
use crate::store::{OpenError, StoreSummary, shape_files};

const EVENTS: u32 = 200;
const ORIGIN: &str = "{\"timeline\":1,\"publication\":16401}";

/// What clients of a fixture's shapes had been served when it was written.
#[derive(Debug, Serialize, Deserialize)]
struct ExpectedStore {
    origin: String,
    durable: u64,
    seen: u64,
    /// LSN of the last committed transaction. The WAL has only parts of the next one.
    lsn: u64,
    xid: u32,
    complete: Vec<ExpectedShape>,
    /// Handles of shapes that were deleted, or whose snapshot was not complete.
    gone: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ExpectedShape {
    handle: String,
    table: String,
    #[serde(rename = "choice")]
    options: ShapeOptions,
    snapshot: String,
    /// Each page of the log: the offset after which it was requested, and its text.
    log: Vec<(String, String)>,
    log_end: String,
}

/// Sets limits so low that a few lines make a long log, a large snapshot or a transaction with
/// several parts.
fn set_low_limits(config: &mut StoreConfig) {
    (config.chunk_bytes, config.compact_bytes) = (300, 400);
    (config.small_snapshot_bytes, config.part_bytes) = (300, 400);
}

fn table_schema(oid: u32, name: &str, key: Vec<usize>) -> TableSchema {
    let notes = ["int4", "int4", "text"].map(|kind| format!("{{\"type\":\"{kind}\"}}"));
    TableSchema {
        numbers: vec![1, 2, 4],
        lineage: "16404".to_owned(),
        notes: notes.to_vec(),
        ..table(oid, name, key)
    }
}

fn items() -> TableSchema {
    table_schema(ITEMS, "items", vec![0])
}

fn events() -> TableSchema {
    table_schema(EVENTS, "events", vec![])
}

fn rows(name: &str, ids: std::ops::Range<u32>) -> Bytes {
    let row = |id| {
        format!(
            "{{\"key\":\"\\\"public\\\".\\\"{name}\\\"/\\\"{id}\\\"\",\
             \"value\":{{\"id\":\"{id}\",\"qty\":\"6\",\"note\":\"a\"}},\
             \"headers\":{{\"operation\":\"insert\",\"relation\":[\"public\",\"{name}\"]}}}},\n"
        )
    };
    ids.map(row).collect::<String>().into()
}

/// Returns a shape whose snapshot has these rows.
fn complete_shape(
    bench: &mut FollowBench,
    table: TableSchema,
    options: ShapeOptions,
    rows: Bytes,
) -> Arc<Shape> {
    let creation = bench.create_of(table, options);
    creation.follow();
    complete_snapshot(bench, creation, rows, bench.xid + 1)
}

/// Completes a snapshot. `unseen` is the first transaction that it doesn't see.
fn complete_snapshot(
    bench: &FollowBench,
    mut creation: ShapeCreation,
    rows: Bytes,
    unseen: u32,
) -> Arc<Shape> {
    assert!(creation.snapshot_taken(&snapshot_before(unseen), bench.lsn + 8).is_in_time());
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

/// The transaction of which a fixture has only some parts.
fn unfinished() -> Vec<MessageBytes> {
    [inserts(ITEMS, 300..306), inserts(EVENTS, 300..306)].concat()
}

/// Returns all that a client can read of a shape.
fn read_shape(shape: &Shape) -> ExpectedShape {
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
        options: shape.definition().options.clone(),
        snapshot: text(shape.read_snapshot(0, shape.snapshot_end()).unwrap()),
        log,
        log_end: shape.log_end().to_string(),
    }
}

/// Writes every kind of record and file. Returns what clients were served, and the creations that
/// must live until the directory is copied.
fn write_everything() -> (FollowBench, ExpectedStore, Vec<ShapeCreation>) {
    let mut bench = FollowBench::with(set_low_limits);
    bench.runtime.block_on(bench.store.adopt(ORIGIN.to_owned())).unwrap();
    bench.send(&[MessageBytes::relation(&items()), MessageBytes::relation(&events())]);
    let changes_only = ShapeOptions { log: LogMode::ChangesOnly, ..options(None) };
    let full = ShapeOptions { replica: ReplicaMode::Full, ..options(Some("note LIKE 'a%'")) };
    let mut shapes = vec![
        complete_shape(&mut bench, items(), options(None), rows("items", 1..6)),
        complete_shape(&mut bench, items(), options(Some("qty > 5")), rows("items", 1..2)),
        complete_shape(
            &mut bench,
            items(),
            of_columns(Some("id < 1000"), &["id", "qty"]),
            rows("items", 1..3),
        ),
        complete_shape(&mut bench, items(), full, rows("items", 1..2)),
        complete_shape(&mut bench, items(), changes_only, Bytes::new()),
        complete_shape(&mut bench, events(), options(None), rows("events", 1..3)),
    ];
    let deleted_first = complete_shape(&mut bench, items(), options(Some("qty = 1")), rows("items", 1..6));
    let deleted_later = complete_shape(&mut bench, items(), options(Some("qty = 2")), rows("items", 1..6));
    bench.transact(&[inserts(ITEMS, 100..104), inserts(EVENTS, 100..104)].concat());
    update(&mut bench, 6..18);
    assert!(bench.store.delete(deleted_first.handle()));
    let incomplete_first = bench.create_of(items(), options(Some("qty = 3")));
    incomplete_first.follow();
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();

    update(&mut bench, 18..20);
    assert!(bench.store.delete(deleted_later.handle()));
    // This snapshot doesn't see a transaction that was received before it was taken.
    let late = bench.create_of(events(), options(Some("qty > 6")));
    late.follow();
    bench.transact(&[inserts(EVENTS, 110..112), inserts(ITEMS, 110..112)].concat());
    shapes.push(complete_snapshot(&bench, late, rows("events", 1..2), bench.xid));
    let delete = MessageBytes::delete(EVENTS, &row(["110", "7", "added"]));
    bench.transact(&[inserts(ITEMS, 200..206), inserts(EVENTS, 200..206), vec![delete]].concat());
    bench.store.advance(bench.lsn + 9);
    let incomplete_later = bench.create_of(items(), options(Some("qty = 4")));
    incomplete_later.follow();
    bench.store.engine.store.role.queue().release();
    let gone = [&deleted_first, &deleted_later, incomplete_first.shape(), incomplete_later.shape()];
    let expected = ExpectedStore {
        origin: ORIGIN.to_owned(),
        durable: bench.store.position().unwrap().lsn,
        seen: bench.store.seen(),
        lsn: bench.lsn,
        xid: bench.xid,
        complete: shapes.iter().map(|shape| read_shape(shape)).collect(),
        gone: gone.map(|shape| shape.handle().to_owned()).to_vec(),
    };
    let begin = bench.begin();
    bench.send(&[vec![begin], unfinished()].concat());
    bench.store.engine.store.role.queue().release();
    (bench, expected, vec![incomplete_first, incomplete_later])
}

/// Copies a simulated disk to a folder.
fn copy_out(disk: &SimulatedDisk, to: &Path) {
    for dir in ["", "wal", "shapes"] {
        fs::create_dir_all(to.join(dir)).unwrap();
        for name in disk.list(dir).unwrap() {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            if let Ok(file) = disk.open(&path) {
                let bytes = shape_files::read_range(&*file, 0, file.len().unwrap()).unwrap();
                fs::write(to.join(path), bytes).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "writes a fixture to the folder that FOREBAY_FIXTURE names"]
fn write_fixture() {
    let to = PathBuf::from(std::env::var_os("FOREBAY_FIXTURE").expect("FOREBAY_FIXTURE names a new folder"));
    assert!(!to.exists(), "a fixture must not be overwritten");
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

/// A copy of a fixture, removed on drop.
struct FixtureCopy(PathBuf);

impl FixtureCopy {
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
        FixtureCopy(to)
    }

    fn open(&self) -> Result<Shapes, OpenError> {
        let mut config = StoreConfig { waits_for_checkpoints: true, ..StoreConfig::new(&self.0) };
        set_low_limits(&mut config);
        // If the first checkpoint merged a log, its rows would be the same but its bytes would
        // differ.
        config.compact_bytes = 0;
        Shapes::open(config)
    }
}

impl Drop for FixtureCopy {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn assert_served(store: &Shapes, expected: &ExpectedStore) {
    let position = store.position().unwrap();
    assert_eq!((&position.origin, position.lsn), (&expected.origin, expected.durable));
    assert_eq!(store.seen(), expected.seen);
    for shape in &expected.complete {
        let found = store.find(&shape.handle).unwrap_or_else(|| panic!("{} is lost", shape.handle));
        assert_eq!(&read_shape(&found), shape);
        let same = store.find_same(found.definition()).expect("the shape is found by its definition");
        assert_eq!(same.handle(), shape.handle);
        // Handles, and the ids of tables in the WAL, contain hashes that must be the same in all
        // versions.
        let hash = found.definition().fingerprint().to_string();
        assert_eq!(shape.handle.split_once('-').map(|(hash, _)| hash), Some(&*hash));
    }
}

/// Returns a bench that continues the stream after the fixture's last transaction.
fn continue_stream(store: Shapes, expected: &ExpectedStore) -> FollowBench {
    let (follower, runtime) = (store.follower(), Builder::new_current_thread().build().unwrap());
    let (lsn, xid) = (expected.lsn, expected.xid);
    let mut bench = FollowBench { disk: SimulatedDisk::new(0), store, follower, runtime, lsn, xid };
    bench.send(&[MessageBytes::relation(&items()), MessageBytes::relation(&events())]);
    bench
}

#[test]
fn a_fixture_of_an_earlier_version_is_read_and_can_be_written() {
    for fixture in fixtures() {
        let expected = fs::read(fixture.join("expected.json")).unwrap();
        let expected: ExpectedStore = serde_json::from_slice(&expected).unwrap();
        let folder = FixtureCopy::of(&fixture, "earlier");
        let store = folder.open().unwrap();
        assert_served(&store, &expected);
        store.begin_writing().unwrap();
        assert_served(&store, &expected);
        // Before the first record of a new kind.
        let format = StoreCatalog::read_format(&*store.engine.store.disk).unwrap();
        assert_eq!(format, Some(FORMAT), "{}", fixture.display());
        let handles: Vec<_> = store.all().iter().map(|shape| shape.handle().to_owned()).collect();
        assert_eq!(handles.len(), expected.complete.len(), "{handles:?}");
        assert!(expected.gone.iter().all(|handle| store.find(handle).is_none()));

        // The unfinished transaction is sent again, and then another one.
        let mut bench = continue_stream(store.clone(), &expected);
        bench.transact(&unfinished());
        bench.transact(&inserts(ITEMS, 400..401));
        let find = |index: usize| store.find(&expected.complete[index].handle).unwrap();
        for (index, added) in [(0, 7), (1, 7), (2, 7), (3, 7), (4, 7), (5, 6), (6, 6)] {
            let (shape, before) = (find(index), &expected.complete[index]);
            let after = read_shape(&shape);
            let text = |served: &ExpectedShape| -> String {
                served.log.iter().map(|(_, text)| text.as_str()).collect()
            };
            let rest = text(&after)
                .strip_prefix(&text(before))
                .expect("the log continues after the expected messages")
                .to_owned();
            assert_eq!(rest.lines().count(), added, "{:?}: {rest}", before.options);
            assert_eq!(after.snapshot, before.snapshot);
        }
        let now: Vec<_> = (0..7).map(|index| read_shape(&find(index))).collect();
        bench.runtime.block_on(store.checkpoint()).unwrap();
        store.end_writing();
        let again = folder.open().unwrap();
        for shape in &now {
            assert_eq!(&read_shape(&again.find(&shape.handle).unwrap()), shape);
        }
    }
}

#[test]
fn the_format_is_raised_by_a_rewrite_of_the_catalog_alone() {
    let earlier = fixtures().into_iter().map(|fixture| FixtureCopy::of(&fixture, "raised"));
    let mut raised = 0;
    for folder in earlier {
        let disk = RealDisk::open(folder.0.clone(), false).unwrap();
        let before = StoreCatalog::read(&disk).unwrap().unwrap();
        let files = |disk: &RealDisk| -> Vec<(String, u64)> {
            let names = ["wal", "shapes"]
                .into_iter()
                .flat_map(|dir| disk.list(dir).unwrap().into_iter().map(move |name| format!("{dir}/{name}")));
            names.map(|name| (name.clone(), disk.open(&name).unwrap().len().unwrap())).collect()
        };
        let files_before = files(&disk);
        writer::raise_format(&disk).unwrap();
        let after = StoreCatalog::read(&disk).unwrap().unwrap();
        raised += u32::from(before.header.format < FORMAT);
        assert_eq!(
            (after.header.format, &after.shapes, &after.tables),
            (FORMAT, &before.shapes, &before.tables)
        );
        // Recovery still reads the same segments.
        assert_eq!((after.header.segment, files(&disk)), (before.header.segment, files_before));
    }
    assert!(raised > 0, "a fixture has an older format");
}

#[test]
fn the_summary_of_a_newer_versions_directory_is_an_error() {
    for fixture in fixtures().into_iter().filter(|fixture| fixture.ends_with("store-1")) {
        let folder = FixtureCopy::of(&fixture, "newer");
        assert_eq!(StoreSummary::at(&folder.0).unwrap().unwrap().shapes, 8);
        let log = folder.0.join("wal/0000000000000001");
        let bytes = [fs::read(&log).unwrap(), framed_payload(&[9])].concat();
        fs::write(&log, &bytes).unwrap();
        assert!(matches!(StoreSummary::at(&folder.0), Err(OpenError::Unreadable { .. })));
        assert!(matches!(folder.open(), Err(OpenError::Unreadable { .. })));
        assert_eq!(fs::read(&log).unwrap(), bytes);
    }
}
