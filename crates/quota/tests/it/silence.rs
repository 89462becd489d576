//! A Redis that stood still for longer than its members' TTL: all of them have expired, and all of them live.

use std::time::Duration;

use forebay_quota::{
    Ask, Beat, BeatKind, BudgetConfig, MemberId, Mode, Policy, Pulse, Quota, RedisStore, Settled, Settlement,
    Sharing, Standing, Store,
};
use forebay_sandbox::Redis;

use crate::support::{PATIENCE, namespace, quick, settled_store, until};

const LIMIT: u32 = 40;
const TTL: Duration = Duration::from_secs(2);

async fn beat(store: &RedisStore, member: &MemberId, kind: BeatKind) -> Pulse {
    store.beat(Beat { member: member.clone(), ttl: TTL, kind, generation: 1 }).await.unwrap()
}

async fn settle(store: &RedisStore, member: &MemberId, sequence: u64, (floor, want): (u32, u32)) -> u32 {
    let sharing = Sharing::Blocks;
    let asks = vec![Ask { account: "b:streams".into(), limit: LIMIT, floor, want, used: want, sharing }];
    let settlement = Settlement { member: member.clone(), sequence, landed: 0, pressure: TTL, asks };
    match store.settle(settlement).await.unwrap() {
        Settled::Landed(answers) => answers[0].count,
        settled => panic!("{member}: {settled:?}"),
    }
}

#[tokio::test]
async fn the_first_that_is_heard_after_a_silence_gets_nothing_before_the_others_have_told_what_they_hold() {
    let server = Redis::start().unwrap();
    let store = settled_store(&server, "silence").await;
    let (holder, first) = (MemberId::new("holder", 1), MemberId::new("first", 1));
    for member in [&holder, &first] {
        beat(&store, member, BeatKind::Join).await;
    }
    assert_eq!(settle(&store, &holder, 1, (30, 30)).await, 30);
    server.freeze();
    tokio::time::sleep(TTL + TTL / 2).await; // a silence has no other measure
    server.thaw();
    let pulse = beat(&store, &first, BeatKind::Stay).await;
    assert_eq!((pulse.standing, pulse.rebuild_left), (Standing::Unknown, TTL));
    beat(&store, &first, BeatKind::Join).await;
    assert_eq!(settle(&store, &first, 1, (0, LIMIT)).await, 0);
    let reborn = MemberId::new("holder", 2);
    beat(&store, &reborn, BeatKind::Join).await;
    assert_eq!(settle(&store, &reborn, 1, (30, 30)).await, 30);
    let mut sequence = 1;
    until("the rebuilding ends", PATIENCE, async || {
        beat(&store, &reborn, BeatKind::Stay).await;
        beat(&store, &first, BeatKind::Stay).await.rebuild_left.is_zero()
    })
    .await;
    sequence += 1;
    assert_eq!(settle(&store, &first, sequence, (0, LIMIT)).await, LIMIT - 30);
}

#[tokio::test]
async fn one_instance_alone_is_not_refused_because_of_its_own_predecessor() {
    let server = Redis::shared();
    let store = settled_store(server, &namespace("alone")).await;
    beat(&store, &MemberId::new("only", 1), BeatKind::Join).await;
    tokio::time::sleep(2 * TTL).await; // it was killed, and is started again long after
    let again = MemberId::new("only", 2);
    assert_eq!(beat(&store, &again, BeatKind::Join).await.rebuild_left, Duration::ZERO);
    assert!(settle(&store, &again, 1, (0, LIMIT)).await >= LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_all_expired_together_never_hold_more_than_the_limit() {
    let server = Redis::start().unwrap();
    let mut members = Vec::new();
    for name in ["a", "b", "c"] {
        let config = quick(name).policy(Policy::Closed).call_timeout(Duration::from_millis(300));
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
    until("all have lost the store", PATIENCE, async || {
        members.iter().all(|quota| quota.mode() == Mode::Degraded(Policy::Closed))
    })
    .await;
    server.thaw();
    until("all is normal again", PATIENCE, async || {
        for budget in &budgets {
            held.extend(budget.take().await);
        }
        assert!(held.len() <= LIMIT as usize, "{} of {LIMIT} are lent", held.len());
        members.iter().all(|quota| quota.mode() == Mode::Normal)
    })
    .await;
    for budget in &budgets {
        held.extend(budget.take().await);
    }
    assert_eq!(held.len(), LIMIT as usize);
}
