//! Exact decisions in Redis: their latency, and the CPU time that Redis spends on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_quota::{Budget, BudgetConfig, KeyedLimit, MemberConfig, Quota, QuotaMode, RedisStore};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use tokio::runtime::Builder;

use super::counter_pool::CounterPool;
use super::finish_rebuild;
use super::lease_script::LeaseScript;
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};
use crate::machine::CpuPin;
use crate::process;

const USERS: usize = 2_000;

/// Measures the latency of decisions, one at a time, with client and Redis on one CPU. No unit is
/// returned before the last decision.
pub(crate) fn latency(board: &mut Scoreboard) -> Result<()> {
    let server = &Redis::start()?;
    let decisions = board.scaled(5_000);
    let _pinned = CpuPin::to_one_cpu(&[server.pid()])?;
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(|| ours(server, decisions)) },
        Entrant { name: "ping", turn: Box::new(|| ping(server, decisions)) },
        Entrant {
            name: "seed",
            turn: Box::new(|| counters(server, decisions, UtilizationRead::EachDecision)),
        },
        Entrant {
            name: "seed-drawn",
            turn: Box::new(|| counters(server, decisions, UtilizationRead::Never)),
        },
    ];
    let samples = interleave(board.rounds(), &mut entrants)?;
    let p50s: Vec<_> = samples.into_iter().map(|(name, p50s)| (name, Spread::of(p50s))).collect();
    board.table("keyed", "us, p50", &p50s);
    let [ours, ping, seed, drawn] = [0, 1, 2, 3].map(|at| p50s[at].1.median);
    let contest =
        |theirs, peer, goal| Contest { ours, peer, theirs, unit: "us", better: Better::Lower, goal };
    board.contest("keyed", contest(ping, "ping", 0.5));
    board.contest("seed", contest(seed, "seed", 3.0));
    board.contest("seed_drawn", contest(drawn, "seed-drawn", 3.0));
    Ok(())
}

/// Takes a unit of the budget and a unit of a user's limit for each decision, as admission does.
/// Returns the median latency in microseconds.
fn ours(server: &Redis, decisions: u64) -> Result<f64> {
    let url = server.url();
    run_in_task(async move {
        let (quota, budget, users) = join(&url).await?;
        let mut latencies_us = Vec::with_capacity(decisions as usize);
        let mut streams = Vec::with_capacity(decisions as usize);
        for at in 0..decisions {
            let user = user(at);
            let started = Instant::now();
            let lease = (
                budget.take().await.context("taking a unit")?,
                users.take(&user).await.context("taking a user's unit")?,
            );
            latencies_us.push(started.elapsed().as_secs_f64() * 1e6);
            streams.push(lease);
        }
        drop(streams);
        while quota.status().keyed.iter().any(|users| users.keys > 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Spread::of(latencies_us).median)
    })
}

fn ping(server: &Redis, decisions: u64) -> Result<f64> {
    let url = server.url();
    run_in_task(async move {
        let client = RedisClient::connect(url.as_str()).await?;
        let mut latencies_us = Vec::with_capacity(decisions as usize);
        for _ in 0..decisions {
            let started = Instant::now();
            client.exec::<String>(("PING",)).await?;
            latencies_us.push(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Spread::of(latencies_us).median)
    })
}

/// When the counter pool reads the utilization.
#[derive(Clone, Copy, PartialEq)]
enum UtilizationRead {
    EachDecision,
    Never,
}

/// Measures the counter pool: five commands, or six with the read of the utilization. Returns the
/// median latency in microseconds.
fn counters(server: &Redis, decisions: u64, utilization: UtilizationRead) -> Result<f64> {
    let url = server.url();
    run_in_task(async move {
        let client = RedisClient::connect(url.as_str()).await?;
        let pool = CounterPool { client: &client };
        let mut latencies_us = Vec::with_capacity(decisions as usize);
        for at in 0..decisions {
            let (user, thread) = (user(at), at.to_string());
            let started = Instant::now();
            pool.acquire(&user, &thread).await?;
            if utilization == UtilizationRead::EachDecision {
                pool.read_utilization().await?;
            }
            latencies_us.push(started.elapsed().as_secs_f64() * 1e6);
        }
        for at in 0..decisions {
            pool.release(&user(at), &at.to_string()).await?;
        }
        Ok(Spread::of(latencies_us).median)
    })
}

/// Measures how many decisions Redis makes in one second of its CPU time, with many concurrent
/// tasks.
pub(crate) fn redis_cpu(board: &mut Scoreboard) -> Result<()> {
    let server = &Redis::start()?;
    let decisions = board.scaled(200_000);
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(|| ours_per_core(server, decisions)) },
        Entrant { name: "lease-script", turn: Box::new(|| leases_per_core(server, decisions)) },
    ];
    let samples = interleave(board.rounds(), &mut entrants)?;
    let rates: Vec<_> = samples.into_iter().map(|(name, rates)| (name, Spread::of(rates))).collect();
    board.table("redis_cpu", "decisions per second of Redis's CPU", &rates);
    let (ours, (peer, theirs)) = (rates[0].1.median, rates[1]);
    let contest =
        Contest { ours, peer, theirs: theirs.median, unit: "decisions/s", better: Better::Higher, goal: 1.8 };
    board.contest("redis_cpu", contest);
    Ok(())
}

/// Number of concurrent tasks, each with one decision at a time.
const DECIDERS: u64 = 64;

fn ours_per_core(server: &Redis, decisions: u64) -> Result<f64> {
    let (url, pid) = (server.url(), server.pid());
    runtime()?.block_on(async move {
        let (_quota, budget, users) = join(&url).await?;
        let decide = move |user: String, _id: String| {
            let (budget, users) = (budget.clone(), users.clone());
            async move {
                let lease = (
                    budget.take().await.context("taking a unit")?,
                    users.take(&user).await.context("taking a user's unit")?,
                );
                tokio::task::yield_now().await;
                drop(lease);
                Ok(())
            }
        };
        per_core(pid, decisions, decide).await
    })
}

fn leases_per_core(server: &Redis, decisions: u64) -> Result<f64> {
    let (url, pid) = (server.url(), server.pid());
    runtime()?.block_on(async move {
        let leases = Arc::new(LeaseScript::new(RedisClient::connect(url.as_str()).await?));
        let decide = move |user: String, id: String| {
            let leases = leases.clone();
            async move {
                leases.acquire(&user, &id).await?;
                tokio::task::yield_now().await;
                leases.release(&user, &id).await
            }
        };
        per_core(pid, decisions, decide).await
    })
}

/// Runs the tasks, and returns the decisions per second of Redis's CPU time. Fails if a decision
/// rejects a user.
async fn per_core<F: Future<Output = Result<()>> + Send>(
    redis: u32,
    decisions: u64,
    decide: impl Fn(String, String) -> F + Clone + Send + 'static,
) -> Result<f64> {
    let before = process::cpu_ns(&[redis])?;
    let deciders: Vec<_> = (0..DECIDERS)
        .map(|decider| {
            let decide = decide.clone();
            tokio::spawn(async move {
                for at in 0..decisions / DECIDERS {
                    let user = user(at * DECIDERS + decider);
                    decide(user, format!("{decider}-{at}")).await?;
                }
                Ok::<_, anyhow::Error>(())
            })
        })
        .collect();
    for decider in deciders {
        decider.await??;
    }
    let busy_ns = process::cpu_ns(&[redis])? - before;
    Ok(decisions as f64 / (busy_ns as f64 / 1e9))
}

/// Joins a namespace whose rebuild is finished, and takes a first unit.
async fn join(url: &str) -> Result<(Quota, Budget, KeyedLimit)> {
    let client = RedisClient::connect(url).await?;
    finish_rebuild(&client, "race").await?;
    let quota = Quota::join(RedisStore::new(client, "race"), MemberConfig::new("racer")).await;
    anyhow::ensure!(quota.status().mode == QuotaMode::Normal, "the member is {}", quota.status().mode);
    let budget = quota.budget("streams", BudgetConfig::new(10_000));
    let users = quota.keyed_limit("user", 3);
    drop(budget.take().await.context("taking the first unit")?);
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok((quota, budget, users))
}

fn user(at: u64) -> String {
    format!("user-{}", at as usize % USERS)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Runs the work in a spawned task, as a server runs its handlers.
fn run_in_task(work: impl Future<Output = Result<f64>> + Send + 'static) -> Result<f64> {
    runtime()?.block_on(async { tokio::spawn(work).await? })
}
