//! A Redis without the counts: a new namespace, FLUSHALL, and a restart without persistence.
//! Members lend by their policy while the counts are rebuilt.

use std::time::Duration;

use forebay_quota::{
    BudgetConfig, Heartbeat, HeartbeatKind, HeartbeatReply, Lease, MemberId, OutagePolicy, Quota, QuotaMode,
    QuotaRefusal, RedisStore, Store,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use forebay_testkit::{Direction, Proxy};

use crate::release_0_1::Release01Store;
use crate::rolling_upgrade::AnyRelease;
use crate::support::{TEST_TIMEOUT, heartbeat, namespace, redis_now, settled_store, steady, until};

const LIMIT: u32 = 100;
/// Longer than a member needs to lend its part, on a busy machine.
const TTL: Duration = Duration::from_secs(10);

async fn new_namespace(server: &Redis, namespace: &str) -> RedisStore {
    RedisStore::new(RedisClient::connect(server.url()).await.unwrap(), namespace)
}

/// Takes units of the budget until one is refused.
async fn take_all(quota: &Quota) -> (Vec<Lease>, QuotaRefusal) {
    let budget = quota.budget("streams", BudgetConfig::new(LIMIT));
    let mut held = Vec::new();
    loop {
        match budget.take().await {
            Ok(lease) => held.push(lease),
            Err(refusal) => return (held, refusal),
        }
    }
}

async fn take(quota: &Quota, count: usize) -> Vec<Lease> {
    let budget = quota.budget("streams", BudgetConfig::new(LIMIT));
    let mut held = Vec::new();
    while held.len() < count {
        held.push(budget.take().await.unwrap());
    }
    held
}

/// Returns how many units the store has recorded as lent.
async fn recorded(quota: &Quota) -> u32 {
    let holdings = quota.query_holdings().await.unwrap();
    holdings.accounts.iter().flat_map(|account| &account.shares).map(|share| share.used).sum()
}

/// Two members start in a new namespace. `join` adds a member with this name and policy to it.
pub(crate) async fn start_in_a_new_namespace(
    policy: OutagePolicy,
    join: impl AsyncFn(&'static str, OutagePolicy) -> Quota,
) {
    let first = join("first", policy).await;
    assert_eq!((first.mode(), first.policy()), (QuotaMode::Rebuilding, policy));
    let user = first.keyed_limit("user", 2);
    if policy == OutagePolicy::Closed {
        for refusal in [take_all(&first).await.1, user.take("ann").await.unwrap_err()] {
            assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
        }
        return;
    }
    let one = user.take("ann").await.unwrap();
    let held = take(&first, 40).await;
    let second = join("second", policy).await;
    until("the first counts two members", TEST_TIMEOUT, async || first.members() == 2).await;
    let (more, refusal) = take_all(&second).await;
    let (rest, _) = take_all(&first).await;
    assert_eq!(first.mode(), QuotaMode::Rebuilding, "the rebuild lasts longer than this test");
    // All members have reported, so the limit holds.
    assert!(held.len() + more.len() + rest.len() <= LIMIT as usize);
    match policy {
        OutagePolicy::Share => {
            assert_eq!((more.len(), held.len() + rest.len()), (50, 50), "each has its part");
            assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
        }
        _ => assert_eq!(held.len() + more.len() + rest.len(), LIMIT as usize),
    }
    let theirs = second.keyed_limit("user", 2);
    let two = theirs.take("ann").await.unwrap();
    assert_eq!(theirs.take("ann").await.unwrap_err(), QuotaRefusal::Full { used: 2, limit: 2 });
    drop((one, two));
}

#[tokio::test]
async fn a_new_namespace_grants_at_once_unless_the_policy_is_closed() {
    for policy in [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open] {
        let namespace = namespace("new");
        start_in_a_new_namespace(policy, async |name, policy| {
            let store = new_namespace(Redis::shared(), &namespace).await;
            Quota::join(store, steady(name).policy(policy)).await
        })
        .await;
    }
}

/// A rolling upgrade begins with an empty Redis. Members of release 0.1 grant nothing in a rebuild.
#[tokio::test]
async fn in_a_new_namespace_of_both_releases_the_new_member_grants_its_part_at_once() {
    for old_is_first in [true, false] {
        let namespace = namespace("new-rolling");
        let client = async || RedisClient::connect(Redis::shared().url()).await.unwrap();
        let join_old = async || {
            let store = Release01Store::new(client().await, &namespace);
            Quota::join(store, steady("old").ttl(TTL)).await
        };
        let join_new = async || {
            let store = RedisStore::new(client().await, &namespace);
            Quota::join(store, steady("new").ttl(TTL)).await
        };
        let (old, new) = if old_is_first {
            let old = join_old().await;
            (old, join_new().await)
        } else {
            let new = join_new().await;
            (join_old().await, new)
        };
        until("both count two members", TEST_TIMEOUT, async || old.members() == 2 && new.members() == 2)
            .await;
        let (none, refusal) = take_all(&old).await;
        assert!(none.is_empty() && matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
        let (mut lent, refusal) = take_all(&new).await;
        assert_eq!(lent.len(), 50, "an equal part of {LIMIT}");
        assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
        assert_eq!(new.mode(), QuotaMode::Rebuilding, "all of this happened during the rebuild");

        until("both lend the rest after the rebuild", TEST_TIMEOUT, async || {
            lent.extend(take_all(&old).await.0);
            lent.extend(take_all(&new).await.0);
            assert!(lent.len() <= LIMIT as usize, "{} units", lent.len());
            lent.len() == LIMIT as usize
        })
        .await;
        assert!([&old, &new].iter().all(|quota| quota.mode() == QuotaMode::Normal));
    }
}

#[tokio::test]
async fn a_budget_held_until_expiry_grants_nothing_in_a_new_namespace() {
    let quota =
        Quota::join(new_namespace(Redis::shared(), &namespace("connections")).await, steady("a")).await;
    let connections = quota.budget("connections", BudgetConfig::new(LIMIT).held_until_expiry());
    let refusal = connections.take().await.unwrap_err();
    assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
    assert!(quota.budget("streams", BudgetConfig::new(LIMIT)).take().await.is_ok());
}

/// One member can't report for a while after FLUSHALL at 90 %. Returns after all counts are right.
async fn flush_while_a_member_is_cut_off(
    server: &Redis,
    namespace: &str,
    silent: impl AsyncFn(RedisClient) -> AnyRelease,
) {
    let proxy = Proxy::start(server.addr());
    let config = |name: &str| steady(name).ttl(TTL);
    let (member, cut_off) = (
        Quota::join(settled_store(server, namespace).await, config("member")).await,
        Quota::join(
            silent(RedisClient::connect(format!("redis://{}", proxy.addr()).as_str()).await.unwrap()).await,
            config("cut-off"),
        )
        .await,
    );
    until("both count two members", TEST_TIMEOUT, async || member.members() == 2 && cut_off.members() == 2)
        .await;
    let (mut few, mut many) = (take(&member, 30).await, take(&cut_off, 60).await);
    until("the store has recorded them", TEST_TIMEOUT, async || recorded(&member).await == 90).await;

    proxy.stall(Direction::Both);
    let admin = RedisClient::connect(server.url()).await.unwrap();
    admin.exec::<()>(("FLUSHALL",)).await.unwrap();
    until("the rebuild begins", TEST_TIMEOUT, async || member.mode() == QuotaMode::Rebuilding).await;
    // The bound: an equal part of the limit, so ten beyond it. The other member holds sixty.
    let (more, refusal) = take_all(&member).await;
    few.extend(more);
    assert_eq!(few.len(), 50, "an equal part of {LIMIT}");
    assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");

    proxy.resume();
    until("the store has recorded all units", TEST_TIMEOUT, async || recorded(&member).await == 110).await;
    let fresh = Quota::join(settled_store(server, namespace).await, config("fresh")).await;
    let all = [&member, &cut_off, &fresh];
    until("the rebuild ends", TEST_TIMEOUT, async || {
        for quota in all {
            assert!(take_all(quota).await.0.is_empty(), "{LIMIT} are lent already");
        }
        all.iter().all(|quota| quota.mode() == QuotaMode::Normal)
    })
    .await;
    many.truncate(30);
    let mut rest = Vec::new();
    until("the rest is lent again", TEST_TIMEOUT, async || {
        rest.extend(take_all(&fresh).await.0);
        let lent = few.len() + many.len() + rest.len();
        assert!(lent <= LIMIT as usize, "{lent}");
        lent == LIMIT as usize
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_at_90_percent_a_member_lends_its_part_and_the_counts_are_right_again() {
    let server = Redis::start().unwrap();
    let store = async |client| AnyRelease::New(RedisStore::new(client, "flush-share"));
    flush_while_a_member_is_cut_off(&server, "flush-share", store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_both_releases_keep_the_bound_of_a_rebuild() {
    let server = Redis::start().unwrap();
    let store = async |client| AnyRelease::Old(Release01Store::new(client, "flush-rolling"));
    flush_while_a_member_is_cut_off(&server, "flush-rolling", store).await;
}

#[tokio::test]
async fn after_a_restart_without_persistence_redis_grants_at_once() {
    let server = Redis::start().unwrap();
    let quota = Quota::join(settled_store(&server, "restart").await, steady("a")).await;
    let (held, users) = (take(&quota, 60).await, quota.keyed_limit("user", 2));
    let _one = users.take("ann").await.unwrap();
    server.kill();
    server.revive().unwrap();
    until("the rebuild begins", TEST_TIMEOUT, async || quota.mode() == QuotaMode::Rebuilding).await;
    let (more, refusal) = take_all(&quota).await;
    assert_eq!((held.len() + more.len(), refusal), (100, QuotaRefusal::Full { used: LIMIT, limit: LIMIT }));
    let _two = users.take("ann").await.unwrap();
    assert_eq!(users.take("ann").await.unwrap_err(), QuotaRefusal::Full { used: 2, limit: 2 });
    assert_eq!(quota.mode(), QuotaMode::Rebuilding, "all of this happened during the rebuild");
    until("the store has recorded all units", TEST_TIMEOUT, async || recorded(&quota).await == LIMIT).await;
    assert_eq!(users.holders("ann").await.unwrap()[0].count, 2);
}

/// Sends the first heartbeat of a member that had counted two members.
async fn report(store: &RedisStore, name: &str, ttl: Duration, has_reported: bool) -> HeartbeatReply {
    let (member, kind) = (MemberId::new(name, 1), HeartbeatKind::Join);
    let heartbeat = Heartbeat { member, ttl, kind, generation: 1, members_before: 2, has_reported };
    store.heartbeat(heartbeat).await.unwrap()
}

#[tokio::test]
async fn a_rebuild_ends_after_half_a_ttl_once_all_members_have_reported() {
    const LONG: Duration = Duration::from_secs(3600);
    let (server, namespace) = (Redis::shared(), namespace("early"));
    let store = new_namespace(server, &namespace).await;
    for (name, has_reported) in [("a", false), ("a", true), ("b", false)] {
        let reply = report(&store, name, LONG, has_reported).await;
        assert!(reply.rebuild_left > LONG / 2 && reply.expected == 2, "{reply:?}");
    }
    let reply = report(&store, "b", LONG, true).await;
    assert!(reply.rebuild_left <= LONG / 2 && !reply.rebuild_left.is_zero(), "{reply:?}");

    let namespace = crate::support::namespace("early-end");
    let store = new_namespace(server, &namespace).await;
    until("the rebuild ends", TEST_TIMEOUT, async || {
        report(&store, "a", Duration::from_secs(1), true).await;
        report(&store, "b", Duration::from_secs(1), true).await.rebuild_left.is_zero()
    })
    .await;
    let client = RedisClient::connect(server.url()).await.unwrap();
    assert!(!client.exec::<bool>(("EXISTS", format!("{{{namespace}}}:w"))).await.unwrap());
    assert_eq!(report(&store, "a", LONG, true).await.expected, 0);
}

/// Redis's clock can't be advanced, so the test writes the expiries that members have after an
/// outage.
#[tokio::test]
async fn after_an_outage_a_rebuild_expects_the_members_that_the_store_knew() {
    const LONG: Duration = Duration::from_secs(3600);
    let (server, namespace) = (Redis::shared(), namespace("outage"));
    let store = settled_store(server, &namespace).await;
    let members = ["a", "b", "c"].map(|name| MemberId::new(name, 1));
    for member in &members {
        heartbeat(&store, member, HeartbeatKind::Join, LONG).await;
    }
    // No heartbeat has arrived for most of the TTL: a and b have just expired, and c will soon.
    let client = RedisClient::connect(server.url()).await.unwrap();
    let now = redis_now(&client).await;
    let soon = now + LONG.as_millis() as u64 / 4;
    for (member, expires) in members.iter().zip([now, now, soon]) {
        let key = format!("{{{namespace}}}:m");
        client.exec::<u64>(("HSET", key, member.as_str(), expires.to_string())).await.unwrap();
    }
    let reply = heartbeat(&store, &MemberId::new("new", 1), HeartbeatKind::Join, LONG).await;
    assert_eq!((reply.rebuild_left, reply.expected), (LONG, 3));
    for name in ["a", "b"] {
        let reply = report(&store, name, LONG, true).await;
        assert!(reply.rebuild_left > LONG / 2 && reply.expected == 3, "c has yet to report: {reply:?}");
    }
    let reply = report(&store, "c", LONG, true).await;
    assert!(reply.rebuild_left <= LONG / 2 && !reply.rebuild_left.is_zero(), "{reply:?}");
}

#[tokio::test]
async fn a_rebuild_that_expects_a_member_of_release_0_1_does_not_end_early() {
    const LONG: Duration = Duration::from_secs(3600);
    let (server, namespace) = (Redis::shared(), namespace("early-rolling"));
    let store = new_namespace(server, &namespace).await;
    report(&store, "new", LONG, true).await;
    let client = RedisClient::connect(server.url()).await.unwrap();
    let (old_store, member) = (Release01Store::new(client, &namespace), MemberId::new("old", 1));
    for kind in [HeartbeatKind::Join, HeartbeatKind::Renew] {
        let (member, ttl) = (member.clone(), LONG);
        let heartbeat = Heartbeat { member, ttl, kind, generation: 1, members_before: 2, has_reported: true };
        old_store.heartbeat(heartbeat).await.unwrap();
        let reply = report(&store, "new", LONG, true).await;
        assert!(reply.rebuild_left > LONG / 2 && reply.expected == 2, "{reply:?}");
        assert_eq!(reply.members, 2);
    }
}

#[tokio::test]
async fn a_malformed_report_counts_as_none() {
    const LONG: Duration = Duration::from_secs(3600);
    let (server, namespace) = (Redis::shared(), namespace("malformed"));
    let store = new_namespace(server, &namespace).await;
    report(&store, "a", LONG, true).await;
    report(&store, "b", LONG, true).await;
    let client = RedisClient::connect(server.url()).await.unwrap();
    let (key, field) = (format!("{{{namespace}}}:w"), MemberId::new("b", 1).to_string());
    assert!(client.exec::<bool>(("HEXISTS", &key, &field)).await.unwrap());
    client.exec::<()>(("HSET", &key, &field, "malformed")).await.unwrap();
    let reply = report(&store, "a", LONG, true).await;
    assert!(reply.rebuild_left > LONG / 2 && reply.expected == 2, "{reply:?}");
    let reply = report(&store, "b", LONG, true).await;
    assert!(reply.rebuild_left <= LONG / 2, "b replaces its report: {reply:?}");
}
