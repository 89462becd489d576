//! Random lives of a reservoir, against a list of where every connection must be, and of the backends that the server has:
//! they close late.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::dice::Dice;
use super::ledger::{Backoff, Checkout, Entry, Held, Ledger, Left, Lifetime, Rules, Waiter, Work};
use super::line::Ticket;
use super::retirements::Retirement;
use crate::connect::ConnectErrorKind;
use crate::status::Discard;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const RULES: Rules = Rules {
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
    backoff: Backoff { first: ms(10), most: ms(80), first_patient: ms(100), most_patient: ms(400) },
};

#[derive(Debug)]
struct Conn {
    number: u32,
    closed: Rc<Cell<bool>>,
}

impl Held for Conn {
    fn is_closed(&self) -> bool {
        self.closed.get()
    }
}

/// Who waits: its number, in the order of coming.
#[derive(Debug)]
struct Caller(u32, Instant);

impl Waiter for Caller {
    fn asked_at(&self) -> Option<&'static Location<'static>> {
        Some(Location::caller())
    }

    fn deadline(&self) -> Instant {
        self.1
    }
}

/// After this a place is given back, whatever the server has: the shell's close timeout.
const CLOSE_TIMEOUT: Duration = ms(200);

/// A backend that the server hasn't closed yet, or whose close hasn't been seen.
#[derive(Debug)]
struct Backend {
    /// `None`: of a dial that was given up.
    why: Option<Discard>,
    retirement: Retirement,
    /// When the server closes it, and when it isn't waited for any longer.
    closes_at: Instant,
    given_back_at: Instant,
}

struct World {
    ledger: Ledger<Conn, Caller>,
    now: Instant,
    next: u32,
    closed: BTreeMap<u32, Rc<Cell<bool>>>,
    lent: Vec<(usize, Entry<Conn>)>,
    resetting: Vec<Entry<Conn>>,
    retiring: Vec<Backend>,
    /// When the server closes those that were given back before.
    unclosed: Vec<Instant>,
    /// How long the server takes to close a backend, at most.
    close_takes: Duration,
    dice: Dice,
    dialing: u32,
    waiting: Vec<(usize, Ticket, u32)>,
    dismissed: usize,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    handed_over: u32,
    discards: BTreeMap<&'static str, u32>,
    full: u32,
    stood_aside: u32,
    late: u32,
    dials_lingered: u32,
    given_back_unclosed: u32,
}

const QUOTAS: [u32; 3] = [u32::MAX, 2, 1];

impl World {
    fn new(rules: Rules, seed: u64) -> Self {
        let now = Instant::now();
        let mut ledger = Ledger::new(rules, Dice::new(seed), now);
        for quota in QUOTAS {
            ledger.views.add(quota);
        }
        World {
            ledger,
            now,
            next: 0,
            closed: BTreeMap::new(),
            lent: Vec::new(),
            resetting: Vec::new(),
            retiring: Vec::new(),
            unclosed: Vec::new(),
            close_takes: CLOSE_TIMEOUT,
            dice: Dice::new(!seed),
            dialing: 0,
            waiting: Vec::new(),
            dismissed: 0,
            seen: Seen::default(),
        }
    }

    fn step(&mut self, (action, a, b): (u8, u8, u8)) {
        let (a, b) = (usize::from(a), usize::from(b));
        match action % 16 {
            0..=2 => self.checkout(a % 3),
            3 | 4 if !self.lent.is_empty() => {
                let (view, entry) = self.lent.swap_remove(a % self.lent.len());
                let left = match b % 8 {
                    0 => Left::Bad,
                    1 | 2 => Left::Clean,
                    _ => Left::Used,
                };
                self.ledger.give(view, entry, left, self.now);
            }
            5 | 6 if !self.resetting.is_empty() => {
                let entry = self.resetting.swap_remove(a % self.resetting.len());
                self.ledger.was_reset(entry, !b.is_multiple_of(8), self.now);
            }
            7 if !self.retiring.is_empty() => self.see_close(a % self.retiring.len()),
            8 | 9 if self.dialing > 0 => self.end_dial(b),
            10 if !self.waiting.is_empty() => {
                let (view, ticket, number) = self.waiting.remove(a % self.waiting.len());
                let caller = self.ledger.views.leave(view, ticket).expect("it stands in line");
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
        self.work();
        self.check();
    }

    fn checkout(&mut self, view: usize) {
        match self.ledger.checkout(view, self.now, Some(Location::caller())) {
            Checkout::Lent(entry) => self.lend(view, entry),
            Checkout::Closed => {}
            Checkout::None if self.ledger.may_wait() => {
                let number = self.next;
                self.next += 1;
                let ticket = self.ledger.wait(view, Caller(number, self.now + ms(40)));
                self.waiting.push((view, ticket, number));
            }
            Checkout::None => self.seen.full += 1,
        }
    }

    /// The shell looks at a backend: its place is free if the server has closed it, or took too long.
    fn see_close(&mut self, at: usize) {
        let Backend { closes_at, given_back_at, .. } = self.retiring[at];
        if closes_at > self.now && given_back_at > self.now {
            return;
        }
        if closes_at > self.now {
            self.unclosed.push(closes_at);
            self.seen.given_back_unclosed += 1;
        }
        let Backend { retirement, .. } = self.retiring.swap_remove(at);
        self.ledger.was_closed(retirement);
    }

    fn close_later(&mut self, why: Option<Discard>, retirement: Retirement) {
        let closes_at = self.now + self.dice.part_of(self.close_takes);
        self.retiring.push(Backend { why, retirement, closes_at, given_back_at: self.now + CLOSE_TIMEOUT });
    }

    /// The server closes all that was retired, and that is seen.
    fn close_all(&mut self) -> Vec<Option<Discard>> {
        let closed = std::mem::take(&mut self.retiring);
        let close = |Backend { why, retirement, .. }| {
            self.ledger.was_closed(retirement);
            why
        };
        closed.into_iter().map(close).collect()
    }

    /// The most that the server may have: a dial may have a backend at any moment.
    fn most_backends(&self) -> usize {
        let alive = |closes_at: &Instant| *closes_at > self.now;
        let retiring = self.retiring.iter().filter(|backend| alive(&backend.closes_at)).count();
        let unclosed = self.unclosed.iter().filter(|closes_at| alive(closes_at)).count();
        self.closed.len() + self.dialing as usize + retiring + unclosed
    }

    fn end_dial(&mut self, how: usize) {
        self.dialing -= 1;
        match how % 8 {
            7 => {
                let retirement = self.ledger.dial_lingers(self.now);
                self.ledger.dial_failed(ConnectErrorKind::Unreachable, self.now);
                self.close_later(None, retirement);
                self.seen.dials_lingered += 1;
            }
            0 => self.ledger.dial_failed(ConnectErrorKind::Unreachable, self.now),
            1 => self.ledger.dial_failed(ConnectErrorKind::Full, self.now),
            2 => self.ledger.dial_given_up(Some(self.now + ms(5))),
            _ => {
                let (number, closed) = (self.next, Rc::new(Cell::new(false)));
                self.next += 1;
                self.closed.insert(number, closed.clone());
                self.ledger.born(Conn { number, closed }, self.now);
            }
        }
    }

    fn lend(&mut self, view: usize, entry: Entry<Conn>) {
        assert!(!entry.held().is_closed(), "a closed connection is lent");
        assert!(!entry.ends_within(RULES.guard_window, self.now), "one at its end is lent");
        self.lent.push((view, entry));
    }

    /// What follows, in the order in which a real reservoir does it.
    fn work(&mut self) {
        let Work { hand_over, reset, retire, late, dismiss, wake: _ } = self.ledger.take_work();
        for (Caller(number, _), view, entry) in hand_over {
            let at = self.waiting.iter().position(|(_, _, waiting)| *waiting == number).expect("it waits");
            let (wanted, ..) = self.waiting.remove(at);
            assert_eq!(wanted, view);
            // Whoever came before it can only have stood aside because its view has all that it may have.
            for (other, ..) in self.waiting.iter().filter(|(_, _, other)| *other < number) {
                assert!(!self.ledger.views.has_room(*other), "{number} was served before its turn");
                self.seen.stood_aside += 1;
            }
            self.seen.handed_over += 1;
            self.lend(view, entry);
        }
        for Caller(number, deadline) in late {
            assert!(deadline <= self.now, "it had time left");
            let at = self.waiting.iter().position(|(_, _, waiting)| *waiting == number).expect("it waits");
            self.waiting.remove(at);
            self.seen.late += 1;
        }
        self.resetting.extend(reset);
        for retire in retire {
            *self.seen.discards.entry(retire.why.as_str()).or_default() += 1;
            assert!(self.closed.remove(&retire.entry.held().number).is_some(), "retired twice");
            self.close_later(Some(retire.why), retire.retirement);
        }
        self.dismissed += dismiss.len();
    }

    fn check(&self) {
        let counts = self.ledger.counts();
        assert!(counts.total() <= self.ledger.rules().max, "{counts:?}");
        let unclosed = self.unclosed.iter().filter(|closes_at| **closes_at > self.now).count();
        let (most, max) = (self.most_backends(), self.ledger.rules().max as usize);
        assert!(
            most <= max + unclosed,
            "{most} backends of {max}, {unclosed} given back unclosed: {counts:?}"
        );
        assert_eq!(counts.dialing, self.dialing);
        assert_eq!(counts.lent as usize, self.lent.len());
        assert_eq!(counts.resetting as usize, self.resetting.len());
        assert_eq!(counts.retiring as usize, self.retiring.len());
        assert_eq!(counts.ready as usize + self.lent.len() + self.resetting.len(), self.closed.len());
        let lives = self.ledger.lives(self.now, usize::MAX);
        assert_eq!(lives.iter().filter(|life| life.lent).count(), self.lent.len());
        assert_eq!(lives.len(), self.closed.len());
        assert!(lives.is_sorted_by(|older, younger| older.age_ms >= younger.age_ms));
        for (view, quota) in QUOTAS.into_iter().enumerate() {
            let lent = self.lent.iter().filter(|(of, _)| *of == view).count() as u32;
            assert_eq!(lent, self.ledger.views.lent(view));
            assert!(lent <= quota);
        }
        assert_eq!(self.ledger.views.waiting(), self.waiting.len() - self.dismissed);
        let nobody = self.ledger.views.whose_turn().is_none();
        assert!(nobody || counts.ready == 0, "somebody waits though a connection is ready");
    }

    /// Everything comes back, and the reservoir closes.
    fn wind_down(&mut self) {
        self.ledger.close(self.now);
        self.work();
        assert_eq!(self.dismissed, self.waiting.len(), "everybody who waited is told");
        for (view, entry) in std::mem::take(&mut self.lent) {
            self.ledger.give(view, entry, Left::Used, self.now);
        }
        while self.dialing > 0 {
            self.end_dial(3);
        }
        self.work();
        for entry in std::mem::take(&mut self.resetting) {
            self.ledger.was_reset(entry, true, self.now);
        }
        self.work();
        self.close_all();
        assert!(self.ledger.is_empty(), "{:?}", self.ledger.counts());
        assert!(self.closed.is_empty(), "every connection was retired");
        assert!(matches!(self.ledger.checkout(0, self.now, Some(Location::caller())), Checkout::Closed));
    }
}

/// Small ones, tight ones, and those that live for less long than planned.
fn rules() -> impl Strategy<Value = Rules> {
    (1_u32..8, 0_u32..3, any::<bool>(), any::<bool>(), 0_u64..150).prop_map(
        |(target, more, resets, downward, lead)| {
            let lifetime = Lifetime { downward, ..RULES.lifetime };
            let max = target + more;
            Rules {
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

fn run(steps: Vec<(u8, u8, u8)>, seed: u64, rules: Rules, close_takes: Duration) -> Seen {
    let mut world = World { close_takes, ..World::new(rules, seed) };
    steps.into_iter().for_each(|step| world.step(step));
    world.wind_down();
    world.seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_connection_is_in_one_place_and_all_of_them_within_the_bound(
        steps in steps(), seed: u64, rules in rules(),
    ) {
        run(steps, seed, rules, ms(20));
    }

    #[test]
    fn a_server_that_closes_within_the_timeout_never_has_more_backends_than_the_bound(
        steps in steps(), seed: u64, rules in rules(),
    ) {
        let seen = run(steps, seed, rules, CLOSE_TIMEOUT);
        prop_assert_eq!(seen.given_back_unclosed, 0);
    }

    #[test]
    fn a_server_that_closes_later_has_more_by_as_many_as_were_given_back_unclosed(
        steps in steps(), seed: u64, rules in rules(),
    ) {
        run(steps, seed, rules, CLOSE_TIMEOUT * 3);
    }
}

#[test]
fn the_lives_reach_everything_that_can_happen() {
    let mut dice = proptest::test_runner::TestRunner::deterministic();
    let mut all = Seen::default();
    for seed in 0..400 {
        let steps = steps().new_tree(&mut dice).unwrap().current();
        let close_takes = if seed % 4 > 0 { ms(20) } else { CLOSE_TIMEOUT * 2 };
        let seen = run(steps, seed, RULES, close_takes);
        all.handed_over += seen.handed_over;
        all.full += seen.full;
        all.stood_aside += seen.stood_aside;
        all.late += seen.late;
        all.dials_lingered += seen.dials_lingered;
        all.given_back_unclosed += seen.given_back_unclosed;
        for (why, count) in seen.discards {
            *all.discards.entry(why).or_default() += count;
        }
    }
    assert!(all.handed_over > 50 && all.full > 5 && all.stood_aside > 5 && all.late > 5, "{all:?}");
    assert!(all.dials_lingered > 50 && all.given_back_unclosed > 50, "{all:?}");
    for why in Discard::ALL {
        assert!(all.discards.get(why.as_str()).is_some_and(|count| *count > 5), "{why:?} in {all:?}");
    }
}

/// Fills it with connections that were all opened at this moment.
fn full(rules: Rules) -> World {
    let mut world = World::new(rules, 7);
    while world.ledger.counts().ready < rules.target {
        world.dialing += world.ledger.plan(world.now).dials;
        while world.dialing > 0 {
            world.end_dial(3);
        }
        world.work();
    }
    world
}

#[test]
fn a_steady_reservoir_replaces_its_connections_before_they_leave_and_never_dips() {
    let mut world = full(RULES);
    let mut replaced = 0;
    for _ in 0..2_000 {
        world.now += ms(1);
        let before = world.ledger.counts().ready;
        world.dialing += world.ledger.plan(world.now).dials;
        world.work();
        assert!(
            world.ledger.counts().ready >= RULES.target - 1,
            "from {before}: {:?}",
            world.ledger.counts()
        );
        while world.dialing > 0 {
            world.end_dial(3);
        }
        world.work();
        let closed = world.close_all();
        replaced += closed.iter().filter(|why| **why == Some(Discard::Replaced)).count();
        world.check();
    }
    assert!(replaced > 15, "{replaced} in 2 s of lives of half a second");
    assert_eq!(world.seen.discards.get("expired"), None);
}

#[test]
fn jitter_spreads_the_ends() {
    let lifetime = Lifetime { base: ms(11 * 60_000), jitter: ms(120_000), downward: false };
    let rules = Rules { target: 1_000, max: 1_125, lifetime, max_dials: 1_000, ..RULES };
    let mut world = full(rules);
    // In twelve buckets of ten seconds each, a thousand ends fall evenly: about 83 in each.
    let mut buckets = [0_u32; 12];
    while let Some(entry) = match world.ledger.checkout(0, world.now, Some(Location::caller())) {
        Checkout::Lent(entry) => Some(entry),
        _ => None,
    } {
        let jitter = entry.expires_at() - world.now - lifetime.base;
        buckets[(jitter.as_secs() / 10).min(11) as usize] += 1;
        world.lent.push((0, entry));
    }
    assert_eq!(buckets.iter().sum::<u32>(), 1_000);
    let expected = 1_000.0 / 12.0;
    let chi: f64 = buckets.iter().map(|found| (f64::from(*found) - expected).powi(2) / expected).sum();
    // The 99.9th percentile of chi² with 11 degrees of freedom; the seed is fixed.
    assert!(chi < 31.26, "{buckets:?}: {chi}");
}

#[test]
fn no_more_than_half_are_retired_at_once() {
    let mut world = full(RULES);
    // A process that slept through the ends of all of them.
    world.now += ms(10_000);
    let look = |world: &mut World| {
        let plan = world.ledger.plan(world.now);
        world.dialing += plan.dials;
        world.work();
        (world.seen.discards["expired"], plan.look_at)
    };
    let (ended, again) = look(&mut world);
    assert_eq!(ended, 3);
    assert_eq!(look(&mut world).0, 3, "however often it looks at the same moment");
    world.now = again;
    assert!(look(&mut world).0 > 3);
}

#[test]
fn failures_are_followed_by_ever_longer_pauses_and_full_servers_by_the_longest() {
    let pause = |kind, failures: u32| {
        let mut world = World::new(RULES, 1);
        for _ in 0..failures {
            let plan = world.ledger.plan(world.now);
            assert_eq!(plan.dials, 3);
            // All three fail together, and count once.
            (0..3).for_each(|_| world.ledger.dial_failed(kind, world.now));
            let again = world.ledger.dial_again_at().expect("it waits");
            assert_eq!(world.ledger.plan(world.now).dials, 0);
            (world.now, world.dismissed) = (again, (again - world.now).as_millis() as usize);
        }
        world.dismissed as u64
    };
    use ConnectErrorKind::{Full, Unreachable};
    assert!((5..=10).contains(&pause(Unreachable, 1)) && (20..=40).contains(&pause(Unreachable, 3)));
    assert!((40..=80).contains(&pause(Unreachable, 30)), "at most");
    assert!((50..=100).contains(&pause(Full, 1)) && (200..=400).contains(&pause(Full, 30)));
}

#[test]
fn a_connection_that_is_held_for_too_long_is_told_once() {
    let mut world = full(RULES);
    world.checkout(0);
    world.now += ms(299);
    assert_eq!(world.ledger.leaks(world.now), []);
    world.now += ms(1);
    let leaks = world.ledger.leaks(world.now);
    assert_eq!((leaks.len(), leaks[0].held_for), (1, ms(300)));
    assert!(leaks[0].taken_at.file().ends_with("ledger_tests.rs"));
    world.now += ms(1_000);
    assert_eq!(world.ledger.leaks(world.now), []);
}

/// Runs for a while with every connection in use and somebody in line all the time: dials take `dial`, one at a time each 50 ms.
fn least_alive_when_saturated(rules: Rules, span: Duration) -> (u32, BTreeMap<&'static str, u32>) {
    let mut world = full(rules);
    let (end, mut least, mut dialing) = (world.now + span, u32::MAX, Vec::new());
    while world.now < end {
        world.now += ms(5);
        world.dialing += world.ledger.plan(world.now).dials;
        while (dialing.len() as u32) < world.dialing {
            dialing.push(world.now + ms(50) * (dialing.len() as u32 + 1));
        }
        world.work();
        while dialing.first().is_some_and(|at| *at <= world.now) {
            dialing.remove(0);
            world.end_dial(3);
            world.work();
        }
        world.close_all();
        // Everybody gives back and takes again; there are always more callers than connections.
        for (view, entry) in std::mem::take(&mut world.lent) {
            world.ledger.give(view, entry, Left::Used, world.now);
            world.work();
        }
        for entry in std::mem::take(&mut world.resetting) {
            world.ledger.was_reset(entry, true, world.now);
            world.work();
        }
        while world.ledger.counts().ready > 0 {
            world.checkout(0);
            world.work();
        }
        least = least.min(world.ledger.counts().lent);
    }
    (least, world.seen.discards)
}

#[test]
fn a_saturated_reservoir_is_replaced_ahead_as_well() {
    let lifetime = Lifetime { base: ms(8_000), jitter: ms(500), downward: false };
    let windows = Rules { guard_window: ms(500), lead: ms(2_000), ..RULES };
    let rules = Rules { target: 16, low_watermark: 8, max: 18, lifetime, max_dials: 8, ..windows };
    for jitter in [ms(0), ms(500), ms(4_000)] {
        let rules = Rules { lifetime: Lifetime { jitter, ..lifetime }, ..rules };
        let (least, discards) = least_alive_when_saturated(rules, ms(40_000));
        assert!(least >= 15, "jitter {jitter:?}: down to {least} of 16, {discards:?}");
        assert_eq!(discards.get("expired"), None, "jitter {jitter:?}: {discards:?}");
    }
}

#[test]
fn without_room_one_that_leaves_makes_room_before_all_have_ended() {
    let lifetime = Lifetime { base: ms(8_000), jitter: ms(0), downward: false };
    let windows = Rules { guard_window: ms(500), lead: ms(2_000), ..RULES };
    let rules = Rules { target: 16, low_watermark: 8, max: 16, lifetime, max_dials: 8, ..windows };
    let mut world = full(rules);
    let (mut least, mut dialing) = (u32::MAX, Vec::new());
    for _ in 0..8_000 {
        world.now += ms(5);
        world.dialing += world.ledger.plan(world.now).dials;
        while (dialing.len() as u32) < world.dialing {
            dialing.push(world.now + ms(50));
        }
        world.work();
        while dialing.first().is_some_and(|at| *at <= world.now) {
            dialing.remove(0);
            world.end_dial(3);
            world.work();
        }
        world.close_all();
        least = least.min(world.ledger.counts().ready);
    }
    assert!(least >= 15, "down to {least} of 16: {:?}", world.seen.discards);
}

#[test]
fn a_full_server_found_during_another_pause_is_still_given_its_time() {
    let mut world = World::new(RULES, 1);
    assert_eq!(world.ledger.plan(world.now).dials, 3);
    world.ledger.dial_given_up(Some(world.now + ms(5)));
    world.ledger.dial_failed(ConnectErrorKind::Unreachable, world.now);
    world.ledger.dial_failed(ConnectErrorKind::Full, world.now);
    let pause = world.ledger.dial_again_at().unwrap() - world.now;
    assert!(pause >= RULES.backoff.first_patient / 2, "{pause:?}");
}

#[test]
fn a_dial_that_was_on_its_way_does_not_end_the_pause_after_another_failed() {
    let mut world = World::new(RULES, 1);
    assert_eq!(world.ledger.plan(world.now).dials, 3);
    world.ledger.dial_failed(ConnectErrorKind::Full, world.now);
    let again = world.ledger.dial_again_at().expect("it waits");
    world.dialing = 2;
    world.end_dial(3);
    assert_eq!(world.ledger.dial_again_at(), Some(again));
    world.now = again;
    world.end_dial(3);
    assert_eq!(world.ledger.dial_again_at(), None);
}

/// Two of eighteen places are taken by backends that don't close; the other sixteen connections all end at the same time.
#[test]
fn connections_that_linger_do_not_keep_others_from_being_replaced_before_they_end() {
    let lifetime = Lifetime { base: ms(8_000), jitter: ms(0), downward: false };
    let windows = Rules { guard_window: ms(500), lead: ms(2_000), ..RULES };
    let rules = Rules { target: 16, low_watermark: 8, max: 18, lifetime, max_dials: 8, ..windows };
    let mut world = full(rules);
    for _ in 0..2 {
        world.checkout(0);
        let (view, entry) = world.lent.pop().unwrap();
        world.ledger.give(view, entry, Left::Bad, world.now);
    }
    world.work();
    let lingering: Vec<_> = std::mem::take(&mut world.retiring);
    let (mut least, mut dialing) = (u32::MAX, Vec::new());
    for step in 0..8_000 {
        world.now += ms(5);
        world.dialing += world.ledger.plan(world.now).dials;
        while (dialing.len() as u32) < world.dialing {
            dialing.push(world.now + ms(50));
        }
        world.work();
        while dialing.first().is_some_and(|at| *at <= world.now) {
            dialing.remove(0);
            world.end_dial(3);
            world.work();
        }
        world.close_all();
        assert!(world.ledger.counts().total() <= 18);
        if step > 100 {
            least = least.min(world.ledger.counts().ready);
        }
    }
    assert!(least >= 15, "down to {least} of 16: {:?}", world.seen.discards);
    assert_eq!(world.ledger.lingering(world.now).count, 2);
    for Backend { retirement, .. } in lingering {
        world.ledger.was_closed(retirement);
    }
}
