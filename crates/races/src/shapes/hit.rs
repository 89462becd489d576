//! Delay of a write that matches one of ten thousand shapes, from the INSERT to the event at the
//! client. The peer is a server with ten shapes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_sandbox::Postgres;
use tokio::runtime::Runtime;

use super::create::create_shapes;
use super::{RACE, connect, create_table, shape};
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

/// A server with a number of shapes, a writer, and a stream of one shape.
struct HitContestant {
    name: &'static str,
    shapes: u64,
    writer: tokio_postgres::Client,
    stream: HttpConnection,
    // Dropped in this order.
    _forebay: ForebayProcess,
    _postgres: Postgres,
}

pub(super) fn run(board: &mut Scoreboard) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut contestants = [
        HitContestant::open(&runtime, "many shapes", board.scaled(MANY))?,
        HitContestant::open(&runtime, "few shapes", FEW)?,
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
    board.table("hit", "p99 ms", &spreads);
    let (ours, theirs) = (spreads[0].1.median, spreads[1].1.median);
    let (peer, unit, better) = ("10_shapes", "p99_ms", Better::Lower);
    board.contest("hit", Contest { ours, peer, theirs, unit, better, goal: GOAL });
    Ok(())
}

impl HitContestant {
    fn open(runtime: &Runtime, name: &'static str, shapes: u64) -> Result<HitContestant> {
        let postgres = Postgres::builder().config("shared_buffers", "128MB").start()?;
        create_table(&postgres, "teams", shapes.max(20))?;
        let forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
        create_shapes(&forebay, "teams", shapes)?;
        let mut stream = HttpConnection::open(forebay.address())?;
        let head = stream.get(&forebay.live(&shape("teams", 1), "&live_sse=true")?)?;
        ensure!(head.status == 200, "the stream returned {}", head.status);
        Ok(HitContestant {
            name,
            shapes,
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
            runtime.block_on(self.writer.batch_execute("INSERT INTO teams (team, note) VALUES (1, '~')"))?;
            while !self.stream.next_bytes()?.contains(&b'~') {}
            delays.push(started.elapsed());
            std::thread::sleep(PAUSE);
        }
        delays.sort_unstable();
        Ok(delays[delays.len() * 99 / 100].as_secs_f64() * 1e3)
    }
}
