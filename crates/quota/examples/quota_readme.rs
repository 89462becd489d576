//! The example of the README. `tests/readme.rs` compares both.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p forebay-quota --example quota_readme`
//!
//! To get a server: `redis-server`, or `docker run --rm -p 6379:6379 redis`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use forebay_quota::{BudgetConfig, MemberConfig, Quota, RateConfig, RedisStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
    let store = RedisStore::open(&url, "chat")?;
    let quota = Quota::join(store, MemberConfig::new("instance-1")).await;

    let streams = quota.budget("streams", BudgetConfig::new(10_000)); // limit of all instances together
    let per_user = quota.keyed_limit("user", 3); // limit of each user in all instances
    let dials = quota.rate("dial", RateConfig::per_second(100.0));

    let held = (streams.take().await?, per_user.take("ann").await?);
    println!("{:?}", per_user.holders("ann").await?);
    drop(held); // returns both units

    dials.take().await?.spend();
    quota.leave().await;
    Ok(())
}
