//! Expiry: all connections of a pool reach their lifetime together, while the server accepts only
//! twenty new ones a second.
//!
//! 400 requests arrive each second. Each holds one of 16 connections for 20 ms. The figure is the
//! time that a request waits for its connection.

use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_sandbox::Postgres;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::contended::percentile;
use super::pools::{Bb8, ContestantPool, Deadpool, ForebayPool, Sqlx};
use super::{CONNECTIONS, PoolSettings, connect_throttle, contest_best_peer};
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};

const REQUESTS_PER_SECOND: u64 = 400;
/// Time for which a request holds its connection.
const HOLD: Duration = Duration::from_millis(20);
const OPENS_PER_SECOND: f64 = 20.0;
const LIFETIME: Duration = Duration::from_secs(4);
/// Time after the expiry in which requests still arrive, and are measured.
const BURST: Duration = Duration::from_secs(1);
/// The measurement starts this long before the expiry.
const BEFORE: Duration = Duration::from_millis(100);

pub(crate) fn run(board: &mut Scoreboard, server: &Postgres) -> Result<()> {
    // For one lifetime, and `BURST` after it.
    let requests = (LIFETIME + BURST).as_secs() * REQUESTS_PER_SECOND;
    let lifetime = Some(LIFETIME);
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(|| turn::<ForebayPool>(server, lifetime, requests)) },
        Entrant { name: "deadpool", turn: Box::new(|| turn::<Deadpool>(server, lifetime, requests)) },
        Entrant { name: "bb8", turn: Box::new(|| turn::<Bb8>(server, lifetime, requests)) },
        Entrant { name: "sqlx", turn: Box::new(|| turn::<Sqlx>(server, lifetime, requests)) },
        Entrant { name: "forebay-steady", turn: Box::new(|| turn::<ForebayPool>(server, None, requests)) },
    ];
    let mut figures = interleave(board.rounds(), &mut entrants)?;
    let (_, steady) = figures.pop().expect("the steady entrant is last");
    contest_best_peer(board, "expiry_p99", "ms waited, p99", Better::Lower, 10.0, &figures);
    let (ours, steady) = (Spread::of(figures.swap_remove(0).1), Spread::of(steady));
    board.table(
        "expiry_steady",
        "ms waited, p99",
        &[("forebay, expiring", ours), ("forebay, steady", steady)],
    );
    let contest = Contest {
        ours: ours.median,
        peer: "forebay-steady",
        theirs: steady.median,
        unit: "ms waited, p99",
        better: Better::Lower,
        goal: 1.0 / 1.5,
    };
    board.contest("expiry_steady", contest);
    Ok(())
}

fn turn<P: ContestantPool>(server: &Postgres, lifetime: Option<Duration>, requests: u64) -> Result<f64> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let connect_throttle = connect_throttle::open(server.addr(), OPENS_PER_SECOND).await?;
        let url = format!("postgres://postgres@{}/postgres", connect_throttle.address);
        let settings = PoolSettings {
            lifetime,
            opens_per_second: OPENS_PER_SECOND,
            connections: CONNECTIONS,
            ..PoolSettings::new(url)
        };
        // All connections are opened at once. So those of the peers expire at once; ours have
        // jitter.
        let pool = P::open(&settings).await?;
        connect_throttle.limit();
        let (started, mut tasks) = (Instant::now(), JoinSet::new());
        for at in 0..requests {
            // Requests arrive at a fixed rate, whether earlier ones are done or not.
            let due = started + Duration::from_secs_f64(at as f64 / REQUESTS_PER_SECOND as f64);
            tokio::time::sleep_until(due.into()).await;
            let pool = pool.clone();
            tasks.spawn(async move {
                let arrived = Instant::now();
                let connection = pool.take().await?;
                let waited_ms = arrived.elapsed().as_secs_f64() * 1e3;
                tokio::time::sleep(HOLD).await;
                drop(connection);
                anyhow::Ok((arrived, waited_ms))
            });
        }
        let mut waits_ms = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (arrived, waited_ms) = done??;
            if arrived - started > LIFETIME - BEFORE {
                waits_ms.push(waited_ms);
            }
        }
        Ok(percentile(waits_ms, 0.99))
    })
}
