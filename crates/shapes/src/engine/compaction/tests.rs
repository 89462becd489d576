use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::offset::Offset;
use crate::shape::{LogPage, Shape};
use crate::shapes::Shapes;
use crate::simulation::follow_bench::{FollowBench, ITEMS, options, row};
use crate::simulation::message_bytes::MessageBytes;
use crate::store::disk::Disk;

fn bench() -> FollowBench {
    FollowBench::with(|config| (config.chunk_bytes, config.compact_bytes) = (600, 1200))
}

/// Updates one row `times` times.
fn change(bench: &mut FollowBench, times: usize) {
    for time in 0..times {
        let (old, new) = (time.to_string(), (time + 1).to_string());
        bench.transact(&[MessageBytes::update(ITEMS, &row(["1", &old, "a"]), &row(["1", &new, "a"]))]);
    }
}

fn pages(shape: &Shape, mut after: Offset) -> Vec<LogPage> {
    let mut pages = Vec::new();
    loop {
        let page = shape.log_after(after).unwrap();
        pages.push(page);
        if page.is_end {
            return pages;
        }
        after = page.last;
    }
}

fn read(shape: &Shape, pages: &[LogPage]) -> Vec<Value> {
    let read = |page: &LogPage| shape.read_log(page, page.from, page.to).unwrap().concat();
    let bytes: Vec<u8> = pages.iter().flat_map(read).collect();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line.strip_suffix(b",\n").unwrap()).unwrap()).collect()
}

/// Returns the rows of a client that has applied the messages: the values of each key.
fn rows(messages: &[Value]) -> BTreeMap<String, serde_json::Map<String, Value>> {
    let mut rows: BTreeMap<_, serde_json::Map<_, _>> = BTreeMap::new();
    for message in messages {
        let (key, value) = (message["key"].as_str().unwrap(), message["value"].as_object().unwrap());
        rows.entry(key.to_owned()).or_default().extend(value.clone());
    }
    rows
}

#[test]
fn a_long_log_is_merged_and_pages_found_before_stay_readable() {
    let mut bench = bench();
    let shape = bench.shape(options(None));
    bench.transact(&[
        MessageBytes::insert(ITEMS, &row(["1", "0", "a"])),
        MessageBytes::insert(ITEMS, &row(["2", "0", "b"])),
    ]);
    change(&mut bench, 60);
    let (before, bytes) = (pages(&shape, Offset::SNAPSHOT_END), shape.bytes());
    let whole = read(&shape, &before);
    assert_eq!(whole.len(), 62);

    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    let after = pages(&shape, Offset::SNAPSHOT_END);
    let merged = read(&shape, &after);
    assert!(shape.bytes() < bytes / 2, "{} of {bytes} bytes", shape.bytes());
    assert!(merged.len() < 20 && merged.len() > 4, "{} messages", merged.len());
    assert_eq!(merged[..2], whole[..2]);
    assert_eq!(merged.last(), whole.last());
    assert_eq!(read(&shape, &before), whole, "old pages are still readable");
    assert!(before.iter().all(|page| page.merged_to.is_none() && shape.is_merged_since(page)));
    let is_merged: Vec<_> = after.iter().map(|page| page.merged_to.is_some()).collect();
    assert!(is_merged[0] && is_merged.is_sorted_by(|one, next| one >= next), "{is_merged:?}");
    let ends: Vec<_> = after.iter().filter(|page| page.merged_to.is_some()).collect();
    let last = ends.last().map(|page| page.last);
    assert!(
        ends.iter().all(|page| page.merged_to == last),
        "all pages state the end of the merged part: {ends:?}"
    );
    assert!(!after.iter().any(|page| shape.is_merged_since(page)));
    // Reads from the offset of a change that was merged into a later one.
    let lsn: u64 = whole[5]["headers"]["lsn"].as_str().unwrap().parse().unwrap();
    let rest = read(&shape, &pages(&shape, Offset::new(lsn, 0)));
    assert_eq!(rest, merged[2..]);
    assert!(
        rest.iter().all(|message| message["headers"]["last"] == true),
        "each message is the last of its transaction"
    );

    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    let files = bench.disk.list("shapes").unwrap();
    assert_eq!(
        files.len(),
        2 + usize::from(files.iter().any(|name| name.ends_with(".snapshot"))),
        "{files:?}"
    );
    assert_eq!(read(&shape, &after), merged);
    change(&mut bench, 40);
    bench.store.end_writing();

    let store = Shapes::on(Arc::new(bench.disk.clone()), bench.store.engine.store.config.clone()).unwrap();
    store.begin_writing().unwrap();
    let again = store.find(shape.handle()).expect("the shape is still there");
    // The first checkpoint of the new writer may have merged more of the log.
    let all = |shape: &Shape| rows(&read(shape, &pages(shape, Offset::SNAPSHOT_END)));
    assert_eq!(all(&again), all(&shape));
    assert_eq!(all(&again).len(), 2);
    store.end_writing();
}

#[test]
fn the_files_of_a_merged_log_are_removed_with_its_shape() {
    let mut bench = bench();
    let shape = bench.shape(options(None));
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
    change(&mut bench, 60);
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    assert!(bench.disk.list("shapes").unwrap().iter().any(|name| name.ends_with(".past")));
    assert!(bench.store.delete(shape.handle()));
    bench.runtime.block_on(bench.store.checkpoint()).unwrap();
    assert_eq!(bench.disk.list("shapes").unwrap(), Vec::<String>::new());
}

#[test]
fn on_a_full_disk_a_long_log_is_not_merged_and_stays_readable() {
    let mut bench = bench();
    let shape = bench.shape(options(None));
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
    change(&mut bench, 60);
    let whole = read(&shape, &pages(&shape, Offset::SNAPSHOT_END));
    bench.store.end_writing();
    let config = bench.store.engine.store.config.clone();
    // Space for the checkpoint, and little more.
    let store = Shapes::on(Arc::new(bench.disk.clone()), config).unwrap();
    bench.disk.fill(shape.bytes() + 4000);
    store.begin_writing().unwrap();
    let again = store.find(shape.handle()).expect("the shape is still there");
    bench.disk.fill(1 << 40);
    let rows = read(&again, &pages(&again, Offset::SNAPSHOT_END));
    assert_eq!(rows.last(), whole.last());
    store.end_writing();
}

/// The new catalog may be on the disk although its directory couldn't be synced. It refers to the
/// merged files.
#[test]
fn the_files_of_a_merged_log_stay_if_the_sync_of_their_catalog_fails() {
    let mut bench = bench();
    let shape = bench.shape(options(None));
    bench.transact(&[MessageBytes::insert(ITEMS, &row(["1", "0", "a"]))]);
    change(&mut bench, 60);
    let whole = read(&shape, &pages(&shape, Offset::SNAPSHOT_END));
    bench.disk.fail_dir_sync("");
    bench.runtime.block_on(bench.store.checkpoint()).unwrap_err();
    bench.store.end_writing();
    let store = Shapes::on(Arc::new(bench.disk.clone()), bench.store.engine.store.config.clone()).unwrap();
    store.begin_writing().unwrap();
    let again = store.find(shape.handle()).expect("the shape is still there");
    let rows = read(&again, &pages(&again, Offset::SNAPSHOT_END));
    assert_eq!(rows.last(), whole.last());
    assert!(rows.len() < whole.len(), "the catalog of the failed checkpoint is in place");
    store.end_writing();
}
