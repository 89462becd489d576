//! Five thousand streams through one gate, which holds two descriptors for each.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::gate::Gate;
use crate::limits::{TRUSTED, USERS, open};
use crate::origin::Streams;
use crate::wire::{Client, until};

const STREAMS: usize = 5_000;
const PER_USER: usize = 3;
/// That dial at once; more would only queue in the kernel.
const AT_ONCE: usize = 64;

/// Two crowds at once would need more descriptors than a process gets.
pub(crate) static ALONE: Mutex<()> = Mutex::const_new(());

fn user_of(number: usize) -> String {
    format!("X-User-ID: user-{}", number / PER_USER)
}

/// So many streams, each with its first event.
async fn gather(gate: &Gate, count: usize) -> Vec<Client> {
    let mut streams: Vec<Client> = Vec::with_capacity(count);
    let (mut dialing, mut next) = (JoinSet::new(), 0);
    while streams.len() < count {
        while next < count && dialing.len() < AT_ONCE {
            let (addr, user) = (gate.addr, user_of(next));
            dialing.spawn(async move {
                let mut client = Client::get(addr, "/", &[&user]).await;
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

/// All leave; what is left of the gate's memory when it is below this.
async fn disperse(gate: &Gate, origin: &Streams, streams: Vec<Client>, enough_kib: u64) -> u64 {
    drop(streams);
    gate.empty().await;
    until("the upstream is empty", async || origin.open() == 0).await;
    until("all connections are gone", async || gate.status().await["http"]["lean_streams"] == 0).await;
    until("memory comes back", async || gate.resident_kib() < enough_kib).await;
    gate.resident_kib()
}

#[tokio::test]
async fn five_thousand_streams_are_served_and_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let origin = Streams::start().await;
    let total = STREAMS.to_string();
    let gate = Gate::start_with(&origin.url(), &[&TRUSTED[..], &["--total", &total]].concat(), &USERS);
    let before_kib = gate.resident_kib();

    let mut streams = gather(&gate, STREAMS).await;
    let full_kib = gate.resident_kib();
    let status = gate.status().await;
    assert_eq!((origin.open(), &status["http"]["lean_streams"]), (STREAMS, &STREAMS.into()));
    assert_eq!(status["statistics"]["total_connections"], STREAMS);
    assert_eq!(status["statistics"]["state"], "exhausted");

    let full = open(&gate, "/", &["X-User-ID: newcomer"]).await.unwrap_err();
    assert_eq!(full.head.status, 503);
    drop(streams.split_off(STREAMS - 10));
    until("ten places are free", async || origin.open() == STREAMS - 10).await;
    let fourth = open(&gate, "/", &[&user_of(0)]).await.unwrap_err();
    assert_eq!(fourth.head.status, 429, "there is room, but not for this user");
    streams.push(open(&gate, "/", &["X-User-ID: newcomer"]).await.unwrap());

    let grown_kib = full_kib - before_kib;
    let after_kib = disperse(&gate, &origin, streams, before_kib + grown_kib / 2).await;
    // What the first crowd left is room that the next one uses: nothing adds up.
    let again = gather(&gate, STREAMS / 2).await;
    let again_kib = disperse(&gate, &origin, again, after_kib + grown_kib / 8).await;
    let each = grown_kib as f64 / STREAMS as f64;
    eprintln!(
        "{STREAMS} streams through the gate: {before_kib} KiB of memory before, {full_kib} KiB with all open \
         ({each:.1} KiB each), {after_kib} KiB after, {again_kib} KiB after half as many more"
    );
}
