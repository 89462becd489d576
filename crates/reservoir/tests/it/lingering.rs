//! Backends that are slow to die: the server never has more than `max`, by its own list (`pg_stat_activity`) and by its
//! processes.

mod pools;
mod storm;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_quota::RateConfig;
use forebay_reservoir::{
    CheckoutError, Connect, Guard, Limits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig,
    Reset, Shortage,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{PATIENCE, eventually};
use futures_util::future::join_all;
use tokio::task::JoinHandle;

type Pg = Reservoir<PostgresClient>;

const TARGET: u32 = 4;
const MAX: u32 = 5;

/// Sleeps for so many seconds, and ignores cancellation.
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
    -- Runs until there is a row in `released`, and ignores cancellation.
    CREATE FUNCTION stubborn() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        LOOP
            BEGIN
                EXIT WHEN EXISTS (SELECT FROM released);
                PERFORM pg_sleep(0.02);
            EXCEPTION WHEN query_canceled THEN NULL;
            END;
        END LOOP;
    END $$";

/// Its own database on a server, and one application name.
struct Site<'a> {
    server: &'a Postgres,
    database: String,
    name: String,
}

impl<'a> Site<'a> {
    fn new(server: &'a Postgres, name: &str) -> Self {
        let database = server.create_database(name).unwrap();
        server.execute(&database, STUBBORN).unwrap();
        Site { server, database, name: name.into() }
    }

    fn connect(&self, more: &str) -> PostgresConnect {
        let url = format!("{}?application_name={}&{more}", self.server.url(&self.database), self.name);
        PostgresConnect::new(&url).unwrap()
    }

    fn start(&self, connect: PostgresConnect, config: ReservoirConfig) -> Pg {
        Reservoir::start(connect, config, Limits::local().rate(RateConfig::per_second(1e6))).unwrap()
    }

    /// A reservoir that is full, and the count of its backends from now on.
    async fn filled(&self, more: &str) -> (Pg, Monitor) {
        let reservoir = self.start(self.connect(more), config());
        reservoir.initial_fill(PATIENCE).await.unwrap();
        (reservoir, Monitor::start(self.server, &self.name).await)
    }
}

fn config() -> ReservoirConfig {
    ReservoirConfig::new(TARGET).low_watermark(TARGET).max(MAX)
}

/// Counts backends all the time, and keeps the most that there were.
struct Monitor {
    most: Arc<AtomicU32>,
    samples: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// By `pg_stat_activity`, as the superuser.
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

    /// By the server's processes: those that still authenticate count, too.
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
        assert!(!self.task.is_finished(), "it counts no more");
        assert!(self.samples.load(Ordering::Relaxed) > 50, "it has hardly counted");
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pid(client: &Guard<PostgresClient>) -> u32 {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    pid as u32
}

/// Sends a query, and doesn't wait for the answer.
async fn abandon(client: &PostgresClient, sql: &str) {
    let answered = tokio::time::timeout(Duration::from_millis(50), client.simple_query(sql)).await;
    assert!(answered.is_err(), "{sql}: {answered:?}");
}

/// More callers than there may be connections ask for one, for so long. Returns whether one went without because the server
/// hadn't closed enough.
async fn press(reservoir: &Pg, span: Duration) -> bool {
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

async fn is_well_again(reservoir: &Pg) {
    eventually("it is full, and nothing lingers", (TARGET, 0), async || {
        let status = reservoir.status();
        (status.counts.ready, status.counts.retiring)
    })
    .await;
}

#[tokio::test]
async fn queries_that_catch_their_cancellation_keep_their_places_until_they_end() {
    let site = Site::new(Postgres::shared(), "stubborn");
    let (reservoir, monitor) = site.filled("").await;
    for number in 0..MAX {
        let mut client = reservoir.checkout_within(PATIENCE).await.unwrap();
        abandon(&client, "SELECT stubborn()").await;
        // A reset that takes too long retires it just as well.
        if number % 2 == 0 {
            client.mark_bad();
        }
    }
    let told = press(&reservoir, Duration::from_millis(3_200)).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
    assert!(told, "nobody was told what is waited for");
    eventually("all linger", (MAX, MAX), async || {
        let status = reservoir.status();
        (status.lingering, status.counts.total())
    })
    .await;
    let longest = reservoir.status().longest_lingering.unwrap();
    assert!(longest > Duration::from_secs(2), "{longest:?}");
    site.server.execute(&site.database, "INSERT INTO released VALUES (now())").unwrap();
    is_well_again(&reservoir).await;
    assert_eq!(monitor.most(), MAX);
}

/// Freezes all backends while they are lent, gives them back, and thaws them after a while.
async fn freeze_and_thaw(server: &Postgres, mode: &str) {
    let site = Site::new(server, &format!("frozen_{mode}"));
    let (reservoir, monitor) = site.filled(&format!("sslmode={mode}")).await;
    let mut clients: Vec<_> =
        join_all((0..TARGET).map(|_| reservoir.checkout())).await.into_iter().map(Result::unwrap).collect();
    let pids: Vec<_> = join_all(clients.iter().map(pid)).await;
    pids.iter().for_each(|pid| server.freeze_backend(*pid));
    // Idle, and closed at once; idle, and its reset hangs; busy, and nothing cancels its query.
    clients[0].mark_bad();
    abandon(&clients[1], "SELECT pg_sleep(60)").await;
    drop(clients);
    press(&reservoir, Duration::from_millis(3_500)).await;
    assert!(monitor.most() <= MAX, "{mode}: {} backends", monitor.most());
    eventually("all linger", TARGET, async || reservoir.status().lingering).await;
    pids.iter().for_each(|pid| server.thaw_backend(*pid));
    is_well_again(&reservoir).await;
    let most = monitor.most();
    assert!((TARGET..=MAX).contains(&most), "{mode}: {most} backends");
    assert_eq!(reservoir.close(PATIENCE).await, 0);
}

#[tokio::test]
async fn frozen_backends_keep_their_places_until_they_are_gone_with_tls_and_without() {
    let server = Postgres::builder().tls().start().unwrap();
    join_all(["disable", "require"].map(|mode| freeze_and_thaw(&server, mode))).await;
}

#[tokio::test]
async fn backends_that_still_authenticate_when_a_dial_is_given_up_keep_its_place() {
    let server = Postgres::shared();
    let site = Site::new(server, "slow_auth");
    server.execute("postgres", "CREATE ROLE slow_auth LOGIN").unwrap();
    let url = format!(
        "postgres://slow_auth@{}/{}?options=-c%20post_auth_delay%3D2&target_session_attrs=primary",
        server.addr(),
        site.database
    );
    let connect = PostgresConnect::builder(&url).unwrap().connect_timeout(Duration::from_millis(300));
    let monitor = Monitor::of_processes(server, "slow_auth");
    let reservoir = site.start(connect.build().unwrap(), config());
    eventually("dials were given up", true, async || reservoir.status().trouble.is_some()).await;
    // One of them will never get to read that nobody is there any more.
    let frozen = server.backends("slow_auth")[0];
    server.freeze_backend(frozen);
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
    assert!(server.backends("slow_auth").contains(&frozen), "it was frozen too late");
    let longest = reservoir.status().longest_lingering.unwrap();
    assert!(longest > Duration::from_millis(2_500), "the frozen one has lost its place: {longest:?}");
    server.thaw_backend(frozen);
    assert_eq!(reservoir.close(PATIENCE).await, 0);
    assert_eq!(server.backends("slow_auth"), Vec::<u32>::new());
}

#[tokio::test]
async fn backends_that_end_in_the_reset_are_replaced_within_the_bound() {
    let site = Site::new(Postgres::shared(), "dies_in_reset");
    let reset = Reset::Custom("ROLLBACK; SELECT pg_sleep(0.1)".into());
    let reservoir = site.start(site.connect(""), config().reset(reset));
    reservoir.initial_fill(PATIENCE).await.unwrap();
    let monitor = Monitor::start(site.server, &site.name).await;
    let killer = PostgresConnect::new(&site.server.url("postgres")).unwrap();
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
    let pressing = async { while !press(&reservoir, Duration::from_millis(200)).await {} };
    tokio::select! {
        () = killing => {}
        () = pressing => panic!("a backend that was ended lingers"),
    }
    is_well_again(&reservoir).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
}

/// The kernel gives the connection up after `tcp_user_timeout`, since the window stays full; but the host answers its probes.
#[tokio::test]
async fn a_connection_that_the_kernel_gave_up_while_the_server_reads_nothing_keeps_its_place() {
    let site = Site::new(Postgres::shared(), "full_window");
    let reservoir = site.start(site.connect("tcp_user_timeout=6000"), config());
    reservoir.initial_fill(PATIENCE).await.unwrap();
    let monitor = Monitor::start(site.server, &site.name).await;
    let clients: Vec<_> =
        join_all((0..TARGET).map(|_| reservoir.checkout())).await.into_iter().map(Result::unwrap).collect();
    let pids: Vec<_> = join_all(clients.iter().map(pid)).await;
    pids.iter().for_each(|pid| site.server.freeze_backend(*pid));
    let big = format!("SELECT length('{}')", "x".repeat(32 << 20));
    let lost = join_all(clients.iter().map(|client| client.simple_query(&big))).await;
    assert!(lost.iter().all(Result::is_err), "the kernel gives up");
    drop(clients);
    press(&reservoir, Duration::from_millis(1_500)).await;
    assert!(monitor.most() <= MAX, "{} backends", monitor.most());
    // That the server has closed them is never heard of here: the close timeout ends it, in ten minutes.
    eventually("all linger", TARGET, async || reservoir.status().lingering).await;
    pids.iter().for_each(|pid| site.server.thaw_backend(*pid));
}
