//! Configurations, namespaces and stores for the tests.

use std::time::Duration;

use forebay_quota::{Heartbeat, HeartbeatKind, HeartbeatReply, MemberConfig, MemberId, RedisStore, Store};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
pub(crate) use forebay_testkit::TEST_TIMEOUT;

/// A member with frequent heartbeats and a long TTL. The store is unavailable to it only if the
/// connection fails: a machine that stalls for a second causes no outage.
pub(crate) fn steady(name: &str) -> MemberConfig {
    MemberConfig::new(name)
        .heartbeat_interval(Duration::from_millis(200))
        .ttl(2 * TEST_TIMEOUT)
        .call_timeout(TEST_TIMEOUT)
        .join_timeout(TEST_TIMEOUT)
}

/// A member with a short TTL, for tests of its expiry.
pub(crate) fn quick(name: &str) -> MemberConfig {
    steady(name).ttl(Duration::from_secs(1))
}

/// Returns a namespace that no other test uses.
pub(crate) fn namespace(test: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{test}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Creates a store in a namespace that needs no rebuild.
pub(crate) async fn settled_store(server: &Redis, namespace: &str) -> RedisStore {
    let client = RedisClient::connect(server.url()).await.unwrap();
    client.exec::<u64>(("HSETNX", format!("{{{namespace}}}:m"), "!", "1:0")).await.unwrap();
    client.exec::<u64>(("HSETNX", format!("{{{namespace}}}:m"), "?", "0")).await.unwrap();
    RedisStore::new(client, namespace)
}

/// Returns Redis's time in ms.
pub(crate) async fn redis_now(client: &RedisClient) -> u64 {
    let (seconds, micros): (String, String) = client.exec(("TIME",)).await.unwrap();
    seconds.parse::<u64>().unwrap() * 1000 + micros.parse::<u64>().unwrap() / 1000
}

/// Sends the heartbeat of a member that has counted no other members.
pub(crate) async fn heartbeat(
    store: &RedisStore,
    member: &MemberId,
    kind: HeartbeatKind,
    ttl: Duration,
) -> HeartbeatReply {
    let member = member.clone();
    let heartbeat = Heartbeat { member, ttl, kind, generation: 1, members_before: 0, has_reported: false };
    store.heartbeat(heartbeat).await.unwrap()
}

/// Polls until `condition` holds; fails after `within`. Events in other processes send no
/// notification.
pub(crate) async fn until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + within;
    while !condition().await {
        assert!(std::time::Instant::now() < deadline, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
