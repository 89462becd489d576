//! Driven call: a settlement that is polled by the caller that waits for it, which saves a task and
//! a wakeup.
//!
//! Invariant: no other caller depends on whether the driver is polled.
//! Enforced by: the call moves to its own task when the core has more to settle, after half of its
//! timeout, and when the driver is dropped.
//! The call reports its result to the core itself, exactly once.
//! The state holds no call while the driver polls it, so that the lock isn't held over a store's
//! code. A reclaim during a poll sets `reclaimed`, and the driver (`take_future.rs`) hands the call
//! over.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

/// A call to the store. Its future reports the result to the core.
pub(crate) struct InFlightCall {
    pub(crate) deadline: Instant,
    pub(crate) future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// State of the driven call. At most one exists, since at most one settlement is in flight.
#[derive(Default)]
pub(crate) struct DrivenCall {
    /// Identifies the current driver.
    id: u64,
    drive: Option<DriveState>,
    /// Set when the runtime has ended: no timer is left to hand a call over in time.
    disabled: bool,
}

struct DriveState {
    hand_over_at: Instant,
    /// The call was reclaimed while its driver polled it.
    reclaimed: bool,
    /// `None` while the driver polls it.
    call: Option<InFlightCall>,
}

impl DrivenCall {
    /// Registers a call that its driver is about to poll. Returns `None` if it can't be driven.
    pub(crate) fn begin(&mut self, hand_over_at: Instant) -> Option<u64> {
        if self.disabled || self.drive.is_some() {
            return None;
        }
        self.id += 1;
        self.drive = Some(DriveState { hand_over_at, reclaimed: false, call: None });
        Some(self.id)
    }

    /// Returns when the call moves to its own task at the latest.
    pub(crate) fn hand_over_at(&self) -> Option<Instant> {
        self.drive.as_ref().filter(|drive| !drive.reclaimed).map(|drive| drive.hand_over_at)
    }

    /// Takes the call from its driver, to continue in a task. If the driver polls it now, requests
    /// the hand-over.
    pub(crate) fn reclaim(&mut self) -> Option<InFlightCall> {
        let drive = self.drive.as_mut()?;
        drive.reclaimed = true;
        drive.call.take().inspect(|_| self.drive = None)
    }

    /// Ends driving for good, and reclaims the call.
    pub(crate) fn disable(&mut self) -> Option<InFlightCall> {
        self.disabled = true;
        self.reclaim()
    }

    pub(crate) fn take_for_poll(&mut self, id: u64) -> Option<InFlightCall> {
        self.drive.as_mut().filter(|_| self.id == id)?.call.take()
    }

    /// Stores the call after a poll. Returns it if the driver must hand it over.
    pub(crate) fn return_after_poll(&mut self, call: InFlightCall) -> Option<InFlightCall> {
        match &mut self.drive {
            Some(drive) if !drive.reclaimed => {
                drive.call = Some(call);
                None
            }
            Some(_) | None => {
                self.drive = None;
                Some(call)
            }
        }
    }

    /// Removes the call of a driver that is dropped or has finished.
    pub(crate) fn end(&mut self, id: u64) -> Option<InFlightCall> {
        self.drive.take_if(|_| self.id == id)?.call
    }
}
