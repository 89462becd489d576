//! The server under test with its two proxies, and random faults: kills, restarts of Postgres,
//! network faults on both sides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_testkit::{Direction, Proxy, TestRng};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::super::support::{ServeFixture, ServeProcess};
use super::history::PostgresCrash;
use crate::wire::until as wait_until;

/// A server with a proxy to Postgres and a proxy for its clients.
pub(crate) struct ServerUnderTest<'a> {
    fixture: &'a ServeFixture,
    settings: Vec<(String, String)>,
    to_postgres: Proxy,
    to_server: Proxy,
    server: Option<ServeProcess>,
    pid: Arc<AtomicU32>,
}

/// Faults of one run.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    /// Kills of the server.
    pub(crate) kills: u64,
    /// Restarts of Postgres.
    pub(crate) restarts: u64,
    /// The restarts that were crashes.
    pub(crate) crashes: Vec<PostgresCrash>,
    /// Network faults of any kind, on both sides.
    pub(crate) cuts: u64,
}

impl<'a> ServerUnderTest<'a> {
    /// Starts the server and waits until it is active.
    ///
    /// The server connects to Postgres through the proxy only if `has_faults`. The proxy runs on
    /// the same runtime as the clients. On a busy runtime, Postgres would see an unresponsive
    /// replication client.
    pub(crate) async fn start(
        fixture: &'a ServeFixture,
        settings: &[(&str, String)],
        has_faults: bool,
    ) -> ServerUnderTest<'a> {
        let to_postgres = Proxy::start(fixture.postgres.addr());
        let address = if has_faults { to_postgres.addr() } else { fixture.postgres.addr() };
        let url = format!("postgres://postgres@{address}/{}", fixture.database);
        let mut settings: Vec<_> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        settings.push(("DATABASE_URL".to_owned(), url));
        // The target is a placeholder: `spawn` sets the address of the server.
        let to_server = Proxy::start(fixture.postgres.addr());
        let mut server =
            ServerUnderTest { fixture, settings, to_postgres, to_server, server: None, pid: Arc::default() };
        server.spawn();
        server.server.as_ref().unwrap().wait_for_health("active").await;
        server
    }

    /// Returns the address of the proxy for clients. It stays the same.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.to_server.addr()
    }

    /// Returns the address of the server itself. Without the buffers of a proxy, the server has to
    /// wait for a slow client.
    pub(crate) fn direct_addr(&self) -> SocketAddr {
        self.server.as_ref().map_or(self.addr(), |server| server.addr)
    }

    fn spawn(&mut self) {
        let settings: Vec<_> =
            self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let server = block_in_place(|| self.fixture.spawn(&settings));
        self.to_server.fail_over_to(server.addr);
        self.pid.store(server.pid(), Ordering::Relaxed);
        self.server = Some(server);
    }

    /// Returns a cell with the pid of the current server process. Restarts update it.
    pub(crate) fn pid(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.pid)
    }

    /// Waits until the server has `count` shapes.
    pub(crate) async fn wait_for_shapes(&self, count: usize) {
        let Some(server) = &self.server else { return };
        wait_until("the clients have created shapes", async || {
            server.status().await["shapes"]["count"].as_u64() >= Some(count as u64)
        })
        .await;
    }

    /// Injects one fault after another until `until`. The server is killed only until
    /// `kills_until`.
    pub(crate) async fn inject_faults(
        &mut self,
        rng: &mut TestRng,
        kills_until: Instant,
        until: Instant,
    ) -> InjectedFaults {
        let mut faults = InjectedFaults::default();
        // Each kind of fault happens once at first, in one of four orders: 0 kills the server, 3
        // restarts Postgres, 4 and 7 disturb the networks.
        let mut first = rng.pick(&[[0, 3, 4, 7], [3, 7, 0, 4], [4, 0, 7, 3], [7, 4, 3, 0]]).into_iter();
        while Instant::now() < until || !first.as_slice().is_empty() {
            sleep(Duration::from_millis(rng.between(200, 1500) as u64)).await;
            let (fault, is_first) = match first.next() {
                Some(fault) => (fault, true),
                None => (rng.below(10), false),
            };
            match fault {
                0..=2 if is_first || Instant::now() < kills_until => {
                    faults.kills += 1;
                    // Dropping a `ServeProcess` kills it with SIGKILL.
                    block_in_place(|| drop(self.server.take()));
                    sleep(Duration::from_millis(rng.below(200) as u64)).await;
                    self.spawn();
                }
                3 => {
                    faults.restarts += 1;
                    let is_fast = rng.percent(50);
                    block_in_place(|| match is_fast {
                        true => self.fixture.postgres.restart_fast().unwrap(),
                        false => {
                            self.fixture.postgres.restart_immediate().unwrap();
                            faults.crashes.push(PostgresCrash::last(self.fixture));
                        }
                    });
                }
                4..=6 => {
                    faults.cuts += 1;
                    disturb_network(&self.to_postgres, rng).await;
                }
                _ => {
                    faults.cuts += 1;
                    disturb_network(&self.to_server, rng).await;
                }
            }
        }
        faults
    }
}

/// Prints the logs of the server and of Postgres if the test fails.
impl Drop for ServerUnderTest<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let server = self.server.as_ref().map(|server| server.log()).unwrap_or_default();
            eprintln!("log of forebay:\n{server}\nlog of Postgres:\n{}", self.fixture.postgres.log());
        }
    }
}

/// Injects one network fault and ends it. Only a truncation may take effect after the return.
async fn disturb_network(network: &Proxy, rng: &mut TestRng) {
    let duration = Duration::from_millis(rng.between(20, 500) as u64);
    let direction = rng.pick(&[Direction::ToClient, Direction::ToServer, Direction::Both]);
    match rng.below(7) {
        0 => network.cut(),
        1 => network.reset(),
        2 => network.truncate_after(rng.between(1, 20_000) as u64, direction),
        3 => {
            network.stall(direction);
            sleep(duration).await;
            if rng.percent(50) {
                network.reset();
            }
            network.resume();
        }
        4 => {
            network.refuse();
            network.cut();
            sleep(duration).await;
            network.accept();
        }
        5 => {
            network.delay(Duration::from_millis(30));
            sleep(duration).await;
            network.resume();
        }
        _ => {
            network.throttle(100_000);
            sleep(duration).await;
            network.resume();
        }
    }
}
