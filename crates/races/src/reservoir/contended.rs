//! Contention: many tasks, few connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::runtime::Builder;

use super::pools::{Bb8, ContestantPool, Deadpool, ForebayPool, Sqlx};
use super::{PoolSettings, contest_best_peer};
use crate::harness::{Better, Entrant, Scoreboard, Spread, interleave};

const TASKS: usize = 64;
/// Factor for the number of rounds, whose turns are short. Postgres takes most of the time, the
/// same for all pools. That time varies by a tenth between turns, because the kernel places its
/// processes differently. So the median needs many turns.
const TURNS: usize = 18;

/// Figures of one turn.
struct ContentionSample {
    /// Queries per second of all tasks.
    per_second: f64,
    /// 99th percentile of the waits of the worst task. The percentile over all tasks would hide the
    /// few long waits of a pool that starves some tasks.
    p99_us: f64,
    /// Queries of the task that had the fewest, divided by those of the task that had the most.
    fairness: f64,
}

pub(crate) fn run(board: &mut Scoreboard, url: &str) -> Result<()> {
    let (settings, span) = (&PoolSettings::new(url.into()), Duration::from_millis(board.scaled(200)));
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(|| turn::<ForebayPool>(settings, span)) },
        Entrant { name: "deadpool", turn: Box::new(|| turn::<Deadpool>(settings, span)) },
        Entrant { name: "bb8", turn: Box::new(|| turn::<Bb8>(settings, span)) },
        Entrant { name: "sqlx", turn: Box::new(|| turn::<Sqlx>(settings, span)) },
    ];
    let outcomes = interleave(TURNS * board.rounds(), &mut entrants)?;
    let figures = |of: fn(&ContentionSample) -> f64| -> Vec<_> {
        outcomes.iter().map(|(name, outcomes)| (*name, outcomes.iter().map(of).collect())).collect()
    };
    let (rate, p99, fairness) =
        (figures(|one| one.per_second), figures(|one| one.p99_us), figures(|one| one.fairness));
    contest_best_peer(board, "contended_throughput", "queries/s", Better::Higher, 1.0, &rate);
    contest_best_peer(board, "contended_p99", "us waited, p99 of the worst task", Better::Lower, 1.0, &p99);
    contest_best_peer(board, "contended_fairness", "least/most served", Better::Higher, 1.0, &fairness);
    Ok(())
}

fn turn<P: ContestantPool>(settings: &PoolSettings, span: Duration) -> Result<ContentionSample> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (pool, over) = (P::open(settings).await?, Arc::new(AtomicBool::new(false)));
        let started = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (pool, over) = (pool.clone(), over.clone());
                tokio::spawn(async move {
                    let (mut waits_us, mut served) = (Vec::new(), 0_u64);
                    loop {
                        let requested = Instant::now();
                        let mut connection = pool.take().await?;
                        waits_us.push(requested.elapsed().as_secs_f64() * 1e6);
                        if over.load(Ordering::Relaxed) {
                            return anyhow::Ok((waits_us, served));
                        }
                        P::query(&mut connection).await?;
                        served += 1;
                    }
                })
            })
            .collect();
        tokio::time::sleep(span).await;
        over.store(true, Ordering::Relaxed);
        let took = started.elapsed();
        let (mut served, mut p99_us) = (Vec::new(), 0.0_f64);
        for task in tasks {
            let (waits_us, times) = task.await??;
            served.push(times as f64);
            p99_us = p99_us.max(percentile(waits_us, 0.99));
        }
        let Spread { min: least, max: most, .. } = Spread::of(served.iter().copied());
        let per_second = served.iter().sum::<f64>() / took.as_secs_f64();
        Ok(ContentionSample { per_second, p99_us, fairness: least / most })
    })
}

/// Returns the figure below which the fraction `part` of all figures lies.
pub(crate) fn percentile(mut figures: Vec<f64>, part: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * part) as usize]
}
