//! Parts of every race: interleaved turns, spreads, result rows, and experiments in separate
//! processes.
//!
//! Invariant: this module depends on no race.
//!
//! Each contestant has one turn in each round. The order rotates from round to round, so that a
//! slow minute of the machine affects all contestants alike. Races compare medians over rounds.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::machine;

/// Benchmark with several cases. `RACES` in `main.rs` has all of them.
pub(crate) struct Race {
    pub(crate) name: &'static str,
    /// One line for `--list`.
    pub(crate) about: &'static str,
    /// Names of the cases.
    pub(crate) cases: &'static [&'static str],
    /// Runs the selected cases.
    pub(crate) run: fn(&mut Scoreboard) -> Result<()>,
    /// Runs one experiment in a separate process; see [`run_in_child`].
    pub(crate) child: fn(experiment: &str) -> Result<ExperimentReport>,
}

/// Returns an error. For the field `child` of races that start no process of this program.
pub(crate) fn no_child(experiment: &str) -> Result<ExperimentReport> {
    anyhow::bail!("this race has no experiment {experiment}")
}

/// Collects and prints the rows of a race, for the cases that the command line selects.
pub(crate) struct Scoreboard {
    race: &'static str,
    filter: String,
    quick: bool,
    rows: Vec<ResultRow>,
}

impl Scoreboard {
    pub(crate) fn new(race: &'static str, filter: Option<String>, quick: bool) -> Self {
        Self { race, filter: filter.unwrap_or_default(), quick, rows: Vec::new() }
    }

    /// Returns whether a case is selected.
    pub(crate) fn is_selected(&self, case: &str) -> bool {
        case.contains(&self.filter)
    }

    /// Returns `full`, or in a smoke run a twentieth of it, rounded up.
    pub(crate) fn scaled(&self, full: u64) -> u64 {
        if self.quick { full.div_ceil(20) } else { full }
    }

    /// Returns the number of rounds.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 2 } else { 7 }
    }

    /// Prints and stores the row of a contest, if its case is selected.
    pub(crate) fn contest(&mut self, case: &str, contest: Contest<'_>) {
        let Contest { ours, peer, theirs, unit, better, goal } = contest;
        if self.is_selected(case) {
            let race = format!("{}.{case}", self.race);
            let ratio = better.ratio(ours, theirs);
            println!(
                "race={race} ours={ours:.*} peer={peer} theirs={theirs:.*} ratio={ratio:.2} goal={goal:.2} unit={unit}",
                decimals(ours),
                decimals(theirs),
            );
            self.rows.push(ResultRow::Contest { race, ours, peer: peer.into(), theirs, ratio, goal, unit });
        }
    }

    /// Prints and stores the outcome of an experiment for one contestant.
    pub(crate) fn outcome(&mut self, case: &str, client: &str, report: ExperimentReport) {
        let race = format!("{}.{case}", self.race);
        let numbers: Vec<_> = report.numbers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let result =
            if report.result.contains(' ') { format!("{:?}", report.result) } else { report.result.clone() };
        println!("race={race} client={client} result={result} ({})", numbers.join(" "));
        self.rows.push(ResultRow::Outcome { race, client: client.into(), report });
    }

    /// Prints the figures of all contestants on stderr. A row on stdout has only two of them.
    pub(crate) fn table(&self, case: &str, unit: &str, spreads: &[(&str, Spread)]) {
        eprintln!(
            "{:<32} {:>12} {:>12} {:>12}",
            format!("{}.{case} [{unit}]", self.race),
            "median",
            "min",
            "max"
        );
        for (name, Spread { median, min, max }) in spreads {
            let places = decimals(*median);
            eprintln!("  {name:<30} {median:>12.places$} {min:>12.places$} {max:>12.places$}");
        }
    }

    pub(crate) fn rows(&self) -> &[ResultRow] {
        &self.rows
    }
}

/// Two figures to compare.
pub(crate) struct Contest<'a> {
    pub(crate) ours: f64,
    pub(crate) peer: &'a str,
    pub(crate) theirs: f64,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// Ratio to reach.
    pub(crate) goal: f64,
}

/// Whether the higher or the lower figure is better.
#[derive(Clone, Copy)]
pub(crate) enum Better {
    Higher,
    Lower,
}

impl Better {
    /// Returns the ratio of the two figures. Above 1, `ours` is better.
    fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Better::Higher => ours / theirs,
            Better::Lower => theirs / ours,
        }
    }
}

/// Row of the results.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum ResultRow {
    Contest {
        race: String,
        ours: f64,
        peer: String,
        theirs: f64,
        ratio: f64,
        goal: f64,
        unit: &'static str,
    },
    Outcome {
        race: String,
        client: String,
        #[serde(flatten)]
        report: ExperimentReport,
    },
}

/// Outcome of an experiment: a short text or an error message, and named numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExperimentReport {
    pub(crate) result: String,
    pub(crate) numbers: BTreeMap<String, f64>,
}

impl ExperimentReport {
    pub(crate) fn new(result: impl Into<String>) -> Self {
        Self { result: result.into(), numbers: BTreeMap::new() }
    }

    /// Adds a number, rounded to three decimals.
    pub(crate) fn with(mut self, name: &str, value: f64) -> Self {
        self.numbers.insert(name.into(), (value * 1e3).round() / 1e3);
        self
    }

    /// Adds a number, if there is one.
    pub(crate) fn with_some(self, name: &str, value: Option<f64>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }
}

/// Median, minimum and maximum of one contestant's figures over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            unreachable!("a race has at least one round");
        };
        let half = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 };
        Self { median, min, max }
    }
}

/// Contestant, and the function that runs one turn: set up, warm up, measure.
pub(crate) struct Entrant<'a, S> {
    pub(crate) name: &'static str,
    pub(crate) turn: Box<dyn FnMut() -> Result<S> + 'a>,
}

/// Runs one turn of each entrant in each round, and returns the samples. Each round starts with the
/// next entrant.
pub(crate) fn interleave<S>(
    rounds: usize,
    entrants: &mut [Entrant<'_, S>],
) -> Result<Vec<(&'static str, Vec<S>)>> {
    let mut samples: Vec<_> = entrants.iter().map(|entrant| (entrant.name, Vec::new())).collect();
    for round in 0..rounds {
        for index in 0..entrants.len() {
            let turn = (round + index) % entrants.len();
            let sample =
                (entrants[turn].turn)().with_context(|| format!("{}'s turn", entrants[turn].name))?;
            samples[turn].1.push(sample);
        }
    }
    Ok(samples)
}

/// Wall time and CPU time of a number of operations.
pub(crate) struct WorkCost {
    ops: u64,
    wall: Duration,
    cpu: Duration,
}

impl WorkCost {
    /// Measures `work`, which performs `ops` operations.
    pub(crate) fn of(ops: u64, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (started, cpu) = (Instant::now(), machine::cpu_time());
        work()?;
        Ok(Self { ops, wall: started.elapsed(), cpu: machine::cpu_time() - cpu })
    }

    pub(crate) fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn cpu_us_per_op(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.ops as f64
    }
}

/// Runs one experiment of a race in a new process of this program. Kills the process after `limit`,
/// so that a contestant that hangs can't block the race. Returns `None` if it was killed.
pub(crate) fn run_in_child(
    race: &str,
    experiment: &str,
    limit: Duration,
) -> Result<Option<ExperimentReport>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([race, "--child", experiment])
        .stdout(Stdio::piped())
        .spawn()
        .context("starting an experiment")?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    ensure!(status.success(), "the experiment {experiment} ended with {status}");
    let mut report = String::new();
    child.stdout.take().expect("stdout is piped").read_to_string(&mut report)?;
    serde_json::from_str(&report)
        .map(Some)
        .with_context(|| format!("the experiment {experiment} printed {report:?}"))
}

/// Returns the number of decimals to print: 0 from 1,000 on, 1 from 10 on, otherwise 3.
fn decimals(figure: f64) -> usize {
    match figure.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 10.0 => 1,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_rotates_and_every_entrant_has_one_turn_per_round() {
        let turns = &std::cell::Cell::new(0);
        let turn = move || Ok(turns.replace(turns.get() + 1));
        let mut entrants = ["a", "b", "c"].map(|name| Entrant { name, turn: Box::new(turn) });
        let samples = interleave(2, &mut entrants).unwrap();
        assert_eq!(samples, [("a", vec![0, 5]), ("b", vec![1, 3]), ("c", vec![2, 4])]);
    }

    #[test]
    fn a_spread_is_median_minimum_and_maximum() {
        assert_eq!(Spread::of([5.0, 1.0, 3.0]), Spread { median: 3.0, min: 1.0, max: 5.0 });
        assert_eq!(Spread::of([4.0, 2.0]), Spread { median: 3.0, min: 2.0, max: 4.0 });
    }

    #[test]
    fn a_ratio_above_one_means_that_ours_is_better() {
        assert_eq!(Better::Higher.ratio(300.0, 200.0), 1.5);
        assert_eq!(Better::Lower.ratio(2.0, 3.0), 1.5);
    }

    #[test]
    fn a_case_is_selected_if_its_name_contains_the_text() {
        let board = Scoreboard::new("race", Some("_cpu".into()), false);
        assert!(board.is_selected("tasks64_ct_cpu") && !board.is_selected("tasks64_ct"));
    }
}
