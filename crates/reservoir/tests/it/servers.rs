//! The reservoir on a real Postgres server: under load, through failures, and by the server's
//! records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_quota::RateConfig;
use forebay_reservoir::{
    CheckoutError, ConnectionErrorKind, ConnectionGuard, ConnectionLimits, PasswordFile, PostgresClient,
    PostgresConnect, Reservoir, ReservoirConfig, Reset, Shortage,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{Proxy, TEST_TIMEOUT, eventually};

pub(crate) type PostgresReservoir = Reservoir<PostgresClient>;

fn start(url: &str, config: ReservoirConfig) -> PostgresReservoir {
    start_with(
        PostgresConnect::new(url).unwrap(),
        config,
        ConnectionLimits::local().rate(RateConfig::per_second(1e6)),
    )
}

fn start_with(
    connect: PostgresConnect,
    config: ReservoirConfig,
    limits: ConnectionLimits,
) -> PostgresReservoir {
    Reservoir::start(connect, config.checkout_timeout(TEST_TIMEOUT), limits).unwrap()
}

/// Returns a new database and a full reservoir on it.
async fn filled(target: u32) -> (String, PostgresReservoir) {
    let url = Postgres::shared().url(&Postgres::shared().create_database("reservoir").unwrap());
    let reservoir = start(&url, ReservoirConfig::new(target).low_watermark(target));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    (url, reservoir)
}

async fn number(client: &ConnectionGuard<PostgresClient>, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Returns a reservoir for the test's own queries.
async fn observer(url: &str) -> PostgresReservoir {
    start(url, ReservoirConfig::new(1).service("observer"))
}

const BACKENDS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_tasks_share_eight_connections() {
    let (url, reservoir) = filled(8).await;
    let tasks: Vec<_> = (0..100_i64)
        .map(|task| {
            let reservoir = reservoir.clone();
            tokio::spawn(async move {
                for step in 0..10_i64 {
                    let client = reservoir.checkout().await.unwrap();
                    let row =
                        client.query_one("SELECT $1::int8 * 10 + $2::int8", &[&task, &step]).await.unwrap();
                    assert_eq!(row.get::<_, i64>(0), task * 10 + step);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let observer = observer(&url).await;
    let backends = number(&observer.checkout().await.unwrap(), BACKENDS).await;
    assert_eq!(backends, 8, "all were used, and none was added");
    eventually("all are ready again", 8, async || reservoir.status().counts.ready).await;
    assert_eq!(reservoir.close(TEST_TIMEOUT).await, 0);
    assert_eq!(
        number(&observer.checkout().await.unwrap(), BACKENDS).await,
        0,
        "the server has let go of all"
    );
}

#[tokio::test]
async fn session_state_of_one_caller_is_reset_for_the_next() {
    let (url, reservoir) = filled(1).await;
    let first = reservoir.checkout().await.unwrap();
    let statement = first.prepare("SELECT 41 + $1::int4").await.unwrap();
    first
        .batch_execute(
            "CREATE TABLE kept (x int); GRANT ALL ON kept TO pg_monitor; CREATE SEQUENCE counter; LISTEN news; SET work_mem = '1MB';
             SELECT pg_advisory_lock(7); CREATE TEMP TABLE scratch (x int); SELECT nextval('counter')",
        )
        .await
        .unwrap();
    first.batch_execute("DECLARE c CURSOR WITH HOLD FOR SELECT 1").await.unwrap();
    first.batch_execute("SET ROLE pg_monitor").await.unwrap();
    first.batch_execute("BEGIN; INSERT INTO kept VALUES (1)").await.unwrap();
    let pid = number(&first, "SELECT pg_backend_pid()::int8").await;
    drop(first);
    let next = reservoir.checkout().await.unwrap();
    assert_eq!(number(&next, "SELECT pg_backend_pid()::int8").await, pid, "it is the same connection");
    let left = [
        ("the transaction", "SELECT count(*) FROM kept"),
        ("the lock", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"),
        ("the subscription", "SELECT count(*) FROM pg_listening_channels()"),
        ("the cursor", "SELECT count(*) FROM pg_cursors WHERE name = 'c'"),
        ("the temporary table", "SELECT count(*) FROM pg_class WHERE relname = 'scratch'"),
        ("the role", "SELECT (current_user = 'pg_monitor')::int4::int8"),
        ("the setting", "SELECT count(*) FROM pg_settings WHERE name = 'work_mem' AND source = 'session'"),
    ];
    for (what, sql) in left {
        assert_eq!(number(&next, sql).await, 0, "{what} is still there");
    }
    let result: i32 = next.query_one(&statement, &[&1]).await.unwrap().get(0);
    assert_eq!(result, 42, "statements stay prepared");
    assert!(
        next.query_one("SELECT currval('counter')", &[]).await.is_err(),
        "the sequence's cache is discarded"
    );
    // A failed transaction is rolled back, too.
    next.batch_execute("BEGIN").await.unwrap();
    assert!(next.batch_execute("SELECT 1 / 0").await.is_err());
    drop(next);
    let third = reservoir.checkout().await.unwrap();
    assert_eq!(number(&third, "SELECT 1::int8").await, 1);
    drop((third, url));
}

#[tokio::test]
async fn a_custom_reset_and_no_reset_are_respected() {
    let url = Postgres::shared().url(&Postgres::shared().create_database("resets").unwrap());
    for (reset, expected) in [(Reset::None, 1), (Reset::Custom("ROLLBACK; SET work_mem = '2MB'".into()), 2)] {
        let reservoir = start(&url, ReservoirConfig::new(1).reset(reset));
        let first = reservoir.checkout().await.unwrap();
        first.batch_execute("SET work_mem = '1MB'").await.unwrap();
        drop(first);
        let next = reservoir.checkout().await.unwrap();
        let megabytes =
            number(&next, "SELECT setting::int8 / 1024 FROM pg_settings WHERE name = 'work_mem'").await;
        assert_eq!(megabytes, expected);
    }
}

#[tokio::test]
async fn connections_that_the_server_ends_are_replaced() {
    let (url, reservoir) = filled(4).await;
    let observer = observer(&url).await;
    let other = observer.checkout().await.unwrap();
    let held = reservoir.checkout().await.unwrap();
    let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert_eq!(number(&other, all).await, 4);
    assert!(held.query_one("SELECT 1", &[]).await.is_err(), "it was in use");
    drop(held);
    // Until the client notices the close, a closed connection may be lent; afterwards none is.
    eventually("four new connections", 4, async || {
        let counts = reservoir.status().counts;
        let backends = number(&other, BACKENDS).await;
        if counts.total() == 4 { backends.min(i64::from(counts.ready)) } else { -1 }
    })
    .await;
    let client = reservoir.checkout().await.unwrap();
    assert_eq!(number(&client, "SELECT 1::int8").await, 1);
}

#[tokio::test]
async fn a_cut_network_fails_only_queries_in_flight() {
    let database = Postgres::shared().create_database("cut").unwrap();
    let proxy = Proxy::start(Postgres::shared().addr());
    let url = format!("postgres://postgres@{}/{database}", proxy.addr());
    let reservoir = start(&url, ReservoirConfig::new(4).low_watermark(4));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let held = reservoir.checkout().await.unwrap();
    proxy.cut();
    assert!(held.query_one("SELECT 1", &[]).await.is_err());
    drop(held);
    eventually("it works again", true, async || {
        let Ok(client) = reservoir.checkout().await else { return false };
        client.query_one("SELECT 1", &[]).await.is_ok() && reservoir.status().counts.ready == 3
    })
    .await;
    // A silent network: the reset times out and retires the connection, and the next dial has a
    // deadline.
    let silent = reservoir.checkout().await.unwrap();
    proxy.stall(forebay_testkit::Direction::Both);
    drop(silent);
    eventually("the silent connection is retired", 0, async || reservoir.status().counts.resetting).await;
    proxy.resume();
    eventually("the reservoir is full again", 4, async || reservoir.status().counts.ready).await;
}

/// Not the shared server: it is down for half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reservoir_recovers_from_an_outage_of_half_a_minute() {
    let server = Arc::new(Postgres::start().unwrap());
    let reservoir = start(&server.url("postgres"), ReservoirConfig::new(4).low_watermark(4));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    server.kill();
    let down = Instant::now();
    let mut last_error = None;
    while down.elapsed() < Duration::from_secs(30) {
        if let Err(error) = reservoir.checkout_within(Duration::from_millis(500)).await {
            last_error = Some(error);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let Some(CheckoutError::Empty { why: Shortage::Connect { kind, .. }, .. }) = &last_error else {
        panic!("last error: {last_error:?}")
    };
    assert_eq!(*kind, ConnectionErrorKind::Unreachable);
    let reviving = server.clone();
    tokio::task::spawn_blocking(move || reviving.revive().unwrap()).await.unwrap();
    eventually("it is full again", 4, async || reservoir.status().counts.ready).await;
    let client = reservoir.checkout().await.unwrap();
    assert_eq!(number(&client, "SELECT 1::int8").await, 1);
}

#[tokio::test]
async fn a_restart_of_the_server_is_survived() {
    let server = Postgres::start().unwrap();
    let reservoir = start(&server.url("postgres"), ReservoirConfig::new(3).low_watermark(3));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let first_pid = number(&reservoir.checkout().await.unwrap(), "SELECT pg_backend_pid()::int8").await;
    tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    })
    .await
    .map(|server| async move {
        eventually("a new connection works", true, async || {
            let Ok(client) = reservoir.checkout().await else { return false };
            let row = client.query_one("SELECT pg_backend_pid()::int8", &[]).await;
            row.is_ok_and(|row| row.get::<_, i64>(0) != first_pid)
        })
        .await;
        drop(server);
    })
    .unwrap()
    .await;
}

#[tokio::test]
async fn a_full_server_is_reported_and_retried_after_a_backoff() {
    let server = Postgres::builder().config("max_connections", "8").start().unwrap();
    server.execute("postgres", "CREATE ROLE app LOGIN").unwrap();
    let url = format!("postgres://app@{}/postgres", server.addr());
    // Five connections are for normal users, three for superusers.
    let reservoir = start(&url, ReservoirConfig::new(20));
    eventually("five, and no more", (5, true), async || {
        let status = reservoir.status();
        (status.counts.ready, status.last_failure.is_some())
    })
    .await;
    let held: Vec<_> = futures_util::future::join_all((0..5).map(|_| reservoir.checkout())).await;
    assert!(held.iter().all(Result::is_ok));
    let error = reservoir.checkout_within(Duration::from_millis(100)).await.unwrap_err();
    let CheckoutError::Empty { why: Shortage::Connect { kind: ConnectionErrorKind::Full, why }, .. } = &error
    else {
        panic!("{error:?}")
    };
    assert!(why.starts_with("the server has no room"), "{why}");
    // By the server's clock, because a busy machine may check late.
    let refused = || -> Vec<u64> {
        let log = server.log();
        let is_refusal = |line: &&str| {
            line.contains("too many clients already") || line.contains("remaining connection slots")
        };
        log.lines().filter(is_refusal).filter_map(time_of_day).collect()
    };
    let before = refused().len();
    assert!(before > 0);
    eventually("it tries again", true, async || refused().len() > before).await;
    let times = refused();
    let waited = times.windows(2).position(|pair| (pair[1] + DAY_MS - pair[0]) % DAY_MS >= 900);
    let together = waited.expect("it waits a second at least before it tries again") + 1;
    assert!(together <= 8, "{together} dials of those that were on their way together");
}

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Returns the time of a log line, its second field, in milliseconds.
fn time_of_day(line: &str) -> Option<u64> {
    let mut parts = line.split(' ').nth(1)?.split(':');
    let (hours, minutes) = (parts.next()?.parse::<u64>().ok()?, parts.next()?.parse::<u64>().ok()?);
    let seconds = parts.next()?.parse::<f64>().ok()?;
    Some((hours * 60 + minutes) * 60_000 + (seconds * 1000.0) as u64)
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_a_new_one_is_used_at_once() {
    let server = Postgres::builder().password("for the superuser").start().unwrap();
    server.execute("postgres", "CREATE ROLE app LOGIN PASSWORD 'first'").unwrap();
    let folder = std::env::temp_dir().join(format!("forebay-reservoir-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let url = format!("postgres://app@{}/postgres", server.addr());
    let connect =
        PostgresConnect::builder(&url).unwrap().password_from(PasswordFile::new(&file)).build().unwrap();
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6));
    let reservoir = start_with(connect, ReservoirConfig::new(2).low_watermark(2), limits);
    let error = reservoir.initial_fill(Duration::from_secs(3)).await.unwrap_err();
    assert!(matches!(&error.why, Shortage::Connect { kind: ConnectionErrorKind::Refused, .. }), "{error:?}");
    assert!(!error.to_string().contains("wrong"), "{error}");
    std::fs::write(&file, "first\n").unwrap();
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    // After a rotation, open connections stay open and new ones use the new password.
    server.execute("postgres", "ALTER ROLE app PASSWORD 'second'").unwrap();
    std::fs::write(&file, "second\n").unwrap();
    let mut old = reservoir.checkout().await.unwrap();
    assert_eq!(number(&old, "SELECT 1::int8").await, 1);
    old.mark_bad();
    drop(old);
    eventually("the retired connection is replaced", 2, async || reservoir.status().counts.ready).await;
    assert_eq!(reservoir.status().last_failure, None);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn no_more_connections_are_opened_per_second_than_the_rate_allows() {
    const TARGET: u32 = 40;
    const RATE: f64 = 10.0;
    /// How much later than its token a busy machine may open a connection, in seconds.
    const SLACK: f64 = 1.5;
    let url = Postgres::shared().url(&Postgres::shared().create_database("rate").unwrap());
    let observer = observer(&url).await;
    let other = observer.checkout().await.unwrap();
    let rate = ConnectionLimits::local().rate(RateConfig::per_second(RATE).burst(4));
    let config = ReservoirConfig::new(TARGET).low_watermark(TARGET);
    let reservoir = start_with(PostgresConnect::new(&url).unwrap(), config, rate);
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let sql = "SELECT extract(epoch FROM backend_start)::float8 FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY 1";
    let starts: Vec<f64> = other.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(starts.len(), TARGET as usize);
    // The token is spent before the dial, and the server records its time after it. A busy machine
    // may bring two dials closer together, but not exceed the rate over the whole fill.
    let took = starts[starts.len() - 1] - starts[0];
    assert!(took >= (f64::from(TARGET) - 1.0 - 4.0) / RATE - SLACK, "{TARGET} in {took} s");
    for (first, last) in starts.iter().zip(&starts[24..]) {
        assert!(last - first >= 20.0 / RATE - SLACK, "25 within {} s", last - first);
    }
}

#[tokio::test]
async fn all_parts_of_a_process_share_one_reservoir_for_a_database() {
    let database = Postgres::shared().create_database("shared").unwrap();
    let shared = |database: &str, target| {
        let connect = PostgresConnect::new(&Postgres::shared().url(database)).unwrap();
        Reservoir::shared(connect, ReservoirConfig::new(target), ConnectionLimits::local()).unwrap()
    };
    let first = shared(&database, 3);
    let (again, other) = (shared(&database, 9), shared("postgres", 1));
    assert_eq!((again.status().target, other.status().target), (3, 1), "the first one's settings hold");
    let view = again.view("jobs", 1);
    assert_eq!(first.status().views.len(), 2);
    drop((first, again, view));
    assert_eq!(shared(&database, 5).status().target, 5, "it closed with its last handle");
}
