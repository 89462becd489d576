//! Permit: the right to hold one stream.
//!
//! Invariant: while a permit exists, its units are taken and its stream is registered; afterwards
//! neither is.
//! Enforced by: the permit owns the units and the registration. Dropping it never waits, whether a
//! body, a panic or a cancelled task drops it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_quota::KeyedLease;

use crate::adaptive_limiter::StartTimer;
use crate::controller::AdmissionController;
use crate::end_signal::EndSignal;
use crate::open_stream_registry::Registration;
use crate::stream_log::{code, log_stage};
use crate::stream_unit::StreamUnit;

/// Right to hold one stream. Dropping it releases the stream's units immediately.
#[must_use = "dropping a permit releases its stream"]
pub struct Permit {
    controller: Arc<AdmissionController>,
    units: Option<(StreamUnit, Option<KeyedLease>)>,
    registration: Option<Registration>,
    end: EndSignal,
}

impl Permit {
    pub(crate) fn new(
        controller: Arc<AdmissionController>,
        unit: StreamUnit,
        keyed: Option<KeyedLease>,
        registration: Registration,
        end: EndSignal,
    ) -> Self {
        Permit { controller, units: Some((unit, keyed)), registration: Some(registration), end }
    }

    /// Returns a timer for the start of the stream, if the adaptive limit uses its time.
    pub(crate) fn start_timer(&self) -> Option<StartTimer> {
        self.units.as_ref()?.0.slot.as_ref()?.timer()
    }

    /// Returns the signal by which an operator ends the stream.
    pub fn end_signal(&self) -> &EndSignal {
        &self.end
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let controller = &*self.controller;
        let left = controller.registry.remove(&mut self.registration);
        if let Some((entry, open)) = &left {
            let lasted = entry.since.elapsed();
            log_stage!(
                controller.stage_level,
                code::RELEASING,
                entry.thread,
                entry.user,
                seconds = lasted.as_secs_f64(),
                "stream ended"
            );
            controller.metrics.active.set(*open as f64);
            controller.metrics.stream_seconds.record(lasted);
        }
        drop(self.units.take());
        controller.released.fetch_add(1, Ordering::Relaxed);
        controller.metrics.released.increment(1);
        let approx_used = controller.after_release();
        if let Some((entry, open)) = &left {
            log_stage!(
                controller.stage_level,
                code::RELEASED,
                entry.thread,
                entry.user,
                used = approx_used,
                "permit released"
            );
            if *open == 0 {
                controller.emptied.notify_waiters();
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}
