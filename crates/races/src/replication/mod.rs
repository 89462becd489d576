//! Drains a replication slot of a million rows: rate, and CPU time of the client.
//!
//! All contestants read the same WAL: the slot is copied before each turn. The clock runs from the
//! server's message that streaming has started to the last commit. The race fails if a contestant
//! receives more or fewer rows than were written. The rows of `pg_recvlogical` are counted in a
//! separate turn without a clock, because it must write them to a pipe for that.

mod ours;
mod pg_recvlogical;
mod pgwire;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_sandbox::Postgres;

use crate::harness::{
    Better, Contest, Entrant, ExperimentReport, Race, Scoreboard, Spread, interleave, run_in_child,
};

pub(crate) const RACE: Race = Race {
    name: "replication",
    about: "draining a slot of a million rows with a consumer that does nothing",
    cases: &[
        "insert1_throughput",
        "insert1_cpu",
        "insert100_throughput",
        "insert100_cpu",
        "insert10000_throughput",
        "insert10000_cpu",
        "update1_throughput",
        "update1_cpu",
        "update100_throughput",
        "update100_cpu",
        "update10000_throughput",
        "update10000_cpu",
    ],
    run,
    child,
};

const ROWS: u64 = 1_000_000;
/// Number of characters of each row's note. All are `x`, which no other column contains.
const NOTE_CHARS: u64 = 60;
const PUBLICATION: &str = "forebay";
/// Time limit of a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(300);
/// Goal: as fast as `pg_recvlogical`, which only copies bytes. 0.05 less is allowed for noise.
const THROUGHPUT_GOAL: f64 = 0.95;
/// Goal: half of the CPU time of pgwire-replication.
const CPU_GOAL: f64 = 2.0;

#[derive(Clone, Copy)]
/// Operation that wrote the rows.
enum RowOperation {
    Insert,
    Update,
}

/// Slot that a contestant drains.
pub(super) struct DrainTask {
    url: String,
    slot: String,
    /// Draining ends with the first commit that ends at or after this LSN.
    end: u64,
    /// Number of inserts and updates until then.
    rows: u64,
}

impl DrainTask {
    fn check(&self, who: &str, rows: u64) -> Result<()> {
        ensure!(rows == self.rows, "{who} got {rows} rows of {}", self.rows);
        Ok(())
    }
}

/// Wall time and CPU time of a drain. The CPU time of `pg_recvlogical` isn't measured.
struct DrainResult {
    wall: Duration,
    cpu: Option<Duration>,
}

fn run(board: &mut Scoreboard) -> Result<()> {
    let server = Postgres::builder()
        .config("synchronous_commit", "off")
        .config("max_wal_size", "16GB")
        .config("autovacuum", "off")
        .start()?;
    for (name, operation) in [("insert", RowOperation::Insert), ("update", RowOperation::Update)] {
        for per_transaction in [1, 100, 10_000] {
            let case = format!("{name}{per_transaction}");
            if board.is_selected(&format!("{case}_throughput")) || board.is_selected(&format!("{case}_cpu")) {
                race_case(board, &server, &case, operation, per_transaction)?;
            }
        }
    }
    Ok(())
}

fn race_case(
    board: &mut Scoreboard,
    server: &Postgres,
    case: &str,
    operation: RowOperation,
    per_transaction: u64,
) -> Result<()> {
    let rows = board.scaled(ROWS);
    let database = server.create_database(case)?;
    let end = write_log(server, &database, operation, rows, per_transaction)?;
    let turn = |drain: fn(&DrainTask) -> Result<DrainResult>| {
        let (url, database) = (server.url(&database), database.clone());
        move || {
            let slot = format!("{database}_turn");
            let copy = format!("SELECT pg_copy_logical_replication_slot('{database}', '{slot}')");
            server.execute(&database, &copy)?;
            let drained = drain(&DrainTask { url: url.clone(), slot: slot.clone(), end, rows })?;
            drop_slot(server, &database, &slot)?;
            Ok(drained)
        }
    };
    turn(match operation {
        RowOperation::Insert => pg_recvlogical::count_inserts,
        RowOperation::Update => pg_recvlogical::count_updates,
    })()?;
    let rounds = if per_transaction == 1 { board.rounds().min(3) } else { board.rounds().min(5) };
    let mut entrants = [
        Entrant { name: "forebay", turn: Box::new(turn(|task| in_process("forebay", task))) as Box<_> },
        Entrant { name: "pgwire-replication", turn: Box::new(turn(|task| in_process("pgwire", task))) },
        Entrant { name: "pg_recvlogical", turn: Box::new(turn(pg_recvlogical::drain)) },
    ];
    let samples = interleave(rounds, &mut entrants)?;
    drop(entrants);
    drop_slot(server, &database, &database)?;

    let rate = |drained: &DrainResult| rows as f64 / drained.wall.as_secs_f64();
    let rates: Vec<_> =
        samples.iter().map(|(name, turns)| (*name, Spread::of(turns.iter().map(rate)))).collect();
    let throughput = format!("{case}_throughput");
    board.table(&throughput, "rows/s", &rates);
    let [ours, _, theirs] = [0, 1, 2].map(|at: usize| rates[at].1.median);
    let unit = "rows/s";
    let contest =
        Contest { ours, peer: "pg_recvlogical", theirs, unit, better: Better::Higher, goal: THROUGHPUT_GOAL };
    board.contest(&throughput, contest);

    let cost = |drained: &DrainResult| Some(drained.cpu?.as_secs_f64() * 1e9 / rows as f64);
    let costs: Vec<_> =
        samples[..2].iter().map(|(name, turns)| (*name, Spread::of(turns.iter().filter_map(cost)))).collect();
    let cpu = format!("{case}_cpu");
    board.table(&cpu, "ns/row", &costs);
    let (ours, theirs) = (costs[0].1.median, costs[1].1.median);
    let unit = "ns/row";
    let contest =
        Contest { ours, peer: "pgwire-replication", theirs, unit, better: Better::Lower, goal: CPU_GOAL };
    board.contest(&cpu, contest);
    Ok(())
}

/// Creates a slot with the name of the database, then writes the rows. Returns the LSN after them.
fn write_log(
    server: &Postgres,
    database: &str,
    operation: RowOperation,
    rows: u64,
    per_transaction: u64,
) -> Result<u64> {
    let sql = |sql: &str| server.execute(database, sql).with_context(|| sql.to_owned());
    eprintln!("{database}: writing {rows} rows");
    sql("CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric, note text, at timestamptz)")?;
    sql("ALTER TABLE items REPLICA IDENTITY FULL")?;
    // The same options as the manager's own publication. With others, the manager would create a
    // new publication, and thus a new slot.
    sql(&format!(
        "CREATE PUBLICATION {PUBLICATION} FOR TABLE items WITH (publish_via_partition_root = true)"
    ))?;
    let row = format!("i, 'item ' || i, i * 1.25, repeat('x', {NOTE_CHARS}), now()");
    if let RowOperation::Update = operation {
        sql(&format!("INSERT INTO items SELECT {row} FROM generate_series(1, {rows}) i"))?;
    }
    sql(&format!("SELECT pg_create_logical_replication_slot('{database}', 'pgoutput')"))?;
    let statement = match operation {
        RowOperation::Insert => {
            format!("INSERT INTO items SELECT {row} FROM generate_series(k, k + {per_transaction} - 1) i")
        }
        RowOperation::Update => {
            format!("UPDATE items SET price = price + 1 WHERE id BETWEEN k AND k + {per_transaction} - 1")
        }
    };
    sql(&format!(
        "CREATE PROCEDURE write(k bigint, rows bigint) LANGUAGE plpgsql AS $$ BEGIN WHILE k <= rows LOOP \
         {statement}; COMMIT; k := k + {per_transaction}; END LOOP; END $$"
    ))?;
    // In parts, because the sandbox waits at most one minute for a statement.
    let part = (rows / 10).next_multiple_of(per_transaction);
    for from in (1..=rows).step_by(usize::try_from(part)?) {
        sql(&format!("CALL write({from}, {})", rows.min(from + part - 1)))?;
    }
    let position = server.query(database, "SELECT pg_current_wal_insert_lsn() - '0/0'")?;
    // One more commit, after that position, which ends the drain. It has no insert or update, so
    // the count stays the same.
    sql("TRUNCATE items")?;
    let position = position
        .first()
        .and_then(|row| row.first()?.as_deref())
        .context("the server returned no position")?;
    Ok(position.parse()?)
}

/// Drops a slot. Retries for 5 s, because the server may not have noticed yet that the client is
/// gone.
pub(crate) fn drop_slot(server: &Postgres, database: &str, slot: &str) -> Result<()> {
    for _ in 0..500 {
        if server.execute(database, &format!("SELECT pg_drop_replication_slot('{slot}')")).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("the slot {slot} is still in use")
}

/// Runs one turn in a separate process.
fn in_process(contestant: &str, task: &DrainTask) -> Result<DrainResult> {
    let DrainTask { url, slot, end, rows } = task;
    let report = run_in_child(RACE.name, &format!("{contestant} {url} {slot} {end} {rows}"), TURN_TIMEOUT)?
        .context("the turn took too long")?;
    let seconds =
        |name: &str| report.number(name).map(Duration::from_secs_f64).context("the report lacks a figure");
    Ok(DrainResult { wall: seconds("wall_s")?, cpu: Some(seconds("cpu_s")?) })
}

fn child(experiment: &str) -> Result<ExperimentReport> {
    let words: Vec<_> = experiment.split(' ').collect();
    let [contestant, url, slot, end, rows] = words[..] else {
        anyhow::bail!("no such experiment: {experiment}")
    };
    let task =
        DrainTask { url: url.to_owned(), slot: slot.to_owned(), end: end.parse()?, rows: rows.parse()? };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let DrainResult { wall, cpu } = match contestant {
        "forebay" => runtime.block_on(ours::drain(&task))?,
        "pgwire" => runtime.block_on(pgwire::drain(&task))?,
        other => anyhow::bail!("no such contestant: {other}"),
    };
    ensure!(!wall.is_zero(), "nothing was drained");
    Ok(ExperimentReport::new("drained")
        .with("wall_s", wall.as_secs_f64())
        .with_some("cpu_s", cpu.map(|cpu| cpu.as_secs_f64())))
}
