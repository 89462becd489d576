//! The right to hold one stream.
//!
//! Invariant: exactly as long as the permit lives, its units are taken and its stream is in the registry.
//! Kept by: the units and the seat are inside it and nowhere else; dropping it waits for nothing, whoever drops it: a body, a
//! panic, a task that is cancelled.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_quota::{KeyedLease, Lease};

use crate::door::Door;
use crate::registry::Seat;
use crate::stage::{code, staged};

/// The right to hold one stream. Dropping it gives the stream's place back at once.
#[must_use = "dropping a permit gives its place back"]
pub struct Permit {
    door: Arc<Door>,
    units: Option<(Lease, Option<KeyedLease>)>,
    seat: Option<Seat>,
}

impl Permit {
    pub(crate) fn new(door: Arc<Door>, lease: Lease, keyed: Option<KeyedLease>, seat: Seat) -> Self {
        Permit { door, units: Some((lease, keyed)), seat: Some(seat) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let door = &*self.door;
        let left = door.registry.leave(&mut self.seat);
        if let Some((entry, open)) = &left {
            let lasted = entry.since.elapsed();
            staged!(
                debug,
                code::RELEASING,
                entry.thread,
                entry.user,
                seconds = lasted.as_secs_f64(),
                "stream ended"
            );
            door.meters.active.set(*open as f64);
            door.meters.stream_seconds.record(lasted);
        }
        drop(self.units.take());
        door.released.fetch_add(1, Ordering::Relaxed);
        door.meters.released.increment(1);
        let about = door.given_back();
        if let Some((entry, open)) = left {
            staged!(debug, code::RELEASED, entry.thread, entry.user, used = about, "permit given back");
            if open == 0 {
                door.emptied.notify_waiters();
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}
