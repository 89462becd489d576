//! A crowd of streams that all stay open: the time to the first byte of its last hundred, compared
//! with its first hundred.
//!
//! `crowd_layer` opens 10,000 streams of an axum service with the admission layer. `crowd_gate`
//! opens 5,000 streams of the same service without the layer, through `forebay gate`. Both count in
//! Redis: the total, and three streams for each user.
//!
//! Invariant: every stream of the crowd gets a permit, and the next request gets a 503. Enforced
//! by: the clients fail on any other response.

mod clients;
mod servers;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use tokio::runtime::Builder;

use super::{RACE, finish_rebuild};
use crate::harness::{
    Better, Contest, Entrant, ExperimentReport, Scoreboard, Spread, interleave, run_in_child,
};
use crate::helper_process::HelperProcess;
use crate::process;

/// Number of streams of the service with the layer.
const LAYER_STREAMS: u64 = 10_000;
/// Number of streams through the gate, which has two descriptors for each.
const GATE_STREAMS: u64 = 5_000;
/// Maximum time to open all streams.
const CROWD_TIMEOUT: Duration = Duration::from_secs(60);
/// Ratio to reach. Response times count as consistent if the last hundred streams wait at most 1.5
/// times as long as the first hundred.
const GOAL: f64 = 0.67;

/// Which server decides on admission.
#[derive(Clone, Copy)]
enum AdmissionServer {
    Layer,
    Gate,
}

/// Median time to the first byte, in milliseconds.
struct FirstByte {
    first_hundred: f64,
    last_hundred: f64,
}

pub(crate) fn run_layer(board: &mut Scoreboard) -> Result<()> {
    run(board, "crowd_layer", AdmissionServer::Layer, LAYER_STREAMS)
}

pub(crate) fn run_gate(board: &mut Scoreboard) -> Result<()> {
    run(board, "crowd_gate", AdmissionServer::Gate, GATE_STREAMS)
}

fn run(board: &mut Scoreboard, case: &str, server: AdmissionServer, streams: u64) -> Result<()> {
    let redis = &Redis::start()?;
    let streams = board.scaled(streams);
    let mut turns = 0;
    let turn = Box::new(move || {
        turns += 1;
        // Members of an earlier turn are still counted in their own namespace.
        measure(server, redis, &format!("{case}-{turns}"), streams)
    });
    let samples = interleave(board.rounds().min(5), &mut [Entrant { name: "forebay", turn }])?;
    let spread = |figure: fn(&FirstByte) -> f64| Spread::of(samples[0].1.iter().map(figure));
    let (first, last) = (spread(|times| times.first_hundred), spread(|times| times.last_hundred));
    board.table(case, "ms to the first byte", &[("last_hundred", last), ("first_hundred", first)]);
    let contest = Contest {
        ours: last.median,
        peer: "first_hundred",
        theirs: first.median,
        unit: "ms",
        better: Better::Lower,
        goal: GOAL,
    };
    board.contest(case, contest);
    Ok(())
}

/// Starts the server with room for `streams` and those of the warm-up, opens as many, and returns
/// the times.
fn measure(server: AdmissionServer, redis: &Redis, namespace: &str, streams: u64) -> Result<FirstByte> {
    let (url, total) = (redis.url(), streams + clients::WARM_UP_STREAMS);
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { finish_rebuild(&RedisClient::connect(url.as_str()).await?, namespace).await })?;
    let start = |experiment: &str| -> Result<(HelperProcess, SocketAddr)> {
        let mut process = HelperProcess::start(RACE.name, experiment)?;
        let address = process.expect_line("listening")?.parse()?;
        Ok((process, address))
    };
    let (upstream, front) = match server {
        AdmissionServer::Layer => (None, start(&format!("layer {url} {namespace} {total}"))?),
        AdmissionServer::Gate => {
            let (upstream, address) = start("upstream")?;
            (Some(upstream), start(&format!("gate {address} {url} {namespace} {total}"))?)
        }
    };
    let (front, address) = front;
    let report = run_in_child(RACE.name, &format!("clients {address} {streams}"), CROWD_TIMEOUT)?
        .with_context(|| format!("{streams} streams weren't open after {CROWD_TIMEOUT:?}"))?;
    drop((front, upstream));
    let number = |name| report.number(name).with_context(|| format!("the clients reported no {name}"));
    Ok(FirstByte { first_hundred: number("first_ms")?, last_hundred: number("last_ms")? })
}

/// Runs a process of this race: `layer REDIS NAMESPACE TOTAL`, `upstream`,
/// `gate UPSTREAM REDIS NAMESPACE TOTAL`, or `clients ADDRESS COUNT`.
pub(crate) fn child(experiment: &str) -> Result<ExperimentReport> {
    process::raise_descriptor_limit()?;
    match experiment.split(' ').collect::<Vec<_>>()[..] {
        ["layer", redis, namespace, total] => servers::with_layer(redis, namespace, total.parse()?),
        ["upstream"] => servers::upstream(),
        ["gate", upstream, redis, namespace, total] => servers::gate(upstream, redis, namespace, total),
        ["clients", address, count] => clients::run(address.parse()?, count.parse()?),
        _ => bail!("this race has no process {experiment}"),
    }
}
