//! Pools of Postgres connections: cost of a checkout, contention, and simultaneous expiry of all
//! connections.

mod checkout;
mod connect_throttle;
mod contended;
mod expiry;
mod pools;

use std::time::Duration;

use anyhow::Result;
use forebay_sandbox::Postgres;

use crate::harness::{Better, Contest, Race, Scoreboard, Spread, no_child};

pub(crate) const RACE: Race = Race {
    name: "reservoir",
    about: "pools of Postgres connections: checkout, contention, expiry of all connections at once",
    cases: &[
        "checkout",
        "checkout_reset",
        "contended_throughput",
        "contended_p99",
        "contended_fairness",
        "expiry_p99",
        "expiry_steady",
    ],
    run,
    child: no_child,
};

const CONNECTIONS: u32 = 16;

/// Settings of a pool, the same for all contestants.
#[derive(Clone)]
pub(crate) struct PoolSettings {
    url: String,
    connections: u32,
    /// Lifetime of connections. `None`: unlimited.
    lifetime: Option<Duration>,
    /// Maximum number of connections opened per second, for pools with such a limit.
    opens_per_second: f64,
    /// Whether the session is reset between two callers.
    reset: bool,
}

impl PoolSettings {
    fn new(url: String) -> Self {
        PoolSettings { url, connections: CONNECTIONS, lifetime: None, opens_per_second: 1e6, reset: false }
    }
}

fn run(board: &mut Scoreboard) -> Result<()> {
    let server = Postgres::start()?;
    let url = server.url("postgres");
    if board.is_selected("checkout") {
        checkout::plain(board, &url)?;
    }
    if board.is_selected("checkout_reset") {
        checkout::reset(board, &url)?;
    }
    if ["contended_throughput", "contended_p99", "contended_fairness"]
        .iter()
        .any(|case| board.is_selected(case))
    {
        contended::run(board, &url)?;
    }
    if board.is_selected("expiry_p99") || board.is_selected("expiry_steady") {
        expiry::run(board, &server)?;
    }
    Ok(())
}

/// Compares the medians of the first contestant, which is ours, and of the best other one.
fn contest_best_peer(
    board: &mut Scoreboard,
    case: &str,
    unit: &'static str,
    better: Better,
    goal: f64,
    figures: &[(&'static str, Vec<f64>)],
) {
    let spreads: Vec<_> =
        figures.iter().map(|(name, figures)| (*name, Spread::of(figures.iter().copied()))).collect();
    board.table(case, unit, &spreads);
    let (ours, others) = spreads.split_first().expect("we are first");
    let best = |one: &&(&str, Spread), other: &&(&str, Spread)| {
        let order = one.1.median.total_cmp(&other.1.median);
        match better {
            Better::Higher => order,
            Better::Lower => order.reverse(),
        }
    };
    let (peer, theirs) = others.iter().max_by(best).expect("there are others");
    board.contest(case, Contest { ours: ours.1.median, peer, theirs: theirs.median, unit, better, goal });
}
