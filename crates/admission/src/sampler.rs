//! Sampler task: once per second it updates load shedding, the adaptive limit, the release rate,
//! the health state and the metrics.
//!
//! Invariant: no stream waits for the sampler. Files are read on a blocking thread. Results go to
//! atomics, and to locks that are held only to copy a value.
//! The task ends when the last admission handle and the last permit are dropped.
//! Out of scope: the decisions; see `core/pressure.rs` and `core/release_rate.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::controller::AdmissionController;
use crate::core::pressure::{ResourcePressure, ShedCause};
use crate::resource_usage::ResourceUsage;
use crate::statistics::ProcessUsage;
use crate::stream_log::code;

const PERIOD: Duration = Duration::from_secs(1);

pub(crate) fn start(controller: &Arc<AdmissionController>) {
    let (weak, mut sampler) = (Arc::downgrade(controller), Sampler::new(controller));
    tokio::spawn(async move {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Fails only while the runtime shuts down.
            let Ok(usage) = spawn_blocking(ResourceUsage::read).await else { return };
            let Some(controller) = weak.upgrade() else { return };
            sampler.step(&controller, usage, Instant::now());
        }
    });
}

struct Sampler {
    pressure: ResourcePressure,
    last: Instant,
    released: u64,
    refused: u64,
}

impl Sampler {
    fn new(controller: &AdmissionController) -> Self {
        Sampler {
            pressure: ResourcePressure::new(controller.bounds),
            last: controller.started_at,
            released: 0,
            refused: 0,
        }
    }

    fn step(&mut self, controller: &AdmissionController, usage: ResourceUsage, now: Instant) {
        self.update_shedding(controller, usage, now);
        self.update_release_rate(controller, now);
        let usage = controller.budget.usage();
        controller.health.recheck(usage.used, usage.limit, &controller.metrics);
        controller.approx_used.store(i64::from(usage.used), Ordering::Relaxed);
        controller.total.store(usage.limit, Ordering::Relaxed);
        controller.metrics.used.set(f64::from(usage.used));
        controller.metrics.limit_total.set(f64::from(usage.limit));
        controller.metrics.limit_user.set(f64::from(controller.keyed.limit()));
        controller.metrics.utilization.set(f64::from(usage.used) / f64::from(usage.limit.max(1)));
        controller.metrics.mode(controller.quota.mode());
        controller.metrics.members.set(f64::from(controller.quota.members()));
    }

    fn update_shedding(&mut self, controller: &AdmissionController, usage: ResourceUsage, now: Instant) {
        let before = self.pressure.shed_cause();
        let sample = usage.sample(controller.memory);
        if self.pressure.step(sample, now - controller.started_at) {
            let shed_cause = self.pressure.shed_cause();
            controller.set_shed_cause(shed_cause);
            controller.metrics.shedding(shed_cause);
            log(before, shed_cause, usage, self.pressure.cpu());
        }
        let process = ProcessUsage {
            resident_bytes: usage.resident_bytes,
            memory_limit_bytes: usage.memory_limit_bytes,
            cpu_ratio: self.pressure.cpu(),
            cpus: usage.cpus,
        };
        *controller.process.lock() = process;
        if let Some(adaptive) = &controller.adaptive {
            // Without a bound of the memory, `sample` has none.
            let (memory, cpu) = controller.bounds.for_adaptive_limit(sample.memory, process.cpu_ratio);
            adaptive.sample(memory, cpu, now);
        }
        if let Some(bytes) = process.resident_bytes {
            controller.metrics.resident_bytes.set(bytes as f64);
        }
        if let Some(ratio) = process.cpu_ratio {
            controller.metrics.cpu_ratio.set(ratio);
        }
    }

    fn update_release_rate(&mut self, controller: &AdmissionController, now: Instant) {
        let (released, refused) =
            (controller.released.load(Ordering::Relaxed), controller.refused.load(Ordering::Relaxed));
        let (releases, refusals) = (released - self.released, refused - self.refused);
        let mut release_rate = controller.release_rate.lock();
        release_rate.step(releases, refusals, now - self.last);
        (self.released, self.refused, self.last) = (released, refused, now);
    }
}

fn log(from: Option<ShedCause>, to: Option<ShedCause>, usage: ResourceUsage, cpu: Option<f64>) {
    let (stage, bytes) = (code::HEALTH, usage.resident_bytes);
    match (from, to) {
        (_, Some(shed_cause)) => {
            let cause = shed_cause.as_str();
            warn!(stage, cause, resident_bytes = bytes, cpu_ratio = cpu, "load shedding active");
        }
        (_, None) => info!(stage, resident_bytes = bytes, cpu_ratio = cpu, "load shedding ended"),
    }
}

#[cfg(test)]
mod tests {
    use forebay_quota::Quota;

    use super::*;
    use crate::config::{AdaptiveSignals, Builder, MemoryBound};

    #[tokio::test]
    async fn without_a_memory_bound_memory_does_not_lower_the_adaptive_limit() {
        let full = ResourceUsage {
            resident_bytes: Some(99),
            memory_limit_bytes: Some(100),
            ..ResourceUsage::default()
        };
        for (bound, limit) in
            [(MemoryBound::Off, 100), (MemoryBound::Fraction(0.95), 90), (MemoryBound::Bytes(1_000), 100)]
        {
            let builder = Builder::default().total(100).adaptive(4, AdaptiveSignals::Process);
            let controller = AdmissionController::new(builder.shed_by_memory(bound), Quota::local());
            Sampler::new(&controller).step(&controller, full, Instant::now());
            assert_eq!(controller.adaptive.as_ref().unwrap().limit(), limit, "{bound:?}");
        }
    }
}
