//! Races: benchmarks of our crates side by side with their peers, on this machine.
//!
//! ```text
//! cargo run --release -p races -- --list             races and their cases
//! cargo run --release -p races -- redis tasks64      cases whose name contains `tasks64`
//! cargo run --release -p races -- redis --json FILE  all cases, with the rows in a file as well
//! ```
//!
//! A case prints its rows on standard output. A row either compares two figures or states the
//! outcome of one contestant. A `ratio` above 1 means that ours is better: it is `ours / theirs`
//! where higher is better, and `theirs / ours` where lower is better. `goal` is the ratio to reach.
//! `peer=limit` compares with a fixed limit. The figures of all contestants go to standard error.
//!
//! ```text
//! race=redis.tasks64_ct ours=… peer=rustis theirs=… ratio=… goal=… unit=ops/s
//! race=resilience.killed client=fred result=… (…)
//! ```
//!
//! Invariant: all contestants of a race do the same work on this machine, in interleaved rounds.
//! Enforced by: `harness::interleave`. A race only defines one turn of a contestant. Test:
//! `the_order_rotates_and_every_entrant_has_one_turn_per_round`. `resilience`, `takeover` and
//! `shapes.crash` run once, without rounds.
//! Out of scope: pass or fail. The reader compares a ratio with its goal.
//!
//! | race | measures | peers |
//! |---|---|---|
//! | `admission` | decisions: local, and per user in Redis | PING, plain counters, a lease script |
//! | `admission.crowd` | last hundred of 10,000 streams, of 5,000 through the gate | the first |
//! | `admission` | goodput under an adaptive limit | the best of some fixed limits |
//! | `fanout` | one write to 1,000 clients | a socket loop, durable-streams, Node |
//! | `redis` | GETs on one connection | rustis, redis-rs, fred, a raw socket |
//! | `replication` | draining a slot of a million rows | pg_recvlogical, pgwire-replication |
//! | `reservoir` | connection pools: checkout, contention, expiry | deadpool, bb8, sqlx |
//! | `resilience` | Redis clients under faults | rustis, redis-rs, fred |
//! | `shapes` | creation of 10,000 shapes, a matching write, crashes | SELECTs, ten shapes |
//! | `snapshot` | reading a shape of a million rows | COPY |
//! | `streams` | 10,000 SSE streams: memory, broadcast | nginx with nchan, axum |
//! | `takeover` | time without rows after a restart or a kill of an instance | a limit |
//! | `throughput` | rows per second to a live reader | pg_recvlogical |
//!
//! # Add a race
//!
//! 1. Write a module with a `pub(crate) const RACE: Race`: name, description, cases, and the
//!    function that runs them.
//! 2. Add the constant to [`RACES`], and a line to both tables: above and in `README.md`.
//! 3. For each case, create an [`Entrant`](harness::Entrant) per contestant, whose `turn` measures
//!    once. Run the turns with `harness::interleave`. Print the figures with `Scoreboard::table`
//!    and the comparison with `Scoreboard::contest`.
//! 4. If a contestant needs its own process, use `harness::run_in_child` for one report, or
//!    `helper_process` to exchange lines. In both cases the new process calls the race's `child`.
//!
//! # Where to look
//!
//! | to find | look in |
//! |---|---|
//! | rounds, medians, the format of the rows | `harness.rs` |
//! | processes that a race starts from this program | `helper_process.rs` |
//! | CPU time, memory, CPU pinning | `machine.rs`, `process.rs` |
//! | counted allocations | `allocations.rs` |
//! | `forebay serve` as a process, and its HTTP client | `serving/` |
//! | Redis clients and their configuration | `redis/` |
//! | the Node peer | `peers/` |

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the rows are this program's output")]

mod admission;
mod allocations;
mod fanout;
mod harness;
mod helper_process;
mod machine;
mod process;
mod redis;
mod replication;
mod reservoir;
mod resilience;
mod serving;
mod shapes;
mod snapshot;
mod streams;
mod takeover;
mod throughput;

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use harness::{Race, Scoreboard};

const RACES: &[Race] = &[
    admission::RACE,
    fanout::RACE,
    redis::RACE,
    replication::RACE,
    reservoir::RACE,
    resilience::RACE,
    shapes::RACE,
    snapshot::RACE,
    streams::RACE,
    takeover::RACE,
    throughput::RACE,
];

/// Runs benchmarks of our crates side by side with their peers, on this machine.
///
/// Each row on stdout has our figure, that of the peer or the limit, and the ratio: above 1, ours
/// is better. Some cases print the outcome of each contestant. The figures of all contestants go
/// to stderr.
#[derive(Parser)]
#[command(
    after_help = "Run it on an idle machine, with --release; `races --list` names the races and their cases."
)]
struct Args {
    /// The race to run
    #[arg(required_unless_present = "list")]
    race: Option<String>,
    /// Run only the cases whose name contains this text
    case: Option<String>,
    /// Write the rows to this file as well, as a JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A short smoke run; its figures mean little
    #[arg(long)]
    quick: bool,
    /// List the races and their cases
    #[arg(long)]
    list: bool,
    /// One experiment of a race, in a separate process (see `harness::run_in_child`)
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let Some(name) = args.race else {
        for race in RACES {
            println!("{}: {}", race.name, race.about);
            race.cases.iter().for_each(|case| println!("  {}.{case}", race.name));
        }
        return Ok(());
    };
    let names = || RACES.iter().map(|race| race.name).collect::<Vec<_>>().join(", ");
    let race = RACES
        .iter()
        .find(|race| race.name == name)
        .with_context(|| format!("unknown race {name}; races: {}", names()))?;

    if let Some(experiment) = args.child {
        let report = (race.child)(&experiment)?;
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let mut board = Scoreboard::new(race.name, args.case, args.quick);
    anyhow::ensure!(
        race.cases.iter().any(|case| board.is_selected(case)),
        "no case of {name} has that text in its name; see --list"
    );
    (race.run)(&mut board)?;
    if let Some(path) = args.json {
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        serde_json::to_writer_pretty(file, board.rows())?;
    }
    Ok(())
}
