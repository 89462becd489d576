//! What a newer version left in the storage directory is refused with words, and left as it is.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use super::support::{Event, Place, Reader, short};
use crate::wire::{DEADLINE, until};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEM: [(&str, &str); 1] = [("table", "items")];
const NEWER: &str = "the storage was written by a newer version of Forebay, which this instance can't read";

/// Every file of a folder, with its bytes.
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

/// CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// Appends a record of a kind that this version doesn't know to the log, where the writer has come
/// to, as a newer version would. Returns the log's segment, and where the record ends.
fn append_unknown(dir: &Path) -> (u64, u64) {
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

/// Says that the log is durable up to there.
fn tell(dir: &Path, (segment, at): (u64, u64)) {
    let catalog = fs::read(dir.join("head")).unwrap()[16..24].to_vec();
    let numbers = [&segment.to_le_bytes()[..], &at.to_le_bytes(), &catalog].concat();
    let checksum = checksum(&numbers).to_le_bytes();
    fs::write(dir.join("head"), [&numbers[..], &checksum].concat()).unwrap();
}

#[tokio::test]
async fn a_server_refuses_what_a_newer_version_wrote_and_leaves_it_alone() {
    let place = Place::new(ITEMS);
    let mut serve = place.serve().await;
    serve.reader(&ITEM).await;
    serve.signal(Signal::TERM);
    serve.end().await;
    append_unknown(&place.dir);
    let before = contents(&place.dir);
    let mut starting = place.command(&[]).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while starting.try_wait().unwrap().is_none() {
        if begun.elapsed() > DEADLINE {
            starting.kill().unwrap();
        }
        sleep(Duration::from_millis(10)).await;
    }
    let output = starting.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["a record of kind 9", "a newer version wrote it; run that version", "wal/"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(contents(&place.dir) == before, "the folder has changed");
}

#[tokio::test]
async fn an_instance_that_reads_beside_a_newer_one_refuses_and_never_takes_over() {
    let place = Place::new(ITEMS);
    // However long it stands still, the first isn't taken for dead.
    let patient = ("FOREBAY_DATABASE_LOCK_SILENCE_MS", "600000");
    let mut first = place.serve_with(&[patient]).await;
    let mut reader = first.reader(&ITEM).await;
    let second = place.spawn(&[patient, ("FOREBAY_SERVE_LONG_POLL_MS", "500")]);
    second.becomes("waiting").await;
    place.sql("INSERT INTO items VALUES (2, 'two')");
    assert_eq!(short(&reader.live_changes(&second, 1).await), ["insert 2"]);
    let mut events = second.events(&reader).await;

    // The writer stands still, and what it would have written next is of a newer version.
    first.signal(Signal::STOP);
    tell(&place.dir, append_unknown(&place.dir));
    let before = contents(&place.dir);
    let logged = second.wait_for_log("storage unusable: requests for shapes are refused");
    assert!(logged["error"].as_str().unwrap().contains("a record of kind 9"), "{logged}");
    let ended = loop {
        match events.next().await {
            Event::KeepAlive => {}
            event => break event,
        }
    };
    assert_eq!(ended, Event::End, "a stream that can't go on ends");
    let live = [reader.params(), vec![("live", "true")]].concat();
    let from_start = [("table", "items"), ("offset", "-1")];
    for params in [reader.params(), live, Reader::new(&ITEM).params(), from_start.to_vec()] {
        let refused = second.get(&params).await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
        assert_eq!(refused.json()["message"], NEWER);
        assert!(refused.head.header("retry-after").is_some());
    }
    assert_eq!(second.health().await, "starting");
    assert_eq!(second.admin("/readyz").await.head.status, 503);
    assert_eq!(second.status().await["why_not_ready"], json!(NEWER));

    first.signal(Signal::KILL);
    first.end().await;
    until("it has given up", async || second.status().await["database"]["step"] == json!("halted")).await;
    assert_eq!(second.get(&reader.params()).await.json()["message"], NEWER);
    let times = second.log().matches("storage unusable").count();
    assert_eq!(times, 1, "{}", second.log());
    assert!(contents(&place.dir) == before, "the folder has changed");
}
