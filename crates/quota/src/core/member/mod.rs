//! `QuotaMember`: the state machine of a member, without sockets or clocks. It decides what to lend
//! and when to call the store.
//!
//! Invariants:
//! - Units are lent from a slice only before `slice_deadline`, which lies before the instant at
//!   which the store expires this member.
//! - Every wait ends with exactly one verdict.
//! - At most one heartbeat and one settlement are in flight.
//!
//! If the store may have lost data of this member, the member begins a new incarnation, pushes all
//! it holds under it, and only then lets the old one leave. Meanwhile its share counts twice, which
//! is safe.
//! This file has the state. Taking and releasing units is in `lending.rs`, calls and replies in
//! `calls.rs`, new incarnations in `rejoin.rs`.
//! Out of scope: the store's side (`ledger.rs`), the arithmetic of one account (`account.rs`),
//! tasks and timers (`member_runtime.rs`).

mod account_key;
mod call_error;
mod calls;
mod inspect;
mod lending;
mod rejoin;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use account_key::IdentityHashBuilder;
pub(crate) use account_key::{AccountKey, KeyPrefix};
pub(crate) use call_error::CallError;

use super::account::{AccountTerms, MemberAccount, TakeWaiter};
use crate::config::{MemberRules, OutagePolicy};
use crate::error::QuotaRefusal;
use crate::status::{MemberCounters, MemberNotice};
use crate::store::{Allocation, Heartbeat, HeartbeatKind, MemberId, Settlement};

/// An account of a member: a budget, or a key of a keyed limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum AccountId {
    Budget(usize),
    Key(usize, AccountKey),
}

/// A call that a member wants to make.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MemberCall {
    Heartbeat(Heartbeat),
    Settle(Settlement),
    Leave(MemberId),
}

/// Decision on an attempt to take a unit.
#[derive(Debug)]
pub(crate) enum TakeDecision {
    Granted,
    Refused(QuotaRefusal),
    /// The verdict will be sent to the waiter.
    Waiting,
}

/// How a wait ends. `Ok`: the unit is lent, and a receiver that can't use it must release it.
pub(crate) type TakeVerdict = Result<AccountId, QuotaRefusal>;

pub(crate) struct QuotaMember<W> {
    rules: MemberRules,
    name: String,
    ids: IdGenerator,
    id: MemberId,
    /// Kind of the next heartbeat: `Join` until the store has registered `id`.
    next_heartbeat: HeartbeatKind,
    /// Whether earlier processes of this name must still be replaced.
    takes_over: bool,
    slice_deadline: Instant,
    /// The previous incarnation, which leaves once everything is pushed.
    predecessor: Option<MemberId>,
    /// Accounts to push before the predecessor leaves.
    pending_pushes: usize,
    heartbeat_due: Instant,
    pending_heartbeat: Option<PendingHeartbeat>,
    pending_settlement: Option<PendingSettlement>,
    leave_pending: bool,
    sequence: u64,
    last_acknowledged: u64,
    /// Why the store isn't called, until a heartbeat succeeds.
    outage: Option<String>,
    /// Why the last settlement failed. It is reported as an outage even while heartbeats succeed.
    settlement_failure: Option<String>,
    generation: Option<u64>,
    rebuild_ends_at: Option<Instant>,
    members: u32,
    /// Members before the current rebuild, by this member's last reply before it. Zero if it wasn't
    /// a member then.
    members_before: u32,
    /// Whether the members of before the current rebuild counted this process. Only then does its
    /// report count: the store compares the number of reports with the number of members.
    counted_before: bool,
    /// Members before the current rebuild, as far as the store knows.
    expected: u32,
    refresh_due: Instant,
    has_left: bool,
    budgets: Vec<BudgetEntry<W>>,
    keyed: Vec<KeyedEntry<W>>,
    request_queue: VecDeque<AccountId>,
    waiting: usize,
    verdicts: Vec<(W, TakeVerdict)>,
    notices: Vec<MemberNotice>,
    counters: MemberCounters,
}

struct PendingHeartbeat {
    member: MemberId,
    sent: Instant,
    last_acknowledged: u64,
}

struct PendingSettlement {
    member: MemberId,
    sequence: u64,
    accounts: Vec<AccountId>,
}

struct BudgetEntry<W> {
    name: Arc<str>,
    limit: u32,
    allocation: Allocation,
    account: MemberAccount<W>,
}

struct KeyedEntry<W> {
    name: Arc<str>,
    limit: u32,
    accounts: HashMap<AccountKey, MemberAccount<W>, IdentityHashBuilder>,
}

impl<W: TakeWaiter> QuotaMember<W> {
    pub(crate) fn new(name: String, rules: MemberRules, seed: u64, now: Instant) -> Self {
        let mut ids = IdGenerator(seed);
        let id = MemberId::new(&name, ids.next_id());
        QuotaMember {
            name,
            id,
            ids,
            next_heartbeat: HeartbeatKind::Join,
            takes_over: true,
            slice_deadline: now,
            predecessor: None,
            pending_pushes: 0,
            heartbeat_due: now,
            pending_heartbeat: None,
            pending_settlement: None,
            leave_pending: false,
            sequence: 0,
            last_acknowledged: 0,
            outage: None,
            settlement_failure: None,
            generation: None,
            rebuild_ends_at: None,
            members: 1,
            members_before: 0,
            counted_before: false,
            expected: 0,
            refresh_due: now + rules.key_refresh,
            has_left: false,
            budgets: Vec::new(),
            keyed: Vec::new(),
            request_queue: VecDeque::new(),
            waiting: 0,
            verdicts: Vec::new(),
            notices: Vec::new(),
            counters: MemberCounters::default(),
            rules,
        }
    }

    /// Registers a budget, or updates its limit. Returns its index.
    pub(crate) fn register_budget(&mut self, name: &str, limit: u32, allocation: Allocation) -> usize {
        if let Some(index) = self.budgets.iter().position(|entry| &*entry.name == name) {
            self.set_budget_limit(index, limit);
            return index;
        }
        self.budgets.push(BudgetEntry {
            name: name.into(),
            limit,
            allocation,
            account: MemberAccount::default(),
        });
        self.budgets.len() - 1
    }

    /// Registers a keyed limit, or updates its limit. Returns its index.
    pub(crate) fn register_keyed_limit(&mut self, name: &str, limit: u32) -> usize {
        if let Some(index) = self.keyed.iter().position(|entry| &*entry.name == name) {
            self.set_keyed_limit(index, limit);
            return index;
        }
        self.keyed.push(KeyedEntry { name: name.into(), limit, accounts: HashMap::default() });
        self.keyed.len() - 1
    }

    fn terms(&self, account_id: &AccountId) -> AccountTerms {
        let (limit, allocation) = match account_id {
            AccountId::Budget(index) => (self.budgets[*index].limit, self.budgets[*index].allocation),
            AccountId::Key(index, _) => (self.keyed[*index].limit, Allocation::Exact),
        };
        AccountTerms { limit, allocation, members: self.members }
    }

    fn store_name(&self, account_id: &AccountId) -> Arc<str> {
        match account_id {
            AccountId::Budget(index) => budget_account_name(&self.budgets[*index].name),
            AccountId::Key(_, key) => key.account().clone(),
        }
    }

    fn account_or_default(&mut self, account_id: &AccountId) -> &mut MemberAccount<W> {
        match account_id {
            AccountId::Budget(index) => &mut self.budgets[*index].account,
            AccountId::Key(index, key) => {
                let accounts = &mut self.keyed[*index].accounts;
                // The key is cloned only if the account is new.
                if !accounts.contains_key(key) {
                    accounts.insert(key.clone(), MemberAccount::default());
                }
                accounts.get_mut(key).expect("inserted above")
            }
        }
    }

    fn find_account_mut(&mut self, account_id: &AccountId) -> Option<&mut MemberAccount<W>> {
        match account_id {
            AccountId::Budget(index) => Some(&mut self.budgets[*index].account),
            AccountId::Key(index, key) => self.keyed[*index].accounts.get_mut(key),
        }
    }

    /// Returns all accounts with waiting callers.
    fn accounts_with_waiters(&self) -> Vec<AccountId> {
        if self.waiting == 0 {
            return Vec::new();
        }
        self.all_accounts()
            .filter(|(_, account)| !account.waiters.is_empty())
            .map(|(account_id, _)| account_id)
            .collect()
    }

    fn all_accounts(&self) -> impl Iterator<Item = (AccountId, &MemberAccount<W>)> {
        let budgets = self.budgets.iter().enumerate();
        let budgets = budgets.map(|(index, entry)| (AccountId::Budget(index), &entry.account));
        let keys = self.keyed.iter().enumerate().flat_map(|(index, entry)| {
            entry.accounts.iter().map(move |(key, account)| (AccountId::Key(index, key.clone()), account))
        });
        budgets.chain(keys)
    }

    fn find_account(&self, account_id: &AccountId) -> Option<&MemberAccount<W>> {
        match account_id {
            AccountId::Budget(index) => Some(&self.budgets[*index].account),
            AccountId::Key(index, key) => self.keyed[*index].accounts.get(key),
        }
    }

    /// Returns the time left while the store rebuilds. A rebuild lasts until a heartbeat has ended
    /// it.
    pub(crate) fn rebuild_left(&self, now: Instant) -> Option<Duration> {
        self.rebuild_ends_at.map(|at| at.saturating_duration_since(now))
    }

    /// Returns the number of members that share the limits, those included that have yet to report
    /// to a rebuilding store.
    pub(crate) fn sharing_members(&self) -> u32 {
        let before = self.rebuild_ends_at.map_or(0, |_| self.members_before);
        self.members.max(self.expected).max(before).max(1)
    }

    /// Returns by what a limit is divided during a rebuild; see [`Settlement::rebuild_parts`].
    fn rebuild_parts(&self) -> u32 {
        match self.rules.policy {
            OutagePolicy::Closed => 0,
            OutagePolicy::Share => self.sharing_members(),
            OutagePolicy::Open => 1,
        }
    }

    /// Returns whether the store has recorded all that this member holds. Visits every account.
    fn has_reported_all(&self) -> bool {
        let is_recorded = |account: &MemberAccount<W>| !account.needs_push && account.used <= account.slice;
        self.next_heartbeat != HeartbeatKind::Join
            && self.predecessor.is_none()
            && self.all_accounts().all(|(_, account)| is_recorded(account))
    }
}

pub(crate) fn budget_account_name(name: &str) -> Arc<str> {
    format!("b:{name}").into()
}

/// Generator of epochs and generations (SplitMix64), seeded by the system.
///
/// They are parts of ids, which need not be secret, and tests need reproducible ones. SplitMix64
/// maps each of its 2⁶⁴ states to another number, so one member never gets the same epoch twice. A
/// generator for dice, such as fastrand's, doesn't promise that.
struct IdGenerator(u64);

impl IdGenerator {
    fn next_id(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod scenario_tests;
