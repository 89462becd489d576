//! A member: what it may lend and whom it must ask, as a machine without sockets or clocks.
//!
//! Invariants: units are lent out of a slice only before the deadline `until`, which lies before the instant at which the
//! store forgets this member; every wait ends with one verdict; at most one beat and one settlement are on their way.
//! When the store may have lost something of ours, we don't guess what: we begin a new incarnation, push all that we hold
//! under it, and only then let the old one leave. Meanwhile our share counts twice, which errs on the safe side.
//! Here: the books. Taking and giving is in `lending.rs`, calls to the store and their answers in `calls.rs`, telling the
//! store everything in `rebirth.rs`. Not here: the store's side (`ledger.rs`), one account's arithmetic (`account.rs`),
//! tasks and timers (`shared.rs`).

mod calls;
mod key;
mod lending;
mod rebirth;
mod view;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use key::PreHashed;
pub(crate) use key::{Key, KeyPrefix};

use super::account::{Account, Terms, Waiter};
use crate::config::Rules;
use crate::error::Refusal;
use crate::status::{Counters, Notice};
use crate::store::{Beat, BeatKind, MemberId, Settlement, Sharing};

/// One account of a member: a budget, or a key of a keyed limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum AccountRef {
    Budget(usize),
    Key(usize, Key),
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
    /// Why the store isn't asked, until a beat says that it is back.
    outage: Option<String>,
    /// Why the last settlement failed. Beats may go well all the same, and it stays an outage to those who look.
    settling_fails: Option<String>,
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
    accounts: HashMap<Key, Account<W>, PreHashed>,
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
            settling_fails: None,
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
            self.set_budget_limit(index, limit);
            return index;
        }
        self.budgets.push(BudgetBook { name: name.into(), limit, sharing, account: Account::default() });
        self.budgets.len() - 1
    }

    /// The keyed limit of this name; its limit is set anew.
    pub(crate) fn keyed(&mut self, name: &str, limit: u32) -> usize {
        if let Some(index) = self.keyed.iter().position(|book| &*book.name == name) {
            self.set_keyed_limit(index, limit);
            return index;
        }
        self.keyed.push(KeyedBook { name: name.into(), limit, accounts: HashMap::default() });
        self.keyed.len() - 1
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
            AccountRef::Key(_, key) => key.account().clone(),
        }
    }

    fn account(&mut self, of: &AccountRef) -> &mut Account<W> {
        match of {
            AccountRef::Budget(index) => &mut self.budgets[*index].account,
            AccountRef::Key(index, key) => {
                let accounts = &mut self.keyed[*index].accounts;
                // Nearly always it is there already, and its key needn't be cloned.
                if !accounts.contains_key(key) {
                    accounts.insert(key.clone(), Account::default());
                }
                accounts.get_mut(key).expect("it is there now")
            }
        }
    }

    fn find(&mut self, of: &AccountRef) -> Option<&mut Account<W>> {
        match of {
            AccountRef::Budget(index) => Some(&mut self.budgets[*index].account),
            AccountRef::Key(index, key) => self.keyed[*index].accounts.get_mut(key),
        }
    }

    /// All accounts that somebody waits for.
    fn awaited(&self) -> Vec<AccountRef> {
        if self.waiting == 0 {
            return Vec::new();
        }
        self.all_accounts().filter(|(_, account)| !account.waiters.is_empty()).map(|(of, _)| of).collect()
    }

    fn all_accounts(&self) -> impl Iterator<Item = (AccountRef, &Account<W>)> {
        let budgets = self.budgets.iter().enumerate();
        let budgets = budgets.map(|(index, book)| (AccountRef::Budget(index), &book.account));
        let keys = self.keyed.iter().enumerate().flat_map(|(index, book)| {
            book.accounts.iter().map(move |(key, account)| (AccountRef::Key(index, key.clone()), account))
        });
        budgets.chain(keys)
    }

    fn find_ref(&self, of: &AccountRef) -> Option<&Account<W>> {
        match of {
            AccountRef::Budget(index) => Some(&self.budgets[*index].account),
            AccountRef::Key(index, key) => self.keyed[*index].accounts.get(key),
        }
    }

    /// While the store rebuilds: that is until a beat has ended it, for the store as for us.
    pub(crate) fn rebuild_left(&self, now: Instant) -> Option<Duration> {
        self.rebuilt_at.map(|at| at.saturating_duration_since(now))
    }
}

pub(crate) fn budget_name(name: &str) -> Arc<str> {
    format!("b:{name}").into()
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
mod histories;
#[cfg(test)]
mod scenarios;
