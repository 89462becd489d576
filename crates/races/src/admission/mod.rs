//! Admission decisions: the cost of a local one, the latency of an exact one over Redis, and its
//! cost for Redis.
//!
//! A decision takes a unit and returns it. All contestants use the same Redis and, where they need
//! a client, ours. So only the commands differ.
//!
//! The peer `seed` is a connection pool of plain counters, whose commands are sent one after the
//! other.

mod counter_pool;
mod decision;
mod lease_script;
mod local;

use anyhow::Result;

use crate::harness::{Race, Scoreboard, no_child};

pub(crate) const RACE: Race = Race {
    name: "admission",
    about: "admission decisions: local, exact per user over Redis; peers: plain counters, a lease script",
    cases: &["local", "keyed", "seed", "seed_drawn", "redis_cpu"],
    run,
    child: no_child,
};

fn run(board: &mut Scoreboard) -> Result<()> {
    if board.is_selected("local") {
        local::run(board)?;
    }
    if ["keyed", "seed", "seed_drawn"].iter().any(|case| board.is_selected(case)) {
        decision::latency(board)?;
    }
    if board.is_selected("redis_cpu") {
        decision::redis_cpu(board)?;
    }
    Ok(())
}
