//! A member: what it may lend and whom it must ask, as a machine without sockets or clocks.
//!
//! Invariants: units are lent out of a slice only before the deadline `until`, which lies before the instant at which the
//! store forgets this member; every wait ends with one verdict; at most one beat and one settlement are on their way.
//! When the store may have lost something of ours, we don't guess what: we begin a new incarnation, push all that we hold
//! under it, and only then let the old one leave. Meanwhile our share counts twice, which errs on the safe side.
//! Not here: the store's side (`ledger.rs`), one account's arithmetic (`account.rs`), tasks and timers (`shared.rs`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::{Account, Terms, Waiter};
use crate::config::{Policy, Rules};
use crate::error::Refusal;
use crate::status::{Counters, Mode, Notice, Rebirth, Usage};
use crate::store::{Answer, Beat, BeatKind, MemberId, Pulse, Settled, Settlement, Sharing, Standing};

/// One account of a member: a budget, or a key of a keyed limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum AccountRef {
    Budget(usize),
    Key(usize, Arc<str>),
}

/// What a member wants done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Beat(Beat),
    Settle(Settlement),
    Leave(MemberId),
}

/// What came of a try to take a unit.
#[derive(Debug)]
pub(crate) enum Take {
    Granted,
    Refused(Refusal),
    /// The verdict will come to the waiter.
    Waiting,
}

/// How a wait ends. `Ok`: the unit is lent; whoever can't use it gives it back.
pub(crate) type Verdict = Result<AccountRef, Refusal>;

pub(crate) struct Member<W> {
    rules: Rules,
    name: String,
    dice: Dice,
    id: MemberId,
    /// What the next beat is: `Join` until the store knows `id`.
    next_beat: BeatKind,
    /// Whether earlier processes of this name must still be replaced.
    takes_over: bool,
    until: Instant,
    /// An incarnation of ours that must leave once all is pushed.
    predecessor: Option<MemberId>,
    /// Accounts that the store must hear of before the predecessor leaves.
    pushing: usize,
    beat_due: Instant,
    beat_open: Option<OpenBeat>,
    settle_open: Option<OpenSettlement>,
    leave_open: bool,
    sequence: u64,
    landed: u64,
    outage: Option<String>,
    generation: Option<u64>,
    rebuilt_at: Option<Instant>,
    members: u32,
    refresh_due: Instant,
    left: bool,
    budgets: Vec<BudgetBook<W>>,
    keyed: Vec<KeyedBook<W>>,
    ready: VecDeque<AccountRef>,
    waiting: usize,
    verdicts: Vec<(W, Verdict)>,
    notices: Vec<Notice>,
    counters: Counters,
}

struct OpenBeat {
    member: MemberId,
    sent: Instant,
    landed: u64,
}

struct OpenSettlement {
    member: MemberId,
    sequence: u64,
    accounts: Vec<AccountRef>,
}

struct BudgetBook<W> {
    name: Arc<str>,
    limit: u32,
    sharing: Sharing,
    account: Account<W>,
}

struct KeyedBook<W> {
    name: Arc<str>,
    limit: u32,
    accounts: HashMap<Arc<str>, Account<W>>,
}

impl<W: Waiter> Member<W> {
    pub(crate) fn new(name: String, rules: Rules, seed: u64, now: Instant) -> Self {
        let mut dice = Dice(seed);
        let id = MemberId::new(&name, dice.roll());
        Member {
            name,
            id,
            dice,
            next_beat: BeatKind::Join,
            takes_over: true,
            until: now,
            predecessor: None,
            pushing: 0,
            beat_due: now,
            beat_open: None,
            settle_open: None,
            leave_open: false,
            sequence: 0,
            landed: 0,
            outage: None,
            generation: None,
            rebuilt_at: None,
            members: 1,
            refresh_due: now + rules.key_refresh,
            left: false,
            budgets: Vec::new(),
            keyed: Vec::new(),
            ready: VecDeque::new(),
            waiting: 0,
            verdicts: Vec::new(),
            notices: Vec::new(),
            counters: Counters::default(),
            rules,
        }
    }

    /// The budget of this name; its limit is set anew.
    pub(crate) fn budget(&mut self, name: &str, limit: u32, sharing: Sharing) -> usize {
        if let Some(index) = self.budgets.iter().position(|book| &*book.name == name) {
            self.set_limit(&AccountRef::Budget(index), limit);
            return index;
        }
        self.budgets.push(BudgetBook { name: name.into(), limit, sharing, account: Account::default() });
        self.budgets.len() - 1
    }

    /// The keyed limit of this name; its limit is set anew.
    pub(crate) fn keyed(&mut self, name: &str, limit: u32) -> usize {
        if let Some(index) = self.keyed.iter().position(|book| &*book.name == name) {
            self.keyed[index].limit = limit;
            return index;
        }
        self.keyed.push(KeyedBook { name: name.into(), limit, accounts: HashMap::new() });
        self.keyed.len() - 1
    }

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
    fn decide(&mut self, of: &AccountRef, now: Instant) -> Option<Result<(), Refusal>> {
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
        } else if !rebuild_left.is_zero() {
            Refusal::Rebuilding { left: rebuild_left }
        } else {
            Refusal::Full { used: account.refused(now)?, limit: terms.limit }
        };
        self.forget_if_blank(of);
        Some(Err(refusal))
    }

    /// Without the store and beyond the slice.
    fn by_policy(&mut self, of: &AccountRef, now: Instant) -> Result<(), Refusal> {
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
            self.account(of).used += 1;
            // The store must hear of it as soon as it is back.
            self.enqueue(of);
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
    pub(crate) fn set_limit(&mut self, of: &AccountRef, limit: u32) {
        match of {
            AccountRef::Key(index, _) => self.keyed[*index].limit = limit,
            AccountRef::Budget(index) => {
                let book = &mut self.budgets[*index];
                let lowered = limit < book.limit;
                book.limit = limit;
                book.account.forget_no();
                // Idle units go back at once, so that the new limit holds soon.
                book.account.pressure |= lowered;
                let terms = self.terms(of);
                if self.account(of).needs_ask(terms) {
                    self.enqueue(of);
                }
            }
        }
    }

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

    /// When to poll again though nothing happened: for the next beat, or because the mode changes by itself.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let beat = (self.beat_open.is_none() && !self.left).then_some(self.beat_due);
        let changes = [Some(self.until), self.rebuilt_at].into_iter().flatten().filter(|at| *at > now);
        let again = self.budgets.iter().filter_map(|book| book.account.ask_again_at);
        // Without the store they wait for the outage's end, not for a time.
        let again = again.filter(|_| self.outage.is_none() && now < self.until);
        changes.chain(beat).chain(again).min()
    }

    fn begin_beat(&mut self, now: Instant) -> Call {
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

    fn begin_settlement(&mut self) -> Option<Settlement> {
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
        self.rebuilt_at = (!pulse.rebuild_left.is_zero()).then(|| now + pulse.rebuild_left);
        if self.generation.replace(pulse.generation).is_some_and(|before| before != pulse.generation) {
            self.notices.push(Notice::StoreLostMemory);
        }
        match pulse.standing {
            Standing::Alive { sequence } => {
                self.live_until(open.sent);
                (self.next_beat, self.takes_over) = (BeatKind::Stay, false);
                if sequence < open.landed {
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
                    self.drop_idle_units();
                }
                self.live_until(open.sent);
                self.notices.push(Notice::Joined { member: self.id.clone(), members: self.members });
                self.push_everything();
            }
            Standing::Unknown => self.be_reborn(Rebirth::StoreForgotUs, now),
            Standing::Replaced => self.be_reborn(Rebirth::NameTaken, now),
        }
    }

    /// The deadline has passed before we were let in again: what we don't use may be somebody else's by now.
    fn drop_idle_units(&mut self) {
        let keyed = self.keyed.iter_mut().flat_map(|book| book.accounts.values_mut());
        for account in self.budgets.iter_mut().map(|book| &mut book.account).chain(keyed) {
            account.slice = account.slice.min(account.used);
        }
    }

    fn live_until(&mut self, sent: Instant) {
        self.until = self.until.max(sent + (self.rules.ttl - self.rules.margin));
    }

    pub(crate) fn on_settled(&mut self, result: Result<Settled, String>, now: Instant) {
        let Some(open) = self.settle_open.take() else { return };
        if open.member != self.id {
            // It concerned an earlier incarnation; ours has told everything anew.
            return result.err().into_iter().for_each(|why| self.on_outage(why, now));
        }
        match result {
            Ok(Settled::Landed(answers)) => {
                self.on_answer();
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
                self.be_reborn(Rebirth::StoreForgotUs, now);
            }
            Ok(Settled::LostWrites) => {
                self.unanswered(open.accounts);
                self.be_reborn(Rebirth::StoreLostWrites, now);
            }
            Err(why) => {
                self.unanswered(open.accounts);
                self.on_outage(why, now);
            }
        }
    }

    /// Those who wait for units that lay idle with others.
    fn ask_again(&mut self, now: Instant) {
        for index in 0..self.budgets.len() {
            let account = &mut self.budgets[index].account;
            if account.ask_again_at.is_some_and(|at| at <= now) {
                account.ask_again_at = None;
                self.enqueue(&AccountRef::Budget(index));
            }
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

    fn unanswered(&mut self, accounts: Vec<AccountRef>) {
        for of in accounts {
            self.account(&of).unanswered();
            self.enqueue(&of);
        }
    }

    fn on_account_answered(&mut self, of: &AccountRef, answer: Answer, now: Instant) {
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
        let waits = terms.sharing.in_blocks()
            && left.is_zero()
            && short
            && account.wait_for_idle_units(answer, terms.limit, now);
        if short && !was_push && !waits {
            let refusal = if left.is_zero() {
                Refusal::Full { used: answer.used, limit: terms.limit }
            } else {
                Refusal::Rebuilding { left }
            };
            if terms.sharing.in_blocks() && left.is_zero() {
                account.remember_no(now + hold, answer.used);
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

    /// The store answered, whatever it said.
    fn on_answer(&mut self) {
        if self.outage.take().is_some() {
            self.notices.push(Notice::StoreIsBack);
        }
    }

    fn on_outage(&mut self, why: String, now: Instant) {
        self.counters.failures += 1;
        self.beat_due = self.beat_due.min(now + self.rules.retry);
        if self.outage.is_none() {
            self.notices.push(Notice::StoreIsGone { why: why.clone() });
        }
        self.outage = Some(why);
        // Nobody waits for a store that is away; whoever has a question stays in line with it.
        for index in 0..self.budgets.len() {
            if self.budgets[index].account.ask_again_at.take().is_some() {
                self.enqueue(&AccountRef::Budget(index));
            }
        }
        let line: Vec<_> = self.ready.iter().cloned().collect();
        for of in line {
            let waiters =
                self.find(&of).map(|account| std::mem::take(&mut account.waiters)).unwrap_or_default();
            self.waiting -= waiters.len();
            for waiter in waiters {
                let verdict = self.by_policy(&of, now).map(|()| of.clone());
                self.verdicts.push((waiter, verdict));
            }
        }
    }

    /// A new incarnation: the store's knowledge of the old one can't be trusted.
    fn be_reborn(&mut self, why: Rebirth, now: Instant) {
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
        // Those who wait are in line, so that an outage finds them.
        self.enqueue_all_that_need();
    }

    fn push_everything(&mut self) {
        self.enqueue_all_that_need();
        self.pushing = 0;
        self.pushing =
            self.ready.iter().filter(|of| self.find_ref(of).is_some_and(|account| account.push)).count();
    }

    /// After each beat: budgets learn what the others use and give back what they don't need; keys are kept from expiring.
    fn review(&mut self, now: Instant) {
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

    fn enqueue_all_that_need(&mut self) {
        let budgets = (0..self.budgets.len()).map(AccountRef::Budget);
        let keys = self.keyed.iter().enumerate();
        let keys = keys.flat_map(|(book, keyed)| {
            keyed.accounts.keys().map(move |key| AccountRef::Key(book, key.clone()))
        });
        for of in budgets.chain(keys).collect::<Vec<_>>() {
            if self.find_ref(&of).is_some_and(|account| account.needs_ask(self.terms(&of))) {
                self.enqueue(&of);
            }
        }
    }

    fn enqueue(&mut self, of: &AccountRef) {
        let account = self.account(of);
        if !account.queued {
            account.queued = true;
            self.ready.push_back(of.clone());
        }
    }

    fn serve_waiters(&mut self, of: &AccountRef) {
        let mut served = Vec::new();
        let account = self.account(of);
        while account.idle() > 0
            && let Some(waiter) = account.waiters.pop_front()
        {
            account.used += 1;
            served.push((waiter, Ok(of.clone())));
        }
        self.waiting -= served.len();
        self.verdicts.append(&mut served);
    }

    fn forget_if_blank(&mut self, of: &AccountRef) {
        if let AccountRef::Key(book, key) = of
            && self.find_ref(of).is_some_and(Account::is_blank)
        {
            self.keyed[*book].accounts.remove(key);
        }
    }

    fn terms(&self, of: &AccountRef) -> Terms {
        let (limit, sharing) = match of {
            AccountRef::Budget(index) => (self.budgets[*index].limit, self.budgets[*index].sharing),
            AccountRef::Key(index, _) => (self.keyed[*index].limit, Sharing::Exact),
        };
        Terms { limit, sharing, members: self.members }
    }

    fn wire_name(&self, of: &AccountRef) -> Arc<str> {
        match of {
            AccountRef::Budget(index) => budget_name(&self.budgets[*index].name),
            AccountRef::Key(index, key) => key_name(&self.keyed[*index].name, key),
        }
    }

    fn account(&mut self, of: &AccountRef) -> &mut Account<W> {
        match of {
            AccountRef::Budget(index) => &mut self.budgets[*index].account,
            AccountRef::Key(index, key) => self.keyed[*index].accounts.entry(key.clone()).or_default(),
        }
    }

    fn find(&mut self, of: &AccountRef) -> Option<&mut Account<W>> {
        match of {
            AccountRef::Budget(index) => Some(&mut self.budgets[*index].account),
            AccountRef::Key(index, key) => self.keyed[*index].accounts.get_mut(key),
        }
    }

    fn find_ref(&self, of: &AccountRef) -> Option<&Account<W>> {
        match of {
            AccountRef::Budget(index) => Some(&self.budgets[*index].account),
            AccountRef::Key(index, key) => self.keyed[*index].accounts.get(key),
        }
    }

    pub(crate) fn rebuild_left(&self, now: Instant) -> Duration {
        self.rebuilt_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

/// What others may see of it.
impl<W: Waiter> Member<W> {
    pub(crate) fn id(&self) -> &MemberId {
        &self.id
    }

    pub(crate) fn members(&self) -> u32 {
        self.members
    }

    pub(crate) fn outage(&self) -> Option<&str> {
        self.outage.as_deref()
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
        match (now < self.until, &self.outage) {
            (true, None) if !self.rebuild_left(now).is_zero() => Mode::Rebuilding,
            (true, None) => Mode::Normal,
            (true, Some(_)) => Mode::WithinSlices,
            (false, _) => Mode::Degraded(self.rules.policy),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { waiting: self.waiting, ..self.counters }
    }

    pub(crate) fn limit(&self, of: &AccountRef) -> u32 {
        self.terms(of).limit
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

    /// The name under which the store keeps a key's account.
    pub(crate) fn account_name(&self, of: &AccountRef) -> Arc<str> {
        self.wire_name(of)
    }

    pub(crate) fn take_verdicts(&mut self) -> Vec<(W, Verdict)> {
        std::mem::take(&mut self.verdicts)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The end: no more calls, no more grants.
    pub(crate) fn leave(&mut self) {
        self.left = true;
        let line: Vec<_> =
            self.ready.drain(..).chain((0..self.budgets.len()).map(AccountRef::Budget)).collect();
        let open = self.settle_open.take().map(|open| open.accounts).unwrap_or_default();
        for of in line.into_iter().chain(open) {
            let waiters =
                self.find(&of).map(|account| std::mem::take(&mut account.waiters)).unwrap_or_default();
            self.waiting -= waiters.len();
            let refusal = || Refusal::Unavailable { why: "this member has left".into() };
            self.verdicts.extend(waiters.into_iter().map(|waiter| (waiter, Err(refusal()))));
        }
    }
}

pub(crate) fn budget_name(name: &str) -> Arc<str> {
    format!("b:{name}").into()
}

pub(crate) fn key_name(limit: &str, key: &str) -> Arc<str> {
    format!("k:{limit}:{key}").into()
}

/// Splitmix64: epochs need to differ, not to be secret, and tests need the same ones again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
