//! Dialing: the place of a connection that is being opened, from the refiller's plan to the dial's end.
//!
//! Invariant: however a dial ends, its place goes on to the connection, to a [`Retiring`] while the server may have a backend
//! for it, or back to the books; its lease goes along.
//! Kept by: [`Dialing`] tells the books when it is dropped.
//! Not here: the steps of a dial; see `keeper.rs`.

use std::sync::Arc;
use std::time::Instant;

use forebay_quota::Lease;
use tracing::warn;

use crate::connect::{ConnectError, ConnectErrorKind, Connection, DialSlot, SlotHolders};
use crate::error::Shortage;
use crate::retiring::Retiring;
use crate::shared::{Books, Owned, Shared, now};

/// A dial that counts.
pub(crate) struct Dialing<C: Connection> {
    shared: Arc<Shared<C>>,
    waits_for_rate: bool,
    lease: Option<Lease>,
    /// Of the slot that the connector has; `None` before it has one.
    holders: Option<SlotHolders>,
    is_open: bool,
}

impl<C: Connection> Dialing<C> {
    /// For one of the dials that a plan has begun.
    pub(crate) fn new(shared: Arc<Shared<C>>) -> Self {
        Dialing { shared, waits_for_rate: false, lease: None, holders: None, is_open: true }
    }

    /// Whether it waits for a token of the rate, for those who ask why there is no connection.
    pub(crate) fn waits_for_rate(&mut self, waits: bool) {
        if waits != self.waits_for_rate {
            let mut books = self.shared.locked();
            if waits {
                books.waiting_for_rate += 1;
            } else {
                books.waiting_for_rate -= 1;
            }
            self.waits_for_rate = waits;
        }
    }

    pub(crate) fn keep(&mut self, lease: Lease) {
        self.lease = Some(lease);
        self.shared.locked().trouble.take_if(|trouble| matches!(trouble, Shortage::LeaseDenied { .. }));
    }

    /// The place as the connector sees it.
    pub(crate) fn slot(&mut self) -> DialSlot {
        let (slot, holders) = DialSlot::new();
        self.holders = Some(holders);
        slot
    }

    pub(crate) fn succeeded(mut self, connection: C) {
        self.shared.meters.refills.increment(1);
        let given_up = self.take_holders();
        let owned = Owned { connection, lease: self.lease.take(), given_up };
        self.end(|books, now| {
            // That others got no lease is still so.
            books.trouble.take_if(|trouble| !matches!(trouble, Shortage::LeaseDenied { .. }));
            books.ledger.born(owned, now);
        });
    }

    pub(crate) fn failed(mut self, error: &ConnectError) {
        let (kind, why) = (error.kind(), error.to_string());
        self.shared.meters.refill_failure(kind.as_str());
        self.end(|books, now| {
            books.trouble = Some(match kind {
                ConnectErrorKind::Credentials => Shortage::Credentials { why },
                kind => Shortage::Connect { kind, why },
            });
            books.ledger.dial_failed(kind, now);
        });
    }

    /// The quota said no; it is asked again at `again_at`.
    pub(crate) fn denied(mut self, why: Shortage, again_at: Instant) {
        self.shared.meters.refill_failure(why.as_str());
        self.end(|books, _| {
            books.trouble = Some(why);
            books.ledger.dial_given_up(Some(again_at));
        });
    }

    /// `None`: the server has closed all that the dial gave up.
    fn take_holders(&mut self) -> Option<SlotHolders> {
        self.holders.take().filter(|holders| !holders.are_gone())
    }

    fn end(&mut self, tell: impl FnOnce(&mut Books<C>, Instant)) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        self.waits_for_rate(false);
        let (now, holders) = (now(), self.take_holders());
        let mut books = self.shared.locked();
        let lingering = holders.map(|holders| (books.ledger.dial_lingers(now), holders));
        tell(&mut books, now);
        let lingering = lingering.map(|(retirement, holders)| {
            (Retiring::new(self.shared.clone(), retirement, self.lease.take()), holders)
        });
        self.shared.open(books);
        if let Some((retiring, holders)) = lingering {
            retiring.start_holding(holders);
        }
    }
}

impl<C: Connection> Drop for Dialing<C> {
    fn drop(&mut self) {
        let is_open = self.is_open && !self.shared.look(|ledger| ledger.is_closing());
        if is_open {
            self.shared.meters.refill_failure("dropped");
            warn!(
                service = self.shared.config.service,
                "a dial ended without an answer: has its connector panicked?"
            );
        }
        self.end(|books, now| {
            let why = "a dial ended without an answer: has its connector panicked?".into();
            books.trouble = Some(Shortage::Connect { kind: ConnectErrorKind::Other, why });
            books.ledger.dial_failed(ConnectErrorKind::Other, now);
        });
    }
}
