//! Scenarios of members and a ledger that random histories rarely reach.

use super::*;
use crate::config::OutagePolicy;
use crate::core::ledger::StoreLedger;
use crate::status::{QuotaMode, RejoinReason};
use crate::store::{SettlementReply, StoreError};

const RULES: MemberRules = MemberRules {
    heartbeat_interval: Duration::from_millis(20),
    ttl: Duration::from_millis(100),
    margin: Duration::from_millis(10),
    policy: OutagePolicy::Closed,
    retry: Duration::from_millis(5),
    refusal_hold: Duration::from_millis(2),
    key_refresh: Duration::from_secs(60),
    max_waiting: 100,
    batch: 10,
};

/// A caller that is never cancelled.
#[derive(Debug, PartialEq)]
struct NamedCaller(&'static str);

impl TakeWaiter for NamedCaller {
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A ledger and a clock that the test moves.
struct LocalCluster {
    origin: Instant,
    time: Duration,
    ledger: StoreLedger,
}

impl LocalCluster {
    fn new() -> Self {
        LocalCluster {
            origin: Instant::now(),
            time: Duration::from_secs(1),
            ledger: StoreLedger::established(),
        }
    }

    fn now(&self) -> Instant {
        self.origin + self.time
    }

    fn advance(&mut self, ms: u64) {
        self.time += Duration::from_millis(ms);
    }

    fn join(&mut self, name: &str, seed: u64) -> QuotaMember<NamedCaller> {
        let member = self.join_with(name, seed, RULES.policy);
        assert_eq!(member.mode(self.now()), QuotaMode::Normal);
        member
    }

    fn join_with(&mut self, name: &str, seed: u64, policy: OutagePolicy) -> QuotaMember<NamedCaller> {
        let mut member = QuotaMember::new(name.into(), MemberRules { policy, ..RULES }, seed, self.now());
        member.register_budget("streams", 10, Allocation::Blocks);
        member.register_keyed_limit("user", 2);
        self.serve(&mut member);
        member
    }

    /// Takes units until one is refused. Returns the number taken, and the refusal.
    fn take_all(
        &mut self,
        member: &mut QuotaMember<NamedCaller>,
        account_id: &AccountId,
    ) -> (u32, QuotaRefusal) {
        for taken in 0.. {
            if let Err(refusal) = self.take(member, account_id) {
                return (taken, refusal);
            }
        }
        unreachable!("some unit is refused")
    }

    /// Executes all calls at once.
    fn serve(&mut self, member: &mut QuotaMember<NamedCaller>) {
        while let Some(call) = member.poll(self.now()) {
            self.execute(member, call);
        }
    }

    /// Lets time pass, then executes all calls of each member in turn.
    fn serve_after<'m>(
        &mut self,
        ms: u64,
        members: impl IntoIterator<Item = &'m mut QuotaMember<NamedCaller>>,
    ) {
        self.advance(ms);
        for member in members {
            self.serve(member);
        }
    }

    fn execute(&mut self, member: &mut QuotaMember<NamedCaller>, call: MemberCall) {
        let now = self.now();
        match call {
            MemberCall::Heartbeat(heartbeat) => {
                let reply = self.ledger.heartbeat(&heartbeat, self.time);
                member.on_heartbeat_reply(Ok(reply), now);
            }
            MemberCall::Settle(settlement) => {
                let settled = self.ledger.settle(&settlement, self.time);
                member.on_settlement_reply(Ok(settled), now);
            }
            MemberCall::Leave(id) => {
                self.ledger.leave(&id);
                member.on_leave_reply(Ok(()), now);
            }
        }
    }

    /// Returns the next call, which must be a settlement.
    fn settlement(&self, member: &mut QuotaMember<NamedCaller>) -> Settlement {
        match member.poll(self.now()) {
            Some(MemberCall::Settle(settlement)) => settlement,
            other => panic!("expected a settlement, got {other:?}"),
        }
    }

    /// Takes a unit, with calls to the store if needed.
    fn take(
        &mut self,
        member: &mut QuotaMember<NamedCaller>,
        account_id: &AccountId,
    ) -> Result<(), QuotaRefusal> {
        match member.take(account_id, self.now(), || NamedCaller("taker")) {
            TakeDecision::Granted => Ok(()),
            TakeDecision::Refused(refusal) => Err(refusal),
            TakeDecision::Waiting => {
                self.serve(member);
                let (_, verdict) = member.take_verdicts().pop().expect("every wait has a verdict");
                verdict.map(|_| ())
            }
        }
    }
}

fn streams() -> AccountId {
    AccountId::Budget(0)
}

fn ann() -> AccountId {
    AccountId::Key(0, ann_key())
}

fn ann_key() -> AccountKey {
    AccountKey::new(&KeyPrefix::for_limit("user"), "ann")
}

#[test]
fn a_grant_that_arrives_after_the_deadline_is_not_used() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    assert!(matches!(member.take(&ann(), cluster.now(), || NamedCaller("late")), TakeDecision::Waiting));
    let settlement = cluster.settlement(&mut member);
    let granted = cluster.ledger.settle(&settlement, cluster.time);
    assert!(matches!(&granted, SettlementReply::Applied(replies) if replies[0].count == 1));
    // The reply arrives after the slice deadline.
    cluster.advance(95);
    member.on_settlement_reply(Ok(granted), cluster.now());
    assert!(
        member.take_verdicts().is_empty(),
        "the caller waits until a heartbeat shows whether the member is alive"
    );
    cluster.serve(&mut member);
    let verdicts = member.take_verdicts();
    assert_eq!(verdicts, [(NamedCaller("late"), Ok(ann()))], "the unit is granted after the heartbeat");
}

#[test]
fn while_a_request_is_in_flight_no_more_than_its_floor_is_lent() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.take(&mut a, &streams()).unwrap();
    let before = a.usage(0);
    assert!(before.slice > 2, "it has idle units: {before:?}");
    // Another member is refused, so a returns its idle units.
    a.on_pressure();
    let settlement = cluster.settlement(&mut a);
    assert_eq!((settlement.requests[0].floor, settlement.requests[0].want), (1, 1));
    assert!(a.try_take(&streams(), cluster.now()).is_err(), "units that are being returned are not lent");
    cluster.execute(&mut a, MemberCall::Settle(settlement));
    // b may get everything that a hasn't lent, and a lends nothing beyond its slice.
    let mut taken_by_b = 0;
    while cluster.take(&mut b, &streams()).is_ok() {
        taken_by_b += 1;
    }
    assert_eq!((taken_by_b, a.usage(0).slice), (9, 1));
}

#[test]
fn a_unit_of_the_slice_is_lent_without_a_call_to_the_store() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    cluster.take(&mut member, &streams()).unwrap();
    assert!(member.usage(0).slice > 1);
    let before = member.counters.settlements;
    member.try_take(&streams(), cluster.now()).unwrap();
    assert!(member.poll(cluster.now()).is_none());
    assert_eq!(member.counters.settlements, before);
}

#[test]
fn idle_units_that_stay_in_the_slice_are_part_of_the_floor() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    cluster.take(&mut member, &streams()).unwrap();
    cluster.advance(20);
    let Some(heartbeat) = member.poll(cluster.now()) else { panic!("a heartbeat is due") };
    cluster.execute(&mut member, heartbeat);
    let review = cluster.settlement(&mut member);
    let slice = member.usage(0).slice;
    assert_eq!((review.requests[0].floor, review.requests[0].used), (slice, 1));
    assert!(slice > 1);
    // The store can't record less than what may be lent meanwhile.
    member.try_take(&streams(), cluster.now()).unwrap();
}

#[test]
fn units_that_the_store_does_not_know_are_not_lent_again() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.take(&mut a, &ann()).unwrap();
    cluster.take(&mut a, &ann()).unwrap();
    // a is disconnected until it expires, and both units are granted to b.
    for _ in 0..6 {
        cluster.serve_after(20, [&mut b]);
    }
    cluster.take(&mut b, &ann()).unwrap();
    cluster.take(&mut b, &ann()).unwrap();
    while a.mode(cluster.now()) != QuotaMode::Normal {
        let heartbeat = a.poll(cluster.now()).expect("it sends heartbeats until it has joined");
        cluster.execute(&mut a, heartbeat);
    }
    assert!(cluster.ledger.is_alive(a.id()) && a.counters().rejoins == 1);
    // Its units are debt: a returned unit isn't lent again before the store has recorded the rest.
    a.release(&ann(), cluster.now());
    assert!(a.try_take(&ann(), cluster.now()).is_err());
    let push = cluster.settlement(&mut a);
    assert_eq!((push.requests[0].floor, push.requests[0].want), (1, 1));
    // A returned unit also isn't lent while that report is in flight, or after its reply was lost.
    a.release(&ann(), cluster.now());
    assert!(a.try_take(&ann(), cluster.now()).is_err());
    a.on_settlement_reply(Err(CallError::Dropped), cluster.now());
    assert!(a.try_take(&ann(), cluster.now()).is_err());
    cluster.serve_after(5, [&mut a]);
    assert!(matches!(cluster.take(&mut a, &ann()), Err(QuotaRefusal::Full { used: 2, limit: 2 })));
    assert_eq!(cluster.ledger.held(ann_key().account()).into_values().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_rebuild_lasts_until_a_heartbeat_has_ended_it() {
    let mut cluster = LocalCluster::new();
    let mut a = cluster.join("a", 1);
    cluster.ledger = StoreLedger::default(); // it has lost all data
    while a.mode(cluster.now()) != QuotaMode::Rebuilding {
        cluster.serve_after(1, [&mut a]);
    }
    while a.rebuild_left(cluster.now()).is_some_and(|left| left > Duration::from_millis(1)) {
        cluster.serve_after(1, [&mut a]);
    }
    cluster.advance(1);
    // The store would refuse: no heartbeat has ended the rebuild yet.
    assert_eq!(a.mode(cluster.now()), QuotaMode::Rebuilding);
    assert!(matches!(a.try_take(&ann(), cluster.now()), Err(QuotaRefusal::Rebuilding { .. })));
    cluster.serve(&mut a);
    assert_eq!(a.mode(cluster.now()), QuotaMode::Normal);
    assert_eq!(cluster.take(&mut a, &ann()), Ok(()));
}

#[test]
fn a_new_namespace_grants_at_once_unless_the_policy_is_closed() {
    for (policy, streams_taken, keys_taken) in
        [(OutagePolicy::Closed, 0, 0), (OutagePolicy::Share, 10, 2), (OutagePolicy::Open, 10, 2)]
    {
        let mut cluster = LocalCluster { ledger: StoreLedger::default(), ..LocalCluster::new() };
        let mut first = cluster.join_with("a", 1, policy);
        assert_eq!(first.mode(cluster.now()), QuotaMode::Rebuilding);
        assert_eq!(cluster.take_all(&mut first, &ann()).0, keys_taken, "{policy:?}");
        let (taken, refusal) = cluster.take_all(&mut first, &streams());
        assert_eq!(taken, streams_taken, "{policy:?}");
        match policy {
            OutagePolicy::Closed => assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. })),
            OutagePolicy::Share | OutagePolicy::Open => {
                assert_eq!(refusal, QuotaRefusal::Full { used: 10, limit: 10 });
            }
        }
        // What the first member has reported counts for the next one.
        cluster.serve_after(20, [&mut first]);
        let mut second = cluster.join_with("b", 2, OutagePolicy::Open);
        assert_eq!(cluster.take_all(&mut second, &streams()).0, 10 - streams_taken);
        assert_eq!(cluster.take_all(&mut second, &ann()).0, 2 - keys_taken);
    }
}

#[test]
fn during_a_rebuild_a_member_holds_at_most_its_part_of_a_budget() {
    let mut cluster = LocalCluster::new();
    let mut a = cluster.join_with("a", 1, OutagePolicy::Share);
    let mut b = cluster.join_with("b", 2, OutagePolicy::Share);
    cluster.take(&mut a, &streams()).unwrap();
    for _ in 0..6 {
        cluster.take(&mut b, &streams()).unwrap();
    }
    cluster.take(&mut b, &ann()).unwrap();
    cluster.advance(20);
    cluster.serve(&mut a); // it counts two members
    cluster.ledger = StoreLedger::default();
    cluster.advance(20);
    // b has yet to report: a may lend an equal part of the budget, and the limit of a key.
    let (_, refusal) = cluster.take_all(&mut a, &streams());
    assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
    assert_eq!(a.usage(0).used_here, 5);
    assert_eq!(cluster.take_all(&mut a, &ann()).0, 2);
    // A member that has just started learns from a that there were two.
    let mut fresh = cluster.join_with("fresh", 3, OutagePolicy::Share);
    assert_eq!(cluster.take_all(&mut fresh, &streams()).0, 5);
    cluster.serve(&mut b);
    let units = |name: &str| cluster.ledger.held(name).into_values().sum::<u32>();
    assert_eq!((units("b:streams"), units("k:user:ann")), (16, 3), "the excess is what b held");
    for member in [&mut a, &mut b, &mut fresh] {
        assert!(cluster.take(member, &streams()).is_err() && cluster.take(member, &ann()).is_err());
    }
}

#[test]
fn a_rebuild_ends_after_half_a_ttl_once_all_members_of_before_have_reported() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.take(&mut a, &ann()).unwrap();
    cluster.take(&mut b, &ann()).unwrap();
    cluster.serve_after(20, [&mut a, &mut b]);
    cluster.ledger = StoreLedger::default();
    cluster.serve_after(20, [&mut a]);
    let (began, mut fresh) = (cluster.time, cluster.join_with("fresh", 3, OutagePolicy::Closed));
    for _ in 0..6 {
        cluster.serve_after(10, [&mut a, &mut fresh]);
    }
    assert_eq!(
        a.mode(cluster.now()),
        QuotaMode::Rebuilding,
        "b has yet to report; the new member is no proof"
    );
    cluster.serve(&mut b);
    cluster.advance(20); // each member sends a heartbeat
    for member in [&mut a, &mut b, &mut fresh] {
        cluster.serve(member);
        assert_eq!(member.mode(cluster.now()), QuotaMode::Normal);
    }
    assert!(cluster.time - began < RULES.ttl);
    assert_eq!(cluster.take(&mut fresh, &ann()), Err(QuotaRefusal::Full { used: 2, limit: 2 }));
}

#[test]
fn after_a_second_loss_the_rebuild_still_waits_for_all_members_of_before() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.take(&mut b, &ann()).unwrap();
    cluster.serve_after(20, [&mut a, &mut b]);
    for _ in 0..2 {
        cluster.ledger = StoreLedger::default();
        cluster.serve_after(20, [&mut a]);
    }
    for _ in 0..8 {
        cluster.serve_after(10, [&mut a]);
        assert_eq!(a.mode(cluster.now()), QuotaMode::Rebuilding, "b has yet to report");
    }
    cluster.serve(&mut b);
    assert_eq!(b.mode(cluster.now()), QuotaMode::Rebuilding, "nothing shows which members a counted");
    cluster.serve_after(20, [&mut b]);
    assert_eq!(b.mode(cluster.now()), QuotaMode::Normal, "a TTL after the second loss");
}

#[test]
fn a_member_that_had_expired_before_a_loss_does_not_replace_a_report() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.serve_after(20, [&mut a]);
    for _ in 0..6 {
        cluster.serve(&mut b);
        cluster.advance(20);
    }
    cluster.serve(&mut b);
    assert!(!cluster.ledger.is_alive(a.id()));
    let mut d = cluster.join("d", 4);
    cluster.take(&mut d, &ann()).unwrap();
    cluster.serve_after(20, [&mut b]);
    assert_eq!((a.members(), b.members()), (2, 2));
    cluster.ledger = StoreLedger::default();
    for _ in 0..7 {
        cluster.serve_after(10, [&mut a, &mut b]);
    }
    assert_eq!(b.mode(cluster.now()), QuotaMode::Rebuilding, "d has yet to report");
}

#[test]
fn an_incarnation_that_replaces_one_with_lost_writes_does_not_report_again() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.take(&mut a, &ann()).unwrap();
    cluster.take(&mut b, &ann()).unwrap();
    cluster.serve_after(20, [&mut a]);
    assert_eq!(a.members(), 2);
    cluster.ledger = StoreLedger::default();
    cluster.serve_after(20, [&mut a]);
    let reported = a.id().clone();
    // The second one forgets the incarnation that has reported, so that it doesn't leave.
    a.rejoin(RejoinReason::StoreLostWrites, cluster.now());
    a.rejoin(RejoinReason::StoreLostWrites, cluster.now());
    for _ in 0..7 {
        cluster.serve(&mut a);
        cluster.advance(10);
    }
    cluster.serve(&mut a);
    assert!(cluster.ledger.is_alive(&reported));
    assert_eq!(a.mode(cluster.now()), QuotaMode::Rebuilding, "b has yet to report");
}

#[test]
fn a_budget_held_until_expiry_grants_nothing_new_during_a_rebuild() {
    for policy in [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open] {
        let mut cluster = LocalCluster { ledger: StoreLedger::default(), ..LocalCluster::new() };
        let mut member = cluster.join_with("a", 1, policy);
        let index = member.register_budget("connections", 10, Allocation::BlocksUntilExpiry);
        let connections = AccountId::Budget(index);
        let refusal = cluster.take(&mut member, &connections).unwrap_err();
        assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{policy:?}: {refusal:?}");
        while member.mode(cluster.now()) == QuotaMode::Rebuilding {
            cluster.serve_after(10, [&mut member]);
        }
        assert_eq!(cluster.take(&mut member, &connections), Ok(()));
    }
}

#[test]
fn a_join_applied_after_its_member_expired_restores_no_units() {
    // `early`: a sends the heartbeat that finds it alive again before it receives its grant.
    // Otherwise it sends that heartbeat afterwards.
    for early in [true, false] {
        let mut cluster = LocalCluster::new();
        // c keeps sending heartbeats, so that only a expires.
        let mut c = cluster.join("c", 3);
        let mut a: QuotaMember<NamedCaller> = QuotaMember::new("a".into(), RULES, 1, cluster.now());
        a.register_keyed_limit("user", 2);
        let Some(MemberCall::Heartbeat(late)) = a.poll(cluster.now()) else { panic!("it joins") };
        a.on_heartbeat_reply(Err(CallError::Dropped), cluster.now());
        cluster.serve_after(5, [&mut a]);
        assert!(matches!(a.take(&ann(), cluster.now(), || NamedCaller("a")), TakeDecision::Waiting));
        let grant = cluster.settlement(&mut a);
        cluster.serve_after(60, [&mut c]);
        let sent_early = a.poll(cluster.now()).expect("a heartbeat is due");
        cluster.execute(&mut a, MemberCall::Settle(grant));
        assert!(matches!(a.take_verdicts()[..], [(_, Ok(_))]));
        let heartbeat = if early {
            sent_early
        } else {
            cluster.execute(&mut a, sent_early);
            cluster.serve_after(60, [&mut c]);
            a.poll(cluster.now()).expect("a heartbeat is due")
        };
        // The store expires a, and grants both units to b. Then the first join is applied.
        cluster.advance(45);
        let mut b = cluster.join("b", 2);
        cluster.take(&mut b, &ann()).unwrap();
        cluster.take(&mut b, &ann()).unwrap();
        assert_eq!(cluster.ledger.heartbeat(&late, cluster.time).members, 3);
        cluster.execute(&mut a, heartbeat);
        a.release(&ann(), cluster.now());
        assert!(a.try_take(&ann(), cluster.now()).is_err(), "both are lent elsewhere; early: {early}");
        cluster.serve(&mut a);
        assert_eq!(cluster.ledger.held(ann_key().account()).into_values().sum::<u32>(), 2);
        assert_eq!(a.mode(cluster.now()), QuotaMode::Normal);
    }
}

#[test]
fn units_lent_in_an_outage_are_not_lent_again_before_they_are_reported() {
    let mut cluster = LocalCluster::new();
    let mut a: QuotaMember<NamedCaller> =
        QuotaMember::new("a".into(), MemberRules { policy: OutagePolicy::Share, ..RULES }, 1, cluster.now());
    a.register_keyed_limit("user", 2);
    a.poll(cluster.now());
    a.on_heartbeat_reply(Err(StoreError::Unreachable("no route".into()).into()), cluster.now());
    assert!(matches!(a.take(&ann(), cluster.now(), || NamedCaller("a")), TakeDecision::Granted));
    let mut b = cluster.join("b", 2);
    cluster.take(&mut b, &ann()).unwrap();
    cluster.take(&mut b, &ann()).unwrap();
    cluster.advance(5);
    let report = loop {
        match a.poll(cluster.now()).expect("it reports what it has lent") {
            MemberCall::Settle(settlement) => break settlement,
            call => cluster.execute(&mut a, call),
        }
    };
    assert_eq!((report.requests[0].floor, report.requests[0].used), (1, 1));
    a.release(&ann(), cluster.now());
    assert!(a.try_take(&ann(), cluster.now()).is_err(), "both are lent elsewhere");
    // The unit also isn't lent after the store has recorded the outdated report.
    let reply = cluster.ledger.settle(&report, cluster.time);
    a.on_settlement_reply(Ok(reply), cluster.now());
    assert_eq!(cluster.ledger.held(ann_key().account()).into_values().sum::<u32>(), 3);
    assert!(a.try_take(&ann(), cluster.now()).is_err());
    cluster.serve(&mut a);
    assert_eq!(cluster.ledger.held(ann_key().account()).into_values().sum::<u32>(), 2);
}

#[test]
fn callers_beyond_the_limit_are_refused_with_the_reply_that_grants_the_limit() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    for _ in 0..5 {
        assert!(matches!(
            member.take(&ann(), cluster.now(), || NamedCaller("one of five")),
            TakeDecision::Waiting
        ));
    }
    let before = member.counters.settlements;
    cluster.serve(&mut member);
    let (granted, refused): (Vec<_>, Vec<_>) =
        member.take_verdicts().into_iter().partition(|(_, verdict)| verdict.is_ok());
    assert_eq!((granted.len(), refused.len()), (2, 3));
    assert_eq!(refused[0].1, Err(QuotaRefusal::Full { used: 2, limit: 2 }));
    assert_eq!(member.counters.settlements - before, 1, "no request exceeds the limit");
}

#[test]
fn after_a_lost_request_the_store_has_at_least_what_is_lent() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    cluster.take(&mut member, &ann()).unwrap();
    assert!(matches!(member.take(&ann(), cluster.now(), || NamedCaller("second")), TakeDecision::Waiting));
    let lost = cluster.settlement(&mut member);
    member.on_settlement_reply(Err(CallError::Dropped), cluster.now());
    assert!(matches!(
        member.take_verdicts()[..],
        [(NamedCaller("second"), Err(QuotaRefusal::Unavailable { .. }))]
    ));
    member.release(&ann(), cluster.now());
    cluster.serve_after(5, [&mut member]);
    assert_eq!(cluster.ledger.held("k:user:ann").len(), 0, "the store has the report");
    // Now the lost request is applied after all.
    assert_eq!(cluster.ledger.settle(&lost, cluster.time), SettlementReply::Stale);
}

#[test]
fn a_lost_write_is_noticed_although_a_later_one_was_applied() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    cluster.take(&mut member, &ann()).unwrap();
    let replica = cluster.ledger.clone();
    member.release(&ann(), cluster.now());
    cluster.serve(&mut member);
    cluster.ledger = replica; // it still has ann's stream, which has ended
    let bob = AccountId::Key(0, AccountKey::new(&KeyPrefix::for_limit("user"), "bob"));
    cluster.take(&mut member, &bob).unwrap();
    cluster.serve(&mut member);
    let holders = cluster.ledger.holdings(
        &[
            AccountKey::new(&KeyPrefix::for_limit("user"), "ann").account().clone(),
            AccountKey::new(&KeyPrefix::for_limit("user"), "bob").account().clone(),
        ],
        cluster.time,
    );
    let [shares] = &holders.accounts[..] else { panic!("{holders:?}") };
    assert_eq!((&*shares.account, shares.shares[0].count), ("k:user:bob", 1));
    assert_eq!((holders.members.len(), member.counters().rejoins), (1, 1));
}

#[test]
fn a_lowered_limit_ends_no_lease_and_holds_from_then_on() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    for _ in 0..5 {
        cluster.take(&mut a, &streams()).unwrap();
    }
    cluster.take(&mut b, &streams()).unwrap();
    a.set_budget_limit(0, 4);
    b.set_budget_limit(0, 4);
    cluster.serve(&mut a);
    cluster.serve(&mut b);
    assert_eq!((a.usage(0).used_here, a.usage(0).slice, b.usage(0).slice), (5, 5, 1));
    a.release(&streams(), cluster.now());
    a.release(&streams(), cluster.now());
    cluster.serve(&mut a);
    assert!(cluster.take(&mut a, &streams()).is_err(), "three and one are lent");
    assert!(cluster.take(&mut b, &streams()).is_err());
    a.release(&streams(), cluster.now());
    cluster.serve(&mut a);
    cluster.advance(3);
    assert!(cluster.take(&mut b, &streams()).is_ok());
}

#[test]
fn a_limit_lowered_while_a_request_is_in_flight_holds() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    cluster.take(&mut a, &streams()).unwrap();
    cluster.take(&mut b, &streams()).unwrap();
    assert!(a.usage(0).slice + b.usage(0).slice > 4, "the slices exceed the later limit");
    cluster.advance(20);
    for member in [&mut a, &mut b] {
        let heartbeat = member.poll(cluster.now()).unwrap();
        cluster.execute(member, heartbeat);
        let request = cluster.settlement(member);
        member.set_budget_limit(0, 4);
        cluster.execute(member, MemberCall::Settle(request));
    }
    cluster.serve(&mut a);
    cluster.serve(&mut b);
    let mut lent = 2;
    for member in [&mut a, &mut b] {
        while cluster.take(member, &streams()).is_ok() {
            lent += 1;
        }
    }
    assert_eq!(lent, 4);
}

#[test]
fn an_old_incarnation_leaves_only_when_everything_is_pushed() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    for key in 0..25 {
        cluster
            .take(
                &mut member,
                &AccountId::Key(0, AccountKey::new(&KeyPrefix::for_limit("user"), &format!("user-{key}"))),
            )
            .unwrap();
    }
    let old = member.id().clone();
    cluster.ledger.forget_last_settlement(&old);
    cluster.advance(20);
    let mut settlements = 0;
    while let Some(call) = member.poll(cluster.now()) {
        settlements += u32::from(matches!(call, MemberCall::Settle(_)));
        if matches!(call, MemberCall::Leave(_)) {
            assert_eq!(settlements, 3, "twenty-five accounts in batches of ten");
        }
        cluster.execute(&mut member, call);
    }
    assert!(!cluster.ledger.is_alive(&old) && cluster.ledger.is_alive(member.id()));
}

#[test]
fn callers_do_not_wait_for_a_store_that_removes_the_member_after_each_join() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    assert!(matches!(member.take(&ann(), cluster.now(), || NamedCaller("waiting")), TakeDecision::Waiting));
    // For example a server that evicts keys: heartbeats succeed, settlements find no member.
    let mut calls = 0;
    while let Some(call) = member.poll(cluster.now()) {
        calls += 1;
        assert!(calls < 10, "it calls the store without a pause");
        match call {
            MemberCall::Settle(_) => {
                member.on_settlement_reply(Ok(SettlementReply::UnknownMember), cluster.now())
            }
            call => cluster.execute(&mut member, call),
        }
    }
    let verdicts = member.take_verdicts();
    assert!(
        matches!(&verdicts[..], [(NamedCaller("waiting"), Err(QuotaRefusal::Unavailable { .. }))]),
        "{verdicts:?}"
    );
    assert_eq!(member.wake_at(cluster.now()), Some(cluster.now() + RULES.retry));
}

/// Returns a member whose store lost a write. Its new incarnation has pushed everything, the leave
/// of the old one is in flight, and bob waits for that.
fn with_bob_waiting_for_the_predecessor() -> (LocalCluster, QuotaMember<NamedCaller>) {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    cluster.take(&mut member, &ann()).unwrap();
    cluster.ledger.forget_last_settlement(&member.id().clone());
    cluster.advance(20);
    loop {
        match member.poll(cluster.now()).expect("the predecessor leaves") {
            MemberCall::Leave(_) => break,
            call => cluster.execute(&mut member, call),
        }
    }
    let bob = AccountId::Key(0, AccountKey::new(&KeyPrefix::for_limit("user"), "bob"));
    assert!(matches!(member.take(&bob, cluster.now(), || NamedCaller("bob")), TakeDecision::Waiting));
    assert!(member.poll(cluster.now()).is_none());
    (cluster, member)
}

#[test]
fn an_outage_refuses_callers_that_wait_for_a_predecessor_to_leave() {
    let (cluster, mut member) = with_bob_waiting_for_the_predecessor();
    member.on_leave_reply(Err(CallError::Dropped), cluster.now());
    let verdicts = member.take_verdicts();
    assert!(
        matches!(&verdicts[..], [(NamedCaller("bob"), Err(QuotaRefusal::Unavailable { .. }))]),
        "{verdicts:?}"
    );
}

#[test]
fn leaving_refuses_callers_that_wait_for_a_predecessor_to_leave() {
    let (cluster, mut member) = with_bob_waiting_for_the_predecessor();
    member.leave();
    let verdicts = member.take_verdicts();
    assert!(
        matches!(&verdicts[..], [(NamedCaller("bob"), Err(QuotaRefusal::Unavailable { .. }))]),
        "{verdicts:?}"
    );
    assert_eq!(member.wake_at(cluster.now()), None);
}

#[test]
fn keys_used_only_during_an_outage_are_removed() {
    let mut cluster = LocalCluster::new();
    let mut member: QuotaMember<NamedCaller> =
        QuotaMember::new("a".into(), MemberRules { policy: OutagePolicy::Share, ..RULES }, 1, cluster.now());
    member.register_keyed_limit("user", 2);
    member.poll(cluster.now());
    member.on_heartbeat_reply(Err(StoreError::Unreachable("no route".into()).into()), cluster.now());
    let keys = |member: &QuotaMember<NamedCaller>| member.keyed_limits().next().unwrap().2;
    for key in 0..100 {
        let account_id = AccountId::Key(0, AccountKey::new(&KeyPrefix::for_limit("user"), &key.to_string()));
        assert!(matches!(
            member.take(&account_id, cluster.now(), || NamedCaller("brief")),
            TakeDecision::Granted
        ));
        member.release(&account_id, cluster.now());
    }
    assert_eq!(keys(&member), 0);
    // A unit that is still held is reported when the store is available again.
    assert!(matches!(member.take(&ann(), cluster.now(), || NamedCaller("stays")), TakeDecision::Granted));
    cluster.serve_after(20, [&mut member]);
    assert_eq!((keys(&member), cluster.ledger.held(ann_key().account()).len()), (1, 1));
}

#[test]
fn retries_that_succeeded_do_not_count_for_the_next_shortage() {
    let mut cluster = LocalCluster::new();
    let (mut a, mut b) = (cluster.join("a", 1), cluster.join("b", 2));
    for _ in 0..6 {
        // b has all idle units, and is notified of the pressure only after a's request.
        while a.usage(0).slice + b.usage(0).slice < 10 {
            cluster.take(&mut b, &streams()).unwrap();
        }
        (0..b.usage(0).used_here).for_each(|_| b.release(&streams(), cluster.now()));
        let mut taken = 0;
        loop {
            match a.take(&streams(), cluster.now(), || NamedCaller("a")) {
                TakeDecision::Granted => taken += 1,
                TakeDecision::Refused(refusal) => panic!("{refusal} though others have idle units"),
                TakeDecision::Waiting => break,
            }
        }
        cluster.serve(&mut a);
        b.on_pressure();
        cluster.serve(&mut b);
        cluster.serve_after(30, [&mut a]);
        let verdicts = a.take_verdicts();
        assert!(matches!(&verdicts[..], [(_, Ok(_))]), "{verdicts:?}");
        (0..=taken).for_each(|_| a.release(&streams(), cluster.now()));
        // Waits until pressure has ended and idle units are returned.
        for _ in 0..4 {
            cluster.serve_after(25, [&mut a, &mut b]);
        }
    }
}

#[test]
fn settlements_that_fail_while_heartbeats_succeed_are_one_outage() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    member.take_notices();
    let mut failed = 0;
    for _ in 0..20 {
        while let Some(call) = member.poll(cluster.now()) {
            match call {
                MemberCall::Settle(_) => {
                    failed += 1;
                    member.on_settlement_reply(
                        Err(StoreError::Unexpected("WRONGTYPE".into()).into()),
                        cluster.now(),
                    );
                }
                call => cluster.execute(&mut member, call),
            }
        }
        if failed > 0 {
            assert_eq!(member.mode(cluster.now()), QuotaMode::WithinSlices);
        }
        cluster.advance(5);
    }
    assert!(failed > 2, "it keeps trying");
    assert!(matches!(&member.take_notices()[..], [MemberNotice::StoreUnavailable { .. }]));
    cluster.serve_after(20, [&mut member]);
    assert_eq!(
        (member.mode(cluster.now()), &member.take_notices()[..]),
        (QuotaMode::Normal, &[MemberNotice::StoreAvailable][..])
    );
}

#[test]
fn replies_that_do_not_match_the_requests_are_an_outage() {
    let mut cluster = LocalCluster::new();
    let mut member = cluster.join("a", 1);
    assert!(matches!(member.take(&ann(), cluster.now(), || NamedCaller("ann")), TakeDecision::Waiting));
    cluster.settlement(&mut member);
    member.on_settlement_reply(Ok(SettlementReply::Applied(Vec::new())), cluster.now());
    let verdicts = member.take_verdicts();
    assert!(matches!(&verdicts[..], [(_, Err(QuotaRefusal::Unavailable { .. }))]), "{verdicts:?}");
}
