//! All of it together, by chance: stubborn queries, frozen backends, callers that leave, ends in the middle, a network that
//! stalls and half-closes, with TLS and without.
//!
//! `FOREBAY_SECONDS=600 FOREBAY_SEED=7 cargo nextest run -p forebay-reservoir --all-features --run-ignored only
//! slow_to_die_for_long` takes longer, with another seed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_reservoir::{CheckoutError, Guard, PostgresClient, PostgresConnect};
use forebay_sandbox::Postgres;
use forebay_testkit::{Dice, Direction, PATIENCE, Proxy, seed};
use futures_util::future::join_all;

use super::{MAX, Monitor, Pg, Site, config, is_well_again};

const CALLERS: usize = 8;

/// What happened, for the record.
#[derive(Debug, Default)]
struct Seen {
    lent: AtomicU32,
    without: AtomicU32,
    stubborn: AtomicU32,
    frozen: AtomicU32,
    ended: AtomicU32,
    left: AtomicU32,
    most_lingering: AtomicU32,
}

fn millis(dice: &mut Dice, least: usize, most: usize) -> Duration {
    Duration::from_millis(dice.between(least, most) as u64)
}

fn count(what: &AtomicU32) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Leaves a query of this kind running.
async fn leave(client: &Guard<PostgresClient>, dice: &mut Dice, sql: &str) {
    let span = millis(dice, 1, 40);
    let _gone = tokio::time::timeout(span, client.simple_query(sql)).await;
}

/// Does one thing to a connection, and gives it back.
async fn use_one(server: &Postgres, mut client: Guard<PostgresClient>, dice: &mut Dice, seen: &Seen) {
    count(&seen.lent);
    match dice.below(100) {
        0..55 => drop(client.simple_query("SELECT pg_sleep(0.003)").await),
        55..65 => {
            count(&seen.stubborn);
            let seconds = millis(dice, 300, 3_000).as_secs_f64();
            leave(&client, dice, &format!("SELECT stubborn({seconds})")).await;
        }
        65..75 => {
            count(&seen.left);
            leave(&client, dice, "BEGIN; SELECT pg_sleep(2)").await;
        }
        75..85 => {
            count(&seen.ended);
            drop(client.simple_query("SELECT pg_terminate_backend(pg_backend_pid())").await);
        }
        85..90 => client.mark_bad(),
        _ => {
            // A network that stalls may not answer for a while.
            let Ok(pid) = tokio::time::timeout(Duration::from_secs(1), pid_of(&client)).await else { return };
            let Some(pid) = pid else { return };
            count(&seen.frozen);
            server.freeze_backend(pid);
            if dice.percent(50) {
                client.mark_bad();
            }
            drop(client);
            tokio::time::sleep(millis(dice, 200, 3_000)).await;
            server.thaw_backend(pid);
        }
    }
}

async fn pid_of(client: &Guard<PostgresClient>) -> Option<u32> {
    let row = client.query_one("SELECT pg_backend_pid()", &[]).await.ok()?;
    Some(row.get::<_, i32>(0) as u32)
}

async fn call(server: &Postgres, reservoir: &Pg, mut dice: Dice, until: Instant, seen: &Seen) {
    while Instant::now() < until {
        match reservoir.checkout_within(millis(&mut dice, 50, 500)).await {
            Ok(client) => {
                use_one(server, client, &mut dice, seen).await;
            }
            Err(CheckoutError::Empty { .. }) => count(&seen.without),
            Err(error) => panic!("{error}"),
        }
        let lingering = reservoir.status().lingering;
        seen.most_lingering.fetch_max(lingering, Ordering::Relaxed);
    }
}

/// Neither cuts nor resets: to the reservoir those are the server's own word that it has closed.
async fn trouble(proxy: &Proxy, mut dice: Dice, until: Instant) {
    while Instant::now() < until {
        match dice.below(4) {
            0 => proxy.half_close(Direction::ToServer),
            1 => proxy.delay(millis(&mut dice, 1, 30)),
            _ => proxy.stall(dice.pick(&[Direction::ToServer, Direction::ToClient, Direction::Both])),
        }
        tokio::time::sleep(millis(&mut dice, 50, 1_200)).await;
        proxy.resume();
        tokio::time::sleep(millis(&mut dice, 50, 600)).await;
    }
}

async fn storm(span: Duration, seed: u64) {
    eprintln!("FOREBAY_SEED={seed}, {span:?}");
    let server = Postgres::builder().tls().start().unwrap();
    let proxy = Proxy::start(server.addr());
    let (plain, encrypted) = (Site::new(&server, "storm_plain"), Site::new(&server, "storm_tls"));
    let lives = |config: forebay_reservoir::ReservoirConfig| {
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
        plain.start(through_proxy, lives(config())),
        encrypted.start(encrypted.connect("sslmode=require"), lives(config())),
    ];
    let monitors = [Monitor::start(&server, "storm_plain").await, Monitor::start(&server, "storm_tls").await];
    let (until, seen) = (Instant::now() + span, Seen::default());
    let callers = reservoirs.iter().enumerate().flat_map(|(at, reservoir)| {
        let (server, seen) = (&server, &seen);
        (0..CALLERS).map(move |caller| {
            call(server, reservoir, Dice::of(seed, "caller", at * CALLERS + caller), until, seen)
        })
    });
    tokio::join!(join_all(callers), trouble(&proxy, Dice::of(seed, "network", 0), until));
    for reservoir in &reservoirs {
        is_well_again(reservoir).await;
    }
    let most = monitors.each_ref().map(Monitor::most);
    eprintln!("at most {most:?} of {MAX} backends; {seen:?}");
    assert!(most.iter().all(|most| *most <= MAX), "{most:?} backends; {seen:?}");
    assert!(seen.most_lingering.into_inner() > 0, "nothing was slow to die");
    for reservoir in reservoirs {
        assert_eq!(reservoir.close(PATIENCE).await, 0);
    }
}

#[tokio::test]
async fn a_storm_of_backends_that_are_slow_to_die_stays_within_the_bound() {
    storm(Duration::from_secs(5), seed()).await;
}

#[tokio::test]
#[ignore = "takes FOREBAY_SECONDS, 300 by default"]
async fn a_storm_of_backends_that_are_slow_to_die_for_long_stays_within_the_bound() {
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(300, |text| text.parse().expect("a number"));
    storm(Duration::from_secs(seconds), seed()).await;
}
