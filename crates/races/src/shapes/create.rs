//! Creation of ten thousand shapes, by twenty clients. The peer selects the same rows on twenty
//! connections.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_sandbox::Postgres;
use tokio::runtime::Runtime;

use super::{RACE, connect, create_table, shape};
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};
use crate::process;
use crate::serving::{ForebayProcess, HttpConnection};

const SHAPES: u64 = 10_000;
/// Number of concurrent clients.
const CLIENTS: u64 = 20;
/// Goal: a tenth of the rate of the SELECTs.
const GOAL: f64 = 0.1;
/// Maximum CPU time for creating a shape, in milliseconds.
const CPU_LIMIT_MS: f64 = 0.3;
/// Maximum memory of a shape, in bytes.
const MEMORY_LIMIT: f64 = 5.0 * 1024.0;
/// Pause for the server to finish its work after the last shape.
const SETTLE: Duration = Duration::from_millis(500);

/// Time, CPU time and memory of a shape or a SELECT.
struct CreateSample {
    seconds: f64,
    cpu_ms: f64,
    bytes: f64,
}

pub(super) fn run(board: &mut Scoreboard) -> Result<()> {
    let shapes = board.scaled(SHAPES);
    let postgres = Postgres::builder().config("shared_buffers", "128MB").start()?;
    let forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    create_table(&postgres, "warm_up", 100)?;
    create_shapes(&forebay, 100, |group| shape("warm_up", group))?;
    create_table(&postgres, "selected", shapes)?;

    let mut turn = 0;
    let ours = || {
        turn += 1;
        let table = format!("teams_{turn}");
        create_table(&postgres, &table, shapes)?;
        // The first shape adds the table to the publication. That is done once per table, so it
        // isn't measured.
        forebay.now(&shape(&table, shapes + 1))?;
        measure_creation(&forebay, &table, shapes)
    };
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(ours) as Box<dyn FnMut() -> Result<CreateSample>> },
        Entrant { name: "SELECT", turn: Box::new(|| select_all(&runtime, &postgres, shapes)) },
    ];
    let samples = interleave(board.rounds().min(3), &mut entrants)?;
    drop(entrants);
    let spread = |at: usize, figure: fn(&CreateSample) -> f64| Spread::of(samples[at].1.iter().map(figure));
    let rate = |turn: &CreateSample| 1.0 / turn.seconds;
    let rates = [("forebay", spread(0, rate)), ("SELECT", spread(1, rate))];
    board.table("create", "1/s", &rates);
    let (ours, theirs, unit) = (rates[0].1.median, rates[1].1.median, "1/s");
    board.contest(
        "create",
        Contest { ours, peer: "SELECT", theirs, unit, better: Better::Higher, goal: GOAL },
    );
    let limits = [
        ("create_cpu", "ms/shape", spread(0, |turn| turn.cpu_ms), CPU_LIMIT_MS),
        ("create_memory", "B/shape", spread(0, |turn| turn.bytes), MEMORY_LIMIT),
    ];
    for (case, unit, spread, theirs) in limits {
        board.table(case, unit, &[("forebay", spread)]);
        let (ours, peer, better, goal) = (spread.median, "limit", Better::Lower, 1.0);
        board.contest(case, Contest { ours, peer, theirs, unit, better, goal });
    }
    Ok(())
}

fn measure_creation(forebay: &ForebayProcess, table: &str, shapes: u64) -> Result<CreateSample> {
    let pids = [forebay.pid()];
    let (cpu, memory, started) = (process::cpu_ns(&pids)?, process::resident_bytes(&pids)?, Instant::now());
    create_shapes(forebay, shapes, |group| shape(table, group))?;
    let seconds = started.elapsed().as_secs_f64() / shapes as f64;
    thread::sleep(SETTLE);
    let cpu_ms = (process::cpu_ns(&pids)? - cpu) as f64 / 1e6 / shapes as f64;
    let bytes = (process::resident_bytes(&pids)? as f64 - memory as f64) / shapes as f64;
    Ok(CreateSample { seconds, cpu_ms, bytes })
}

/// Creates the shapes with these query parameters, and reads their snapshots.
pub(super) fn create_shapes(
    forebay: &ForebayProcess,
    shapes: u64,
    shape: impl Fn(u64) -> String + Sync,
) -> Result<()> {
    let (address, shape) = (forebay.address(), &shape);
    thread::scope(|scope| {
        let client = |first: u64| {
            move || {
                let mut http = HttpConnection::open(address)?;
                for number in (first..shapes).step_by(CLIENTS as usize) {
                    let target = format!("/v1/shape?{}&offset=-1", shape(number));
                    let status = http.fetch(&target)?;
                    ensure!(status == 200, "{target} returned {status}");
                }
                Ok(())
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|first| scope.spawn(client(first))).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client returns its errors"))
    })
}

fn select_all(runtime: &Runtime, postgres: &Postgres, selects: u64) -> Result<CreateSample> {
    let clients = (0..CLIENTS).map(|_| connect(runtime, postgres)).collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .zip(0..)
        .map(|(client, first)| {
            runtime.spawn(async move {
                for group in (first..selects).step_by(CLIENTS as usize) {
                    let sql = format!("SELECT id, team, note FROM selected WHERE team = {group}");
                    let rows = client.simple_query(&sql).await?;
                    ensure!(rows.len() > 5, "{} rows received", rows.len());
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok(CreateSample { seconds: started.elapsed().as_secs_f64() / selects as f64, cpu_ms: 0.0, bytes: 0.0 })
}
