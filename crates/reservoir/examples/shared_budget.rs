//! Two processes that share a budget of ten connections through Redis.
//!
//! ```text
//! export DATABASE_URL=postgres://postgres:secret@127.0.0.1/postgres
//! export REDIS_URL=redis://127.0.0.1:6379
//! cargo run -p forebay-reservoir --example shared_budget
//! ```
//!
//! Without arguments, it starts itself twice. To get the servers:
//! `docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres`, and `redis-server`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_quota::{MemberConfig, Quota, QuotaMode, RedisStore};
use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [name] => {
            let postgres = std::env::var("DATABASE_URL")
                .map_err(|_| "set DATABASE_URL, such as postgres://postgres:secret@127.0.0.1/postgres")?;
            let redis =
                std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(one_of_two(&postgres, &redis, name))
        }
        _ => both(),
    }
}

fn both() -> Result<()> {
    let start = |name: &str| Command::new(std::env::current_exe()?).arg(name).stdin(Stdio::null()).spawn();
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
