//! A client that reads slowly, while the log that it reads is made short.
//!
//! Every transaction gives all rows the same number. So whatever else is true, at an up-to-date
//! they have one number: no history is needed to see
//! a state between two commits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_testkit::Dice;
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::super::support::{Place, Serve, path};
use super::wire::Connection;

const ROWS: usize = 20;
const SETTINGS: [(&str, &str); 7] = [
    ("FOREBAY_SERVE_LONG_POLL_MS", "500"),
    ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "200"),
    ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "60000"),
    ("FOREBAY_STORAGE_CHUNK_BYTES", "65536"),
    // About what comes in two seconds: a log is long when a client begins to read it, and short
    // before it ends.
    ("FOREBAY_STORAGE_COMPACT_BYTES", "6000000"),
    ("FOREBAY_STORAGE_UNWRITTEN_BYTES", "65536"),
    ("FOREBAY_STORAGE_WAL_BYTES", "1048576"),
];
/// How long a client may take from one up-to-date to the next, with all its pauses.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client that resumes as the published one does.
struct Slow {
    handle: String,
    offset: String,
    numbers: BTreeMap<String, String>,
    up_to_dates: u64,
    recent: Vec<String>,
}

impl Slow {
    /// Reads pages until it is up to date.
    async fn begin(serve: &Serve) -> Slow {
        let offset = "-1".to_owned();
        let mut slow = Slow {
            handle: String::new(),
            offset,
            numbers: BTreeMap::new(),
            up_to_dates: 0,
            recent: Vec::new(),
        };
        loop {
            let mut params = vec![("table", "wide"), ("offset", slow.offset.as_str())];
            if !slow.handle.is_empty() {
                params.push(("handle", &slow.handle));
            }
            let answer = serve.get(&params).await;
            let named = |name| answer.head.header(name).unwrap_or_default().to_owned();
            assert_eq!(answer.head.status, 200, "{}", answer.head.text);
            slow.apply(answer.json().as_array().unwrap());
            (slow.handle, slow.offset) = (named("electric-handle"), named("electric-offset"));
            if answer.head.header("electric-up-to-date").is_some() {
                return slow;
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
                    "up-to-date between two commits: {:?}\n  {}",
                    self.numbers,
                    recent.join("\n  ")
                );
                self.recent.clear();
            }
        }
    }

    /// Follows a stream, with pauses, until it has had some up-to-dates, or the stream ends or is left.
    async fn follow(&mut self, serve: &Serve, dir: &Path, dice: &mut Dice) {
        let mut connection = Connection::open_narrow(serve.addr).await.unwrap();
        let (handle, offset) = (self.handle.as_str(), self.offset.as_str());
        let live = [("live", "true"), ("live_sse", "true")];
        let shape = [("table", "wide"), ("handle", handle), ("offset", offset)];
        connection.ask("GET", &path(&[&shape[..], &live].concat())).await.unwrap();
        let head = connection.head().await.unwrap();
        assert_eq!(head.status, 200, "{}", head.text);
        head.header("electric-offset").unwrap().clone_into(&mut self.offset);
        let (mut unread, mut batch, mut events) = (Vec::new(), Vec::new(), 0);
        let (first, wanted) = (dice.between(1, 30), self.up_to_dates + dice.between(1, 3) as u64);
        let begun = Instant::now();
        loop {
            let chunk = match connection.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return,
                // Its client is slow, but takes what comes: it would be broken again and again.
                Err(error) => panic!("a stream breaks after {events} events: {error}"),
            };
            unread.extend(chunk);
            while let Some(end) = unread.windows(2).position(|window| window == b"\n\n") {
                let event: Vec<u8> = unread.drain(..end + 2).collect();
                let Some(json) = event.strip_prefix(b"data: ") else { continue };
                batch.push(serde_json::from_slice::<Value>(json).unwrap());
                events += 1;
                if events == first {
                    merges(dir, dice.between(1, 2)).await;
                }
                let last = &batch[batch.len() - 1]["headers"];
                if last["control"] == "up-to-date" {
                    self.offset = format!("{}_0", last["global_last_seen_lsn"].as_str().unwrap());
                    self.apply(&std::mem::take(&mut batch));
                }
            }
            if self.up_to_dates >= wanted || begun.elapsed() > PATIENCE {
                return;
            }
        }
    }
}

/// The files that logs were merged into.
fn merged(dir: &Path) -> BTreeSet<PathBuf> {
    let files = fs::read_dir(dir.join("shapes")).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|end| end == "past")).collect()
}

/// Waits until logs are merged so many times: after two, the files of before the first are gone.
async fn merges(dir: &Path, wanted: usize) {
    let begun = Instant::now();
    let mut before = merged(dir);
    let mut times = 0;
    while times < wanted && begun.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(20)).await;
        let now = merged(dir);
        if now.difference(&before).next().is_some() {
            times += 1;
            before = now;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_client_is_up_to_date_only_between_commits_though_its_log_is_made_short() {
    let seed = forebay_testkit::seed();
    eprintln!("FOREBAY_SEED={seed}");
    let place = Place::new(&format!(
        "CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL, body text);
         ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;
         INSERT INTO wide SELECT id, 0, '' FROM generate_series(1, {ROWS}) id"
    ));
    let serve = place.serve_with(&SETTINGS).await;
    let (mut one, mut other) = (Slow::begin(&serve).await, Slow::begin(&serve).await);
    let (postgres, database) = (place.postgres, place.database.clone());
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
    let follow = async |slow: &mut Slow, number: usize| {
        let mut dice = Dice::of(seed, "slow", number);
        for _ in 0..3 {
            sleep(Duration::from_millis(dice.between(1200, 2200) as u64)).await;
            slow.follow(&serve, &place.dir, &mut dice).await;
        }
    };
    tokio::join!(follow(&mut one, 0), follow(&mut other, 1));
    stop.store(true, Ordering::Relaxed);
    let written: i32 = block_in_place(|| writer.join().unwrap());
    let merged = merged(&place.dir).len();
    eprintln!(
        "{written} transactions, {} and {} up-to-dates, {merged} merged files",
        one.up_to_dates, other.up_to_dates
    );
    assert!(merged > 0, "no log was made short");
    assert!(written > 20 && one.up_to_dates + other.up_to_dates > 4, "nearly nothing happened");
}
