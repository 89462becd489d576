//! Random runs of the ledger, checked against a model of every connection and of the server's
//! backends, which close late.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::checkout_queue::{CheckoutWaiter, WaitTicket};
use super::ledger::{CheckoutOutcome, ConnectionLedger};
use super::ledger_effects::LedgerEffects;
use super::ledger_entry::{LedgerEntry, Liveness, ResetOutcome, ReturnState};
use super::ledger_rules::{DialBackoff, LedgerRules, Lifetime};
use super::retirements::Retirement;
use crate::connect::ConnectionErrorKind;
use crate::status::DiscardReason;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const RULES: LedgerRules = LedgerRules {
    target: 6,
    low_watermark: 3,
    max: 7,
    lifetime: Lifetime { base: ms(400), jitter: ms(200), downward: false },
    guard_window: ms(50),
    lead: ms(60),
    max_dials: 3,
    max_waiting: 8,
    resets: true,
    leak_after: ms(300),
    backoff: DialBackoff { initial: ms(10), max: ms(80), initial_long: ms(100), max_long: ms(400) },
};

#[derive(Debug)]
struct FakeConn {
    number: u32,
    closed: Rc<Cell<bool>>,
}

impl Liveness for FakeConn {
    fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

/// A waiting caller: its number in the order of arrival, and its deadline.
#[derive(Debug)]
struct TestCaller(u32, Instant);

impl CheckoutWaiter for TestCaller {
    fn location(&self) -> Option<&'static Location<'static>> {
        Some(Location::caller())
    }

    fn deadline(&self) -> Instant {
        self.1
    }
}

/// The driver's close timeout: after it a slot is released even if the server has not closed.
const CLOSE_TIMEOUT: Duration = ms(200);

/// A backend that the server has not closed yet, or whose close was not observed yet.
#[derive(Debug)]
struct ClosingBackend {
    /// `None` for an abandoned dial.
    reason: Option<DiscardReason>,
    retirement: Retirement,
    /// When the server closes it.
    closes_at: Instant,
    /// When the close timeout passes.
    released_at: Instant,
}

struct LedgerSimulation {
    ledger: ConnectionLedger<FakeConn, TestCaller>,
    now: Instant,
    next: u32,
    closed: BTreeMap<u32, Rc<Cell<bool>>>,
    lent: Vec<(usize, LedgerEntry<FakeConn>)>,
    resetting: Vec<LedgerEntry<FakeConn>>,
    retiring: Vec<ClosingBackend>,
    /// When the server closes backends whose slots were released earlier.
    unclosed: Vec<Instant>,
    /// Maximum time that the server takes to close a backend.
    close_takes: Duration,
    rng: Rng,
    dialing: u32,
    waiting: Vec<(usize, WaitTicket, u32)>,
    failed_waiters: usize,
    seen: SimulationCounts,
}

#[derive(Debug, Default)]
struct SimulationCounts {
    handed_over: u32,
    discards: BTreeMap<&'static str, u32>,
    full: u32,
    skipped: u32,
    expired: u32,
    dials_held: u32,
    released_unclosed: u32,
}

const QUOTAS: [u32; 3] = [u32::MAX, 2, 1];

impl LedgerSimulation {
    fn new(rules: LedgerRules, seed: u64) -> Self {
        let now = Instant::now();
        let mut ledger = ConnectionLedger::new(rules, Rng::with_seed(seed), now);
        for quota in QUOTAS {
            ledger.queue.add_view(quota);
        }
        LedgerSimulation {
            ledger,
            now,
            next: 0,
            closed: BTreeMap::new(),
            lent: Vec::new(),
            resetting: Vec::new(),
            retiring: Vec::new(),
            unclosed: Vec::new(),
            close_takes: CLOSE_TIMEOUT,
            rng: Rng::with_seed(!seed),
            dialing: 0,
            waiting: Vec::new(),
            failed_waiters: 0,
            seen: SimulationCounts::default(),
        }
    }

    fn step(&mut self, (action, a, b): (u8, u8, u8)) {
        let (a, b) = (usize::from(a), usize::from(b));
        match action % 16 {
            0..=2 => self.checkout(a % 3),
            3 | 4 if !self.lent.is_empty() => {
                let (view, entry) = self.lent.swap_remove(a % self.lent.len());
                let return_state = match b % 16 {
                    0 => ReturnState::Bad,
                    8 => ReturnState::HookFailed,
                    1 | 2 | 9 | 10 => ReturnState::Clean,
                    _ => ReturnState::Used,
                };
                self.ledger.check_in(view, entry, return_state, self.now);
            }
            5 | 6 if !self.resetting.is_empty() => {
                let entry = self.resetting.swap_remove(a % self.resetting.len());
                let outcome = if b.is_multiple_of(8) { ResetOutcome::Failed } else { ResetOutcome::Clean };
                self.ledger.reset_finished(entry, outcome, self.now);
            }
            7 if !self.retiring.is_empty() => self.observe_close(a % self.retiring.len()),
            8 | 9 if self.dialing > 0 => self.end_dial(b),
            10 if !self.waiting.is_empty() => {
                let (view, ticket, number) = self.waiting.remove(a % self.waiting.len());
                let caller = self.ledger.queue.leave(view, ticket).expect("it waits");
                assert_eq!(caller.0, number);
            }
            11 if b.is_multiple_of(16) => {
                if let Some(closed) = self.closed.values().nth(a % self.closed.len().max(1)) {
                    closed.set(true);
                }
            }
            12..=14 => self.now += ms(1 + b as u64 % 25),
            _ => self.dialing += self.ledger.plan(self.now).dials,
        }
        self.apply_effects();
        self.check();
    }

    fn checkout(&mut self, view: usize) {
        match self.ledger.checkout(view, self.now, Some(Location::caller())) {
            CheckoutOutcome::Lent(entry) => self.lend(view, entry),
            CheckoutOutcome::Closed => {}
            CheckoutOutcome::None if self.ledger.can_wait() => {
                let number = self.next;
                self.next += 1;
                let ticket = self.ledger.wait(view, TestCaller(number, self.now + ms(40)));
                self.waiting.push((view, ticket, number));
            }
            CheckoutOutcome::None => self.seen.full += 1,
        }
    }

    /// Releases the slot of a backend if the server has closed it or the close timeout has passed.
    fn observe_close(&mut self, at: usize) {
        let ClosingBackend { closes_at, released_at, .. } = self.retiring[at];
        if closes_at > self.now && released_at > self.now {
            return;
        }
        if closes_at > self.now {
            self.unclosed.push(closes_at);
            self.seen.released_unclosed += 1;
        }
        let ClosingBackend { retirement, .. } = self.retiring.swap_remove(at);
        self.ledger.retirement_finished(retirement);
    }

    fn schedule_close(&mut self, reason: Option<DiscardReason>, retirement: Retirement) {
        let closes_at = self.now + self.close_takes.mul_f64(self.rng.f64());
        self.retiring.push(ClosingBackend {
            reason,
            retirement,
            closes_at,
            released_at: self.now + CLOSE_TIMEOUT,
        });
    }

    /// Closes all retired backends and reports that to the ledger.
    fn close_all(&mut self) -> Vec<Option<DiscardReason>> {
        let closed = std::mem::take(&mut self.retiring);
        let close = |ClosingBackend { reason, retirement, .. }| {
            self.ledger.retirement_finished(retirement);
            reason
        };
        closed.into_iter().map(close).collect()
    }

    /// Returns the maximum number of backends that the server may have; each dial may have one.
    fn max_backends(&self) -> usize {
        let alive = |closes_at: &Instant| *closes_at > self.now;
        let retiring = self.retiring.iter().filter(|backend| alive(&backend.closes_at)).count();
        let unclosed = self.unclosed.iter().filter(|closes_at| alive(closes_at)).count();
        self.closed.len() + self.dialing as usize + retiring + unclosed
    }

    fn end_dial(&mut self, how: usize) {
        self.dialing -= 1;
        match how % 8 {
            7 => {
                let retirement = self.ledger.hold_dial_slot(self.now);
                self.ledger.dial_failed(ConnectionErrorKind::Unreachable, self.now);
                self.schedule_close(None, retirement);
                self.seen.dials_held += 1;
            }
            0 => self.ledger.dial_failed(ConnectionErrorKind::Unreachable, self.now),
            1 => self.ledger.dial_failed(ConnectionErrorKind::Full, self.now),
            2 => self.ledger.dial_abandoned(Some(self.now + ms(5))),
            _ => {
                let (number, closed) = (self.next, Rc::new(Cell::new(false)));
                self.next += 1;
                self.closed.insert(number, closed.clone());
                self.ledger.dial_succeeded(FakeConn { number, closed }, self.now);
            }
        }
    }

    fn lend(&mut self, view: usize, entry: LedgerEntry<FakeConn>) {
        assert!(!entry.content().is_closed(), "a closed connection is lent");
        assert!(!entry.expires_within(RULES.guard_window, self.now), "an expiring connection is lent");
        self.lent.push((view, entry));
    }

    /// Performs the effects in the driver's order.
    fn apply_effects(&mut self) {
        let LedgerEffects { hand_over, reset, retire, expired, closed, wake: _ } = self.ledger.take_effects();
        for (TestCaller(number, _), view, entry) in hand_over {
            let at = self.waiting.iter().position(|(_, _, waiting)| *waiting == number).expect("it waits");
            let (wanted, ..) = self.waiting.remove(at);
            assert_eq!(wanted, view);
            // An earlier caller may be skipped only if its view has reached its quota.
            for (other, ..) in self.waiting.iter().filter(|(_, _, other)| *other < number) {
                assert!(!self.ledger.queue.has_room(*other), "{number} was served before its turn");
                self.seen.skipped += 1;
            }
            self.seen.handed_over += 1;
            self.lend(view, entry);
        }
        for TestCaller(number, deadline) in expired {
            assert!(deadline <= self.now, "it had time left");
            let at = self.waiting.iter().position(|(_, _, waiting)| *waiting == number).expect("it waits");
            self.waiting.remove(at);
            self.seen.expired += 1;
        }
        self.resetting.extend(reset);
        for retire in retire {
            *self.seen.discards.entry(retire.reason.as_str()).or_default() += 1;
            assert!(self.closed.remove(&retire.entry.content().number).is_some(), "retired twice");
            self.schedule_close(Some(retire.reason), retire.retirement);
        }
        self.failed_waiters += closed.len();
    }

    fn check(&self) {
        let counts = self.ledger.counts();
        assert!(counts.total() <= self.ledger.rules().max, "{counts:?}");
        let unclosed = self.unclosed.iter().filter(|closes_at| **closes_at > self.now).count();
        let (most, max) = (self.max_backends(), self.ledger.rules().max as usize);
        assert!(most <= max + unclosed, "{most} backends of {max}, {unclosed} released unclosed: {counts:?}");
        assert_eq!(counts.dialing, self.dialing);
        assert_eq!(counts.lent as usize, self.lent.len());
        assert_eq!(counts.resetting as usize, self.resetting.len());
        assert_eq!(counts.retiring as usize, self.retiring.len());
        assert_eq!(counts.ready as usize + self.lent.len() + self.resetting.len(), self.closed.len());
        let ages = self.ledger.ages(self.now, usize::MAX);
        assert_eq!(ages.iter().filter(|age| age.lent).count(), self.lent.len());
        assert_eq!(ages.len(), self.closed.len());
        assert!(ages.is_sorted_by(|older, younger| older.age_ms >= younger.age_ms));
        for (view, quota) in QUOTAS.into_iter().enumerate() {
            let lent = self.lent.iter().filter(|(of, _)| *of == view).count() as u32;
            assert_eq!(lent, self.ledger.queue.lent(view));
            assert!(lent <= quota);
        }
        assert_eq!(self.ledger.queue.waiting(), self.waiting.len() - self.failed_waiters);
        let none_waits = self.ledger.queue.next_view().is_none();
        assert!(none_waits || counts.ready == 0, "a caller waits though a connection is ready");
    }

    /// Closes the ledger and returns all connections.
    fn close(&mut self) {
        self.ledger.close(self.now);
        self.apply_effects();
        assert_eq!(self.failed_waiters, self.waiting.len(), "every waiting caller fails");
        for (view, entry) in std::mem::take(&mut self.lent) {
            self.ledger.check_in(view, entry, ReturnState::Used, self.now);
        }
        while self.dialing > 0 {
            self.end_dial(3);
        }
        self.apply_effects();
        for entry in std::mem::take(&mut self.resetting) {
            self.ledger.reset_finished(entry, ResetOutcome::Clean, self.now);
        }
        self.apply_effects();
        self.close_all();
        assert!(self.ledger.is_empty(), "{:?}", self.ledger.counts());
        assert!(self.closed.is_empty(), "every connection was retired");
        assert!(matches!(
            self.ledger.checkout(0, self.now, Some(Location::caller())),
            CheckoutOutcome::Closed
        ));
    }
}

/// Small reservoirs, without spare slots, and with downward jitter.
fn rules() -> impl Strategy<Value = LedgerRules> {
    (1_u32..8, 0_u32..3, any::<bool>(), any::<bool>(), 0_u64..150).prop_map(
        |(target, more, resets, downward, lead)| {
            let lifetime = Lifetime { downward, ..RULES.lifetime };
            let max = target + more;
            LedgerRules {
                target,
                low_watermark: target.div_ceil(2),
                max,
                lifetime,
                lead: ms(lead),
                resets,
                ..RULES
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    prop::collection::vec(any::<(u8, u8, u8)>(), 1..400)
}

fn run(steps: Vec<(u8, u8, u8)>, seed: u64, rules: LedgerRules, close_takes: Duration) -> SimulationCounts {
    let mut sim = LedgerSimulation { close_takes, ..LedgerSimulation::new(rules, seed) };
    steps.into_iter().for_each(|step| sim.step(step));
    sim.close();
    sim.seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_connection_is_in_one_state_and_the_total_stays_within_max(
        steps in steps(), seed: u64, rules in rules(),
    ) {
        run(steps, seed, rules, ms(20));
    }

    #[test]
    fn a_server_that_closes_within_the_timeout_never_has_more_backends_than_max(
        steps in steps(), seed: u64, rules in rules(),
    ) {
        let seen = run(steps, seed, rules, CLOSE_TIMEOUT);
        prop_assert_eq!(seen.released_unclosed, 0);
    }

    #[test]
    fn a_server_that_closes_later_exceeds_max_only_by_slots_released_unclosed(
        steps in steps(), seed: u64, rules in rules(),
    ) {
        run(steps, seed, rules, CLOSE_TIMEOUT * 3);
    }
}

#[test]
fn the_simulation_reaches_every_outcome() {
    let mut rng = proptest::test_runner::TestRunner::deterministic();
    let mut all = SimulationCounts::default();
    for seed in 0..400 {
        let steps = steps().new_tree(&mut rng).unwrap().current();
        let close_takes = if seed % 4 > 0 { ms(20) } else { CLOSE_TIMEOUT * 2 };
        let seen = run(steps, seed, RULES, close_takes);
        all.handed_over += seen.handed_over;
        all.full += seen.full;
        all.skipped += seen.skipped;
        all.expired += seen.expired;
        all.dials_held += seen.dials_held;
        all.released_unclosed += seen.released_unclosed;
        for (reason, count) in seen.discards {
            *all.discards.entry(reason).or_default() += count;
        }
    }
    assert!(all.handed_over > 50 && all.full > 5 && all.skipped > 5 && all.expired > 5, "{all:?}");
    assert!(all.dials_held > 50 && all.released_unclosed > 50, "{all:?}");
    for reason in DiscardReason::ALL {
        assert!(all.discards.get(reason.as_str()).is_some_and(|count| *count > 5), "{reason:?} in {all:?}");
    }
}

/// Returns a full reservoir whose connections were all opened at this moment.
impl LedgerSimulation {
    /// Advances by 5 ms, starts the planned dials and ends those that are due. `dialing` has the
    /// ends of the dials in flight; `duration` returns that of a dial, by their number.
    fn advance_with_dials(&mut self, dialing: &mut Vec<Instant>, duration: impl Fn(u32) -> Duration) {
        self.now += ms(5);
        self.dialing += self.ledger.plan(self.now).dials;
        while (dialing.len() as u32) < self.dialing {
            dialing.push(self.now + duration(dialing.len() as u32));
        }
        self.apply_effects();
        while dialing.first().is_some_and(|at| *at <= self.now) {
            dialing.remove(0);
            self.end_dial(3);
            self.apply_effects();
        }
        self.close_all();
    }
}

fn filled_simulation(rules: LedgerRules) -> LedgerSimulation {
    let mut sim = LedgerSimulation::new(rules, 7);
    while sim.ledger.counts().ready < rules.target {
        sim.dialing += sim.ledger.plan(sim.now).dials;
        while sim.dialing > 0 {
            sim.end_dial(3);
        }
        sim.apply_effects();
    }
    sim
}

#[test]
fn connections_are_replaced_before_they_expire_and_the_count_never_dips() {
    let mut sim = filled_simulation(RULES);
    let mut replaced = 0;
    for _ in 0..2_000 {
        sim.now += ms(1);
        let before = sim.ledger.counts().ready;
        sim.dialing += sim.ledger.plan(sim.now).dials;
        sim.apply_effects();
        assert!(sim.ledger.counts().ready >= RULES.target - 1, "from {before}: {:?}", sim.ledger.counts());
        while sim.dialing > 0 {
            sim.end_dial(3);
        }
        sim.apply_effects();
        let closed = sim.close_all();
        replaced += closed.iter().filter(|reason| **reason == Some(DiscardReason::Replaced)).count();
        sim.check();
    }
    assert!(replaced > 15, "{replaced} in 2 s, with lifetimes of half a second");
    assert_eq!(sim.seen.discards.get("expired"), None);
}

#[test]
fn jitter_spreads_the_expiries() {
    let lifetime = Lifetime { base: ms(11 * 60_000), jitter: ms(120_000), downward: false };
    let rules = LedgerRules { target: 1_000, max: 1_125, lifetime, max_dials: 1_000, ..RULES };
    let mut sim = filled_simulation(rules);
    // Twelve buckets of ten seconds each: about 83 of a thousand expiries in each.
    let mut buckets = [0_u32; 12];
    while let Some(entry) = match sim.ledger.checkout(0, sim.now, Some(Location::caller())) {
        CheckoutOutcome::Lent(entry) => Some(entry),
        _ => None,
    } {
        let jitter = entry.expires_at() - sim.now - lifetime.base;
        buckets[(jitter.as_secs() / 10).min(11) as usize] += 1;
        sim.lent.push((0, entry));
    }
    assert_eq!(buckets.iter().sum::<u32>(), 1_000);
    let expected = 1_000.0 / 12.0;
    let chi: f64 = buckets.iter().map(|found| (f64::from(*found) - expected).powi(2) / expected).sum();
    // The 99.9th percentile of chi² with 11 degrees of freedom; the random seed is fixed.
    assert!(chi < 31.26, "{buckets:?}: {chi}");
}

#[test]
fn no_more_than_half_are_retired_at_once() {
    let mut sim = filled_simulation(RULES);
    // The process was suspended until all had expired.
    sim.now += ms(10_000);
    let plan_once = |sim: &mut LedgerSimulation| {
        let plan = sim.ledger.plan(sim.now);
        sim.dialing += plan.dials;
        sim.apply_effects();
        (sim.seen.discards["expired"], plan.wake_at)
    };
    let (ended, again) = plan_once(&mut sim);
    assert_eq!(ended, 3);
    assert_eq!(plan_once(&mut sim).0, 3, "repeated plans at the same time retire no more");
    sim.now = again;
    assert!(plan_once(&mut sim).0 > 3);
}

#[test]
fn dial_failures_double_the_backoff_and_full_servers_back_off_longest() {
    let pause = |kind, failures: u32| {
        let mut sim = LedgerSimulation::new(RULES, 1);
        for _ in 0..failures {
            let plan = sim.ledger.plan(sim.now);
            assert_eq!(plan.dials, 3);
            // All three fail together and count as one failure.
            (0..3).for_each(|_| sim.ledger.dial_failed(kind, sim.now));
            let again = sim.ledger.next_dial_at().expect("it waits");
            assert_eq!(sim.ledger.plan(sim.now).dials, 0);
            (sim.now, sim.failed_waiters) = (again, (again - sim.now).as_millis() as usize);
        }
        sim.failed_waiters as u64
    };
    use ConnectionErrorKind::{Full, Unreachable};
    assert!((5..=10).contains(&pause(Unreachable, 1)) && (20..=40).contains(&pause(Unreachable, 3)));
    assert!((40..=80).contains(&pause(Unreachable, 30)), "at most");
    assert!((50..=100).contains(&pause(Full, 1)) && (200..=400).contains(&pause(Full, 30)));
}

#[test]
fn a_leaked_connection_is_reported_once() {
    let mut sim = filled_simulation(RULES);
    sim.checkout(0);
    sim.now += ms(299);
    assert_eq!(sim.ledger.leaks(sim.now), []);
    sim.now += ms(1);
    let leaks = sim.ledger.leaks(sim.now);
    assert_eq!((leaks.len(), leaks[0].held_for), (1, ms(300)));
    assert!(leaks[0].checked_out_at.file().ends_with("ledger_tests.rs"));
    sim.now += ms(1_000);
    assert_eq!(sim.ledger.leaks(sim.now), []);
}

/// Runs with every connection lent and callers waiting all the time; dials take 50 ms each.
fn min_lent_when_saturated(rules: LedgerRules, span: Duration) -> (u32, BTreeMap<&'static str, u32>) {
    let mut sim = filled_simulation(rules);
    let (end, mut least, mut dialing) = (sim.now + span, u32::MAX, Vec::new());
    while sim.now < end {
        sim.advance_with_dials(&mut dialing, |in_flight| ms(50) * (in_flight + 1));
        // All connections are returned and lent again; there are more callers than connections.
        for (view, entry) in std::mem::take(&mut sim.lent) {
            sim.ledger.check_in(view, entry, ReturnState::Used, sim.now);
            sim.apply_effects();
        }
        for entry in std::mem::take(&mut sim.resetting) {
            sim.ledger.reset_finished(entry, ResetOutcome::Clean, sim.now);
            sim.apply_effects();
        }
        while sim.ledger.counts().ready > 0 {
            sim.checkout(0);
            sim.apply_effects();
        }
        least = least.min(sim.ledger.counts().lent);
    }
    (least, sim.seen.discards)
}

#[test]
fn connections_of_a_saturated_reservoir_are_replaced_ahead() {
    let lifetime = Lifetime { base: ms(8_000), jitter: ms(500), downward: false };
    let windows = LedgerRules { guard_window: ms(500), lead: ms(2_000), ..RULES };
    let rules = LedgerRules { target: 16, low_watermark: 8, max: 18, lifetime, max_dials: 8, ..windows };
    for jitter in [ms(0), ms(500), ms(4_000)] {
        let rules = LedgerRules { lifetime: Lifetime { jitter, ..lifetime }, ..rules };
        let (least, discards) = min_lent_when_saturated(rules, ms(40_000));
        assert!(least >= 15, "jitter {jitter:?}: down to {least} of 16, {discards:?}");
        assert_eq!(discards.get("expired"), None, "jitter {jitter:?}: {discards:?}");
    }
}

#[test]
fn without_a_free_slot_an_expiring_connection_is_retired_first() {
    let lifetime = Lifetime { base: ms(8_000), jitter: ms(0), downward: false };
    let windows = LedgerRules { guard_window: ms(500), lead: ms(2_000), ..RULES };
    let rules = LedgerRules { target: 16, low_watermark: 8, max: 16, lifetime, max_dials: 8, ..windows };
    let mut sim = filled_simulation(rules);
    let (mut least, mut dialing) = (u32::MAX, Vec::new());
    for _ in 0..8_000 {
        sim.advance_with_dials(&mut dialing, |_| ms(50));
        least = least.min(sim.ledger.counts().ready);
    }
    assert!(least >= 15, "down to {least} of 16: {:?}", sim.seen.discards);
}

#[test]
fn a_full_server_extends_a_shorter_backoff() {
    let mut sim = LedgerSimulation::new(RULES, 1);
    assert_eq!(sim.ledger.plan(sim.now).dials, 3);
    sim.ledger.dial_abandoned(Some(sim.now + ms(5)));
    sim.ledger.dial_failed(ConnectionErrorKind::Unreachable, sim.now);
    sim.ledger.dial_failed(ConnectionErrorKind::Full, sim.now);
    let pause = sim.ledger.next_dial_at().unwrap() - sim.now;
    assert!(pause >= RULES.backoff.initial_long / 2, "{pause:?}");
}

#[test]
fn a_dial_that_was_in_flight_does_not_end_the_backoff_of_another() {
    let mut sim = LedgerSimulation::new(RULES, 1);
    assert_eq!(sim.ledger.plan(sim.now).dials, 3);
    sim.ledger.dial_failed(ConnectionErrorKind::Full, sim.now);
    let again = sim.ledger.next_dial_at().expect("it waits");
    sim.dialing = 2;
    sim.end_dial(3);
    assert_eq!(sim.ledger.next_dial_at(), Some(again));
    sim.now = again;
    sim.end_dial(3);
    assert_eq!(sim.ledger.next_dial_at(), None);
}

/// Two of 18 slots are held by backends that don't close; 16 connections expire together.
#[test]
fn lingering_connections_do_not_prevent_the_replacement_of_others() {
    let lifetime = Lifetime { base: ms(8_000), jitter: ms(0), downward: false };
    let windows = LedgerRules { guard_window: ms(500), lead: ms(2_000), ..RULES };
    let rules = LedgerRules { target: 16, low_watermark: 8, max: 18, lifetime, max_dials: 8, ..windows };
    let mut sim = filled_simulation(rules);
    for _ in 0..2 {
        sim.checkout(0);
        let (view, entry) = sim.lent.pop().unwrap();
        sim.ledger.check_in(view, entry, ReturnState::Bad, sim.now);
    }
    sim.apply_effects();
    let lingering: Vec<_> = std::mem::take(&mut sim.retiring);
    let (mut least, mut dialing) = (u32::MAX, Vec::new());
    for step in 0..8_000 {
        sim.advance_with_dials(&mut dialing, |_| ms(50));
        assert!(sim.ledger.counts().total() <= 18);
        if step > 100 {
            least = least.min(sim.ledger.counts().ready);
        }
    }
    assert!(least >= 15, "down to {least} of 16: {:?}", sim.seen.discards);
    assert_eq!(sim.ledger.lingering(sim.now).count, 2);
    for ClosingBackend { retirement, .. } in lingering {
        sim.ledger.retirement_finished(retirement);
    }
}
