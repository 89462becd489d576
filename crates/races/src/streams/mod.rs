//! Ten thousand SSE streams on one server: memory of an idle stream, and CPU time of a broadcast.
//!
//! Each server has its own process, so that its memory and CPU time can be measured. Its ten
//! thousand clients have another one, because a process may have at most 20,000 descriptors. Our
//! server and axum's run on one thread, like nginx with one worker.

mod broadcast;
mod memory;
mod nginx;
mod ours;
mod serve;
mod sse;
mod subscribers;

use anyhow::{Result, bail};

use crate::harness::{ExperimentReport, Race, Scoreboard};
use crate::process;
use crate::serving;

pub(crate) const RACE: Race = Race {
    name: "streams",
    about: "10,000 SSE streams: memory when idle, CPU of a broadcast (nginx with nchan, axum's Sse)",
    cases: &["memory", "serve", "broadcast"],
    run,
    child,
};

const STREAMS: usize = 10_000;

fn run(board: &mut Scoreboard) -> Result<()> {
    if board.is_selected("memory") {
        memory::run(board)?;
    }
    if board.is_selected("serve") {
        serve::run(board)?;
    }
    if board.is_selected("broadcast") {
        broadcast::run(board)?;
    }
    Ok(())
}

/// Runs a process of this race: `serve/NAME`, `subscribe/COUNT/ADDRESS/TARGET`, or `forebay serve`.
fn child(experiment: &str) -> Result<ExperimentReport> {
    process::raise_descriptor_limit()?;
    if experiment.starts_with("forebay ") {
        return serving::child(&experiment.split(' ').collect::<Vec<_>>());
    }
    match experiment.splitn(4, '/').collect::<Vec<_>>()[..] {
        ["serve", ours::NAME] => ours::serve(),
        ["serve", sse::NAME] => sse::serve(),
        ["subscribe", count, address, target] => subscribers::run(count.parse()?, address.parse()?, target),
        _ => bail!("this race has no process {experiment}"),
    }
}
