//! Five thousand concurrent streams through one gate, which has two descriptors open for each.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::forebay_process::ForebayProcess;
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

const STREAMS: usize = 5_000;
const PER_USER: usize = 3;
/// Connection attempts in flight; more would only wait in the kernel's queue.
const CONCURRENT_DIALS: usize = 64;

/// Held by each test that opens thousands of connections: two such tests at once would exceed the
/// descriptor limit of the process.
pub(crate) static MANY_CONNECTIONS_LOCK: Mutex<()> = Mutex::const_new(());

fn user_of(number: usize) -> String {
    format!("X-User-ID: user-{}", number / PER_USER)
}

/// Opens `count` streams and waits for the first event of each.
async fn open_streams(gate: &ForebayProcess, count: usize) -> Vec<HttpConnection> {
    let mut streams: Vec<HttpConnection> = Vec::with_capacity(count);
    let (mut dialing, mut next) = (JoinSet::new(), 0);
    while streams.len() < count {
        while next < count && dialing.len() < CONCURRENT_DIALS {
            let (addr, user) = (gate.addr, user_of(next));
            dialing.spawn(async move {
                let mut client = HttpConnection::get(addr, "/", &[&user]).await;
                assert_eq!(client.head().await.status, 200);
                assert_eq!(client.event().await, "data: 1\n\n");
                client
            });
            next += 1;
        }
        streams.push(dialing.join_next().await.unwrap().unwrap());
    }
    streams
}

/// Closes all streams and waits until the gate uses less than `enough_kib` of memory. Returns its
/// resident memory in KiB.
async fn close_streams(
    gate: &ForebayProcess,
    origin: &StreamingUpstream,
    streams: Vec<HttpConnection>,
    enough_kib: u64,
) -> u64 {
    drop(streams);
    gate.wait_until_empty().await;
    until("the upstream is empty", async || origin.open() == 0).await;
    until("all lean streams are closed", async || gate.status().await["http"]["lean_streams"] == 0).await;
    until("memory is released", async || gate.resident_kib() < enough_kib).await;
    gate.resident_kib()
}

#[tokio::test]
async fn five_thousand_streams_are_served_and_their_memory_is_released() {
    let _lock = MANY_CONNECTIONS_LOCK.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let origin = StreamingUpstream::start().await;
    let total = STREAMS.to_string();
    let gate = ForebayProcess::start_gate_with(
        &origin.url(),
        &[&TRUSTED[..], &["--total", &total]].concat(),
        &USERS,
    );
    let before_kib = gate.resident_kib();

    let mut streams = open_streams(&gate, STREAMS).await;
    let full_kib = gate.resident_kib();
    let status = gate.status().await;
    assert_eq!((origin.open(), &status["http"]["lean_streams"]), (STREAMS, &STREAMS.into()));
    assert_eq!(status["statistics"]["total_connections"], STREAMS);
    assert_eq!(status["statistics"]["state"], "exhausted");

    let full = open_stream(&gate, "/", &["X-User-ID: newcomer"]).await.unwrap_err();
    assert_eq!(full.head.status, 503);
    drop(streams.split_off(STREAMS - 10));
    until("ten permits are free", async || origin.open() == STREAMS - 10).await;
    let fourth = open_stream(&gate, "/", &[&user_of(0)]).await.unwrap_err();
    assert_eq!(fourth.head.status, 429, "permits are free, but this user has reached the limit");
    streams.push(open_stream(&gate, "/", &["X-User-ID: newcomer"]).await.unwrap());

    let grown_kib = full_kib - before_kib;
    let after_kib = close_streams(&gate, &origin, streams, before_kib + grown_kib / 2).await;
    // The next streams reuse the memory that the first ones left, so it doesn't grow further.
    let again = open_streams(&gate, STREAMS / 2).await;
    let again_kib = close_streams(&gate, &origin, again, after_kib + grown_kib / 8).await;
    let each = grown_kib as f64 / STREAMS as f64;
    eprintln!(
        "{STREAMS} streams through the gate: {before_kib} KiB of memory before, {full_kib} KiB with all open \
         ({each:.1} KiB each), {after_kib} KiB after, {again_kib} KiB after half as many more"
    );
}
