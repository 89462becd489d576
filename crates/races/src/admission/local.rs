//! Local decisions: each takes a unit of this member's slice, without a call to the store.

use std::time::Instant;

use anyhow::{Context, Result};
use forebay_quota::{BudgetConfig, Quota};
use tokio::runtime::Builder;

use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};

/// Maximum time of a local decision, in nanoseconds.
const LIMIT_NS: f64 = 500.0;

pub(crate) fn run(board: &mut Scoreboard) -> Result<()> {
    let decisions = board.scaled(2_000_000);
    let mut entrants = [Entrant { name: "forebay", turn: Box::new(move || ours(decisions)) }];
    let samples = interleave(board.rounds(), &mut entrants)?;
    let spreads: Vec<_> = samples.into_iter().map(|(name, ns)| (name, Spread::of(ns))).collect();
    board.table("local", "ns", &spreads);
    let ours = spreads[0].1.median;
    let contest =
        Contest { ours, peer: "limit", theirs: LIMIT_NS, unit: "ns", better: Better::Lower, goal: 1.0 };
    board.contest("local", contest);
    Ok(())
}

/// Takes and returns units, while a thousand others stay taken. Returns nanoseconds per decision.
fn ours(decisions: u64) -> Result<f64> {
    Builder::new_current_thread().enable_all().build()?.block_on(async move {
        let quota = Quota::local();
        let budget = quota.budget("streams", BudgetConfig::new(10_000));
        let mut held = Vec::new();
        for _ in 0..1_000 {
            held.push(budget.take().await.context("taking a unit")?);
        }
        let started = Instant::now();
        for _ in 0..decisions {
            drop(budget.take().await.context("taking a unit")?);
        }
        Ok(started.elapsed().as_secs_f64() * 1e9 / decisions as f64)
    })
}
