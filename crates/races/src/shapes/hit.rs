//! Delay of a write that matches one of ten thousand shapes, from the INSERT to the event at the
//! client. The peer is a server with ten shapes. Each case has clauses of another kind.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_sandbox::Postgres;
use tokio::runtime::Runtime;

use super::create::create_shapes;
use super::{RACE, connect};
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};
use crate::serving::{ForebayProcess, HttpConnection};

/// Number of shapes.
const MANY: u64 = 10_000;
/// Number of shapes of the peer.
const FEW: u64 = 10;
/// Number of writes in a turn.
const WRITES: u64 = 300;
/// Goal: at most 1.5 times the delay with ten shapes.
const GOAL: f64 = 1.0 / 1.5;
/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(2);

/// Clauses of one kind: shape n has the rows whose value is that of n.
pub(super) struct ClauseKind {
    /// Name of the case.
    pub(super) case: &'static str,
    /// Statements before the table is created. `{shapes}` is the number of shapes.
    setup: &'static str,
    /// Type of the column `value`.
    column: &'static str,
    /// SQL expression of the value of shape n. `{n}` is an expression, too.
    value: &'static str,
    /// The where clause of shape n, percent-encoded but for quotes and braces. `{n}` is the number,
    /// `{month}` the first day of the month so many months after January 2000.
    clause: &'static str,
}

/// The cases.
pub(super) const KINDS: &[ClauseKind] = &[
    ClauseKind { case: "hit", setup: "", column: "bigint", value: "{n}", clause: "value%3D{n}" },
    ClauseKind {
        case: "hit_jsonb_equality",
        setup: "",
        column: "jsonb",
        value: "jsonb_build_object('owner', {n}, 'tags', '[\"a\"]'::jsonb)",
        clause: "value%3D'{\"owner\":{n},\"tags\":[\"a\"]}'",
    },
    ClauseKind {
        case: "hit_jsonb_containment",
        setup: "",
        column: "jsonb",
        value: "jsonb_build_object('owner', {n}, 'tags', '[\"a\"]'::jsonb)",
        clause: "value%40%3E'{\"owner\":{n}}'",
    },
    ClauseKind {
        case: "hit_citext",
        setup: "CREATE EXTENSION citext",
        column: "citext",
        value: "'User' || {n} || '@Example.com'",
        clause: "value%3D'uSER{n}@example.COM'",
    },
    ClauseKind {
        case: "hit_enum",
        setup: "DO $$ BEGIN EXECUTE (SELECT format('CREATE TYPE label AS ENUM (%s)', \
                string_agg(format('%L', 'l' || i), ',')) FROM generate_series(0, {shapes}) i); END $$",
        column: "label",
        value: "('l' || {n})::label",
        clause: "value%3D'l{n}'",
    },
    ClauseKind {
        case: "hit_date_trunc",
        setup: "",
        column: "timestamp",
        value: "timestamp '2000-01-15 12:30' + make_interval(months => ({n})::int)",
        clause: "date_trunc('month',value)%3D'{month}'",
    },
    ClauseKind {
        case: "hit_expression",
        setup: "",
        column: "text",
        value: "'Name ' || {n}",
        clause: "lower(value)%3D'name%20{n}'",
    },
];

impl ClauseKind {
    /// Creates the table `hits`, with five rows for each shape.
    fn create_table(&self, postgres: &Postgres, shapes: u64) -> Result<()> {
        let setup = self.setup.replace("{shapes}", &shapes.to_string());
        let (column, value) = (self.column, self.value.replace("{n}", &format!("(i % {shapes})")));
        let sql = format!(
            "{setup};
             CREATE TABLE hits (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value {column}, note text);
             INSERT INTO hits (value, note) SELECT {value}, repeat('x', 60) FROM generate_series(1, 5 * {shapes}) i;
             ANALYZE hits"
        );
        postgres.execute("postgres", &sql).context("creating hits")
    }

    /// Returns the query parameters of a shape.
    fn shape(&self, number: u64) -> String {
        let month = format!("{:04}-{:02}-01", 2000 + number / 12, number % 12 + 1);
        let clause = self.clause.replace("{n}", &number.to_string()).replace("{month}", &month);
        format!("table=hits&where={}", clause.replace('"', "%22").replace('{', "%7B").replace('}', "%7D"))
    }
}

/// A server with a number of shapes, a writer, and a stream of one shape.
struct HitContestant {
    name: &'static str,
    shapes: u64,
    /// A write that matches the shape of the stream.
    insert: String,
    writer: tokio_postgres::Client,
    stream: HttpConnection,
    // Dropped in this order.
    _forebay: ForebayProcess,
    _postgres: Postgres,
}

/// Runs the cases that are selected.
pub(super) fn run(board: &mut Scoreboard) -> Result<()> {
    for kind in KINDS {
        if board.is_selected(kind.case) {
            run_case(board, kind)?;
        }
    }
    Ok(())
}

fn run_case(board: &mut Scoreboard, kind: &ClauseKind) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut contestants = [
        HitContestant::open(&runtime, kind, "many shapes", board.scaled(MANY))?,
        HitContestant::open(&runtime, kind, "few shapes", FEW)?,
    ];
    for contestant in &mut contestants {
        contestant.write(&runtime, WRITES / 10)?; // warm-up
    }
    // A smoke run has fewer shapes, so the labels contain the actual numbers.
    let labels = contestants.each_ref().map(|contestant| format!("{} shapes", contestant.shapes));
    let runtime = &runtime;
    let mut entrants = contestants.each_mut().map(|contestant| Entrant {
        name: contestant.name,
        turn: Box::new(move || contestant.write(runtime, WRITES)) as Box<dyn FnMut() -> Result<f64>>,
    });
    let samples = interleave(board.rounds(), &mut entrants)?;
    let spreads: Vec<_> =
        labels.iter().zip(samples).map(|(label, (_, turns))| (label.as_str(), Spread::of(turns))).collect();
    board.table(kind.case, "p99 ms", &spreads);
    let (ours, theirs) = (spreads[0].1.median, spreads[1].1.median);
    let (peer, unit, better) = ("10_shapes", "p99_ms", Better::Lower);
    board.contest(kind.case, Contest { ours, peer, theirs, unit, better, goal: GOAL });
    Ok(())
}

impl HitContestant {
    fn open(runtime: &Runtime, kind: &ClauseKind, name: &'static str, shapes: u64) -> Result<HitContestant> {
        let postgres = Postgres::builder().config("shared_buffers", "128MB").start()?;
        kind.create_table(&postgres, shapes.max(20))?;
        let forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
        create_shapes(&forebay, shapes, |number| kind.shape(number))?;
        let mut stream = HttpConnection::open(forebay.address())?;
        let head = stream.get(&forebay.live(&kind.shape(1), "&live_sse=true")?)?;
        ensure!(head.status == 200, "the stream returned {}", head.status);
        let value = kind.value.replace("{n}", "1");
        Ok(HitContestant {
            name,
            shapes,
            insert: format!("INSERT INTO hits (value, note) VALUES ({value}, '~')"),
            writer: connect(runtime, &postgres)?,
            stream,
            _forebay: forebay,
            _postgres: postgres,
        })
    }

    /// Writes a number of times, and returns the 99th percentile of the delay, in milliseconds.
    fn write(&mut self, runtime: &Runtime, writes: u64) -> Result<f64> {
        let mut delays = Vec::new();
        for _ in 0..writes {
            let started = Instant::now();
            runtime.block_on(self.writer.batch_execute(&self.insert))?;
            while !self.stream.next_bytes()?.contains(&b'~') {}
            delays.push(started.elapsed());
            std::thread::sleep(PAUSE);
        }
        delays.sort_unstable();
        Ok(delays[delays.len() * 99 / 100].as_secs_f64() * 1e3)
    }
}
