//! Redis clients on one shared connection each: throughput, CPU, allocations, latency.
//!
//! The values have 100 bytes, and are decoded to `String`. Each client has its default deadlines.
//! All contestants share one server. Each turn has a new runtime and connection.

pub(crate) mod contestant;
mod fred;
mod ours;
mod redis_rs;
mod rustis;
mod sequential;
mod throughput;

pub(crate) use fred::Fred;
pub(crate) use ours::ForebayRedis;
pub(crate) use redis_rs::{ManagedRedisRs, MultiplexedRedisRs};
pub(crate) use rustis::Rustis;

use anyhow::Result;
use forebay_sandbox::Redis;

use crate::harness::{Race, Scoreboard, no_child};

pub(crate) const RACE: Race = Race {
    name: "redis",
    about: "Redis clients (rustis, redis-rs, fred) on one shared connection each, GETs of 100 bytes to String",
    cases: &[
        "tasks64_ct",
        "tasks64_ct_cpu",
        "tasks64_mt",
        "tasks64_mt_cpu",
        "tasks1000_ct",
        "tasks1000_ct_cpu",
        "tasks1000_mt",
        "tasks1000_mt_cpu",
        "pipeline100_ct",
        "pipeline100_ct_cpu",
        "pipeline100_mt",
        "pipeline100_mt_cpu",
        "allocs",
        "sequential",
    ],
    run,
    child: no_child,
};

fn run(board: &mut Scoreboard) -> Result<()> {
    let server = Redis::start()?;
    contestant::fill(server.addr())?;
    throughput::run(board, &server.url())?;
    if board.is_selected("allocs") {
        throughput::allocs(board, &server.url())?;
    }
    if board.is_selected("sequential") {
        sequential::run(board, &server)?;
    }
    Ok(())
}
