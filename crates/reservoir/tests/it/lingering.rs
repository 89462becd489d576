//! Backends that end late: the server never has more than `max`, by `pg_stat_activity` and by its
//! processes.

mod pools;
mod random_faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::RateConfig;
use forebay_reservoir::{
    CheckoutError, Connect, ConnectionGuard, ConnectionLimits, PostgresClient, PostgresConnect, Reservoir,
    ReservoirConfig, Reset, Shortage,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{TEST_TIMEOUT, eventually};
use futures_util::future::join_all;
use tokio::task::JoinHandle;

pub(crate) use crate::servers::PostgresReservoir;

const TARGET: u32 = 4;
const MAX: u32 = 5;

/// SQL functions that sleep and ignore cancellation.
const STUBBORN: &str = "CREATE FUNCTION stubborn(seconds float8) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE ends_at timestamptz := clock_timestamp() + make_interval(secs => seconds);
    BEGIN
        WHILE clock_timestamp() < ends_at LOOP
            BEGIN
                PERFORM pg_sleep(extract(epoch FROM ends_at - clock_timestamp()));
            EXCEPTION WHEN query_canceled THEN NULL;
            END;
        END LOOP;
    END $$;
    CREATE TABLE released (at timestamptz);
    -- Runs until there is a row in `released`, and ignores cancellation. The outer block catches a
    -- cancellation that arrives between two turns of the inner loop.
    CREATE FUNCTION stubborn() RETURNS void LANGUAGE plpgsql AS $$
    DECLARE done boolean := false;
    BEGIN
        WHILE NOT done LOOP
            BEGIN
                WHILE NOT done LOOP
                    BEGIN
                        done := EXISTS (SELECT FROM released);
                        PERFORM pg_sleep(0.02);
                    EXCEPTION WHEN query_canceled THEN NULL;
                    END;
                END LOOP;
            EXCEPTION WHEN query_canceled THEN NULL;
            END;
        END LOOP;
    END $$";

/// A database of a test, and the application name of its connections.
struct TestDatabase<'a> {
    server: &'a Postgres,
    database: String,
    name: String,
}

impl<'a> TestDatabase<'a> {
    fn new(server: &'a Postgres, name: &str) -> Self {
        let database = server.create_database(name).unwrap();
        server.execute(&database, STUBBORN).unwrap();
        TestDatabase { server, database, name: name.into() }
    }

    fn connect(&self, more: &str) -> PostgresConnect {
        let url = format!("{}?application_name={}&{more}", self.server.url(&self.database), self.name);
        PostgresConnect::new(&url).unwrap()
    }

    fn start(&self, connect: PostgresConnect, config: ReservoirConfig) -> PostgresReservoir {
        Reservoir::start(connect, config, ConnectionLimits::local().rate(RateConfig::per_second(1e6)))
            .unwrap()
    }

    /// Returns a full reservoir and a monitor of its backends.
    async fn filled(&self, more: &str) -> (PostgresReservoir, Monitor) {
        let reservoir = self.start(self.connect(more), config());
        reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
        (reservoir, Monitor::start(self.server, &self.name).await)
    }
}

fn config() -> ReservoirConfig {
    ReservoirConfig::new(TARGET).low_watermark(TARGET).max(MAX)
}

/// Counts backends continuously and keeps the maximum.
struct Monitor {
    most: Arc<AtomicU32>,
    samples: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// Counts in `pg_stat_activity`, as superuser.
    async fn start(server: &Postgres, name: &str) -> Self {
        let connect = PostgresConnect::new(&server.url("postgres")).unwrap();
        let client = connect.connect(connect.credentials().await.unwrap()).await.unwrap();
        let sql = format!("SELECT count(*)::int4 FROM pg_stat_activity WHERE application_name = '{name}'");
        let (most, samples) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        let counted = (most.clone(), samples.clone());
        let task = tokio::spawn(async move {
            loop {
                let count: i32 = client.query_one(&sql, &[]).await.unwrap().get(0);
                counted.0.fetch_max(count as u32, Ordering::Relaxed);
                counted.1.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        Monitor { most, samples, task }
    }

    /// Counts the server's processes, including those that authenticate.
    fn of_processes(server: &'static Postgres, user: &'static str) -> Self {
        let (most, samples) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        let counted = (most.clone(), samples.clone());
        let task = tokio::spawn(async move {
            loop {
                counted.0.fetch_max(server.backends(user).len() as u32, Ordering::Relaxed);
                counted.1.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Monitor { most, samples, task }
    }

    fn most(&self) -> u32 {
        assert!(!self.task.is_finished(), "the monitor has stopped");
        assert!(self.samples.load(Ordering::Relaxed) > 50, "too few samples");
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pid(client: &ConnectionGuard<PostgresClient>) -> u32 {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    pid as u32
}

/// Sends a query and drops its future.
async fn abandon(client: &PostgresClient, sql: &str) {
    let result = tokio::time::timeout(Duration::from_millis(50), client.simple_query(sql)).await;
    assert!(result.is_err(), "{sql}: {result:?}");
}

/// Abandons a query once its backend executes `pg_sleep`: from then on it ignores cancellation.
async fn abandon_stubborn(server: &Postgres, client: &ConnectionGuard<PostgresClient>) {
    let pid = pid(client).await;
    abandon(client, "SELECT stubborn()").await;
    let sql = format!("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {pid}");
    let asleep = vec![vec![Some("t".to_owned())]];
    eventually("the query sleeps", asleep, async || server.query("postgres", &sql).unwrap()).await;
}

/// Runs more callers than connections for `span`. Returns whether a checkout failed with
/// `Lingering`.
async fn run_callers(reservoir: &PostgresReservoir, span: Duration) -> bool {
    let until = Instant::now() + span;
    let caller = async || {
        let mut was_lingering = false;
        while Instant::now() < until {
            match reservoir.checkout_within(Duration::from_millis(200)).await {
                Ok(client) => {
                    let _lost = client.simple_query("SELECT pg_sleep(0.01)").await;
                }
                Err(CheckoutError::Empty { why: Shortage::Lingering { max, .. }, .. }) => {
                    assert_eq!(max, MAX);
                    was_lingering = true;
                }
                Err(CheckoutError::Empty { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        was_lingering
    };
    join_all((0..2 * MAX).map(|_| caller())).await.contains(&true)
}

async fn recovers(reservoir: &PostgresReservoir) {
    eventually("it is full, and nothing lingers", (TARGET, 0), async || {
        let status = reservoir.status();
        (status.counts.ready, status.counts.retiring)
    })
    .await;
}

#[tokio::test]
async fn queries_that_catch_their_cancellation_keep_their_slots_until_they_end() {
    let test_db = TestDatabase::new(Postgres::shared(), "stubborn");
    let (reservoir, monitor) = test_db.filled("").await;
    for number in 0..MAX {
        let mut client = reservoir.checkout_within(TEST_TIMEOUT).await.unwrap();
        abandon_stubborn(test_db.server, &client).await;
        // A reset that times out retires the connection, too.
        if number % 2 == 0 {
            client.mark_bad();
        }
    }
    let was_lingering = run_callers(&reservoir, Duration::from_millis(3_200)).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
    assert!(was_lingering, "no checkout failed with Lingering");
    eventually("all linger", (MAX, MAX), async || {
        let status = reservoir.status();
        (status.lingering, status.counts.total())
    })
    .await;
    let longest = reservoir.status().longest_lingering.unwrap();
    assert!(longest > Duration::from_secs(2), "{longest:?}");
    test_db.server.execute(&test_db.database, "INSERT INTO released VALUES (now())").unwrap();
    recovers(&reservoir).await;
    assert_eq!(monitor.most(), MAX);
}

/// Freezes all backends while they are lent, returns the connections, and thaws the backends later.
async fn freeze_and_thaw(server: &Postgres, mode: &str) {
    let test_db = TestDatabase::new(server, &format!("frozen_{mode}"));
    let (reservoir, monitor) = test_db.filled(&format!("sslmode={mode}")).await;
    let mut clients: Vec<_> =
        join_all((0..TARGET).map(|_| reservoir.checkout())).await.into_iter().map(Result::unwrap).collect();
    let pids: Vec<_> = join_all(clients.iter().map(pid)).await;
    pids.iter().for_each(|pid| server.freeze_backend(*pid));
    // One is idle and closed at once, some are idle and their reset hangs, one is busy and can't be
    // cancelled.
    clients[0].mark_bad();
    abandon(&clients[1], "SELECT pg_sleep(60)").await;
    drop(clients);
    run_callers(&reservoir, Duration::from_millis(3_500)).await;
    assert!(monitor.most() <= MAX, "{mode}: {} backends", monitor.most());
    eventually("all linger", TARGET, async || reservoir.status().lingering).await;
    pids.iter().for_each(|pid| server.thaw_backend(*pid));
    recovers(&reservoir).await;
    let most = monitor.most();
    assert!((TARGET..=MAX).contains(&most), "{mode}: {most} backends");
    assert_eq!(reservoir.close(TEST_TIMEOUT).await, 0);
}

#[tokio::test]
async fn frozen_backends_keep_their_slots_until_they_end_with_tls_and_without() {
    let server = Postgres::builder().tls().start().unwrap();
    join_all(["disable", "require"].map(|mode| freeze_and_thaw(&server, mode))).await;
}

#[tokio::test]
async fn backends_that_authenticate_after_a_dial_timed_out_keep_its_slot() {
    let server = Postgres::shared();
    let test_db = TestDatabase::new(server, "slow_auth");
    server.execute("postgres", "CREATE ROLE slow_auth LOGIN").unwrap();
    let url = format!(
        "postgres://slow_auth@{}/{}?options=-c%20post_auth_delay%3D2&target_session_attrs=primary",
        server.addr(),
        test_db.database
    );
    let connect = PostgresConnect::builder(&url).unwrap().connect_timeout(Duration::from_millis(300));
    let monitor = Monitor::of_processes(server, "slow_auth");
    let reservoir = test_db.start(connect.build().unwrap(), config());
    eventually("a dial has failed", true, async || reservoir.status().last_failure.is_some()).await;
    // A frozen backend can't notice that its client has disconnected.
    let frozen = server.backends("slow_auth")[0];
    server.freeze_backend(frozen);
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
    assert!(server.backends("slow_auth").contains(&frozen), "it was frozen too late");
    let longest = reservoir.status().longest_lingering.unwrap();
    assert!(
        longest > Duration::from_millis(2_500),
        "the slot of the frozen backend was released: {longest:?}"
    );
    server.thaw_backend(frozen);
    assert_eq!(reservoir.close(TEST_TIMEOUT).await, 0);
    assert_eq!(server.backends("slow_auth"), Vec::<u32>::new());
}

#[tokio::test]
async fn backends_that_end_in_the_reset_are_replaced_within_max() {
    let test_db = TestDatabase::new(Postgres::shared(), "dies_in_reset");
    let reset = Reset::Custom("ROLLBACK; SELECT pg_sleep(0.1)".into());
    let reservoir = test_db.start(test_db.connect(""), config().reset(reset));
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let monitor = Monitor::start(test_db.server, &test_db.name).await;
    let killer = PostgresConnect::new(&test_db.server.url("postgres")).unwrap();
    let killer = killer.connect(killer.credentials().await.unwrap()).await.unwrap();
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE application_name = 'dies_in_reset' AND query LIKE 'ROLLBACK%' AND state = 'active'";
    let killing = async {
        let mut killed = 0;
        loop {
            killed += killer.query_one(kill, &[]).await.unwrap().get::<_, i64>(0);
            if killed > 60 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let pressing = async { while !run_callers(&reservoir, Duration::from_millis(200)).await {} };
    tokio::select! {
        () = killing => {}
        () = pressing => panic!("a terminated backend lingers"),
    }
    recovers(&reservoir).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
}

/// The kernel times out after `tcp_user_timeout`, because the window stays full; but the host
/// answers window probes.
#[tokio::test]
async fn a_connection_that_timed_out_while_the_server_does_not_read_keeps_its_slot() {
    let test_db = TestDatabase::new(Postgres::shared(), "full_window");
    let reservoir = test_db.start(test_db.connect("tcp_user_timeout=6000"), config());
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let monitor = Monitor::start(test_db.server, &test_db.name).await;
    let clients: Vec<_> =
        join_all((0..TARGET).map(|_| reservoir.checkout())).await.into_iter().map(Result::unwrap).collect();
    let pids: Vec<_> = join_all(clients.iter().map(pid)).await;
    pids.iter().for_each(|pid| test_db.server.freeze_backend(*pid));
    let big = format!("SELECT length('{}')", "x".repeat(32 << 20));
    let lost = join_all(clients.iter().map(|client| client.simple_query(&big))).await;
    assert!(lost.iter().all(Result::is_err), "the kernel gives up");
    drop(clients);
    run_callers(&reservoir, Duration::from_millis(1_500)).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
    // The server's close is never received here: the slots are held until the close timeout of ten
    // minutes.
    eventually("all linger", TARGET, async || reservoir.status().lingering).await;
    pids.iter().for_each(|pid| test_db.server.thaw_backend(*pid));
}
