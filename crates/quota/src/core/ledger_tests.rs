//! The ledger with clock jumps and outages. Other behaviour is tested by the random histories and
//! against the stores.

use super::*;
use crate::store::Allocation;

const TTL: Duration = Duration::from_secs(10);
const HEARTBEAT: Duration = Duration::from_secs(2);
const S: fn(u64) -> Duration = Duration::from_secs;
const STEP: Duration = Duration::from_secs(600);

fn id(name: &str) -> MemberId {
    MemberId::new(name, 1)
}

fn heartbeat(ledger: &mut StoreLedger, name: &str, kind: HeartbeatKind, now: Duration) -> HeartbeatReply {
    ledger.heartbeat(
        &Heartbeat {
            member: id(name),
            ttl: TTL,
            kind,
            generation: 1,
            members_before: 0,
            has_reported: false,
        },
        now,
    )
}

fn settle(
    ledger: &mut StoreLedger,
    name: &str,
    sequence: u64,
    (floor, want): (u32, u32),
    now: Duration,
) -> SettlementReply {
    let request = ShareRequest {
        account: "b:x".into(),
        limit: 40,
        floor,
        want,
        used: want,
        allocation: Allocation::Blocks,
    };
    let settlement = Settlement {
        member: id(name),
        sequence,
        last_acknowledged: 0,
        pressure: 2 * HEARTBEAT,
        rebuild_parts: 0,
        requests: vec![request],
    };
    ledger.settle(&settlement, now)
}

fn count(settled: &SettlementReply) -> u32 {
    match settled {
        SettlementReply::Applied(replies) => replies[0].count,
        SettlementReply::Stale | SettlementReply::UnknownMember | SettlementReply::LostWrites => {
            panic!("{settled:?}")
        }
    }
}

/// Returns a ledger whose members joined at `now`.
fn with_members(names: &[&str], now: Duration) -> StoreLedger {
    let mut ledger = StoreLedger::established();
    for name in names {
        heartbeat(&mut ledger, name, HeartbeatKind::Join, now);
    }
    ledger
}

#[test]
fn when_all_members_expire_together_nothing_is_granted_until_they_have_reported() {
    let (mut ledger, back) = (with_members(&["a", "b"], S(100)), S(100) + 3 * TTL);
    assert_eq!(count(&settle(&mut ledger, "a", 1, (30, 30), S(100))), 30);
    let reply = heartbeat(&mut ledger, "b", HeartbeatKind::Renew, back);
    assert_eq!((reply.membership, reply.rebuild_left), (Membership::Unknown, TTL));
    heartbeat(&mut ledger, "b", HeartbeatKind::Join, back);
    assert_eq!(count(&settle(&mut ledger, "b", 1, (0, 40), back)), 0, "a may still hold thirty");
    heartbeat(&mut ledger, "a", HeartbeatKind::Join, back + S(1));
    assert_eq!(count(&settle(&mut ledger, "a", 1, (30, 30), back + S(1))), 30);
    for at in [3, 5, 7, 9] {
        heartbeat(&mut ledger, "a", HeartbeatKind::Renew, back + S(at));
    }
    assert_eq!(heartbeat(&mut ledger, "b", HeartbeatKind::Renew, back + S(9)).rebuild_left, S(1));
    assert_eq!(heartbeat(&mut ledger, "b", HeartbeatKind::Renew, back + TTL).rebuild_left, S(0));
    assert_eq!(count(&settle(&mut ledger, "b", 2, (0, 40), back + TTL)), 10);
}

#[test]
fn an_outage_in_which_only_some_members_expire_starts_a_rebuild() {
    // b sent the last heartbeat, one interval after a. The store was unavailable for nine of ten
    // seconds.
    let mut ledger = with_members(&["a", "b"], S(100));
    heartbeat(&mut ledger, "b", HeartbeatKind::Renew, S(102));
    let reply = heartbeat(&mut ledger, "b", HeartbeatKind::Renew, S(111));
    assert_eq!(reply.membership, Membership::Alive { sequence: 0 });
    assert_eq!((reply.members, reply.rebuild_left), (1, TTL));
}

#[test]
fn a_member_that_expires_while_others_heartbeat_starts_no_rebuild() {
    let mut ledger = with_members(&["a", "b"], S(100));
    for now in (102..120).step_by(2) {
        assert_eq!(heartbeat(&mut ledger, "b", HeartbeatKind::Renew, S(now)).rebuild_left, S(0), "at {now}");
    }
}

#[test]
fn a_restart_under_the_same_name_and_a_leave_start_no_rebuild() {
    let mut ledger = with_members(&["a", "b"], S(100));
    ledger.leave(&id("b"));
    let again = Heartbeat {
        member: MemberId::new("a", 2),
        ttl: TTL,
        kind: HeartbeatKind::Join,
        generation: 1,
        members_before: 0,
        has_reported: false,
    };
    assert_eq!(ledger.heartbeat(&again, S(1000)).rebuild_left, S(0));
    ledger.leave(&again.member);
    assert_eq!(
        heartbeat(&mut ledger, "c", HeartbeatKind::Join, S(2000)).rebuild_left,
        S(0),
        "no member is left to report"
    );
}

#[test]
fn a_rebuild_without_heartbeats_starts_again() {
    let mut ledger = StoreLedger::default();
    assert_eq!(heartbeat(&mut ledger, "a", HeartbeatKind::Join, S(100)).rebuild_left, TTL);
    assert_eq!(heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(103)).rebuild_left, S(7));
    // The store was unavailable: b, which it has lost, couldn't report.
    assert_eq!(heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(111)).rebuild_left, TTL);
    for now in [114, 117, 120] {
        heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(now));
    }
    assert_eq!(heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(121)).rebuild_left, S(0));
}

#[test]
fn after_a_clock_was_ahead_members_expire_and_the_rebuild_lasts_one_ttl() {
    let mut ledger = with_members(&["a", "b", "gone"], S(1000));
    assert_eq!(count(&settle(&mut ledger, "gone", 1, (40, 40), S(1000))), 40);
    // The clock is ahead for three seconds: all members seem to have expired.
    let reply = heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(1001) + STEP);
    assert_eq!((reply.membership, reply.rebuild_left), (Membership::Unknown, TTL));
    for name in ["a", "b", "gone"] {
        heartbeat(&mut ledger, name, HeartbeatKind::Join, S(1002) + STEP);
    }
    settle(&mut ledger, "gone", 1, (40, 40), S(1002) + STEP);
    // The clock is right again; the third member is killed.
    assert_eq!(heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(1004)).rebuild_left, TTL);
    for now in (1006..1014).step_by(2) {
        heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(now));
        assert_eq!(heartbeat(&mut ledger, "b", HeartbeatKind::Renew, S(now)).members, 3, "at {now}");
    }
    let reply = heartbeat(&mut ledger, "a", HeartbeatKind::Renew, S(1014));
    assert_eq!((reply.rebuild_left, reply.members), (S(0), 2), "a TTL after the clock was set right");
    assert_eq!(count(&settle(&mut ledger, "a", 1, (0, 30), S(1014))), 30 + 10 / 4);
}

#[test]
fn after_a_clock_jump_back_pressure_lasts_no_longer_than_its_duration() {
    let mut ledger = with_members(&["a", "b"], STEP);
    settle(&mut ledger, "a", 1, (40, 40), STEP);
    settle(&mut ledger, "b", 1, (0, 1), STEP); // refused
    settle(&mut ledger, "a", 2, (0, 0), S(0));
    assert_eq!(count(&settle(&mut ledger, "b", 2, (0, 1), S(1))), 1, "under pressure");
    assert!(count(&settle(&mut ledger, "b", 3, (1, 2), S(5))) > 2, "not for as long as the step");
}

/// Sends a heartbeat of a member that counted `members_before` before the rebuild.
fn report(
    ledger: &mut StoreLedger,
    name: &str,
    (members_before, has_reported): (u32, bool),
    now: Duration,
) -> HeartbeatReply {
    let (member, kind) = (id(name), HeartbeatKind::Join);
    ledger.heartbeat(&Heartbeat { member, ttl: TTL, kind, generation: 1, members_before, has_reported }, now)
}

#[test]
fn a_rebuild_ends_early_only_if_all_members_of_before_have_reported() {
    let mut ledger = StoreLedger::default();
    let reply = report(&mut ledger, "a", (2, true), S(100));
    assert_eq!((reply.rebuild_left, reply.expected), (TTL, 2));
    // A member that wasn't there before is no proof that all have reported.
    let reply = report(&mut ledger, "new", (0, true), S(102));
    assert_eq!((reply.rebuild_left, reply.expected, reply.members), (S(8), 2, 2));
    assert_eq!(report(&mut ledger, "b", (2, false), S(103)).rebuild_left, S(7), "it still pushes");
    assert_eq!(report(&mut ledger, "b", (2, true), S(104)).rebuild_left, S(1), "half a TTL from the start");
    // b knew of one more.
    let reply = report(&mut ledger, "b", (3, true), S(104));
    assert_eq!((reply.rebuild_left, reply.expected), (S(6), 3));
    assert_eq!(report(&mut ledger, "c", (3, true), S(106)).rebuild_left, S(0));
    assert!(!ledger.is_rebuilding());
}

#[test]
fn a_member_that_left_during_a_rebuild_does_not_shorten_it() {
    let mut ledger = StoreLedger::default();
    report(&mut ledger, "a", (2, true), S(100));
    report(&mut ledger, "b", (2, true), S(101));
    ledger.leave(&id("a"));
    assert_eq!(report(&mut ledger, "b", (2, true), S(104)).rebuild_left, S(6));
}

#[test]
fn a_rebuild_that_started_again_does_not_end_early() {
    let mut ledger = StoreLedger::default();
    report(&mut ledger, "a", (1, true), S(100));
    assert_eq!(report(&mut ledger, "a", (1, true), S(107)).rebuild_left, TTL, "no heartbeat for half a TTL");
    for now in [110, 113, 116] {
        assert_eq!(report(&mut ledger, "a", (1, true), S(now)).rebuild_left, S(117 - now));
    }
}

#[test]
fn after_an_outage_the_rebuild_ends_early_once_the_expired_members_have_reported() {
    let (mut ledger, back) = (with_members(&["a", "b", "c"], S(100)), S(100) + 3 * TTL);
    assert_eq!(heartbeat(&mut ledger, "a", HeartbeatKind::Renew, back).expected, 2, "b and c have expired");
    assert_eq!(report(&mut ledger, "a", (3, true), back).rebuild_left, TTL);
    assert_eq!(report(&mut ledger, "b", (3, true), back + S(1)).rebuild_left, S(9));
    assert_eq!(report(&mut ledger, "c", (3, true), back + S(2)).rebuild_left, S(3));
    assert_eq!(report(&mut ledger, "c", (3, true), back + S(5)).rebuild_left, S(0));
}
