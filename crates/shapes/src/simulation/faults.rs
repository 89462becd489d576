//! Disk faults: full disks and failing syncs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use super::seeds;
use super::world::{World, config};
use crate::shapes::Shapes;
use crate::store::OpenError;
use crate::store::disk::SimulatedDisk;

const ROOM: u64 = 1 << 40;

#[test]
fn a_full_disk_stops_the_world_until_there_is_room() {
    for seed in seeds(6) {
        eprintln!("seed {seed}");
        let mut disk = SimulatedDisk::new(seed);
        let mut world = World::new(Arc::new(disk.clone()), seed).expect("nothing crashes");
        for step in 0..200 {
            let is_full = world.dice.between(0, 9) == 0;
            let room = is_full.then(|| {
                disk.fill(world.dice.between(0, 600) as u64);
                let disk = disk.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(5));
                    disk.fill(ROOM);
                })
            });
            world.step().unwrap_or_else(|_| panic!("a full disk must not fail the store (step {step})"));
            room.into_iter().for_each(|room| room.join().expect("no panic"));
            if is_full && world.dice.between(0, 2) == 0 {
                let seed = world.dice.between(0, 1 << 20) as u64;
                disk = if world.dice.coin() { disk.after_crash(seed) } else { disk.after_kill() };
                world.recover(Arc::new(disk.clone())).expect("nothing crashes again");
            }
        }
        world.catch_up().expect("nothing crashes");
        world.verify();
        world.recover(Arc::new(disk.after_crash(seed))).expect("nothing crashes");
        world.store.end_writing();
    }
}

#[test]
fn on_a_full_disk_nothing_is_acknowledged_and_everything_is_read() {
    let disk = SimulatedDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1).expect("nothing crashes");
    (0..100).try_for_each(|_| world.step()).expect("nothing crashes");
    world.catch_up().expect("nothing crashes");
    let (store, before) = (world.store.clone(), world.store.position().expect("the store has an origin").lsn);
    disk.fill(10);
    store.advance(before + 100);
    while !store.is_full() {
        thread::yield_now();
    }
    world.verify();
    assert_eq!(store.position().expect("the store has an origin").lsn, before);
    disk.fill(ROOM);
    world.idle().expect("nothing crashes");
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
    assert_eq!(store.begin_writing().expect("the disk has room").expect("the store has an origin").lsn, before + 100);
    store.end_writing();
}

#[test]
fn a_sync_that_fails_is_the_end() {
    for seed in seeds(20) {
        eprintln!("seed {seed}");
        let disk = SimulatedDisk::new(seed);
        let mut world = World::new(Arc::new(disk.clone()), seed).expect("nothing crashes");
        (0..60).try_for_each(|_| world.step()).expect("nothing crashes");
        let (store, before) = (world.store.clone(), world.store.position());
        let said = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&said);
        store.on_durable(move |_| heard.store(1, Ordering::SeqCst));
        disk.fail_sync();
        while world.catch_up().is_ok() {
            world.model.database.commit(&mut world.dice);
        }
        let failure = world.runtime.block_on(store.failed());
        assert!(failure.to_string().starts_with("the store can't be written"), "{failure}");
        // No caller waits for records that will never be durable.
        assert!(world.runtime.block_on(store.reset("another".into(), 5)).is_err());
        assert!(world.runtime.block_on(store.checkpoint()).is_err());
        world.runtime.block_on(store.room());
        assert_eq!((store.position(), said.load(Ordering::SeqCst)), (before, 0));
        assert!(matches!(store.begin_writing(), Err(OpenError::Failed(_))));
        store.end_writing();
        assert!(matches!(store.begin_writing(), Err(OpenError::Failed(_))));
        world.verify();
        let left = if seed % 2 == 0 { disk.after_kill() } else { disk.after_crash(seed) };
        // Readable records that weren't synced may be lost or not. After the first recovery, the
        // outcome must not change.
        left.crash_at(1 + seed);
        let mut left = (left.clone(), world.recover(Arc::new(left)));
        while left.1.is_err() {
            let next = left.0.after_crash(seed);
            left = (next.clone(), world.recover(Arc::new(next)));
        }
        world.store.end_writing();
    }
}

#[test]
fn whoever_panics_while_writing_is_found_out() {
    let world = World::new(Arc::new(SimulatedDisk::new(1)), 1).expect("nothing crashes");
    world.store.on_durable(|_| panic!("injected by the test"));
    world.store.advance(5000);
    let failure = world.runtime.block_on(world.store.failed());
    assert_eq!(failure.to_string(), "the store can't be written: its writer panicked");
    assert!(world.runtime.block_on(world.store.checkpoint()).is_err());
    world.store.end_writing();
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
    assert!(newer.contains("\"format\":1"));
    fs::remove_dir_all(&dir).expect("the directory exists");
}
