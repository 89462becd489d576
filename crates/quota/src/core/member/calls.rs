//! Calls to the store and their answers.

use std::time::Instant;

use super::{AccountRef, Call, Member, OpenBeat, OpenSettlement};
use crate::core::account::Waiter;
use crate::error::Refusal;
use crate::status::{Notice, Rebirth};
use crate::store::{Answer, Beat, BeatKind, Pulse, Settled, Settlement, Standing};

impl<W: Waiter> Member<W> {
    /// The next call to make, if there is one. Ask until there is none.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Call> {
        if self.left {
            return None;
        }
        if self.beat_open.is_none() && now >= self.beat_due {
            return Some(self.begin_beat(now));
        }
        if self.outage.is_some() || self.next_beat == BeatKind::Join || now >= self.until {
            return None; // the next beat tells how things are
        }
        if self.pushing == 0
            && !self.leave_open
            && let Some(predecessor) = self.predecessor.clone()
        {
            self.leave_open = true;
            return Some(Call::Leave(predecessor));
        }
        self.ask_again(now);
        if self.settle_open.is_none() && !self.ready.is_empty() {
            return self.begin_settlement().map(Call::Settle);
        }
        None
    }

    /// Whether the end of the settlement that is on its way is waited for.
    pub(crate) fn has_more_to_settle(&self) -> bool {
        self.settle_open.is_some() && !self.ready.is_empty()
    }

    /// When to poll again though nothing happened: for the next beat, or because the mode changes by itself.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        if self.left {
            return None;
        }
        let beat = self.beat_open.is_none().then_some(self.beat_due);
        let changes = [Some(self.until), self.rebuilt_at].into_iter().flatten().filter(|at| *at > now);
        let again = self.budgets.iter().filter_map(|book| book.account.ask_again_at);
        // Without the store they wait for the outage's end, not for a time.
        let again = again.filter(|_| self.outage.is_none() && now < self.until);
        changes.chain(beat).chain(again).min()
    }

    pub(super) fn begin_beat(&mut self, now: Instant) -> Call {
        self.counters.beats += 1;
        self.beat_due = now + self.rules.beat;
        self.beat_open = Some(OpenBeat { member: self.id.clone(), sent: now, landed: self.landed });
        Call::Beat(Beat {
            member: self.id.clone(),
            ttl: self.rules.ttl,
            kind: self.next_beat,
            generation: self.dice.roll(),
        })
    }

    pub(super) fn begin_settlement(&mut self) -> Option<Settlement> {
        let (mut asks, mut accounts) = (Vec::new(), Vec::new());
        while asks.len() < self.rules.batch {
            let Some(of) = self.ready.pop_front() else { break };
            let (terms, held_back) = (self.terms(&of), self.predecessor.is_some());
            let Some(account) = self.find(&of) else { continue };
            account.queued = false;
            let before = account.waiters.len();
            account.waiters.retain(|waiter| !waiter.gone());
            let gone = before - account.waiters.len();
            // While the predecessor still counts, a wish for more would count what we have twice.
            let asks_now = account.needs_ask(terms) && !account.is_asking() && (account.push || !held_back);
            if asks_now {
                let name = self.wire_name(&of);
                asks.push(self.account(&of).ask(name, terms));
                accounts.push(of);
            } else {
                self.forget_if_blank(&of);
            }
            self.waiting -= gone;
        }
        if asks.is_empty() {
            return None;
        }
        self.sequence += 1;
        self.counters.settlements += 1;
        self.counters.asks += asks.len() as u64;
        let (member, sequence) = (self.id.clone(), self.sequence);
        self.settle_open = Some(OpenSettlement { member: member.clone(), sequence, accounts });
        Some(Settlement { member, sequence, landed: self.landed, pressure: self.rules.beat * 2, asks })
    }

    pub(crate) fn on_pulse(&mut self, result: Result<Pulse, String>, now: Instant) {
        let Some(open) = self.beat_open.take() else { return };
        if self.left {
            return;
        }
        let pulse = match result {
            Ok(pulse) => pulse,
            Err(why) => return self.on_outage(why, now),
        };
        if open.member != self.id {
            self.beat_due = now;
            return;
        }
        self.on_answer();
        self.members = pulse.members;
        // However long the store says: the next beat asks again, and its clock may have been set right by then.
        let rebuild_left = pulse.rebuild_left.min(self.rules.ttl);
        self.rebuilt_at = (!rebuild_left.is_zero()).then(|| now + rebuild_left);
        if let Some(rebuilt_at) = self.rebuilt_at {
            self.beat_due = self.beat_due.min(rebuilt_at); // the store ends it with a beat
        }
        if self.generation.replace(pulse.generation).is_some_and(|before| before != pulse.generation) {
            self.notices.push(Notice::StoreLostMemory);
        }
        match pulse.standing {
            Standing::Alive { sequence } => {
                (self.next_beat, self.takes_over) = (BeatKind::Stay, false);
                // Past the deadline it may have forgotten us, and know us anew by a join that we had given up on.
                let knows_us_anew = now >= self.until && sequence < self.landed;
                if !knows_us_anew {
                    self.live_until(open.sent);
                }
                if knows_us_anew || sequence < open.landed {
                    self.be_reborn(Rebirth::StoreLostWrites, now);
                } else {
                    self.review(now);
                }
            }
            Standing::Joined => {
                self.next_beat = if self.takes_over { BeatKind::TakeOver } else { BeatKind::Stay };
                if self.takes_over {
                    self.beat_due = now;
                }
                if now >= self.until {
                    self.drop_slices();
                }
                self.live_until(open.sent);
                self.notices.push(Notice::Joined { member: self.id.clone(), members: self.members });
                self.push_everything();
            }
            Standing::Unknown => self.be_reborn(Rebirth::StoreForgotUs, now),
            Standing::Replaced => self.be_reborn(Rebirth::NameTaken, now),
        }
    }

    pub(super) fn live_until(&mut self, sent: Instant) {
        self.until = self.until.max(sent + (self.rules.ttl - self.rules.margin));
    }

    pub(crate) fn on_settled(&mut self, result: Result<Settled, String>, now: Instant) {
        let Some(open) = self.settle_open.take() else { return };
        if open.member != self.id {
            // It concerned an earlier incarnation; ours has told everything anew.
            return result.err().into_iter().for_each(|why| self.on_outage(why, now));
        }
        match result {
            Ok(Settled::Landed(answers)) if answers.len() != open.accounts.len() => {
                let why = format!("the store gave {} answers to {} asks", answers.len(), open.accounts.len());
                self.on_settling_failed(open.accounts, why, now);
            }
            Ok(Settled::Landed(answers)) => {
                self.on_settling_works();
                self.landed = self.landed.max(open.sequence);
                for (of, answer) in open.accounts.iter().zip(answers) {
                    self.on_account_answered(of, answer, now);
                }
                let is_pushed = |of: &AccountRef| self.find_ref(of).is_none_or(|account| !account.push);
                let pushed = open.accounts.iter().filter(|of| is_pushed(of)).count();
                self.pushing = self.pushing.saturating_sub(pushed);
            }
            Ok(Settled::Stale) => self.unanswered(open.accounts),
            Ok(Settled::Unknown) => {
                self.unanswered(open.accounts);
                let is_newborn = self.landed == 0;
                self.be_reborn(Rebirth::StoreForgotUs, now);
                if is_newborn {
                    // It may do so again and again; nobody should wait for the end of that.
                    let why = "the store let this member in and forgot it at once";
                    self.on_settling_failed(Vec::new(), why.into(), now);
                    self.beat_due = now + self.rules.retry;
                }
            }
            Ok(Settled::LostWrites) => {
                self.unanswered(open.accounts);
                self.be_reborn(Rebirth::StoreLostWrites, now);
            }
            Err(why) => self.on_settling_failed(open.accounts, why, now),
        }
    }

    fn on_settling_failed(&mut self, accounts: Vec<AccountRef>, why: String, now: Instant) {
        self.unanswered(accounts);
        self.on_outage(why.clone(), now);
        self.settling_fails = Some(why);
    }

    fn on_settling_works(&mut self) {
        if self.settling_fails.take().is_some() && self.outage.is_none() {
            self.notices.push(Notice::StoreIsBack);
        }
        self.on_answer();
    }

    pub(super) fn on_account_answered(&mut self, of: &AccountRef, answer: Answer, now: Instant) {
        let (terms, within_deadline, left) = (self.terms(of), now < self.until, self.rebuild_left(now));
        let hold = self.rules.refusal_hold;
        let Some(account) = self.find(of) else { return };
        if !within_deadline {
            // Too late to be sure that it is still ours: others may have been given it since.
            account.unanswered();
            return self.enqueue(of);
        }
        let was_push = account.push;
        let short = account.answered(answer);
        self.serve_waiters(of);
        let account = self.account(of);
        // No ask is for more than the limit: with all of it lent here, whoever is left won't get anything from asking.
        let all_here = account.used >= terms.limit && !account.waiters.is_empty();
        let short = short || all_here;
        let waits = terms.sharing.in_blocks()
            && left.is_none()
            && short
            && !all_here
            && account.wait_for_idle_units(answer, terms.limit, now);
        if short && !was_push && !waits {
            let refusal = match left {
                None => Refusal::Full { used: answer.used.max(account.used), limit: terms.limit },
                Some(left) => Refusal::Rebuilding { left },
            };
            if terms.sharing.in_blocks() && left.is_none() {
                account.remember_no(now + hold, answer.used.max(account.used));
            }
            let refused = std::mem::take(&mut account.waiters);
            self.waiting -= refused.len();
            self.counters.refused += refused.len() as u64;
            self.verdicts.extend(refused.into_iter().map(|waiter| (waiter, Err(refusal.clone()))));
        }
        if self.account(of).needs_ask(terms) {
            self.enqueue(of);
        }
        self.forget_if_blank(of);
    }

    pub(crate) fn on_left(&mut self, result: Result<(), String>, now: Instant) {
        self.leave_open = false;
        match result {
            Ok(()) => {
                self.predecessor = None;
                self.enqueue_all_that_need();
            }
            Err(why) => self.on_outage(why, now),
        }
    }

    /// Somebody was refused: give back what lies idle.
    pub(crate) fn on_pressed(&mut self) {
        for index in 0..self.budgets.len() {
            let account = &mut self.budgets[index].account;
            account.press();
            if account.idle() > 0 {
                self.enqueue(&AccountRef::Budget(index));
            }
        }
    }

    /// The store answered, whatever it said.
    pub(super) fn on_answer(&mut self) {
        if self.outage.take().is_some() {
            if self.settling_fails.is_none() {
                self.notices.push(Notice::StoreIsBack);
            }
            self.enqueue_all_that_need();
        }
    }

    pub(super) fn on_outage(&mut self, why: String, now: Instant) {
        self.counters.failures += 1;
        self.beat_due = self.beat_due.min(now + self.rules.retry);
        if self.outage().is_none() {
            self.notices.push(Notice::StoreIsGone { why: why.clone() });
        }
        self.outage = Some(why);
        // Until the store is back nobody stands in line: whoever has something to tell it then is found then.
        for of in std::mem::take(&mut self.ready) {
            self.find(&of).into_iter().for_each(|account| account.queued = false);
            self.forget_if_blank(&of);
        }
        self.budgets.iter_mut().for_each(|book| book.account.ask_again_at = None);
        // And nobody waits for it, except for an answer that may still come.
        for of in self.awaited() {
            if self.account(&of).is_asking() {
                continue;
            }
            for waiter in self.dismiss_waiters(&of) {
                let verdict = self.by_policy(&of, now).map(|()| of.clone());
                self.verdicts.push((waiter, verdict));
            }
            self.forget_if_blank(&of);
        }
    }

    /// Those who wait for units that lay idle with others.
    pub(super) fn ask_again(&mut self, now: Instant) {
        for index in 0..self.budgets.len() {
            let account = &mut self.budgets[index].account;
            if account.ask_again_at.is_some_and(|at| at <= now) {
                account.ask_again_at = None;
                self.enqueue(&AccountRef::Budget(index));
            }
        }
    }

    pub(super) fn unanswered(&mut self, accounts: Vec<AccountRef>) {
        for of in accounts {
            self.account(&of).unanswered();
            self.enqueue(&of);
        }
    }

    /// Lets an account stand in line for the next settlement.
    pub(super) fn enqueue(&mut self, of: &AccountRef) {
        if self.outage.is_some() {
            return;
        }
        let account = self.account(of);
        if !account.queued {
            account.queued = true;
            self.ready.push_back(of.clone());
        }
    }
}
