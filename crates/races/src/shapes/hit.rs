//! A write that one shape wants, among ten and among ten thousand: from the INSERT to the event at its client.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_sandbox::Postgres;
use tokio::runtime::Runtime;

use super::create::make;
use super::{RACE, connect, groups, shape};
use crate::harness::{Better, Board, Contest, Entrant, Spread, interleave};
use crate::serving::{Connection, Forebay};

const MANY: u64 = 10_000;
const FEW: u64 = 10;
/// Writes in a turn.
const WRITES: u64 = 300;
/// Within 1.5 times.
const GOAL: f64 = 1.0 / 1.5;
const PAUSE: Duration = Duration::from_millis(2);

struct House {
    name: &'static str,
    writer: tokio_postgres::Client,
    stream: Connection,
    // In the order in which they end.
    _forebay: Forebay,
    _postgres: Postgres,
}

pub(super) fn run(board: &mut Board) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut houses = [
        House::open(&runtime, "10,000 shapes", board.scaled(MANY))?,
        House::open(&runtime, "10 shapes", FEW)?,
    ];
    for house in &mut houses {
        house.write(&runtime, WRITES / 10)?; // a warm-up
    }
    let runtime = &runtime;
    let mut entrants = houses.each_mut().map(|house| Entrant {
        name: house.name,
        turn: Box::new(move || house.write(runtime, WRITES)) as Box<dyn FnMut() -> Result<f64>>,
    });
    let samples = interleave(board.rounds(), &mut entrants)?;
    let spreads: Vec<_> = samples.into_iter().map(|(name, turns)| (name, Spread::of(turns))).collect();
    board.table("hit", "p99 ms", &spreads);
    let (ours, theirs) = (spreads[0].1.median, spreads[1].1.median);
    let (peer, unit, better) = ("10_shapes", "p99_ms", Better::Lower);
    board.contest("hit", Contest { ours, peer, theirs, unit, better, goal: GOAL });
    Ok(())
}

impl House {
    fn open(runtime: &Runtime, name: &'static str, shapes: u64) -> Result<House> {
        let postgres = Postgres::builder().config("shared_buffers", "128MB").start()?;
        groups(&postgres, "teams", shapes.max(20))?;
        let forebay = Forebay::start(RACE.name, &postgres, "postgres")?;
        make(&forebay, "teams", shapes)?;
        let mut stream = Connection::open(forebay.address())?;
        let head = stream.ask(&forebay.live(&shape("teams", 1), "&live_sse=true")?)?;
        ensure!(head.status == 200, "the stream answers {}", head.status);
        Ok(House {
            name,
            writer: connect(runtime, &postgres)?,
            stream,
            _forebay: forebay,
            _postgres: postgres,
        })
    }

    /// The 99th percentile, in milliseconds.
    fn write(&mut self, runtime: &Runtime, writes: u64) -> Result<f64> {
        let mut took = Vec::new();
        for _ in 0..writes {
            let began = Instant::now();
            runtime.block_on(self.writer.batch_execute("INSERT INTO teams (team, note) VALUES (1, '~')"))?;
            while !self.stream.piece()?.contains(&b'~') {}
            took.push(began.elapsed());
            std::thread::sleep(PAUSE);
        }
        took.sort_unstable();
        Ok(took[took.len() * 99 / 100].as_secs_f64() * 1e3)
    }
}
