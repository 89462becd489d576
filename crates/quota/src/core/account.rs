//! `MemberAccount`: one account as its member sees it: its slice, the units lent from it, and the
//! waiting callers.
//!
//! Invariant: `slice` never exceeds the share that the store has recorded for this member, while
//! the store keeps its writes.
//! Enforced by: the slice shrinks before the request is sent and grows only with the reply. A
//! request's floor is never below the slice, so the store records at least that much even if the
//! reply is lost.
//! Every unit of `used` is one lease; only `QuotaMember::release` takes it back. Units used beyond
//! the slice are debt: they were lent without the store, or before it expired this member. The
//! floor reports debt, and returned debt isn't lent again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::{Allocation, ShareReply, ShareRequest};

/// A caller that waits for a verdict.
pub(crate) trait TakeWaiter {
    /// Returns whether the caller has stopped waiting.
    fn is_cancelled(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct MemberAccount<W> {
    pub(crate) slice: u32,
    pub(crate) used: u32,
    /// Units that the other members had lent at the last reply.
    pub(crate) others_used: u32,
    /// Sum of all members' slices at the last reply.
    total: u32,
    pub(crate) pressure: bool,
    pub(crate) waiters: VecDeque<W>,
    /// The request in flight.
    pending: Option<PendingRequest>,
    /// Whether the account is in the queue for the next settlement.
    pub(crate) queued: bool,
    /// Whether the share must be pushed, because the store has no record of it for this
    /// incarnation.
    pub(crate) needs_push: bool,
    /// Whether a request was lost: the store may have recorded more than the slice.
    unacknowledged: bool,
    /// Whether to send a request only to refresh the totals, or the store's expiry.
    pub(crate) needs_refresh: bool,
    /// The store's last refusal: when it expires, and the units used.
    cached_refusal: Option<(Instant, u32)>,
    /// When to retry because other members were notified to return their idle units.
    /// `retries` counts the attempts.
    pub(crate) retry_at: Option<Instant>,
    retries: u32,
}

#[derive(Debug, Clone, Copy)]
struct PendingRequest {
    floor: u32,
    want: u32,
    used: u32,
}

impl<W> Default for MemberAccount<W> {
    fn default() -> Self {
        MemberAccount {
            slice: 0,
            used: 0,
            others_used: 0,
            total: 0,
            pressure: false,
            waiters: VecDeque::new(),
            pending: None,
            queued: false,
            needs_push: false,
            unacknowledged: false,
            needs_refresh: false,
            cached_refusal: None,
            retry_at: None,
            retries: 0,
        }
    }
}

/// An account's limit and allocation, and the number of members.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountTerms {
    pub(crate) limit: u32,
    pub(crate) allocation: Allocation,
    pub(crate) members: u32,
}

/// Delays between retries for other members' idle units. Members return them within a round trip
/// after they were notified.
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_millis(3),
    Duration::from_millis(7),
    Duration::from_millis(15),
    Duration::from_millis(25),
];

impl<W: TakeWaiter> MemberAccount<W> {
    pub(crate) fn idle(&self) -> u32 {
        self.slice.saturating_sub(self.used)
    }

    /// Returns whether the account holds nothing and nothing is in flight, so that it can be
    /// removed.
    pub(crate) fn is_unused(&self) -> bool {
        self.used == 0
            && self.slice == 0
            && self.waiters.is_empty()
            && self.pending.is_none()
            && !(self.queued || self.unacknowledged || self.needs_push)
    }

    pub(crate) fn has_pending_request(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether there is something to report to the store or to request from it.
    pub(crate) fn needs_request(&self, terms: AccountTerms) -> bool {
        (!self.waiters.is_empty() && self.retry_at.is_none())
            || self.used > self.slice
            || self.unacknowledged
            || self.needs_push
            || self.needs_refresh
            || (self.must_return_idle(terms) && self.idle() > 0)
    }

    /// Returns whether all idle units must be returned.
    /// Above the limit, idle units could be lent on top of what other members hold. That happens
    /// with debt, and after the limit was lowered.
    fn must_return_idle(&self, terms: AccountTerms) -> bool {
        !terms.allocation.in_blocks() || self.pressure || self.slice.max(self.total) > terms.limit
    }

    /// Returns the units used at the store's last refusal, if it hasn't expired.
    pub(crate) fn cached_refusal(&self, now: Instant) -> Option<u32> {
        self.cached_refusal.filter(|(until, _)| now < *until).map(|(_, used)| used)
    }

    /// Clears the cached refusal, because a unit was returned or the limit has changed.
    pub(crate) fn clear_cached_refusal(&mut self) {
        self.cached_refusal = None;
    }

    /// Builds the next request. Until the reply, the member lends no more than its current slice.
    pub(crate) fn build_request(&mut self, name: Arc<str>, terms: AccountTerms) -> ShareRequest {
        if !self.needs_push {
            self.slice = self.slice.min(self.used + self.idle_to_keep(terms));
        }
        let floor = self.slice.max(self.used);
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        let needed = self.used.saturating_add(waiting).min(terms.limit);
        let want = if self.needs_push { floor } else { floor.max(needed) };
        self.pending = Some(PendingRequest { floor, want, used: self.used });
        ShareRequest {
            account: name,
            limit: terms.limit,
            floor,
            want,
            used: self.used,
            allocation: terms.allocation,
        }
    }

    /// Returns how many idle units to keep: about one block, so that unused units don't stay in one
    /// member for long.
    fn idle_to_keep(&self, terms: AccountTerms) -> u32 {
        let idle = self.idle();
        if self.must_return_idle(terms) {
            return 0;
        }
        let block = (terms.limit.saturating_sub(self.total) / (2 * terms.members.max(1))).max(1);
        if idle > block.saturating_mul(2) { block } else { idle }
    }

    /// Makes the next request return all idle units, because a member was refused.
    pub(crate) fn raise_pressure(&mut self) {
        self.pressure = true;
    }

    /// Applies the store's reply. Returns whether less than the request was granted.
    pub(crate) fn apply_reply(&mut self, reply: ShareReply) -> bool {
        let Some(PendingRequest { floor, want, used }) = self.pending.take() else { return false };
        // Debt that was returned meanwhile. The store still counts it, perhaps above the limit; the
        // next request corrects that.
        let repaid = floor.saturating_sub(self.slice.max(self.used));
        (self.unacknowledged, self.needs_push, self.needs_refresh) = (repaid > 0, false, false);
        self.retry_at = None;
        self.slice = reply.count.saturating_sub(repaid);
        self.others_used = reply.used.saturating_sub(used);
        self.total = reply.total;
        self.pressure = reply.pressure;
        let short = reply.count < want;
        if !short {
            self.retries = 0;
        }
        short
    }

    /// Returns whether to retry after a partial grant, because some granted units are not lent.
    /// Sets the time of the retry.
    pub(crate) fn wait_for_idle_units(&mut self, reply: ShareReply, limit: u32, now: Instant) -> bool {
        let waits =
            reply.used < limit && self.retries < RETRY_DELAYS.len() as u32 && !self.waiters.is_empty();
        if waits {
            self.retry_at = Some(now + RETRY_DELAYS[self.retries as usize]);
            self.retries += 1;
        } else {
            self.retries = 0;
        }
        waits
    }

    /// Refuses further requests until `until` without a call to the store.
    pub(crate) fn cache_refusal(&mut self, until: Instant, used: u32) {
        self.cached_refusal = Some((until, used));
    }

    /// Marks the request in flight as lost: its effect is unknown.
    pub(crate) fn mark_unacknowledged(&mut self) {
        self.unacknowledged = self.pending.take().is_some() || self.unacknowledged;
    }

    /// Discards all requests of the previous incarnation. Marks the account to be pushed if the
    /// member holds units of it.
    pub(crate) fn reset_for_rejoin(&mut self, slices_hold: bool) {
        (self.pending, self.unacknowledged, self.queued, self.needs_refresh) = (None, false, false, false);
        (self.retry_at, self.retries) = (None, 0);
        if !slices_hold {
            self.slice = 0;
        }
        self.needs_push = self.slice.max(self.used) > 0;
    }
}
