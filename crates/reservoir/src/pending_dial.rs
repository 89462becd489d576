//! Pending dial: the slot and lease of a connection that is being opened.
//!
//! Invariant: when a dial ends, its slot and lease go to the connection, to a [`RetiringSlot`]
//! while the server may have a backend for the dial, or back to the ledger and the budget.
//! Enforced by: [`PendingDial`] reports to the ledger on drop.
//! Out of scope: the steps of a dial; see `refill.rs`.

use std::sync::Arc;
use std::time::Instant;

use forebay_quota::Lease;
use tracing::warn;

use crate::connect::{ConnectionError, ConnectionErrorKind, DialSlot, ReservoirConnection, SlotHolders};
use crate::driver::{LeasedConnection, ReservoirDriver, ReservoirState, now};
use crate::error::Shortage;
use crate::retiring_slot::RetiringSlot;

/// A dial that the ledger counts.
pub(crate) struct PendingDial<C: ReservoirConnection> {
    driver: Arc<ReservoirDriver<C>>,
    waiting_for_rate: bool,
    lease: Option<Lease>,
    /// Tracks the clones of the connector's [`DialSlot`]; `None` before it has one.
    holders: Option<SlotHolders>,
    /// Whether the end of the dial is still to be reported.
    is_open: bool,
}

impl<C: ReservoirConnection> PendingDial<C> {
    /// Creates the guard of one dial that `ConnectionLedger::plan` has counted.
    pub(crate) fn new(driver: Arc<ReservoirDriver<C>>) -> Self {
        PendingDial { driver, waiting_for_rate: false, lease: None, holders: None, is_open: true }
    }

    /// Records whether the dial waits for a token of the rate limit, for [`Shortage::RateLimited`].
    pub(crate) fn set_waiting_for_rate(&mut self, waiting: bool) {
        if waiting != self.waiting_for_rate {
            let mut state = self.driver.state.lock();
            if waiting {
                state.waiting_for_rate += 1;
            } else {
                state.waiting_for_rate -= 1;
            }
            self.waiting_for_rate = waiting;
        }
    }

    pub(crate) fn keep_lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
        self.driver
            .state
            .lock()
            .last_failure
            .take_if(|failure| matches!(failure, Shortage::LeaseDenied { .. }));
    }

    /// Returns the slot that is passed to the connector.
    pub(crate) fn slot(&mut self) -> DialSlot {
        let (slot, holders) = DialSlot::new();
        self.holders = Some(holders);
        slot
    }

    pub(crate) fn succeeded(mut self, connection: C) {
        self.driver.metrics.refills.increment(1);
        let abandoned = self.take_holders();
        let leased = LeasedConnection { connection, lease: self.lease.take(), abandoned };
        self.end(|state, now| {
            // Other dials may still be denied a lease, so that reason is kept.
            state.last_failure.take_if(|failure| !matches!(failure, Shortage::LeaseDenied { .. }));
            state.ledger.dial_succeeded(leased, now);
        });
    }

    pub(crate) fn failed(mut self, error: &ConnectionError) {
        let (kind, why) = (error.kind(), error.to_string());
        self.driver.metrics.count_refill_failure(kind.as_str());
        self.end(|state, now| {
            state.last_failure = Some(match kind {
                ConnectionErrorKind::Credentials => Shortage::Credentials { why },
                kind => Shortage::Connect { kind, why },
            });
            state.ledger.dial_failed(kind, now);
        });
    }

    /// Ends a dial that the quota refused; no dial begins before `retry_at`.
    pub(crate) fn denied(mut self, why: Shortage, retry_at: Instant) {
        self.driver.metrics.count_refill_failure(why.as_str());
        self.end(|state, _| {
            state.last_failure = Some(why);
            state.ledger.dial_abandoned(Some(retry_at));
        });
    }

    /// Returns `None` if the server has closed all sockets that the dial abandoned.
    fn take_holders(&mut self) -> Option<SlotHolders> {
        self.holders.take().filter(|holders| !holders.all_dropped())
    }

    fn end(&mut self, report: impl FnOnce(&mut ReservoirState<C>, Instant)) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        self.set_waiting_for_rate(false);
        let (now, holders) = (now(), self.take_holders());
        let mut state = self.driver.state.lock();
        let held = holders.map(|holders| (state.ledger.hold_dial_slot(now), holders));
        report(&mut state, now);
        let held = held.map(|(retirement, holders)| {
            (RetiringSlot::new(self.driver.clone(), retirement, self.lease.take()), holders)
        });
        self.driver.unlock_and_run(state);
        if let Some((retiring, holders)) = held {
            retiring.hold_for_dial(holders);
        }
    }
}

impl<C: ReservoirConnection> Drop for PendingDial<C> {
    fn drop(&mut self) {
        let is_open = self.is_open && !self.driver.with_ledger(|ledger| ledger.is_closing());
        if is_open {
            self.driver.metrics.count_refill_failure("dropped");
            warn!(service = self.driver.config.service, "dial dropped without a result: connector panicked");
        }
        self.end(|state, now| {
            let why = "a dial ended without an answer: has its connector panicked?".into();
            state.last_failure = Some(Shortage::Connect { kind: ConnectionErrorKind::Other, why });
            state.ledger.dial_failed(ConnectionErrorKind::Other, now);
        });
    }
}
