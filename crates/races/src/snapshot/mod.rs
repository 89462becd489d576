//! Reading a million rows of 200 bytes over loopback: from a new shape (`cold`), from an existing
//! shape (`warm`), and with COPY.
//!
//! The clock runs from the first request to the end of the response that is marked up-to-date.
//! COPY's client is psql, which writes to /dev/null.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use forebay_sandbox::Postgres;

use crate::harness::{Better, Contest, Entrant, ExperimentReport, Race, Scoreboard, Spread, interleave};
use crate::serving::{self, ForebayProcess, HttpConnection};

pub(crate) const RACE: Race = Race {
    name: "snapshot",
    about: "a million rows of 200 bytes from `forebay serve`, new and existing shape (COPY TO STDOUT)",
    cases: &["cold", "warm"],
    run,
    child,
};

const ROWS: u64 = 1_000_000;
/// Goals: at most 1.8 times COPY's time for a new shape, and 0.9 times for an existing one.
const GOALS: [(&str, f64); 2] = [("cold", 1.0 / 1.8), ("warm", 1.0 / 0.9)];
const SHAPE: &str = "table=rows";

fn run(board: &mut Scoreboard) -> Result<()> {
    let postgres =
        Postgres::builder().config("shared_buffers", "512MB").config("max_wal_size", "8GB").start()?;
    let rows = board.scaled(ROWS);
    // In COPY's text format, a row has 200 bytes.
    postgres.execute(
        "postgres",
        &format!(
            "CREATE TABLE rows (id bigint PRIMARY KEY, name text, price numeric, note text);
             INSERT INTO rows SELECT i, 'item ' || i, i * 1.25,
               substr(md5(i::text) || md5((i + 1)::text) || md5((i + 2)::text) || md5((i + 3)::text) || md5((i + 4)::text)
                 || md5((i + 5)::text), 1, 196 - length('item ' || i) - length(i::text) - length((i * 1.25)::text))
             FROM generate_series(1, {rows}) i"
        ),
    )?;
    postgres.execute("postgres", "VACUUM ANALYZE rows")?;
    let forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
    fetch(&forebay, rows)?;
    let cold = || {
        let mut http = HttpConnection::open(forebay.address())?;
        http.send("DELETE", &format!("/v1/shape?{SHAPE}"))?;
        let status = http.read_head()?.status;
        ensure!(status == 202, "deleting the shape returned {status}");
        fetch(&forebay, rows)
    };
    let mut entrants = [
        Entrant { name: "cold", turn: Box::new(cold) as Box<dyn FnMut() -> Result<f64>> },
        Entrant { name: "warm", turn: Box::new(|| fetch(&forebay, rows)) },
        Entrant { name: "COPY", turn: Box::new(|| copy(&postgres)) },
    ];
    let samples = interleave(board.rounds().min(5), &mut entrants)?;
    drop(entrants);
    let spreads: Vec<_> = samples.into_iter().map(|(name, turns)| (name, Spread::of(turns))).collect();
    board.table("all", "s", &spreads);
    let theirs = spreads[2].1.median;
    for ((case, goal), (_, spread)) in GOALS.into_iter().zip(&spreads) {
        let (ours, peer, unit, better) = (spread.median, "COPY", "s", Better::Lower);
        board.contest(case, Contest { ours, peer, theirs, unit, better, goal });
    }
    Ok(())
}

/// Reads the shape, one response after another, until it is up to date. Returns the time in
/// seconds.
fn fetch(forebay: &ForebayProcess, rows: u64) -> Result<f64> {
    let mut http = HttpConnection::open(forebay.address())?;
    let mut target = format!("/v1/shape?{SHAPE}&offset=-1");
    let (mut lines, started) = (0, Instant::now());
    loop {
        let head = http.get(&target)?;
        ensure!(head.status == 200, "{target} returned {}", head.status);
        http.read_body(&head, |bytes| lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64)?;
        if head.get("electric-up-to-date").is_some() {
            break;
        }
        let (handle, offset) = (head.require("electric-handle")?, head.require("electric-offset")?);
        target = format!("/v1/shape?{SHAPE}&handle={handle}&offset={offset}");
    }
    let took = started.elapsed().as_secs_f64();
    ensure!(lines + lines / 10 >= rows, "{lines} lines received for {rows} rows");
    Ok(took)
}

/// Reads the table with COPY, and returns the time in seconds.
fn copy(postgres: &Postgres) -> Result<f64> {
    let started = Instant::now();
    let status = Command::new("psql")
        .args(["-X", "-q", "-c", "COPY rows TO STDOUT", &postgres.url("postgres")])
        .stdout(Stdio::null())
        .status()
        .context("psql: script/bootstrap installs it with Postgres")?;
    ensure!(status.success(), "psql: {status}");
    Ok(started.elapsed().as_secs_f64())
}

fn child(experiment: &str) -> Result<ExperimentReport> {
    serving::child(&experiment.split(' ').collect::<Vec<_>>())
}
