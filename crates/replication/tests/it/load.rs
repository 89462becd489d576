//! Load: large transactions, slow consumers and idle databases. Memory is bounded, the connection
//! stays open, and no unneeded WAL is retained.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, Manager, ManagerConfig, ManagerEvent, ManagerStep,
    MessageBatch, ResetReason, TableName, Timeline,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{TEST_TIMEOUT, eventually, within};
use tokio::sync::{broadcast::error::TryRecvError, watch};

use crate::followed_database::{FollowedDatabase, insert};
use crate::supervision::{ConsumerCall, ConsumerScript, ScriptedAction, ScriptedConsumer};

const COUNT: &str = "FOREBAY_TEST_COUNT";

/// A consumer that counts the rows of complete transactions.
struct RowCounter {
    /// `receive` waits while this is false.
    is_running: watch::Receiver<bool>,
    pause: Duration,
    open: u64,
    counted: watch::Sender<u64>,
    durable: Option<DurablePosition>,
}

impl Consumer for RowCounter {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        Ok(None)
    }

    async fn reset(&mut self, _: ResetReason, _: Bookmark) -> Result<(), ConsumerError> {
        Ok(())
    }

    async fn record_timeline(&mut self, _: Timeline) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn start(&mut self, durable: DurablePosition) {
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        self.is_running.wait_for(|is_running| *is_running).await.map_err(ConsumerError::fatal)?;
        tokio::time::sleep(self.pause).await;
        while let Some(message) = batch.next() {
            match message {
                PgOutputMessage::Begin(_) => self.open = 0,
                PgOutputMessage::Insert(_) => self.open += 1,
                PgOutputMessage::Commit(commit) => {
                    self.counted.send_modify(|counted| *counted += self.open);
                    self.durable.as_ref().expect("a stream has started_at").advance(commit.end_lsn);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.durable.as_ref().expect("a stream has started_at").advance(lsn);
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}

/// A manager in a child process that counts the rows of a table `rows`: this test binary again. It
/// reads commands from its standard input, and replies to each with one line.
struct CountingProcess {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl CountingProcess {
    /// `pause` is the consumer's delay per batch.
    fn start(followed: &FollowedDatabase<'_>, pause: Duration) -> Self {
        followed.sql("CREATE TABLE rows (id int, note text)");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["load::run_counting_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(COUNT, format!("{} {} {}", followed.url(), followed.slot, pause.as_millis()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (commands, replies) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut service = CountingProcess { child, commands, replies };
        assert_eq!(service.reply(), "ready");
        service
    }

    fn send(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.replies.read_line(&mut line).unwrap() > 0, "the service ended");
            // The test harness prints lines, too, and may not have ended the last one.
            if let Some((_, reply)) = line.split_once('@') {
                return reply.trim().to_owned();
            }
        }
    }

    /// Returns the peak memory, in MB.
    fn peak_megabytes(&mut self) -> u64 {
        self.send("peak").parse::<u64>().unwrap() / 1_000
    }
}

impl Drop for CountingProcess {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Does nothing unless a test below started it as a child.
#[test]
fn run_counting_process() {
    let Ok(arguments) = std::env::var(COUNT) else { return };
    let [url, slot, pause] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(url, slot, Duration::from_millis(pause.parse().unwrap())));
}

async fn serve(url: &str, slot: &str, pause: Duration) {
    let ((run, is_running), (counted, mut counts)) = (watch::channel(true), watch::channel(0));
    let config = ManagerConfig::new(PostgresConnect::new(url).unwrap()).slot(slot).pool_size(2);
    let counter = RowCounter { is_running, pause, open: 0, counted, durable: None };
    let manager = Manager::start(config, counter).unwrap();
    manager.ready().await.unwrap();
    manager.add_table(&TableName::new("public", "rows")).await.unwrap();
    let backend = manager.positions().backend_pid;
    println!("@ready");
    loop {
        let command = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        let command = command.await.unwrap().unwrap();
        let reply = match command.trim().split_once(' ').unwrap_or((command.trim(), "")) {
            ("stall", _) => u64::from(run.send_replace(false)),
            ("go", _) => u64::from(run.send_replace(true)),
            ("count", wanted) => {
                let wanted = wanted.parse().unwrap();
                *counts.wait_for(|counted| *counted >= wanted).await.unwrap()
            }
            ("peak", _) => peak_kilobytes(),
            ("same", _) => u64::from(manager.positions().backend_pid == backend),
            _ => return,
        };
        println!("@{reply}");
    }
}

fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_transaction_of_two_million_rows_takes_less_than_200_megabytes() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let mut service = CountingProcess::start(&followed, Duration::ZERO);
    let before = service.peak_megabytes();
    let began = Instant::now();
    followed.sql("INSERT INTO rows SELECT n, 'short' FROM generate_series(1, 2000000) n");
    let written = began.elapsed();
    assert_eq!(service.send("count 2000000"), "2000000");
    let peak = service.peak_megabytes();
    println!(
        "2 million rows: written in {written:?}, there after {:?}, {before} MB before, {peak} MB at most",
        began.elapsed()
    );
    assert!(peak < 200, "{peak} MB");
    assert_eq!(service.send("same"), "1", "it was connected all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_while_the_consumer_is_slow_or_stuck() {
    const ROWS: u64 = 100_000;
    let server = Postgres::builder().config("wal_sender_timeout", "5s").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let mut service = CountingProcess::start(&followed, Duration::from_millis(10));
    let before = service.peak_megabytes();
    assert_eq!(service.send("stall"), "1");
    // About 100 MB, in transactions of 1 MB.
    for _ in 0..100 {
        followed.sql(&format!(
            "INSERT INTO rows SELECT n, repeat('x', 1000) FROM generate_series(1, {}) n",
            ROWS / 100
        ));
    }
    // The socket buffers are full now, and the server blocks for longer than its timeout.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let stalled = service.peak_megabytes();
    assert_eq!(service.send("go"), "0");
    assert_eq!(service.send(&format!("count {ROWS}")), ROWS.to_string());
    let peak = service.peak_megabytes();
    println!("100 MB waiting: {before} MB before, {stalled} MB while stalled, {peak} MB at most");
    assert!(peak < before + 20, "{before} MB, then {peak} MB");
    assert_eq!(service.send("same"), "1", "it was connected all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_stuck_for_longer_than_the_servers_timeout_stays_connected() {
    let timeout = Duration::from_secs(5);
    let server = Postgres::builder().config("wal_sender_timeout", "5s").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let (manager, gate) = followed.streaming_orders_with_gate().await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    let (mut events, backend) = (manager.events(), manager.positions().backend_pid.unwrap());
    let held = gate.lock().await;
    let stalled = Instant::now();
    // Changes and keepalives arrive meanwhile.
    let mut id = 1;
    while stalled.elapsed() < 2 * timeout {
        id += 1;
        followed.sql(&format!("INSERT INTO orders VALUES ({id}, 'meanwhile')"));
        server
            .execute("postgres", "SELECT pg_logical_emit_message(false, 'other database', 'writes')")
            .unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(followed.changes(), [insert("orders", 1, "before")]);
    assert_eq!(manager.status().step, ManagerStep::Streaming);
    drop(held);
    let expected: Vec<_> =
        (1..=id).map(|id| insert("orders", id, if id == 1 { "before" } else { "meanwhile" })).collect();
    assert_eq!(followed.eventually_changes(expected.len()).await, expected);
    assert_eq!(manager.positions().backend_pid, Some(backend));
    let alive = format!("SELECT count(*) FROM pg_stat_replication WHERE pid = {backend}");
    assert_eq!(followed.query_value(&alive).as_deref(), Some("1"));
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty), "no restart");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_records_a_position_slowly_stays_connected() {
    let server = Postgres::builder().config("wal_sender_timeout", "4s").start().unwrap();
    let (followed, script) = (FollowedDatabase::new(&server), ConsumerScript::default());
    let manager = Manager::start(followed.config(), ScriptedConsumer::new(&followed, &script)).unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    let (mut events, backend) = (manager.events(), manager.positions().backend_pid.unwrap());
    script.then(ConsumerCall::Advance, ScriptedAction::Wait(Duration::from_secs(9)));
    server.execute("postgres", "SELECT pg_logical_emit_message(false, 'other database', 'writes')").unwrap();
    eventually("a position is recorded", true, async || script.is_done()).await;
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "new")]);
    assert_eq!(manager.positions().backend_pid, Some(backend));
    assert_eq!(events.try_recv(), Err(TryRecvError::Empty), "no restart");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_grows_while_the_consumer_is_stuck_and_is_zero_on_an_idle_database() {
    // The server sends keepalives at a third of this timeout.
    let server = Postgres::builder().config("wal_sender_timeout", "1500ms").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let (manager, gate) = followed.streaming_orders_with_gate().await;
    let lag = async || manager.positions().lag;

    let held = gate.lock().await;
    followed.sql("INSERT INTO orders VALUES (1, 'held')");
    let behind = Duration::from_secs(2);
    eventually("the lag grows without messages", true, async || lag().await > behind).await;
    drop(held);
    followed.eventually_changes(1).await;
    eventually("everything is durable", Duration::ZERO, lag).await;

    for _ in 0..5 {
        let before = manager.positions().received;
        server
            .execute("postgres", "SELECT pg_logical_emit_message(false, 'other database', 'writes')")
            .unwrap();
        eventually("a keepalive arrives", true, async || manager.positions().received > before).await;
        eventually("no lag", Duration::ZERO, lag).await;
    }
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_with_pending_changes_leaves_no_lag() {
    let server = Postgres::builder().start().unwrap();
    let (followed, script) = (FollowedDatabase::new(&server), ConsumerScript::default());
    let manager = Manager::start(followed.config(), ScriptedConsumer::new(&followed, &script)).unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    script.then(ConsumerCall::Receive, ScriptedAction::WaitForever);
    followed.sql("INSERT INTO orders VALUES (1, 'never taken')");
    eventually("the lag is positive", true, async || manager.positions().lag > Duration::ZERO).await;
    manager.shutdown().await;
    assert_eq!(manager.positions().lag, Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_database_retains_no_wal_of_other_databases() {
    // An idle position is offered at a third of this timeout, instead of every 5 s.
    let server = Postgres::builder().config("wal_sender_timeout", "4s").start().unwrap();
    let followed = FollowedDatabase::new(&server);
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
            followed.query_value("SELECT (pg_current_wal_lsn() - '0/0')::bigint").unwrap().parse().unwrap();
        let write = "INSERT INTO busy SELECT n, repeat('x', 1000) FROM generate_series(1, 5000) n";
        server.execute(&neighbour, write).unwrap();
        let confirmed = format!(
            "SELECT confirmed_flush_lsn - '0/0' > {begin} + 4000000 FROM pg_replication_slots WHERE slot_name = '{}'",
            followed.slot
        );
        eventually("the position has moved", Some("t".to_owned()), async || followed.query_value(&confirmed))
            .await;
        // The server logs running transactions every 15 s, or at a checkpoint. Only then
        // restart_lsn advances.
        server.execute("postgres", "CHECKPOINT").unwrap();
        let started_at = Instant::now();
        while followed.query_value(&retained).unwrap().parse::<u64>().unwrap() > 2_000_000 {
            assert!(started_at.elapsed() < TEST_TIMEOUT, "WAL accumulates");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        most = most.max(followed.query_value(&retained).unwrap().parse().unwrap());
    }
    println!("after 5 times 5 MB from a neighbour, the slot holds {most} bytes at most");
    // The consumer has recorded every acknowledged position.
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "new")]);
    assert!(!matches!(events.try_recv(), Ok(ManagerEvent::Restarting { .. })));
    manager.shutdown().await;
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}
