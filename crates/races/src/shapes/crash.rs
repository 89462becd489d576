//! Streams across crashes: the server is killed again and again while somebody writes; every reader must get every row once, in order.
//!
//! A reader goes on as the published client does: after up-to-date from `<global_last_seen_lsn>_0`, otherwise from the last change.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay_sandbox::Postgres;
use serde_json::Value;

use super::{RACE, connect};
use crate::harness::{Board, Report};
use crate::serving::{Connection, Forebay};

const READERS: usize = 20;
const LASTS: Duration = Duration::from_secs(60);
const QUICK: Duration = Duration::from_secs(8);
/// For the readers to get the rest, once nobody writes and nobody kills.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(board: &mut Board) -> Result<()> {
    let lasts = if board.scaled(20) < 20 { QUICK } else { LASTS };
    let postgres = Postgres::start()?;
    postgres.execute("postgres", "CREATE TABLE crashed (id bigint PRIMARY KEY, note text)")?;
    let mut forebay = Forebay::start(RACE.name, &postgres, "postgres")?;
    let (handle, offset) = forebay.now("table=crashed")?;
    let (stop, written, address) = (AtomicBool::new(false), AtomicU64::new(0), forebay.address());
    let mut kills = 0;
    let readers = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let reader = Reader { offset: offset.clone(), ..Reader::default() };
                let (handle, stop, written) = (&handle, &stop, &written);
                scope.spawn(move || reader.follow(address, handle, stop, written))
            })
            .collect();
        let writer = scope.spawn(|| write(&postgres, &stop, &written));
        let began = Instant::now();
        let mut killing = || {
            while began.elapsed() < lasts {
                // Not in step with anything.
                thread::sleep(Duration::from_millis(300 + 137 * (kills % 7)));
                forebay.crash()?;
                kills += 1;
            }
            anyhow::Ok(())
        };
        let killed = killing();
        stop.store(true, Ordering::Release);
        writer.join().expect("the writer returns its errors")?;
        killed?;
        readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader returns its errors"))
            .collect::<Result<Vec<_>>>()
    })?;
    let sum = |figure: fn(&Reader) -> u64| readers.iter().map(figure).sum::<u64>() as f64;
    let wrong =
        sum(|reader| reader.twice) + sum(|reader| reader.out_of_place) + sum(|reader| reader.refetches);
    let report = Report::new(if wrong == 0.0 { "none" } else { "changes went wrong" })
        .with("kills", kills as f64)
        .with("rows", written.load(Ordering::Acquire) as f64)
        .with("delivered", sum(|reader| reader.last))
        .with("resumed", sum(|reader| reader.resumed))
        .with("twice", sum(|reader| reader.twice))
        .with("out_of_place", sum(|reader| reader.out_of_place))
        .with("refetches", sum(|reader| reader.refetches));
    board.outcome("crash", "forebay", report);
    Ok(())
}

/// Rows 1, 2, 3 and so on, in transactions of one to five.
fn write(postgres: &Postgres, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = connect(&runtime, postgres)?;
    let mut next = 1;
    while !stop.load(Ordering::Acquire) {
        let last = next + next % 5;
        let sql = format!("INSERT INTO crashed SELECT i, 'note' FROM generate_series({next}, {last}) i");
        runtime.block_on(client.batch_execute(&sql))?;
        written.store(last, Ordering::Release);
        next = last + 1;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[derive(Default)]
struct Reader {
    /// Where it goes on.
    offset: String,
    /// The last row that it has, and of how many it has heard at all.
    last: u64,
    resumed: u64,
    twice: u64,
    out_of_place: u64,
    refetches: u64,
}

impl Reader {
    /// Until everything that was written is there.
    fn follow(
        mut self,
        address: SocketAddr,
        handle: &str,
        stop: &AtomicBool,
        written: &AtomicU64,
    ) -> Result<Reader> {
        let mut late = None;
        let is_done =
            |reader: &Reader| stop.load(Ordering::Acquire) && reader.last >= written.load(Ordering::Acquire);
        while !is_done(&self) && self.refetches == 0 {
            if stop.load(Ordering::Acquire) {
                let since = late.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() < PATIENCE, "a reader is still at {} of {written:?}", self.last);
            }
            // What breaks off, or isn't there yet, is tried again.
            let _broken = self.stream(address, handle, &is_done);
            self.resumed += 1;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(self)
    }

    fn stream(
        &mut self,
        address: SocketAddr,
        handle: &str,
        is_done: &impl Fn(&Reader) -> bool,
    ) -> Result<()> {
        let mut http = Connection::open(address)?;
        // Whoever waits for the last row looks up now and then.
        http.patience(Duration::from_secs(1))?;
        let offset = &self.offset;
        let target =
            format!("/v1/shape?table=crashed&handle={handle}&offset={offset}&live=true&live_sse=true");
        let head = http.ask(&target)?;
        self.refetches += u64::from(head.status == 409);
        ensure!(head.status == 200, "the stream answers {}", head.status);
        let mut lines = Vec::new();
        while !is_done(self) {
            let chunk = http.chunk()?;
            ensure!(!chunk.is_empty(), "the stream ended");
            lines.extend_from_slice(&chunk);
            let Some(end) = lines.windows(2).rposition(|two| two == b"\n\n") else { continue };
            for line in lines[..end].split(|byte| *byte == b'\n') {
                if let Some(message) = line.strip_prefix(b"data: ") {
                    self.take(&serde_json::from_slice(message)?);
                }
            }
            lines.drain(..end + 2);
        }
        Ok(())
    }

    fn take(&mut self, message: &Value) {
        let headers = &message["headers"];
        if headers["control"] == "up-to-date" {
            self.offset = format!("{}_0", headers["global_last_seen_lsn"].as_str().unwrap_or_default());
        }
        if headers["operation"].is_string() {
            let lsn = headers["lsn"].as_str().unwrap_or_default();
            self.offset = format!("{lsn}_{}", headers["op_position"]);
            let id = message["value"]["id"].as_str().and_then(|id| id.parse().ok()).unwrap_or(0);
            self.twice += u64::from(id <= self.last);
            self.out_of_place += u64::from(id > self.last + 1);
            self.last = self.last.max(id);
        }
    }
}
