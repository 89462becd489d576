//! CPU time of a checkout and a return.

use anyhow::Result;
use tokio::runtime::Builder;

use super::pools::{Bb8, ContestantPool, Deadpool, ForebayPool, Sqlx};
use super::{PoolSettings, contest_best_peer};
use crate::harness::{Better, Entrant, Scoreboard, WorkCost, interleave};

/// Measures checkouts without a query and without a reset.
pub(crate) fn plain(board: &mut Scoreboard, url: &str) -> Result<()> {
    let (settings, times) = (&PoolSettings::new(url.into()), board.scaled(200_000));
    let mut entrants = [
        Entrant {
            name: "forebay",
            turn: Box::new(|| turn::<ForebayPool>(settings, times, CheckoutWork::None)),
        },
        Entrant {
            name: "deadpool",
            turn: Box::new(|| turn::<Deadpool>(settings, times, CheckoutWork::None)),
        },
        Entrant { name: "bb8", turn: Box::new(|| turn::<Bb8>(settings, times, CheckoutWork::None)) },
        Entrant { name: "sqlx", turn: Box::new(|| turn::<Sqlx>(settings, times, CheckoutWork::None)) },
    ];
    let figures = interleave(board.rounds(), &mut entrants)?;
    contest_best_peer(board, "checkout", "us of CPU", Better::Lower, 2.0, &figures);
    Ok(())
}

/// Measures checkouts with one small query, and a reset of the session before the next caller.
/// deadpool's `Clean` and our standard reset run nearly the same statements.
pub(crate) fn reset(board: &mut Scoreboard, url: &str) -> Result<()> {
    let (settings, times) =
        (&PoolSettings { reset: true, ..PoolSettings::new(url.into()) }, board.scaled(10_000));
    let mut entrants = [
        Entrant {
            name: "forebay",
            turn: Box::new(|| turn::<ForebayPool>(settings, times, CheckoutWork::Query)),
        },
        Entrant {
            name: "deadpool-clean",
            turn: Box::new(|| turn::<Deadpool>(settings, times, CheckoutWork::Query)),
        },
    ];
    let figures = interleave(board.rounds(), &mut entrants)?;
    contest_best_peer(board, "checkout_reset", "us of CPU", Better::Lower, 1.0, &figures);
    Ok(())
}

/// What a caller does with its connection.
#[derive(Clone, Copy, PartialEq)]
enum CheckoutWork {
    None,
    Query,
}

fn turn<P: ContestantPool>(settings: &PoolSettings, times: u64, work: CheckoutWork) -> Result<f64> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let pool = runtime.block_on(P::open(settings))?;
    let effort = WorkCost::of(times, || {
        runtime.block_on(async {
            let calls = async move {
                for _ in 0..times {
                    let mut connection = pool.take().await?;
                    if work == CheckoutWork::Query {
                        P::query(&mut connection).await?;
                    }
                    drop(connection);
                }
                anyhow::Ok(())
            };
            tokio::spawn(calls).await?
        })
    })?;
    Ok(effort.cpu_us_per_op())
}
