//! Ten thousand shapes on a real disk.

use std::sync::Arc;
use std::time::Instant;

use forebay_pgoutput::Snapshot;
use tokio::runtime::Builder;

use super::message_bytes::MessageBytes;
use super::simulated_database::table;
use crate::config::StoreConfig;
use crate::definition::{LogMode, ReplicaMode, ShapeDefinition, ShapeOptions};
use crate::shapes::Shapes;

const SHAPES: usize = 10_000;

#[test]
fn ten_thousand_shapes_survive_a_restart() {
    let dir = std::env::temp_dir().join(format!("forebay-many-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir); // left by a killed process with the same id
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let store = Shapes::open(StoreConfig::new(&dir)).expect("an empty directory can be opened");
    store.begin_writing().expect("no other process writes");
    runtime.block_on(store.reset("here".into(), 1000)).expect("this process writes");
    let items = Arc::new(table(100, "items", vec![0]));
    let mut creations = Vec::new();
    for number in 0..SHAPES {
        let clause = Some(format!("qty = {number} OR qty < 0"));
        let options =
            ShapeOptions { clause, columns: None, replica: ReplicaMode::Default, log: LogMode::Full };
        let definition = ShapeDefinition { table: Arc::clone(&items), options };
        let (_, creation) = store.find_or_create(definition, 1).expect("the shape can be created");
        let mut creation = creation.expect("the shape is new");
        creation.follow();
        assert!(
            creation.snapshot_taken(&Snapshot { xmin: 700, xmax: 700, xip: Vec::new() }, 1000).is_in_time()
        );
        creation.seal().expect("the disk is writable");
        creations.push(creation);
    }
    runtime.block_on(async {
        let completed: Vec<_> =
            creations.into_iter().map(|creation| tokio::spawn(creation.complete())).collect();
        for completed in completed {
            completed.await.expect("no panic").expect("the shape exists");
        }
    });
    let mut follower = store.follower();
    MessageBytes::relation(&items).send(&mut follower).expect("the stream is consistent");
    let mut transact = |lsn: u64| {
        let row = ["1", "-1", "a note of some length"].map(|text| Some(text.to_owned())).to_vec();
        for message in [
            MessageBytes::begin(lsn, 701),
            MessageBytes::insert(100, &row),
            MessageBytes::commit(lsn, lsn + 8),
        ] {
            message.send(&mut follower).expect("the stream is consistent");
        }
    };
    (0..10).for_each(|index| transact(1010 + index * 10));
    store.end_writing();
    drop(store);
    for from in ["the log", "the catalog"] {
        let start = Instant::now();
        let store = Shapes::open(StoreConfig::new(&dir)).expect("the store is readable");
        let position = store.begin_writing().expect("no other process writes");
        let took = start.elapsed();
        eprintln!("{SHAPES} shapes from {from} in {took:?}");
        assert_eq!(position.expect("the store has an origin").lsn, 1108);
        assert_eq!(store.all().len(), SHAPES);
        let any = store.all().swap_remove(7);
        let page = any.log_after(crate::offset::Offset::SNAPSHOT_END).expect("the log is readable");
        let log = any.read_log(&page, page.from, page.to).expect("the log is readable").concat();
        assert_eq!(log.iter().filter(|byte| **byte == b'\n').count(), 10);
        store.end_writing();
    }
    std::fs::remove_dir_all(&dir).expect("the directory exists");
}
