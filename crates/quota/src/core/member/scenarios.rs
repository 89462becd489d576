//! Single stories of members and a ledger, told step by step: what random histories reach too seldom.

use super::*;
use crate::config::Policy;
use crate::core::ledger::Ledger;
use crate::status::Mode;
use crate::store::Settled;

const RULES: Rules = Rules {
    beat: Duration::from_millis(20),
    ttl: Duration::from_millis(100),
    margin: Duration::from_millis(10),
    policy: Policy::Closed,
    retry: Duration::from_millis(5),
    refusal_hold: Duration::from_millis(2),
    key_refresh: Duration::from_secs(60),
    max_waiting: 100,
    batch: 10,
};

/// Nobody ever goes away here.
#[derive(Debug, PartialEq)]
struct Caller(&'static str);

impl Waiter for Caller {
    fn gone(&self) -> bool {
        false
    }
}

struct World {
    origin: Instant,
    time: Duration,
    ledger: Ledger,
}

impl World {
    fn new() -> Self {
        World { origin: Instant::now(), time: Duration::from_secs(1), ledger: Ledger::newborn() }
    }

    fn now(&self) -> Instant {
        self.origin + self.time
    }

    fn pass(&mut self, ms: u64) {
        self.time += Duration::from_millis(ms);
    }

    fn join(&mut self, name: &str, seed: u64) -> Member<Caller> {
        let mut member = Member::new(name.into(), RULES, seed, self.now());
        member.budget("streams", 10, Sharing::Blocks);
        member.keyed("user", 2);
        self.serve(&mut member);
        assert_eq!(member.mode(self.now()), Mode::Normal);
        member
    }

    /// Answers every call at once, until there is none.
    fn serve(&mut self, member: &mut Member<Caller>) {
        while let Some(call) = member.poll(self.now()) {
            self.answer(member, call);
        }
    }

    fn answer(&mut self, member: &mut Member<Caller>, call: Call) {
        let now = self.now();
        match call {
            Call::Beat(beat) => {
                let pulse = self.ledger.beat(&beat, self.time);
                member.on_pulse(Ok(pulse), now);
            }
            Call::Settle(settlement) => {
                let settled = self.ledger.settle(&settlement, self.time);
                member.on_settled(Ok(settled), now);
            }
            Call::Leave(id) => {
                self.ledger.leave(&id);
                member.on_left(Ok(()), now);
            }
        }
    }

    /// The next call, which must be a settlement.
    fn settlement(&self, member: &mut Member<Caller>) -> Settlement {
        match member.poll(self.now()) {
            Some(Call::Settle(settlement)) => settlement,
            other => panic!("expected a settlement, got {other:?}"),
        }
    }

    /// Takes a unit, asking if need be.
    fn take(&mut self, member: &mut Member<Caller>, of: &AccountRef) -> Result<(), Refusal> {
        match member.take(of, self.now(), || Caller("taker")) {
            Take::Granted => Ok(()),
            Take::Refused(refusal) => Err(refusal),
            Take::Waiting => {
                self.serve(member);
                let (_, verdict) = member.take_verdicts().pop().expect("whoever waits is answered");
                verdict.map(|_| ())
            }
        }
    }
}

fn streams() -> AccountRef {
    AccountRef::Budget(0)
}

fn ann() -> AccountRef {
    AccountRef::Key(0, ann_key())
}

fn ann_key() -> Key {
    Key::new(&KeyPrefix::of("user"), "ann")
}

#[test]
fn a_grant_that_is_heard_after_the_deadline_is_not_believed() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    assert!(matches!(member.take(&ann(), world.now(), || Caller("late")), Take::Waiting));
    let settlement = world.settlement(&mut member);
    let granted = world.ledger.settle(&settlement, world.time);
    assert!(matches!(&granted, Settled::Landed(answers) if answers[0].count == 1));
    // The answer takes longer than the member may trust the store's memory.
    world.pass(95);
    member.on_settled(Ok(granted), world.now());
    assert!(member.take_verdicts().is_empty(), "it waits for a beat to tell whether it still lives");
    world.serve(&mut member);
    let verdicts = member.take_verdicts();
    assert_eq!(verdicts, [(Caller("late"), Ok(ann()))], "and is granted anew");
}

#[test]
fn while_an_ask_is_on_its_way_no_more_than_its_floor_is_lent() {
    let mut world = World::new();
    let (mut a, mut b) = (world.join("a", 1), world.join("b", 2));
    world.take(&mut a, &streams()).unwrap();
    let before = a.usage(0);
    assert!(before.slice > 2, "it has idle units: {before:?}");
    // Somebody is refused: the idle units go back.
    a.on_pressed();
    let settlement = world.settlement(&mut a);
    assert_eq!((settlement.asks[0].floor, settlement.asks[0].want), (1, 1));
    assert!(a.try_take(&streams(), world.now()).is_err(), "what is being given back is not lent any more");
    world.answer(&mut a, Call::Settle(settlement));
    // The others may have everything that a hasn't lent, and a still lends nothing beyond its slice.
    let mut theirs = 0;
    while world.take(&mut b, &streams()).is_ok() {
        theirs += 1;
    }
    assert_eq!((theirs, a.usage(0).slice), (9, 1));
}

#[test]
fn a_unit_of_the_slice_is_lent_without_a_call_to_the_store() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    world.take(&mut member, &streams()).unwrap();
    assert!(member.usage(0).slice > 1);
    let before = member.counters.settlements;
    member.try_take(&streams(), world.now()).unwrap();
    assert!(member.poll(world.now()).is_none());
    assert_eq!(member.counters.settlements, before);
}

#[test]
fn idle_units_that_are_kept_are_part_of_the_floor() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    world.take(&mut member, &streams()).unwrap();
    world.pass(20);
    let Some(beat) = member.poll(world.now()) else { panic!("a beat is due") };
    world.answer(&mut member, beat);
    let review = world.settlement(&mut member);
    let slice = member.usage(0).slice;
    assert_eq!((review.asks[0].floor, review.asks[0].used), (slice, 1));
    assert!(slice > 1);
    // However short the store is, it can't go below what may be lent meanwhile.
    member.try_take(&streams(), world.now()).unwrap();
}

#[test]
fn what_the_store_has_not_heard_of_is_not_lent_again() {
    let mut world = World::new();
    let (mut a, mut b) = (world.join("a", 1), world.join("b", 2));
    world.take(&mut a, &ann()).unwrap();
    world.take(&mut a, &ann()).unwrap();
    // a is cut off until it is taken for dead, and both units are granted anew.
    for _ in 0..6 {
        world.pass(20);
        world.serve(&mut b);
    }
    world.take(&mut b, &ann()).unwrap();
    world.take(&mut b, &ann()).unwrap();
    while a.mode(world.now()) != Mode::Normal {
        let beat = a.poll(world.now()).expect("it beats until it is let in again");
        world.answer(&mut a, beat);
    }
    assert!(world.ledger.is_alive(a.id()) && a.counters().rebirths == 1);
    // What it has is debt: a unit that comes back is nobody's here, before the store is told of the rest...
    a.give(&ann(), world.now());
    assert!(a.try_take(&ann(), world.now()).is_err());
    let push = world.settlement(&mut a);
    assert_eq!((push.asks[0].floor, push.asks[0].want), (1, 1));
    // ...while that is on its way, and when nobody knows whether it came through.
    a.give(&ann(), world.now());
    assert!(a.try_take(&ann(), world.now()).is_err());
    a.on_settled(Err("no answer".into()), world.now());
    assert!(a.try_take(&ann(), world.now()).is_err());
    world.pass(5);
    world.serve(&mut a);
    assert!(matches!(world.take(&mut a, &ann()), Err(Refusal::Full { used: 2, limit: 2 })));
    assert_eq!(world.ledger.held(ann_key().account()).into_values().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_rebuilding_is_over_when_a_beat_has_ended_it_and_not_before() {
    let mut world = World::new();
    let mut a = world.join("a", 1);
    world.ledger = Ledger::default(); // it has lost everything
    while a.mode(world.now()) != Mode::Rebuilding {
        world.pass(1);
        world.serve(&mut a);
    }
    while a.rebuild_left(world.now()).is_some_and(|left| left > Duration::from_millis(1)) {
        world.pass(1);
        world.serve(&mut a);
    }
    world.pass(1);
    // The store would refuse: it hasn't heard that the time is over.
    assert_eq!(a.mode(world.now()), Mode::Rebuilding);
    assert!(matches!(a.try_take(&ann(), world.now()), Err(Refusal::Rebuilding { .. })));
    world.serve(&mut a);
    assert_eq!(a.mode(world.now()), Mode::Normal);
    assert_eq!(world.take(&mut a, &ann()), Ok(()));
}

#[test]
fn a_join_that_lands_when_its_member_has_expired_gives_it_nothing_back() {
    // Whether the beat that finds it alive again was sent before it had heard of its grant, or after.
    for early in [true, false] {
        let mut world = World::new();
        // Somebody is heard all the while: the first alone has expired.
        let mut c = world.join("c", 3);
        let mut a: Member<Caller> = Member::new("a".into(), RULES, 1, world.now());
        a.keyed("user", 2);
        let Some(Call::Beat(late)) = a.poll(world.now()) else { panic!("it joins") };
        a.on_pulse(Err("no answer".into()), world.now());
        world.pass(5);
        world.serve(&mut a);
        assert!(matches!(a.take(&ann(), world.now(), || Caller("a")), Take::Waiting));
        let grant = world.settlement(&mut a);
        world.pass(60);
        world.serve(&mut c);
        let sent_early = a.poll(world.now()).expect("a beat is due");
        world.answer(&mut a, Call::Settle(grant));
        assert!(matches!(a.take_verdicts()[..], [(_, Ok(_))]));
        let beat = if early {
            sent_early
        } else {
            world.answer(&mut a, sent_early);
            world.pass(60);
            world.serve(&mut c);
            a.poll(world.now()).expect("a beat is due")
        };
        // The store forgets it, and grants both units anew; then the first join lands.
        world.pass(45);
        let mut b = world.join("b", 2);
        world.take(&mut b, &ann()).unwrap();
        world.take(&mut b, &ann()).unwrap();
        assert_eq!(world.ledger.beat(&late, world.time).members, 3);
        world.answer(&mut a, beat);
        a.give(&ann(), world.now());
        assert!(a.try_take(&ann(), world.now()).is_err(), "both are lent elsewhere; early: {early}");
        world.serve(&mut a);
        assert_eq!(world.ledger.held(ann_key().account()).into_values().sum::<u32>(), 2);
        assert_eq!(a.mode(world.now()), Mode::Normal);
    }
}

#[test]
fn what_was_lent_without_the_store_is_not_lent_again_before_it_is_told() {
    let mut world = World::new();
    let mut a: Member<Caller> =
        Member::new("a".into(), Rules { policy: Policy::Share, ..RULES }, 1, world.now());
    a.keyed("user", 2);
    a.poll(world.now());
    a.on_pulse(Err("away".into()), world.now());
    assert!(matches!(a.take(&ann(), world.now(), || Caller("a")), Take::Granted));
    let mut b = world.join("b", 2);
    world.take(&mut b, &ann()).unwrap();
    world.take(&mut b, &ann()).unwrap();
    world.pass(5);
    let told = loop {
        match a.poll(world.now()).expect("it tells what it has lent") {
            Call::Settle(settlement) => break settlement,
            call => world.answer(&mut a, call),
        }
    };
    assert_eq!((told.asks[0].floor, told.asks[0].used), (1, 1));
    a.give(&ann(), world.now());
    assert!(a.try_take(&ann(), world.now()).is_err(), "both are lent elsewhere");
    // Nor when the store has heard what is no longer true.
    let answer = world.ledger.settle(&told, world.time);
    a.on_settled(Ok(answer), world.now());
    assert_eq!(world.ledger.held(ann_key().account()).into_values().sum::<u32>(), 3);
    assert!(a.try_take(&ann(), world.now()).is_err());
    world.serve(&mut a);
    assert_eq!(world.ledger.held(ann_key().account()).into_values().sum::<u32>(), 2);
}

#[test]
fn callers_beyond_the_limit_are_refused_with_the_answer_that_grants_all_of_it() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    for _ in 0..5 {
        assert!(matches!(member.take(&ann(), world.now(), || Caller("one of five")), Take::Waiting));
    }
    let before = member.counters.settlements;
    world.serve(&mut member);
    let (granted, refused): (Vec<_>, Vec<_>) =
        member.take_verdicts().into_iter().partition(|(_, verdict)| verdict.is_ok());
    assert_eq!((granted.len(), refused.len()), (2, 3));
    assert_eq!(refused[0].1, Err(Refusal::Full { used: 2, limit: 2 }));
    assert_eq!(member.counters.settlements - before, 1, "nobody asks for more than there can be");
}

#[test]
fn a_lost_ask_leaves_the_store_with_at_least_what_is_lent() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    world.take(&mut member, &ann()).unwrap();
    assert!(matches!(member.take(&ann(), world.now(), || Caller("second")), Take::Waiting));
    let lost = world.settlement(&mut member);
    member.on_settled(Err("no answer".into()), world.now());
    assert!(matches!(member.take_verdicts()[..], [(Caller("second"), Err(Refusal::Unavailable { .. }))]));
    member.give(&ann(), world.now());
    world.pass(5);
    world.serve(&mut member);
    assert_eq!(world.ledger.held("k:user:ann").len(), 0, "the store was told");
    // Now the lost one lands after all.
    assert_eq!(world.ledger.settle(&lost, world.time), Settled::Stale);
}

#[test]
fn a_lost_write_is_noticed_though_a_later_one_has_landed() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    world.take(&mut member, &ann()).unwrap();
    let replica = world.ledger.clone();
    member.give(&ann(), world.now());
    world.serve(&mut member);
    world.ledger = replica; // it has ann's stream, which has ended
    let bob = AccountRef::Key(0, Key::new(&KeyPrefix::of("user"), "bob"));
    world.take(&mut member, &bob).unwrap();
    world.serve(&mut member);
    let holders = world.ledger.look(
        &[
            Key::new(&KeyPrefix::of("user"), "ann").account().clone(),
            Key::new(&KeyPrefix::of("user"), "bob").account().clone(),
        ],
        world.time,
    );
    let [shares] = &holders.accounts[..] else { panic!("{holders:?}") };
    assert_eq!((&*shares.account, shares.shares[0].count), ("k:user:bob", 1));
    assert_eq!((holders.members.len(), member.counters().rebirths), (1, 1));
}

#[test]
fn a_lowered_limit_cuts_nobody_and_is_kept_from_then_on() {
    let mut world = World::new();
    let (mut a, mut b) = (world.join("a", 1), world.join("b", 2));
    for _ in 0..5 {
        world.take(&mut a, &streams()).unwrap();
    }
    world.take(&mut b, &streams()).unwrap();
    a.set_budget_limit(0, 4);
    b.set_budget_limit(0, 4);
    world.serve(&mut a);
    world.serve(&mut b);
    assert_eq!((a.usage(0).used_here, a.usage(0).slice, b.usage(0).slice), (5, 5, 1));
    a.give(&streams(), world.now());
    a.give(&streams(), world.now());
    world.serve(&mut a);
    assert!(world.take(&mut a, &streams()).is_err(), "three and one are lent");
    assert!(world.take(&mut b, &streams()).is_err());
    a.give(&streams(), world.now());
    world.serve(&mut a);
    world.pass(3);
    assert!(world.take(&mut b, &streams()).is_ok());
}

#[test]
fn a_limit_that_is_lowered_while_an_ask_is_on_its_way_is_kept_all_the_same() {
    let mut world = World::new();
    let (mut a, mut b) = (world.join("a", 1), world.join("b", 2));
    world.take(&mut a, &streams()).unwrap();
    world.take(&mut b, &streams()).unwrap();
    assert!(a.usage(0).slice + b.usage(0).slice > 4, "they have more than the limit will be");
    world.pass(20);
    for member in [&mut a, &mut b] {
        let beat = member.poll(world.now()).unwrap();
        world.answer(member, beat);
        let asked = world.settlement(member);
        member.set_budget_limit(0, 4);
        world.answer(member, Call::Settle(asked));
    }
    world.serve(&mut a);
    world.serve(&mut b);
    let mut lent = 2;
    for member in [&mut a, &mut b] {
        while world.take(member, &streams()).is_ok() {
            lent += 1;
        }
    }
    assert_eq!(lent, 4);
}

#[test]
fn an_old_incarnation_leaves_only_when_everything_is_pushed() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    for key in 0..25 {
        world
            .take(&mut member, &AccountRef::Key(0, Key::new(&KeyPrefix::of("user"), &format!("user-{key}"))))
            .unwrap();
    }
    let old = member.id().clone();
    world.ledger.forget_last_settlement(&old);
    world.pass(20);
    let mut settlements = 0;
    while let Some(call) = member.poll(world.now()) {
        settlements += u32::from(matches!(call, Call::Settle(_)));
        if matches!(call, Call::Leave(_)) {
            assert_eq!(settlements, 3, "twenty-five accounts in batches of ten");
        }
        world.answer(&mut member, call);
    }
    assert!(!world.ledger.is_alive(&old) && world.ledger.is_alive(member.id()));
}

#[test]
fn a_store_that_forgets_a_member_as_soon_as_it_has_joined_keeps_nobody_waiting() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    assert!(matches!(member.take(&ann(), world.now(), || Caller("patient")), Take::Waiting));
    // A server that evicts keys, say: beats find a place, settlements find nothing.
    let mut calls = 0;
    while let Some(call) = member.poll(world.now()) {
        calls += 1;
        assert!(calls < 10, "it asks again and again without a pause");
        match call {
            Call::Settle(_) => member.on_settled(Ok(Settled::Unknown), world.now()),
            call => world.answer(&mut member, call),
        }
    }
    let verdicts = member.take_verdicts();
    assert!(matches!(&verdicts[..], [(Caller("patient"), Err(Refusal::Unavailable { .. }))]), "{verdicts:?}");
    assert_eq!(member.wake_at(world.now()), Some(world.now() + RULES.retry));
}

/// A member whose store lost a write: its new incarnation has told everything, the old one's leave is on its way, and bob
/// must wait for its end.
fn with_bob_held_back() -> (World, Member<Caller>) {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    world.take(&mut member, &ann()).unwrap();
    world.ledger.forget_last_settlement(&member.id().clone());
    world.pass(20);
    loop {
        match member.poll(world.now()).expect("the predecessor leaves") {
            Call::Leave(_) => break,
            call => world.answer(&mut member, call),
        }
    }
    let bob = AccountRef::Key(0, Key::new(&KeyPrefix::of("user"), "bob"));
    assert!(matches!(member.take(&bob, world.now(), || Caller("bob")), Take::Waiting));
    assert!(member.poll(world.now()).is_none());
    (world, member)
}

#[test]
fn an_outage_finds_those_who_wait_for_a_predecessor_to_leave() {
    let (world, mut member) = with_bob_held_back();
    member.on_left(Err("no answer".into()), world.now());
    let verdicts = member.take_verdicts();
    assert!(matches!(&verdicts[..], [(Caller("bob"), Err(Refusal::Unavailable { .. }))]), "{verdicts:?}");
}

#[test]
fn leaving_finds_those_who_wait_for_a_predecessor_to_leave() {
    let (world, mut member) = with_bob_held_back();
    member.leave();
    let verdicts = member.take_verdicts();
    assert!(matches!(&verdicts[..], [(Caller("bob"), Err(Refusal::Unavailable { .. }))]), "{verdicts:?}");
    assert_eq!(member.wake_at(world.now()), None);
}

#[test]
fn keys_that_come_and_go_in_an_outage_leave_nothing_behind() {
    let mut world = World::new();
    let mut member: Member<Caller> =
        Member::new("a".into(), Rules { policy: Policy::Share, ..RULES }, 1, world.now());
    member.keyed("user", 2);
    member.poll(world.now());
    member.on_pulse(Err("away".into()), world.now());
    let keys = |member: &Member<Caller>| member.keyed_limits().next().unwrap().2;
    for key in 0..100 {
        let of = AccountRef::Key(0, Key::new(&KeyPrefix::of("user"), &key.to_string()));
        assert!(matches!(member.take(&of, world.now(), || Caller("brief")), Take::Granted));
        member.give(&of, world.now());
    }
    assert_eq!(keys(&member), 0);
    // Whoever stays is told when the store is back.
    assert!(matches!(member.take(&ann(), world.now(), || Caller("stays")), Take::Granted));
    world.pass(20);
    world.serve(&mut member);
    assert_eq!((keys(&member), world.ledger.held(ann_key().account()).len()), (1, 1));
}

#[test]
fn shortages_that_were_overcome_do_not_count_against_the_next() {
    let mut world = World::new();
    let (mut a, mut b) = (world.join("a", 1), world.join("b", 2));
    for _ in 0..6 {
        // All lies idle with b, who hears of it only after a has asked.
        while a.usage(0).slice + b.usage(0).slice < 10 {
            world.take(&mut b, &streams()).unwrap();
        }
        (0..b.usage(0).used_here).for_each(|_| b.give(&streams(), world.now()));
        let mut taken = 0;
        loop {
            match a.take(&streams(), world.now(), || Caller("a")) {
                Take::Granted => taken += 1,
                Take::Refused(refusal) => panic!("{refusal} though others have idle units"),
                Take::Waiting => break,
            }
        }
        world.serve(&mut a);
        b.on_pressed();
        world.serve(&mut b);
        world.pass(30);
        world.serve(&mut a);
        let verdicts = a.take_verdicts();
        assert!(matches!(&verdicts[..], [(_, Ok(_))]), "{verdicts:?}");
        (0..=taken).for_each(|_| a.give(&streams(), world.now()));
        // Long enough that nothing presses any more, and idle units are given back.
        for _ in 0..4 {
            world.pass(25);
            world.serve(&mut a);
            world.serve(&mut b);
        }
    }
}

#[test]
fn settlements_that_fail_while_beats_go_well_are_one_long_outage() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    member.take_notices();
    let mut failed = 0;
    for _ in 0..20 {
        while let Some(call) = member.poll(world.now()) {
            match call {
                Call::Settle(_) => {
                    failed += 1;
                    member.on_settled(Err("WRONGTYPE".into()), world.now());
                }
                call => world.answer(&mut member, call),
            }
        }
        if failed > 0 {
            assert_eq!(member.mode(world.now()), Mode::WithinSlices);
        }
        world.pass(5);
    }
    assert!(failed > 2, "it goes on trying");
    assert!(matches!(&member.take_notices()[..], [Notice::StoreIsGone { .. }]));
    world.pass(20);
    world.serve(&mut member);
    assert_eq!(
        (member.mode(world.now()), &member.take_notices()[..]),
        (Mode::Normal, &[Notice::StoreIsBack][..])
    );
}

#[test]
fn answers_that_do_not_fit_the_asks_are_not_believed() {
    let mut world = World::new();
    let mut member = world.join("a", 1);
    assert!(matches!(member.take(&ann(), world.now(), || Caller("ann")), Take::Waiting));
    world.settlement(&mut member);
    member.on_settled(Ok(Settled::Landed(Vec::new())), world.now());
    let verdicts = member.take_verdicts();
    assert!(matches!(&verdicts[..], [(_, Err(Refusal::Unavailable { .. }))]), "{verdicts:?}");
}
