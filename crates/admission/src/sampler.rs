//! Once a second: what this process uses, how fast streams end, how the house is.
//!
//! Invariant: no stream waits for it. Files are read on a blocking thread; what it finds is left in atomics and behind locks
//! that are held for a copy. It ends with the last admission and the last permit.
//! Not here: what follows from a sample; see `core/pressure.rs` and `core/release.rs`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::core::pressure::{Pressure, Strain};
use crate::door::Door;
use crate::machine::Reading;
use crate::stage::code;
use crate::statistics::Process;

const PERIOD: Duration = Duration::from_secs(1);

pub(crate) fn start(door: &Arc<Door>) {
    let (weak, mut sampler) = (Arc::downgrade(door), Sampler::new(door));
    tokio::spawn(async move {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Ok(reading) = spawn_blocking(Reading::take).await else { return }; // the runtime ends
            let Some(door) = weak.upgrade() else { return };
            sampler.step(&door, reading, Instant::now());
        }
    });
}

struct Sampler {
    pressure: Pressure,
    last: Instant,
    released: u64,
    refused: u64,
}

impl Sampler {
    fn new(door: &Door) -> Self {
        Sampler { pressure: Pressure::new(door.bounds), last: door.begun, released: 0, refused: 0 }
    }

    fn step(&mut self, door: &Door, reading: Reading, now: Instant) {
        self.strain(door, reading, now);
        self.pace(door, now);
        let usage = door.budget.usage();
        door.watch.recheck(usage.used, usage.limit, &door.meters);
        door.about.store(i64::from(usage.used), Ordering::Relaxed);
        door.total.store(usage.limit, Ordering::Relaxed);
        door.meters.used.set(f64::from(usage.used));
        door.meters.limit_total.set(f64::from(usage.limit));
        door.meters.limit_user.set(f64::from(door.keyed.limit()));
        door.meters.utilization.set(f64::from(usage.used) / f64::from(usage.limit.max(1)));
        door.meters.mode(door.quota.mode());
        door.meters.members.set(f64::from(door.quota.members()));
    }

    fn strain(&mut self, door: &Door, reading: Reading, now: Instant) {
        let before = self.pressure.strain();
        if self.pressure.step(reading.sample(door.memory), now - door.begun) {
            let strain = self.pressure.strain();
            door.set_strain(strain);
            door.meters.shedding(strain);
            log(before, strain, reading, self.pressure.cpu());
        }
        let process = Process {
            resident_bytes: reading.resident_bytes,
            memory_limit_bytes: reading.memory_limit_bytes,
            cpu_ratio: self.pressure.cpu(),
            cpus: reading.cpus,
        };
        *door.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
        if let Some(bytes) = process.resident_bytes {
            door.meters.resident_bytes.set(bytes as f64);
        }
        if let Some(ratio) = process.cpu_ratio {
            door.meters.cpu_ratio.set(ratio);
        }
    }

    fn pace(&mut self, door: &Door, now: Instant) {
        let (released, refused) =
            (door.released.load(Ordering::Relaxed), door.refused.load(Ordering::Relaxed));
        let (releases, refusals) = (released - self.released, refused - self.refused);
        let mut pace = door.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.step(releases, refusals, now - self.last);
        (self.released, self.refused, self.last) = (released, refused, now);
    }
}

fn log(from: Option<Strain>, to: Option<Strain>, reading: Reading, cpu: Option<f64>) {
    let (stage, bytes) = (code::HEALTH, reading.resident_bytes);
    match (from, to) {
        (_, Some(strain)) => {
            let strain = strain.as_str();
            warn!(
                stage,
                strain,
                resident_bytes = bytes,
                cpu_ratio = cpu,
                "no new streams: this process is strained"
            );
        }
        (_, None) => info!(stage, resident_bytes = bytes, cpu_ratio = cpu, "new streams are taken again"),
    }
}
