//! The example of the README, compiled and run. `tests/readme.rs` checks that they are the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use forebay_quota::{BudgetConfig, MemberConfig, Quota, QuotaMode, RateConfig, RedisStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Redis::start()?;
    use_namespace(&server.url(), "chat").await?;

    let store = RedisStore::open(&server.url(), "chat")?;
    let quota = Quota::join(store, MemberConfig::new("instance-1")).await;

    let streams = quota.budget("streams", BudgetConfig::new(10_000)); // limit of all instances together
    let per_user = quota.keyed_limit("user", 3); // limit of each user in all instances
    let dials = quota.rate("dial", RateConfig::per_second(100.0));

    let held = (streams.take().await?, per_user.take("ann").await?);
    println!("{}", serde_json::to_string_pretty(&quota.status())?);
    assert_eq!(per_user.holders("ann").await?.len(), 1);
    drop(held); // returns both units

    dials.take().await?.spend();
    quota.leave().await;
    Ok(())
}

/// Lives through the first TTL of a new namespace, in which it grants nothing. The TTL is short
/// here, so that the example is quick.
async fn use_namespace(url: &str, namespace: &str) -> Result<(), Box<dyn std::error::Error>> {
    let config = MemberConfig::new("first")
        .heartbeat_interval(Duration::from_millis(10))
        .ttl(Duration::from_millis(100));
    let first = Quota::join(RedisStore::open(url, namespace)?, config).await;
    while first.status().mode != QuotaMode::Normal {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.leave().await;
    Ok(())
}
