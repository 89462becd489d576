//! Admission decisions: the time of a local one, the latency of an exact one in Redis, and the CPU
//! time that Redis spends on it. Also a crowd of streams: whether its last streams wait longer than
//! its first ones; and the goodput under an adaptive limit, see `adaptive.rs`.
//!
//! A decision takes a unit. All contestants that use Redis share one server and use our client, so
//! only the commands differ.
//!
//! The peer `seed` counts with plain counters, and sends one command after the other. `seed-drawn`
//! is the same without reading the utilization.

mod adaptive;
mod counter_pool;
mod crowd;
mod decision;
mod lease_script;
mod local;
mod slowing_upstream;

use anyhow::Result;
use forebay_redis::RedisClient;

use crate::harness::{Race, Scoreboard};

pub(crate) const RACE: Race = Race {
    name: "admission",
    about: "admission decisions: local, and exact per user in Redis (PING, plain counters, a lease script); \
            10,000 streams (the first hundred); goodput under an adaptive limit (fixed limits)",
    cases: &[
        "local",
        "keyed",
        "seed",
        "seed_drawn",
        "redis_cpu",
        "crowd_layer",
        "crowd_gate",
        "adaptive",
        "adaptive_half",
        "adaptive_double",
        "adaptive_long",
    ],
    run,
    child: crowd::child,
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
    if board.is_selected("crowd_layer") {
        crowd::run_layer(board)?;
    }
    if board.is_selected("crowd_gate") {
        crowd::run_gate(board)?;
    }
    if adaptive::PHASES.iter().any(|(case, _)| board.is_selected(case)) {
        adaptive::run(board)?;
    }
    if board.is_selected(adaptive::LONG_CASE.0) {
        adaptive::run_long(board)?;
    }
    Ok(())
}

/// Marks the rebuild of a namespace as finished, so that it isn't measured.
async fn finish_rebuild(client: &RedisClient, namespace: &str) -> Result<()> {
    client.exec::<u64>(("HSET", format!("{{{namespace}}}:m"), ["!", "1:0", "?", "0"])).await?;
    Ok(())
}
