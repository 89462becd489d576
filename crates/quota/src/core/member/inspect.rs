//! Read access to a member's state.

use std::sync::Arc;
use std::time::Instant;

use super::{BudgetEntry, QuotaMember, TakeVerdict};
use crate::config::OutagePolicy;
use crate::core::account::TakeWaiter;
use crate::status::{MemberCounters, MemberNotice, QuotaMode, Usage};
use crate::store::{HeartbeatKind, MemberId};

impl<W: TakeWaiter> QuotaMember<W> {
    pub(crate) fn id(&self) -> &MemberId {
        &self.id
    }

    pub(crate) fn members(&self) -> u32 {
        self.members
    }

    pub(crate) fn outage(&self) -> Option<&str> {
        self.outage.as_deref().or(self.settlement_failure.as_deref())
    }

    pub(crate) fn policy(&self) -> OutagePolicy {
        self.rules.policy
    }

    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Returns whether the store has replied at least once, or is known to be unavailable.
    pub(crate) fn is_join_resolved(&self) -> bool {
        self.next_heartbeat == HeartbeatKind::Renew || self.outage.is_some()
    }

    pub(crate) fn mode(&self, now: Instant) -> QuotaMode {
        match (now < self.slice_deadline, self.outage()) {
            (true, None) if self.rebuild_left(now).is_some() => QuotaMode::Rebuilding,
            (true, None) => QuotaMode::Normal,
            (true, Some(_)) => QuotaMode::WithinSlices,
            (false, _) => QuotaMode::Degraded(self.rules.policy),
        }
    }

    pub(crate) fn counters(&self) -> MemberCounters {
        MemberCounters { waiting: self.waiting, ..self.counters }
    }

    pub(crate) fn limit_of_keyed(&self, index: usize) -> u32 {
        self.keyed[index].limit
    }

    pub(crate) fn usage(&self, budget: usize) -> Usage {
        let BudgetEntry { limit, account, .. } = &self.budgets[budget];
        Usage {
            used_here: account.used,
            slice: account.slice,
            used: account.others_used.saturating_add(account.used),
            limit: *limit,
            pressure: account.pressure,
        }
    }

    /// Returns each budget's name and usage.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = (&Arc<str>, Usage)> {
        self.budgets.iter().enumerate().map(|(index, entry)| (&entry.name, self.usage(index)))
    }

    /// Returns each keyed limit's name, limit, number of keys in use here, and units lent.
    pub(crate) fn keyed_limits(&self) -> impl Iterator<Item = (&Arc<str>, u32, usize, u64)> {
        self.keyed.iter().map(|entry| {
            let held = entry.accounts.values().map(|account| u64::from(account.used)).sum();
            (&entry.name, entry.limit, entry.accounts.len(), held)
        })
    }

    pub(crate) fn take_verdicts(&mut self) -> Vec<(W, TakeVerdict)> {
        std::mem::take(&mut self.verdicts)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<MemberNotice> {
        std::mem::take(&mut self.notices)
    }
}
