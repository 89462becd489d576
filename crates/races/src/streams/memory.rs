//! Resident memory of the server for an idle stream. Kernel memory isn't counted; it is the same
//! for all servers.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::nginx::{self, Nginx};
use super::{RACE, STREAMS, ours, sse};
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};
use crate::helper_process::HelperProcess;
use crate::process;

/// Maximum memory of a stream, in bytes.
pub(crate) const LIMIT: f64 = 3.0 * 1024.0;
/// Path of the event stream, on all servers of this race.
pub(crate) const EVENTS: &str = "events";
/// Pause for the server to become idle after a change of its streams.
const SETTLE: Duration = Duration::from_millis(500);
/// Number of streams that are opened and closed before the first measurement, so that one-time
/// allocations don't count.
const WARM_UP: usize = 200;

pub(crate) fn run(board: &mut Scoreboard) -> Result<()> {
    let streams = board.scaled(STREAMS as u64) as usize;
    let turn = |name: &'static str| Entrant { name, turn: Box::new(move || measure_helper(name, streams)) };
    let nchan = Entrant { name: nginx::NAME, turn: Box::new(move || measure_nginx(streams)) };
    let mut entrants = [turn(ours::NAME), turn(sse::NAME), nchan];
    let samples = interleave(board.rounds().min(3), &mut entrants)?;
    let spreads = |figure: fn(&StreamMemory) -> f64| -> Vec<_> {
        samples.iter().map(|(name, costs)| (*name, Spread::of(costs.iter().map(figure)))).collect()
    };
    let open = spreads(|cost| cost.open);
    board.table("memory", "B/stream", &open);
    board.table("memory, after all streams closed", "B/stream", &spreads(|cost| cost.left));

    let (ours, unit) = (open[0].1.median, "B/stream");
    for (peer, theirs) in [("limit", LIMIT), (sse::NAME, open[1].1.median)] {
        board.contest("memory", Contest { ours, peer, theirs, unit, better: Better::Lower, goal: 1.0 });
    }
    Ok(())
}

/// Growth of the server's memory for each stream, in bytes.
pub(crate) struct StreamMemory {
    /// While the streams are open.
    pub(crate) open: f64,
    /// After all streams have closed.
    left: f64,
}

fn measure_helper(name: &str, streams: usize) -> Result<StreamMemory> {
    let mut server = HelperProcess::start(RACE.name, &format!("serve/{name}"))?;
    let address = server.expect_line("listening")?.parse()?;
    let cost = measure(&[server.pid()], address, EVENTS, streams)?;
    server.release()?;
    Ok(cost)
}

fn measure_nginx(streams: usize) -> Result<StreamMemory> {
    let nginx = Nginx::start()?;
    measure(&nginx.pids()?, nginx.address(), EVENTS, streams)
}

/// Measures the memory of streams that request `target`, a path without its first slash.
pub(crate) fn measure(
    pids: &[u32],
    address: SocketAddr,
    target: &str,
    streams: usize,
) -> Result<StreamMemory> {
    subscribe(address, target, WARM_UP)?.release()?;
    thread::sleep(SETTLE);
    let before = process::resident_bytes(pids)?;
    let subscribers = subscribe(address, target, streams)?;
    thread::sleep(SETTLE);
    let open = process::resident_bytes(pids)?;
    subscribers.release()?;
    thread::sleep(SETTLE);
    let left = process::resident_bytes(pids)?;
    let each = |after: u64| (after as f64 - before as f64) / streams as f64;
    Ok(StreamMemory { open: each(open), left: each(left) })
}

/// Starts clients, and waits until all of them are subscribed.
pub(crate) fn subscribe(address: SocketAddr, target: &str, streams: usize) -> Result<HelperProcess> {
    let mut subscribers =
        HelperProcess::start(RACE.name, &format!("subscribe/{streams}/{address}/{target}"))?;
    subscribers.expect_line("ready")?;
    Ok(subscribers)
}
