//! A database, a store that follows it, and what was promised.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::database::{Database, MESSAGE_BYTES};
use super::making::Filling;
use super::wire::Wire;
use crate::config::StoreConfig;
use crate::definition::ShapeDefinition;
use crate::follow::Follower;
use crate::registry::lock;
use crate::shapes::Shapes;
use crate::store::OpenError;
use crate::store::disk::{Disk, SimulatedRng};
use crate::store::shape_files;

/// The disk crashed.
#[derive(Debug)]
pub(super) struct Crashed;

pub(super) type Step = Result<(), Crashed>;

pub(super) struct World {
    pub(super) dice: SimulatedRng,
    pub(super) runtime: Runtime,
    pub(super) model: Model,
    /// What the model becomes when the store is reset, while that isn't sure.
    next: Option<Model>,
    pub(super) store: Shapes,
    follower: Follower,
    /// The next transaction that the stream brings, and how much of it has come.
    pub(super) stream: (usize, usize),
    /// Tables that the stream has described.
    described: HashSet<usize>,
    pub(super) creations: Vec<Filling>,
    pub(super) handles: BTreeSet<String>,
    /// What the store said to be durable.
    acknowledged: Arc<AtomicU64>,
    /// How many times somebody looked at a log that was merged.
    pub(super) merged: usize,
}

/// What there is, and what clients were told.
pub(super) struct Model {
    pub(super) origin: String,
    /// Another name that it may have.
    adopted: Option<String>,
    pub(super) database: Database,
    /// How many transactions have come, at least in part.
    pub(super) came: usize,
    /// Shapes by their handles.
    pub(super) promised: BTreeMap<String, Promised>,
    /// What was said to be durable.
    pub(super) acknowledged: u64,
}

/// What is known of a shape.
pub(super) struct Promised {
    pub(super) table: usize,
    pub(super) clause: usize,
    pub(super) definition: ShapeDefinition,
    /// Its snapshot sees so many transactions, once it has begun, and these are its rows.
    pub(super) seen: usize,
    pub(super) rows: Vec<u8>,
    /// Whether its creation was told that it is complete.
    pub(super) is_complete: bool,
    /// Whether somebody asked for its end.
    pub(super) is_unwanted: bool,
    /// How much of its log somebody may have read.
    pub(super) read: u64,
}

/// Limits so small that everything happens.
pub(super) fn config() -> StoreConfig {
    StoreConfig {
        chunk_bytes: 700,
        unwritten_bytes: 2500,
        wal_bytes: 4000,
        compact_bytes: 900,
        open_files: 3,
        small_snapshot_bytes: 600,
        held_bytes: 6000,
        part_bytes: 800,
        message_bytes: MESSAGE_BYTES,
        waits_for_checkpoints: true,
        ..StoreConfig::new("/nowhere")
    }
}

impl Model {
    fn new(origin: String, lsn: u64) -> Self {
        let (database, promised) = (Database::new(lsn), BTreeMap::new());
        Model { origin, adopted: None, database, came: 0, promised, acknowledged: lsn }
    }
}

impl World {
    /// An empty store on a disk, which may crash before it has begun.
    pub(super) fn new(disk: Arc<dyn Disk>, seed: u64) -> Result<Self, Crashed> {
        let store = Shapes::on(disk, config()).map_err(crashed)?;
        let follower = store.follower();
        let mut world = World {
            dice: SimulatedRng::new(seed),
            runtime: Builder::new_current_thread().build().expect("a runtime"),
            model: Model::new("none".into(), 0),
            next: None,
            store,
            follower,
            stream: (0, 0),
            described: HashSet::new(),
            creations: Vec::new(),
            handles: BTreeSet::new(),
            acknowledged: Arc::default(),
            merged: 0,
        };
        world.begin()?;
        world.reset(1000)?;
        Ok(world)
    }

    /// Takes the right to write.
    pub(super) fn begin(&mut self) -> Step {
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

    /// Something happens.
    pub(super) fn step(&mut self) -> Step {
        match self.dice.between(0, 99) {
            0..25 => {
                self.model.database.commit(&mut self.dice);
                Ok(())
            }
            25..60 => self.stream_on(),
            60..63 => {
                self.restart();
                self.idle()
            }
            63..70 => self.create(),
            70..88 => (0..self.dice.between(1, 6)).try_for_each(|_| self.fill()),
            88 => self.delete(),
            89..91 => self.advance(),
            91 => self.ask(|store| async move { store.checkpoint().await.is_ok() }),
            92 => self.adopt(),
            93..95 => {
                self.end()?;
                self.begin()
            }
            95 if self.dice.between(0, 3) == 0 => {
                let lsn = self.dice.between(100, 5000) as u64;
                self.reset(lsn)
            }
            _ => {
                self.verify();
                Ok(())
            }
        }
    }

    /// Brings everything that has happened.
    pub(super) fn catch_up(&mut self) -> Step {
        while self.stream.0 < self.model.database.log.len() {
            self.stream_on()?;
        }
        Ok(())
    }

    /// Brings some messages of the stream, and has them written together, or one by one.
    fn stream_on(&mut self) -> Step {
        let (index, sent) = self.stream;
        if index == self.model.database.log.len() {
            return Ok(());
        }
        let messages = self.model.database.messages(index);
        let whole = messages.len() - sent;
        let count = if self.dice.between(0, 3) == 0 { self.dice.between(1, whole) } else { whole };
        let one_by_one = self.dice.between(0, 3) == 0;
        self.model.came = self.model.came.max(index + 1);
        self.hold();
        for (table, message) in &messages[sent..sent + count] {
            if let Some(table) = *table
                && (self.described.insert(table) || self.dice.between(0, 9) == 0)
            {
                let relation = Wire::relation(&self.model.database.tables[table]);
                relation.send(&mut self.follower).expect("it makes sense");
            }
            message.send(&mut self.follower).expect("it makes sense");
            if one_by_one {
                self.idle()?;
                self.hold();
            }
        }
        self.stream = if count == whole { (index + 1, 0) } else { (index, sent + count) };
        self.idle()
    }

    /// The connection is lost, and another one begins with what isn't acknowledged, or a little before.
    fn restart(&mut self) {
        self.hold();
        self.follower.restart();
        self.described.clear();
        let acknowledged = self.store.position().map_or(0, |position| position.lsn);
        let next = self.model.database.log.partition_point(|transaction| transaction.lsn < acknowledged);
        self.stream = (next.saturating_sub(self.dice.between(0, 1)), 0);
    }

    fn delete(&mut self) -> Step {
        let (count, promised) = (self.model.promised.len(), &mut self.model.promised);
        let any = promised.iter_mut().nth(self.dice.between(0, count.max(1) - 1));
        self.store.inner.queue().hold();
        if self.dice.between(0, 3) == 0 {
            let of_table = promised.values_mut().filter(|promised| promised.table == 1);
            of_table.for_each(|promised| promised.is_unwanted = true);
            self.store.delete_table(self.model.database.tables[1].oid);
        } else if let Some((handle, promised)) = any {
            promised.is_unwanted = true;
            self.store.delete(handle);
        }
        self.idle()
    }

    /// Nothing concerns anybody up to where the next transaction's commit is.
    fn advance(&mut self) -> Step {
        let (index, 0) = self.stream else { return Ok(()) };
        let database = &self.model.database;
        let lsn = database.log.get(index).map_or(database.lsn, |next| next.lsn);
        self.store.advance(lsn);
        self.idle()
    }

    fn adopt(&mut self) -> Step {
        let origin = format!("{}'", self.model.origin);
        self.model.adopted = Some(origin.clone());
        self.ask(|store| async move { store.adopt(origin).await.is_ok() })?;
        self.model.origin = self.model.adopted.take().expect("it was set");
        Ok(())
    }

    /// The database is another, with a log of its own.
    fn reset(&mut self, lsn: u64) -> Step {
        let origin = format!("{}+", self.model.origin);
        let next = Model::new(origin.clone(), lsn);
        self.model.acknowledged = self.acknowledged.load(Ordering::SeqCst);
        self.next = Some(next);
        self.ask(|store| async move { store.reset(origin, lsn).await.is_ok() })?;
        self.model = self.next.take().expect("it was set");
        self.hold();
        self.creations.clear();
        self.restart();
        self.idle()
    }

    /// Ends the writing. Creations that are under way may find out later.
    pub(super) fn end(&mut self) -> Step {
        self.hold();
        if self.dice.coin() {
            self.creations.clear();
        }
        self.idle()?;
        self.store.end_writing();
        if self.store.inner.failure.lock().expect("no panic").is_some() {
            return Err(Crashed);
        }
        Ok(())
    }

    /// The disk crashed, and this is what it left.
    pub(super) fn recover(&mut self, disk: Arc<dyn Disk>) -> Step {
        self.stop();
        self.go_on(Shapes::on(disk, config()).map_err(crashed)?)
    }

    /// The process ends, however it does.
    pub(super) fn stop(&mut self) {
        self.note_what_was_read();
        self.creations.clear();
        self.store.end_writing();
        self.model.acknowledged = self.model.acknowledged.max(self.acknowledged.load(Ordering::SeqCst));
    }

    /// Another store takes over.
    pub(super) fn go_on(&mut self, store: Shapes) -> Step {
        self.store = store;
        self.begin()?;
        self.find_out_who_it_is();
        self.verify();
        let mut known: HashSet<_> = lock(&self.store.inner.garbage)
            .iter()
            .map(|(id, kind)| shape_files::file_name(*id, *kind))
            .collect();
        for shape in self.store.all() {
            known.extend(
                shape_files::file_kinds(shape.lock().log.base())
                    .map(|kind| shape_files::file_name(shape.id, kind)),
            );
        }
        for name in self.store.inner.disk.list(shape_files::DIR).map_err(|_| Crashed)? {
            assert!(known.contains(&name), "nobody needs {name}");
        }
        let there: HashSet<_> = self.store.all().iter().map(|shape| shape.handle().to_owned()).collect();
        self.model.promised.retain(|handle, _| there.contains(handle));
        self.model.promised.values_mut().for_each(|promised| promised.is_complete = true);
        self.model.acknowledged = self.store.position().map_or(0, |position| position.lsn);
        self.acknowledged.store(self.model.acknowledged, Ordering::SeqCst);
        self.restart();
        self.idle()
    }

    /// After a crash within a reset, or within an adoption.
    fn find_out_who_it_is(&mut self) {
        let position = self.store.position();
        let next = self.next.take();
        let origin = match position {
            None => {
                assert_eq!(self.model.origin, "none", "a store forgot what it follows");
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

    /// Whatever the store shows now, somebody may have read.
    fn note_what_was_read(&mut self) {
        for shape in self.store.all() {
            let len = shape.lock().log.len();
            if let Some(promised) = self.model.promised.get_mut(shape.handle()) {
                promised.read = promised.read.max(len);
            }
        }
    }

    fn ask<F: Future<Output = bool>>(&mut self, ask: impl FnOnce(Shapes) -> F) -> Step {
        self.idle()?;
        let told = self.runtime.block_on(ask(self.store.clone()));
        self.idle()?;
        if told { Ok(()) } else { Err(Crashed) }
    }

    pub(super) fn hold(&self) {
        self.store.inner.queue().hold();
    }

    /// Waits until everything is written.
    pub(super) fn idle(&mut self) -> Step {
        self.store.inner.queue().release();
        // A file that couldn't be removed is no reason for the store to stop, but the disk is gone all the same.
        let inner = &self.store.inner;
        let has_failed = inner.failure.lock().expect("no panic").is_some() || inner.disk.list("").is_err();
        if has_failed { Err(Crashed) } else { Ok(()) }
    }
}

/// No crash makes a store that can't be read.
fn crashed(error: OpenError) -> Crashed {
    match error {
        OpenError::Io(_) | OpenError::Failed(_) => Crashed,
        error => panic!("{error}"),
    }
}
