//! Crashes at every write, sync and rename.

use std::sync::Arc;

use super::seeds;
use super::world::World;
use crate::store::disk::{Dice, SimulatedDisk};

/// Number of steps of a run.
const STEPS: usize = 200;

/// Returns the disk after a crash of the machine or a kill of the process.
fn left(disk: &SimulatedDisk, dice: &mut Dice) -> SimulatedDisk {
    if dice.between(0, 3) == 0 {
        disk.after_kill()
    } else {
        disk.after_crash(dice.between(0, 1 << 30) as u64)
    }
}

/// Runs a simulation through all crashes. Returns the number of disk calls, and how often a merged
/// log was checked.
fn live(seed: u64, mut crash: impl FnMut(&SimulatedDisk, &mut Dice)) -> (u64, usize) {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let mut disk = SimulatedDisk::new(seed);
    crash(&disk, &mut dice);
    let mut world = loop {
        if let Ok(world) = World::new(Arc::new(disk.clone()), seed) {
            break world;
        }
        // It crashed before clients were shown anything.
        disk = left(&disk, &mut dice);
    };
    for _ in 0..STEPS {
        if world.step().is_err() {
            loop {
                disk = left(&disk, &mut dice);
                crash(&disk, &mut dice);
                if world.recover(Arc::new(disk.clone())).is_ok() {
                    break;
                }
            }
        }
    }
    let ops = disk.ops();
    disk.crash_at(u64::MAX);
    world.catch_up().expect("no more crashes");
    world.verify();
    world.store.end_writing();
    (ops, world.merged)
}

#[test]
fn without_a_crash_everything_is_as_promised() {
    let mut merged = 0;
    for seed in seeds(10) {
        eprintln!("seed {seed}");
        merged += live(seed, |_, _| {}).1;
    }
    assert!(merged > 0, "no log was long enough to be merged");
}

#[test]
fn a_crash_at_any_call_breaks_no_promise() {
    for seed in seeds(4) {
        let (calls, _) = live(seed, |_, _| {});
        // Every call if `FOREBAY_SEEDS` is set, otherwise about 25 of them.
        let step = if std::env::var_os("FOREBAY_SEEDS").is_some() { 1 } else { calls / 25 + 1 };
        for call in (1 + seed % step..=calls).step_by(step as usize) {
            eprintln!("seed {seed}, call {call} of {calls}");
            let mut has_crashed = false;
            live(seed, |disk, _| {
                if !std::mem::replace(&mut has_crashed, true) {
                    disk.crash_at(call);
                }
            });
        }
    }
}

#[test]
fn crash_after_crash_breaks_no_promise() {
    for seed in seeds(40) {
        eprintln!("seed {seed}");
        live(seed, |disk, dice| {
            let soon = [12, 80, 400][dice.between(0, 2)];
            disk.crash_at(dice.between(1, soon) as u64);
        });
    }
}
