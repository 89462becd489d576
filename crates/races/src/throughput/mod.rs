//! Throughput of a live stream: one session writes rows as fast as it can, and one reader receives
//! them. The clock runs from the start of the writes to the last row received.
//!
//! Each contestant has its own Postgres, so that no server decodes for both. The reader is a thread
//! of the race, which counts the byte `MARK`. `forebay serve` sends it server-sent events over a
//! socket, and `pg_recvlogical` writes to a pipe.

mod pg_recvlogical;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_sandbox::Postgres;

use crate::harness::{Better, Contest, Entrant, ExperimentReport, Race, Scoreboard, Spread, interleave};
use crate::process;
use crate::serving::{self, ForebayProcess, HttpConnection};

pub(crate) const RACE: Race = Race {
    name: "throughput",
    about: "rows per second from one writing session to a live reader, through `forebay serve` (pg_recvlogical)",
    cases: &["rows100", "rows100_cpu", "rows1", "rows1_cpu"],
    run,
    child,
};

const CASES: [ThroughputCase; 2] = [
    ThroughputCase { name: "rows100", rows: 200_000, per_transaction: 100, goal: 0.80, cpu_limit_us: 4.0 },
    ThroughputCase { name: "rows1", rows: 20_000, per_transaction: 1, goal: 0.77, cpu_limit_us: 25.0 },
];

/// One case of the race.
struct ThroughputCase {
    name: &'static str,
    rows: u64,
    per_transaction: u64,
    /// Goal: this fraction of pg_recvlogical's rate.
    goal: f64,
    /// Maximum CPU time of a row.
    cpu_limit_us: f64,
}

/// Byte that occurs once in every row, and nowhere else in the output.
const MARK: u8 = b'~';

/// Times of one turn.
struct ThroughputSample {
    wall: Duration,
    /// CPU time of `forebay serve`. `None` for pg_recvlogical.
    cpu_ns: Option<u64>,
}

fn run(board: &mut Scoreboard) -> Result<()> {
    let (ours, theirs) = (start()?, start()?);
    let forebay = ForebayProcess::start(RACE.name, &ours, "postgres")?;
    for case in &CASES {
        let cpu = format!("{}_cpu", case.name);
        if board.is_selected(case.name) || board.is_selected(&cpu) {
            race_case(board, case, &cpu, (&ours, &forebay), &theirs)?;
        }
    }
    Ok(())
}

fn start() -> Result<Postgres> {
    let settings = [("max_wal_size", "16GB"), ("shared_buffers", "256MB"), ("autovacuum", "off")];
    let builder =
        settings.iter().fold(Postgres::builder(), |builder, (key, value)| builder.config(key, value));
    Ok(builder.start()?)
}

fn race_case(
    board: &mut Scoreboard,
    case: &ThroughputCase,
    cpu: &str,
    (postgres, forebay): (&Postgres, &ForebayProcess),
    theirs: &Postgres,
) -> Result<()> {
    let rows = board.scaled(case.rows);
    let (mut a, mut b) = (0, 0);
    let ours = || {
        a += 1;
        follow(postgres, forebay, &format!("{}_{a}", case.name), rows, case.per_transaction)
    };
    let peer = || {
        b += 1;
        let table = format!("{}_{b}", case.name);
        prepare(theirs, &table, case.per_transaction)?;
        pg_recvlogical::follow(theirs, &table, rows, || write(theirs, &table, rows))
    };
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(ours) as Box<dyn FnMut() -> Result<ThroughputSample>> },
        Entrant { name: "pg_recvlogical", turn: Box::new(peer) },
    ];
    let samples = interleave(board.rounds(), &mut entrants)?;
    drop(entrants);

    let rate = |turn: &ThroughputSample| rows as f64 / turn.wall.as_secs_f64();
    let rates: Vec<_> =
        samples.iter().map(|(name, turns)| (*name, Spread::of(turns.iter().map(rate)))).collect();
    board.table(case.name, "rows/s", &rates);
    let (ours, theirs) = (rates[0].1.median, rates[1].1.median);
    let (peer, unit, better, goal) = ("pg_recvlogical", "rows/s", Better::Higher, case.goal);
    board.contest(case.name, Contest { ours, peer, theirs, unit, better, goal });

    let cost = |turn: &ThroughputSample| Some(turn.cpu_ns? as f64 / 1e3 / rows as f64);
    let costs = Spread::of(samples[0].1.iter().filter_map(cost));
    board.table(cpu, "µs/row", &[("forebay", costs)]);
    let (ours, theirs) = (costs.median, case.cpu_limit_us);
    let (peer, unit, better, goal) = ("limit", "µs/row", Better::Lower, 1.0);
    board.contest(cpu, Contest { ours, peer, theirs, unit, better, goal });
    Ok(())
}

/// Creates a table, and a procedure that fills it, with `per_transaction` rows per transaction.
fn prepare(postgres: &Postgres, table: &str, per_transaction: u64) -> Result<()> {
    postgres.execute(
        "postgres",
        &format!(
            "CREATE TABLE {table} (id bigint PRIMARY KEY, name text, price numeric, note text, at timestamptz);
             CREATE PROCEDURE write_{table}(rows bigint) LANGUAGE plpgsql AS $$
             DECLARE k bigint := 1; BEGIN WHILE k <= rows LOOP
             INSERT INTO {table} SELECT i, 'item ' || i, i * 1.25, '~' || repeat('x', 60), now()
             FROM generate_series(k, least(k + {per_transaction} - 1, rows)) i;
             COMMIT; k := k + {per_transaction}; END LOOP; END $$"
        ),
    )?;
    Ok(())
}

fn write(postgres: &Postgres, table: &str, rows: u64) -> Result<()> {
    postgres.execute("postgres", &format!("CALL write_{table}({rows})")).context("writing the rows")
}

/// Writes the rows, and reads them from a live stream.
fn follow(
    postgres: &Postgres,
    forebay: &ForebayProcess,
    table: &str,
    rows: u64,
    per_transaction: u64,
) -> Result<ThroughputSample> {
    prepare(postgres, table, per_transaction)?;
    let mut stream = HttpConnection::open(forebay.address())?;
    let head = stream.get(&forebay.live(&format!("table={table}"), "&live_sse=true")?)?;
    anyhow::ensure!(head.status == 200, "the stream returned {}", head.status);
    let before = process::cpu_ns(&[forebay.pid()])?;
    let started = Instant::now();
    let end = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut received = 0;
            while received < rows {
                received += count(stream.next_bytes()?);
            }
            anyhow::ensure!(received == rows, "{received} rows received of {rows}");
            Ok(Instant::now())
        });
        write(postgres, table, rows)?;
        reader.join().expect("a reader returns its errors")
    })?;
    let cpu_ns = Some(process::cpu_ns(&[forebay.pid()])? - before);
    Ok(ThroughputSample { wall: end - started, cpu_ns })
}

fn count(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == MARK).count() as u64
}

fn child(experiment: &str) -> Result<ExperimentReport> {
    serving::child(&experiment.split(' ').collect::<Vec<_>>())
}
