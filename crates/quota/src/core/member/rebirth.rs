//! Telling the store everything: under a new incarnation when it may have lost something, or, for budgets, after each beat.

use std::time::Instant;

use super::{AccountRef, Member};
use crate::core::account::{Account, Waiter};
use crate::status::{Notice, Rebirth};
use crate::store::{BeatKind, MemberId};

impl<W: Waiter> Member<W> {
    /// A new incarnation: the store's knowledge of the old one can't be trusted.
    pub(super) fn be_reborn(&mut self, why: Rebirth, now: Instant) {
        // Whoever has our name has our slices, too.
        let slices_hold = now < self.until && why != Rebirth::NameTaken;
        if why == Rebirth::NameTaken {
            // Taking the name back would only make the other do the same.
            self.name = format!("{}+{:04x}", self.name, self.dice.roll() & 0xffff);
        }
        let old = std::mem::replace(&mut self.id, MemberId::new(&self.name, self.dice.roll()));
        self.predecessor = (why == Rebirth::StoreLostWrites).then_some(old);
        self.next_beat = BeatKind::Join;
        (self.beat_due, self.sequence, self.landed, self.pushing) = (now, 0, 0, 0);
        self.ready.clear();
        for book in &mut self.budgets {
            book.account.begin_anew(slices_hold);
        }
        for book in &mut self.keyed {
            book.accounts.values_mut().for_each(|account| account.begin_anew(slices_hold));
            book.accounts.retain(|_, account| !account.is_blank());
        }
        self.counters.rebirths += 1;
        self.notices.push(Notice::Reborn { why, member: self.id.clone() });
    }

    /// The deadline has passed before we were let in again: what we had may be somebody else's by now, and what is still
    /// lent of it is debt.
    pub(super) fn drop_slices(&mut self) {
        let keyed = self.keyed.iter_mut().flat_map(|book| book.accounts.values_mut());
        for account in self.budgets.iter_mut().map(|book| &mut book.account).chain(keyed) {
            account.slice = 0;
        }
    }

    pub(super) fn push_everything(&mut self) {
        self.enqueue_all_that_need();
        self.pushing = 0;
        self.pushing =
            self.ready.iter().filter(|of| self.find_ref(of).is_some_and(|account| account.push)).count();
    }

    /// After each beat: budgets learn what the others use and give back what they don't need; keys are kept from expiring.
    pub(super) fn review(&mut self, now: Instant) {
        for index in 0..self.budgets.len() {
            self.budgets[index].account.review = true;
            self.enqueue(&AccountRef::Budget(index));
        }
        if now >= self.refresh_due {
            self.refresh_due = now + self.rules.key_refresh;
            for book in &mut self.keyed {
                book.accounts.values_mut().for_each(|account| account.review = true);
            }
            self.enqueue_all_that_need();
        }
    }

    pub(super) fn enqueue_all_that_need(&mut self) {
        let needs_ask = |(of, account): &(AccountRef, &Account<W>)| account.needs_ask(self.terms(of));
        let line: Vec<_> = self.all_accounts().filter(needs_ask).map(|(of, _)| of).collect();
        line.iter().for_each(|of| self.enqueue(of));
    }
}
