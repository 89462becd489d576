//! Takeover between two instances with one database and one Redis, under a thousand streams and a
//! writer: the longest time without rows.
//!
//! *rolling*: one instance after the other is ended with SIGTERM and started again. *killed*: the
//! instance that follows the database is killed with SIGKILL. A stream that ends, or that has no
//! data for a second, is requested from the other instance, at its last offset. A row is written
//! every 25 ms. The figure is the longest time between two rows of a client: the 99th percentile
//! over all clients. The median goes to standard error.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_sandbox::{Postgres, Redis};

use crate::harness::{Better, Contest, ExperimentReport, Race, Scoreboard};
use crate::process;
use crate::serving::{self, EventReader, ForebayProcess, HttpConnection, WriteProgress};

pub(crate) const RACE: Race = Race {
    name: "takeover",
    about: "time without rows when one `forebay serve` takes over from another, under 1,000 streams",
    cases: &["rolling", "killed"],
    run,
    child,
};

const STREAMS: u64 = 1000;
const WRITE_INTERVAL: Duration = Duration::from_millis(25);
/// Pause before, between and after the restarts.
const SETTLE: Duration = Duration::from_secs(3);
/// Maximum time without rows, in milliseconds.
const LIMIT_MS: f64 = 2000.0;
/// Maximum time until a stream is admitted.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(60);
const SHAPE: &str = "table=rolled";

fn run(board: &mut Scoreboard) -> Result<()> {
    process::raise_descriptor_limit()?;
    let streams = board.scaled(STREAMS);
    if board.is_selected("rolling") {
        race_case(board, "rolling", streams, |instances| {
            for instance in instances {
                instance.restart()?;
                thread::sleep(SETTLE);
            }
            Ok(())
        })?;
    }
    if board.is_selected("killed") {
        race_case(board, "killed", streams, |instances| {
            instances[0].crash()?;
            thread::sleep(SETTLE);
            Ok(())
        })?;
    }
    Ok(())
}

fn race_case(
    board: &mut Scoreboard,
    case: &str,
    streams: u64,
    disturb: impl FnOnce(&mut [ForebayProcess; 2]) -> Result<()>,
) -> Result<()> {
    let (postgres, redis) = (Postgres::start()?, Redis::start()?);
    postgres.execute("postgres", "CREATE TABLE rolled (id bigint PRIMARY KEY, note text)")?;
    let first = ForebayProcess::with_redis(RACE.name, &postgres, &redis)?;
    let second = first.another()?;
    let mut instances = [first, second]; // the first follows the database, and is ended first
    let (handle, offset) = instances[0].now(SHAPE)?;
    instances.iter().try_for_each(wait_until_admitted)?;
    let (servers, written) = (instances.each_ref().map(ForebayProcess::address), WriteProgress::default());
    let readers = thread::scope(|scope| {
        let readers: Vec<_> = (0..streams)
            .map(|number| {
                let (reader, handle, written) = (EventReader::at(&offset), &handle, &written);
                let mut servers = servers;
                servers.rotate_left(number as usize % 2);
                let builder = thread::Builder::new().stack_size(256 * 1024);
                builder.spawn_scoped(scope, move || reader.follow(&servers, SHAPE, handle, written))
            })
            .collect::<Result<_, _>>()?;
        let writer = scope.spawn(|| write(&postgres, &written));
        thread::sleep(SETTLE);
        let disturbed = disturb(&mut instances);
        written.finish(writer)?;
        disturbed?;
        let join =
            |reader: thread::ScopedJoinHandle<'_, _>| reader.join().expect("a reader returns its errors");
        readers.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    report(board, case, readers, &written)
}

/// Waits until the instance admits a stream. With a new namespace in Redis, no stream is admitted
/// for one TTL. The second instance reads a new shape a little later than the first creates it.
fn wait_until_admitted(instance: &ForebayProcess) -> Result<()> {
    let started = Instant::now();
    loop {
        let admitted = || {
            let mut stream = HttpConnection::open(instance.address())?;
            anyhow::Ok(stream.get(&instance.live(SHAPE, "&live_sse=true")?)?.status == 200)
        };
        if admitted().unwrap_or(false) {
            return Ok(());
        }
        ensure!(started.elapsed() < ADMISSION_TIMEOUT, "no stream is admitted after {ADMISSION_TIMEOUT:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn report(
    board: &mut Scoreboard,
    case: &str,
    mut readers: Vec<EventReader>,
    written: &WriteProgress,
) -> Result<()> {
    let sum = |figure: fn(&EventReader) -> u64| readers.iter().map(figure).sum::<u64>() as f64;
    let (twice, out_of_place) = (sum(|reader| reader.duplicates), sum(|reader| reader.gaps));
    let refetches = sum(|reader| reader.refetches);
    let is_exact = twice + out_of_place + refetches == 0.0;
    let report = ExperimentReport::new(if is_exact { "every row once" } else { "changes went wrong" })
        .with("streams", readers.len() as f64)
        .with("rows", written.last() as f64)
        .with("asked", sum(|reader| reader.streams))
        .with("twice", twice)
        .with("out_of_place", out_of_place)
        .with("refetches", refetches);
    board.outcome(case, "forebay", report);
    ensure!(!readers.is_empty(), "there are no readers");
    readers.sort_by_key(|reader| reader.longest_gap);
    let at = |percent: usize| readers[(readers.len() - 1) * percent / 100].longest_gap.as_secs_f64() * 1e3;
    eprintln!(
        "takeover.{case}: longest time without rows: {:.0} ms (median of the clients), {:.0} ms (p99)",
        at(50),
        at(99)
    );
    let (ours, peer, theirs, unit, better) = (at(99), "limit", LIMIT_MS, "p99_ms", Better::Lower);
    board.contest(case, Contest { ours, peer, theirs, unit, better, goal: 1.0 });
    Ok(())
}

/// Writes rows 1, 2, 3 and so on.
fn write(postgres: &Postgres, written: &WriteProgress) -> Result<()> {
    for id in 1.. {
        if written.is_stopping() {
            break;
        }
        let sql = format!("INSERT INTO rolled VALUES ({id}, 'note')");
        postgres.execute("postgres", &sql).context("writing")?;
        written.set(id);
        thread::sleep(WRITE_INTERVAL);
    }
    Ok(())
}

fn child(experiment: &str) -> Result<ExperimentReport> {
    process::raise_descriptor_limit()?;
    serving::child(&experiment.split(' ').collect::<Vec<_>>())
}
