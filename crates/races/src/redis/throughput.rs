//! Throughput of many tasks, or of a few tasks with pipelines, on one shared connection. Also the
//! number of allocations.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::contestant::{KEYS, RedisContestant, VALUE_BYTES, keys};
use super::{ForebayRedis, Fred, MultiplexedRedisRs, Rustis};
use crate::allocations;
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, WorkCost, interleave};

/// Kind of tokio runtime.
#[derive(Clone, Copy)]
enum RuntimeKind {
    CurrentThread,
    /// Multi-threaded, with two workers.
    Two,
}

impl RuntimeKind {
    fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            RuntimeKind::CurrentThread => Builder::new_current_thread(),
            RuntimeKind::Two => Builder::new_multi_thread(),
        };
        Ok(builder.worker_threads(2).enable_all().build()?)
    }
}

#[derive(Clone, Copy)]
enum RedisRequest {
    Get,
    /// One pipeline with a GET of each key.
    Pipeline,
}

impl RedisRequest {
    fn ops(self) -> u64 {
        match self {
            RedisRequest::Get => 1,
            RedisRequest::Pipeline => KEYS as u64,
        }
    }
}

/// A number of tasks, each with one open request at a time.
#[derive(Clone, Copy)]
struct RedisLoad {
    workers: RuntimeKind,
    tasks: u64,
    request: RedisRequest,
    requests_per_task: u64,
}

impl RedisLoad {
    fn ops(self) -> u64 {
        self.tasks * self.requests_per_task * self.request.ops()
    }

    /// Creates a runtime and a connection, and runs a tenth of the load as warm-up.
    fn prepare<C: RedisContestant>(self, url: &str) -> Result<(Runtime, C)> {
        let runtime = self.workers.runtime()?;
        let client = runtime.block_on(C::connect(url))?;
        let warm_up = RedisLoad { requests_per_task: self.requests_per_task.div_ceil(10), ..self };
        runtime.block_on(warm_up.run(client.clone()))?;
        Ok((runtime, client))
    }

    async fn run<C: RedisContestant>(self, client: C) -> Result<()> {
        let keys = Arc::new(keys());
        let mut tasks = JoinSet::new();
        for task in 0..self.tasks {
            let (mut client, keys) = (client.clone(), keys.clone());
            tasks.spawn(async move {
                let key = &keys[task as usize % KEYS];
                for _ in 0..self.requests_per_task {
                    let bytes: usize = match self.request {
                        RedisRequest::Get => client.get(key).await?.len(),
                        RedisRequest::Pipeline => client.get_many(&keys).await?.iter().map(String::len).sum(),
                    };
                    ensure!(bytes == self.request.ops() as usize * VALUE_BYTES, "a reply has {bytes} bytes");
                }
                Ok(())
            });
        }
        tasks.join_all().await.into_iter().collect()
    }
}

/// Runs the six loads. Each is one case for the rate and one for the CPU time.
pub(crate) fn run(board: &mut Scoreboard, url: &str) -> Result<()> {
    for (name, tasks, request, ops) in [
        ("tasks64", 64, RedisRequest::Get, 384_000),
        ("tasks1000", 1000, RedisRequest::Get, 600_000),
        ("pipeline100", 4, RedisRequest::Pipeline, 600_000),
    ] {
        for (suffix, workers) in [("ct", RuntimeKind::CurrentThread), ("mt", RuntimeKind::Two)] {
            let case = format!("{name}_{suffix}");
            let cpu_case = format!("{case}_cpu");
            if board.is_selected(&case) || board.is_selected(&cpu_case) {
                let requests_per_task = board.scaled(ops / tasks / request.ops());
                race(board, url, &case, &cpu_case, RedisLoad { workers, tasks, request, requests_per_task })?;
            }
        }
    }
    Ok(())
}

fn race(board: &mut Scoreboard, url: &str, case: &str, cpu_case: &str, load: RedisLoad) -> Result<()> {
    let mut entrants = [
        timed::<ForebayRedis>(url, load),
        timed::<Rustis>(url, load),
        timed::<MultiplexedRedisRs>(url, load),
        timed::<Fred>(url, load),
    ];
    let samples = interleave(board.rounds(), &mut entrants)?;
    let spreads = |figure: fn(&WorkCost) -> f64| -> Vec<_> {
        samples.iter().map(|(name, efforts)| (*name, Spread::of(efforts.iter().map(figure)))).collect()
    };
    let (rates, cpus) = (spreads(WorkCost::ops_per_s), spreads(WorkCost::cpu_us_per_op));
    board.table(case, "ops/s", &rates);
    board.table(cpu_case, "us/op", &cpus);

    let ((ours, peers), cpu) = (rates.split_first().expect("we are first"), cpus[0].1.median);
    let best = peers.iter().max_by(|a, b| a.1.median.total_cmp(&b.1.median)).expect("there are peers");
    let best_cpu = cpus.iter().find(|(name, _)| *name == best.0).expect("the same contestants").1.median;
    let (ours, peer, theirs) = (ours.1.median, best.0, best.1.median);
    board.contest(case, Contest { ours, peer, theirs, unit: "ops/s", better: Better::Higher, goal: 1.3 });
    let goal = 1.0 / 0.6;
    board.contest(
        cpu_case,
        Contest { ours: cpu, peer, theirs: best_cpu, unit: "us/op", better: Better::Lower, goal },
    );
    Ok(())
}

fn timed<C: RedisContestant>(url: &str, load: RedisLoad) -> Entrant<'_, WorkCost> {
    let turn = move || {
        let (runtime, client) = load.prepare::<C>(url)?;
        WorkCost::of(load.ops(), || runtime.block_on(load.run(client)))
    };
    Entrant { name: C::NAME, turn: Box::new(turn) }
}

/// Counts allocations per GET, of the whole process, with 64 tasks on a current-thread runtime.
pub(crate) fn allocs(board: &mut Scoreboard, url: &str) -> Result<()> {
    const LIMIT: f64 = 2.0;
    let requests_per_task = board.scaled(1_000);
    let load = RedisLoad {
        workers: RuntimeKind::CurrentThread,
        tasks: 64,
        request: RedisRequest::Get,
        requests_per_task,
    };
    let mut entrants = [
        counted::<ForebayRedis>(url, load),
        counted::<Rustis>(url, load),
        counted::<MultiplexedRedisRs>(url, load),
        counted::<Fred>(url, load),
    ];
    let samples = interleave(board.rounds().min(3), &mut entrants)?;
    let spreads: Vec<_> = samples.into_iter().map(|(name, counts)| (name, Spread::of(counts))).collect();
    board.table("allocs", "per GET", &spreads);
    let (ours, unit) = (spreads[0].1.median, "allocations/GET");
    board.contest(
        "allocs",
        Contest { ours, peer: "limit", theirs: LIMIT, unit, better: Better::Lower, goal: 1.0 },
    );
    Ok(())
}

/// Returns an entrant that measures the allocations per request. It runs the load and three times
/// the load, and counts only the difference, so that starting the tasks doesn't count.
fn counted<C: RedisContestant>(url: &str, load: RedisLoad) -> Entrant<'_, f64> {
    let triple = RedisLoad { requests_per_task: 3 * load.requests_per_task, ..load };
    let turn = move || {
        let (runtime, client) = load.prepare::<C>(url)?;
        let count = |load: RedisLoad| {
            let (done, allocations) = allocations::during(|| runtime.block_on(load.run(client.clone())));
            done.map(|()| allocations as f64)
        };
        Ok((count(triple)? - count(load)?) / (triple.ops() - load.ops()) as f64)
    };
    Entrant { name: C::NAME, turn: Box::new(turn) }
}
