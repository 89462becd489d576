//! Processes that read a store while another process writes, and their takeover.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Builder;

use super::store_simulation::{StoreSimulation, config};
use super::verification::{self, visible};
use super::{follow_bench, seeds};
use crate::definition::ShapeDefinition;
use crate::offset::Offset;
use crate::shape::{LogListener, Shape};
use crate::shapes::Shapes;
use crate::store::disk::{Disk, DiskFile, SimulatedDisk, SimulatedRng};

/// One process's view of a disk. The process can be killed while others continue to use the disk.
#[derive(Debug, Clone)]
struct KillableDisk {
    disk: Arc<dyn Disk>,
    /// Number of writing calls until the process is killed.
    left: Arc<AtomicU64>,
}

/// File of a killable disk.
#[derive(Debug)]
struct KillableFile(KillableDisk, Arc<dyn DiskFile>);

impl KillableDisk {
    fn new(disk: &SimulatedDisk) -> Self {
        KillableDisk { disk: Arc::new(disk.clone()), left: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Fails if the process was killed.
    fn alive(&self) -> io::Result<()> {
        if self.left.load(Ordering::SeqCst) == 0 { Err(io::Error::other("killed")) } else { Ok(()) }
    }

    /// Counts a writing call. Fails if the process was killed, also by this call.
    fn spend(&self) -> io::Result<()> {
        self.alive()?;
        self.left.fetch_sub(1, Ordering::SeqCst);
        self.alive()
    }

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(KillableFile(self.clone(), file))
    }
}

impl Disk for KillableDisk {
    fn create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.spend()?;
        self.disk.create(path).map(|file| self.file(file))
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.alive()?;
        self.disk.open(path).map(|file| self.file(file))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.spend()?;
        self.disk.open_or_create(path).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.spend()?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.spend()?;
        self.disk.remove(path)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.spend()?;
        self.disk.make_dir(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.alive()?;
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.spend()?;
        self.disk.sync_dir(dir)
    }

    fn sync_everything(&self) -> io::Result<()> {
        self.spend()?;
        self.disk.sync_everything()
    }

    fn try_lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.alive()?;
        self.disk.try_lock()
    }
}

impl DiskFile for KillableFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.alive()?;
        self.1.read_at(buffer, at)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.spend()?;
        self.1.write_all_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.spend()?;
        self.1.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.spend()?;
        self.1.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.alive()?;
        self.1.len()
    }
}

/// Listener that records messages since it was attached.
#[derive(Debug, Default)]
struct RecordingListener(Mutex<Vec<u8>>);

impl LogListener for RecordingListener {
    fn published(&self, messages: &[Bytes], last: Offset, seen: u64) -> bool {
        let bytes = messages.concat();
        let line =
            bytes.split_inclusive(|byte| *byte == b'\n').next_back().expect("the transaction has a message");
        assert_eq!(crate::encode::offset_of(line), Some(last));
        assert!(last < Offset::new(seen, 0));
        self.0.lock().extend(bytes);
        true
    }

    fn ended(&self) {}
}

/// Refreshes a reader. Checks that each listener gets all new messages, unless it is detached.
fn refresh(reader: &Shapes) {
    let listen = |shape: Arc<Shape>| {
        let ((), end) =
            shape.attach(RecordingListener::default, |listener| *listener.0.lock() = Vec::new())?;
        Some((shape, end.to))
    };
    let listening: Vec<_> = reader.all().into_iter().filter_map(listen).collect();
    reader.refresh().expect("the store is readable");
    for (shape, from) in listening {
        // A detached listener is replaced by a new one here.
        let received = shape.attach(
            || RecordingListener(Mutex::new(b"ended".to_vec())),
            |listener| listener.0.lock().clone(),
        );
        if let Some((bytes, end)) = received
            && bytes != b"ended"
        {
            assert_eq!(from + bytes.len() as u64, end.to, "messages are missing");
            if let Ok(read) = shape.read_log(&end, from, end.to) {
                assert_eq!(read.concat(), bytes);
            }
        }
    }
}

/// Refreshes a reader, and checks that it has the same bytes as the writer.
fn check_reader_agrees(simulation: &mut StoreSimulation, reader: &Shapes) {
    refresh(reader);
    let (theirs, ours) =
        (visible(&simulation.store, &mut simulation.rng), visible(reader, &mut simulation.rng));
    assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
    assert!(theirs == ours, "the bytes of some shape differ");
    let durable =
        |store: &Shapes| (store.engine.store.progress.origin(), store.engine.store.progress.durable());
    assert_eq!(durable(&simulation.store), durable(reader));
    assert_eq!(simulation.store.seen(), reader.seen());
    for handle in ours.keys() {
        let seen_of = |store: &Shapes| store.find(handle).map(|shape| store.seen_of(&shape));
        assert_eq!(seen_of(&simulation.store), seen_of(reader), "a reader beside the writer");
    }
    // Bytes that are in files must not stay in memory.
    let (unwritten, limit) =
        (reader.engine.store.files.unwritten(), 2 * config().wal_bytes + config().unwritten_bytes);
    assert!(unwritten < limit, "{unwritten} bytes are in memory");
}

#[test]
fn a_reader_sees_the_writers_records_and_can_take_over() {
    for seed in seeds(12) {
        eprintln!("seed {seed}");
        let disk = SimulatedDisk::new(seed);
        let open = || {
            let process_disk = KillableDisk::new(&disk);
            let store = Shapes::on(Arc::new(process_disk.clone()), config()).expect("the store is readable");
            (store, process_disk.left)
        };
        let process_disk = KillableDisk::new(&disk);
        let mut simulation =
            StoreSimulation::new(Arc::new(process_disk.clone()), seed).expect("the writer isn't killed");
        let (mut left, mut is_dying) = (process_disk.left, false);
        let (mut reader, mut readers_left) = open();
        for _ in 0..250 {
            if simulation.step().is_err() {
                // The writer was killed at a random call.
                simulation.stop();
                simulation.take_over(reader).expect("the new writer isn't killed");
                (left, is_dying) = (readers_left, false);
                (reader, readers_left) = open();
            }
            match simulation.rng.between(0, 19) {
                _ if is_dying => {}
                0..5 => check_reader_agrees(&mut simulation, &reader),
                5 => {
                    // The writer ends, and becomes the reader.
                    simulation.end().expect("the writer isn't killed");
                    simulation.stop();
                    let former = std::mem::replace(&mut reader, simulation.store.clone());
                    simulation.take_over(former).expect("the new writer isn't killed");
                    (left, readers_left) = (readers_left, left);
                }
                6 => {
                    (reader, readers_left) = open();
                    check_reader_agrees(&mut simulation, &reader);
                }
                7 if simulation.rng.coin() => {
                    left.store(simulation.rng.between(1, 100) as u64, Ordering::SeqCst);
                    is_dying = true;
                }
                _ => {}
            }
        }
        left.store(u64::MAX, Ordering::SeqCst);
        simulation.catch_up().expect("the writer isn't killed");
        simulation.judge_all().expect("the writer isn't killed");
        check_reader_agrees(&mut simulation, &reader);
        simulation.store.end_writing();
    }
}

#[test]
fn a_process_killed_during_takeover_never_shows_more_than_the_next_one() {
    for seed in seeds(12) {
        eprintln!("seed {seed}");
        let disk = SimulatedDisk::new(seed);
        let process_disk = KillableDisk::new(&disk);
        let mut simulation =
            StoreSimulation::new(Arc::new(process_disk.clone()), seed).expect("the writer isn't killed");
        for _ in 0..simulation.rng.between(20, 60) {
            simulation.step().expect("the writer isn't killed");
        }
        process_disk.left.store(simulation.rng.between(1, 100) as u64, Ordering::SeqCst);
        while simulation.step().is_ok() {}
        simulation.stop();
        for operations in 0.. {
            let disk = disk.after_kill();
            let process_disk = KillableDisk::new(&disk);
            let killed = Shapes::on(Arc::new(process_disk.clone()), config()).expect("the store is readable");
            process_disk.left.store(operations, Ordering::SeqCst);
            let is_whole = killed.begin_writing().is_ok();
            let next = Shapes::on(Arc::new(disk), config()).expect("the store is readable");
            assert!(next.seen() >= killed.seen(), "`seen` decreases after {operations} operations");
            if is_whole {
                process_disk.left.store(u64::MAX, Ordering::SeqCst);
                killed.end_writing();
                break;
            }
        }
    }
}

#[test]
fn only_one_process_writes_at_a_time() {
    let disk = SimulatedDisk::new(1);
    let (one, two) = (disk.clone(), disk.clone());
    let one = Shapes::on(Arc::new(one), config()).expect("the store is readable");
    let two = Shapes::on(Arc::new(two), config()).expect("the store is readable");
    one.begin_writing().expect("no other process writes");
    assert!(matches!(two.begin_writing(), Err(crate::OpenError::Locked)));
    assert!((one.is_writing(), two.is_writing()) == (true, false));
    one.end_writing();
    two.begin_writing().expect("no other process writes");
    two.end_writing();
}

#[test]
fn a_shape_creation_from_before_a_takeover_writes_nothing() {
    let disk = SimulatedDisk::new(1);
    let (one, two) =
        (Shapes::on(Arc::new(disk.clone()), config()), Shapes::on(Arc::new(disk.clone()), config()));
    let (one, two) = (one.expect("the store is readable"), two.expect("the store is readable"));
    let create = |store: &Shapes, clause: &str| {
        let table = Arc::new(super::simulated_database::table(100, "items", vec![0]));
        let definition = ShapeDefinition { table, options: follow_bench::options(Some(clause)) };
        let creation =
            store.find_or_create(definition, 5).expect("this process writes").1.expect("the shape is new");
        creation.follow();
        creation
    };
    let snapshot = follow_bench::snapshot_before(700);
    one.begin_writing().expect("no other process writes");
    // This shape never reaches the WAL: the disk is full until the writer ends.
    disk.fill(0);
    let mut stale = create(&one, "qty > 5");
    assert!(stale.snapshot_taken(&snapshot, 1000).is_in_time());
    one.end_writing();
    disk.fill(1 << 40);
    two.begin_writing().expect("no other process writes");
    let mut fresh = create(&two, "qty > 6");
    assert_eq!(fresh.shape().id, stale.shape().id);
    assert!(fresh.snapshot_taken(&snapshot, 1000).is_in_time());
    let rows = Bytes::from(vec![b'x'; 2000]);
    fresh.rows(rows.clone()).expect("this process writes");
    assert!(stale.rows(vec![b'y'; 2000].into()).is_err() && stale.seal().is_err());
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    one.refresh().expect("the store is readable");
    drop(stale);
    fresh.seal().expect("this process writes");
    let shape = Arc::clone(fresh.shape());
    runtime.block_on(fresh.complete()).expect("the shape exists");
    one.refresh().expect("the store is readable");
    let theirs = one.find(shape.handle()).expect("the reader has it");
    assert_eq!(theirs.read_snapshot(0, 2000).expect("the snapshot is readable").concat(), rows);
    assert_eq!(one.all().len(), 1);
    two.end_writing();
}

#[test]
fn a_reader_beside_a_busy_writer_sees_a_prefix_of_the_log() {
    for seed in seeds(3) {
        eprintln!("seed {seed}");
        let disk = SimulatedDisk::new(seed);
        let mut simulation = StoreSimulation::new(Arc::new(disk.clone()), seed).expect("nothing crashes");
        let reader = Shapes::on(Arc::new(disk.read_only()), config()).expect("the store is readable");
        let stop = Arc::new(AtomicU64::new(0));
        let stopped = Arc::clone(&stop);
        let reading = std::thread::spawn(move || {
            let (mut rng, mut before) = (SimulatedRng::new(seed), verification::VisibleShapes::new());
            while stopped.load(Ordering::SeqCst) == 0 {
                refresh(&reader);
                let now = verification::visible_while_written(&reader, &mut rng);
                for (handle, (snapshot, log)) in &now {
                    if let Some((old_snapshot, old_log)) = before.get(handle) {
                        assert!(snapshot == old_snapshot, "{handle} changed");
                        verification::check_continues(snapshot, old_log, log);
                    }
                }
                before = now;
            }
            reader
        });
        (0..400).try_for_each(|_| simulation.step()).expect("nothing crashes");
        simulation.catch_up().expect("nothing crashes");
        stop.store(1, Ordering::SeqCst);
        let reader = reading.join().expect("no panic");
        check_reader_agrees(&mut simulation, &reader);
        simulation.store.end_writing();
    }
}
