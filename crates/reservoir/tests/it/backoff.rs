//! Back-off: a server that refuses, is full or is down is retried with doubling delays. Afterwards
//! the reservoir fills without a caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::RateConfig;
use forebay_reservoir::{
    Connect, ConnectionError, ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{TEST_TIMEOUT, eventually};

const TARGET: u32 = 2;

/// Counts dials.
struct CountingConnect {
    connect: PostgresConnect,
    dials: Arc<AtomicU32>,
}

impl Connect for CountingConnect {
    type Connection = PostgresClient;
    type Credentials = <PostgresConnect as Connect>::Credentials;

    fn endpoint(&self) -> String {
        Connect::endpoint(&self.connect)
    }

    async fn credentials(&self) -> Result<Self::Credentials, ConnectionError> {
        self.connect.credentials().await
    }

    async fn connect(&self, credentials: Self::Credentials) -> Result<PostgresClient, ConnectionError> {
        self.dials.fetch_add(1, Ordering::SeqCst);
        self.connect.connect(credentials).await
    }
}

fn start(url: &str, target: u32) -> (Reservoir<PostgresClient>, Arc<AtomicU32>) {
    let (connect, dials) = (PostgresConnect::new(url).unwrap(), Arc::new(AtomicU32::new(0)));
    let connect = CountingConnect { connect, dials: dials.clone() };
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6));
    let config = ReservoirConfig::new(target).low_watermark(target);
    (Reservoir::start(connect, config, limits).unwrap(), dials)
}

/// Returns how many dials a reservoir may have tried after `span`: delays double, and half of each
/// is random.
fn max_tries(span: Duration, first: Duration, most: Duration) -> u32 {
    let (mut tries, mut pause, mut at) = (1, first, first / 2);
    while at <= span {
        (tries, pause) = (tries + 1, (pause * 2).min(most));
        at += pause / 2;
    }
    tries
}

/// Checks for five seconds that dials are retried, but not too often.
async fn check_backoff(dials: &AtomicU32, before: u32, began: Instant, first: Duration, most: Duration) {
    eventually("dials are retried", true, async || dials.load(Ordering::SeqCst) > before + TARGET).await;
    while began.elapsed() < Duration::from_secs(5) {
        let dialed = dials.load(Ordering::SeqCst) - before;
        let allowed = TARGET * max_tries(began.elapsed(), first, most);
        assert!(dialed <= allowed, "{dialed} dials within {:?}, of {allowed}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_wrong_password_backs_off() {
    let server = Postgres::builder().password("for the superuser").start().unwrap();
    server.execute("postgres", "CREATE ROLE app LOGIN PASSWORD 'right'").unwrap();
    let began = Instant::now();
    let (reservoir, dials) = start(&format!("postgres://app:wrong@{}/postgres", server.addr()), TARGET);
    check_backoff(&dials, 0, began, Duration::from_secs(2), Duration::from_secs(60)).await;
    // By the server's own count, too: a dial opens at most one connection.
    let refused = server.log().matches("password authentication failed for user").count();
    assert!(refused <= dials.load(Ordering::SeqCst) as usize, "{refused} connections");
    server.execute("postgres", "ALTER ROLE app PASSWORD 'wrong'").unwrap();
    eventually("the reservoir fills", TARGET, async || reservoir.status().counts.ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_backs_off() {
    let server = Arc::new(Postgres::start().unwrap());
    let (reservoir, dials) = start(&server.url("postgres"), TARGET);
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let before = dials.load(Ordering::SeqCst);
    let began = Instant::now();
    server.kill();
    check_backoff(&dials, before, began, Duration::from_millis(100), Duration::from_secs(10)).await;
    let reviving = server.clone();
    tokio::task::spawn_blocking(move || reviving.revive().unwrap()).await.unwrap();
    eventually("the reservoir fills", TARGET, async || reservoir.status().counts.ready).await;
}

#[tokio::test]
async fn a_reservoir_fills_when_a_full_server_has_room_again() {
    let server = Postgres::builder().config("max_connections", "8").start().unwrap();
    server.execute("postgres", "CREATE ROLE app LOGIN").unwrap();
    let url = format!("postgres://app@{}/postgres", server.addr());
    // Five connections are for normal users, three for superusers.
    let (neighbour, _) = start(&url, 2);
    neighbour.initial_fill(TEST_TIMEOUT).await.unwrap();
    let (reservoir, _) = start(&url, 5);
    eventually("the reservoir has the remaining three", 3, async || reservoir.status().counts.ready).await;
    eventually("the server is full", true, async || reservoir.status().last_failure.is_some()).await;
    assert_eq!(neighbour.close(TEST_TIMEOUT).await, 0);
    eventually("the reservoir fills without a checkout", 5, async || reservoir.status().counts.ready).await;
    assert_eq!(reservoir.status().last_failure, None);
}
