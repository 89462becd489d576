//! CPU time that a server spends to send one small event to all subscribers.
//!
//! All servers and their subscribers run during the whole race. In a turn, one server broadcasts
//! events, each after all subscribers have received the previous one.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::memory::{EVENTS, subscribe};
use super::nginx::{self, Nginx};
use super::{RACE, STREAMS, ours, sse};
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};
use crate::helper_process::HelperProcess;
use crate::process;

/// Number of events in a turn.
const PUBLISHED: u64 = 20;
/// Pause for the server to finish its work after the last client has its event.
const SETTLE: Duration = Duration::from_millis(20);

/// A server and its clients.
struct BroadcastContestant {
    name: &'static str,
    pids: Vec<u32>,
    subscribers: HelperProcess,
    _server: BroadcastServer,
}

/// Process of the server.
enum BroadcastServer {
    Helper(#[expect(dead_code, reason = "held until the race ends")] HelperProcess),
    Nginx(#[expect(dead_code, reason = "held until the race ends")] Nginx),
}

pub(crate) fn run(board: &mut Scoreboard) -> Result<()> {
    let streams = board.scaled(STREAMS as u64) as usize;
    let mut contestants = [
        BroadcastContestant::of_helper(ours::NAME, streams)?,
        BroadcastContestant::of_nginx(streams)?,
        BroadcastContestant::of_helper(sse::NAME, streams)?,
    ];
    for contestant in &mut contestants {
        contestant.broadcast(PUBLISHED.div_ceil(4))?; // warm-up
    }
    let mut entrants = contestants.each_mut().map(BroadcastContestant::entrant);
    let samples = interleave(board.rounds(), &mut entrants)?;
    let spreads: Vec<_> = samples.into_iter().map(|(name, costs)| (name, Spread::of(costs))).collect();
    board.table("broadcast", "CPU ms/event", &spreads);

    let (ours, unit) = (spreads[0].1.median, "ms/event");
    for (peer, spread) in &spreads[1..] {
        let (theirs, better, goal) = (spread.median, Better::Lower, 1.0);
        board.contest("broadcast", Contest { ours, peer, theirs, unit, better, goal });
    }
    Ok(())
}

impl BroadcastContestant {
    fn of_helper(name: &'static str, streams: usize) -> Result<BroadcastContestant> {
        let mut server = HelperProcess::start(RACE.name, &format!("serve/{name}"))?;
        let address = server.expect_line("listening")?.parse()?;
        let (pids, subscribers) = (vec![server.pid()], subscribe(address, EVENTS, streams)?);
        Ok(BroadcastContestant { name, pids, subscribers, _server: BroadcastServer::Helper(server) })
    }

    fn of_nginx(streams: usize) -> Result<BroadcastContestant> {
        let nginx = Nginx::start()?;
        let (pids, subscribers) = (nginx.pids()?, subscribe(nginx.address(), EVENTS, streams)?);
        Ok(BroadcastContestant {
            name: nginx::NAME,
            pids,
            subscribers,
            _server: BroadcastServer::Nginx(nginx),
        })
    }

    fn entrant(&mut self) -> Entrant<'_, f64> {
        Entrant { name: self.name, turn: Box::new(|| self.broadcast(PUBLISHED)) }
    }

    /// Broadcasts events, and returns the server's CPU time for one event, in milliseconds.
    fn broadcast(&mut self, events: u64) -> Result<f64> {
        let before = process::cpu_ns(&self.pids)?;
        self.subscribers.send_command(&format!("publish {events}"))?;
        self.subscribers.expect_line("received")?;
        thread::sleep(SETTLE);
        let spent = process::cpu_ns(&self.pids)? - before;
        Ok(spent as f64 / 1e6 / events as f64)
    }
}
