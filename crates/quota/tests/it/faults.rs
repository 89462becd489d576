//! Members whose store loses its data, its last writes, or its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::{
    BudgetConfig, KeyedLease, Lease, MemberConfig, OutagePolicy, Quota, QuotaMode, QuotaRefusal, RedisStore,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use forebay_testkit::Proxy;
use futures_util::FutureExt;

use crate::support::{namespace, quick, settled_store, steady, until};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

async fn store_at(server: &Redis, namespace: &str) -> RedisStore {
    RedisStore::new(RedisClient::connect(server.url()).await.unwrap(), namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_at_90_percent_the_limits_hold_and_all_units_are_known_again_soon() {
    const USERS: usize = 10_000;
    const LIMIT: u32 = 20_000;
    let server = Redis::start().unwrap();
    let heartbeat = Duration::from_secs(1);
    // Long enough that a slow machine has pushed everything before the rebuild ends.
    let config = |name: &str| {
        steady(name).heartbeat_interval(heartbeat).ttl(30 * heartbeat).policy(OutagePolicy::Closed)
    };
    let (a, b) = (
        Quota::join(settled_store(&server, "flush").await, config("a")).await,
        Quota::join(settled_store(&server, "flush").await, config("b")).await,
    );
    let mut held: Vec<(Lease, KeyedLease)> = Vec::new();
    for (quota, share) in [(&a, 10_000), (&b, 8_000)] {
        let (budget, users) =
            (quota.budget("streams", BudgetConfig::new(LIMIT)), quota.keyed_limit("user", 3));
        let take = async |at: usize| {
            (budget.take().await.unwrap(), users.take(&format!("user-{}", at % USERS)).await.unwrap())
        };
        held.extend(futures_util::future::join_all((0..share).map(take)).await);
    }
    let lent = held.len() as u32;
    assert_eq!(lent, LIMIT / 10 * 9);

    let admin = RedisClient::connect(server.url()).await.unwrap();
    admin.exec::<()>(("FLUSHALL",)).await.unwrap();
    let flushed = Instant::now();
    until("the store has recorded everything again", TEST_TIMEOUT, async || {
        let known: u32 = a
            .query_holdings()
            .await
            .unwrap()
            .accounts
            .iter()
            .flat_map(|all| &all.shares)
            .map(|share| share.used)
            .sum();
        let users: usize = admin.exec(("HLEN", "{flush}:k")).await.unwrap();
        known == lent && users == USERS + 4 // two sequences, the rebuild flag, the filler field
    })
    .await;
    let known_after = flushed.elapsed();
    println!(
        "10,000 users and {lent} streams were known again {known_after:?} after FLUSHALL (heartbeat {heartbeat:?})"
    );

    // Nothing new until the rebuild ends: a user with one stream of three gets no other.
    assert_eq!(a.status().mode, QuotaMode::Rebuilding);
    let budget = a.budget("streams", BudgetConfig::new(LIMIT));
    let fresh = Quota::join(store_at(&server, "flush").await, config("fresh")).await;
    let refused = fresh.budget("streams", BudgetConfig::new(LIMIT)).take().await.unwrap_err();
    assert!(matches!(refused, QuotaRefusal::Rebuilding { .. }), "{refused:?}");
    let refused = fresh.keyed_limit("user", 3).take("user-9000").await.unwrap_err();
    assert!(matches!(refused, QuotaRefusal::Rebuilding { .. }), "{refused:?}");

    until("the rebuild ends", TEST_TIMEOUT, async || {
        [&a, &b, &fresh].iter().all(|quota| quota.status().mode == QuotaMode::Normal)
    })
    .await;
    let mut streams = Vec::new();
    for (user, has) in [("user-0", 2), ("user-7999", 2), ("user-8000", 1), ("user-9999", 1)] {
        for (quota, _) in [&fresh, &b].iter().cycle().zip(has..3) {
            streams.push(quota.keyed_limit("user", 3).take(user).await.unwrap());
        }
        for quota in [&a, &b, &fresh] {
            let fourth = quota.keyed_limit("user", 3).take(user).await.unwrap_err();
            assert_eq!(fourth, QuotaRefusal::Full { used: 3, limit: 3 }, "{user}");
        }
    }
    let mut more = Vec::new();
    while let Ok(lease) = fresh.budget("streams", BudgetConfig::new(LIMIT)).take().await {
        more.push(lease);
    }
    while let Ok(lease) = budget.take().await {
        more.push(lease);
    }
    assert!(lent + more.len() as u32 <= LIMIT, "{lent} + {}", more.len());
    assert!(more.len() > 1_500, "what was idle is lent again: {}", more.len());
}

#[tokio::test]
async fn while_redis_is_gone_the_policy_decides_and_its_return_reconciles() {
    // Three TTLs, the same ratio as thirty seconds to the default TTL.
    redis_is_gone_for(Duration::from_secs(3), |name| quick(name).call_timeout(Duration::from_millis(500)))
        .await;
}

#[tokio::test]
#[ignore = "takes most of a minute"]
async fn while_redis_is_gone_for_thirty_seconds_default_members_do_the_same() {
    redis_is_gone_for(Duration::from_secs(30), |name| MemberConfig::new(name)).await;
}

async fn redis_is_gone_for(span: Duration, config: fn(&str) -> MemberConfig) {
    let server =
        Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start().unwrap();
    let quota = Quota::join(settled_store(&server, "gone").await, config("a")).await;
    let other =
        Quota::join(settled_store(&server, "gone").await, config("b").policy(OutagePolicy::Closed)).await;
    until("both are known", TEST_TIMEOUT, async || {
        quota.status().members == 2 && other.status().members == 2
    })
    .await;
    let (budget, users) = (quota.budget("streams", BudgetConfig::new(20)), quota.keyed_limit("user", 3));
    let mut held = vec![budget.take().await.unwrap()];
    let mut keyed = vec![users.take("ann").await.unwrap()];

    server.kill();
    let gone = Instant::now();
    until("the deadline passes", TEST_TIMEOUT, async || {
        matches!(quota.status().mode, QuotaMode::Degraded(OutagePolicy::Share))
    })
    .await;
    while let Ok(lease) = budget.take().await {
        held.push(lease);
    }
    assert_eq!(held.len(), 10, "half of twenty, with two members");
    keyed.push(users.take("ann").await.unwrap());
    keyed.push(users.take("ann").await.unwrap());
    assert!(matches!(users.take("ann").await, Err(QuotaRefusal::Full { used: 3, limit: 3 })));
    let status = quota.status();
    assert!(status.why.is_some() && status.counters.granted_by_policy > 0, "{status:?}");
    until("the other is closed", TEST_TIMEOUT, async || {
        matches!(other.status().mode, QuotaMode::Degraded(OutagePolicy::Closed))
    })
    .await;
    let refusal = other.keyed_limit("user", 3).take("bob").await.unwrap_err();
    assert!(matches!(refusal, QuotaRefusal::Unavailable { .. }), "{refusal:?}");
    tokio::time::sleep(span.saturating_sub(gone.elapsed())).await;

    server.revive().unwrap();
    until("all is normal", TEST_TIMEOUT, async || {
        quota.status().mode == QuotaMode::Normal && other.status().mode == QuotaMode::Normal
    })
    .await;
    until("the store has recorded all units", TEST_TIMEOUT, async || {
        let shares = users.holders("ann").await.unwrap();
        shares.iter().map(|share| share.count).sum::<u32>() == 3
    })
    .await;
    assert_eq!(
        other.keyed_limit("user", 3).take("ann").await.unwrap_err(),
        QuotaRefusal::Full { used: 3, limit: 3 }
    );
    drop(keyed);
    drop(held);
    until("everything is free again", TEST_TIMEOUT, async || {
        let (budget, users) = (other.budget("streams", BudgetConfig::new(20)), other.keyed_limit("user", 3));
        let mut leases = Vec::new();
        while let Ok(lease) = budget.take().await {
            leases.push(lease);
        }
        leases.len() == 20 && users.take("ann").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_frozen_redis_costs_one_timeout_then_the_policy_decides_at_once() {
    let server = Redis::start().unwrap();
    let config = quick("a").call_timeout(Duration::from_millis(200));
    let quota = Quota::join(settled_store(&server, "frozen").await, config).await;
    let users = quota.keyed_limit("user", 3);
    server.freeze();
    let _first = users.take("ann").await.unwrap();
    let _second = users.take("ann").now_or_never().expect("it doesn't wait again").unwrap();
    server.thaw();
    until("all is normal", TEST_TIMEOUT, async || quota.status().mode == QuotaMode::Normal).await;
    until("the store has recorded the units", TEST_TIMEOUT, async || {
        users
            .holders("ann")
            .await
            .is_ok_and(|shares| shares.iter().map(|share| share.count).sum::<u32>() == 2)
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_lost_the_last_writes_is_corrected_within_a_heartbeat() {
    let (primary, heartbeat) = (Redis::start().unwrap(), Duration::from_millis(500));
    let replica =
        Redis::builder().config("replicaof", &format!("127.0.0.1 {}", primary.port())).start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let (to_primary, to_replica) = (
        RedisClient::connect(primary.url()).await.unwrap(),
        RedisClient::connect(replica.url()).await.unwrap(),
    );
    settled_store(&primary, "failover").await;
    let client = RedisClient::connect(format!("redis://{}", proxy.addr()).as_str()).await.unwrap();
    let config = steady("a").heartbeat_interval(heartbeat);
    let quota = Quota::join(RedisStore::new(client, "failover"), config).await;
    let users = quota.keyed_limit("user", 3);
    let mut held = vec![users.take("ann").await.unwrap()];
    let early = users.take("bob").await.unwrap();
    let mut waits = to_primary.dedicated().await.unwrap();
    waits.exec::<()>(("SET", "marker", 1)).await.unwrap();
    let in_sync: i64 = waits.exec(("WAIT", 1, 60_000)).await.unwrap();
    assert_eq!(in_sync, 1, "the replica has everything so far");
    to_replica.exec::<()>(("REPLICAOF", "NO", "ONE")).await.unwrap();

    // The replica misses two streams that begin and one that ends.
    held.push(users.take("ann").await.unwrap());
    held.push(users.take("carl").await.unwrap());
    drop(early);
    until("the primary has recorded the release", TEST_TIMEOUT, async || {
        users.holders("bob").await.unwrap().is_empty()
    })
    .await;
    proxy.fail_over_to(replica.addr());
    let failed_over = Instant::now();
    until("the replica is corrected", TEST_TIMEOUT, async || {
        let count = async |user: &str| {
            let shares = users.holders(user).await.unwrap_or_default();
            shares.iter().map(|share| share.count).sum::<u32>()
        };
        (count("ann").await, count("bob").await, count("carl").await) == (2, 0, 1)
    })
    .await;
    println!(
        "the replica was corrected {:?} after the failover (heartbeat {heartbeat:?})",
        failed_over.elapsed()
    );
    assert_eq!(quota.status().counters.rejoins, 1);
    assert_eq!(quota.query_holdings().await.unwrap().members.len(), 1, "the old incarnation has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_join_and_leave_under_load_and_the_limit_holds() {
    const LIMIT: u32 = 60;
    const KEY_LIMIT: u32 = 5;
    let (server, namespace) = (Redis::shared(), namespace("join-leave"));
    let lent = Arc::new(LentCounts::default());
    let join = async |index: usize| {
        let store = settled_store(server, &namespace).await;
        let quota = Quota::join(store, steady(&format!("m{index}"))).await;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let tasks: Vec<_> =
            (0..6).map(|_| tokio::spawn(load(quota.clone(), lent.clone(), stopped.clone()))).collect();
        (quota, stop, tasks)
    };
    let mut members = vec![join(0).await, join(1).await];
    let mut served = 0;
    for index in 2..20 {
        members.push(join(index).await);
    }
    until("all members count each other", TEST_TIMEOUT, async || {
        members.iter().all(|(quota, ..)| quota.status().members == 20)
    })
    .await;
    while members.len() > 2 {
        let (quota, stop, tasks) = members.pop().unwrap();
        stop.send(true).unwrap();
        for task in tasks {
            served += task.await.unwrap();
        }
        quota.leave().await;
    }
    for (_, stop, tasks) in &mut members {
        stop.send(true).unwrap();
        for task in tasks.drain(..) {
            served += task.await.unwrap();
        }
    }
    assert_eq!((lent.budget.load(Ordering::SeqCst), lent.key.load(Ordering::SeqCst)), (0, 0));
    println!("{served} leases by 2 to 20 members, never more than {LIMIT} at once, {KEY_LIMIT} of one user");
    assert!(served > 1_000, "{served}");
    assert!(lent.keyed.load(Ordering::SeqCst) > 100, "{lent:?}");
    let (survivor, ..) = &members[0];
    let budget = survivor.budget("streams", BudgetConfig::new(LIMIT));
    until("one member can take everything", TEST_TIMEOUT, async || {
        let mut leases = Vec::new();
        while let Ok(lease) = budget.take().await {
            leases.push(lease);
        }
        leases.len() == LIMIT as usize
    })
    .await;
    let users = survivor.keyed_limit("user", KEY_LIMIT);
    until("and all units of the user", TEST_TIMEOUT, async || {
        let mut leases = Vec::new();
        while let Ok(lease) = users.take("ann").await {
            leases.push(lease);
        }
        leases.len() == KEY_LIMIT as usize
    })
    .await;

    /// Units lent by all members: of the budget, of one user; and how often the user got one.
    #[derive(Debug, Default)]
    struct LentCounts {
        budget: AtomicU32,
        key: AtomicU32,
        keyed: AtomicU32,
    }

    /// Counts one lent unit. It is dropped before its lease.
    struct LentUnit<'a>(&'a AtomicU32);

    impl<'a> LentUnit<'a> {
        fn new(count: &'a AtomicU32, limit: u32) -> Self {
            let now = count.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(now <= limit, "{now} lent of {limit}");
            LentUnit(count)
        }
    }

    impl Drop for LentUnit<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Takes and releases units until it is stopped. Returns how often it got one.
    async fn load(quota: Quota, lent: Arc<LentCounts>, stopped: tokio::sync::watch::Receiver<bool>) -> u32 {
        let (budget, users) =
            (quota.budget("streams", BudgetConfig::new(LIMIT)), quota.keyed_limit("user", KEY_LIMIT));
        let mut served = 0;
        while !*stopped.borrow() {
            let mut leases = Vec::new();
            for _ in 0..4 {
                if let Ok(lease) = budget.take().await {
                    leases.push((LentUnit::new(&lent.budget, LIMIT), lease));
                }
            }
            let keyed = users.take("ann").await.ok();
            let keyed = keyed.map(|lease| (LentUnit::new(&lent.key, KEY_LIMIT), lease));
            lent.keyed.fetch_add(u32::from(keyed.is_some()), Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(3)).await;
            served += leases.len() as u32;
        }
        served
    }
}
