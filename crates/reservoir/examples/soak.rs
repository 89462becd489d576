//! Soak test: connections that live for three seconds, with random faults; nothing may leak.
//!
//! `cargo run --release -p forebay-reservoir --example soak -- 10` runs for ten minutes and prints
//! a line every ten seconds.

#![allow(clippy::print_stdout, reason = "prints its progress")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use forebay_quota::{Quota, RateConfig};
use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy};

const TASKS: u64 = 32;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let minutes: f64 = std::env::args().nth(1).map_or(Ok(10.0), |minutes| minutes.parse())?;
    let seed = std::env::args().nth(2).map_or(Ok(1), |seed| seed.parse())?;
    println!("{minutes} minutes, seed {seed}");
    let server = Arc::new(Postgres::start()?);
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let quota = Quota::local();
    soak(&server, quota.clone(), Duration::from_secs_f64(minutes * 60.0), seed).await?;
    let leases: u32 = quota.status().budgets.iter().map(|budget| budget.usage.used_here).sum();
    drop(quota);
    // Tasks that have ended are removed when the runtime polls them next.
    let mut tasks = before + 1;
    for _ in 0..100 {
        tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if tasks <= before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("leaked: {leases} leases, {} tasks", tasks - before.min(tasks));
    if leases > 0 || tasks > before {
        return Err("something leaked".into());
    }
    Ok(())
}

async fn soak(
    server: &Arc<Postgres>,
    quota: Quota,
    span: Duration,
    seed: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let proxy = Proxy::start(server.addr());
    let url = format!("postgres://postgres@{}/postgres?connect_timeout=2", proxy.addr());
    let config = ReservoirConfig::new(16)
        .base_lifetime(Duration::from_secs(2))
        .lifetime_jitter(Duration::from_secs(1))
        .guard_window(Duration::from_millis(300));
    let limits = ConnectionLimits::shared(quota).rate(RateConfig::per_second(100.0)).connections(18);
    let reservoir = Reservoir::start(PostgresConnect::new(&url)?, config, limits)?;
    let (done, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let until = Instant::now() + span;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (reservoir, done, failed) = (reservoir.clone(), done.clone(), failed.clone());
        tasks.spawn(async move {
            let mut rng = Rng::with_seed(seed * 1_000 + task);
            while Instant::now() < until {
                let outcome = match reservoir.checkout_within(Duration::from_secs(1)).await {
                    // Some callers drop their query.
                    Ok(client) if rng.u64(..10) == 0 => {
                        let query = client.simple_query("BEGIN; SELECT pg_sleep(0.05)");
                        tokio::time::timeout(Duration::from_millis(rng.u64(..50)), query).await.is_ok()
                    }
                    Ok(mut client) => {
                        if rng.u64(..50) == 0 {
                            client.mark_bad();
                        }
                        client.simple_query("SELECT pg_sleep(0.002)").await.is_ok()
                    }
                    Err(_) => false,
                };
                if outcome { &done } else { &failed }.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (mut rng, mut reported_at) = (Rng::with_seed(seed), Instant::now());
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200 + rng.u64(..1_500))).await;
        match rng.u64(..6) {
            0 => proxy.cut(),
            1 => proxy.reset(),
            2 => {
                proxy.stall(Direction::Both);
                tokio::time::sleep(Duration::from_millis(rng.u64(..1_500))).await;
                proxy.resume();
            }
            3 => {
                proxy.refuse();
                tokio::time::sleep(Duration::from_millis(rng.u64(..1_000))).await;
                proxy.accept();
            }
            4 => {
                let server = server.clone();
                let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
                                 AND backend_type = 'client backend'";
                tokio::task::spawn_blocking(move || server.execute("postgres", terminate)).await??;
            }
            _ => {}
        }
        if reported_at.elapsed() > Duration::from_secs(10) {
            reported_at = Instant::now();
            let (done, failed) = (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
            let left = until.saturating_duration_since(reported_at).as_secs();
            println!("{left} s left: {done} queries, {failed} failures, {:?}", reservoir.status().counts);
        }
    }
    while tasks.join_next().await.is_some() {}
    let open = reservoir.close(Duration::from_secs(10)).await;
    println!("leaked: {open} connections");
    if open > 0 {
        return Err("connections leaked".into());
    }
    Ok(())
}
