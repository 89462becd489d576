//! Soak test: connections that live for three seconds, with random faults; nothing may leak.
//!
//! `FOREBAY_SECONDS=600 FOREBAY_SEED=1 cargo nextest run --release -p forebay-reservoir
//! --run-ignored only a_soak --no-capture` runs for ten minutes, and prints a line every ten
//! seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::{Quota, RateConfig};
use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, TestRng, eventually, seed};

use crate::servers::PostgresReservoir;

const TASKS: usize = 32;

/// Queries that succeeded, and checkouts and queries that failed.
#[derive(Debug, Default)]
struct QueryCounts {
    done: AtomicU64,
    failed: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes FOREBAY_SECONDS, 600 by default"]
async fn a_soak_with_random_faults_leaks_nothing() {
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(600, |text| text.parse().expect("a number"));
    let seed = seed();
    println!("{seconds} seconds, seed {seed}");
    let server = Arc::new(Postgres::start().unwrap());
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let quota = Quota::local();
    soak(&server, quota.clone(), Duration::from_secs(seconds), seed).await;
    let leases: u32 = quota.status().budgets.iter().map(|budget| budget.usage.used_here).sum();
    assert_eq!(leases, 0, "leases leaked");
    drop(quota);
    // Tasks that have ended are removed when the runtime polls them next.
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    eventually("all tasks have ended", true, async || tasks() <= before).await;
}

async fn soak(server: &Arc<Postgres>, quota: Quota, span: Duration, seed: u64) {
    let proxy = Proxy::start(server.addr());
    let url = format!("postgres://postgres@{}/postgres?connect_timeout=2", proxy.addr());
    let config = ReservoirConfig::new(16)
        .base_lifetime(Duration::from_secs(2))
        .lifetime_jitter(Duration::from_secs(1))
        .guard_window(Duration::from_millis(300));
    let limits = ConnectionLimits::shared(quota).rate(RateConfig::per_second(100.0)).connections(18);
    let reservoir = Reservoir::start(PostgresConnect::new(&url).unwrap(), config, limits).unwrap();
    let counts = Arc::new(QueryCounts::default());
    let until = Instant::now() + span;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let rng = TestRng::of(seed, "task", task);
        tasks.spawn(query_until(until, reservoir.clone(), counts.clone(), rng));
    }
    let (mut rng, mut reported_at) = (TestRng::new(seed), Instant::now());
    while Instant::now() < until {
        tokio::time::sleep(millis(200 + rng.below(1_500))).await;
        inject_fault(server, &proxy, &mut rng).await;
        if reported_at.elapsed() > Duration::from_secs(10) {
            reported_at = Instant::now();
            let left = until.saturating_duration_since(reported_at).as_secs();
            println!("{left} s left: {counts:?}, {:?}", reservoir.status().counts);
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert!(counts.done.load(Ordering::Relaxed) > 0, "{counts:?}");
    assert_eq!(reservoir.close(Duration::from_secs(10)).await, 0, "connections leaked");
}

/// Borrows connections and queries until the end. Some callers drop their query.
async fn query_until(
    until: Instant,
    reservoir: PostgresReservoir,
    counts: Arc<QueryCounts>,
    mut rng: TestRng,
) {
    while Instant::now() < until {
        let succeeded = match reservoir.checkout_within(Duration::from_secs(1)).await {
            Ok(client) if rng.below(10) == 0 => {
                let query = client.simple_query("BEGIN; SELECT pg_sleep(0.05)");
                tokio::time::timeout(millis(rng.below(50)), query).await.is_ok()
            }
            Ok(mut client) => {
                if rng.below(50) == 0 {
                    client.mark_bad();
                }
                client.simple_query("SELECT pg_sleep(0.002)").await.is_ok()
            }
            Err(_) => false,
        };
        if succeeded { &counts.done } else { &counts.failed }.fetch_add(1, Ordering::Relaxed);
    }
}

async fn inject_fault(server: &Arc<Postgres>, proxy: &Proxy, rng: &mut TestRng) {
    match rng.below(6) {
        0 => proxy.cut(),
        1 => proxy.reset(),
        2 => {
            proxy.stall(Direction::Both);
            tokio::time::sleep(millis(rng.below(1_500))).await;
            proxy.resume();
        }
        3 => {
            proxy.refuse();
            tokio::time::sleep(millis(rng.below(1_000))).await;
            proxy.accept();
        }
        4 => {
            let server = server.clone();
            let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
                             AND backend_type = 'client backend'";
            let terminated = tokio::task::spawn_blocking(move || server.execute("postgres", terminate)).await;
            terminated.unwrap().unwrap();
        }
        _ => {}
    }
}

fn millis(count: usize) -> Duration {
    Duration::from_millis(count as u64)
}
