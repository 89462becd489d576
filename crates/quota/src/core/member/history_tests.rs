//! Random histories of a cluster: members of every policy, a store, and a network that delays,
//! reorders and drops calls but never repeats them.
//! Members are killed, are paused, or leave. Limits change, for all members or for one. The store
//! is unavailable for longer than the TTL, loses all its data, or loses its last writes.
//!
//! Checked after every step:
//! - each member's accounts agree with the leases of its process;
//! - while the store keeps its writes, it has recorded at least what each member may lend;
//! - units lent without the store, and units granted during a rebuild, are within the policy;
//! - a rebuild ends early only if all members have reported that the others knew of;
//! - the leases of an account exceed its limit by no more than `allowance.rs` permits.
//!
//! At the end the network works again. One heartbeat later, the store must have recorded all lent
//! units. Then all units are returned, and the store must be empty.

mod allowance;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use forebay_testkit::TestRng;
use proptest::prelude::*;

use self::allowance::{Allowance, Claim};
use super::*;
use crate::config::OutagePolicy;
use crate::core::grant::ceiling;
use crate::core::ledger::StoreLedger;
use crate::status::QuotaMode;
use crate::store::{HeartbeatReply, SettlementReply};

const RULES: MemberRules = MemberRules {
    heartbeat_interval: MS(20),
    ttl: MS(100),
    margin: MS(10),
    policy: OutagePolicy::Closed, // each process has its own
    retry: MS(5),
    refusal_hold: MS(2),
    key_refresh: MS(300),
    max_waiting: 6,
    batch: 3,
};
#[allow(non_snake_case)]
const fn MS(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
const BUDGET_LIMIT: u32 = 7;
const KEY_LIMIT: u32 = 2;
const POLICIES: [OutagePolicy; 3] = [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open];
const KEYS: [&str; 2] = ["ann", "bob"];

#[derive(Debug, Clone)]
struct SimulatedCaller {
    process: u64,
    cancelled: Rc<Cell<bool>>,
    /// Number of verdicts received; at most one.
    verdicts: Rc<Cell<u32>>,
}

impl TakeWaiter for SimulatedCaller {
    fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }
}

/// A process: a member, and the leases of its callers.
struct SimulatedProcess {
    number: u64,
    name: String,
    member: QuotaMember<SimulatedCaller>,
    leases: Vec<AccountId>,
    callers: Vec<SimulatedCaller>,
    paused: bool,
    /// Units lent by its outage policy.
    by_policy: u64,
    /// The processes that the store counted in its last reply outside a rebuild, and the number of
    /// that heartbeat.
    counted_members: (u64, HashSet<u64>),
}

/// A call in flight. Its sender may have timed out; it can still be applied.
struct CallInTransit {
    process: u64,
    call: MemberCall,
    reply: Option<TransitReply>,
    timed_out: bool,
    /// The number of an applied heartbeat, and the processes alive after it.
    alive_after: (u64, HashSet<u64>),
}

#[derive(Debug)]
enum TransitReply {
    Heartbeat(HeartbeatReply),
    Settle(SettlementReply),
    Leave,
}

struct SimulatedCluster {
    origin: Instant,
    time: Duration,
    ledger: StoreLedger,
    snapshots: Vec<StoreLedger>,
    processes: Vec<SimulatedProcess>,
    next_process: u64,
    network: Vec<CallInTransit>,
    allowance: Allowance,
    /// Limits of new processes: of the budget, of each key.
    limits: (u32, u32),
    /// Index of the first process's policy; each further process has the next one.
    policy: usize,
    /// Processes that haven't yet reported all they hold to a store that lost its data.
    unreported: HashSet<u64>,
    /// Processes whose slice deadline is after their expiry in the store, because the store lost
    /// one of their heartbeats.
    deadline_after_expiry: HashSet<u64>,
    /// Whether the store has kept its writes.
    keeps_writes: bool,
    /// Whether the store has ever gone back to an earlier state.
    rolled_back: bool,
    applied: u64,
    coverage: Coverage,
    /// Printed when a check fails.
    history: Vec<String>,
}

/// Counts the outcomes that the histories reached. A test asserts that no count is zero.
#[derive(Debug, Default, Clone)]
struct Coverage {
    grants: u32,
    refusals: u32,
    rebuilding: u32,
    unavailable: u32,
    busy: u32,
    rejoins: HashMap<&'static str, u32>,
    stale: u32,
    excess: u32,
    full: u32,
    by_policy: HashMap<&'static str, u32>,
    lost: u32,
    lowered: u32,
    left: u32,
    outages: u32,
    /// How often members expired together, which starts a rebuild.
    expired_together: u32,
    /// Units granted during a rebuild, and rebuilds that ended early.
    granted_in_rebuild: u32,
    early_ends: u32,
}

impl SimulatedCluster {
    fn new(processes: usize, policy: usize) -> Self {
        let mut cluster = SimulatedCluster {
            origin: Instant::now(),
            time: MS(1000),
            ledger: StoreLedger::established(),
            snapshots: Vec::new(),
            processes: Vec::new(),
            next_process: 0,
            network: Vec::new(),
            allowance: Allowance::default(),
            limits: (BUDGET_LIMIT, KEY_LIMIT),
            policy,
            unreported: HashSet::new(),
            deadline_after_expiry: HashSet::new(),
            keeps_writes: true,
            rolled_back: false,
            applied: 0,
            coverage: Coverage::default(),
            history: Vec::new(),
        };
        for index in 0..processes {
            let process = cluster.start(format!("m{index}"));
            cluster.processes.push(process);
        }
        cluster
    }

    fn start(&mut self, name: String) -> SimulatedProcess {
        let number = self.next_process;
        self.next_process += 1;
        let policy = POLICIES[(self.policy + number as usize) % POLICIES.len()];
        let rules = MemberRules { policy, ..RULES };
        let mut member = QuotaMember::new(name.clone(), rules, number * 7919 + 1, self.now());
        member.register_budget("streams", self.limits.0, Allocation::Blocks);
        member.register_keyed_limit("user", self.limits.1);
        SimulatedProcess {
            number,
            name,
            member,
            leases: Vec::new(),
            callers: Vec::new(),
            paused: false,
            by_policy: 0,
            counted_members: Default::default(),
        }
    }

    fn now(&self) -> Instant {
        self.origin + self.time
    }

    fn accounts() -> [AccountId; 3] {
        [
            AccountId::Budget(0),
            AccountId::Key(0, AccountKey::new(&KeyPrefix::for_limit("user"), KEYS[0])),
            AccountId::Key(0, AccountKey::new(&KeyPrefix::for_limit("user"), KEYS[1])),
        ]
    }

    fn step(&mut self, (action, a, b): (u8, u8, u8)) {
        let (a, b) = (usize::from(a), usize::from(b));
        let index = a % self.processes.len();
        match action % 36 {
            0..=5 => self.take(index, &Self::accounts()[b % 3]),
            6..=8 => self.release(index, b),
            9..=13 => self.apply(a),
            14..=18 => self.deliver(a),
            19..=21 => self.advance(MS(1 + b as u64 % 12)),
            22 => self.time_out(a),
            23 if !self.network.is_empty() => self.drop_request(a),
            24 => self.processes[index].paused = b % 3 == 0,
            25 if b % 4 == 0 => self.restart(index),
            26 if b % 8 == 0 => self.lose_everything(),
            27 if b % 4 == 0 => self.snapshots.push(self.ledger.clone()),
            28 if b % 8 == 0 => self.roll_back(a),
            29 => {
                if let Some(caller) = self.processes[index].callers.get(b % 3) {
                    caller.cancelled.set(true);
                }
            }
            30 if !self.processes[index].paused => self.processes[index].member.on_pressure(),
            31 | 32 => self.change_limit(index, b),
            33 if b % 4 == 0 => self.leave(index),
            34 if b % 4 == 0 => self.store_outage(b),
            _ => self.advance(MS(3)),
        }
        self.run_processes();
        self.excuse_falsely_expired();
        self.check();
    }

    /// Changes a limit, for all running processes or for one.
    fn change_limit(&mut self, index: usize, choice: usize) {
        let (of_budget, for_all, to) = (choice.is_multiple_of(2), choice % 4 > 1, choice as u32 / 4);
        let to = if of_budget { 1 + to % (BUDGET_LIMIT + 2) } else { 1 + to % (KEY_LIMIT + 1) };
        if for_all {
            *(if of_budget { &mut self.limits.0 } else { &mut self.limits.1 }) = to;
        }
        for (at, process) in self.processes.iter_mut().enumerate() {
            if process.paused || !(for_all || at == index) {
                continue;
            }
            match of_budget {
                true => process.member.set_budget_limit(0, to),
                false => process.member.set_keyed_limit(0, to),
            }
            let what = if of_budget { "streams" } else { "user" };
            self.history.push(format!("{:?}: {}'s limit of {what} is {to}", self.time, process.number));
        }
    }

    /// Releases all leases and leaves. The successor has the same name.
    fn leave(&mut self, index: usize) {
        if self.processes[index].paused {
            return;
        }
        // Released units are lent to waiting callers, which release them in turn.
        while !self.processes[index].leases.is_empty() {
            self.release_all(index);
            self.run_processes();
        }
        let process = &mut self.processes[index];
        process.member.leave();
        let (number, call) = (process.number, MemberCall::Leave(process.member.id().clone()));
        self.run_processes();
        let process = &self.processes[index];
        assert!(
            process.callers.iter().all(SimulatedCaller::is_cancelled),
            "every caller that still waits got a verdict"
        );
        assert!(process.leases.is_empty(), "nothing is lent by a member that has left");
        let left = CallInTransit::new(number, call);
        self.network.push(CallInTransit { timed_out: true, ..left });
        self.coverage.left += 1;
        self.replace_process(index, "leaves");
    }

    fn release_all(&mut self, index: usize) {
        while !self.processes[index].leases.is_empty() {
            self.release(index, 0);
        }
    }

    fn take(&mut self, index: usize, account_id: &AccountId) {
        let now = self.now();
        let process = &mut self.processes[index];
        if process.paused {
            return;
        }
        let caller =
            SimulatedCaller { process: process.number, cancelled: Rc::default(), verdicts: Rc::default() };
        match process.member.take(account_id, now, || caller.clone()) {
            TakeDecision::Granted => {
                self.history.push(format!("{:?}: {} takes {account_id:?}", self.time, process.number));
                process.leases.push(account_id.clone());
                if process.take_policy_grants() > 0 {
                    self.check_policy_grant(index, account_id);
                }
            }
            TakeDecision::Refused(refusal) => self.coverage.refuse(&refusal),
            TakeDecision::Waiting => process.callers.push(caller),
        }
    }

    fn release(&mut self, index: usize, choice: usize) {
        let now = self.now();
        let process = &mut self.processes[index];
        if !process.paused && !process.leases.is_empty() {
            let lease = process.leases.swap_remove(choice % process.leases.len());
            process.member.release(&lease, now);
            self.history.push(format!("{:?}: {} releases {lease:?}", self.time, process.number));
        }
    }

    /// Applies a random call in the store.
    fn apply(&mut self, choice: usize) {
        let waiting: Vec<_> =
            (0..self.network.len()).filter(|at| self.network[*at].reply.is_none()).collect();
        if let Some(&at) = waiting.get(choice % waiting.len().max(1)) {
            self.apply_at(at);
        }
    }

    fn apply_at(&mut self, at: usize) {
        let time = self.time;
        let (was_rebuilding, alive) = (self.ledger.is_rebuilding(), self.alive());
        let rebuild_ends_at = self.ledger.rebuild_ends_at();
        let reply = match &self.network[at].call {
            MemberCall::Heartbeat(heartbeat) => {
                TransitReply::Heartbeat(self.ledger.heartbeat(heartbeat, time))
            }
            MemberCall::Settle(settlement) => TransitReply::Settle(self.ledger.settle(settlement, time)),
            MemberCall::Leave(member) => {
                self.ledger.leave(member);
                TransitReply::Leave
            }
        };
        if matches!(reply, TransitReply::Settle(SettlementReply::Stale)) {
            self.coverage.stale += 1;
        }
        if !was_rebuilding && self.ledger.is_rebuilding() {
            // Members that expired with this heartbeat have until the end of the rebuild to report.
            let now_alive = self.alive();
            self.unreported.extend(alive.difference(&now_alive));
            self.coverage.expired_together += 1;
        }
        let CallInTransit { process, call, .. } = &self.network[at];
        self.history.push(format!("{time:?}: applied for {process}: {call:?}: {reply:?}"));
        if was_rebuilding {
            self.check_rebuild_grants(at, &reply);
        }
        if !self.ledger.is_rebuilding() && rebuild_ends_at.is_some_and(|at| at > time) {
            self.check_early_end();
        }
        self.applied += 1;
        self.network[at].alive_after = (self.applied, self.alive());
        self.network[at].reply = Some(reply);
        if self.network[at].timed_out {
            self.network.swap_remove(at);
        }
    }

    fn deliver(&mut self, choice: usize) {
        let running =
            |number: u64| self.processes.iter().any(|process| process.number == number && !process.paused);
        let replied: Vec<_> = (0..self.network.len())
            .filter(|at| self.network[*at].reply.is_some() && running(self.network[*at].process))
            .collect();
        let Some(&at) = replied.get(choice % replied.len().max(1)) else { return };
        let CallInTransit { process, reply, alive_after, .. } = self.network.swap_remove(at);
        let now = self.now();
        let Some(process) = self.processes.iter_mut().find(|candidate| candidate.number == process) else {
            return;
        };
        let reply = reply.expect("the call has a reply");
        self.history.push(format!("{:?}: {} receives {reply:?}", self.time, process.number));
        match reply {
            TransitReply::Heartbeat(reply) => {
                if reply.rebuild_left.is_zero() {
                    process.counted_members = alive_after;
                }
                process.member.on_heartbeat_reply(Ok(reply), now);
            }
            TransitReply::Settle(settled) => process.member.on_settlement_reply(Ok(settled), now),
            TransitReply::Leave => process.member.on_leave_reply(Ok(()), now),
        }
    }

    /// Lets the sender of a call time out. The store may apply the call later.
    fn time_out(&mut self, choice: usize) {
        let open: Vec<_> = (0..self.network.len()).filter(|at| !self.network[*at].timed_out).collect();
        let Some(&at) = open.get(choice % open.len().max(1)) else { return };
        let (now, number) = (self.now(), self.network[at].process);
        let Some(process) =
            self.processes.iter_mut().find(|process| process.number == number && !process.paused)
        else {
            return;
        };
        let no_reply = || Err(CallError::Dropped);
        match &self.network[at].call {
            MemberCall::Heartbeat(_) => {
                process.member.on_heartbeat_reply(no_reply().map(|()| unreachable!()), now)
            }
            MemberCall::Settle(_) => {
                process.member.on_settlement_reply(no_reply().map(|()| unreachable!()), now)
            }
            MemberCall::Leave(_) => process.member.on_leave_reply(no_reply(), now),
        }
        self.history.push(format!("{:?}: {number} times out on {:?}", self.time, self.network[at].call));
        self.network[at].timed_out = true;
        if self.network[at].reply.is_some() {
            self.network.swap_remove(at);
        }
    }

    /// Drops a call before the store applies it. Its sender gets an error.
    fn drop_request(&mut self, choice: usize) {
        let at = choice % self.network.len();
        if self.network[at].reply.is_none() && !self.network[at].timed_out {
            self.fail_at(at);
        }
    }

    fn fail_at(&mut self, at: usize) {
        let (now, number) = (self.now(), self.network[at].process);
        if let Some(process) =
            self.processes.iter_mut().find(|process| process.number == number && !process.paused)
        {
            let transit = self.network.swap_remove(at);
            match transit.call {
                MemberCall::Heartbeat(_) => process.member.on_heartbeat_reply(Err(CallError::Dropped), now),
                MemberCall::Settle(_) => process.member.on_settlement_reply(Err(CallError::Dropped), now),
                MemberCall::Leave(_) => process.member.on_leave_reply(Err(CallError::Dropped), now),
            }
        }
    }

    /// Makes the store unavailable for half a TTL to two TTLs while the processes run. Their calls
    /// are lost, or applied in order afterwards.
    fn store_outage(&mut self, choice: usize) {
        self.history.push(format!("{:?}: the store is unavailable", self.time));
        let end = self.time + RULES.ttl * (2 + choice as u32 / 8 % 7) / 4;
        while self.time < end {
            self.advance(RULES.retry);
            self.run_processes();
            for index in 0..self.network.len() {
                self.time_out(index);
            }
            self.excuse_falsely_expired();
        }
        self.history.push(format!("{:?}: the store is available", self.time));
        // Calls of a paused process have not timed out and stay in flight.
        let (sent, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.network)
            .into_iter()
            .partition(|transit| transit.reply.is_none() && transit.timed_out);
        self.network = kept;
        for transit in sent.into_iter().filter(|_| choice % 8 > 3) {
            self.network.push(transit);
            self.apply_at(self.network.len() - 1);
            self.excuse_falsely_expired();
            self.check();
        }
        self.coverage.outages += 1;
    }

    fn advance(&mut self, time: Duration) {
        self.time += time;
    }

    /// Kills the process and starts another of the same name. Its leases end with it.
    fn restart(&mut self, index: usize) {
        self.replace_process(index, "is killed");
    }

    fn replace_process(&mut self, index: usize, event: &str) {
        let name = self.processes[index].name.clone();
        let number = self.processes[index].number;
        self.allowance.forget(number);
        // Removes the take-over of the old process: a store reads its sockets in order, so it can't
        // apply that call after the successor's take-over.
        let takes_over = |call: &MemberCall| matches!(call, MemberCall::Heartbeat(heartbeat) if heartbeat.kind == HeartbeatKind::TakeOver);
        self.network.retain(|transit| transit.process != number || !takes_over(&transit.call));
        let process = self.start(name);
        self.history.push(format!("{:?}: {number} {event}, {} started", self.time, process.number));
        self.processes[index] = process;
    }

    fn lose_everything(&mut self) {
        self.history.push(format!("{:?}: the store loses its data", self.time));
        self.keeps_writes = false;
        self.ledger = StoreLedger::default();
        // The replicas lose their data as well: an earlier state can't come back.
        self.snapshots.clear();
        self.unreported = self.processes.iter().map(|process| process.number).collect();
    }

    /// Fails over to a replica that lacks the last writes.
    fn roll_back(&mut self, choice: usize) {
        if self.snapshots.is_empty() {
            return;
        }
        let old = self.snapshots.swap_remove(choice % self.snapshots.len());
        self.snapshots.clear();
        for process in &self.processes {
            for account in Self::accounts() {
                let claim = self.claim(process, &account);
                let lost = claim.saturating_sub(counted(&old, process, &account));
                self.coverage.lost += u32::from(lost > 0);
                self.allowance.excuse(process.number, &account, lost);
            }
        }
        self.history.push(format!("{:?}: the store loses its last writes", self.time));
        (self.keeps_writes, self.rolled_back) = (false, true);
        self.ledger = old;
    }

    fn run_processes(&mut self) {
        for index in 0..self.processes.len() {
            if self.processes[index].paused {
                continue;
            }
            while self.run_member(index) {}
            let process = &mut self.processes[index];
            assert!(process.callers.iter().all(|caller| caller.verdicts.get() <= 1), "two verdicts");
            process.callers.retain(|caller| caller.verdicts.get() == 0);
        }
    }

    /// Runs a member once. Returns true if there were verdicts: releasing a unit may cause more.
    fn run_member(&mut self, index: usize) -> bool {
        let now = self.now();
        let process = &mut self.processes[index];
        while let Some(call) = process.member.poll(now) {
            self.network.push(CallInTransit::new(process.number, call));
        }
        for notice in process.member.take_notices() {
            if let MemberNotice::Rejoined { why, .. } = notice {
                *self.coverage.rejoins.entry(why.as_str()).or_default() += 1;
            }
        }
        let verdicts = process.member.take_verdicts();
        let (lent, by_policy) =
            (verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).count(), process.take_policy_grants());
        assert!(
            by_policy == 0 || by_policy == lent as u64,
            "in an outage the policy decides for all callers"
        );
        let had_verdicts = !verdicts.is_empty();
        for (caller, verdict) in verdicts {
            let process = &mut self.processes[index];
            assert_eq!(caller.process, process.number);
            caller.verdicts.set(caller.verdicts.get() + 1);
            match verdict {
                Ok(account_id) if caller.is_cancelled() => process.member.release(&account_id, now),
                Ok(account_id) => {
                    self.coverage.grants += 1;
                    self.history.push(format!("{:?}: {} gets {account_id:?}", self.time, process.number));
                    process.leases.push(account_id.clone());
                    if by_policy > 0 {
                        self.check_policy_grant(index, &account_id);
                    }
                }
                Err(refusal) => self.coverage.refuse(&refusal),
            }
        }
        had_verdicts
    }

    /// Checks that the policy allows a unit that was lent without the store.
    fn check_policy_grant(&mut self, index: usize, account_id: &AccountId) {
        let (process, now) = (&self.processes[index], self.now());
        let (limit, in_blocks) = (limit_of(process, account_id), matches!(account_id, AccountId::Budget(_)));
        let most = match process.member.policy() {
            OutagePolicy::Closed => 0,
            OutagePolicy::Share if in_blocks => (limit / process.member.sharing_members()).clamp(1, limit),
            OutagePolicy::Share => limit,
            OutagePolicy::Open => u32::MAX,
        };
        let has = leases_of(process, account_id);
        let history = || self.history.join("\n");
        assert!(has <= most, "{has} of {account_id:?} by policy, of {most}\n{}", history());
        assert!(process.member.outage().is_some(), "the store is available\n{}", history());
        assert!(
            !in_blocks || now >= process.member.slice_deadline,
            "the slice deadline has not passed\n{}",
            history()
        );
        *self.coverage.by_policy.entry(process.member.policy().as_str()).or_default() += 1;
        let claim = self.claim(process, account_id);
        self.allowance.excuse_one(process.number, account_id, claim);
    }

    /// Checks that units granted during a rebuild are within the ceiling of their member. They may
    /// be units of processes that have yet to report.
    fn check_rebuild_grants(&mut self, at: usize, reply: &TransitReply) {
        let MemberCall::Settle(settlement) = &self.network[at].call else { return };
        let TransitReply::Settle(SettlementReply::Applied(replies)) = reply else { return };
        let mut granted = Vec::new();
        for (request, reply) in settlement.requests.iter().zip(replies) {
            if reply.count <= request.floor {
                continue;
            }
            let most = ceiling(request.allocation, request.limit, Some(settlement.rebuild_parts));
            assert!(reply.count <= most, "{} of {most}\n{}", reply.count, self.history.join("\n"));
            assert!(reply.total <= request.limit, "reported units count\n{}", self.history.join("\n"));
            granted.extend(Self::accounts().into_iter().find(|id| store_name(id) == request.account));
        }
        for account in granted {
            self.coverage.granted_in_rebuild += 1;
            for process in self.processes.iter().filter(|process| self.unreported.contains(&process.number)) {
                let claim = self.claim(process, &account);
                self.allowance.excuse(process.number, &account, claim);
            }
        }
    }

    /// Checks that no process has yet to report that the store counted in the latest reply which a
    /// live process had before the rebuild.
    fn check_early_end(&mut self) {
        self.coverage.early_ends += 1;
        let is_alive = |process: &&SimulatedProcess| self.ledger.is_alive(process.member.id());
        let replies = self.processes.iter().filter(is_alive).map(|process| &process.counted_members);
        let Some((_, counted)) = replies.max_by_key(|(number, _)| *number) else { return };
        for process in self.processes.iter().filter(|process| counted.contains(&process.number)) {
            let missing = self.unreported.contains(&process.number) && !self.has_pushed_all(process);
            assert!(
                !missing || self.rolled_back,
                "{} has yet to report\n{}",
                process.number,
                self.history.join("\n")
            );
        }
    }

    /// Returns the processes whose members are alive in the store.
    fn alive(&self) -> HashSet<u64> {
        let alive = self.processes.iter().filter(|process| self.ledger.is_alive(process.member.id()));
        alive.map(|process| process.number).collect()
    }

    /// Returns whether the store has recorded all that a process holds.
    fn has_pushed_all(&self, process: &SimulatedProcess) -> bool {
        Self::accounts().iter().all(|account| self.written(process, account) >= self.held(process, account))
    }

    /// Returns what a process has lent, or may lend without a call.
    fn held(&self, process: &SimulatedProcess, account: &AccountId) -> u32 {
        leases_of(process, account).max(slice_of(process, account, self.now()))
    }

    fn written(&self, process: &SimulatedProcess, account: &AccountId) -> u32 {
        self.ledger.held(&store_name(account)).get(process.member.id()).copied().unwrap_or(0)
    }

    /// Returns what a process holds, or will hold by a reply in flight, even if the store has lost
    /// it since.
    fn claim(&self, process: &SimulatedProcess, account: &AccountId) -> u32 {
        let name = store_name(account);
        let in_flight =
            self.network.iter().filter(|transit| transit.process == process.number).filter_map(|transit| {
                match (&transit.call, &transit.reply) {
                    (
                        MemberCall::Settle(settlement),
                        Some(TransitReply::Settle(SettlementReply::Applied(replies))),
                    ) if settlement.member == *process.member.id() => {
                        let at = settlement.requests.iter().position(|request| request.account == name)?;
                        Some(replies[at].count)
                    }
                    _ => None,
                }
            });
        in_flight.fold(self.held(process, account), u32::max)
    }

    /// Returns the least that the store counts for a process, whichever of its settlements is
    /// applied next.
    fn least(&self, process: &SimulatedProcess, account: &AccountId) -> u32 {
        let (name, id) = (store_name(account), process.member.id());
        let unapplied = self.network.iter().filter(|transit| transit.reply.is_none());
        let floors = unapplied.filter_map(|transit| match &transit.call {
            MemberCall::Settle(settlement)
                if settlement.member == *id && settlement.sequence > self.ledger.sequence(id) =>
            {
                settlement
                    .requests
                    .iter()
                    .find(|request| request.account == name)
                    .map(|request| request.floor)
            }
            MemberCall::Settle(_) | MemberCall::Heartbeat(_) | MemberCall::Leave(_) => None,
        });
        floors.fold(counted(&self.ledger, process, account), u32::min)
    }

    /// Returns the largest limit that a member uses, or has sent.
    fn limit(&self, account: &AccountId) -> u32 {
        let name = store_name(account);
        let is_running = |number: u64| self.processes.iter().any(|process| process.number == number);
        let sent =
            self.network.iter().filter(|transit| transit.reply.is_none() && is_running(transit.process));
        let sent = sent.filter_map(|transit| match &transit.call {
            MemberCall::Settle(settlement) => {
                settlement.requests.iter().find(|request| request.account == name)
            }
            MemberCall::Heartbeat(_) | MemberCall::Leave(_) => None,
        });
        let own = self.processes.iter().map(|process| limit_of(process, account));
        own.chain(sent.map(|request| request.limit)).max().unwrap_or(0)
    }

    /// Allows the excess of falsely expired processes: running processes that the store has
    /// removed, after their own deadline or because the store lost one of their heartbeats.
    /// After the store lost data, a process also counts as falsely expired if it didn't report
    /// before the rebuild ended, or before its predecessor was removed. This lasts until it has
    /// reported again.
    fn excuse_falsely_expired(&mut self) {
        let now = self.now();
        for process in &self.processes {
            let alive = self.ledger.is_alive(process.member.id());
            let deadline_passed = now >= process.member.slice_deadline;
            if let Some(expires) = self.ledger.expires(process.member.id()) {
                let lends_after_expiry = process.member.slice_deadline > self.origin + expires;
                assert!(
                    !(lends_after_expiry && self.keeps_writes),
                    "{} lends after its expiry in the store",
                    process.number
                );
                self.deadline_after_expiry.remove(&process.number);
                self.deadline_after_expiry.extend(lends_after_expiry.then_some(process.number));
            }
            if alive && self.has_pushed_all(process) {
                self.unreported.remove(&process.number);
            }
            let is_removed = |old: &MemberId| !self.ledger.is_alive(old);
            let too_late = (self.unreported.contains(&process.number) && !self.ledger.is_rebuilding())
                || (process.member.predecessor.as_ref().is_some_and(is_removed)
                    && !self.has_pushed_all(process));
            // During a rebuild, the store grants none of their units to others.
            let may_still_report = self.unreported.contains(&process.number) && self.ledger.is_rebuilding();
            let expired_alone = deadline_passed || self.deadline_after_expiry.contains(&process.number);
            if (!alive && expired_alone && !may_still_report) || too_late {
                for account in Self::accounts() {
                    let claim = self.claim(process, &account);
                    self.allowance.excuse(process.number, &account, claim);
                }
            }
        }
    }

    fn check(&mut self) {
        for account in Self::accounts() {
            let limit = self.limit(&account);
            let claims = self.processes.iter().map(|process| Claim {
                process: process.number,
                claim: self.claim(process, &account),
                counted: counted(&self.ledger, process, &account),
                least: self.least(process, &account),
            });
            let excess = self.allowance.update(&account, limit, &claims.collect::<Vec<_>>());
            let total: u32 = self.processes.iter().map(|process| leases_of(process, &account)).sum();
            assert!(
                total <= limit + excess,
                "{account:?}: {total} leases of {limit}; {:?}\n{}",
                self.allowance,
                self.history.join("\n")
            );
            let lowest = self.processes.iter().map(|process| limit_of(process, &account)).min();
            self.coverage.lowered += u32::from(lowest.is_some_and(|lowest| total > lowest));
            self.coverage.excess += u32::from(total > limit);
            self.coverage.full += u32::from(total == limit);
        }
        for process in &self.processes {
            for account in Self::accounts() {
                let used = process.member.find_account(&account).map_or(0, |account| account.used);
                assert_eq!(used, leases_of(process, &account), "units used and leases of {account:?}");
                let (slice, written) =
                    (slice_of(process, &account, self.now()), self.written(process, &account));
                assert!(
                    slice <= written || !self.keeps_writes,
                    "{} may lend {slice} of {account:?}, the store has recorded {written}\n{}",
                    process.number,
                    self.history.join("\n")
                );
            }
            let waiting = process.member.counters().waiting;
            let active_callers = process.callers.iter().filter(|caller| !caller.is_cancelled()).count();
            assert!(
                (active_callers..=process.callers.len()).contains(&waiting),
                "{waiting} counted, {active_callers} waiting"
            );
        }
    }

    /// Repairs the network and releases all leases. Nothing may be left.
    fn wind_down(&mut self) {
        for process in &mut self.processes {
            process.paused = false;
        }
        self.heal();
        (0..self.processes.len()).for_each(|index| self.release_all(index));
        for _ in 0..600 {
            self.complete_all_calls();
            (0..self.processes.len()).for_each(|index| self.release_all(index));
            self.advance(MS(1));
        }
        self.complete_all_calls();
        self.check();
        self.check_nothing_is_held();
    }

    /// Completes all calls for one heartbeat interval. Then the store must have recorded all lent
    /// units.
    fn heal(&mut self) {
        let healed = self.time + RULES.heartbeat_interval + RULES.retry;
        while self.time < healed {
            self.complete_all_calls();
            self.excuse_falsely_expired();
            self.check();
            self.advance(MS(1));
        }
        self.complete_all_calls();
        self.check();
        for process in &self.processes {
            let is_recorded = self.ledger.is_alive(process.member.id()) && self.has_pushed_all(process);
            assert!(
                is_recorded,
                "the store has not recorded all units of {} one heartbeat later\n{}",
                process.number,
                self.history.join("\n")
            );
            assert_eq!(self.allowance.excused(process.number), 0, "{}", self.history.join("\n"));
        }
    }

    /// Applies and delivers all calls until none is left.
    fn complete_all_calls(&mut self) {
        for _ in 0..100 {
            self.run_processes();
            if self.network.is_empty() {
                return;
            }
            while !self.network.is_empty() {
                let before = self.network.len();
                self.apply(0);
                // One call may remove a member that the next call restores.
                self.excuse_falsely_expired();
                self.check();
                self.deliver(0);
                self.run_processes();
                // Drops replies to processes that have ended.
                let numbers: Vec<_> = self.processes.iter().map(|process| process.number).collect();
                self.network.retain(|transit| transit.reply.is_none() || numbers.contains(&transit.process));
                if self.network.len() == before && self.network.iter().all(|transit| transit.reply.is_some())
                {
                    break;
                }
            }
        }
        panic!("calls never end\n{}", self.history.join("\n"));
    }

    fn check_nothing_is_held(&self) {
        for process in &self.processes {
            assert_eq!(process.member.mode(self.now()), QuotaMode::Normal);
            assert!(
                process.callers.iter().all(SimulatedCaller::is_cancelled),
                "every caller that still waits got a verdict"
            );
            assert_eq!(process.member.counters().waiting, 0);
            assert_eq!(process.member.keyed_limits().map(|(.., keys, _)| keys).sum::<usize>(), 0);
        }
        for key in KEYS {
            let held = self
                .ledger
                .holdings(&[AccountKey::new(&KeyPrefix::for_limit("user"), key).account().clone()], self.time)
                .accounts;
            assert_eq!(held, [], "no member holds units of {key}");
        }
        let streams = self.ledger.holdings(&[budget_account_name("streams")], self.time);
        assert_eq!(streams.members.len(), self.processes.len(), "{streams:?}");
        let held: u32 =
            streams.accounts.iter().flat_map(|shares| &shares.shares).map(|share| share.count).sum();
        assert!(held <= self.limit(&AccountId::Budget(0)), "slices sum to {held}");
        assert!(streams.accounts.iter().flat_map(|shares| &shares.shares).all(|share| share.used == 0));
    }
}

impl CallInTransit {
    fn new(process: u64, call: MemberCall) -> Self {
        CallInTransit { process, call, reply: None, timed_out: false, alive_after: Default::default() }
    }
}

impl SimulatedProcess {
    /// Returns the units lent by its policy since the last call.
    fn take_policy_grants(&mut self) -> u64 {
        let by_policy = self.member.counters().granted_by_policy;
        by_policy - std::mem::replace(&mut self.by_policy, by_policy)
    }
}

impl Coverage {
    fn refuse(&mut self, refusal: &QuotaRefusal) {
        let count = match refusal {
            QuotaRefusal::Full { .. } => &mut self.refusals,
            QuotaRefusal::Rebuilding { .. } => &mut self.rebuilding,
            QuotaRefusal::Unavailable { .. } => &mut self.unavailable,
            QuotaRefusal::Busy { .. } => &mut self.busy,
        };
        *count += 1;
    }
}

fn store_name(account_id: &AccountId) -> Arc<str> {
    match account_id {
        AccountId::Budget(_) => budget_account_name("streams"),
        AccountId::Key(_, key) => key.account().clone(),
    }
}

fn limit_of(process: &SimulatedProcess, account_id: &AccountId) -> u32 {
    match account_id {
        AccountId::Budget(index) => process.member.usage(*index).limit,
        AccountId::Key(index, _) => process.member.limit_of_keyed(*index),
    }
}

/// Returns the share that the store counts for a process; zero if the process has expired there.
fn counted(ledger: &StoreLedger, process: &SimulatedProcess, account: &AccountId) -> u32 {
    let id = process.member.id();
    let shares = ledger.held(&store_name(account));
    if ledger.is_alive(id) { shares.get(id).copied().unwrap_or(0) } else { 0 }
}

fn leases_of(process: &SimulatedProcess, account: &AccountId) -> u32 {
    process.leases.iter().filter(|lease| *lease == account).count() as u32
}

/// Returns what a process may lend without a call.
fn slice_of(process: &SimulatedProcess, account: &AccountId, now: Instant) -> u32 {
    let account = process.member.find_account(account).filter(|_| now < process.member.slice_deadline);
    account.map_or(0, |account| account.slice)
}

fn run(steps: &[(u8, u8, u8)], processes: usize, policy: usize) -> Coverage {
    let mut cluster = SimulatedCluster::new(processes, policy);
    steps.iter().for_each(|step| cluster.step(*step));
    cluster.wind_down();
    cluster.coverage
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn leases_stay_within_the_limits_and_all_units_are_returned(
        steps in prop::collection::vec(any::<(u8, u8, u8)>(), 1..500),
        processes in 1_usize..5,
        policy in 0..POLICIES.len(),
    ) {
        run(&steps, processes, policy);
    }
}

#[test]
fn the_histories_reach_every_outcome() {
    let mut rng = TestRng::new(2026);
    let mut all = Coverage::default();
    for round in 0..150 {
        let steps: Vec<_> = (0..400)
            .map(|_| {
                let roll = rng.roll().to_le_bytes();
                (roll[0], roll[1], roll[2])
            })
            .collect();
        let coverage = run(&steps, 3, round);
        all.grants += coverage.grants;
        all.refusals += coverage.refusals;
        all.rebuilding += coverage.rebuilding;
        all.unavailable += coverage.unavailable;
        all.busy += coverage.busy;
        all.stale += coverage.stale;
        all.excess += coverage.excess;
        all.full += coverage.full;
        all.lost += coverage.lost;
        all.lowered += coverage.lowered;
        all.left += coverage.left;
        all.outages += coverage.outages;
        all.expired_together += coverage.expired_together;
        all.granted_in_rebuild += coverage.granted_in_rebuild;
        all.early_ends += coverage.early_ends;
        coverage
            .by_policy
            .into_iter()
            .for_each(|(policy, count)| *all.by_policy.entry(policy).or_default() += count);
        coverage.rejoins.into_iter().for_each(|(why, count)| *all.rejoins.entry(why).or_default() += count);
    }
    let numbers = [
        all.grants,
        all.refusals,
        all.rebuilding,
        all.unavailable,
        all.busy,
        all.stale,
        all.excess,
        all.full,
        all.lost,
        all.lowered,
        all.left,
        all.outages,
        all.expired_together,
        all.granted_in_rebuild,
        all.early_ends,
    ];
    assert!(numbers.iter().all(|count| *count > 0), "{all:?}");
    assert_eq!((all.rejoins.len(), all.by_policy.len()), (3, 2), "{all:?}");
}
