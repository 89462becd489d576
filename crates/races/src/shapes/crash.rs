//! Streams across crashes: the server is killed again and again while rows are written. Every
//! reader must receive every row once, in order.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_sandbox::Postgres;

use super::{RACE, connect};
use crate::harness::{ExperimentReport, Scoreboard};
use crate::serving::{EventReader, ForebayProcess, WriteProgress};

const READERS: usize = 20;
/// Duration of the experiment.
const DURATION: Duration = Duration::from_secs(60);
/// Duration of a smoke run.
const QUICK_DURATION: Duration = Duration::from_secs(8);

pub(super) fn run(board: &mut Scoreboard) -> Result<()> {
    let duration = if board.scaled(20) < 20 { QUICK_DURATION } else { DURATION };
    let postgres = Postgres::start()?;
    postgres.execute("postgres", "CREATE TABLE crashed (id bigint PRIMARY KEY, note text)")?;
    let mut forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
    let (handle, offset) = forebay.now("table=crashed")?;
    let (written, address) = (WriteProgress::default(), forebay.address());
    let mut kills = 0;
    let readers = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (reader, handle, written) = (EventReader::at(&offset), &handle, &written);
                scope.spawn(move || reader.follow(&[address], "table=crashed", handle, written))
            })
            .collect();
        let writer = scope.spawn(|| write(&postgres, &written));
        let started = Instant::now();
        let mut killing = || {
            while started.elapsed() < duration {
                // The intervals vary, so that the kills hit different moments.
                thread::sleep(Duration::from_millis(300 + 137 * (kills % 7)));
                forebay.crash()?;
                kills += 1;
            }
            anyhow::Ok(())
        };
        let killed = killing();
        written.finish(writer)?;
        killed?;
        readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader returns its errors"))
            .collect::<Result<Vec<_>>>()
    })?;
    let sum = |figure: fn(&EventReader) -> u64| readers.iter().map(figure).sum::<u64>() as f64;
    let wrong = sum(|reader| reader.duplicates) + sum(|reader| reader.gaps) + sum(|reader| reader.refetches);
    let report = ExperimentReport::new(if wrong == 0.0 { "none" } else { "changes went wrong" })
        .with("kills", kills as f64)
        .with("rows", written.last() as f64)
        .with("delivered", sum(|reader| reader.last))
        .with("streams", sum(|reader| reader.streams))
        .with("twice", sum(|reader| reader.duplicates))
        .with("out_of_place", sum(|reader| reader.gaps))
        .with("refetches", sum(|reader| reader.refetches));
    board.outcome("crash", "forebay", report);
    Ok(())
}

/// Writes rows 1, 2, 3 and so on, in transactions of one to five.
fn write(postgres: &Postgres, written: &WriteProgress) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = connect(&runtime, postgres)?;
    let mut next = 1;
    while !written.is_stopping() {
        let last = next + next % 5;
        let sql = format!("INSERT INTO crashed SELECT i, 'note' FROM generate_series({next}, {last}) i");
        runtime.block_on(client.batch_execute(&sql))?;
        written.set(last);
        next = last + 1;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
