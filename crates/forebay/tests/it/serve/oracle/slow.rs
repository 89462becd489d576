//! Slow clients that read a log while the server compacts it.
//!
//! Every transaction sets all rows to the same new number. So if all rows at an up-to-date have one
//! number, the state is one between two commits. No history is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_testkit::TestRng;
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::super::support::{ServeFixture, ServeProcess, path};
use super::oracle_connection::OracleConnection;

const ROWS: usize = 20;
const SETTINGS: [(&str, &str); 7] = [
    ("FOREBAY_SERVE_LONG_POLL_MS", "500"),
    ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "200"),
    ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "60000"),
    ("FOREBAY_STORAGE_CHUNK_BYTES", "65536"),
    // About the changes of two seconds. So a log is long when a client starts to read it, and the
    // server compacts it before the client ends.
    ("FOREBAY_STORAGE_COMPACT_BYTES", "6000000"),
    ("FOREBAY_STORAGE_UNWRITTEN_BYTES", "65536"),
    ("FOREBAY_STORAGE_WAL_BYTES", "1048576"),
];
/// Time after which a client leaves a stream.
const MAX_STREAM_TIME: Duration = Duration::from_secs(30);

/// A client that resumes as the published client does.
struct SlowClient {
    handle: String,
    offset: String,
    /// The number of each row, by key.
    numbers: BTreeMap<String, String>,
    up_to_dates: u64,
    /// Messages since the last up-to-date, for a failure report.
    recent: Vec<String>,
}

impl SlowClient {
    /// Starts a client, which reads pages until it is up to date.
    async fn start(serve: &ServeProcess) -> SlowClient {
        let offset = "-1".to_owned();
        let mut client = SlowClient {
            handle: String::new(),
            offset,
            numbers: BTreeMap::new(),
            up_to_dates: 0,
            recent: Vec::new(),
        };
        loop {
            let mut params = vec![("table", "wide"), ("offset", client.offset.as_str())];
            if !client.handle.is_empty() {
                params.push(("handle", &client.handle));
            }
            let response = serve.get(&params).await;
            let named = |name| response.head.header(name).unwrap_or_default().to_owned();
            assert_eq!(response.head.status, 200, "{}", response.head.text);
            client.apply(response.json().as_array().unwrap());
            (client.handle, client.offset) = (named("electric-handle"), named("electric-offset"));
            if response.head.header("electric-up-to-date").is_some() {
                return client;
            }
        }
    }

    fn apply(&mut self, messages: &[Value]) {
        for message in messages {
            self.recent.push(message.to_string().chars().take(220).collect());
            let (key, value) = (&message["key"], &message["value"]);
            if let (Some(key), Some(number)) = (key.as_str(), value["n"].as_str()) {
                self.numbers.insert(key.to_owned(), number.to_owned());
            }
            if message["headers"]["control"] == "up-to-date" {
                self.up_to_dates += 1;
                let numbers: BTreeSet<_> = self.numbers.values().collect();
                let recent = &self.recent[self.recent.len().saturating_sub(30)..];
                assert!(
                    numbers.len() == 1 && self.numbers.len() == ROWS,
                    "the rows at an up-to-date are a mixture: {:?}\n  {}",
                    self.numbers,
                    recent.join("\n  ")
                );
                self.recent.clear();
            }
        }
    }

    /// Follows an event stream for one to three up-to-dates. At a random event it stops reading
    /// until the log was compacted.
    async fn follow(&mut self, serve: &ServeProcess, dir: &Path, rng: &mut TestRng) {
        let mut connection = OracleConnection::open_slow(serve.addr).await.unwrap();
        let (handle, offset) = (self.handle.as_str(), self.offset.as_str());
        let live = [("live", "true"), ("live_sse", "true")];
        let shape = [("table", "wide"), ("handle", handle), ("offset", offset)];
        connection.send("GET", &path(&[&shape[..], &live].concat())).await.unwrap();
        let head = connection.read_head().await.unwrap();
        assert_eq!(head.status, 200, "{}", head.text);
        head.header("electric-offset").unwrap().clone_into(&mut self.offset);
        let (mut unread, mut batch, mut events) = (Vec::new(), Vec::new(), 0);
        let (wait_at, wanted) = (rng.between(1, 30), self.up_to_dates + rng.between(1, 3) as u64);
        let started = Instant::now();
        loop {
            let chunk = match connection.read_chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return,
                // The server must not break the stream of a slow client that still reads.
                Err(error) => panic!("the stream broke after {events} events: {error}"),
            };
            unread.extend(chunk);
            while let Some(end) = unread.windows(2).position(|window| window == b"\n\n") {
                let event: Vec<u8> = unread.drain(..end + 2).collect();
                let Some(json) = event.strip_prefix(b"data: ") else { continue };
                batch.push(serde_json::from_slice::<Value>(json).unwrap());
                events += 1;
                if events == wait_at {
                    wait_for_compactions(dir, rng.between(1, 2)).await;
                }
                let last = &batch[batch.len() - 1]["headers"];
                if last["control"] == "up-to-date" {
                    self.offset = format!("{}_0", last["global_last_seen_lsn"].as_str().unwrap());
                    self.apply(&std::mem::take(&mut batch));
                }
            }
            if self.up_to_dates >= wanted || started.elapsed() > MAX_STREAM_TIME {
                return;
            }
        }
    }
}

/// Returns the files of compacted logs.
fn compacted_files(dir: &Path) -> BTreeSet<PathBuf> {
    let files = fs::read_dir(dir.join("shapes")).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|end| end == "past")).collect()
}

/// Waits for `wanted` compactions, at most 5 s. After two, the server has removed the files from
/// before the first.
async fn wait_for_compactions(dir: &Path, wanted: usize) {
    let started = Instant::now();
    let mut before = compacted_files(dir);
    let mut times = 0;
    while times < wanted && started.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(20)).await;
        let now = compacted_files(dir);
        if now.difference(&before).next().is_some() {
            times += 1;
            before = now;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_client_is_up_to_date_only_between_commits_while_its_log_is_compacted() {
    let seed = forebay_testkit::seed();
    eprintln!("FOREBAY_SEED={seed}");
    let fixture = ServeFixture::new(&format!(
        "CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL, body text);
         ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;
         INSERT INTO wide SELECT id, 0, '' FROM generate_series(1, {ROWS}) id"
    ));
    let serve = fixture.serve_with(&SETTINGS).await;
    let (mut one, mut other) = (SlowClient::start(&serve).await, SlowClient::start(&serve).await);
    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writer = thread::spawn(move || {
        let mut n = 0;
        while !stopped.load(Ordering::Relaxed) {
            n += 1;
            let sql = format!("UPDATE wide SET n = {n}, body = repeat(md5('{n}'), 150)");
            postgres.execute(&database, &sql).unwrap();
            thread::sleep(Duration::from_millis(15));
        }
        n
    });
    let follow = async |client: &mut SlowClient, number: usize| {
        let mut rng = TestRng::of(seed, "slow", number);
        for _ in 0..3 {
            sleep(Duration::from_millis(rng.between(1200, 2200) as u64)).await;
            client.follow(&serve, &fixture.dir, &mut rng).await;
        }
    };
    tokio::join!(follow(&mut one, 0), follow(&mut other, 1));
    stop.store(true, Ordering::Relaxed);
    let written: i32 = block_in_place(|| writer.join().unwrap());
    let compacted = compacted_files(&fixture.dir).len();
    eprintln!(
        "{written} transactions, {} and {} up-to-dates, {compacted} compacted files",
        one.up_to_dates, other.up_to_dates
    );
    assert!(compacted > 0, "no log was compacted");
    assert!(written > 20 && one.up_to_dates + other.up_to_dates > 4, "too few events for a verdict");
}
