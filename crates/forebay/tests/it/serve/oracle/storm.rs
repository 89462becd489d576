//! Whatever can go wrong around the server, at random.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_testkit::{Dice, Direction, Proxy};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::super::support::{Place, Serve};
use super::history::Crash;
use crate::wire::until as wait_until;

/// The server, between two networks.
pub(crate) struct Stage<'a> {
    place: &'a Place,
    settings: Vec<(String, String)>,
    to_postgres: Proxy,
    to_server: Proxy,
    server: Option<Serve>,
    pid: Arc<AtomicU32>,
}

/// What went wrong.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) kills: u64,
    pub(crate) restarts: u64,
    /// Of the restarts.
    pub(crate) crashes: Vec<Crash>,
    pub(crate) cuts: u64,
}

impl<'a> Stage<'a> {
    /// Starts the server. It reaches Postgres through the proxy if `is_stormy`, and directly otherwise: the proxy shares its
    /// runtime with the clients, and a busy one would look to Postgres like a replication client that doesn't answer.
    pub(crate) async fn set(place: &'a Place, settings: &[(&str, String)], is_stormy: bool) -> Stage<'a> {
        let to_postgres = Proxy::start(place.postgres.addr());
        let address = if is_stormy { to_postgres.addr() } else { place.postgres.addr() };
        let url = format!("postgres://postgres@{address}/{}", place.database);
        let mut settings: Vec<_> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        settings.push(("DATABASE_URL".to_owned(), url));
        // The first server tells where it listens.
        let to_server = Proxy::start(place.postgres.addr());
        let mut stage = Stage { place, settings, to_postgres, to_server, server: None, pid: Arc::default() };
        stage.start();
        stage.server.as_ref().unwrap().becomes("active").await;
        stage
    }

    /// Where clients connect, whatever happens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.to_server.addr()
    }

    /// Where the server itself listens: its clients' pace is its own, without a proxy's buffers between.
    pub(crate) fn direct(&self) -> SocketAddr {
        self.server.as_ref().map_or(self.addr(), |server| server.addr)
    }

    fn start(&mut self) {
        let settings: Vec<_> =
            self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let server = block_in_place(|| self.place.spawn(&settings));
        self.to_server.fail_over_to(server.addr);
        self.pid.store(server.pid(), Ordering::Relaxed);
        self.server = Some(server);
    }

    /// The process that is the server, now and later.
    pub(crate) fn pid(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.pid)
    }

    /// Waits until clients have had so many shapes made.
    pub(crate) async fn has_shapes(&self, count: usize) {
        let Some(server) = &self.server else { return };
        wait_until("clients have their shapes", async || {
            server.status().await["shapes"]["count"].as_u64() >= Some(count as u64)
        })
        .await;
    }

    /// Fault after fault, until then; and then none. The server itself is killed only up to an earlier time.
    pub(crate) async fn rage(&mut self, dice: &mut Dice, kills_until: Instant, until: Instant) -> Faults {
        let mut faults = Faults::default();
        // One of each comes first, in any order; a storm without one of them would prove less than it says.
        let mut first = dice.pick(&[[0, 3, 4, 7], [3, 7, 0, 4], [4, 0, 7, 3], [7, 4, 3, 0]]).into_iter();
        while Instant::now() < until || !first.as_slice().is_empty() {
            sleep(Duration::from_millis(dice.between(200, 1500) as u64)).await;
            let (fault, is_first) = match first.next() {
                Some(fault) => (fault, true),
                None => (dice.below(10), false),
            };
            match fault {
                0..=2 if is_first || Instant::now() < kills_until => {
                    faults.kills += 1;
                    // As a value that is dropped, with -9.
                    block_in_place(|| drop(self.server.take()));
                    sleep(Duration::from_millis(dice.below(200) as u64)).await;
                    self.start();
                }
                3 => {
                    faults.restarts += 1;
                    let is_fast = dice.percent(50);
                    block_in_place(|| match is_fast {
                        true => self.place.postgres.restart_fast().unwrap(),
                        false => {
                            self.place.postgres.restart_immediate().unwrap();
                            faults.crashes.push(Crash::last(self.place));
                        }
                    });
                }
                4..=6 => {
                    faults.cuts += 1;
                    disturb(&self.to_postgres, dice).await;
                }
                _ => {
                    faults.cuts += 1;
                    disturb(&self.to_server, dice).await;
                }
            }
        }
        faults
    }
}

/// A test that fails shows the logs of both servers.
impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let server = self.server.as_ref().map(|server| server.log()).unwrap_or_default();
            eprintln!("log of forebay:\n{server}\nlog of Postgres:\n{}", self.place.postgres.log());
        }
    }
}

/// Leaves it unharmed, but for a cut that may still be to come.
async fn disturb(network: &Proxy, dice: &mut Dice) {
    let while_ms = Duration::from_millis(dice.between(20, 500) as u64);
    let direction = dice.pick(&[Direction::ToClient, Direction::ToServer, Direction::Both]);
    match dice.below(7) {
        0 => network.cut(),
        1 => network.reset(),
        2 => network.truncate_after(dice.between(1, 20_000) as u64, direction),
        3 => {
            network.stall(direction);
            sleep(while_ms).await;
            if dice.percent(50) {
                network.reset();
            }
            network.resume();
        }
        4 => {
            network.refuse();
            network.cut();
            sleep(while_ms).await;
            network.accept();
        }
        5 => {
            network.delay(Duration::from_millis(30));
            sleep(while_ms).await;
            network.resume();
        }
        _ => {
            network.throttle(100_000);
            sleep(while_ms).await;
            network.resume();
        }
    }
}
