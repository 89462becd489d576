//! Random histories of a whole cluster: members, a store, and a network that delays, reorders, drops and repeats nothing.
//!
//! What is checked after every step: each member's books agree with the leases that its process has; while the store keeps
//! its writes, it has down at least what each member may lend; the leases of an account exceed its limit by no more than
//! DESIGN.md allows: what falsely dead members held, and writes that the store lost. At the end everything is given back,
//! and the store's books are empty.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::config::Policy;
use crate::core::ledger::Ledger;
use crate::status::Mode;
use crate::store::{Pulse, Settled};

const RULES: Rules = Rules {
    beat: MS(20),
    ttl: MS(100),
    margin: MS(10),
    policy: Policy::Closed,
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
    /// Excess that came back with members that had been taken for dead, until it has drained.
    debt: HashMap<AccountRef, u32>,
    /// Writes that the store has lost.
    lost: HashMap<AccountRef, u32>,
    falsely_dead: HashMap<u64, HashMap<AccountRef, u32>>,
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
}

impl World {
    fn new(processes: usize) -> Self {
        let mut world = World {
            origin: Instant::now(),
            time: MS(1000),
            ledger: Ledger::newborn(),
            snapshots: Vec::new(),
            processes: Vec::new(),
            next_process: 0,
            network: Vec::new(),
            debt: HashMap::new(),
            lost: HashMap::new(),
            falsely_dead: HashMap::new(),
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
        let mut member = Member::new(name.clone(), RULES, number * 7919 + 1, self.now());
        member.budget("streams", BUDGET_LIMIT, Sharing::Blocks);
        member.keyed("user", KEY_LIMIT);
        Process { number, name, member, leases: Vec::new(), callers: Vec::new(), paused: false }
    }

    fn now(&self) -> Instant {
        self.origin + self.time
    }

    fn accounts() -> [AccountRef; 3] {
        [
            AccountRef::Budget(0),
            AccountRef::Key(0, Key::new("user", KEYS[0])),
            AccountRef::Key(0, Key::new("user", KEYS[1])),
        ]
    }

    fn step(&mut self, (action, a, b): (u8, u8, u8)) {
        let (a, b) = (usize::from(a), usize::from(b));
        let index = a % self.processes.len();
        match action % 32 {
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
            _ => self.pass(MS(3)),
        }
        self.run_processes();
        self.account_for_the_falsely_dead();
        self.check();
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
        let Some(&at) = waiting.get(which % waiting.len().max(1)) else { return };
        let time = self.time;
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

    fn pass(&mut self, time: Duration) {
        self.time += time;
    }

    /// Killed, and started again under its name; its leases died with it.
    fn restart(&mut self, index: usize) {
        let name = self.processes[index].name.clone();
        let number = self.processes[index].number;
        self.falsely_dead.remove(&number);
        // Its take-over can't land after its successor's: a store reads what lies in its sockets before what comes later.
        let takes_over = |call: &Call| matches!(call, Call::Beat(beat) if beat.kind == BeatKind::TakeOver);
        self.network.retain(|transit| transit.process != number || !takes_over(&transit.call));
        let process = self.start(name);
        self.history.push(format!("{:?}: {number} is killed, {} started", self.time, process.number));
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
        for account in Self::accounts() {
            let name = wire_name(&account);
            let held = |ledger: &Ledger| ledger.held(&name);
            let (now_held, then_held) = (held(&self.ledger), held(&old));
            let lost: u32 = now_held
                .iter()
                .map(|(id, count)| count.saturating_sub(then_held.get(id).copied().unwrap_or(0)))
                .sum();
            // Expiries went back with the rest: a member that was written down later may be taken for dead.
            *self.lost.entry(account.clone()).or_default() += lost;
            for process in &self.processes {
                if !old.is_alive(process.member.id()) {
                    let leases = process.leases.iter().filter(|lease| **lease == account).count() as u32;
                    *self.lost.entry(account.clone()).or_default() += leases.max(1) + BUDGET_LIMIT;
                }
            }
        }
        self.history.push(format!("{:?}: the store loses its last writes", self.time));
        self.keeps_writes = false;
        self.ledger = old;
    }

    fn run_processes(&mut self) {
        let now = self.now();
        for process in &mut self.processes {
            if process.paused {
                continue;
            }
            loop {
                while let Some(call) = process.member.poll(now) {
                    let transit = Transit { process: process.number, call, reply: None, given_up: false };
                    self.network.push(transit);
                }
                let verdicts = process.member.take_verdicts();
                for notice in process.member.take_notices() {
                    if let Notice::Reborn { why, .. } = notice {
                        *self.seen.reborn.entry(why.as_str()).or_default() += 1;
                    }
                }
                if verdicts.is_empty() {
                    break;
                }
                for (caller, verdict) in verdicts {
                    assert_eq!(caller.process, process.number);
                    caller.answered.set(caller.answered.get() + 1);
                    match verdict {
                        Ok(of) if caller.gone() => process.member.give(&of, now),
                        Ok(of) => {
                            self.seen.grants += 1;
                            self.history.push(format!("{:?}: {} gets {of:?}", self.time, process.number));
                            process.leases.push(of);
                        }
                        Err(refusal) => self.seen.refuse(&refusal),
                    }
                }
            }
            assert!(process.callers.iter().all(|caller| caller.answered.get() <= 1), "answered twice");
            process.callers.retain(|caller| caller.answered.get() == 0);
        }
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

    /// What is granted counts as lent: idle, written down, or on its way from a store that may have lost it since.
    fn promised(&self, process: &Process, account: &AccountRef) -> u32 {
        let name = wire_name(account);
        let on_its_way =
            self.network.iter().filter(|transit| transit.process == process.number).filter_map(|transit| {
                match (&transit.call, &transit.reply) {
                    (Call::Settle(settlement), Some(Reply::Settle(Settled::Landed(answers)))) => {
                        let at = settlement.asks.iter().position(|ask| ask.account == name)?;
                        Some(answers[at].count)
                    }
                    _ => None,
                }
            });
        let told = self.held(process, account).max(self.written(process, account));
        on_its_way.fold(told, u32::max)
    }

    /// Falsely dead: the process lives, and the store has forgotten it, after its own deadline or because a beat of it was
    /// lost. Or it couldn't tell a store that lost something what it has in time: before the rebuilding ended, or before its
    /// predecessor was forgotten. Until it has told the store anew.
    fn account_for_the_falsely_dead(&mut self) {
        let now = self.now();
        for process in &self.processes {
            let alive = self.ledger.is_alive(process.member.id());
            let lapsed = now >= process.member.until;
            let held = Self::accounts().map(|account| (account.clone(), self.held(process, &account)));
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
            if (!alive && (lapsed || self.trusting.contains(&process.number))) || too_late {
                self.falsely_dead.insert(process.number, HashMap::from(held));
            } else if let Some(held) = self.falsely_dead.get(&process.number).cloned()
                && alive
                && !lapsed
                && self.has_told_all(process)
            {
                self.falsely_dead.remove(&process.number);
                for (account, count) in held {
                    *self.debt.entry(account).or_default() += count;
                }
            }
        }
    }

    fn check(&mut self) {
        for account in Self::accounts() {
            let limit = if matches!(account, AccountRef::Budget(_)) { BUDGET_LIMIT } else { KEY_LIMIT };
            let total: u32 = self.processes.iter().map(|process| leases_of(process, &account)).sum();
            let dead: u32 =
                self.falsely_dead.values().map(|held| held.get(&account).copied().unwrap_or(0)).sum();
            let promised: u32 = self.processes.iter().map(|process| self.promised(process, &account)).sum();
            let debt = self.debt.entry(account.clone()).or_default();
            *debt = (*debt).min(promised.saturating_sub(limit));
            let lost = self.lost.get(&account).copied().unwrap_or(0);
            let allowed = limit + dead + *debt + lost;
            assert!(
                total <= allowed,
                "{account:?}: {total} leases; limit {limit}, falsely dead {dead}, debt {debt}, lost {lost}\n{}",
                self.history.join("\n")
            );
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
        for index in 0..self.processes.len() {
            while !self.processes[index].leases.is_empty() {
                self.give(index, 0);
            }
        }
        for _ in 0..600 {
            self.run_processes();
            for index in 0..self.processes.len() {
                while !self.processes[index].leases.is_empty() {
                    self.give(index, 0);
                }
            }
            while !self.network.is_empty() {
                let before = self.network.len();
                self.land(0);
                self.deliver(0);
                // Answers to processes that are gone.
                let numbers: Vec<_> = self.processes.iter().map(|process| process.number).collect();
                self.network.retain(|transit| transit.reply.is_none() || numbers.contains(&transit.process));
                if self.network.len() == before && self.network.iter().all(|transit| transit.reply.is_some())
                {
                    break;
                }
            }
            self.pass(MS(1));
        }
        self.check();
        for process in &self.processes {
            assert_eq!(process.member.mode(self.now()), Mode::Normal);
            assert!(process.callers.iter().all(Caller::gone), "everybody who listens was answered");
            assert_eq!(process.member.counters().waiting, 0);
            assert_eq!(process.member.keyed_limits().map(|(.., keys, _)| keys).sum::<usize>(), 0);
        }
        for key in KEYS {
            let held = self.ledger.look(&[Key::new("user", key).account().clone()], self.time).accounts;
            assert_eq!(held, [], "nobody has anything of {key}");
        }
        let streams = self.ledger.look(&[budget_name("streams")], self.time);
        assert_eq!(streams.members.len(), self.processes.len(), "{streams:?}");
        let held: u32 =
            streams.accounts.iter().flat_map(|shares| &shares.shares).map(|share| share.count).sum();
        assert!(held <= BUDGET_LIMIT, "slices sum to {held}");
        assert!(streams.accounts.iter().flat_map(|shares| &shares.shares).all(|share| share.used == 0));
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

fn leases_of(process: &Process, account: &AccountRef) -> u32 {
    process.leases.iter().filter(|lease| *lease == account).count() as u32
}

/// What a process may lend out of by itself.
fn slice_of(process: &Process, account: &AccountRef, now: Instant) -> u32 {
    let account = process.member.find_ref(account).filter(|_| now < process.member.until);
    account.map_or(0, |account| account.slice)
}

fn run(steps: &[(u8, u8, u8)], processes: usize) -> Seen {
    let mut world = World::new(processes);
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
    ) {
        run(&steps, processes);
    }
}

#[test]
fn the_histories_reach_every_kind_of_answer() {
    let mut dice = Dice(2026);
    let mut all = Seen::default();
    for _ in 0..150 {
        let steps: Vec<_> = (0..400)
            .map(|_| {
                let roll = dice.roll().to_le_bytes();
                (roll[0], roll[1], roll[2])
            })
            .collect();
        let seen = run(&steps, 3);
        all.grants += seen.grants;
        all.refusals += seen.refusals;
        all.rebuilding += seen.rebuilding;
        all.unavailable += seen.unavailable;
        all.busy += seen.busy;
        all.stale += seen.stale;
        all.excess += seen.excess;
        all.full += seen.full;
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
    ];
    assert!(numbers.iter().all(|count| *count > 0), "{all:?}");
    assert_eq!(all.reborn.len(), 3, "{all:?}");
}
