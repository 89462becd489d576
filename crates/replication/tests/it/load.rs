//! Much at once, little for long, and a consumer that takes its time: memory stays bounded, the connection lives, and the server keeps no
//! log that nobody needs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Batch, Bookmark, Consumer, ConsumerError, Durable, Manager, ManagerConfig, ResetReason, StackEvent, Step,
    TableName, Timeline,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{PATIENCE, eventually, within};
use tokio::sync::{broadcast::error::TryRecvError, watch};

use crate::journal::Journal;
use crate::supervision::{Call, Deed, Script, Scripted};
use crate::support::{Followed, insert};

const COUNT: &str = "FOREBAY_TEST_COUNT";

/// Counts the rows of whole transactions, and keeps nothing.
struct Counter {
    /// Nothing is taken while it is false.
    goes: watch::Receiver<bool>,
    pause: Duration,
    open: u64,
    counted: watch::Sender<u64>,
    durable: Option<Durable>,
}

impl Consumer for Counter {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        Ok(None)
    }

    async fn reset(&mut self, _: ResetReason, _: Bookmark) -> Result<(), ConsumerError> {
        Ok(())
    }

    async fn adopt(&mut self, _: Timeline) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn start(&mut self, durable: Durable) {
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut Batch<'_>) -> Result<(), ConsumerError> {
        self.goes.wait_for(|goes| *goes).await.map_err(ConsumerError::fatal)?;
        tokio::time::sleep(self.pause).await;
        while let Some(message) = batch.next() {
            match message {
                PgOutputMessage::Begin(_) => self.open = 0,
                PgOutputMessage::Insert(_) => self.open += 1,
                PgOutputMessage::Commit(commit) => {
                    self.counted.send_modify(|counted| *counted += self.open);
                    self.durable.as_ref().expect("a stream has begun").advance(commit.end_lsn);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.durable.as_ref().expect("a stream has begun").advance(lsn);
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}

/// A service in a process of its own, which follows a table `rows` and counts: this test binary again. It reads orders from its standard
/// input, one a line, and answers each with one line.
struct Service {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Service {
    /// `pause`: how long it takes for each batch.
    fn start(followed: &Followed<'_>, pause: Duration) -> Self {
        followed.sql("CREATE TABLE rows (id int, note text)");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["load::a_service_counts", "--exact", "--nocapture", "--test-threads=1"])
            .env(COUNT, format!("{} {} {}", followed.url(), followed.slot, pause.as_millis()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut service = Service { child, orders, answers };
        assert_eq!(service.answer(), "ready");
        service
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the service ended");
            // The test harness has its own lines, and may not have ended the last one.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    /// What it took of memory at most, in MB.
    fn peak_megabytes(&mut self) -> u64 {
        self.ask("peak").parse::<u64>().unwrap() / 1_000
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Does nothing unless it was started as a child by one of the tests below.
#[test]
fn a_service_counts() {
    let Ok(orders) = std::env::var(COUNT) else { return };
    let [url, slot, pause] = orders.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(url, slot, Duration::from_millis(pause.parse().unwrap())));
}

async fn serve(url: &str, slot: &str, pause: Duration) {
    let ((go, goes), (counted, mut counts)) = (watch::channel(true), watch::channel(0));
    let config = ManagerConfig::new(PostgresConnect::new(url).unwrap()).slot(slot).pool_size(2);
    let counter = Counter { goes, pause, open: 0, counted, durable: None };
    let manager = Manager::start(config, counter).unwrap();
    manager.ready().await.unwrap();
    manager.add_table(&TableName::new("public", "rows")).await.unwrap();
    let backend = manager.positions().backend_pid;
    println!("@ready");
    loop {
        let order = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        let order = order.await.unwrap().unwrap();
        let answer = match order.trim().split_once(' ').unwrap_or((order.trim(), "")) {
            ("stall", _) => u64::from(go.send_replace(false)),
            ("go", _) => u64::from(go.send_replace(true)),
            ("count", wanted) => {
                let wanted = wanted.parse().unwrap();
                *counts.wait_for(|counted| *counted >= wanted).await.unwrap()
            }
            ("peak", _) => peak_kilobytes(),
            ("same", _) => u64::from(manager.positions().backend_pid == backend),
            _ => return,
        };
        println!("@{answer}");
    }
}

fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_transaction_of_two_million_rows_takes_less_than_200_megabytes() {
    let followed = Followed::new(Postgres::shared());
    let mut service = Service::start(&followed, Duration::ZERO);
    let before = service.peak_megabytes();
    let began = Instant::now();
    followed.sql("INSERT INTO rows SELECT n, 'short' FROM generate_series(1, 2000000) n");
    let written = began.elapsed();
    assert_eq!(service.ask("count 2000000"), "2000000");
    let peak = service.peak_megabytes();
    println!(
        "2 million rows: written in {written:?}, there after {:?}, {before} MB before, {peak} MB at most",
        began.elapsed()
    );
    assert!(peak < 200, "{peak} MB");
    assert_eq!(service.ask("same"), "1", "it was connected all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_while_the_consumer_is_slower_than_the_writer_or_stands_still() {
    const ROWS: u64 = 100_000;
    let server = Postgres::builder().config("wal_sender_timeout", "5s").start().unwrap();
    let followed = Followed::new(&server);
    let mut service = Service::start(&followed, Duration::from_millis(10));
    let before = service.peak_megabytes();
    assert_eq!(service.ask("stall"), "1");
    // About 100 MB, in transactions of 1 MB.
    for _ in 0..100 {
        followed.sql(&format!(
            "INSERT INTO rows SELECT n, repeat('x', 1000) FROM generate_series(1, {}) n",
            ROWS / 100
        ));
    }
    // The sockets' buffers are full by now, and the server waits for longer than its timeout.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let stalled = service.peak_megabytes();
    assert_eq!(service.ask("go"), "0");
    assert_eq!(service.ask(&format!("count {ROWS}")), ROWS.to_string());
    let peak = service.peak_megabytes();
    println!("100 MB waiting: {before} MB before, {stalled} MB while it stood still, {peak} MB at most");
    assert!(peak < before + 20, "{before} MB, then {peak} MB");
    assert_eq!(service.ask("same"), "1", "it was connected all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_stands_still_for_longer_than_the_servers_timeout_stays_connected() {
    let timeout = Duration::from_secs(5);
    let server = Postgres::builder().config("wal_sender_timeout", "5s").start().unwrap();
    let followed = Followed::new(&server);
    let journal = Journal::open(&followed.journal());
    let gate = journal.gate.clone();
    let manager = Manager::start(followed.config(), journal).unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    let (mut events, backend) = (manager.events(), manager.positions().backend_pid.unwrap());
    let held = gate.lock().await;
    let stalled = Instant::now();
    // Changes and keepalives come meanwhile.
    let mut id = 1;
    while stalled.elapsed() < 2 * timeout {
        id += 1;
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'meanwhile')"));
        server.execute("postgres", "SELECT pg_logical_emit_message(false, 'a neighbour', 'writes')").unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(followed.changes(), [insert("orders", 1, "before")]);
    assert_eq!(manager.status().step, Step::Streaming);
    drop(held);
    let expected: Vec<_> =
        (1..=id).map(|id| insert("orders", id, if id == 1 { "before" } else { "meanwhile" })).collect();
    assert_eq!(followed.eventually_changes(expected.len()).await, expected);
    assert_eq!(manager.positions().backend_pid, Some(backend));
    let alive = format!("SELECT count(*) FROM pg_stat_replication WHERE pid = {backend}");
    assert_eq!(followed.ask(&alive).as_deref(), Some("1"));
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty), "no restart");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_takes_long_to_record_a_position_stays_connected_too() {
    let server = Postgres::builder().config("wal_sender_timeout", "4s").start().unwrap();
    let (followed, script) = (Followed::new(&server), Script::default());
    let manager = Manager::start(followed.config(), Scripted::new(&followed, &script)).unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    let (mut events, backend) = (manager.events(), manager.positions().backend_pid.unwrap());
    script.then(Call::Advance, Deed::Wait(Duration::from_secs(9)));
    server.execute("postgres", "SELECT pg_logical_emit_message(false, 'a neighbour', 'writes')").unwrap();
    eventually("a position is recorded", true, async || script.is_done()).await;
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "new")]);
    assert_eq!(manager.positions().backend_pid, Some(backend));
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty), "no restart");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_grows_while_the_consumer_stands_still_and_is_zero_on_an_idle_database() {
    // A third of it is how often the server says that it lives.
    let server = Postgres::builder().config("wal_sender_timeout", "1500ms").start().unwrap();
    let followed = Followed::new(&server);
    let journal = Journal::open(&followed.journal());
    let gate = journal.gate.clone();
    let manager = Manager::start(followed.config(), journal).unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    let lag = async || manager.positions().lag;

    let held = gate.lock().await;
    followed.sql("INSERT INTO orders VALUES (1, 'held')");
    let behind = Duration::from_secs(2);
    eventually("the lag grows though nothing comes", true, async || lag().await > behind).await;
    drop(held);
    followed.eventually_changes(1).await;
    eventually("everything is durable", Duration::ZERO, lag).await;

    for _ in 0..5 {
        let before = manager.positions().received;
        server.execute("postgres", "SELECT pg_logical_emit_message(false, 'a neighbour', 'writes')").unwrap();
        eventually("the server says how far it is", true, async || manager.positions().received > before)
            .await;
        eventually("nothing is late", Duration::ZERO, lag).await;
    }
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_with_something_pending_leaves_no_lag_behind() {
    let server = Postgres::builder().start().unwrap();
    let (followed, script) = (Followed::new(&server), Script::default());
    let manager = Manager::start(followed.config(), Scripted::new(&followed, &script)).unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    script.then(Call::Receive, Deed::WaitForEver);
    followed.sql("INSERT INTO orders VALUES (1, 'never taken')");
    eventually("it is late", true, async || manager.positions().lag > Duration::ZERO).await;
    manager.shutdown().await;
    assert_eq!(manager.positions().lag, Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_database_lets_the_server_forget_what_its_neighbours_write() {
    // A third of it is how often a position is offered, instead of every 5 s.
    let server = Postgres::builder().config("wal_sender_timeout", "4s").start().unwrap();
    let followed = Followed::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    let mut events = manager.events();
    let neighbour = server.create_database("neighbour").unwrap();
    server.execute(&neighbour, "CREATE TABLE busy (id int, note text)").unwrap();
    let retained = format!(
        "SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = '{}'",
        followed.slot
    );
    let mut most = 0;
    for _ in 0..5 {
        let begin: u64 =
            followed.ask("SELECT (pg_current_wal_lsn() - '0/0')::bigint").unwrap().parse().unwrap();
        let write = "INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 5000) n";
        server.execute(&neighbour, write).unwrap();
        let confirmed = format!(
            "SELECT confirmed_flush_lsn - '0/0' > {begin} + 4000000 FROM pg_replication_slots WHERE slot_name = '{}'",
            followed.slot
        );
        eventually("the position has moved", Some("t".to_owned()), async || followed.ask(&confirmed)).await;
        // What is open is logged every 15 s, or by this; only then can a slot's beginning move.
        server.execute("postgres", "CHECKPOINT").unwrap();
        let begun = Instant::now();
        while followed.ask(&retained).unwrap().parse::<u64>().unwrap() > 2_000_000 {
            assert!(begun.elapsed() < PATIENCE, "the log piles up");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        most = most.max(followed.ask(&retained).unwrap().parse().unwrap());
    }
    println!("after 5 times 5 MB from a neighbour, the slot holds {most} bytes at most");
    // The consumer knows of every position that the server was told.
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "new")]);
    assert!(!matches!(events.try_recv(), Ok(StackEvent::Restarting { .. })));
    manager.shutdown().await;
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}
