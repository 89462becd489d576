//! Decisions: what one costs here, what an exact one costs over Redis, and what it costs Redis.
//!
//! A decision is to take a unit and to give it back. All contestants use the same Redis and, where they need a client, ours,
//! so that the difference is what they send.

mod counter_pool;
mod decision;
mod lease_script;
mod local;

use anyhow::Result;

use crate::harness::{Race, Scoreboard, no_child};

pub(crate) const RACE: Race = Race {
    name: "admission",
    about: "decisions: local ones, exact ones per user over Redis, the seed's commands, the usual lease script",
    cases: &["local", "keyed", "seed", "seed_drawn", "redis_cpu"],
    run,
    child: no_child,
};

fn run(board: &mut Scoreboard) -> Result<()> {
    if board.wants("local") {
        local::run(board)?;
    }
    if ["keyed", "seed", "seed_drawn"].iter().any(|case| board.wants(case)) {
        decision::latency(board)?;
    }
    if board.wants("redis_cpu") {
        decision::redis_cpu(board)?;
    }
    Ok(())
}
