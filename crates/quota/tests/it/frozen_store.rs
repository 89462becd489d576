//! A Redis that was frozen for longer than its members' TTL: all members have expired, and all are
//! alive.

use std::time::Duration;

use forebay_quota::{
    Allocation, BudgetConfig, HeartbeatKind, MemberId, Membership, OutagePolicy, Quota, QuotaMode,
    RedisStore, Settlement, SettlementReply, ShareRequest, Store,
};
use forebay_sandbox::Redis;

use crate::support::{TEST_TIMEOUT, heartbeat, namespace, quick, settled_store, until};

const LIMIT: u32 = 40;
const TTL: Duration = Duration::from_secs(2);

async fn settle(store: &RedisStore, member: &MemberId, sequence: u64, (floor, want): (u32, u32)) -> u32 {
    let allocation = Allocation::Blocks;
    let requests =
        vec![ShareRequest { account: "b:streams".into(), limit: LIMIT, floor, want, used: want, allocation }];
    let settlement = Settlement {
        member: member.clone(),
        sequence,
        last_acknowledged: 0,
        pressure: TTL,
        rebuild_parts: 0,
        requests,
    };
    match store.settle(settlement).await.unwrap() {
        SettlementReply::Applied(replies) => replies[0].count,
        settled => panic!("{member}: {settled:?}"),
    }
}

#[tokio::test]
async fn the_first_member_after_an_outage_gets_nothing_before_the_others_have_reported() {
    let server = Redis::start().unwrap();
    let store = settled_store(&server, "frozen").await;
    let (holder, first) = (MemberId::new("holder", 1), MemberId::new("first", 1));
    for member in [&holder, &first] {
        heartbeat(&store, member, HeartbeatKind::Join, TTL).await;
    }
    assert_eq!(settle(&store, &holder, 1, (30, 30)).await, 30);
    server.freeze();
    tokio::time::sleep(TTL + TTL / 2).await; // the outage must last longer than the TTL
    server.thaw();
    let reply = heartbeat(&store, &first, HeartbeatKind::Renew, TTL).await;
    assert_eq!((reply.membership, reply.rebuild_left), (Membership::Unknown, TTL));
    heartbeat(&store, &first, HeartbeatKind::Join, TTL).await;
    assert_eq!(settle(&store, &first, 1, (0, LIMIT)).await, 0);
    let rejoined = MemberId::new("holder", 2);
    heartbeat(&store, &rejoined, HeartbeatKind::Join, TTL).await;
    assert_eq!(settle(&store, &rejoined, 1, (30, 30)).await, 30);
    let mut sequence = 1;
    until("the rebuild ends", TEST_TIMEOUT, async || {
        heartbeat(&store, &rejoined, HeartbeatKind::Renew, TTL).await;
        heartbeat(&store, &first, HeartbeatKind::Renew, TTL).await.rebuild_left.is_zero()
    })
    .await;
    sequence += 1;
    assert_eq!(settle(&store, &first, sequence, (0, LIMIT)).await, LIMIT - 30);
}

#[tokio::test]
async fn a_single_instance_is_not_refused_because_of_its_predecessor() {
    let server = Redis::shared();
    let store = settled_store(server, &namespace("alone")).await;
    heartbeat(&store, &MemberId::new("only", 1), HeartbeatKind::Join, TTL).await;
    tokio::time::sleep(2 * TTL).await; // it was killed, and is restarted long after its TTL
    let again = MemberId::new("only", 2);
    assert_eq!(heartbeat(&store, &again, HeartbeatKind::Join, TTL).await.rebuild_left, Duration::ZERO);
    assert!(settle(&store, &again, 1, (0, LIMIT)).await >= LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_all_expired_together_never_hold_more_than_the_limit() {
    let server = Redis::start().unwrap();
    let mut members = Vec::new();
    for name in ["a", "b", "c"] {
        let config = quick(name).policy(OutagePolicy::Closed).call_timeout(Duration::from_millis(300));
        members.push(Quota::join(settled_store(&server, "together").await, config).await);
    }
    let budgets: Vec<_> =
        members.iter().map(|quota| quota.budget("streams", BudgetConfig::new(LIMIT))).collect();
    let mut held = Vec::new();
    for (budget, share) in budgets.iter().zip([20, 19, 0]) {
        for _ in 0..share {
            held.push(budget.take().await.unwrap());
        }
    }
    server.freeze();
    until("all have lost the store", TEST_TIMEOUT, async || {
        members.iter().all(|quota| quota.mode() == QuotaMode::Degraded(OutagePolicy::Closed))
    })
    .await;
    server.thaw();
    until("all is normal again", TEST_TIMEOUT, async || {
        for budget in &budgets {
            held.extend(budget.take().await);
        }
        assert!(held.len() <= LIMIT as usize, "{} of {LIMIT} are lent", held.len());
        members.iter().all(|quota| quota.mode() == QuotaMode::Normal)
    })
    .await;
    for budget in &budgets {
        held.extend(budget.take().await);
    }
    assert_eq!(held.len(), LIMIT as usize);
}
