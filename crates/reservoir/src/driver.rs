//! Reservoir driver: keeps the ledger under one lock and performs its effects.
//!
//! Invariant: the lock is not held across an await, a hand-over, a reset or a close.
//! Enforced by: [`ReservoirDriver::unlock_and_run`] releases the lock before it performs effects.
//! Invariant: each connection leaves the ledger once, even if its task panics, is cancelled or
//! never runs because the runtime ends.
//! Enforced by: tasks own a [`ResetTask`](crate::reset_task::ResetTask),
//! [`RetiringSlot`](crate::retiring_slot::RetiringSlot) or
//! [`PendingDial`](crate::pending_dial::PendingDial), which report to the ledger on drop.

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_quota::Lease;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tracing::warn;

use crate::config::{EndpointLimits, ReservoirConfig};
use crate::connect::{ReservoirConnection, SlotHolders};
use crate::core::ledger::{CheckoutOutcome, ConnectionLedger, RefillPlan};
use crate::core::ledger_effects::{HandOver, LedgerEffects};
use crate::core::ledger_entry::{LedgerEntry, Liveness, ReturnState};
use crate::core::retirements::LingeringConnections;
use crate::error::{CheckoutError, Shortage};
use crate::guard::ConnectionGuard;
use crate::hooks::ReservoirHooks;
use crate::metrics::ReservoirMetrics;
use crate::pending_checkout::{PendingCheckout, WaitingCaller};
use crate::status::{MAX_LISTED, Status, ViewStatus};

/// State that all handles, views, guards and tasks of a reservoir share.
pub(crate) struct ReservoirDriver<C: ReservoirConnection> {
    /// Usable after a panic in the ledger, which is a bug: connections must still be returned.
    pub(crate) state: Mutex<ReservoirState<C>>,
    pub(crate) config: ReservoirConfig,
    pub(crate) limits: EndpointLimits,
    pub(crate) hooks: ReservoirHooks<C>,
    pub(crate) metrics: ReservoirMetrics,
    pub(crate) runtime: Handle,
    /// Wakes the refiller.
    pub(crate) refiller: Notify,
    /// Notified when a connection was opened or closed, and when a dial failed.
    pub(crate) changed: Notify,
}

/// State behind the driver's lock.
pub(crate) struct ReservoirState<C: ReservoirConnection> {
    pub(crate) ledger: ConnectionLedger<LeasedConnection<C>, WaitingCaller<C>>,
    view_names: Vec<String>,
    /// Number of dials that wait for a token of the rate limit.
    pub(crate) waiting_for_rate: u32,
    /// Why the last dial failed; `None` after a success.
    pub(crate) last_failure: Option<Shortage>,
}

/// A connection and its lease of the connection budget.
pub(crate) struct LeasedConnection<C> {
    pub(crate) connection: C,
    pub(crate) lease: Option<Lease>,
    /// Sockets that the dial abandoned, such as one to an unresponsive host.
    ///
    /// They share the connection's slot, which is freed when they are closed, too.
    pub(crate) abandoned: Option<SlotHolders>,
}

impl<C: ReservoirConnection> Liveness for LeasedConnection<C> {
    fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }
}

/// Result of a checkout that may wait.
pub(crate) enum CheckoutAttempt<C: ReservoirConnection> {
    Lent(ConnectionGuard<C>),
    Wait(PendingCheckout<C>),
}

impl<C: ReservoirConnection> ReservoirDriver<C> {
    pub(crate) fn new(
        config: ReservoirConfig,
        limits: EndpointLimits,
        hooks: ReservoirHooks<C>,
    ) -> Arc<Self> {
        let ledger = ConnectionLedger::new(config.rules(), fastrand::Rng::new(), now());
        let state =
            ReservoirState { ledger, view_names: Vec::new(), waiting_for_rate: 0, last_failure: None };
        Arc::new(ReservoirDriver {
            state: Mutex::new(state),
            metrics: ReservoirMetrics::new(&config.service),
            config,
            limits,
            hooks,
            runtime: Handle::current(),
            refiller: Notify::new(),
            changed: Notify::new(),
        })
    }

    /// Adds a view and returns its index.
    pub(crate) fn add_view(&self, name: &str, quota: u32) -> usize {
        let mut state = self.state.lock();
        state.view_names.push(name.into());
        state.ledger.queue.add_view(quota)
    }

    /// Lends a ready connection; `None` if none is ready or the view has reached its quota.
    pub(crate) fn try_checkout(
        self: &Arc<Self>,
        view: usize,
        location: Option<&'static Location<'static>>,
    ) -> Result<Option<ConnectionGuard<C>>, CheckoutError> {
        if self.hooks.before_lend.is_some() {
            return Err(CheckoutError::HookNeedsWait);
        }
        let now = now();
        let mut state = self.state.lock();
        let outcome = state.ledger.checkout(view, now, location);
        self.unlock_and_run(state);
        match outcome {
            CheckoutOutcome::Lent(entry) => {
                self.metrics.checkouts.increment(1);
                Ok(Some(ConnectionGuard::new(self.clone(), view, entry)))
            }
            CheckoutOutcome::None => {
                self.metrics.empty.increment(1);
                Ok(None)
            }
            CheckoutOutcome::Closed => Err(CheckoutError::Closed),
        }
    }

    /// Lends a ready connection, or queues the caller.
    pub(crate) fn checkout_or_wait(
        self: &Arc<Self>,
        view: usize,
        timeout: Duration,
        location: Option<&'static Location<'static>>,
    ) -> Result<CheckoutAttempt<C>, CheckoutError> {
        let now = now();
        let mut state = self.state.lock();
        match state.ledger.checkout(view, now, location) {
            CheckoutOutcome::Lent(entry) => {
                self.unlock_and_run(state);
                self.metrics.checkouts.increment(1);
                Ok(CheckoutAttempt::Lent(ConnectionGuard::new(self.clone(), view, entry)))
            }
            CheckoutOutcome::Closed => Err(CheckoutError::Closed),
            CheckoutOutcome::None if !state.ledger.can_wait() => {
                let waiting = state.ledger.queue.waiting();
                self.unlock_and_run(state);
                Err(CheckoutError::Busy { waiting })
            }
            CheckoutOutcome::None => {
                let (sender, receiver) = oneshot::channel();
                let deadline = now + timeout.min(MAX_DURATION);
                let ticket = state.ledger.wait(view, WaitingCaller { sender, location, deadline });
                self.unlock_and_run(state);
                self.metrics.empty.increment(1);
                Ok(CheckoutAttempt::Wait(PendingCheckout::new(self.clone(), view, ticket, receiver, now)))
            }
        }
    }

    /// Takes back a connection from a guard that is dropped.
    pub(crate) fn check_in(
        self: &Arc<Self>,
        view: usize,
        entry: LedgerEntry<LeasedConnection<C>>,
        return_state: ReturnState,
    ) {
        let now = now();
        let mut state = self.state.lock();
        state.ledger.check_in(view, entry, return_state, now);
        self.unlock_and_run(state);
    }

    pub(crate) fn is_reusable(&self, entry: &LedgerEntry<LeasedConnection<C>>) -> bool {
        let now = now();
        self.with_ledger(|ledger| ledger.is_reusable(entry, now))
    }

    /// Returns the refiller's next plan; reports leaks and updates the gauges.
    pub(crate) fn plan(self: &Arc<Self>) -> RefillPlan {
        let now = now();
        let mut state = self.state.lock();
        let (plan, leaks) = (state.ledger.plan(now), state.ledger.leaks(now));
        let (counts, waiting) = (state.ledger.counts(), state.ledger.queue.waiting());
        let lingering = state.ledger.lingering(now);
        self.unlock_and_run(state);
        for leak in leaks {
            self.metrics.leaks.increment(1);
            let (service, held_for, checked_out_at) =
                (&self.config.service, leak.held_for, leak.checked_out_at);
            warn!(service, ?held_for, %checked_out_at, "connection held longer than leak_after");
        }
        self.metrics.set_levels(counts, waiting);
        self.metrics.set_lingering(lingering);
        plan
    }

    pub(crate) fn close(self: &Arc<Self>) {
        let now = now();
        let mut state = self.state.lock();
        state.ledger.close(now);
        self.unlock_and_run(state);
    }

    /// Calls `inspect` with the locked ledger.
    pub(crate) fn with_ledger<T>(
        &self,
        inspect: impl FnOnce(&ConnectionLedger<LeasedConnection<C>, WaitingCaller<C>>) -> T,
    ) -> T {
        inspect(&self.state.lock().ledger)
    }

    /// Returns why the reservoir has no free connection.
    pub(crate) fn shortage(&self) -> Shortage {
        let (state, now) = (self.state.lock(), now());
        let (counts, backs_off) = (state.ledger.counts(), state.ledger.next_dial_at().is_some());
        match &state.last_failure {
            _ if state.ledger.is_closing() => Shortage::Closed,
            Some(failure) if backs_off || counts.dialing > 0 => failure.clone(),
            _ if counts.dialing == 0 && state.ledger.is_blocked_by_lingering(now) => {
                let LingeringConnections { count, longest } = state.ledger.lingering(now);
                let (max, lent) = (state.ledger.rules().max, counts.lent + counts.resetting);
                Shortage::Lingering { lingering: count, max, longest: longest.unwrap_or_default(), lent }
            }
            _ if state.waiting_for_rate > 0 => Shortage::RateLimited,
            _ if counts.dialing > 0 || counts.lent + counts.resetting == 0 => Shortage::Dialing,
            _ => Shortage::AllLent { lent: counts.lent + counts.resetting },
        }
    }

    /// Returns the name and quota of a view that has reached its quota.
    pub(crate) fn full_view(&self, view: usize) -> Option<(String, u32)> {
        let state = self.state.lock();
        let queue = &state.ledger.queue;
        (!queue.has_room(view)).then(|| (state.view_names[view].clone(), queue.quota(view)))
    }

    pub(crate) fn status(&self) -> Status {
        let last_failure = {
            let state = self.state.lock();
            state.last_failure.as_ref().map(ToString::to_string)
        };
        let (state, now) = (self.state.lock(), now());
        let ReservoirState { ledger, view_names, .. } = &*state;
        let (rules, next_dial_at) = (ledger.rules(), ledger.next_dial_at());
        let lingering = ledger.lingering(now);
        let views = view_names.iter().enumerate().map(|(view, name)| ViewStatus {
            name: name.clone(),
            quota: ledger.queue.quota(view).min(rules.max),
            lent: ledger.queue.lent(view),
        });
        Status {
            service: self.config.service.clone(),
            counts: ledger.counts(),
            target: rules.target,
            low_watermark: rules.low_watermark,
            max: rules.max,
            lingering: lingering.count,
            longest_lingering: lingering.longest,
            waiting: ledger.queue.waiting(),
            last_failure,
            next_dial_in: next_dial_at.map(|at| at.saturating_duration_since(now)),
            closing: ledger.is_closing(),
            views: views.collect(),
            connections: ledger.ages(now, MAX_LISTED),
        }
    }

    /// Releases the lock, then performs the ledger's effects.
    pub(crate) fn unlock_and_run(self: &Arc<Self>, mut state: MutexGuard<'_, ReservoirState<C>>) {
        if !state.ledger.has_effects() {
            return;
        }
        if let Some(hand_over) = state.ledger.take_one_hand_over() {
            drop(state);
            return self.hand_over(hand_over);
        }
        let LedgerEffects { hand_over, reset, retire, expired, closed, wake } = state.ledger.take_effects();
        drop(state);
        hand_over.into_iter().for_each(|hand_over| self.hand_over(hand_over));
        for entry in reset {
            self.start_reset(entry);
        }
        for retired in retire {
            self.start_retirement(retired);
        }
        expired.into_iter().for_each(|caller| drop(caller.sender.send(None)));
        drop(closed);
        if wake {
            self.refiller.notify_one();
            self.changed.notify_waiters();
        }
    }

    fn hand_over(self: &Arc<Self>, (caller, view, entry): HandOver<LeasedConnection<C>, WaitingCaller<C>>) {
        self.metrics.checkouts.increment(1);
        // If the caller has stopped waiting, the guard is dropped here. The next waiter is served.
        drop(caller.sender.send(Some(ConnectionGuard::new(self.clone(), view, entry))));
    }
}

/// Upper limit of configured durations; short enough to be added to any `Instant`.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Returns the time of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
