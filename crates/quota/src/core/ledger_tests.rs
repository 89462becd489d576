//! The ledger under a clock that jumps and through silences; the rest is tested by histories and against the stores.

use super::*;
use crate::store::Sharing;

const TTL: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_secs(2);
const S: fn(u64) -> Duration = Duration::from_secs;
const STEP: Duration = Duration::from_secs(600);

fn id(name: &str) -> MemberId {
    MemberId::new(name, 1)
}

fn beat(ledger: &mut Ledger, name: &str, kind: BeatKind, now: Duration) -> Pulse {
    ledger.beat(&Beat { member: id(name), ttl: TTL, kind, generation: 1 }, now)
}

fn settle(
    ledger: &mut Ledger,
    name: &str,
    sequence: u64,
    (floor, want): (u32, u32),
    now: Duration,
) -> Settled {
    let ask = Ask { account: "b:x".into(), limit: 40, floor, want, used: want, sharing: Sharing::Blocks };
    let settlement =
        Settlement { member: id(name), sequence, landed: 0, pressure: 2 * BEAT, asks: vec![ask] };
    ledger.settle(&settlement, now)
}

fn count(settled: &Settled) -> u32 {
    match settled {
        Settled::Landed(answers) => answers[0].count,
        Settled::Stale | Settled::Unknown | Settled::LostWrites => panic!("{settled:?}"),
    }
}

/// Members that joined at `now`.
fn with_members(names: &[&str], now: Duration) -> Ledger {
    let mut ledger = Ledger::newborn();
    for name in names {
        beat(&mut ledger, name, BeatKind::Join, now);
    }
    ledger
}

#[test]
fn when_all_expire_together_nothing_is_granted_until_they_have_told_what_they_hold() {
    let (mut ledger, back) = (with_members(&["a", "b"], S(100)), S(100) + 3 * TTL);
    assert_eq!(count(&settle(&mut ledger, "a", 1, (30, 30), S(100))), 30);
    let pulse = beat(&mut ledger, "b", BeatKind::Stay, back);
    assert_eq!((pulse.standing, pulse.rebuild_left), (Standing::Unknown, TTL));
    beat(&mut ledger, "b", BeatKind::Join, back);
    assert_eq!(count(&settle(&mut ledger, "b", 1, (0, 40), back)), 0, "a may still have thirty");
    beat(&mut ledger, "a", BeatKind::Join, back + S(1));
    assert_eq!(count(&settle(&mut ledger, "a", 1, (30, 30), back + S(1))), 30);
    for at in [3, 5, 7, 9] {
        beat(&mut ledger, "a", BeatKind::Stay, back + S(at));
    }
    assert_eq!(beat(&mut ledger, "b", BeatKind::Stay, back + S(9)).rebuild_left, S(1));
    assert_eq!(beat(&mut ledger, "b", BeatKind::Stay, back + TTL).rebuild_left, S(0));
    assert_eq!(count(&settle(&mut ledger, "b", 2, (0, 40), back + TTL)), 10);
}

#[test]
fn a_silence_in_which_only_some_expire_is_one_all_the_same() {
    // b was heard last of all, a beat after a; the store was away for nine of ten seconds.
    let mut ledger = with_members(&["a", "b"], S(100));
    beat(&mut ledger, "b", BeatKind::Stay, S(102));
    let pulse = beat(&mut ledger, "b", BeatKind::Stay, S(111));
    assert_eq!(pulse.standing, Standing::Alive { sequence: 0 });
    assert_eq!((pulse.members, pulse.rebuild_left), (1, TTL));
}

#[test]
fn one_that_dies_while_others_are_heard_is_simply_dead() {
    let mut ledger = with_members(&["a", "b"], S(100));
    for now in (102..120).step_by(2) {
        assert_eq!(beat(&mut ledger, "b", BeatKind::Stay, S(now)).rebuild_left, S(0), "at {now}");
    }
}

#[test]
fn a_restart_under_the_same_name_and_one_that_left_are_no_reason_to_rebuild() {
    let mut ledger = with_members(&["a", "b"], S(100));
    ledger.leave(&id("b"));
    let again = Beat { member: MemberId::new("a", 2), ttl: TTL, kind: BeatKind::Join, generation: 1 };
    assert_eq!(ledger.beat(&again, S(1000)).rebuild_left, S(0));
    ledger.leave(&again.member);
    assert_eq!(beat(&mut ledger, "c", BeatKind::Join, S(2000)).rebuild_left, S(0), "nobody is left to tell");
}

#[test]
fn a_rebuilding_in_which_nobody_was_heard_begins_anew() {
    let mut ledger = Ledger::default();
    assert_eq!(beat(&mut ledger, "a", BeatKind::Join, S(100)).rebuild_left, TTL);
    assert_eq!(beat(&mut ledger, "a", BeatKind::Stay, S(103)).rebuild_left, S(7));
    // The store was away: b, which it has lost, couldn't tell it anything.
    assert_eq!(beat(&mut ledger, "a", BeatKind::Stay, S(111)).rebuild_left, TTL);
    for now in [114, 117, 120] {
        beat(&mut ledger, "a", BeatKind::Stay, S(now));
    }
    assert_eq!(beat(&mut ledger, "a", BeatKind::Stay, S(121)).rebuild_left, S(0));
}

#[test]
fn a_clock_that_was_ahead_keeps_nobody_alive_and_rebuilds_for_no_longer_than_a_ttl() {
    let mut ledger = with_members(&["a", "b", "gone"], S(1000));
    assert_eq!(count(&settle(&mut ledger, "gone", 1, (40, 40), S(1000))), 40);
    // It is ahead for three seconds: all seem to have expired.
    let pulse = beat(&mut ledger, "a", BeatKind::Stay, S(1001) + STEP);
    assert_eq!((pulse.standing, pulse.rebuild_left), (Standing::Unknown, TTL));
    for name in ["a", "b", "gone"] {
        beat(&mut ledger, name, BeatKind::Join, S(1002) + STEP);
    }
    settle(&mut ledger, "gone", 1, (40, 40), S(1002) + STEP);
    // It is right again; the third is killed.
    assert_eq!(beat(&mut ledger, "a", BeatKind::Stay, S(1004)).rebuild_left, TTL);
    for now in (1006..1014).step_by(2) {
        beat(&mut ledger, "a", BeatKind::Stay, S(now));
        assert_eq!(beat(&mut ledger, "b", BeatKind::Stay, S(now)).members, 3, "at {now}");
    }
    let pulse = beat(&mut ledger, "a", BeatKind::Stay, S(1014));
    assert_eq!((pulse.rebuild_left, pulse.members), (S(0), 2), "a TTL after the clock was set right");
    assert_eq!(count(&settle(&mut ledger, "a", 1, (0, 30), S(1014))), 30 + 10 / 4);
}

#[test]
fn a_clock_that_goes_back_finds_no_pressure_beyond_its_span() {
    let mut ledger = with_members(&["a", "b"], STEP);
    settle(&mut ledger, "a", 1, (40, 40), STEP);
    settle(&mut ledger, "b", 1, (0, 1), STEP); // refused
    settle(&mut ledger, "a", 2, (0, 0), S(0));
    assert_eq!(count(&settle(&mut ledger, "b", 2, (0, 1), S(1))), 1, "under pressure");
    assert!(count(&settle(&mut ledger, "b", 3, (1, 2), S(5))) > 2, "not for as long as the step");
}
