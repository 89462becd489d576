//! Follow bench: a store that follows a stream of messages written by a test.

use std::sync::Arc;

use forebay_pgoutput::Snapshot;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::message_bytes::{MessageBytes, SimulatedRow};
use super::simulated_database::table;
use crate::config::StoreConfig;
use crate::creation::ShapeCreation;
use crate::definition::{LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema};
use crate::follower::Follower;
use crate::offset::Offset;
use crate::shape::Shape;
use crate::shapes::Shapes;
use crate::store::disk::SimulatedDisk;

/// Oid of the table that the bench describes.
pub(crate) const ITEMS: u32 = 100;

/// Store on a simulated disk, with a follower for messages written by a test.
pub(crate) struct FollowBench {
    pub(crate) disk: SimulatedDisk,
    pub(crate) store: Shapes,
    pub(crate) follower: Follower,
    pub(crate) runtime: Runtime,
    pub(crate) lsn: u64,
    pub(crate) xid: u32,
}

pub(crate) fn row(values: [&str; 3]) -> SimulatedRow {
    values.iter().map(|value| (*value != "NULL").then(|| (*value).to_owned())).collect()
}

/// Returns the options of a shape with all columns.
pub(crate) fn options(clause: Option<&str>) -> ShapeOptions {
    ShapeOptions {
        clause: clause.map(str::to_owned),
        columns: None,
        replica: ReplicaMode::Default,
        log: LogMode::Full,
    }
}

/// Returns the options of a shape with these columns.
pub(crate) fn of_columns(clause: Option<&str>, columns: &[&str]) -> ShapeOptions {
    ShapeOptions { columns: Some(columns.iter().map(|&name| name.to_owned()).collect()), ..options(clause) }
}

/// Returns a snapshot that sees all transactions before `xid`, and no others.
pub(crate) fn snapshot_before(xid: u32) -> Snapshot {
    Snapshot { xmin: xid.into(), xmax: xid.into(), xip: Vec::new() }
}

impl FollowBench {
    pub(crate) fn new() -> Self {
        FollowBench::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut StoreConfig)) -> Self {
        let mut config = StoreConfig { waits_for_checkpoints: true, ..StoreConfig::new("/nowhere") };
        change(&mut config);
        let disk = SimulatedDisk::new(0);
        let store = Shapes::on(Arc::new(disk.clone()), config).unwrap();
        store.begin_writing().unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(store.reset("here".into(), 1000)).unwrap();
        let follower = store.follower();
        let mut bench = FollowBench { disk, store, follower, runtime, lsn: 1000, xid: 700 };
        bench.send(&[MessageBytes::relation(&table(ITEMS, "items", vec![0]))]);
        bench
    }

    pub(crate) fn send(&mut self, messages: &[MessageBytes]) {
        messages.iter().for_each(|message| message.send(&mut self.follower).unwrap());
    }

    pub(crate) fn begin(&mut self) -> MessageBytes {
        (self.lsn, self.xid) = (self.lsn + 10, self.xid + 1);
        MessageBytes::begin(self.lsn, self.xid)
    }

    pub(crate) fn commit(&self) -> MessageBytes {
        MessageBytes::commit(self.lsn, self.lsn + 8)
    }

    /// Sends a transaction with these messages, and waits until the writer thread has applied it.
    pub(crate) fn transact(&mut self, messages: &[MessageBytes]) {
        let begin = self.begin();
        self.send(&[begin]);
        self.send(messages);
        self.send(&[self.commit()]);
        self.store.engine.store.role.queue().release();
    }

    pub(crate) fn create_of(&mut self, table: TableSchema, options: ShapeOptions) -> ShapeCreation {
        let definition = ShapeDefinition { table: Arc::new(table), options };
        self.store.find_or_create(definition, 1).unwrap().1.expect("the shape is new")
    }

    pub(crate) fn create(&mut self, options: ShapeOptions) -> ShapeCreation {
        self.create_of(table(ITEMS, "items", vec![0]), options)
    }

    /// Creates a complete shape. Its snapshot sees all transactions so far, and has no rows.
    pub(crate) fn shape(&mut self, options: ShapeOptions) -> Arc<Shape> {
        let creation = self.create(options);
        creation.follow();
        self.complete(creation, &snapshot_before(self.xid + 1), self.lsn + 8)
    }

    pub(crate) fn complete(
        &mut self,
        mut creation: ShapeCreation,
        snapshot: &Snapshot,
        lsn: u64,
    ) -> Arc<Shape> {
        let shape = Arc::clone(creation.shape());
        assert!(creation.snapshot_taken(snapshot, lsn).is_in_time());
        creation.seal().unwrap();
        self.runtime.block_on(creation.complete()).unwrap();
        shape
    }
}

impl Drop for FollowBench {
    fn drop(&mut self) {
        self.store.end_writing();
    }
}

/// Returns the messages of a log.
pub(crate) fn log(shape: &Shape) -> Vec<Value> {
    let page = shape.log_after(Offset::SNAPSHOT_END).unwrap();
    assert!(page.is_end);
    let bytes = shape.read_log(&page, page.from, page.to).unwrap().concat();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line.strip_suffix(b",\n").unwrap()).unwrap()).collect()
}

/// Returns the operation, `op_position` and the values of each message of a log.
pub(crate) fn brief(shape: &Shape) -> Vec<(String, u64, Value)> {
    let brief = |message: &Value| {
        let headers = &message["headers"];
        let operation = headers["operation"].as_str().unwrap().to_owned();
        (operation, headers["op_position"].as_u64().unwrap(), message["value"].clone())
    };
    log(shape).iter().map(brief).collect()
}

pub(crate) fn expected(operation: &str, op: u64, value: Value) -> (String, u64, Value) {
    (operation.to_owned(), op, value)
}
