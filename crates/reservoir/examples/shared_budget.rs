//! Two processes that share a budget of ten connections through Redis.
//!
//! Run with `cargo run -p forebay-reservoir --example shared_budget`.
//!
//! Without arguments, it starts a Postgres server, a Redis server, and itself twice.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_quota::{MemberConfig, Quota, QuotaMode, RedisStore};
use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [postgres, redis, name] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(one_of_two(postgres, redis, name))
        }
        _ => both(),
    }
}

fn both() -> Result<()> {
    let (postgres, redis) = (forebay_sandbox::Postgres::start()?, forebay_sandbox::Redis::start()?);
    let start = |name: &str| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([&postgres.url("postgres"), &redis.url(), name]).stdin(Stdio::null()).spawn()
    };
    for mut process in [start("one")?, start("two")?] {
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("a process ended with {status}").into());
        }
    }
    Ok(())
}

async fn one_of_two(postgres: &str, redis: &str, name: &str) -> Result<()> {
    let member =
        MemberConfig::new(name).ttl(Duration::from_secs(1)).heartbeat_interval(Duration::from_millis(200));
    let quota = Quota::join(RedisStore::open(redis, "example")?, member).await;
    while quota.mode() != QuotaMode::Normal {
        // A new namespace grants nothing for one TTL.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Each process wants eight connections; together they may have ten.
    let limits = ConnectionLimits::shared(quota.clone()).connections(10);
    let reservoir = Reservoir::start(PostgresConnect::new(postgres)?, ReservoirConfig::new(8), limits)?;
    reservoir.initial_fill(Duration::from_secs(10)).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("{name}: {} connections", reservoir.status().counts.total());
    let holdings = quota.query_holdings().await?;
    for share in holdings.accounts.iter().flat_map(|account| &account.shares) {
        println!("{name}: {} holds {}", share.member, share.used);
    }
    // Both processes must have printed before one of them leaves.
    tokio::time::sleep(Duration::from_secs(1)).await;
    reservoir.close(Duration::from_secs(5)).await;
    quota.leave().await;
    Ok(())
}
