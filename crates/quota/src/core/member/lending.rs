//! Taking and giving: what a member decides by itself, and when it has to ask.

use std::collections::VecDeque;
use std::time::Instant;

use super::{AccountRef, Member, Take};
use crate::config::Policy;
use crate::core::account::{Account, Waiter};
use crate::error::Refusal;

impl<W: Waiter> Member<W> {
    /// Takes a unit, or says no, or waits for the store.
    pub(crate) fn take(&mut self, of: &AccountRef, now: Instant, waiter: impl FnOnce() -> W) -> Take {
        match self.decide(of, now) {
            Some(Ok(())) => Take::Granted,
            Some(Err(refusal)) => {
                self.counters.refused += 1;
                Take::Refused(refusal)
            }
            None if self.waiting >= self.rules.max_waiting => {
                self.forget_if_blank(of);
                self.counters.refused += 1;
                Take::Refused(Refusal::Busy { waiting: self.waiting })
            }
            None => {
                self.waiting += 1;
                self.account(of).waiters.push_back(waiter());
                self.enqueue(of);
                Take::Waiting
            }
        }
    }

    /// Takes a unit if no question is needed for it.
    pub(crate) fn try_take(&mut self, of: &AccountRef, now: Instant) -> Result<(), Refusal> {
        self.decide(of, now).unwrap_or_else(|| {
            let used = self.account(of).used;
            Err(Refusal::Full { used, limit: self.terms(of).limit })
        })
    }

    /// `None`: only the store knows.
    pub(super) fn decide(&mut self, of: &AccountRef, now: Instant) -> Option<Result<(), Refusal>> {
        let (terms, within_deadline, rebuild_left) =
            (self.terms(of), now < self.until, self.rebuild_left(now));
        if self.left {
            return Some(Err(Refusal::Unavailable { why: "this member has left".into() }));
        }
        if self.outage.is_some()
            && (!within_deadline || self.find(of).is_none_or(|account| account.idle() == 0))
        {
            return Some(self.by_policy(of, now));
        }
        let account = self.account(of);
        if within_deadline && account.idle() > 0 && account.used < terms.limit {
            account.used += 1;
            return Some(Ok(()));
        }
        let refusal = if account.used >= terms.limit {
            Refusal::Full { used: account.used, limit: terms.limit }
        } else if let Some(left) = rebuild_left {
            Refusal::Rebuilding { left }
        } else {
            Refusal::Full { used: account.refused(now)?, limit: terms.limit }
        };
        self.forget_if_blank(of);
        Some(Err(refusal))
    }

    /// Without the store and beyond the slice.
    pub(super) fn by_policy(&mut self, of: &AccountRef, now: Instant) -> Result<(), Refusal> {
        let (terms, policy, members) = (self.terms(of), self.rules.policy, self.members.max(1));
        let why = self.outage.clone().unwrap_or_default();
        let in_slices = terms.sharing.in_blocks() && now < self.until;
        let used = self.find(of).map_or(0, |account| account.used);
        let allowed = match policy {
            _ if in_slices => 0,
            Policy::Closed => 0,
            Policy::Open => u32::MAX,
            Policy::Share if terms.sharing.in_blocks() => (terms.limit / members).max(1).min(terms.limit),
            Policy::Share => terms.limit,
        };
        if used < allowed {
            self.counters.granted_by_policy += 1;
            // The store hears of it when it is back.
            self.account(of).used += 1;
            Ok(())
        } else if allowed == 0 {
            Err(Refusal::Unavailable { why })
        } else {
            Err(Refusal::Full { used, limit: allowed })
        }
    }

    /// Takes a unit back: each that was taken, once.
    pub(crate) fn give(&mut self, of: &AccountRef, now: Instant) {
        let (terms, within_deadline) = (self.terms(of), now < self.until);
        let account = self.account(of);
        debug_assert!(account.used > 0, "a unit came back that was never lent");
        account.used = account.used.saturating_sub(1);
        account.forget_no();
        if within_deadline {
            self.serve_waiters(of);
        }
        if self.account(of).needs_ask(terms) {
            self.enqueue(of);
        }
        self.forget_if_blank(of);
    }

    /// Changes a limit; never takes back what is lent.
    pub(crate) fn set_budget_limit(&mut self, index: usize, limit: u32) {
        let (of, book) = (AccountRef::Budget(index), &mut self.budgets[index]);
        let lowered = limit < book.limit;
        book.limit = limit;
        book.account.forget_no();
        // Idle units go back at once, so that the new limit holds soon.
        book.account.pressure |= lowered;
        let terms = self.terms(&of);
        if self.account(&of).needs_ask(terms) {
            self.enqueue(&of);
        }
    }

    pub(crate) fn set_keyed_limit(&mut self, index: usize, limit: u32) {
        self.keyed[index].limit = limit;
    }

    pub(super) fn serve_waiters(&mut self, of: &AccountRef) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let account = self.account(of);
        let before = account.waiters.len();
        account.waiters.retain(|waiter| !waiter.gone());
        while account.idle() > 0
            && let Some(waiter) = account.waiters.pop_front()
        {
            account.used += 1;
            verdicts.push((waiter, Ok(of.clone())));
        }
        let left = account.waiters.len();
        self.waiting -= before - left;
        self.verdicts = verdicts;
    }

    pub(super) fn forget_if_blank(&mut self, of: &AccountRef) {
        if let AccountRef::Key(book, key) = of
            && self.find_ref(of).is_some_and(Account::is_blank)
        {
            self.keyed[*book].accounts.remove(key);
        }
    }

    /// The end: no more calls, no more grants.
    pub(crate) fn leave(&mut self) {
        self.left = true;
        for of in self.awaited() {
            for waiter in self.dismiss_waiters(&of) {
                let refusal = Refusal::Unavailable { why: "this member has left".into() };
                self.verdicts.push((waiter, Err(refusal)));
            }
        }
    }

    /// Takes everybody out of an account's line; each is still owed a verdict.
    pub(super) fn dismiss_waiters(&mut self, of: &AccountRef) -> VecDeque<W> {
        let waiters = std::mem::take(&mut self.account(of).waiters);
        self.waiting -= waiters.len();
        waiters
    }
}
