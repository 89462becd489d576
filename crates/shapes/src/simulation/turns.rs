//! Writer turns: tests in which writing ends and begins again, with full disks and crashes between.

use std::sync::Arc;
use std::thread;

use bytes::Bytes;

use super::follow_bench::{FollowBench, ITEMS, options, row, snapshot_before};
use super::message_bytes::MessageBytes;
use super::simulated_database::table;
use crate::config::StoreConfig;
use crate::definition::ShapeDefinition;
use crate::offset::Offset;
use crate::shape::{Shape, ShapeGone};
use crate::shapes::Shapes;
use crate::store::disk::{Disk, SimulatedDisk};
use crate::store::shape_files;
use crate::store::wal::{self, WalPosition};
use crate::store::writer_role::{ReplayPosition, StoreMode};

const ROOM: u64 = 1 << 40;

/// Sets limits so small that logs of a few lines are merged, and bytes stay in memory until a
/// checkpoint.
fn compacting(config: &mut StoreConfig) {
    (config.chunk_bytes, config.compact_bytes, config.small_snapshot_bytes) = (200, 400, 10);
}

/// Opens the store of another process on the same disk.
fn open(disk: &SimulatedDisk) -> Shapes {
    let mut config = StoreConfig { waits_for_checkpoints: true, ..StoreConfig::new("/nowhere") };
    compacting(&mut config);
    Shapes::on(Arc::new(disk.clone()), config).unwrap()
}

/// Creates a shape whose snapshot has one row and is in a file.
fn filled(bench: &mut FollowBench) -> Arc<Shape> {
    let mut creation = bench.create(options(None));
    creation.follow();
    assert!(creation.snapshot_taken(&snapshot_before(bench.xid + 1), bench.lsn + 8).is_in_time());
    creation.rows(Bytes::from_static(b"{\"key\":\"a row of the snapshot\"},\n")).unwrap();
    creation.seal().unwrap();
    let shape = Arc::clone(creation.shape());
    bench.runtime.block_on(creation.complete()).unwrap();
    shape
}

/// Sends `count` updates of one row, each in its own transaction.
fn update(bench: &mut FollowBench, count: u32) {
    for number in 0..count {
        let (old, new) = (row(["1", "5", "old"]), row(["1", "5", &format!("{number}")]));
        bench.transact(&[MessageBytes::update(ITEMS, &old, &new)]);
    }
}

/// Reads the snapshot, and the lines of the log.
fn read(shape: &Shape) -> (Vec<u8>, Vec<String>) {
    let (mut offset, mut log) = (Offset::SNAPSHOT_END, Vec::new());
    loop {
        let page = shape.log_after(offset).unwrap();
        let bytes = shape.read_log(&page, page.from, page.to).unwrap().concat();
        log.extend(String::from_utf8(bytes).unwrap().lines().map(str::to_owned));
        if page.is_end {
            return (shape.read_snapshot(0, shape.snapshot_end()).unwrap().concat(), log);
        }
        offset = page.last;
    }
}

/// Deletes a shape on a full disk, and ends writing before the deletion is in the WAL.
fn deleted_without_room() -> (FollowBench, Arc<Shape>) {
    let mut bench = FollowBench::with(compacting);
    let shape = filled(&mut bench);
    update(&mut bench, 3);
    bench.disk.fill(0);
    assert!(bench.store.delete(shape.handle()));
    while !bench.store.is_full() {
        thread::yield_now();
    }
    bench.store.end_writing();
    bench.disk.fill(ROOM);
    (bench, shape)
}

#[test]
fn a_shape_deleted_on_a_full_disk_stays_deleted() {
    let (bench, shape) = deleted_without_room();
    assert!(bench.store.find(shape.handle()).is_none());
    bench.store.begin_writing().unwrap();
    bench.store.engine.store.role.queue().release();
    let store = open(&bench.disk.after_kill());
    store.begin_writing().unwrap();
    assert!(store.find(shape.handle()).is_none(), "the shape would miss later changes");
    store.end_writing();
    assert_eq!(bench.disk.list("shapes").unwrap(), [] as [&str; 0]);
}

#[test]
fn a_shape_stays_complete_until_its_deletion_is_in_the_log() {
    for calls in 1.. {
        let (bench, shape) = deleted_without_room();
        bench.disk.crash_at(bench.disk.ops() + calls);
        if bench.store.begin_writing().is_ok() {
            bench.store.engine.store.role.queue().release();
        }
        let has_crashed = bench.disk.crashed();
        let store = open(&bench.disk.after_kill());
        if let Some(shape) = store.find(shape.handle()) {
            let (snapshot, log) = read(&shape);
            assert!(snapshot.starts_with(b"{") && log.len() == 3, "after {calls} calls");
        }
        if !has_crashed {
            break;
        }
    }
}

#[test]
fn a_takeover_keeps_the_files_that_the_last_catalog_names() {
    let mut bench = FollowBench::with(compacting);
    let shape = filled(&mut bench);
    update(&mut bench, 3);
    let other = open(&bench.disk);
    update(&mut bench, 30);
    let before = wal::segments(&bench.disk).unwrap();
    other.refresh().unwrap();
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    let after = wal::segments(&bench.disk).unwrap();
    assert!(before.last() < after.first(), "the old segments were removed");
    // The reader had reached the new segment before the old ones were deleted, and never saw the
    // catalog.
    let position = WalPosition::start(*after.last().unwrap());
    *other.engine.store.role.mode() =
        StoreMode::Reading(Some(ReplayPosition { position, catalog: before[0] }));
    bench.store.end_writing();
    other.begin_writing().unwrap();

    let store = open(&bench.disk.after_kill());
    let kept = store.find(shape.handle()).unwrap();
    let (snapshot, log) = read(&kept);
    assert!(snapshot.starts_with(b"{"));
    assert!(log.len() < 33, "{} messages: the log was merged", log.len());
    other.end_writing();
}

#[test]
fn a_checkpoint_on_an_almost_full_disk_loses_nothing_and_leaves_no_stray_file() {
    let mut was_short = false;
    // With less room, the record that requests the checkpoint can't be written.
    for room in (200..6000).step_by(97) {
        let mut bench = FollowBench::with(compacting);
        let shape = filled(&mut bench);
        update(&mut bench, 30);
        bench.disk.fill(room);
        // It also completes if there was no room for the checkpoint.
        let _done = bench.runtime.block_on(bench.store.checkpoint());
        bench.disk.fill(ROOM);
        let last = read(&shape).1.pop();
        let store = open(&bench.disk.after_kill());
        store.begin_writing().unwrap();
        assert_eq!(read(&store.find(shape.handle()).unwrap()).1.pop(), last, "with room for {room}");
        store.end_writing();

        update(&mut bench, 3);
        bench.runtime.block_on(bench.store.checkpoint()).unwrap();
        bench.runtime.block_on(bench.store.checkpoint()).unwrap();
        let files = bench.disk.list("shapes").unwrap();
        assert!(files.len() <= 3, "with room for {room}: {files:?}");
        was_short |= read(&shape).1.len() < 33;
        assert!(read(&open(&bench.disk.after_kill()).find(shape.handle()).unwrap()).0.starts_with(b"{"));
    }
    assert!(was_short);
}

#[test]
fn after_a_takeover_a_table_without_shapes_is_logged_again() {
    let mut bench = FollowBench::new();
    let shape = bench.shape(options(None));
    let other = open(&bench.disk);
    assert!(other.find(shape.handle()).is_some());
    assert!(bench.store.delete(shape.handle()));
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    bench.store.end_writing();
    other.begin_writing().unwrap();
    let definition =
        ShapeDefinition { table: Arc::new(table(ITEMS, "items", vec![0])), options: options(None) };
    let (made, creation) = other.find_or_create(definition, 9).unwrap();
    let mut creation = creation.unwrap();
    creation.follow();
    assert!(creation.snapshot_taken(&snapshot_before(900), 5000).is_in_time());
    creation.seal().unwrap();
    bench.runtime.block_on(creation.complete()).unwrap();
    let store = open(&bench.disk.after_kill());
    assert!(store.find(made.handle()).is_some(), "the table is in the WAL");
    other.end_writing();
}

#[test]
fn a_creation_from_an_earlier_writer_turn_is_not_followed() {
    let mut bench = FollowBench::new();
    let creation = bench.create(options(None));
    bench.store.end_writing();
    bench.store.begin_writing().unwrap();
    creation.follow();
    assert!(bench.store.engine.following().is_empty());
}

#[test]
fn heal_deletes_a_shape_whose_files_are_lost() {
    let mut bench = FollowBench::with(compacting);
    let (shape, other) = (filled(&mut bench), bench.shape(options(Some("qty > 5"))));
    let error = std::io::Error::from(std::io::ErrorKind::NotFound);
    bench.store.heal(&shape, &error);
    assert_eq!(shape.gone(), None, "all files exist");
    bench.store.engine.store.files.close(shape.id);
    let name = shape_files::file_path(shape.id, shape_files::FileKind::Snapshot);
    bench.disk.remove(&name).unwrap();
    let error = shape.read_snapshot(0, shape.snapshot_end()).unwrap_err();
    bench.store.heal(&shape, &error);
    assert_eq!((shape.gone(), other.gone()), (Some(ShapeGone::Deleted), None));
}
