//! Memory of the complete `forebay serve` for an idle stream of a shape.

use anyhow::Result;
use forebay_sandbox::Postgres;

use super::memory::{LIMIT, measure};
use super::{RACE, STREAMS};
use crate::harness::{Better, Contest, Scoreboard, Spread};
use crate::serving::ForebayProcess;

pub(crate) fn run(board: &mut Scoreboard) -> Result<()> {
    let streams = board.scaled(STREAMS as u64) as usize;
    let mut costs = Vec::new();
    for _ in 0..board.rounds().min(3) {
        let postgres = Postgres::start()?;
        postgres.execute("postgres", "CREATE TABLE idle (id bigint PRIMARY KEY, note text)")?;
        let forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
        let target = forebay.live("table=idle", "&live_sse=true")?;
        let target = target.trim_start_matches('/');
        costs.push(measure(&[forebay.pid()], forebay.address(), target, streams)?.open);
    }
    let spread = Spread::of(costs);
    board.table("serve", "B/stream", &[("forebay serve", spread)]);
    let (ours, peer, theirs, unit) = (spread.median, "limit", LIMIT, "B/stream");
    board.contest("serve", Contest { ours, peer, theirs, unit, better: Better::Lower, goal: 1.0 });
    Ok(())
}
