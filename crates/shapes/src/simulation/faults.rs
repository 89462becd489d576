//! Disk faults: full disks and failing syncs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use super::seeds;
use super::store_simulation::{StoreSimulation, config};
use crate::shapes::Shapes;
use crate::store::OpenError;
use crate::store::disk::SimulatedDisk;

const ROOM: u64 = 1 << 40;

#[test]
fn a_full_disk_pauses_the_store_until_there_is_space() {
    for seed in seeds(6) {
        eprintln!("seed {seed}");
        let mut disk = SimulatedDisk::new(seed);
        let mut simulation = StoreSimulation::new(Arc::new(disk.clone()), seed).expect("nothing crashes");
        for step in 0..200 {
            let is_full = simulation.rng.between(0, 9) == 0;
            let room = is_full.then(|| {
                disk.fill(simulation.rng.between(0, 600) as u64);
                let disk = disk.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(5));
                    disk.fill(ROOM);
                })
            });
            simulation.step().unwrap_or_else(|_| panic!("a full disk must not fail the store (step {step})"));
            room.into_iter().for_each(|room| room.join().expect("no panic"));
            if is_full && simulation.rng.between(0, 2) == 0 {
                let seed = simulation.rng.between(0, 1 << 20) as u64;
                disk = if simulation.rng.coin() { disk.after_crash(seed) } else { disk.after_kill() };
                simulation.recover(Arc::new(disk.clone())).expect("nothing crashes again");
            }
        }
        simulation.catch_up().expect("nothing crashes");
        simulation.verify();
        simulation.recover(Arc::new(disk.after_crash(seed))).expect("nothing crashes");
        simulation.store.end_writing();
    }
}

#[test]
fn on_a_full_disk_nothing_is_acknowledged_and_reads_succeed() {
    let disk = SimulatedDisk::new(1);
    let mut simulation = StoreSimulation::new(Arc::new(disk.clone()), 1).expect("nothing crashes");
    (0..100).try_for_each(|_| simulation.step()).expect("nothing crashes");
    simulation.catch_up().expect("nothing crashes");
    simulation.judge_all().expect("nothing crashes");
    let (store, before) =
        (simulation.store.clone(), simulation.store.position().expect("the store has an origin").lsn);
    disk.fill(10);
    store.advance(before + 100);
    while !store.is_full() {
        thread::yield_now();
    }
    simulation.verify();
    assert_eq!(store.position().expect("the store has an origin").lsn, before);
    disk.fill(ROOM);
    simulation.idle().expect("nothing crashes");
    assert_eq!(store.position().expect("the store has an origin").lsn, before + 100);
    assert!(!store.is_full());
    // If writing ends on a full disk, unacknowledged records are lost, and all records after them.
    disk.fill(10);
    store.advance(before + 200);
    while !store.is_full() {
        thread::yield_now();
    }
    store.advance(before + 300);
    store.end_writing();
    disk.fill(ROOM);
    assert_eq!(
        store.begin_writing().expect("the disk has room").expect("the store has an origin").lsn,
        before + 100
    );
    store.end_writing();
}

#[test]
fn a_failed_sync_is_a_permanent_failure() {
    for seed in seeds(20) {
        eprintln!("seed {seed}");
        let disk = SimulatedDisk::new(seed);
        let mut simulation = StoreSimulation::new(Arc::new(disk.clone()), seed).expect("nothing crashes");
        (0..60).try_for_each(|_| simulation.step()).expect("nothing crashes");
        let (store, before) = (simulation.store.clone(), simulation.store.position());
        let reported = Arc::new(AtomicU64::new(0));
        let is_reported = Arc::clone(&reported);
        store.on_durable(move |_| is_reported.store(1, Ordering::SeqCst));
        disk.fail_sync();
        while simulation.catch_up().is_ok() {
            simulation.model.database.commit(&mut simulation.rng);
        }
        let failure = simulation.runtime.block_on(store.wait_for_failure());
        assert!(failure.to_string().starts_with("the store can't be written"), "{failure}");
        // No caller waits for records that will never be durable.
        assert!(simulation.runtime.block_on(store.reset("another".into(), 5)).is_err());
        assert!(simulation.runtime.block_on(store.checkpoint()).is_err());
        simulation.runtime.block_on(store.wait_for_room());
        assert_eq!((store.position(), reported.load(Ordering::SeqCst)), (before, 0));
        assert!(matches!(store.begin_writing(), Err(OpenError::Failed(_))));
        store.end_writing();
        assert!(matches!(store.begin_writing(), Err(OpenError::Failed(_))));
        simulation.verify();
        let left = if seed % 2 == 0 { disk.after_kill() } else { disk.after_crash(seed) };
        // Readable records that weren't synced may be lost or not. After the first recovery, the
        // outcome must not change.
        left.crash_at(1 + seed);
        let mut left = (left.clone(), simulation.recover(Arc::new(left)));
        while left.1.is_err() {
            let next = left.0.after_crash(seed);
            left = (next.clone(), simulation.recover(Arc::new(next)));
        }
        simulation.store.end_writing();
    }
}

#[test]
fn a_panic_of_the_writer_is_a_permanent_failure() {
    let simulation = StoreSimulation::new(Arc::new(SimulatedDisk::new(1)), 1).expect("nothing crashes");
    simulation.store.on_durable(|_| panic!("injected by the test"));
    simulation.store.advance(5000);
    let failure = simulation.runtime.block_on(simulation.store.wait_for_failure());
    assert_eq!(failure.to_string(), "the store can't be written: its writer panicked");
    assert!(simulation.runtime.block_on(simulation.store.checkpoint()).is_err());
    simulation.store.end_writing();
}

#[test]
fn a_damaged_store_is_refused_with_a_reason() {
    let dir = std::env::temp_dir().join(format!("forebay-damaged-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir); // left by a killed process with the same id
    let open = || Shapes::open(crate::StoreConfig { dir: dir.clone(), ..config() });
    let store = open().expect("an empty directory can be opened");
    store.begin_writing().expect("no other process writes");
    store.advance(7);
    store.end_writing();
    let catalog = fs::read(dir.join("catalog")).expect("the catalog exists");
    fs::write(dir.join("catalog"), &catalog[..catalog.len() - 1]).expect("the catalog is writable");
    assert!(matches!(open(), Err(OpenError::Damaged { file: "catalog" })));
    fs::remove_file(dir.join("catalog")).expect("the catalog exists");
    assert!(matches!(open(), Err(OpenError::Damaged { file: "catalog" })));
    let newer = String::from_utf8_lossy(&catalog).into_owned();
    assert!(newer.contains("\"format\":2"));
    fs::remove_dir_all(&dir).expect("the directory exists");
}
