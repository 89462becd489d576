//! What the tests share.

use std::time::Duration;

use forebay_quota::{MemberConfig, RedisStore};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
pub(crate) use forebay_testkit::PATIENCE;

/// A member that beats often and lives long: the store is away for it only when the connection
/// fails. A machine that
/// stands still for a second makes no outage.
pub(crate) fn steady(name: &str) -> MemberConfig {
    MemberConfig::new(name)
        .beat(Duration::from_millis(200))
        .ttl(2 * PATIENCE)
        .call_timeout(PATIENCE)
        .join_timeout(PATIENCE)
}

/// A member whose life is short, so that tests of its end are.
pub(crate) fn quick(name: &str) -> MemberConfig {
    steady(name).ttl(Duration::from_secs(1))
}

/// A namespace nobody else has.
pub(crate) fn namespace(test: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{test}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A store in a namespace that was used before: there is nothing to rebuild.
pub(crate) async fn settled_store(server: &Redis, namespace: &str) -> RedisStore {
    let client = RedisClient::connect(server.url()).await.unwrap();
    client.exec::<u64>(("HSETNX", format!("{{{namespace}}}:m"), "!", "1:0")).await.unwrap();
    client.exec::<u64>(("HSETNX", format!("{{{namespace}}}:m"), "?", "0")).await.unwrap();
    RedisStore::new(client, namespace)
}

/// Polls until `condition` holds, and fails after `within`: events across processes have no other sign.
pub(crate) async fn until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + within;
    while !condition().await {
        assert!(std::time::Instant::now() < deadline, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
