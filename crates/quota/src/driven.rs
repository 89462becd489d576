//! A settlement that is driven by the caller who waits for it, so that no task stands between a caller and the store.
//!
//! Invariant: nobody depends on whether the driver is polled. As soon as the core has more to tell the store, and at the
//! latest when half of the call's time is over, the call goes on in a task of its own; so it does when its driver is dropped.
//! Wherever it ends, it tells the core itself, once.
//! The call is not in the books while it is polled, so that the lock isn't held over a store's code: somebody who wants it
//! then leaves word, and the driver (`wait.rs`) hands it over.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

/// A call on its way; it tells the core what came of it.
pub(crate) struct Flight {
    pub(crate) deadline: Instant,
    pub(crate) call: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// What the books know of the driven call. There is one at most, since one settlement is on its way at a time.
#[derive(Default)]
pub(crate) struct Driven {
    /// Tells a driver whether it still is the one.
    id: u64,
    drive: Option<Drive>,
    /// The runtime has ended, and nobody is left who would hand anything over in time.
    over: bool,
}

struct Drive {
    hand_over_at: Instant,
    /// Somebody wanted it while it was polled.
    wanted: bool,
    /// `None` while it is polled.
    flight: Option<Flight>,
}

impl Driven {
    /// A call is about to be polled by its driver. `None`: it can't be driven.
    pub(crate) fn begin(&mut self, hand_over_at: Instant) -> Option<u64> {
        if self.over || self.drive.is_some() {
            return None;
        }
        self.id += 1;
        self.drive = Some(Drive { hand_over_at, wanted: false, flight: None });
        Some(self.id)
    }

    /// When to reclaim the call though nobody needs it.
    pub(crate) fn hand_over_at(&self) -> Option<Instant> {
        self.drive.as_ref().filter(|drive| !drive.wanted).map(|drive| drive.hand_over_at)
    }

    /// Takes the call from its driver, to let it go on elsewhere; or leaves word.
    pub(crate) fn reclaim(&mut self) -> Option<Flight> {
        let drive = self.drive.as_mut()?;
        drive.wanted = true;
        drive.flight.take().inspect(|_| self.drive = None)
    }

    /// Nothing is driven any more.
    pub(crate) fn end_all(&mut self) -> Option<Flight> {
        self.over = true;
        self.reclaim()
    }

    pub(crate) fn pick_up(&mut self, id: u64) -> Option<Flight> {
        self.drive.as_mut().filter(|_| self.id == id)?.flight.take()
    }

    /// Returns the call if its driver is to hand it over.
    pub(crate) fn put_down(&mut self, flight: Flight) -> Option<Flight> {
        match &mut self.drive {
            Some(drive) if !drive.wanted => {
                drive.flight = Some(flight);
                None
            }
            Some(_) | None => {
                self.drive = None;
                Some(flight)
            }
        }
    }

    /// The driver is gone, or the call has ended.
    pub(crate) fn end(&mut self, id: u64) -> Option<Flight> {
        self.drive.take_if(|_| self.id == id)?.flight
    }
}
