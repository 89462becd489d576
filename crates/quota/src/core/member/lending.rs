//! Taking and releasing units: what a member decides locally, and when it calls the store.

use std::collections::VecDeque;
use std::time::Instant;

use super::{AccountId, QuotaMember, TakeDecision};
use crate::config::OutagePolicy;
use crate::core::account::{MemberAccount, TakeWaiter};
use crate::core::grant::{ceiling, equal_part};
use crate::error::QuotaRefusal;

impl<W: TakeWaiter> QuotaMember<W> {
    /// Grants a unit, refuses it, or queues the caller until the store replies.
    pub(crate) fn take(
        &mut self,
        account_id: &AccountId,
        now: Instant,
        waiter: impl FnOnce() -> W,
    ) -> TakeDecision {
        match self.decide(account_id, now) {
            Some(Ok(())) => TakeDecision::Granted,
            Some(Err(refusal)) => {
                self.counters.refused += 1;
                TakeDecision::Refused(refusal)
            }
            None if self.waiting >= self.rules.max_waiting => {
                self.remove_if_unused(account_id);
                self.counters.refused += 1;
                TakeDecision::Refused(QuotaRefusal::Busy { waiting: self.waiting })
            }
            None => {
                self.waiting += 1;
                self.account_or_default(account_id).waiters.push_back(waiter());
                self.enqueue(account_id);
                TakeDecision::Waiting
            }
        }
    }

    /// Grants a unit if no call to the store is needed.
    pub(crate) fn try_take(&mut self, account_id: &AccountId, now: Instant) -> Result<(), QuotaRefusal> {
        self.decide(account_id, now).unwrap_or_else(|| {
            let used = self.account_or_default(account_id).used;
            Err(QuotaRefusal::Full { used, limit: self.terms(account_id).limit })
        })
    }

    /// Decides without the store. Returns `None` if only the store can decide.
    pub(super) fn decide(
        &mut self,
        account_id: &AccountId,
        now: Instant,
    ) -> Option<Result<(), QuotaRefusal>> {
        let (terms, within_deadline, rebuild_left) =
            (self.terms(account_id), now < self.slice_deadline, self.rebuild_left(now));
        let ceiling = ceiling(terms.allocation, terms.limit, rebuild_left.map(|_| self.rebuild_parts()));
        if self.has_left {
            return Some(Err(QuotaRefusal::member_has_left()));
        }
        if self.outage.is_some()
            && (!within_deadline
                || self.find_account_mut(account_id).is_none_or(|account| account.idle() == 0))
        {
            return Some(self.take_by_policy(account_id, now));
        }
        let account = self.account_or_default(account_id);
        if within_deadline && account.idle() > 0 && account.used < terms.limit {
            account.used += 1;
            return Some(Ok(()));
        }
        let refusal = if account.used >= terms.limit {
            QuotaRefusal::Full { used: account.used, limit: terms.limit }
        } else if let Some(left) = rebuild_left.filter(|_| account.used >= ceiling) {
            QuotaRefusal::Rebuilding { left }
        } else {
            QuotaRefusal::Full { used: account.cached_refusal(now)?, limit: terms.limit }
        };
        self.remove_if_unused(account_id);
        Some(Err(refusal))
    }

    /// Decides by the outage policy, beyond the slice.
    pub(super) fn take_by_policy(
        &mut self,
        account_id: &AccountId,
        now: Instant,
    ) -> Result<(), QuotaRefusal> {
        let (terms, policy, members) = (self.terms(account_id), self.rules.policy, self.sharing_members());
        let why = self.outage.clone().unwrap_or_default();
        let in_slices = terms.allocation.in_blocks() && now < self.slice_deadline;
        let used = self.find_account_mut(account_id).map_or(0, |account| account.used);
        let allowed = match policy {
            _ if in_slices => 0,
            OutagePolicy::Closed => 0,
            OutagePolicy::Open => u32::MAX,
            OutagePolicy::Share if terms.allocation.in_blocks() => equal_part(terms.limit, members),
            OutagePolicy::Share => terms.limit,
        };
        if used < allowed {
            self.counters.granted_by_policy += 1;
            // Reported to the store when it is available again.
            self.account_or_default(account_id).used += 1;
            Ok(())
        } else if allowed == 0 {
            Err(QuotaRefusal::Unavailable { why })
        } else {
            Err(QuotaRefusal::Full { used, limit: allowed })
        }
    }

    /// Takes a unit back. Called once for each unit that was taken.
    pub(crate) fn release(&mut self, account_id: &AccountId, now: Instant) {
        let (terms, within_deadline) = (self.terms(account_id), now < self.slice_deadline);
        let account = self.account_or_default(account_id);
        debug_assert!(account.used > 0, "a unit was released that was never lent");
        account.used = account.used.saturating_sub(1);
        account.clear_cached_refusal();
        if within_deadline {
            self.serve_waiters(account_id);
        }
        if self.account_or_default(account_id).needs_request(terms) {
            self.enqueue(account_id);
        }
        self.remove_if_unused(account_id);
    }

    /// Changes a limit. Lent units stay lent.
    pub(crate) fn set_budget_limit(&mut self, index: usize, limit: u32) {
        let (account_id, entry) = (AccountId::Budget(index), &mut self.budgets[index]);
        let lowered = limit < entry.limit;
        entry.limit = limit;
        entry.account.clear_cached_refusal();
        // Idle units are returned at once, so that the new limit holds soon.
        entry.account.pressure |= lowered;
        let terms = self.terms(&account_id);
        if self.account_or_default(&account_id).needs_request(terms) {
            self.enqueue(&account_id);
        }
    }

    pub(crate) fn set_keyed_limit(&mut self, index: usize, limit: u32) {
        self.keyed[index].limit = limit;
    }

    pub(super) fn serve_waiters(&mut self, account_id: &AccountId) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let account = self.account_or_default(account_id);
        let before = account.waiters.len();
        account.waiters.retain(|waiter| !waiter.is_cancelled());
        while account.idle() > 0
            && let Some(waiter) = account.waiters.pop_front()
        {
            account.used += 1;
            verdicts.push((waiter, Ok(account_id.clone())));
        }
        let left = account.waiters.len();
        self.waiting -= before - left;
        self.verdicts = verdicts;
    }

    pub(super) fn remove_if_unused(&mut self, account_id: &AccountId) {
        if let AccountId::Key(entry, key) = account_id
            && self.find_account(account_id).is_some_and(MemberAccount::is_unused)
        {
            self.keyed[*entry].accounts.remove(key);
        }
    }

    /// Ends the member: no more calls, no more grants.
    pub(crate) fn leave(&mut self) {
        self.has_left = true;
        for account_id in self.accounts_with_waiters() {
            for waiter in self.drain_waiters(&account_id) {
                self.verdicts.push((waiter, Err(QuotaRefusal::member_has_left())));
            }
        }
    }

    /// Removes all waiting callers of an account. The caller of this function must send each a
    /// verdict.
    pub(super) fn drain_waiters(&mut self, account_id: &AccountId) -> VecDeque<W> {
        let waiters = std::mem::take(&mut self.account_or_default(account_id).waiters);
        self.waiting -= waiters.len();
        waiters
    }
}
