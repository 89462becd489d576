//! Exactly once under faults: kills, network faults and server restarts while several writers
//! commit and roll back, and during a large transaction.
//!
//! The oracle is a second slot that is read only at the end. Its transactions must equal the
//! journal's, including every column and position.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_replication::Manager;
use forebay_replication::pgoutput::PgOutputDecoder;
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, TestRng, eventually, within};

use crate::followed_database::FollowedDatabase;
use crate::journal::{JournalConsumer, JournalTransaction, TransactionRecorder};

const FOLLOW: &str = "FOREBAY_TEST_FOLLOW";
const SEEDS: &str = "FOREBAY_SEEDS";
const WRITERS: u64 = 3;
const FAULTS: u64 = 5;

macro_rules! seeds {
    ($($name:ident: $version:expr, $seeds:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            run_seeds($version, $seeds).await;
        }
    )*};
}

seeds! {
    every_committed_change_arrives_once_seeds_1_to_5: None, 1..=5;
    every_committed_change_arrives_once_on_18_seeds_6_to_10: Some(18), 6..=10;
    every_committed_change_arrives_once_seeds_11_to_15: None, 11..=15;
    every_committed_change_arrives_once_on_18_seeds_16_to_20: Some(18), 16..=20;
}

/// `FOREBAY_SEEDS=21..=320 cargo nextest run -p forebay-replication --run-ignored only many_seeds`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes many minutes: CONTRIBUTING.md has the command"]
async fn many_seeds() {
    let seeds = std::env::var(SEEDS).unwrap_or_else(|_| "21..=120".into());
    let (first, last) = seeds.split_once("..=").expect("FOREBAY_SEEDS=FIRST..=LAST");
    let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
    let middle = first.midpoint(last);
    run_seeds(None, first..=middle).await;
    run_seeds(Some(18), middle + 1..=last).await;
}

/// The follower in its own process: this test binary again, configured by the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_follower() {
    let Ok(arguments) = std::env::var(FOLLOW) else { return };
    let [url, slot, journal] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let connect = forebay_replication::reservoir::PostgresConnect::new(url).unwrap();
    let config = forebay_replication::ManagerConfig::new(connect).slot(slot).pool_size(2);
    let manager = Manager::start(config, JournalConsumer::open(journal.as_ref())).unwrap();
    manager.ready().await.unwrap();
    println!("@ready");
    // Until it is killed, or its parent has ended.
    let _end = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
}

/// A manager in a child process.
struct FollowerProcess(Child);

impl FollowerProcess {
    fn start(followed: &FollowedDatabase<'_>, proxy: &Proxy) -> Self {
        let journal = followed.journal();
        let url = format!("postgres://postgres@{}/{}?connect_timeout=2", proxy.addr(), followed.database);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["exactly_once::run_follower", "--exact", "--nocapture", "--test-threads=1"])
            .env(FOLLOW, format!("{url} {} {}", followed.slot, journal.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        FollowerProcess(child.unwrap())
    }

    async fn ready(&mut self) {
        let mut output = BufReader::new(self.0.stdout.take().unwrap());
        let waiting = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            while !line.contains("@ready") {
                line.clear();
                assert!(output.read_line(&mut line).unwrap() > 0, "the follower ended");
            }
        });
        within("the follower is ready", waiting).await.unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for FollowerProcess {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Runs all seeds on one server. `version` of Postgres; `None`: the default one.
async fn run_seeds(version: Option<u32>, seeds: std::ops::RangeInclusive<u64>) {
    let builder = Postgres::builder().config("wal_sender_timeout", "3s");
    let builder = version.into_iter().fold(builder, forebay_sandbox::PostgresBuilder::version);
    let server = builder.start().unwrap();
    for seed in seeds {
        println!("seed {seed}");
        one_seed(&server, seed).await;
    }
}

async fn one_seed(server: &Postgres, seed: u64) {
    let mut random = TestRng::new(seed);
    let followed = FollowedDatabase::new(server);
    let proxy = Proxy::start(server.addr());
    followed.sql(
        "CREATE TABLE events (writer int, id int, note text, PRIMARY KEY (writer, id)); \
         ALTER TABLE events REPLICA IDENTITY FULL; CREATE PUBLICATION forebay FOR TABLE events",
    );
    let mut follower = FollowerProcess::start(&followed, &proxy);
    follower.ready().await;
    followed.sql("SELECT pg_create_logical_replication_slot('oracle', 'pgoutput')");

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            tokio::spawn(write(followed.url(), writer, TestRng::new(seed * 1_000 + writer), stopped.clone()))
        })
        .collect();
    for _ in 0..FAULTS {
        tokio::time::sleep(Duration::from_millis(random.roll() % 400)).await;
        fault(&mut random, &followed, &proxy, &mut follower).await;
    }
    stop.send(true).unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
    arrived(&followed, seed).await;
    fault_during_transaction(&mut random, &followed, &proxy, &mut follower).await;
    let expected = arrived(&followed, seed).await;
    follower.kill();
    let journal = followed.transactions();
    let first = journal.iter().zip(&expected).position(|(ours, theirs)| ours != theirs);
    assert_eq!(
        first,
        None,
        "seed {seed}: {:?} for {:?}",
        first.map(|at| &journal[at]),
        first.map(|at| &expected[at])
    );
    assert_eq!(journal.len(), expected.len(), "seed {seed}");
    assert_eq!(followed.resets(), ["first"], "seed {seed}");
    followed.sql("SELECT pg_drop_replication_slot('oracle')");
}

/// Waits until all committed transactions have arrived, and returns them.
async fn arrived(followed: &FollowedDatabase<'_>, seed: u64) -> Vec<JournalTransaction> {
    let expected = oracle(followed);
    let last = expected.last().expect("the writers have written").end;
    let arrived = async || followed.transactions().last().is_some_and(|transaction| transaction.end >= last);
    eventually(&format!("all of seed {seed} has arrived"), true, arrived).await;
    expected
}

/// Injects a fault while a large transaction is arriving. No other writer runs.
async fn fault_during_transaction(
    random: &mut TestRng,
    followed: &FollowedDatabase<'_>,
    proxy: &Proxy,
    follower: &mut FollowerProcess,
) {
    const ROWS: u64 = 8_000;
    const ROW_BYTES: u64 = 250;
    let (before, forwarded) = (followed.transactions().len(), proxy.forwarded_bytes(Direction::ToClient));
    // The transaction takes two seconds.
    proxy.throttle(ROWS * ROW_BYTES / 2);
    followed.sql(&format!(
        "INSERT INTO events SELECT {WRITERS}, n, repeat('x', {ROW_BYTES}) FROM generate_series(1, {ROWS}) n"
    ));
    let part = forwarded + ROWS * ROW_BYTES / 8;
    eventually("a part has arrived", true, async || proxy.forwarded_bytes(Direction::ToClient) >= part).await;
    match random.roll() % 5 {
        0 | 1 => {
            follower.kill();
            assert_eq!(followed.transactions().len(), before, "not all of it has arrived");
            *follower = FollowerProcess::start(followed, proxy);
        }
        2 => proxy.cut(),
        3 => proxy.reset(),
        _ => followed.server.restart_immediate().unwrap(),
    }
    proxy.resume();
}

async fn fault(
    random: &mut TestRng,
    followed: &FollowedDatabase<'_>,
    proxy: &Proxy,
    follower: &mut FollowerProcess,
) {
    let direction = if random.below(2) == 0 { Direction::ToClient } else { Direction::ToServer };
    match random.roll() % 8 {
        0 | 1 => {
            follower.kill();
            *follower = FollowerProcess::start(followed, proxy);
        }
        2 => proxy.cut(),
        3 => proxy.reset(),
        4 => {
            proxy.stall(direction);
            tokio::time::sleep(Duration::from_millis(random.roll() % 600)).await;
            proxy.resume();
        }
        5 => proxy.truncate_after(random.roll() % 4_000, direction),
        6 => followed.server.restart_fast().unwrap(),
        _ => followed.server.restart_immediate().unwrap(),
    }
}

/// Commits and rolls back until `stopped`. Reconnects when the server goes away.
async fn write(url: String, writer: u64, mut random: TestRng, stopped: tokio::sync::watch::Receiver<bool>) {
    let (mut client, mut next) = (None, 1);
    while !*stopped.borrow() {
        let Some(connected) = &client else {
            client = connect(&url).await;
            continue;
        };
        let script = transaction(writer, &mut next, &mut random);
        // The oracle shows whether a transaction without a reply was committed.
        if forebay_replication::reservoir::tokio_postgres::Client::batch_execute(connected, &script)
            .await
            .is_err()
        {
            client = None;
        }
    }
}

async fn connect(url: &str) -> Option<forebay_replication::reservoir::tokio_postgres::Client> {
    use forebay_replication::reservoir::tokio_postgres::{NoTls, connect};
    match connect(url, NoTls).await {
        Ok((client, connection)) => {
            tokio::spawn(connection);
            Some(client)
        }
        Err(_) => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}

fn transaction(writer: u64, next: &mut u64, random: &mut TestRng) -> String {
    let mut script = String::from("BEGIN; ");
    for _ in 0..=random.roll() % 4 {
        let (id, note) = (*next, random.roll() % 1_000_000);
        let any = 1 + random.roll() % id;
        script += &match random.roll() % 6 {
            0 => format!("UPDATE events SET note = '{note}' WHERE writer = {writer} AND id = {any}; "),
            1 => format!("DELETE FROM events WHERE writer = {writer} AND id = {any}; "),
            2 => {
                format!("SAVEPOINT s; INSERT INTO events VALUES ({writer}, {id}, 'undone'); ROLLBACK TO s; ")
            }
            _ => {
                *next += 1;
                let long = "x".repeat((random.roll() % 2_000) as usize);
                format!("INSERT INTO events VALUES ({writer}, {id}, '{note}{long}'); ")
            }
        };
    }
    script + if random.below(4) == 0 { "ROLLBACK" } else { "COMMIT" }
}

/// Returns the committed transactions, from the second slot.
fn oracle(followed: &FollowedDatabase<'_>) -> Vec<JournalTransaction> {
    let query = "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('oracle', NULL, NULL, \
         'proto_version', '1', 'publication_names', 'forebay')";
    let rows = followed.server.query(&followed.database, query).unwrap();
    let (mut decoder, mut recorder) = (PgOutputDecoder::new(), TransactionRecorder::default());
    let mut transactions = Vec::new();
    for row in rows {
        let bytes = unhex(row[0].as_deref().unwrap());
        transactions.extend(recorder.take(&decoder.decode(&bytes).unwrap()));
    }
    transactions
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
