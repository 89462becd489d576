//! Store simulation: a database, a store that follows it, and a model of what clients may rely on.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::message_bytes::MessageBytes;
use super::simulated_creation::SimulatedCreation;
use super::simulated_database::{MESSAGE_BYTES, SimulatedDatabase, upper_starts_with_a};
use crate::config::StoreConfig;
use crate::definition::ShapeDefinition;
use crate::filter::RowVerdict;
use crate::follower::Follower;
use crate::shapes::Shapes;
use crate::store::OpenError;
use crate::store::disk::{Disk, SimulatedRng};
use crate::store::shape_files;
use crate::undecided_rows::UndecidedRows;

/// The disk crashed.
#[derive(Debug)]
pub(super) struct DiskCrashed;

pub(super) type StepResult = Result<(), DiskCrashed>;

/// Random run of a store that follows a simulated database.
pub(super) struct StoreSimulation {
    pub(super) rng: SimulatedRng,
    pub(super) runtime: Runtime,
    pub(super) model: SimulationModel,
    /// The model after a reset that may not be durable yet.
    next: Option<SimulationModel>,
    pub(super) store: Shapes,
    follower: Follower,
    /// Index of the next transaction of the stream, and how many of its messages were sent.
    pub(super) stream: (usize, usize),
    /// Tables that the stream has described, by index.
    described: HashSet<usize>,
    pub(super) creations: Vec<SimulatedCreation>,
    pub(super) handles: BTreeSet<String>,
    /// Last position that the store reported as durable.
    acknowledged: Arc<AtomicU64>,
    /// Rows that wait for a simulated verdict of Postgres.
    batches: Vec<UndecidedRows>,
    /// Number of verdicts that ended or shortened a hold.
    pub(super) decided: usize,
    /// Number of times a merged log was checked.
    pub(super) merged: usize,
}

/// Expected state: the database, and what clients were shown.
pub(super) struct SimulationModel {
    pub(super) origin: String,
    /// Another name that the store may have, while an adoption isn't durable.
    adopted: Option<String>,
    pub(super) database: SimulatedDatabase,
    /// Number of transactions that were sent, at least in part.
    pub(super) sent: usize,
    /// Shapes by handle.
    pub(super) shapes: BTreeMap<String, ModelShape>,
    /// Last position that was reported as durable.
    pub(super) acknowledged: u64,
}

/// Expected state of a shape.
pub(super) struct ModelShape {
    pub(super) table: usize,
    pub(super) clause: usize,
    pub(super) definition: ShapeDefinition,
    /// Number of transactions that the snapshot sees, once it is taken.
    pub(super) seen: usize,
    /// Rows of the snapshot, as messages.
    pub(super) rows: Vec<u8>,
    /// Whether the creation reported that the shape is complete.
    pub(super) is_complete: bool,
    /// Whether a deletion was requested.
    pub(super) is_deletion_requested: bool,
    /// Length of the log that a client may have read, in bytes.
    pub(super) read: u64,
}

/// Returns limits so small that each of them is reached.
pub(super) fn config() -> StoreConfig {
    StoreConfig {
        chunk_bytes: 700,
        unwritten_bytes: 2500,
        wal_bytes: 4000,
        compact_bytes: 900,
        open_files: 3,
        small_snapshot_bytes: 600,
        held_bytes: 200_000,
        part_bytes: 800,
        message_bytes: MESSAGE_BYTES,
        waits_for_checkpoints: true,
        ..StoreConfig::new("/nowhere")
    }
}

impl SimulationModel {
    fn new(origin: String, lsn: u64) -> Self {
        let (database, shapes) = (SimulatedDatabase::new(lsn), BTreeMap::new());
        SimulationModel { origin, adopted: None, database, sent: 0, shapes, acknowledged: lsn }
    }
}

impl StoreSimulation {
    /// Creates an empty store on a disk, which may crash meanwhile.
    pub(super) fn new(disk: Arc<dyn Disk>, seed: u64) -> Result<Self, DiskCrashed> {
        let store = Shapes::on(disk, config()).map_err(crashed)?;
        let follower = store.follower();
        let mut simulation = StoreSimulation {
            rng: SimulatedRng::new(seed),
            runtime: Builder::new_current_thread().build().expect("a runtime"),
            model: SimulationModel::new("none".into(), 0),
            next: None,
            store,
            follower,
            stream: (0, 0),
            described: HashSet::new(),
            creations: Vec::new(),
            handles: BTreeSet::new(),
            acknowledged: Arc::default(),
            batches: Vec::new(),
            decided: 0,
            merged: 0,
        };
        simulation.begin()?;
        simulation.reset(1000)?;
        Ok(simulation)
    }

    /// Starts to write.
    pub(super) fn begin(&mut self) -> StepResult {
        loop {
            match self.store.begin_writing() {
                Ok(_) => break,
                Err(OpenError::Io(error)) if error.kind() == ErrorKind::StorageFull => {
                    thread::sleep(Duration::from_millis(2))
                }
                Err(error) => return Err(crashed(error)),
            }
        }
        let acknowledged = Arc::clone(&self.acknowledged);
        self.store.on_durable(move |lsn| acknowledged.store(lsn, Ordering::SeqCst));
        self.follower = self.store.follower();
        self.restart();
        self.idle()
    }

    /// Takes one random step.
    pub(super) fn step(&mut self) -> StepResult {
        if self.rng.between(0, 3) == 0 {
            self.judge()?;
        }
        match self.rng.between(0, 99) {
            0..25 => {
                self.model.database.commit(&mut self.rng);
                Ok(())
            }
            25..60 => self.send_messages(),
            60..63 => {
                self.restart();
                self.idle()
            }
            63..70 => self.create(),
            70..88 => (0..self.rng.between(1, 6)).try_for_each(|_| self.advance_creation()),
            88 => self.delete(),
            89..91 => self.advance(),
            91 => self.wait_for(|store| async move { store.checkpoint().await.is_ok() }),
            92 => self.adopt(),
            93..95 => {
                self.end()?;
                self.begin()
            }
            95 if self.rng.between(0, 3) == 0 => {
                let lsn = self.rng.between(100, 5000) as u64;
                self.reset(lsn)
            }
            _ => {
                self.verify();
                Ok(())
            }
        }
    }

    /// Sends the rest of the stream.
    pub(super) fn catch_up(&mut self) -> StepResult {
        while self.stream.0 < self.model.database.log.len() {
            self.send_messages()?;
        }
        Ok(())
    }

    /// Does what a task that passes undecided rows to Postgres does: takes rows, or decides some of
    /// them. Verdicts come late and in any order.
    fn judge(&mut self) -> StepResult {
        self.hold();
        if self.batches.is_empty() || self.rng.coin() {
            self.batches.extend(self.store.take_undecided());
        } else {
            let batch = self.batches.swap_remove(self.rng.between(0, self.batches.len() - 1));
            match self.rng.between(0, 39) {
                0 => {
                    let expected = self.model.shapes.get_mut(batch.shape().handle());
                    expected.into_iter().for_each(|expected| expected.is_deletion_requested = true);
                    self.store.give_up(batch, "the simulation gave up");
                }
                1..5 => drop(batch),
                _ => self.decide(batch),
            }
        }
        self.idle()
    }

    fn decide(&mut self, batch: UndecidedRows) {
        let answer = |row: Vec<Option<&[u8]>>| match row[..] {
            [Some(note)] if upper_starts_with_a(str::from_utf8(note).expect("text")) => RowVerdict::Match,
            [_] => RowVerdict::NoMatch,
            _ => panic!("the clause uses one column"),
        };
        let mut verdicts: Vec<_> = batch.rows().map(answer).collect();
        if self.rng.between(0, 9) == 0 {
            let unknown = self.rng.between(0, verdicts.len() - 1);
            verdicts[unknown] = RowVerdict::Undecided;
        }
        let before = self.store.held_shapes();
        self.store.decide(batch, &verdicts);
        self.decided += usize::from(before > 0);
    }

    /// Gives up all creations, and decides all rows. Then no shape is held.
    pub(super) fn judge_all(&mut self) -> StepResult {
        self.hold();
        self.creations.clear();
        self.idle()?;
        loop {
            self.batches.extend(self.store.take_undecided());
            let Some(batch) = self.batches.pop() else { break };
            self.hold();
            self.decide(batch);
            self.idle()?;
        }
        assert_eq!(self.store.held_shapes(), 0);
        Ok(())
    }

    /// Sends some messages of the stream, written together or one by one.
    fn send_messages(&mut self) -> StepResult {
        let (index, sent) = self.stream;
        if index == self.model.database.log.len() {
            return Ok(());
        }
        let messages = self.model.database.messages(index);
        let whole = messages.len() - sent;
        let count = if self.rng.between(0, 3) == 0 { self.rng.between(1, whole) } else { whole };
        let one_by_one = self.rng.between(0, 3) == 0;
        self.model.sent = self.model.sent.max(index + 1);
        self.hold();
        for (table, message) in &messages[sent..sent + count] {
            if let Some(table) = *table
                && (self.described.insert(table) || self.rng.between(0, 9) == 0)
            {
                let relation = MessageBytes::relation(&self.model.database.tables[table]);
                relation.send(&mut self.follower).expect("the stream is consistent");
            }
            message.send(&mut self.follower).expect("the stream is consistent");
            if one_by_one {
                self.idle()?;
                self.hold();
            }
        }
        self.stream = if count == whole { (index + 1, 0) } else { (index, sent + count) };
        self.idle()
    }

    /// Reconnects the stream: it starts with the first unacknowledged transaction, or one before.
    fn restart(&mut self) {
        self.hold();
        self.follower.restart();
        self.described.clear();
        let acknowledged = self.store.position().map_or(0, |position| position.lsn);
        let next = self.model.database.log.partition_point(|transaction| transaction.lsn < acknowledged);
        self.stream = (next.saturating_sub(self.rng.between(0, 1)), 0);
    }

    fn delete(&mut self) -> StepResult {
        let (count, expected) = (self.model.shapes.len(), &mut self.model.shapes);
        let any = expected.iter_mut().nth(self.rng.between(0, count.max(1) - 1));
        self.store.engine.store.role.queue().hold();
        if self.rng.between(0, 3) == 0 {
            let of_table = expected.values_mut().filter(|expected| expected.table == 1);
            of_table.for_each(|expected| expected.is_deletion_requested = true);
            self.store.delete_table(self.model.database.tables[1].oid);
        } else if let Some((handle, expected)) = any {
            expected.is_deletion_requested = true;
            self.store.delete(handle);
        }
        self.idle()
    }

    /// Advances the position to the commit of the next transaction.
    fn advance(&mut self) -> StepResult {
        let (index, 0) = self.stream else { return Ok(()) };
        let database = &self.model.database;
        let lsn = database.log.get(index).map_or(database.lsn, |next| next.lsn);
        self.store.advance(lsn);
        self.idle()
    }

    fn adopt(&mut self) -> StepResult {
        let origin = format!("{}'", self.model.origin);
        self.model.adopted = Some(origin.clone());
        self.wait_for(|store| async move { store.adopt(origin).await.is_ok() })?;
        self.model.origin = self.model.adopted.take().expect("set above");
        Ok(())
    }

    /// Resets the store to another database.
    fn reset(&mut self, lsn: u64) -> StepResult {
        let origin = format!("{}+", self.model.origin);
        let next = SimulationModel::new(origin.clone(), lsn);
        self.model.acknowledged = self.acknowledged.load(Ordering::SeqCst);
        self.next = Some(next);
        self.wait_for(|store| async move { store.reset(origin, lsn).await.is_ok() })?;
        self.model = self.next.take().expect("set above");
        self.hold();
        self.creations.clear();
        self.restart();
        self.idle()
    }

    /// Ends writing. Open creations may be dropped, or continue and fail later.
    pub(super) fn end(&mut self) -> StepResult {
        self.hold();
        if self.rng.coin() {
            self.creations.clear();
        }
        self.idle()?;
        self.store.end_writing();
        if self.store.engine.store.health.failure().is_some() {
            return Err(DiskCrashed);
        }
        Ok(())
    }

    /// Opens a new store on the bytes that a crash left on the disk.
    pub(super) fn recover(&mut self, disk: Arc<dyn Disk>) -> StepResult {
        self.stop();
        self.take_over(Shapes::on(disk, config()).map_err(crashed)?)
    }

    /// Ends writing, as a process does when it ends. On a crashed disk, nothing more is written.
    pub(super) fn stop(&mut self) {
        self.record_read_lengths();
        self.creations.clear();
        self.batches.clear();
        self.store.end_writing();
        self.model.acknowledged = self.model.acknowledged.max(self.acknowledged.load(Ordering::SeqCst));
    }

    /// Continues with another store, which takes over.
    pub(super) fn take_over(&mut self, store: Shapes) -> StepResult {
        self.store = store;
        self.begin()?;
        self.match_origin();
        self.verify();
        let mut known: HashSet<_> = self
            .store
            .engine
            .store
            .replaced_files
            .lock()
            .iter()
            .map(|(id, kind)| shape_files::file_name(*id, *kind))
            .collect();
        for shape in self.store.all() {
            known.extend(
                shape_files::file_kinds(shape.lock().log.base())
                    .map(|kind| shape_files::file_name(shape.id, kind)),
            );
        }
        for name in self.store.engine.store.disk.list(shape_files::DIR).map_err(|_| DiskCrashed)? {
            assert!(known.contains(&name), "{name} is unused");
        }
        let there: HashSet<_> = self.store.all().iter().map(|shape| shape.handle().to_owned()).collect();
        self.model.shapes.retain(|handle, _| there.contains(handle));
        self.model.shapes.values_mut().for_each(|expected| expected.is_complete = true);
        self.model.acknowledged = self.store.position().map_or(0, |position| position.lsn);
        self.acknowledged.store(self.model.acknowledged, Ordering::SeqCst);
        self.restart();
        self.idle()
    }

    /// Finds the model that applies after a crash during a reset or an adoption.
    fn match_origin(&mut self) {
        let position = self.store.position();
        let next = self.next.take();
        let origin = match position {
            None => {
                assert_eq!(self.model.origin, "none", "the store lost its origin");
                return;
            }
            Some(position) => position.origin,
        };
        if let Some(next) = next
            && next.origin == origin
        {
            self.model = next;
        }
        if let Some(adopted) = self.model.adopted.take()
            && adopted == origin
        {
            self.model.origin = adopted;
        }
        assert_eq!(self.model.origin, origin);
    }

    /// Records the readable length of each log: a client may have read it.
    fn record_read_lengths(&mut self) {
        for shape in self.store.all() {
            let len = shape.lock().log.len();
            if let Some(expected) = self.model.shapes.get_mut(shape.handle()) {
                expected.read = expected.read.max(len);
            }
        }
    }

    fn wait_for<F: Future<Output = bool>>(&mut self, call: impl FnOnce(Shapes) -> F) -> StepResult {
        self.idle()?;
        let succeeded = self.runtime.block_on(call(self.store.clone()));
        self.idle()?;
        if succeeded { Ok(()) } else { Err(DiskCrashed) }
    }

    pub(super) fn hold(&self) {
        self.store.engine.store.role.queue().hold();
    }

    /// Waits until everything queued is written.
    pub(super) fn idle(&mut self) -> StepResult {
        self.store.engine.store.role.queue().release();
        // A file that couldn't be removed doesn't stop the store, but shows that the disk has
        // crashed.
        let store = &self.store.engine.store;
        let has_failed = store.health.failure().is_some() || store.disk.list("").is_err();
        if has_failed { Err(DiskCrashed) } else { Ok(()) }
    }
}

/// Maps a disk error to a crash. Panics for other errors: a crash never makes a store unreadable.
fn crashed(error: OpenError) -> DiskCrashed {
    match error {
        OpenError::Io(_) | OpenError::Failed(_) => DiskCrashed,
        error => panic!("{error}"),
    }
}
