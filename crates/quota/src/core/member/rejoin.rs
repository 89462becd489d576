//! New incarnations, and pushing all accounts to the store. Also the refresh after each heartbeat.

use std::time::Instant;

use super::{AccountId, QuotaMember};
use crate::core::account::{MemberAccount, TakeWaiter};
use crate::status::{MemberNotice, RejoinReason};
use crate::store::{HeartbeatKind, MemberId};

impl<W: TakeWaiter> QuotaMember<W> {
    /// Begins a new incarnation, because the store's data of the old one can't be trusted.
    pub(super) fn rejoin(&mut self, why: RejoinReason, now: Instant) {
        // The process that took our name has our slices as well.
        let slices_hold = now < self.slice_deadline && why != RejoinReason::NameTaken;
        if why == RejoinReason::NameTaken {
            // Taking the name back would make the other process do the same.
            self.name = format!("{}+{:04x}", self.name, self.ids.next_id() & 0xffff);
        }
        let old = std::mem::replace(&mut self.id, MemberId::new(&self.name, self.ids.next_id()));
        self.predecessor = (why == RejoinReason::StoreLostWrites).then_some(old);
        if why == RejoinReason::StoreLostWrites {
            // The old incarnation may have reported, and may stay until it expires.
            self.counted_before = false;
        }
        self.next_heartbeat = HeartbeatKind::Join;
        (self.heartbeat_due, self.sequence, self.last_acknowledged, self.pending_pushes) = (now, 0, 0, 0);
        self.request_queue.clear();
        for entry in &mut self.budgets {
            entry.account.reset_for_rejoin(slices_hold);
        }
        for entry in &mut self.keyed {
            entry.accounts.values_mut().for_each(|account| account.reset_for_rejoin(slices_hold));
            entry.accounts.retain(|_, account| !account.is_unused());
        }
        self.counters.rejoins += 1;
        self.notices.push(MemberNotice::Rejoined { why, member: self.id.clone() });
    }

    /// Sets all slices to zero, because the deadline passed before this member joined again. Others
    /// may hold its slices by now, so the units that it still lends are debt.
    pub(super) fn clear_slices(&mut self) {
        let keyed = self.keyed.iter_mut().flat_map(|entry| entry.accounts.values_mut());
        for account in self.budgets.iter_mut().map(|entry| &mut entry.account).chain(keyed) {
            account.slice = 0;
        }
    }

    pub(super) fn push_all_accounts(&mut self) {
        self.enqueue_accounts_in_need();
        self.pending_pushes = 0;
        self.pending_pushes = self
            .request_queue
            .iter()
            .filter(|account_id| self.find_account(account_id).is_some_and(|account| account.needs_push))
            .count();
    }

    /// Queues accounts after each heartbeat. Budgets fetch the others' usage and return units that
    /// they don't need. Keys are rewritten before they expire.
    pub(super) fn refresh_accounts(&mut self, now: Instant) {
        for index in 0..self.budgets.len() {
            self.budgets[index].account.needs_refresh = true;
            self.enqueue(&AccountId::Budget(index));
        }
        if now >= self.refresh_due {
            self.refresh_due = now + self.rules.key_refresh;
            for entry in &mut self.keyed {
                entry.accounts.values_mut().for_each(|account| account.needs_refresh = true);
            }
            self.enqueue_accounts_in_need();
        }
    }

    pub(super) fn enqueue_accounts_in_need(&mut self) {
        let needs_request = |(account_id, account): &(AccountId, &MemberAccount<W>)| {
            account.needs_request(self.terms(account_id))
        };
        let line: Vec<_> =
            self.all_accounts().filter(needs_request).map(|(account_id, _)| account_id).collect();
        line.iter().for_each(|account_id| self.enqueue(account_id));
    }
}
