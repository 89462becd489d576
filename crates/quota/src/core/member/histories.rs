//! Random histories of a whole cluster: members of every policy, a store, and a network that delays, reorders, drops and repeats
//! nothing. Members are killed, paused, and leave; limits are raised and lowered, for all or for one; the store is away for longer
//! than their TTL.
//!
//! What is checked after every step: each member's books agree with the leases that its process has; while the store keeps
//! its writes, it has down at least what each member may lend; what is lent without the store is within the policy; the leases
//! of an account exceed its limit by no more than `allowance.rs` excuses. In the end the network is well: one beat later the store
//! knows of everything that is lent; then everything is given back, and the store's books are empty.

mod allowance;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use proptest::prelude::*;

use self::allowance::{Allowance, Claim};
use super::*;
use crate::config::Policy;
use crate::core::ledger::Ledger;
use crate::status::Mode;
use crate::store::{Pulse, Settled};

const RULES: Rules = Rules {
    beat: MS(20),
    ttl: MS(100),
    margin: MS(10),
    policy: Policy::Closed, // of each process its own
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
const POLICIES: [Policy; 3] = [Policy::Closed, Policy::Share, Policy::Open];
const KEYS: [&str; 2] = ["ann", "bob"];

#[derive(Debug, Clone)]
struct Caller {
    process: u64,
    gone: Rc<Cell<bool>>,
    answered: Rc<Cell<u32>>,
}

impl Waiter for Caller {
    fn gone(&self) -> bool {
        self.gone.get()
    }
}

/// One process: a member, and the leases that its callers have.
struct Process {
    number: u64,
    name: String,
    member: Member<Caller>,
    leases: Vec<AccountRef>,
    callers: Vec<Caller>,
    paused: bool,
    /// How many units it has lent by its policy.
    by_policy: u64,
}

/// A call on its way. Its sender may have given up on it; it can land all the same.
struct Transit {
    process: u64,
    call: Call,
    reply: Option<Reply>,
    given_up: bool,
}

#[derive(Debug)]
enum Reply {
    Beat(Pulse),
    Settle(Settled),
    Leave,
}

struct World {
    origin: Instant,
    time: Duration,
    ledger: Ledger,
    snapshots: Vec<Ledger>,
    processes: Vec<Process>,
    next_process: u64,
    network: Vec<Transit>,
    allowance: Allowance,
    /// What a process is started with.
    limits: (u32, u32),
    /// The policy of the first process; each has the next.
    policy: usize,
    /// Those who haven't told a store that lost its memory all they have.
    forgotten: HashSet<u64>,
    /// Those who trust the store for longer than it remembers them: a beat of theirs is among the writes that it lost.
    trusting: HashSet<u64>,
    /// Whether the store has kept its writes.
    keeps_writes: bool,
    seen: Seen,
    /// Told when a check fails.
    history: Vec<String>,
}

/// What the histories reached, so that a test can say that they reach everything.
#[derive(Debug, Default, Clone)]
struct Seen {
    grants: u32,
    refusals: u32,
    rebuilding: u32,
    unavailable: u32,
    busy: u32,
    reborn: HashMap<&'static str, u32>,
    stale: u32,
    excess: u32,
    full: u32,
    by_policy: HashMap<&'static str, u32>,
    lost: u32,
    lowered: u32,
    left: u32,
    silences: u32,
    /// How often members expired together, and the store began to rebuild.
    expired_together: u32,
}

impl World {
    fn new(processes: usize, policy: usize) -> Self {
        let mut world = World {
            origin: Instant::now(),
            time: MS(1000),
            ledger: Ledger::newborn(),
            snapshots: Vec::new(),
            processes: Vec::new(),
            next_process: 0,
            network: Vec::new(),
            allowance: Allowance::default(),
            limits: (BUDGET_LIMIT, KEY_LIMIT),
            policy,
            forgotten: HashSet::new(),
            trusting: HashSet::new(),
            keeps_writes: true,
            seen: Seen::default(),
            history: Vec::new(),
        };
        for index in 0..processes {
            let process = world.start(format!("m{index}"));
            world.processes.push(process);
        }
        world
    }

    fn start(&mut self, name: String) -> Process {
        let number = self.next_process;
        self.next_process += 1;
        let policy = POLICIES[(self.policy + number as usize) % POLICIES.len()];
        let rules = Rules { policy, ..RULES };
        let mut member = Member::new(name.clone(), rules, number * 7919 + 1, self.now());
        member.budget("streams", self.limits.0, Sharing::Blocks);
        member.keyed("user", self.limits.1);
        Process { number, name, member, leases: Vec::new(), callers: Vec::new(), paused: false, by_policy: 0 }
    }

    fn now(&self) -> Instant {
        self.origin + self.time
    }

    fn accounts() -> [AccountRef; 3] {
        [
            AccountRef::Budget(0),
            AccountRef::Key(0, Key::new(&KeyPrefix::of("user"), KEYS[0])),
            AccountRef::Key(0, Key::new(&KeyPrefix::of("user"), KEYS[1])),
        ]
    }

    fn step(&mut self, (action, a, b): (u8, u8, u8)) {
        let (a, b) = (usize::from(a), usize::from(b));
        let index = a % self.processes.len();
        match action % 36 {
            0..=5 => self.take(index, &Self::accounts()[b % 3]),
            6..=8 => self.give(index, b),
            9..=13 => self.land(a),
            14..=18 => self.deliver(a),
            19..=21 => self.pass(MS(1 + b as u64 % 12)),
            22 => self.give_up(a),
            23 if !self.network.is_empty() => self.lose_request(a),
            24 => self.processes[index].paused = b % 3 == 0,
            25 if b % 4 == 0 => self.restart(index),
            26 if b % 8 == 0 => self.lose_everything(),
            27 if b % 4 == 0 => self.snapshots.push(self.ledger.clone()),
            28 if b % 8 == 0 => self.roll_back(a),
            29 => {
                if let Some(caller) = self.processes[index].callers.get(b % 3) {
                    caller.gone.set(true);
                }
            }
            30 if !self.processes[index].paused => self.processes[index].member.on_pressed(),
            31 | 32 => self.change_limit(index, b),
            33 if b % 4 == 0 => self.leave(index),
            34 if b % 4 == 0 => self.silence(b),
            _ => self.pass(MS(3)),
        }
        self.run_processes();
        self.account_for_the_falsely_dead();
        self.check();
    }

    /// For all that run, or for one of them.
    fn change_limit(&mut self, index: usize, how: usize) {
        let (of_budget, for_all, to) = (how.is_multiple_of(2), how % 4 > 1, how as u32 / 4);
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

    /// Gives everything back and goes; its successor has its name.
    fn leave(&mut self, index: usize) {
        if self.processes[index].paused {
            return;
        }
        // What comes back is lent to those who wait, and they give it back in turn.
        while !self.processes[index].leases.is_empty() {
            self.give_all(index);
            self.run_processes();
        }
        let process = &mut self.processes[index];
        process.member.leave();
        let (number, call) = (process.number, Call::Leave(process.member.id().clone()));
        self.run_processes();
        let process = &self.processes[index];
        assert!(process.callers.iter().all(Caller::gone), "everybody who listens was answered");
        assert!(process.leases.is_empty(), "nothing is lent by a member that has left");
        self.network.push(Transit { process: number, call, reply: None, given_up: true });
        self.seen.left += 1;
        self.succeed(index, "leaves");
    }

    fn give_all(&mut self, index: usize) {
        while !self.processes[index].leases.is_empty() {
            self.give(index, 0);
        }
    }

    fn take(&mut self, index: usize, of: &AccountRef) {
        let now = self.now();
        let process = &mut self.processes[index];
        if process.paused {
            return;
        }
        let caller = Caller { process: process.number, gone: Rc::default(), answered: Rc::default() };
        match process.member.take(of, now, || caller.clone()) {
            Take::Granted => {
                self.history.push(format!("{:?}: {} takes {of:?}", self.time, process.number));
                process.leases.push(of.clone());
                if process.has_used_its_policy() > 0 {
                    self.lent_by_policy(index, of);
                }
            }
            Take::Refused(refusal) => self.seen.refuse(&refusal),
            Take::Waiting => process.callers.push(caller),
        }
    }

    fn give(&mut self, index: usize, which: usize) {
        let now = self.now();
        let process = &mut self.processes[index];
        if !process.paused && !process.leases.is_empty() {
            let lease = process.leases.swap_remove(which % process.leases.len());
            process.member.give(&lease, now);
            self.history.push(format!("{:?}: {} gives {lease:?}", self.time, process.number));
        }
    }

    /// A call reaches the store, in whatever order.
    fn land(&mut self, which: usize) {
        let waiting: Vec<_> =
            (0..self.network.len()).filter(|at| self.network[*at].reply.is_none()).collect();
        if let Some(&at) = waiting.get(which % waiting.len().max(1)) {
            self.land_at(at);
        }
    }

    fn land_at(&mut self, at: usize) {
        let time = self.time;
        let (was_rebuilding, alive) = (self.ledger.is_rebuilding(), self.alive());
        let reply = match &self.network[at].call {
            Call::Beat(beat) => Reply::Beat(self.ledger.beat(beat, time)),
            Call::Settle(settlement) => Reply::Settle(self.ledger.settle(settlement, time)),
            Call::Leave(member) => {
                self.ledger.leave(member);
                Reply::Leave
            }
        };
        if matches!(reply, Reply::Settle(Settled::Stale)) {
            self.seen.stale += 1;
        }
        if !was_rebuilding && self.ledger.is_rebuilding() {
            // Those that expired with this beat have until its end to tell what they have.
            let now_alive = self.alive();
            self.forgotten.extend(alive.difference(&now_alive));
            self.seen.expired_together += 1;
        }
        let Transit { process, call, .. } = &self.network[at];
        self.history.push(format!("{time:?}: landed of {process}: {call:?}: {reply:?}"));
        self.network[at].reply = Some(reply);
        if self.network[at].given_up {
            self.network.swap_remove(at);
        }
    }

    fn deliver(&mut self, which: usize) {
        let running =
            |number: u64| self.processes.iter().any(|process| process.number == number && !process.paused);
        let answered: Vec<_> = (0..self.network.len())
            .filter(|at| self.network[*at].reply.is_some() && running(self.network[*at].process))
            .collect();
        let Some(&at) = answered.get(which % answered.len().max(1)) else { return };
        let Transit { process, reply, .. } = self.network.swap_remove(at);
        let now = self.now();
        let Some(process) = self.processes.iter_mut().find(|candidate| candidate.number == process) else {
            return;
        };
        let reply = reply.expect("it is answered");
        self.history.push(format!("{:?}: {} hears {reply:?}", self.time, process.number));
        match reply {
            Reply::Beat(pulse) => process.member.on_pulse(Ok(pulse), now),
            Reply::Settle(settled) => process.member.on_settled(Ok(settled), now),
            Reply::Leave => process.member.on_left(Ok(()), now),
        }
    }

    /// The sender's timeout passes; the call may land later.
    fn give_up(&mut self, which: usize) {
        let open: Vec<_> = (0..self.network.len()).filter(|at| !self.network[*at].given_up).collect();
        let Some(&at) = open.get(which % open.len().max(1)) else { return };
        let (now, number) = (self.now(), self.network[at].process);
        let Some(process) =
            self.processes.iter_mut().find(|process| process.number == number && !process.paused)
        else {
            return;
        };
        let why = || Err("no answer".to_string());
        match &self.network[at].call {
            Call::Beat(_) => process.member.on_pulse(why().map(|()| unreachable!()), now),
            Call::Settle(_) => process.member.on_settled(why().map(|()| unreachable!()), now),
            Call::Leave(_) => process.member.on_left(why(), now),
        }
        self.history.push(format!("{:?}: {number} gives up on {:?}", self.time, self.network[at].call));
        self.network[at].given_up = true;
        if self.network[at].reply.is_some() {
            self.network.swap_remove(at);
        }
    }

    /// The call never lands, and its sender hears of that.
    fn lose_request(&mut self, which: usize) {
        let at = which % self.network.len();
        if self.network[at].reply.is_none() && !self.network[at].given_up {
            self.give_up_at(at);
        }
    }

    fn give_up_at(&mut self, at: usize) {
        let (now, number) = (self.now(), self.network[at].process);
        if let Some(process) =
            self.processes.iter_mut().find(|process| process.number == number && !process.paused)
        {
            let transit = self.network.swap_remove(at);
            match transit.call {
                Call::Beat(_) => process.member.on_pulse(Err("refused".into()), now),
                Call::Settle(_) => process.member.on_settled(Err("refused".into()), now),
                Call::Leave(_) => process.member.on_left(Err("refused".into()), now),
            }
        }
    }

    /// The store is away for half a TTL to two, and the processes run on without it. What they said meanwhile is lost, or
    /// lands when it is back, in the order in which it was said.
    fn silence(&mut self, how: usize) {
        self.history.push(format!("{:?}: the store is away", self.time));
        let end = self.time + RULES.ttl * (2 + how as u32 / 8 % 7) / 4;
        while self.time < end {
            self.pass(RULES.retry);
            self.run_processes();
            for which in 0..self.network.len() {
                self.give_up(which);
            }
            self.account_for_the_falsely_dead();
        }
        self.history.push(format!("{:?}: the store is back", self.time));
        // Of a process that stood still nothing was given up: its calls may take as long.
        let (said, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.network)
            .into_iter()
            .partition(|transit| transit.reply.is_none() && transit.given_up);
        self.network = kept;
        for transit in said.into_iter().filter(|_| how % 8 > 3) {
            self.network.push(transit);
            self.land_at(self.network.len() - 1);
            self.account_for_the_falsely_dead();
            self.check();
        }
        self.seen.silences += 1;
    }

    fn pass(&mut self, time: Duration) {
        self.time += time;
    }

    /// Killed, and started again under its name; its leases died with it.
    fn restart(&mut self, index: usize) {
        self.succeed(index, "is killed");
    }

    fn succeed(&mut self, index: usize, how: &str) {
        let name = self.processes[index].name.clone();
        let number = self.processes[index].number;
        self.allowance.forget(number);
        // Its take-over can't land after its successor's: a store reads what lies in its sockets before what comes later.
        let takes_over = |call: &Call| matches!(call, Call::Beat(beat) if beat.kind == BeatKind::TakeOver);
        self.network.retain(|transit| transit.process != number || !takes_over(&transit.call));
        let process = self.start(name);
        self.history.push(format!("{:?}: {number} {how}, {} started", self.time, process.number));
        self.processes[index] = process;
    }

    fn lose_everything(&mut self) {
        self.history.push(format!("{:?}: the store loses its memory", self.time));
        self.keeps_writes = false;
        self.ledger = Ledger::default();
        // Its replicas forget with it; and what is written down nowhere any more can't be told from what never was.
        self.snapshots.clear();
        self.forgotten = self.processes.iter().map(|process| process.number).collect();
    }

    /// A replica takes over that lost the last writes.
    fn roll_back(&mut self, which: usize) {
        if self.snapshots.is_empty() {
            return;
        }
        let old = self.snapshots.swap_remove(which % self.snapshots.len());
        self.snapshots.clear();
        for process in &self.processes {
            for account in Self::accounts() {
                let claim = self.claim(process, &account);
                let lost = claim.saturating_sub(counted(&old, process, &account));
                self.seen.lost += u32::from(lost > 0);
                self.allowance.excuse(process.number, &account, lost);
            }
        }
        self.history.push(format!("{:?}: the store loses its last writes", self.time));
        self.keeps_writes = false;
        self.ledger = old;
    }

    fn run_processes(&mut self) {
        for index in 0..self.processes.len() {
            if self.processes[index].paused {
                continue;
            }
            while self.run(index) {}
            let process = &mut self.processes[index];
            assert!(process.callers.iter().all(|caller| caller.answered.get() <= 1), "answered twice");
            process.callers.retain(|caller| caller.answered.get() == 0);
        }
    }

    /// Whether there was something to tell its callers: then there may be more.
    fn run(&mut self, index: usize) -> bool {
        let now = self.now();
        let process = &mut self.processes[index];
        while let Some(call) = process.member.poll(now) {
            self.network.push(Transit { process: process.number, call, reply: None, given_up: false });
        }
        for notice in process.member.take_notices() {
            if let Notice::Reborn { why, .. } = notice {
                *self.seen.reborn.entry(why.as_str()).or_default() += 1;
            }
        }
        let verdicts = process.member.take_verdicts();
        let (lent, by_policy) =
            (verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).count(), process.has_used_its_policy());
        assert!(by_policy == 0 || by_policy == lent as u64, "an outage answers everybody by the policy");
        let is_over = verdicts.is_empty();
        for (caller, verdict) in verdicts {
            let process = &mut self.processes[index];
            assert_eq!(caller.process, process.number);
            caller.answered.set(caller.answered.get() + 1);
            match verdict {
                Ok(of) if caller.gone() => process.member.give(&of, now),
                Ok(of) => {
                    self.seen.grants += 1;
                    self.history.push(format!("{:?}: {} gets {of:?}", self.time, process.number));
                    process.leases.push(of.clone());
                    if by_policy > 0 {
                        self.lent_by_policy(index, &of);
                    }
                }
                Err(refusal) => self.seen.refuse(&refusal),
            }
        }
        !is_over
    }

    /// A unit was lent without the store: it must be one that the policy allows.
    fn lent_by_policy(&mut self, index: usize, of: &AccountRef) {
        let (process, now) = (&self.processes[index], self.now());
        let (limit, in_blocks) = (limit_of(process, of), matches!(of, AccountRef::Budget(_)));
        let most = match process.member.policy() {
            Policy::Closed => 0,
            Policy::Share if in_blocks => (limit / process.member.members().max(1)).clamp(1, limit),
            Policy::Share => limit,
            Policy::Open => u32::MAX,
        };
        let has = leases_of(process, of);
        let history = || self.history.join("\n");
        assert!(has <= most, "{has} of {of:?} by policy, of {most}\n{}", history());
        assert!(process.member.outage().is_some(), "the store is there\n{}", history());
        assert!(!in_blocks || now >= process.member.until, "a slice still holds\n{}", history());
        *self.seen.by_policy.entry(process.member.policy().as_str()).or_default() += 1;
        let claim = self.claim(process, of);
        self.allowance.excuse_one(process.number, of, claim);
    }

    /// The processes that the store knows.
    fn alive(&self) -> HashSet<u64> {
        let known = self.processes.iter().filter(|process| self.ledger.is_alive(process.member.id()));
        known.map(|process| process.number).collect()
    }

    /// Whether the store has down all that a process has.
    fn has_told_all(&self, process: &Process) -> bool {
        Self::accounts().iter().all(|account| self.written(process, account) >= self.held(process, account))
    }

    /// What a process has lent, or may lend by itself.
    fn held(&self, process: &Process, account: &AccountRef) -> u32 {
        leases_of(process, account).max(slice_of(process, account, self.now()))
    }

    fn written(&self, process: &Process, account: &AccountRef) -> u32 {
        self.ledger.held(&wire_name(account)).get(process.member.id()).copied().unwrap_or(0)
    }

    /// What a process has, or will believe that it has: an answer may be on its way from a store that has lost it since.
    fn claim(&self, process: &Process, account: &AccountRef) -> u32 {
        let name = wire_name(account);
        let on_its_way =
            self.network.iter().filter(|transit| transit.process == process.number).filter_map(|transit| {
                match (&transit.call, &transit.reply) {
                    (Call::Settle(settlement), Some(Reply::Settle(Settled::Landed(answers))))
                        if settlement.member == *process.member.id() =>
                    {
                        let at = settlement.asks.iter().position(|ask| ask.account == name)?;
                        Some(answers[at].count)
                    }
                    _ => None,
                }
            });
        on_its_way.fold(self.held(process, account), u32::max)
    }

    /// What the store counts of a process at least, whichever of its settlements lands next.
    fn least(&self, process: &Process, account: &AccountRef) -> u32 {
        let (name, id) = (wire_name(account), process.member.id());
        let unheard = self.network.iter().filter(|transit| transit.reply.is_none());
        let floors = unheard.filter_map(|transit| match &transit.call {
            Call::Settle(settlement)
                if settlement.member == *id && settlement.sequence > self.ledger.sequence(id) =>
            {
                settlement.asks.iter().find(|ask| ask.account == name).map(|ask| ask.floor)
            }
            Call::Settle(_) | Call::Beat(_) | Call::Leave(_) => None,
        });
        floors.fold(counted(&self.ledger, process, account), u32::min)
    }

    /// The largest limit that somebody goes by, or has asked by.
    fn limit(&self, account: &AccountRef) -> u32 {
        let name = wire_name(account);
        let lives = |number: u64| self.processes.iter().any(|process| process.number == number);
        let asked = self.network.iter().filter(|transit| transit.reply.is_none() && lives(transit.process));
        let asked = asked.filter_map(|transit| match &transit.call {
            Call::Settle(settlement) => settlement.asks.iter().find(|ask| ask.account == name),
            Call::Beat(_) | Call::Leave(_) => None,
        });
        let own = self.processes.iter().map(|process| limit_of(process, account));
        own.chain(asked.map(|ask| ask.limit)).max().unwrap_or(0)
    }

    /// Falsely dead: the process lives, and the store has forgotten it, after its own deadline or because a beat of it was
    /// lost. Or it couldn't tell a store that lost something what it has in time: before the rebuilding ended, or before its
    /// predecessor was forgotten. Until it has told the store anew.
    fn account_for_the_falsely_dead(&mut self) {
        let now = self.now();
        for process in &self.processes {
            let alive = self.ledger.is_alive(process.member.id());
            let lapsed = now >= process.member.until;
            if let Some(expires) = self.ledger.expires(process.member.id()) {
                let trusts = process.member.until > self.origin + expires;
                assert!(!(trusts && self.keeps_writes), "{} trusts the store for too long", process.number);
                self.trusting.remove(&process.number);
                self.trusting.extend(trusts.then_some(process.number));
            }
            if alive && self.has_told_all(process) {
                self.forgotten.remove(&process.number);
            }
            let forgot = |old: &MemberId| !self.ledger.is_alive(old);
            let too_late = (self.forgotten.contains(&process.number) && !self.ledger.is_rebuilding())
                || (process.member.predecessor.as_ref().is_some_and(forgot) && !self.has_told_all(process));
            // While it rebuilds, the store gives nothing away that they have.
            let may_still_tell = self.forgotten.contains(&process.number) && self.ledger.is_rebuilding();
            let forgotten_alone = lapsed || self.trusting.contains(&process.number);
            if (!alive && forgotten_alone && !may_still_tell) || too_late {
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
            self.seen.lowered += u32::from(lowest.is_some_and(|lowest| total > lowest));
            self.seen.excess += u32::from(total > limit);
            self.seen.full += u32::from(total == limit);
        }
        for process in &self.processes {
            for account in Self::accounts() {
                let used = process.member.find_ref(&account).map_or(0, |account| account.used);
                assert_eq!(used, leases_of(process, &account), "books and leases of {account:?}");
                let (slice, written) =
                    (slice_of(process, &account, self.now()), self.written(process, &account));
                assert!(
                    slice <= written || !self.keeps_writes,
                    "{} may lend {slice} of {account:?}, the store has down {written}\n{}",
                    process.number,
                    self.history.join("\n")
                );
            }
            let waiting = process.member.counters().waiting;
            let listening = process.callers.iter().filter(|caller| !caller.gone()).count();
            assert!(
                (listening..=process.callers.len()).contains(&waiting),
                "{waiting} wait, {listening} listen"
            );
        }
    }

    /// The network is well again, everything is given back: nothing may be left anywhere.
    fn wind_down(&mut self) {
        for process in &mut self.processes {
            process.paused = false;
        }
        self.heal();
        (0..self.processes.len()).for_each(|index| self.give_all(index));
        for _ in 0..600 {
            self.answer_everything();
            (0..self.processes.len()).for_each(|index| self.give_all(index));
            self.pass(MS(1));
        }
        self.answer_everything();
        self.check();
        self.check_that_nothing_is_left();
    }

    /// One beat, and the store knows of everything that is lent.
    fn heal(&mut self) {
        let healed = self.time + RULES.beat + RULES.retry;
        while self.time < healed {
            self.answer_everything();
            self.account_for_the_falsely_dead();
            self.check();
            self.pass(MS(1));
        }
        self.answer_everything();
        self.check();
        for process in &self.processes {
            let is_known = self.ledger.is_alive(process.member.id()) && self.has_told_all(process);
            assert!(is_known, "{} isn't known a beat later\n{}", process.number, self.history.join("\n"));
            assert_eq!(self.allowance.excused(process.number), 0, "{}", self.history.join("\n"));
        }
    }

    /// Until nobody has a question.
    fn answer_everything(&mut self) {
        for _ in 0..100 {
            self.run_processes();
            if self.network.is_empty() {
                return;
            }
            while !self.network.is_empty() {
                let before = self.network.len();
                self.land(0);
                // Whom the store forgets with one call, it may know again with the next.
                self.account_for_the_falsely_dead();
                self.check();
                self.deliver(0);
                self.run_processes();
                // Answers to processes that are gone.
                let numbers: Vec<_> = self.processes.iter().map(|process| process.number).collect();
                self.network.retain(|transit| transit.reply.is_none() || numbers.contains(&transit.process));
                if self.network.len() == before && self.network.iter().all(|transit| transit.reply.is_some())
                {
                    break;
                }
            }
        }
        panic!("they ask for ever\n{}", self.history.join("\n"));
    }

    fn check_that_nothing_is_left(&self) {
        for process in &self.processes {
            assert_eq!(process.member.mode(self.now()), Mode::Normal);
            assert!(process.callers.iter().all(Caller::gone), "everybody who listens was answered");
            assert_eq!(process.member.counters().waiting, 0);
            assert_eq!(process.member.keyed_limits().map(|(.., keys, _)| keys).sum::<usize>(), 0);
        }
        for key in KEYS {
            let held = self
                .ledger
                .look(&[Key::new(&KeyPrefix::of("user"), key).account().clone()], self.time)
                .accounts;
            assert_eq!(held, [], "nobody has anything of {key}");
        }
        let streams = self.ledger.look(&[budget_name("streams")], self.time);
        assert_eq!(streams.members.len(), self.processes.len(), "{streams:?}");
        let held: u32 =
            streams.accounts.iter().flat_map(|shares| &shares.shares).map(|share| share.count).sum();
        assert!(held <= self.limit(&AccountRef::Budget(0)), "slices sum to {held}");
        assert!(streams.accounts.iter().flat_map(|shares| &shares.shares).all(|share| share.used == 0));
    }
}

impl Process {
    /// How many units it has lent by its policy since it was last asked.
    fn has_used_its_policy(&mut self) -> u64 {
        let by_policy = self.member.counters().granted_by_policy;
        by_policy - std::mem::replace(&mut self.by_policy, by_policy)
    }
}

impl Seen {
    fn refuse(&mut self, refusal: &Refusal) {
        let count = match refusal {
            Refusal::Full { .. } => &mut self.refusals,
            Refusal::Rebuilding { .. } => &mut self.rebuilding,
            Refusal::Unavailable { .. } => &mut self.unavailable,
            Refusal::Busy { .. } => &mut self.busy,
        };
        *count += 1;
    }
}

fn wire_name(of: &AccountRef) -> Arc<str> {
    match of {
        AccountRef::Budget(_) => budget_name("streams"),
        AccountRef::Key(_, key) => key.account().clone(),
    }
}

fn limit_of(process: &Process, of: &AccountRef) -> u32 {
    match of {
        AccountRef::Budget(index) => process.member.usage(*index).limit,
        AccountRef::Key(index, _) => process.member.keyed_limit(*index),
    }
}

/// What a store counts as a process's, if it knows it.
fn counted(ledger: &Ledger, process: &Process, account: &AccountRef) -> u32 {
    let id = process.member.id();
    let shares = ledger.held(&wire_name(account));
    if ledger.is_alive(id) { shares.get(id).copied().unwrap_or(0) } else { 0 }
}

fn leases_of(process: &Process, account: &AccountRef) -> u32 {
    process.leases.iter().filter(|lease| *lease == account).count() as u32
}

/// What a process may lend out of by itself.
fn slice_of(process: &Process, account: &AccountRef, now: Instant) -> u32 {
    let account = process.member.find_ref(account).filter(|_| now < process.member.until);
    account.map_or(0, |account| account.slice)
}

fn run(steps: &[(u8, u8, u8)], processes: usize, policy: usize) -> Seen {
    let mut world = World::new(processes, policy);
    steps.iter().for_each(|step| world.step(*step));
    world.wind_down();
    world.seen
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn leases_stay_within_the_limits_and_everything_comes_back(
        steps in prop::collection::vec(any::<(u8, u8, u8)>(), 1..500),
        processes in 1_usize..5,
        policy in 0..POLICIES.len(),
    ) {
        run(&steps, processes, policy);
    }
}

#[test]
fn the_histories_reach_every_kind_of_answer() {
    let mut dice = Dice(2026);
    let mut all = Seen::default();
    for round in 0..150 {
        let steps: Vec<_> = (0..400)
            .map(|_| {
                let roll = dice.roll().to_le_bytes();
                (roll[0], roll[1], roll[2])
            })
            .collect();
        let seen = run(&steps, 3, round);
        all.grants += seen.grants;
        all.refusals += seen.refusals;
        all.rebuilding += seen.rebuilding;
        all.unavailable += seen.unavailable;
        all.busy += seen.busy;
        all.stale += seen.stale;
        all.excess += seen.excess;
        all.full += seen.full;
        all.lost += seen.lost;
        all.lowered += seen.lowered;
        all.left += seen.left;
        all.silences += seen.silences;
        all.expired_together += seen.expired_together;
        seen.by_policy
            .into_iter()
            .for_each(|(policy, count)| *all.by_policy.entry(policy).or_default() += count);
        seen.reborn.into_iter().for_each(|(why, count)| *all.reborn.entry(why).or_default() += count);
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
        all.silences,
        all.expired_together,
    ];
    assert!(numbers.iter().all(|count| *count > 0), "{all:?}");
    assert_eq!((all.reborn.len(), all.by_policy.len()), (3, 2), "{all:?}");
}
