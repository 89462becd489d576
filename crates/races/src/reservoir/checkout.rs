//! What it costs to lend a connection and take it back.

use anyhow::Result;
use tokio::runtime::Builder;

use super::pools::{Bb8, ContestantPool, Deadpool, ForebayPool, Sqlx};
use super::{PoolSettings, contest_best_peer};
use crate::harness::{Better, Entrant, Scoreboard, WorkCost, interleave};

/// Nothing is done with the connection, and nothing to it between two callers.
pub(crate) fn plain(board: &mut Scoreboard, url: &str) -> Result<()> {
    let (settings, times) = (&PoolSettings::new(url.into()), board.scaled(200_000));
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(|| turn::<ForebayPool>(settings, times, false)) },
        Entrant { name: "deadpool", turn: Box::new(|| turn::<Deadpool>(settings, times, false)) },
        Entrant { name: "bb8", turn: Box::new(|| turn::<Bb8>(settings, times, false)) },
        Entrant { name: "sqlx", turn: Box::new(|| turn::<Sqlx>(settings, times, false)) },
    ];
    let figures = interleave(board.rounds(), &mut entrants)?;
    contest_best_peer(board, "checkout", "us of CPU", Better::Lower, 2.0, &figures);
    Ok(())
}

/// One small query each time, and the session is cleaned up before the next caller: deadpool's Clean and our standard reset send
/// nearly the same statements.
pub(crate) fn reset(board: &mut Scoreboard, url: &str) -> Result<()> {
    let (settings, times) =
        (&PoolSettings { reset: true, ..PoolSettings::new(url.into()) }, board.scaled(10_000));
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(|| turn::<ForebayPool>(settings, times, true)) },
        Entrant { name: "deadpool-clean", turn: Box::new(|| turn::<Deadpool>(settings, times, true)) },
    ];
    let figures = interleave(board.rounds(), &mut entrants)?;
    contest_best_peer(board, "checkout_reset", "us of CPU", Better::Lower, 1.0, &figures);
    Ok(())
}

fn turn<P: ContestantPool>(settings: &PoolSettings, times: u64, asks: bool) -> Result<f64> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let pool = runtime.block_on(P::open(settings))?;
    let effort = WorkCost::of(times, || {
        runtime.block_on(async {
            let work = async move {
                for _ in 0..times {
                    let mut lent = pool.take().await?;
                    if asks {
                        P::query(&mut lent).await?;
                    }
                    drop(lent);
                }
                anyhow::Ok(())
            };
            tokio::spawn(work).await?
        })
    })?;
    Ok(effort.cpu_us_per_op())
}
