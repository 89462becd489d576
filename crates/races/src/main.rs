//! Races: our crates against their peers, side by side, on this machine.
//!
//! Invariant: every contestant of a race does the same work, in the same process, in interleaved rounds.
//! Kept by: `harness::interleave`; a race only says what one turn of a contestant is.
//! Not here: pass or fail. A row states a ratio and its goal; the reader judges.
//!
//! To add a race: one module with a `pub const RACE: Race`, and its name in `RACES`.

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

/// Race our crates against their peers, side by side, on this machine.
///
/// Each contest prints one line on stdout: ours, the peer's or the limit, and their ratio, which says how many
/// times better we are (above 1: we win), whatever the unit. Every contestant's figures go to stderr.
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
    /// One experiment of a race, in a process of its own (see `harness::run_in_child`)
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
        .with_context(|| format!("no race is called {name}; there are: {}", names()))?;

    if let Some(experiment) = args.child {
        let report = (race.child)(&experiment)?;
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let mut board = Scoreboard::new(race.name, args.case, args.quick);
    anyhow::ensure!(
        race.cases.iter().any(|case| board.wants(case)),
        "no case of {name} contains that text; see --list"
    );
    (race.run)(&mut board)?;
    if let Some(path) = args.json {
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        serde_json::to_writer_pretty(file, board.rows())?;
    }
    Ok(())
}
