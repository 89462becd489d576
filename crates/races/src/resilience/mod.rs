//! Behaviour of Redis clients under faults. Each experiment has its own server and process, so that
//! a client that hangs can't block the race.
//!
//! The clients have the same configuration as in the race `redis`; see the files in `redis/`.

mod calls;
mod faults;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::harness::{Better, Contest, ExperimentReport, Race, Scoreboard, run_in_child};
use crate::redis::contestant::RedisContestant;
use crate::redis::{ForebayRedis, Fred, ManagedRedisRs, MultiplexedRedisRs, Rustis};

pub(crate) const RACE: Race = Race {
    name: "resilience",
    about: "Redis clients under faults: frozen and killed servers, dropped requests, large values",
    cases: &["frozen", "killed", "rejected", "reconnect", "abandoned", "cancelled", "huge"],
    run,
    child,
};

const CLIENTS: [&str; 5] =
    [ForebayRedis::NAME, Rustis::NAME, MultiplexedRedisRs::NAME, ManagedRedisRs::NAME, Fred::NAME];

/// Time limit of an experiment. The slowest, `frozen`, waits `HANG_TIMEOUT` and then
/// `RECOVERY_TIMEOUT`: 18 s.
const LIMIT: Duration = Duration::from_secs(22);

fn run(board: &mut Scoreboard) -> Result<()> {
    for fault in RACE.cases.iter().filter(|fault| board.is_selected(fault)).collect::<Vec<_>>() {
        let mut figures = Vec::new();
        for client in CLIENTS {
            let report = match run_in_child(RACE.name, &format!("{fault}/{client}"), LIMIT) {
                Ok(Some(report)) => report,
                Ok(None) => ExperimentReport::new("hung"),
                Err(error) => ExperimentReport::new(format!("broken: {error:#}")),
            };
            if let Some((name, unit)) = figure(fault) {
                figures.extend(report.number(name).map(|value| (client, value, unit)));
            }
            board.outcome(fault, client, report);
        }
        contest(board, fault, &figures);
    }
    Ok(())
}

/// Returns the name and the unit of the number that compares the clients. Lower is better.
fn figure(fault: &str) -> Option<(&'static str, &'static str)> {
    match fault {
        "rejected" => Some(("median_us", "us")),
        "reconnect" => Some(("median_ms", "ms")),
        "abandoned" => Some(("grew_mib", "MiB")),
        "huge" => Some(("took_ms", "ms")),
        _ => None,
    }
}

/// Compares our number with that of the best peer, if both have one.
fn contest(board: &mut Scoreboard, fault: &str, figures: &[(&str, f64, &'static str)]) {
    let ours = figures.iter().find(|(client, ..)| *client == ForebayRedis::NAME);
    let peers = figures.iter().filter(|(client, ..)| *client != ForebayRedis::NAME);
    let best = peers.min_by(|a, b| a.1.total_cmp(&b.1));
    if let (Some(&(_, ours, unit)), Some(&(peer, theirs, _))) = (ours, best) {
        // Avoids a division by almost zero.
        let (ours, theirs) = (ours.max(0.001), theirs.max(0.001));
        board.contest(fault, Contest { ours, peer, theirs, unit, better: Better::Lower, goal: 1.0 });
    }
}

fn child(experiment: &str) -> Result<ExperimentReport> {
    let Some((fault, client)) = experiment.split_once('/') else {
        bail!("the experiment {experiment} has no client")
    };
    match client {
        ForebayRedis::NAME => faults::experiment::<ForebayRedis>(fault),
        Rustis::NAME => faults::experiment::<Rustis>(fault),
        MultiplexedRedisRs::NAME => faults::experiment::<MultiplexedRedisRs>(fault),
        ManagedRedisRs::NAME => faults::experiment::<ManagedRedisRs>(fault),
        Fred::NAME => faults::experiment::<Fred>(fault),
        _ => bail!("unknown client {client}"),
    }
}
