//! Effects of ledger calls; the driver performs them after it has released the lock.

use std::time::Duration;

use super::ledger_entry::LedgerEntry;
use super::retirements::Retirement;
use crate::status::DiscardReason;

/// A waiter, the index of its view, and the connection that is already lent to it.
pub(crate) type HandOver<C, W> = (W, usize, LedgerEntry<C>);

/// Effects that the driver performs after it has released the lock.
#[derive(Debug)]
pub(crate) struct LedgerEffects<C, W> {
    pub(crate) hand_over: Vec<HandOver<C, W>>,
    pub(crate) reset: Vec<LedgerEntry<C>>,
    pub(crate) retire: Vec<RetiredConnection<C>>,
    /// Waiters whose deadline has passed.
    pub(crate) expired: Vec<W>,
    /// Waiters that fail because the reservoir closes.
    pub(crate) closed: Vec<W>,
    /// Whether to wake the refiller.
    pub(crate) wake: bool,
}

/// A connection to close.
#[derive(Debug)]
pub(crate) struct RetiredConnection<C> {
    pub(crate) entry: LedgerEntry<C>,
    pub(crate) reason: DiscardReason,
    pub(crate) age: Duration,
    /// Passed to `ConnectionLedger::retirement_finished` when the server has closed it.
    pub(crate) retirement: Retirement,
}

impl<C, W> Default for LedgerEffects<C, W> {
    fn default() -> Self {
        LedgerEffects {
            hand_over: Vec::new(),
            reset: Vec::new(),
            retire: Vec::new(),
            expired: Vec::new(),
            closed: Vec::new(),
            wake: false,
        }
    }
}

impl<C, W> LedgerEffects<C, W> {
    pub(super) fn is_empty(&self) -> bool {
        self.hand_over.is_empty() && !self.has_other_effects()
    }

    /// Returns whether there is anything to do besides hand-overs.
    pub(super) fn has_other_effects(&self) -> bool {
        self.wake
            || !self.reset.is_empty()
            || !self.retire.is_empty()
            || !self.expired.is_empty()
            || !self.closed.is_empty()
    }
}
