//! Storage that a newer version has written: the server refuses it with a reason, and doesn't
//! change it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use super::support::{ServeFixture, ShapeReader, SseEvent, summarize};
use crate::wire::{DEADLINE, until};

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
const NEWER_VERSION_MESSAGE: &str =
    "the storage was written by a newer version of Forebay, which this instance can't read";

/// Reads every file below a folder.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(contents(&path)),
            false => drop(all.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    all
}

/// Computes CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// Appends a record of an unknown kind at the writer's position in the WAL, as a newer version
/// would. Returns the segment, and the position after the record.
fn append_unknown_record(dir: &Path) -> (u64, u64) {
    let head = fs::read(dir.join("head")).unwrap();
    let number = |at: usize| u64::from_le_bytes(head[at * 8..at * 8 + 8].try_into().unwrap());
    let (segment, at) = (number(0), number(1));
    let (length, payload) = (5_u32.to_le_bytes(), [9, 1, 2, 3, 4]);
    let checksum = checksum(&[&length[..], &payload].concat()).to_le_bytes();
    let record = [&length[..], &checksum, &payload].concat();
    let path = dir.join("wal").join(format!("{segment:016x}"));
    let mut log = OpenOptions::new().write(true).open(path).unwrap();
    log.seek(SeekFrom::Start(at)).unwrap();
    log.write_all(&record).unwrap();
    (segment, at + record.len() as u64)
}

/// Sets the durable position in the file `head`.
fn set_durable_position(dir: &Path, (segment, at): (u64, u64)) {
    let catalog = fs::read(dir.join("head")).unwrap()[16..24].to_vec();
    let numbers = [&segment.to_le_bytes()[..], &at.to_le_bytes(), &catalog].concat();
    let checksum = checksum(&numbers).to_le_bytes();
    fs::write(dir.join("head"), [&numbers[..], &checksum].concat()).unwrap();
}

#[tokio::test]
async fn a_server_refuses_storage_of_a_newer_version_and_does_not_change_it() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let mut serve = fixture.serve().await;
    serve.reader(&ITEMS_SHAPE).await;
    serve.signal(Signal::TERM);
    serve.end().await;
    append_unknown_record(&fixture.dir);
    let before = contents(&fixture.dir);
    let mut starting = fixture.command(&[]).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while starting.try_wait().unwrap().is_none() {
        if started.elapsed() > DEADLINE {
            starting.kill().unwrap();
        }
        sleep(Duration::from_millis(10)).await;
    }
    let output = starting.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["a record of kind 9", "a newer version wrote it; run that version", "wal/"] {
        assert!(stderr.contains(part), "{part:?} is not in {stderr}");
    }
    assert!(contents(&fixture.dir) == before, "the storage has changed");
}

#[tokio::test]
async fn an_instance_beside_a_newer_one_refuses_requests_and_never_takes_over() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    // The second instance must not take over from the stopped first one.
    let no_takeover = ("FOREBAY_DATABASE_LOCK_SILENCE_MS", "600000");
    let mut first = fixture.serve_with(&[no_takeover]).await;
    let mut reader = first.reader(&ITEMS_SHAPE).await;
    let second = fixture.spawn(&[no_takeover, ("FOREBAY_SERVE_LONG_POLL_MS", "500")]);
    second.wait_for_health("waiting").await;
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    assert_eq!(summarize(&reader.live_changes(&second, 1).await), ["insert 2"]);
    let mut events = second.events(&reader).await;

    // The writer is stopped, and the next record comes from a newer version.
    first.signal(Signal::STOP);
    set_durable_position(&fixture.dir, append_unknown_record(&fixture.dir));
    let before = contents(&fixture.dir);
    let logged = second.wait_for_log("storage unusable: requests for shapes are refused");
    assert!(logged["error"].as_str().unwrap().contains("a record of kind 9"), "{logged}");
    let ended = loop {
        match events.next().await {
            SseEvent::KeepAlive => {}
            event => break event,
        }
    };
    assert_eq!(ended, SseEvent::End, "a stream that can't continue ends");
    let live = [reader.params(), vec![("live", "true")]].concat();
    let from_start = [("table", "items"), ("offset", "-1")];
    for params in [reader.params(), live, ShapeReader::new(&ITEMS_SHAPE).params(), from_start.to_vec()] {
        let refused = second.get(&params).await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
        assert_eq!(refused.json()["message"], NEWER_VERSION_MESSAGE);
        assert!(refused.head.header("retry-after").is_some());
    }
    assert_eq!(second.health().await, "starting");
    assert_eq!(second.admin("/readyz").await.head.status, 503);
    assert_eq!(second.status().await["why_not_ready"], json!(NEWER_VERSION_MESSAGE));

    first.signal(Signal::KILL);
    first.end().await;
    until("the manager has halted", async || second.status().await["database"]["step"] == json!("halted"))
        .await;
    assert_eq!(second.get(&reader.params()).await.json()["message"], NEWER_VERSION_MESSAGE);
    let times = second.log().matches("storage unusable").count();
    assert_eq!(times, 1, "{}", second.log());
    assert!(contents(&fixture.dir) == before, "the storage has changed");
}
