//! One write, and a thousand clients that wait for it: how long until half of them have it, until all but ten have, and what it costs.
//!
//! The clock runs from the INSERT (which waits for its commit) to each client's event. The reference is one thread that writes the same
//! number of bytes to a thousand sockets. In one process all clients wait on one epoll, the same for everybody. Also there: durable-streams,
//! which has no Postgres to wait for, and ten lines of Node with `pg-logical-replication`.

mod contestants;
mod direct;
mod listeners;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

use self::contestants::House;
use crate::harness::{Better, Board, Contest, Entrant, Race, Report, Spread, interleave};
use crate::{process, serving};

pub(crate) const RACE: Race = Race {
    name: "fanout",
    about: "a write to 1,000 live clients, SSE and long-poll (a bare thread, durable-streams, Node)",
    cases: &["sse_p50", "sse_p99", "sse_cpu", "long_poll_p50", "long_poll_p99", "long_poll_cpu"],
    run,
    child,
};

const CLIENTS: u64 = 1000;
/// Writes in a turn.
const WRITES: u64 = 20;
/// Between two writes, for everybody to come to rest.
const SETTLE: Duration = Duration::from_millis(30);

/// A way to wait: the goal is a part of the bare thread's speed, the limit is CPU for each delivery.
struct Way {
    name: &'static str,
    goal: f64,
    cpu_limit_us: f64,
    open: fn(u64) -> Result<Vec<House>>,
}

const WAYS: [Way; 2] = [
    Way { name: "sse", goal: 1.0 / 2.5, cpu_limit_us: 12.0, open: contestants::sse },
    Way { name: "long_poll", goal: 1.0 / 5.0, cpu_limit_us: 40.0, open: contestants::long_poll },
];

/// What a turn showed.
struct Turn {
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
}

fn run(board: &mut Board) -> Result<()> {
    // A tenth is few enough for a smoke run.
    let clients = board.scaled(CLIENTS).max(CLIENTS / 10);
    for way in &WAYS {
        let cases = ["p50", "p99", "cpu"].map(|figure| format!("{}_{figure}", way.name));
        if cases.iter().any(|case| board.wants(case)) {
            one_way(board, way, &cases, clients)?;
        }
    }
    Ok(())
}

fn one_way(board: &mut Board, way: &Way, cases: &[String; 3], clients: u64) -> Result<()> {
    let mut houses = (way.open)(clients)?;
    for house in &mut houses {
        house.turn(WRITES / 4)?; // a warm-up
    }
    let mut entrants: Vec<_> = houses
        .iter_mut()
        .map(|house| Entrant { name: house.name, turn: Box::new(|| house.turn(WRITES)) as Box<_> })
        .collect();
    let samples = interleave(board.rounds(), &mut entrants)?;
    drop(entrants);
    let spreads = |figure: fn(&Turn) -> f64| -> Vec<_> {
        samples.iter().map(|(name, turns)| (*name, Spread::of(turns.iter().map(figure)))).collect()
    };
    let figures = [spreads(|turn| turn.p50_ms), spreads(|turn| turn.p99_ms), spreads(|turn| turn.cpu_us)];
    let units = ["ms", "ms", "µs/delivery"];
    for ((case, spreads), unit) in cases.iter().zip(&figures).zip(units) {
        board.table(case, unit, spreads);
        let (ours, better) = (spreads[0].1.median, Better::Lower);
        let is_cpu = case.ends_with("cpu");
        if is_cpu {
            let (peer, theirs, goal) = ("limit", way.cpu_limit_us, 1.0);
            board.contest(case, Contest { ours, peer, theirs, unit, better, goal });
        }
        for (peer, spread) in &spreads[1..] {
            let (theirs, is_bare) = (spread.median, *peer == direct::NAME);
            let goal = if is_bare { way.goal } else { 1.0 };
            if !(is_bare && is_cpu) {
                board.contest(case, Contest { ours, peer, theirs, unit, better, goal });
            }
        }
    }
    Ok(())
}

impl House {
    fn turn(&mut self, writes: u64) -> Result<Turn> {
        let before = process::cpu_ns(&self.pids)?;
        let mut took = Vec::new();
        for _ in 0..writes {
            self.listeners.order("expect")?;
            self.listeners.hear("expecting")?;
            let written = (self.write)()?;
            let received = self.listeners.hear("received")?;
            let mut words = received.split(' ');
            self.bytes = words.next().and_then(|bytes| bytes.parse().ok()).context("how many bytes")?;
            for at in words {
                took.push(at.parse::<u64>()?.saturating_sub(written));
            }
            std::thread::sleep(SETTLE);
        }
        let deliveries = took.len() as f64;
        let cpu_us = (process::cpu_ns(&self.pids)? - before) as f64 / 1e3 / deliveries;
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100] as f64 / 1e6;
        Ok(Turn { p50_ms: at(50), p99_ms: at(99), cpu_us })
    }
}

/// A clock that all processes read alike, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn child(experiment: &str) -> Result<Report> {
    process::raise_descriptor_limit()?;
    let words: Vec<_> = experiment.split(' ').collect();
    match words[..] {
        ["listeners", count, address, header, target] => {
            listeners::run(count.parse()?, address.parse()?, header, target)
        }
        ["direct", count, bytes] => direct::run(count.parse()?, bytes.parse()?),
        ["forebay", ..] => serving::child(&words),
        _ => bail!("this race has no process {experiment}"),
    }
}
