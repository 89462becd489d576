//! Reservoir ledger: the state of every connection slot, the waiting callers, and the refill plan.
//!
//! Invariant: `ready + lent + dialing + resetting + retiring <= max` after every method.
//! Invariant: a connection is in one state at a time.
//! Invariant: a connection that is closed, or within the guard window of its expiry, is not lent.
//! Invariant: no caller waits while a connection is ready and the caller's view is below its quota.
//! Enforced by: a connection is a [`LedgerEntry`], which is moved and never cloned. Methods only
//! record [`LedgerEffects`]; the driver performs them after it has released the lock.
//! Out of scope: dials (`refill.rs`), resets (`reset_task.rs`), waiting for the server to close
//! (`retiring_slot.rs`), the order of waiting callers (`checkout_queue.rs`).
//!
//! A connection is `retiring` until the server has closed its end of the socket, or the close
//! timeout has passed. So is an abandoned dial for which the server may still have a backend.

use std::collections::VecDeque;
use std::panic::Location;
use std::time::{Duration, Instant};

use super::checkout_queue::{CheckoutQueue, CheckoutWaiter, WaitTicket};
use super::connection_counts::ConnectionCounts;
use super::connection_table::{CheckoutRecord, ConnectionRecord, ConnectionTable, Leak};
use super::ledger_effects::{HandOver, LedgerEffects, RetiredConnection};
use super::ledger_entry::{LedgerEntry, Liveness, ResetOutcome, ReturnState};
use super::ledger_rules::{DialBackoff, LedgerRules, Lifetime};
use super::retirements::{LingeringConnections, Retirement, Retirements};
use crate::connect::ConnectionErrorKind;
use crate::status::{ConnectionAge, DiscardReason};

/// Minimum time between two rounds that each retire half of the ready connections.
const RETIRE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time between two refill plans; the gauges are updated at least this often.
const MAX_WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// Result of a checkout.
#[derive(Debug)]
pub(crate) enum CheckoutOutcome<C> {
    Lent(LedgerEntry<C>),
    /// No connection is ready, or the view has reached its quota.
    None,
    Closed,
}

/// Work for the refiller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RefillPlan {
    /// Dials to begin; they are already counted.
    pub(crate) dials: u32,
    /// When to plan again if no event wakes the refiller earlier.
    pub(crate) wake_at: Instant,
}

/// State of all connection slots and waiting callers.
#[derive(Debug)]
pub(crate) struct ConnectionLedger<C, W> {
    rules: LedgerRules,
    ready: VecDeque<LedgerEntry<C>>,
    table: ConnectionTable,
    /// Only `lent`, `dialing` and `resetting` are used; `counts()` computes the others.
    counts: ConnectionCounts,
    retirements: Retirements,
    pub(crate) queue: CheckoutQueue<W>,
    closing: bool,
    effects: LedgerEffects<C, W>,
    /// Source of jitter. Tests give it a seed.
    rng: fastrand::Rng,
    /// Consecutive failed dials; dials that fail together count once.
    failures: u32,
    /// No dial begins before this time, after a failed dial.
    dial_retry_at: Option<Instant>,
    /// No dial begins before this time, after the quota refused a dial.
    quota_retry_at: Option<Instant>,
    /// No expired connection is retired before this time, after half of all were.
    next_retire_at: Option<Instant>,
    /// When the refiller plans next.
    wake_at: Instant,
}

impl<C: Liveness, W: CheckoutWaiter> ConnectionLedger<C, W> {
    pub(crate) fn new(rules: LedgerRules, rng: fastrand::Rng, now: Instant) -> Self {
        ConnectionLedger {
            rules,
            ready: VecDeque::with_capacity(rules.max as usize),
            table: ConnectionTable::default(),
            counts: ConnectionCounts::default(),
            retirements: Retirements::default(),
            queue: CheckoutQueue::new(),
            closing: false,
            effects: LedgerEffects::default(),
            rng,
            failures: 0,
            dial_retry_at: None,
            quota_retry_at: None,
            next_retire_at: None,
            wake_at: now,
        }
    }

    pub(crate) fn counts(&self) -> ConnectionCounts {
        ConnectionCounts { ready: self.ready.len() as u32, retiring: self.retirements.count(), ..self.counts }
    }

    /// Returns the retired connections that the server has not closed within a second.
    pub(crate) fn lingering(&self, now: Instant) -> LingeringConnections {
        self.retirements.lingering(now)
    }

    /// Returns whether no dial can begin until the server closes a lingering connection.
    pub(crate) fn is_blocked_by_lingering(&self, now: Instant) -> bool {
        self.counts().total() >= self.rules.max && self.lingering(now).count > 0
    }

    /// Returns the ages of ready, lent and resetting connections: oldest first, at most `limit`.
    pub(crate) fn ages(&self, now: Instant, limit: usize) -> Vec<ConnectionAge> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let age = |record: &ConnectionRecord| {
            let ends_at = record.expires_at.checked_sub(self.rules.guard_window).unwrap_or(record.expires_at);
            ConnectionAge {
                age_ms: millis(now.saturating_duration_since(record.opened_at)),
                ends_in_ms: millis(ends_at.saturating_duration_since(now)),
                lent: record.checkout.is_some(),
            }
        };
        let mut ages: Vec<_> = self.table.iter().map(age).collect();
        ages.sort_unstable_by_key(|age| std::cmp::Reverse(age.age_ms));
        ages.truncate(limit);
        ages
    }

    pub(crate) fn rules(&self) -> &LedgerRules {
        &self.rules
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether the reservoir is closed and no connection is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.closing && self.counts().total() == 0
    }

    /// Returns when dials resume; `None` if no back-off is in effect.
    pub(crate) fn next_dial_at(&self) -> Option<Instant> {
        self.dial_retry_at.max(self.quota_retry_at)
    }

    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Returns the hand-over if it is the only effect.
    ///
    /// This is the common case under load, and it costs no allocation.
    pub(crate) fn take_one_hand_over(&mut self) -> Option<HandOver<C, W>> {
        if self.effects.hand_over.len() > 1 || self.effects.has_other_effects() {
            return None;
        }
        self.effects.hand_over.pop()
    }

    pub(crate) fn take_effects(&mut self) -> LedgerEffects<C, W> {
        std::mem::take(&mut self.effects)
    }

    /// Lends the connection that has been ready longest; retires unusable ones on the way.
    pub(crate) fn checkout(
        &mut self,
        view: usize,
        now: Instant,
        location: Option<&'static Location<'static>>,
    ) -> CheckoutOutcome<C> {
        if self.closing {
            return CheckoutOutcome::Closed;
        }
        if !self.queue.has_room(view) {
            return CheckoutOutcome::None;
        }
        while let Some(entry) = self.ready.pop_front() {
            if let Some(reason) = self.discard_reason(&entry, now) {
                self.retire(entry, reason, now);
                continue;
            }
            self.lend(view, &entry, now, location);
            return CheckoutOutcome::Lent(entry);
        }
        CheckoutOutcome::None
    }

    /// Returns whether fewer than `max_waiting` callers wait.
    pub(crate) fn can_wait(&self) -> bool {
        self.queue.waiting() < self.rules.max_waiting
    }

    /// Appends a caller to the queue of its view.
    pub(crate) fn wait(&mut self, view: usize, waiter: W) -> WaitTicket {
        // The refiller's timer covers all deadlines: a timer per caller costs more than a checkout.
        self.effects.wake |= waiter.deadline() < self.wake_at;
        self.queue.join(view, waiter)
    }

    /// Takes back a connection from a caller.
    pub(crate) fn check_in(&mut self, view: usize, entry: LedgerEntry<C>, state: ReturnState, now: Instant) {
        self.counts.lent -= 1;
        self.queue.remove_lent(view);
        self.table.get(entry.record()).checkout = None;
        let reason = match state {
            ReturnState::Bad => Some(DiscardReason::Bad),
            ReturnState::HookFailed => Some(DiscardReason::HookFailed),
            ReturnState::Used | ReturnState::Clean => self.discard_reason(&entry, now),
        };
        match reason {
            Some(reason) => self.retire(entry, reason, now),
            None if self.closing => self.retire(entry, DiscardReason::Closing, now),
            None if self.should_be_replaced(&entry, now) => self.retire(entry, DiscardReason::Replaced, now),
            None if self.rules.resets && state != ReturnState::Clean => {
                self.counts.resetting += 1;
                self.effects.reset.push(entry);
            }
            None => self.make_ready(entry, now),
        }
        // The view is below its quota again: another ready connection may go to its first waiter.
        self.serve_waiters(now);
    }

    /// Takes back a connection whose reset has ended.
    pub(crate) fn reset_finished(&mut self, entry: LedgerEntry<C>, outcome: ResetOutcome, now: Instant) {
        self.counts.resetting -= 1;
        let reason = match outcome {
            ResetOutcome::Clean => self.discard_reason(&entry, now),
            ResetOutcome::Failed => Some(DiscardReason::ResetFailed),
        };
        match reason {
            Some(reason) => self.retire(entry, reason, now),
            None if self.closing => self.retire(entry, DiscardReason::Closing, now),
            None => self.make_ready(entry, now),
        }
    }

    /// Frees the slot of a retired connection: the server has closed it, or the timeout has passed.
    pub(crate) fn retirement_finished(&mut self, retirement: Retirement) {
        self.retirements.end(retirement);
        self.effects.wake = true;
    }

    /// Counts a dial.
    ///
    /// It ends with [`dial_succeeded`](Self::dial_succeeded), [`dial_failed`](Self::dial_failed) or
    /// [`dial_abandoned`](Self::dial_abandoned).
    fn begin_dial(&mut self) {
        self.counts.dialing += 1;
    }

    /// Adds the connection that a dial has opened.
    pub(crate) fn dial_succeeded(&mut self, content: C, now: Instant) {
        self.counts.dialing -= 1;
        // A dial that succeeds during a back-off began before another one failed, because no dial
        // begins during a back-off. The back-off stays in effect.
        if self.dial_retry_at.is_none_or(|at| at <= now) {
            (self.failures, self.dial_retry_at) = (0, None);
        }
        let Lifetime { base, jitter, downward } = self.rules.lifetime;
        let jitter = jitter.mul_f64(self.rng.f64());
        let lifetime = if downward { base.saturating_sub(jitter) } else { base + jitter };
        let expires_at = now + lifetime;
        let record = self.table.add(ConnectionRecord { opened_at: now, expires_at, checkout: None });
        let entry = LedgerEntry::new(content, record, expires_at);
        self.effects.wake = true;
        if self.closing {
            return self.retire(entry, DiscardReason::Closing, now);
        }
        self.make_ready(entry, now);
        self.retire_replaced(now);
    }

    /// Records a failed dial and delays the next ones; each failure doubles the delay.
    pub(crate) fn dial_failed(&mut self, kind: ConnectionErrorKind, now: Instant) {
        self.counts.dialing -= 1;
        self.effects.wake = true;
        // Concurrent dials that fail together count as one failure; the longest delay applies.
        if self.dial_retry_at.is_none_or(|at| at <= now) {
            self.failures = self.failures.saturating_add(1);
        }
        let DialBackoff { initial, max, initial_long, max_long } = self.rules.backoff;
        let (initial, max) =
            if kind.needs_long_backoff() { (initial_long, max_long) } else { (initial, max) };
        let doubled = initial.saturating_mul(1 << (self.failures - 1).min(16)).min(max);
        // Half of the delay is random, so that instances that failed together retry apart.
        let at = now + doubled / 2 + (doubled / 2).mul_f64(self.rng.f64());
        self.dial_retry_at = self.dial_retry_at.max(Some(at));
    }

    /// Keeps the slot of a dial that is about to fail: the server may have a backend for it.
    pub(crate) fn hold_dial_slot(&mut self, now: Instant) -> Retirement {
        // The caller reports the end of the dial next, which takes it out of `dialing`.
        self.retirements.begin(now)
    }

    /// Records a dial that ended before it reached the server: cancelled, or refused by the quota.
    pub(crate) fn dial_abandoned(&mut self, retry_at: Option<Instant>) {
        self.counts.dialing -= 1;
        self.effects.wake = true;
        self.quota_retry_at = self.quota_retry_at.max(retry_at);
    }

    /// Retires expired connections and returns the number of dials to begin.
    pub(crate) fn plan(&mut self, now: Instant) -> RefillPlan {
        if self.closing {
            return RefillPlan { dials: 0, wake_at: now + MAX_WAKE_INTERVAL };
        }
        self.effects.expired = self.queue.take_expired(|waiter| waiter.deadline() <= now);
        self.retire_expired(now);
        for retry_at in [&mut self.dial_retry_at, &mut self.quota_retry_at] {
            retry_at.take_if(|at| *at <= now);
        }
        let expiring = self.table.expiring_by(now + self.rules.guard_window + self.rules.lead);
        let ConnectionCounts { ready, dialing, lent, resetting, retiring } = self.counts();
        // Lingering connections may keep their slots for minutes, so they aren't included.
        let closing_soon = retiring - self.lingering(now).count;
        let staying = (ready + lent + resetting).saturating_sub(expiring);
        let wanted = self.rules.target.saturating_sub(staying + dialing);
        let room = self.rules.max.saturating_sub(self.counts().total());
        // Below the low watermark dials run at full concurrency, above it at a quarter of `wanted`.
        let is_low = ready < self.rules.low_watermark;
        let concurrency =
            if is_low { self.rules.max_dials } else { (wanted / 4).clamp(1, self.rules.max_dials) };
        let dials = match self.next_dial_at() {
            Some(_) => 0,
            None => wanted.min(room).min(concurrency.saturating_sub(dialing)),
        };
        if wanted > 0 && room == 0 && dialing + closing_soon == 0 {
            // No slot is free for a replacement, so the connection that expires soonest is retired.
            self.retire_soonest_expiring(now);
        }
        (0..dials).for_each(|_| self.begin_dial());
        self.wake_at = self.next_wake(now);
        RefillPlan { dials, wake_at: self.wake_at }
    }

    /// Returns when the next expiry, leak, back-off or deadline is due.
    fn next_wake(&self, now: Instant) -> Instant {
        let window = self.rules.guard_window + self.rules.lead;
        let expiries = self.table.iter().flat_map(|record| {
            [record.expires_at.checked_sub(window), record.expires_at.checked_sub(self.rules.guard_window)]
        });
        let leaks = self.table.iter().filter_map(|record| {
            let checkout =
                record.checkout.filter(|checkout| checkout.location.is_some() && !checkout.leak_reported)?;
            checkout.since.checked_add(self.rules.leak_after)
        });
        let deadlines = self.queue.iter().map(CheckoutWaiter::deadline);
        let times = expiries
            .flatten()
            .filter(|at| *at > now)
            .chain(leaks)
            .chain(self.next_dial_at())
            .chain(self.next_retire_at)
            .chain(deadlines);
        times.fold(now + MAX_WAKE_INTERVAL, Instant::min)
    }

    /// Returns connections held for longer than `leak_after`; each is returned once.
    pub(crate) fn leaks(&mut self, now: Instant) -> Vec<Leak> {
        self.table.take_leaks(self.rules.leak_after, now)
    }

    /// Closes the reservoir: retires ready connections now, and lent ones when they are returned.
    pub(crate) fn close(&mut self, now: Instant) {
        if self.closing {
            return;
        }
        self.closing = true;
        self.effects.closed = self.queue.drain();
        self.effects.wake = true;
        while let Some(entry) = self.ready.pop_front() {
            self.retire(entry, DiscardReason::Closing, now);
        }
    }

    fn lend(
        &mut self,
        view: usize,
        entry: &LedgerEntry<C>,
        now: Instant,
        location: Option<&'static Location<'static>>,
    ) {
        self.counts.lent += 1;
        self.queue.add_lent(view);
        let checkout = CheckoutRecord { since: now, location, leak_reported: false };
        self.table.get(entry.record()).checkout = Some(checkout);
    }

    /// Returns whether the connection could be lent again.
    pub(crate) fn is_reusable(&self, entry: &LedgerEntry<C>, now: Instant) -> bool {
        !self.closing && self.discard_reason(entry, now).is_none()
    }

    /// Returns why the connection can't be lent; `None` if it can.
    fn discard_reason(&self, entry: &LedgerEntry<C>, now: Instant) -> Option<DiscardReason> {
        if entry.content().is_closed() {
            Some(DiscardReason::Bad)
        } else {
            entry.expires_within(self.rules.guard_window, now).then_some(DiscardReason::Expired)
        }
    }

    /// Makes the connection ready, or lends it to the first waiter.
    fn make_ready(&mut self, entry: LedgerEntry<C>, now: Instant) {
        self.ready.push_back(entry);
        self.serve_waiters(now);
    }

    /// Lends ready connections to waiters whose view is below its quota.
    fn serve_waiters(&mut self, now: Instant) {
        while !self.ready.is_empty()
            && let Some(view) = self.queue.next_view()
        {
            let Some(entry) = self.pop_reusable(now) else { return };
            let waiter = self.queue.pop(view);
            self.lend(view, &entry, now, waiter.location());
            self.effects.hand_over.push((waiter, view, entry));
        }
    }

    fn pop_reusable(&mut self, now: Instant) -> Option<LedgerEntry<C>> {
        while let Some(entry) = self.ready.pop_front() {
            match self.discard_reason(&entry, now) {
                Some(reason) => self.retire(entry, reason, now),
                None => return Some(entry),
            }
        }
        None
    }

    /// Returns whether a returned connection expires soon and the target is met without it.
    fn should_be_replaced(&self, entry: &LedgerEntry<C>, now: Instant) -> bool {
        let window = self.rules.guard_window + self.rules.lead;
        if !entry.expires_within(window, now) {
            return false;
        }
        // The returned connection is in none of these counts, but it is open: add one.
        let ConnectionCounts { ready, lent, resetting, .. } = self.counts();
        ready + lent + resetting + 1 > self.rules.target
    }

    /// Retires a connection that expires soon if a new one has replaced it.
    fn retire_replaced(&mut self, now: Instant) {
        let ConnectionCounts { ready, lent, resetting, .. } = self.counts();
        if ready + lent + resetting > self.rules.target {
            self.retire_soonest_expiring(now);
        }
    }

    fn retire_soonest_expiring(&mut self, now: Instant) {
        let window = self.rules.guard_window + self.rules.lead;
        let first = self.ready.iter().enumerate().min_by_key(|(_, entry)| entry.expires_at());
        if let Some((at, entry)) = first
            && entry.expires_within(window, now)
            && let Some(entry) = self.ready.remove(at)
        {
            self.retire(entry, DiscardReason::Replaced, now);
        }
    }

    /// Retires ready connections that can't be lent, at most half of the ready ones at once.
    fn retire_expired(&mut self, now: Instant) {
        if self.next_retire_at.is_some_and(|at| now < at) {
            return;
        }
        self.next_retire_at = None;
        let unusable = self.ready.iter().filter(|entry| self.discard_reason(entry, now).is_some()).count();
        let half = self.ready.len().div_ceil(2);
        if unusable > half {
            self.next_retire_at = Some(now + RETIRE_INTERVAL);
        }
        let (mut remaining, mut at) = (half, 0);
        while at < self.ready.len() && remaining > 0 {
            match self.discard_reason(&self.ready[at], now) {
                Some(reason) => {
                    if let Some(entry) = self.ready.remove(at) {
                        self.retire(entry, reason, now);
                    }
                    remaining -= 1;
                }
                None => at += 1,
            }
        }
    }

    fn retire(&mut self, entry: LedgerEntry<C>, reason: DiscardReason, now: Instant) {
        let record = self.table.remove(entry.record());
        self.effects.wake = true;
        let age = now.saturating_duration_since(record.opened_at);
        let retirement = self.retirements.begin(now);
        self.effects.retire.push(RetiredConnection { entry, reason, age, retirement });
    }
}
