//! Event streams of clients that are behind, and streams that end before their clients caught up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::SockRef;
use tokio::time::sleep;

use super::support::{Event, Events, Place, Reader, Serve, path};
use crate::wire::{HttpConnection, until};

const ITEM: [(&str, &str); 1] = [("table", "items")];
/// Rows of 5 KB, all of which have the same version after each transaction.
const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, version int, note text);
    INSERT INTO items SELECT n, 0, '' FROM generate_series(1, 20) n";
/// What one transaction adds to the log.
const TRANSACTION: usize = 20 * 5_000;

/// Each of these versions is a transaction of its own.
fn write(place: &Place, versions: std::ops::RangeInclusive<u32>) {
    let (from, to) = versions.into_inner();
    place.sql(&format!(
        "DO $$ BEGIN FOR n IN {from}..{to} LOOP
            UPDATE items SET version = n, note = repeat(md5(n::text), 150); COMMIT;
        END LOOP; END $$"
    ));
}

/// A stream whose client takes little before it reads.
async fn slow_events(serve: &Serve, reader: &Reader<'_>) -> Events {
    let mut client = HttpConnection::connect(serve.addr).await;
    SockRef::from(&client.socket).set_recv_buffer_size(64 * 1024).unwrap();
    let live = [reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat();
    client.request("GET", &path(&live), &[], "").await;
    let head = client.head().await;
    assert_eq!(head.status, 200, "{}", head.text);
    Events::over(client, head)
}

/// The rows of a client, as the published one keeps them.
#[derive(Default)]
struct Rows {
    versions: BTreeMap<String, u32>,
    /// The last message's place.
    last: (u64, u64),
    /// What up-to-date said last.
    seen: u64,
}

impl Rows {
    /// Takes a message in. Whether it is an up-to-date: then all rows are of one version.
    #[track_caller]
    fn take(&mut self, message: &Value) -> bool {
        let headers = &message["headers"];
        let number = |name: &str| headers[name].as_str().unwrap().parse::<u64>().unwrap();
        if headers["control"] == "up-to-date" {
            let seen = number("global_last_seen_lsn");
            assert!(seen > self.last.0 && seen >= self.seen, "{seen} after {:?}", self.last);
            let versions: BTreeSet<_> = self.versions.values().collect();
            assert!(versions.len() <= 1, "a state that no transaction left: {:?}", self.versions);
            self.seen = seen;
            return true;
        }
        let place = (number("lsn"), headers["op_position"].as_u64().unwrap());
        assert!(place > self.last && place.0 >= self.seen, "{place:?} after {:?}, {}", self.last, self.seen);
        self.last = place;
        let version = message["value"]["version"].as_str().unwrap().parse().unwrap();
        self.versions.insert(message["key"].as_str().unwrap().to_owned(), version);
        false
    }

    fn are(&self, version: u32) -> bool {
        self.versions.len() == 20 && self.versions.values().all(|own| *own == version)
    }

    /// Reads on until an up-to-date after this version.
    async fn reach(&mut self, events: &mut Events, version: u32) {
        loop {
            match events.next().await {
                Event::Message(message) => {
                    if self.take(&message) && self.are(version) {
                        return;
                    }
                }
                Event::KeepAlive => {}
                Event::End => panic!("the stream ended at {:?}: {:?}", self.last, self.versions),
            }
        }
    }
}

#[tokio::test]
async fn the_head_of_a_stream_says_what_its_client_has() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "200")]).await;
    let mut reader = serve.reader(&ITEM).await;
    let mut level = serve.events(&reader).await;
    assert_eq!(level.head.header("electric-offset"), Some(&*reader.offset));
    assert_eq!(level.next().await, Event::KeepAlive, "there is nothing to tell");
    write(&place, 1..=3);
    reader.clone().live_changes(&serve, 60).await;
    let mut behind = serve.events(&reader).await;
    assert_eq!(behind.head.header("electric-offset"), Some(&*reader.offset));
    for events in [&mut behind, &mut level] {
        let mut rows = Rows::default();
        rows.reach(events, 3).await;
        // As the published client resumes.
        reader.offset = format!("{}_0", rows.seen);
    }
    let mut resumed = serve.events(&reader).await;
    assert_eq!(resumed.head.header("electric-offset"), Some(&*reader.offset));
    assert_eq!(resumed.next().await, Event::KeepAlive, "there is nothing to tell");
}

#[tokio::test]
async fn a_stream_whose_time_is_over_goes_on_to_its_next_up_to_date() {
    let place = Place::new(ITEMS);
    let serve = place.serve_with(&[("FOREBAY_SERVE_SSE_TIMEOUT_MS", "500")]).await;
    let reader = serve.reader(&ITEM).await;
    // One transaction, more than sockets hold.
    place.sql(
        "BEGIN; UPDATE items SET version = 1, note = repeat('x', 500000);
        UPDATE items SET version = 2, note = repeat('y', 500000); COMMIT",
    );
    reader.clone().live_changes(&serve, 40).await;
    let mut events = slow_events(&serve, &reader).await;
    sleep(Duration::from_millis(700)).await;
    let (messages, _) = events.up_to_date().await;
    assert_eq!(messages.len(), 40);
    assert_eq!(events.next().await, Event::End, "its time is over");
}

#[tokio::test]
async fn what_a_slow_client_has_read_counts_though_its_stream_is_cut() {
    const VERSIONS: u32 = 200;
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let mut reader = serve.reader(&ITEM).await;
    write(&place, 1..=VERSIONS);
    reader.clone().live_changes(&serve, 20 * VERSIONS as usize).await;
    let (mut events, mut rows, begun) = (slow_events(&serve, &reader).await, Rows::default(), Instant::now());
    let mut read = 0;
    loop {
        let Event::Message(message) = events.next().await else { panic!("{read} messages") };
        if rows.take(&message) {
            break;
        }
        read += 1;
        // 5 KB in 2.5 ms: the whole log would take ten seconds.
        if read % 20 == 0 {
            sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(
        read < 20 * VERSIONS as usize,
        "the first up-to-date came at the end, after {:?}",
        begun.elapsed()
    );
    drop(events);
    reader.offset = format!("{}_0", rows.seen);
    rows.reach(&mut serve.events(&reader).await, VERSIONS).await;
}

#[tokio::test]
async fn a_log_that_is_merged_under_a_slow_client_is_told_once_and_in_order() {
    merged_under_a_slow_client(false).await;
}

#[tokio::test]
async fn a_file_that_goes_under_a_slow_client_breaks_no_stream() {
    merged_under_a_slow_client(true).await;
}

/// Whether there is a file with such an end. `0.log` stands for a log's first file, whose name has no
/// position in it.
fn has_file(place: &Place, end: &str) -> bool {
    let files = std::fs::read_dir(place.dir.join("shapes")).unwrap();
    let mut names = files.filter_map(|file| file.unwrap().file_name().into_string().ok());
    match end {
        "0.log" => names.any(|name| name.ends_with(".log") && name.split('.').count() == 2),
        end => names.any(|name| name.ends_with(end)),
    }
}

/// `is_gone`: the file that the client was reading is removed, too.
async fn merged_under_a_slow_client(is_gone: bool) {
    const FIRST: u32 = 100;
    let place = Place::new(ITEMS);
    let merged_from = (FIRST as usize + 20) * TRANSACTION;
    let settings = [
        ("FOREBAY_STORAGE_CHUNK_BYTES", "65536".to_owned()),
        ("FOREBAY_STORAGE_COMPACT_BYTES", merged_from.to_string()),
        ("FOREBAY_STORAGE_WAL_BYTES", "1048576".to_owned()),
        // The slow client's stream outlives all that is written meanwhile.
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "3600000".to_owned()),
    ];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let serve = place.serve_with(&settings).await;
    let reader = serve.reader(&ITEM).await;
    write(&place, 1..=FIRST);
    reader.clone().live_changes(&serve, 20 * FIRST as usize).await;
    // It subscribes here, and takes little of what is there already.
    let mut slow = slow_events(&serve, &reader).await;
    let mut version = FIRST + 10;
    write(&place, FIRST + 1..=version);
    // Without more changes there is no further checkpoint, which would remove the file.
    while !has_file(&place, ".past") || (is_gone && has_file(&place, "0.log")) {
        assert!(version < 10 * FIRST, "the log isn't merged");
        version += 1;
        write(&place, version..=version);
    }
    let is_short =
        async || serve.status().await["shapes"]["bytes"].as_u64().unwrap() < merged_from as u64 / 2;
    if !is_gone {
        until("it is read where it was merged", is_short).await;
    }
    let mut rows = Rows::default();
    rows.reach(&mut slow, version).await;
    version += 1;
    write(&place, version..=version);
    rows.reach(&mut slow, version).await;
    // A client that begins in the merged part gets it without an up-to-date, by events and answers: it would be one on rows
    // of several versions. After that, one that takes its time is up to date between transactions.
    let mut late = Rows::default();
    late.reach(&mut serve.events(&reader).await, version).await;
    assert_eq!(late.last, rows.last);
    let answers = reader.clone().catch_up(&serve).await;
    assert!(answers.len() < 20 * FIRST as usize, "{} messages", answers.len());
    let mut told = Rows::default();
    let up_to_dates = answers.iter().filter(|message| told.take(message)).count();
    assert!(told.are(version) && up_to_dates == 1);
}
