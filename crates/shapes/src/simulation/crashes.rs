//! Crashes at every write, sync and rename.

use std::sync::Arc;

use super::seeds;
use super::store_simulation::StoreSimulation;
use crate::store::disk::{SimulatedDisk, SimulatedRng};

/// Number of steps of a run.
const STEPS: usize = 200;

/// Returns the disk after a crash of the machine or a kill of the process.
fn disk_after_crash(disk: &SimulatedDisk, rng: &mut SimulatedRng) -> SimulatedDisk {
    if rng.between(0, 3) == 0 { disk.after_kill() } else { disk.after_crash(rng.between(0, 1 << 30) as u64) }
}

/// Numbers of a run.
struct RunCounts {
    disk_calls: u64,
    /// Number of times a merged log was checked.
    merged: usize,
    /// Number of verdicts for held shapes.
    decided: usize,
}

/// Runs a simulation through all crashes.
fn run(seed: u64, mut crash: impl FnMut(&SimulatedDisk, &mut SimulatedRng)) -> RunCounts {
    let mut rng = SimulatedRng::new(seed ^ 0x5eed);
    let mut disk = SimulatedDisk::new(seed);
    crash(&disk, &mut rng);
    let mut simulation = loop {
        if let Ok(simulation) = StoreSimulation::new(Arc::new(disk.clone()), seed) {
            break simulation;
        }
        // It crashed before clients were shown anything.
        disk = disk_after_crash(&disk, &mut rng);
    };
    for _ in 0..STEPS {
        if simulation.step().is_err() {
            loop {
                disk = disk_after_crash(&disk, &mut rng);
                crash(&disk, &mut rng);
                if simulation.recover(Arc::new(disk.clone())).is_ok() {
                    break;
                }
            }
        }
    }
    let ops = disk.ops();
    disk.crash_at(u64::MAX);
    simulation.catch_up().expect("no more crashes");
    simulation.judge_all().expect("no more crashes");
    simulation.verify();
    simulation.store.end_writing();
    RunCounts { disk_calls: ops, merged: simulation.merged, decided: simulation.decided }
}

#[test]
fn without_a_crash_every_guarantee_holds() {
    let (mut merged, mut decided) = (0, 0);
    for seed in seeds(10) {
        eprintln!("seed {seed}");
        let counts = run(seed, |_, _| {});
        (merged, decided) = (merged + counts.merged, decided + counts.decided);
    }
    assert!(merged > 0, "no log was long enough to be merged");
    assert!(decided > 0, "no shape was held");
}

#[test]
fn a_crash_at_any_disk_call_breaks_no_guarantee() {
    for seed in seeds(4) {
        let calls = run(seed, |_, _| {}).disk_calls;
        // Every call if `FOREBAY_SEEDS` is set, otherwise about 25 of them.
        let step = if std::env::var_os("FOREBAY_SEEDS").is_some() { 1 } else { calls / 25 + 1 };
        for call in (1 + seed % step..=calls).step_by(step as usize) {
            eprintln!("seed {seed}, call {call} of {calls}");
            let mut has_crashed = false;
            run(seed, |disk, _| {
                if !std::mem::replace(&mut has_crashed, true) {
                    disk.crash_at(call);
                }
            });
        }
    }
}

#[test]
fn repeated_crashes_break_no_guarantee() {
    for seed in seeds(40) {
        eprintln!("seed {seed}");
        run(seed, |disk, rng| {
            let soon = [12, 80, 400][rng.between(0, 2)];
            disk.crash_at(rng.between(1, soon) as u64);
        });
    }
}
