//! Random faults together: queries that ignore cancellation, frozen backends, dropped callers,
//! terminated backends, and a network that stalls and half-closes, with TLS and without.
//!
//! `FOREBAY_SECONDS=600 FOREBAY_SEED=7 cargo nextest run -p forebay-reservoir --all-features
//! --run-ignored only long_random_faults` runs for ten minutes with seed 7.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_reservoir::{CheckoutError, ConnectionGuard, PostgresClient, PostgresConnect};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, TEST_TIMEOUT, TestRng, seed};
use futures_util::future::join_all;

use super::{MAX, Monitor, PostgresReservoir, TestDatabase, config, recovers};

const CALLERS: usize = 8;

/// Number of events of each kind.
#[derive(Debug, Default)]
struct StormCounts {
    lent: AtomicU32,
    without: AtomicU32,
    stubborn: AtomicU32,
    frozen: AtomicU32,
    ended: AtomicU32,
    left: AtomicU32,
    most_lingering: AtomicU32,
}

fn millis(rng: &mut TestRng, least: usize, most: usize) -> Duration {
    Duration::from_millis(rng.between(least, most) as u64)
}

fn count(what: &AtomicU32) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Starts a query and drops its future.
async fn leave(client: &ConnectionGuard<PostgresClient>, rng: &mut TestRng, sql: &str) {
    let span = millis(rng, 1, 40);
    let _gone = tokio::time::timeout(span, client.simple_query(sql)).await;
}

/// Uses a connection in a random way and returns it.
async fn use_one(
    server: &Postgres,
    mut client: ConnectionGuard<PostgresClient>,
    rng: &mut TestRng,
    counts: &StormCounts,
) {
    count(&counts.lent);
    match rng.below(100) {
        0..55 => drop(client.simple_query("SELECT pg_sleep(0.003)").await),
        55..65 => {
            count(&counts.stubborn);
            let seconds = millis(rng, 300, 3_000).as_secs_f64();
            leave(&client, rng, &format!("SELECT stubborn({seconds})")).await;
        }
        65..75 => {
            count(&counts.left);
            leave(&client, rng, "BEGIN; SELECT pg_sleep(2)").await;
        }
        75..85 => {
            count(&counts.ended);
            drop(client.simple_query("SELECT pg_terminate_backend(pg_backend_pid())").await);
        }
        85..90 => client.mark_bad(),
        _ => {
            // The network may be stalled.
            let Ok(pid) = tokio::time::timeout(Duration::from_secs(1), pid_of(&client)).await else { return };
            let Some(pid) = pid else { return };
            count(&counts.frozen);
            server.freeze_backend(pid);
            if rng.percent(50) {
                client.mark_bad();
            }
            drop(client);
            tokio::time::sleep(millis(rng, 200, 3_000)).await;
            server.thaw_backend(pid);
        }
    }
}

async fn pid_of(client: &ConnectionGuard<PostgresClient>) -> Option<u32> {
    let row = client.query_one("SELECT pg_backend_pid()", &[]).await.ok()?;
    Some(row.get::<_, i32>(0) as u32)
}

async fn call(
    server: &Postgres,
    reservoir: &PostgresReservoir,
    mut rng: TestRng,
    until: Instant,
    counts: &StormCounts,
) {
    while Instant::now() < until {
        match reservoir.checkout_within(millis(&mut rng, 50, 500)).await {
            Ok(client) => {
                use_one(server, client, &mut rng, counts).await;
            }
            Err(CheckoutError::Empty { .. }) => count(&counts.without),
            Err(error) => panic!("{error}"),
        }
        let lingering = reservoir.status().lingering;
        counts.most_lingering.fetch_max(lingering, Ordering::Relaxed);
    }
}

/// Stalls, delays and half-closes. No cuts or resets: to the reservoir those are the server's
/// close.
async fn inject_network_faults(proxy: &Proxy, mut rng: TestRng, until: Instant) {
    while Instant::now() < until {
        match rng.below(4) {
            0 => proxy.half_close(Direction::ToServer),
            1 => proxy.delay(millis(&mut rng, 1, 30)),
            _ => proxy.stall(rng.pick(&[Direction::ToServer, Direction::ToClient, Direction::Both])),
        }
        tokio::time::sleep(millis(&mut rng, 50, 1_200)).await;
        proxy.resume();
        tokio::time::sleep(millis(&mut rng, 50, 600)).await;
    }
}

async fn run_random_faults(span: Duration, seed: u64) {
    eprintln!("FOREBAY_SEED={seed}, {span:?}");
    let server = Postgres::builder().tls().start().unwrap();
    let proxy = Proxy::start(server.addr());
    let (plain, encrypted) =
        (TestDatabase::new(&server, "storm_plain"), TestDatabase::new(&server, "storm_tls"));
    let short_lived = |config: forebay_reservoir::ReservoirConfig| {
        config.base_lifetime(Duration::from_secs(3)).guard_window(Duration::from_millis(300))
    };
    let url = format!(
        "postgres://postgres@{}/{}?sslmode=disable&application_name=storm_plain",
        proxy.addr(),
        plain.database
    );
    let short = Duration::from_millis(700);
    let through_proxy = PostgresConnect::builder(&url).unwrap().connect_timeout(short).build().unwrap();
    let reservoirs = [
        plain.start(through_proxy, short_lived(config())),
        encrypted.start(encrypted.connect("sslmode=require"), short_lived(config())),
    ];
    let monitors = [Monitor::start(&server, "storm_plain").await, Monitor::start(&server, "storm_tls").await];
    let (until, counts) = (Instant::now() + span, StormCounts::default());
    let callers = reservoirs.iter().enumerate().flat_map(|(at, reservoir)| {
        let (server, counts) = (&server, &counts);
        (0..CALLERS).map(move |caller| {
            call(server, reservoir, TestRng::of(seed, "caller", at * CALLERS + caller), until, counts)
        })
    });
    tokio::join!(join_all(callers), inject_network_faults(&proxy, TestRng::of(seed, "network", 0), until));
    for reservoir in &reservoirs {
        recovers(reservoir).await;
    }
    let most = monitors.each_ref().map(Monitor::most);
    eprintln!("at most {most:?} of {MAX} backends; {counts:?}");
    assert!(most.iter().all(|most| *most <= MAX), "{most:?} backends; {counts:?}");
    assert!(counts.most_lingering.into_inner() > 0, "no backend ended late");
    for reservoir in reservoirs {
        assert_eq!(reservoir.close(TEST_TIMEOUT).await, 0);
    }
}

#[tokio::test]
async fn random_faults_never_lead_to_more_backends_than_max() {
    run_random_faults(Duration::from_secs(5), seed()).await;
}

#[tokio::test]
#[ignore = "takes FOREBAY_SECONDS, 300 by default"]
async fn long_random_faults_never_lead_to_more_backends_than_max() {
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(300, |text| text.parse().expect("a number"));
    run_random_faults(Duration::from_secs(seconds), seed()).await;
}
