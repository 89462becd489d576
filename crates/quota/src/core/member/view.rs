//! What others may see of a member.

use std::sync::Arc;
use std::time::Instant;

use super::{BudgetBook, Member, Verdict};
use crate::config::Policy;
use crate::core::account::Waiter;
use crate::status::{Counters, Mode, Notice, Usage};
use crate::store::{BeatKind, MemberId};

impl<W: Waiter> Member<W> {
    pub(crate) fn id(&self) -> &MemberId {
        &self.id
    }

    pub(crate) fn members(&self) -> u32 {
        self.members
    }

    pub(crate) fn outage(&self) -> Option<&str> {
        self.outage.as_deref().or(self.settling_fails.as_deref())
    }

    pub(crate) fn policy(&self) -> Policy {
        self.rules.policy
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Whether the store was heard at least once, or is known to be away.
    pub(crate) fn is_settled_in(&self) -> bool {
        self.next_beat == BeatKind::Stay || self.outage.is_some()
    }

    pub(crate) fn mode(&self, now: Instant) -> Mode {
        match (now < self.until, self.outage()) {
            (true, None) if self.rebuild_left(now).is_some() => Mode::Rebuilding,
            (true, None) => Mode::Normal,
            (true, Some(_)) => Mode::WithinSlices,
            (false, _) => Mode::Degraded(self.rules.policy),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { waiting: self.waiting, ..self.counters }
    }

    pub(crate) fn keyed_limit(&self, index: usize) -> u32 {
        self.keyed[index].limit
    }

    pub(crate) fn usage(&self, budget: usize) -> Usage {
        let BudgetBook { limit, account, .. } = &self.budgets[budget];
        Usage {
            used_here: account.used,
            slice: account.slice,
            used: account.others_used.saturating_add(account.used),
            limit: *limit,
            pressure: account.pressure,
        }
    }

    /// Every budget's name and use.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = (&Arc<str>, Usage)> {
        self.budgets.iter().enumerate().map(|(index, book)| (&book.name, self.usage(index)))
    }

    /// Every keyed limit's name, limit, keys in use here, and units of them.
    pub(crate) fn keyed_limits(&self) -> impl Iterator<Item = (&Arc<str>, u32, usize, u64)> {
        self.keyed.iter().map(|book| {
            let held = book.accounts.values().map(|account| u64::from(account.used)).sum();
            (&book.name, book.limit, book.accounts.len(), held)
        })
    }

    pub(crate) fn take_verdicts(&mut self) -> Vec<(W, Verdict)> {
        std::mem::take(&mut self.verdicts)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
