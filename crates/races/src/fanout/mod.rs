//! Fan-out of one write to a thousand waiting clients: median and 99th percentile of the delivery
//! time, and the CPU time.
//!
//! The clock starts when the INSERT is sent, and stops when a client receives the event. All
//! clients of a contestant run in one process, with one epoll. Peers: one thread that writes the
//! same number of bytes to a thousand sockets (`bare_thread`), durable-streams, which has no
//! Postgres, and a short Node program with `pg-logical-replication`.

mod contestants;
mod direct;
mod listeners;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

use self::contestants::FanoutContestant;
use crate::harness::{Better, Contest, Entrant, ExperimentReport, Race, Scoreboard, Spread, interleave};
use crate::{process, serving};

pub(crate) const RACE: Race = Race {
    name: "fanout",
    about: "a write to 1,000 live clients, SSE and long-poll (a socket loop, durable-streams, Node)",
    cases: &["sse_p50", "sse_p99", "sse_cpu", "long_poll_p50", "long_poll_p99", "long_poll_cpu"],
    run,
    child,
};

/// Number of clients.
const CLIENTS: u64 = 1000;
/// Number of writes in a turn.
const WRITES: u64 = 20;
/// Pause between two writes, in which all processes become idle.
const SETTLE: Duration = Duration::from_millis(30);

/// How clients wait for changes: SSE or long polling.
struct DeliveryMode {
    name: &'static str,
    /// Ratio to reach against the bare thread.
    goal: f64,
    /// Maximum CPU time of one delivery.
    cpu_limit_us: f64,
    /// Starts the contestants, with so many clients each.
    open: fn(u64) -> Result<Vec<FanoutContestant>>,
}

const DELIVERY_MODES: [DeliveryMode; 2] = [
    DeliveryMode { name: "sse", goal: 1.0 / 2.5, cpu_limit_us: 12.0, open: contestants::sse },
    DeliveryMode { name: "long_poll", goal: 1.0 / 5.0, cpu_limit_us: 40.0, open: contestants::long_poll },
];

/// Figures of one turn.
struct FanoutSample {
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
}

fn run(board: &mut Scoreboard) -> Result<()> {
    // A smoke run has a tenth of the clients.
    let clients = board.scaled(CLIENTS).max(CLIENTS / 10);
    for mode in &DELIVERY_MODES {
        let cases = ["p50", "p99", "cpu"].map(|figure| format!("{}_{figure}", mode.name));
        if cases.iter().any(|case| board.is_selected(case)) {
            race_mode(board, mode, &cases, clients)?;
        }
    }
    Ok(())
}

fn race_mode(board: &mut Scoreboard, mode: &DeliveryMode, cases: &[String; 3], clients: u64) -> Result<()> {
    let mut contestants = (mode.open)(clients)?;
    for contestant in &mut contestants {
        contestant.run_turn(WRITES / 4)?; // warm-up
    }
    let mut entrants: Vec<_> = contestants
        .iter_mut()
        .map(|contestant| Entrant {
            name: contestant.name,
            turn: Box::new(|| contestant.run_turn(WRITES)) as Box<_>,
        })
        .collect();
    let samples = interleave(board.rounds(), &mut entrants)?;
    drop(entrants);
    let spreads = |figure: fn(&FanoutSample) -> f64| -> Vec<_> {
        samples.iter().map(|(name, turns)| (*name, Spread::of(turns.iter().map(figure)))).collect()
    };
    let figures = [spreads(|turn| turn.p50_ms), spreads(|turn| turn.p99_ms), spreads(|turn| turn.cpu_us)];
    let units = ["ms", "ms", "µs/delivery"];
    for ((case, spreads), unit) in cases.iter().zip(&figures).zip(units) {
        board.table(case, unit, spreads);
        let (ours, better) = (spreads[0].1.median, Better::Lower);
        let is_cpu = case.ends_with("cpu");
        if is_cpu {
            let (peer, theirs, goal) = ("limit", mode.cpu_limit_us, 1.0);
            board.contest(case, Contest { ours, peer, theirs, unit, better, goal });
        }
        for (peer, spread) in &spreads[1..] {
            let (theirs, is_bare) = (spread.median, *peer == direct::NAME);
            let goal = if is_bare { mode.goal } else { 1.0 };
            if !(is_bare && is_cpu) {
                board.contest(case, Contest { ours, peer, theirs, unit, better, goal });
            }
        }
    }
    Ok(())
}

impl FanoutContestant {
    /// Writes a number of times, and measures the deliveries.
    fn run_turn(&mut self, writes: u64) -> Result<FanoutSample> {
        let before = process::cpu_ns(&self.pids)?;
        let mut delays_ns = Vec::new();
        for _ in 0..writes {
            self.listeners.send_command("expect")?;
            self.listeners.expect_line("expecting")?;
            let written = (self.write)()?;
            let received = self.listeners.expect_line("received")?;
            let mut words = received.split(' ');
            self.bytes = words
                .next()
                .and_then(|bytes| bytes.parse().ok())
                .context("the listeners printed no number of bytes")?;
            for at in words {
                delays_ns.push(at.parse::<u64>()?.saturating_sub(written));
            }
            std::thread::sleep(SETTLE);
        }
        let deliveries = delays_ns.len() as f64;
        let cpu_us = (process::cpu_ns(&self.pids)? - before) as f64 / 1e3 / deliveries;
        delays_ns.sort_unstable();
        let at = |percent: usize| delays_ns[(delays_ns.len() - 1) * percent / 100] as f64 / 1e6;
        Ok(FanoutSample { p50_ms: at(50), p99_ms: at(99), cpu_us })
    }
}

/// Returns the monotonic time in nanoseconds. The clock is the same in all processes.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn child(experiment: &str) -> Result<ExperimentReport> {
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
