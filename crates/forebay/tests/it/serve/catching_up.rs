//! Event streams of clients that are behind the log, and streams that end before the client has
//! caught up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::SockRef;
use tokio::time::sleep;

use super::support::{ServeFixture, ServeProcess, ShapeReader, SseEvent, SseStream, path};
use crate::wire::{HttpConnection, until};

const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
/// Rows of 5 KB. After each transaction all of them have the same version.
const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, version int, note text);
    INSERT INTO items SELECT n, 0, '' FROM generate_series(1, 20) n";
/// Approximate number of bytes that one transaction adds to the log.
const TRANSACTION_BYTES: usize = 20 * 5_000;

/// Sets all rows to each of these versions, one transaction each.
fn write_versions(fixture: &ServeFixture, versions: std::ops::RangeInclusive<u32>) {
    let (from, to) = versions.into_inner();
    fixture.sql(&format!(
        "DO $$ BEGIN FOR n IN {from}..{to} LOOP
            UPDATE items SET version = n, note = repeat(md5(n::text), 150); COMMIT;
        END LOOP; END $$"
    ));
}

/// Opens a stream with a small receive buffer, so that the server waits while the client doesn't
/// read.
async fn slow_events(serve: &ServeProcess, reader: &ShapeReader<'_>) -> SseStream {
    let mut client = HttpConnection::connect(serve.addr).await;
    SockRef::from(&client.socket).set_recv_buffer_size(64 * 1024).unwrap();
    let live = [reader.params(), vec![("live", "true"), ("live_sse", "true")]].concat();
    client.request("GET", &path(&live), &[], "").await;
    let head = client.head().await;
    assert_eq!(head.status, 200, "{}", head.text);
    SseStream::new(client, head)
}

/// The rows of a client, and its position in the log.
#[derive(Default)]
struct VersionedRows {
    /// The version of each row, by key.
    versions: BTreeMap<String, u32>,
    /// LSN and operation of the last change.
    last: (u64, u64),
    /// Position in the last up-to-date.
    seen: u64,
}

impl VersionedRows {
    /// Applies a message. Returns whether it is an up-to-date, at which all rows must have one
    /// version.
    #[track_caller]
    fn apply(&mut self, message: &Value) -> bool {
        let headers = &message["headers"];
        let number = |name: &str| headers[name].as_str().unwrap().parse::<u64>().unwrap();
        if headers["control"] == "up-to-date" {
            let seen = number("global_last_seen_lsn");
            assert!(seen > self.last.0 && seen >= self.seen, "{seen} after {:?}", self.last);
            let versions: BTreeSet<_> = self.versions.values().collect();
            assert!(versions.len() <= 1, "the rows at an up-to-date are a mixture: {:?}", self.versions);
            self.seen = seen;
            return true;
        }
        let offset = (number("lsn"), headers["op_position"].as_u64().unwrap());
        assert!(
            offset > self.last && offset.0 >= self.seen,
            "{offset:?} after {:?}, {}",
            self.last,
            self.seen
        );
        self.last = offset;
        let version = message["value"]["version"].as_str().unwrap().parse().unwrap();
        self.versions.insert(message["key"].as_str().unwrap().to_owned(), version);
        false
    }

    /// Returns whether all rows have this version.
    fn all_have(&self, version: u32) -> bool {
        self.versions.len() == 20 && self.versions.values().all(|own| *own == version)
    }

    /// Reads until an up-to-date at which all rows have this version.
    async fn read_until(&mut self, events: &mut SseStream, version: u32) {
        loop {
            match events.next().await {
                SseEvent::Message(message) => {
                    if self.apply(&message) && self.all_have(version) {
                        return;
                    }
                }
                SseEvent::KeepAlive => {}
                SseEvent::End => panic!("the stream ended at {:?}: {:?}", self.last, self.versions),
            }
        }
    }
}

#[tokio::test]
async fn the_head_of_a_stream_has_the_requested_offset() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "200")]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let mut level = serve.events(&reader).await;
    assert_eq!(level.head.header("electric-offset"), Some(&*reader.offset));
    assert_eq!(level.next().await, SseEvent::KeepAlive, "there is nothing to send");
    write_versions(&fixture, 1..=3);
    reader.clone().live_changes(&serve, 60).await;
    let mut behind = serve.events(&reader).await;
    assert_eq!(behind.head.header("electric-offset"), Some(&*reader.offset));
    for events in [&mut behind, &mut level] {
        let mut rows = VersionedRows::default();
        rows.read_until(events, 3).await;
        // The published client resumes like this.
        reader.offset = format!("{}_0", rows.seen);
    }
    let mut resumed = serve.events(&reader).await;
    assert_eq!(resumed.head.header("electric-offset"), Some(&*reader.offset));
    assert_eq!(resumed.next().await, SseEvent::KeepAlive, "there is nothing to send");
}

#[tokio::test]
async fn a_stream_past_its_timeout_continues_to_the_next_up_to_date() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve_with(&[("FOREBAY_SERVE_SSE_TIMEOUT_MS", "500")]).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    // One transaction, larger than the socket buffers.
    fixture.sql(
        "BEGIN; UPDATE items SET version = 1, note = repeat('x', 500000);
        UPDATE items SET version = 2, note = repeat('y', 500000); COMMIT",
    );
    reader.clone().live_changes(&serve, 40).await;
    let mut events = slow_events(&serve, &reader).await;
    sleep(Duration::from_millis(700)).await;
    let (messages, _) = events.until_up_to_date().await;
    assert_eq!(messages.len(), 40);
    assert_eq!(events.next().await, SseEvent::End, "its timeout has passed");
}

#[tokio::test]
async fn a_slow_client_gets_an_up_to_date_before_the_end_of_the_log() {
    const VERSIONS: u32 = 200;
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    write_versions(&fixture, 1..=VERSIONS);
    reader.clone().live_changes(&serve, 20 * VERSIONS as usize).await;
    let (mut events, mut rows, started) =
        (slow_events(&serve, &reader).await, VersionedRows::default(), Instant::now());
    let mut read = 0;
    loop {
        let SseEvent::Message(message) = events.next().await else { panic!("{read} messages") };
        if rows.apply(&message) {
            break;
        }
        read += 1;
        // 5 KB in 2.5 ms: the whole log would take 10 s.
        if read % 20 == 0 {
            sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(
        read < 20 * VERSIONS as usize,
        "the first up-to-date came at the end, after {:?}",
        started.elapsed()
    );
    drop(events);
    reader.offset = format!("{}_0", rows.seen);
    rows.read_until(&mut serve.events(&reader).await, VERSIONS).await;
}

#[tokio::test]
async fn a_slow_client_gets_each_change_once_while_its_log_is_compacted() {
    compacted_under_a_slow_client(false).await;
}

#[tokio::test]
async fn removing_the_file_that_a_slow_client_reads_breaks_no_stream() {
    compacted_under_a_slow_client(true).await;
}

/// Returns whether a shape has a file whose name ends like this. `0.log` denotes the first file of
/// a log, whose name has no position.
fn has_file(fixture: &ServeFixture, end: &str) -> bool {
    let files = std::fs::read_dir(fixture.dir.join("shapes")).unwrap();
    let mut names = files.filter_map(|file| file.unwrap().file_name().into_string().ok());
    match end {
        "0.log" => names.any(|name| name.ends_with(".log") && name.split('.').count() == 2),
        end => names.any(|name| name.ends_with(end)),
    }
}

/// Compacts the log while a slow client reads it. `is_gone`: also waits until the server has
/// removed the file that the client reads.
async fn compacted_under_a_slow_client(is_gone: bool) {
    const FIRST: u32 = 100;
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let compact_bytes = (FIRST as usize + 20) * TRANSACTION_BYTES;
    let settings = [
        ("FOREBAY_STORAGE_CHUNK_BYTES", "65536".to_owned()),
        ("FOREBAY_STORAGE_COMPACT_BYTES", compact_bytes.to_string()),
        ("FOREBAY_STORAGE_WAL_BYTES", "1048576".to_owned()),
        // The stream of the slow client must not end before all is written.
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "3600000".to_owned()),
    ];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let serve = fixture.serve_with(&settings).await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    write_versions(&fixture, 1..=FIRST);
    reader.clone().live_changes(&serve, 20 * FIRST as usize).await;
    // The slow client subscribes here, and receives only a small part of the existing log.
    let mut slow = slow_events(&serve, &reader).await;
    let mut version = FIRST + 10;
    write_versions(&fixture, FIRST + 1..=version);
    // The file is removed at a checkpoint, and only more changes lead to one.
    while !has_file(&fixture, ".past") || (is_gone && has_file(&fixture, "0.log")) {
        assert!(version < 10 * FIRST, "the log isn't compacted");
        version += 1;
        write_versions(&fixture, version..=version);
    }
    let is_compacted =
        async || serve.status().await["shapes"]["bytes"].as_u64().unwrap() < compact_bytes as u64 / 2;
    if !is_gone {
        until("the compacted log is in use", is_compacted).await;
    }
    let mut rows = VersionedRows::default();
    rows.read_until(&mut slow, version).await;
    version += 1;
    write_versions(&fixture, version..=version);
    rows.read_until(&mut slow, version).await;
    // A client that starts in the compacted part gets no up-to-date inside it, neither by events
    // nor by pages: its rows have several versions there.
    let mut late = VersionedRows::default();
    late.read_until(&mut serve.events(&reader).await, version).await;
    assert_eq!(late.last, rows.last);
    let responses = reader.clone().catch_up(&serve).await;
    assert!(responses.len() < 20 * FIRST as usize, "{} messages", responses.len());
    let mut paged = VersionedRows::default();
    let up_to_dates = responses.iter().filter(|message| paged.apply(message)).count();
    assert!(paged.all_have(version) && up_to_dates == 1);
}
