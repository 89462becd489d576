//! Every committed change once, in commit order, whatever happens: the service is killed, the network is cut, stalled and truncated, and
//! Postgres is restarted, while several writers commit and roll back; and once more in the midst of a large transaction.
//!
//! The oracle is a second slot that nobody reads until the end: what Postgres itself then says was committed must be what the
//! journal has, transaction by transaction, to the last column and position.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_replication::Manager;
use forebay_replication::pgoutput::PgOutputDecoder;
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};

use crate::journal::{Journal, Recorder, Transaction};
use crate::support::Followed;

const FOLLOW: &str = "FOREBAY_TEST_FOLLOW";
const SEEDS: &str = "FOREBAY_SEEDS";
const WRITERS: u64 = 3;
const FAULTS: u64 = 5;

macro_rules! seeds {
    ($($name:ident: $version:expr, $seeds:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            trial($version, $seeds).await;
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
    trial(None, first..=middle).await;
    trial(Some(18), middle + 1..=last).await;
}

/// The service in a process of its own: this test binary again, told by its environment to follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_follows() {
    let Ok(orders) = std::env::var(FOLLOW) else { return };
    let [url, slot, journal] = orders.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let connect = forebay_replication::reservoir::PostgresConnect::new(url).unwrap();
    let config = forebay_replication::ManagerConfig::new(connect).slot(slot).pool_size(2);
    let manager = Manager::start(config, Journal::open(journal.as_ref())).unwrap();
    manager.ready().await.unwrap();
    println!("@ready");
    // Until it is killed, or whoever started it is gone.
    let _end = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await;
}

struct Follower(Child);

impl Follower {
    fn start(followed: &Followed<'_>, proxy: &Proxy) -> Self {
        let journal = followed.journal();
        let url = format!("postgres://postgres@{}/{}?connect_timeout=2", proxy.addr(), followed.database);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["exactly_once::a_follower_follows", "--exact", "--nocapture", "--test-threads=1"])
            .env(FOLLOW, format!("{url} {} {}", followed.slot, journal.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Follower(child.unwrap())
    }

    async fn ready(&mut self) {
        let mut answers = BufReader::new(self.0.stdout.take().unwrap());
        let waiting = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            while !line.contains("@ready") {
                line.clear();
                assert!(answers.read_line(&mut line).unwrap() > 0, "the follower ended");
            }
        });
        within("the follower is ready", waiting).await.unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// `version`: of Postgres; `None` is the one that is there.
async fn trial(version: Option<u32>, seeds: std::ops::RangeInclusive<u64>) {
    let builder = Postgres::builder().config("wal_sender_timeout", "3s");
    let builder = version.into_iter().fold(builder, forebay_sandbox::PostgresBuilder::version);
    let server = builder.start().unwrap();
    for seed in seeds {
        println!("seed {seed}");
        one_seed(&server, seed).await;
    }
}

async fn one_seed(server: &Postgres, seed: u64) {
    let mut dice = Dice(seed);
    let followed = Followed::new(server);
    let proxy = Proxy::start(server.addr());
    followed.sql(
        "CREATE TABLE events (writer int, id int, note text, PRIMARY KEY (writer, id)); \
         ALTER TABLE events REPLICA IDENTITY FULL; CREATE PUBLICATION forebay FOR TABLE events",
    );
    let mut follower = Follower::start(&followed, &proxy);
    follower.ready().await;
    followed.sql("SELECT pg_create_logical_replication_slot('oracle', 'pgoutput')");

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            tokio::spawn(write(followed.url(), writer, Dice(seed * 1_000 + writer), stopped.clone()))
        })
        .collect();
    for _ in 0..FAULTS {
        tokio::time::sleep(Duration::from_millis(dice.up_to(400))).await;
        fault(&mut dice, &followed, &proxy, &mut follower).await;
    }
    stop.send(true).unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
    arrived(&followed, seed).await;
    fault_in_the_midst(&mut dice, &followed, &proxy, &mut follower).await;
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

/// Waits until everything that was committed has arrived; says what that is.
async fn arrived(followed: &Followed<'_>, seed: u64) -> Vec<Transaction> {
    let expected = oracle(followed);
    let last = expected.last().expect("the writers have written").end;
    let arrived = async || followed.transactions().last().is_some_and(|transaction| transaction.end >= last);
    eventually(&format!("all of seed {seed} has arrived"), true, arrived).await;
    expected
}

/// Strikes when a part of a transaction has arrived, and not all of it. Nobody else writes.
async fn fault_in_the_midst(
    dice: &mut Dice,
    followed: &Followed<'_>,
    proxy: &Proxy,
    follower: &mut Follower,
) {
    const ROWS: u64 = 8_000;
    const ROW_BYTES: u64 = 250;
    let (before, forwarded) = (followed.transactions().len(), proxy.forwarded_bytes(Direction::ToClient));
    // All of it takes two seconds.
    proxy.throttle(ROWS * ROW_BYTES / 2);
    followed.sql(&format!(
        "INSERT INTO events SELECT {WRITERS}, n, repeat('x', {ROW_BYTES}) FROM generate_series(1, {ROWS}) n"
    ));
    let part = forwarded + ROWS * ROW_BYTES / 8;
    eventually("a part has arrived", true, async || proxy.forwarded_bytes(Direction::ToClient) >= part).await;
    match dice.up_to(5) {
        0 | 1 => {
            follower.kill();
            assert_eq!(followed.transactions().len(), before, "not all of it has arrived");
            *follower = Follower::start(followed, proxy);
        }
        2 => proxy.cut(),
        3 => proxy.reset(),
        _ => followed.server.restart_immediate().unwrap(),
    }
    proxy.resume();
}

async fn fault(dice: &mut Dice, followed: &Followed<'_>, proxy: &Proxy, follower: &mut Follower) {
    let direction = if dice.up_to(2) == 0 { Direction::ToClient } else { Direction::ToServer };
    match dice.up_to(8) {
        0 | 1 => {
            follower.kill();
            *follower = Follower::start(followed, proxy);
        }
        2 => proxy.cut(),
        3 => proxy.reset(),
        4 => {
            proxy.stall(direction);
            tokio::time::sleep(Duration::from_millis(dice.up_to(600))).await;
            proxy.resume();
        }
        5 => proxy.truncate_after(dice.up_to(4_000), direction),
        6 => followed.server.restart_fast().unwrap(),
        _ => followed.server.restart_immediate().unwrap(),
    }
}

/// Commits and rolls back until it is told to stop; a server that goes away is waited for.
async fn write(url: String, writer: u64, mut dice: Dice, stopped: tokio::sync::watch::Receiver<bool>) {
    let (mut client, mut next) = (None, 1);
    while !*stopped.borrow() {
        let Some(connected) = &client else {
            client = connect(&url).await;
            continue;
        };
        let script = transaction(writer, &mut next, &mut dice);
        // What became of a transaction whose server went away, the oracle knows.
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

fn transaction(writer: u64, next: &mut u64, dice: &mut Dice) -> String {
    let mut script = String::from("BEGIN; ");
    for _ in 0..=dice.up_to(4) {
        let (id, note) = (*next, dice.up_to(1_000_000));
        let any = 1 + dice.up_to(id);
        script += &match dice.up_to(6) {
            0 => format!("UPDATE events SET note = '{note}' WHERE writer = {writer} AND id = {any}; "),
            1 => format!("DELETE FROM events WHERE writer = {writer} AND id = {any}; "),
            2 => {
                format!("SAVEPOINT s; INSERT INTO events VALUES ({writer}, {id}, 'undone'); ROLLBACK TO s; ")
            }
            _ => {
                *next += 1;
                let long = "x".repeat(dice.up_to(2_000) as usize);
                format!("INSERT INTO events VALUES ({writer}, {id}, '{note}{long}'); ")
            }
        };
    }
    script + if dice.up_to(4) == 0 { "ROLLBACK" } else { "COMMIT" }
}

/// What Postgres says was committed.
fn oracle(followed: &Followed<'_>) -> Vec<Transaction> {
    let asking = "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('oracle', NULL, NULL, \
         'proto_version', '1', 'publication_names', 'forebay')";
    let rows = followed.server.query(&followed.database, asking).unwrap();
    let (mut decoder, mut recorder) = (PgOutputDecoder::new(), Recorder::default());
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

/// The same again for the same seed.
struct Dice(u64);

impl Dice {
    fn up_to(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}
