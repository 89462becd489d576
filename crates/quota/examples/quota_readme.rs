//! The example of the README, compiled and run; `tests/readme.rs` makes sure that they are the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use forebay_quota::{BudgetConfig, MemberConfig, Mode, Quota, RateConfig, RedisStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Redis::start()?;
    use_namespace(&server.url(), "chat").await?;

    let store = RedisStore::open(&server.url(), "chat")?;
    let quota = Quota::join(store, MemberConfig::new("instance-1")).await;

    let streams = quota.budget("streams", BudgetConfig::new(10_000)); // in all instances together
    let per_user = quota.keyed("user", 3); // each user, wherever it is served
    let dials = quota.rate("dial", RateConfig::per_second(100.0));

    let held = (streams.take().await?, per_user.take("ann").await?);
    println!("{}", serde_json::to_string_pretty(&quota.status())?);
    assert_eq!(per_user.holders("ann").await?.len(), 1);
    drop(held); // gives both back

    dials.take().await?.spend();
    quota.leave().await;
    Ok(())
}

/// A namespace grants nothing in the first TTL of its life: here a short one, so that the example is quick.
async fn use_namespace(url: &str, namespace: &str) -> Result<(), Box<dyn std::error::Error>> {
    let config = MemberConfig::new("first").beat(Duration::from_millis(10)).ttl(Duration::from_millis(100));
    let first = Quota::join(RedisStore::open(url, namespace)?, config).await;
    while first.status().mode != Mode::Normal {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.leave().await;
    Ok(())
}
