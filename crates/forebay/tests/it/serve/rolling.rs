//! Two instances on one database and one Redis are ended and started again, one after the other, under a thousand streams.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_sandbox::Redis;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::support::{Event, Events, Place, Reader, Serve, path};
use crate::many_streams::MANY_CONNECTIONS_LOCK;
use crate::wire::{HttpConnection, HttpHead, until};

const STREAMS: usize = 1_000;
/// More want a stream than may have one.
const CLIENTS: usize = 1_020;
/// Whoever was refused asks again after this time.
const PAUSE: Duration = Duration::from_millis(500);
/// For each of them a thousand messages are read here, without optimizations.
const ROWS_EVERY: Duration = Duration::from_millis(200);
const LAST: &str = "the last";

/// What the clients know of the instances, and the test of the clients.
struct Doors {
    addresses: Mutex<[SocketAddr; 2]>,
    /// Clients that have a stream.
    held: AtomicUsize,
}

impl Doors {
    /// Asks one of the instances. `None`: it is about to end, or gone.
    async fn ask(&self, number: usize, path: &str) -> Option<(HttpConnection, HttpHead)> {
        let address = self.addresses.lock().unwrap()[number % 2];
        let mut socket = TcpStream::connect(address).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        socket.write_all(request.as_bytes()).await.ok()?;
        let mut client = HttpConnection::over(socket);
        let head = client.try_head().await?;
        Some((client, head))
    }
}

/// One client, until it has the last row; how many rows that were. It goes on as the published one does.
async fn follow(number: usize, doors: Arc<Doors>, handle: String, mut offset: String) -> usize {
    let mut last = 0;
    for attempt in number.. {
        let params = [("table", "items"), ("handle", &handle), ("offset", &offset)];
        let live = path(&[&params[..], &[("live", "true"), ("live_sse", "true")]].concat());
        let mut events = match doors.ask(attempt, &live).await {
            Some((client, head)) if head.status == 200 => Events::over(client, head),
            Some((_, head)) if head.status != 503 => panic!("client {number} is told {}", head.text),
            Some(_) | None => {
                sleep(PAUSE).await;
                continue;
            }
        };
        doors.held.fetch_add(1, Ordering::AcqRel);
        let mut has_all = false;
        while let Event::Message(message) = events.next().await {
            let headers = &message["headers"];
            if headers["control"] == "up-to-date" {
                offset = format!("{}_0", headers["global_last_seen_lsn"].as_str().unwrap());
                continue;
            }
            let id = message["value"]["id"].as_str().unwrap().parse::<usize>().unwrap();
            assert_eq!(id, last + 1, "client {number}, {offset}: every row once, in order");
            last = id;
            offset = format!("{}_{}", headers["lsn"].as_str().unwrap(), headers["op_position"]);
            has_all = message["value"]["note"] == LAST;
            if has_all {
                break;
            }
        }
        doors.held.fetch_sub(1, Ordering::AcqRel);
        if has_all {
            break;
        }
    }
    last
}

/// Ends the writing, also of a test that fails.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A row now and then, until told to stop; how many that were.
fn write(place: &Place, stop: &AtomicBool) -> usize {
    for id in 1.. {
        let is_last = stop.load(Ordering::Acquire);
        place.sql(&format!("INSERT INTO items VALUES ({id}, '{}')", if is_last { LAST } else { "more" }));
        if is_last {
            return id;
        }
        std::thread::sleep(ROWS_EVERY);
    }
    unreachable!("rows are numbered without end")
}

/// As many as may have a stream have one, as clients and instances count.
async fn is_full(doors: &Doors, instances: [&Serve; 2]) {
    until("every place is taken", async || doors.held.load(Ordering::Acquire) == STREAMS).await;
    assert_eq!(streams(instances).await, STREAMS as u64);
    for instance in instances {
        let told =
            HttpConnection::fetch(instance.addr, "GET", "/v1/shape?table=items&offset=now", &[], "").await;
        let reader = [("table", "items"), ("live", "true"), ("live_sse", "true")];
        let [handle, offset] =
            ["electric-handle", "electric-offset"].map(|name| told.head.header(name).unwrap());
        let more = [&reader[..], &[("handle", handle), ("offset", offset)]].concat();
        let refused = HttpConnection::fetch(instance.addr, "GET", &path(&more), &[], "").await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    }
}

async fn streams(instances: [&Serve; 2]) -> u64 {
    let mut sum = 0;
    for instance in instances {
        sum += instance.status().await["http"]["lean_streams"].as_u64().unwrap();
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_a_thousand_streams_loses_no_change_and_admits_nobody_wrongly() {
    let _alone = MANY_CONNECTIONS_LOCK.lock().await;
    let place = Arc::new(Place::new("CREATE TABLE items (id int PRIMARY KEY, note text)"));
    let (redis, total) = (Redis::shared().url(), STREAMS.to_string());
    let settings = [
        ("FOREBAY_REDIS_URL", &*redis),
        ("FOREBAY_REDIS_NAMESPACE", &place.slot),
        ("FOREBAY_ADMISSION_TOTAL", &total),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "600000"),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "600000"),
    ];
    let mut first = place.serve_with(&settings).await;
    let Reader { handle, offset, .. } = first.reader(&[("table", "items")]).await;
    let mut second = place.spawn(&settings);
    second.becomes("waiting").await;
    // A new namespace admits nobody for a while.
    for instance in [&first, &second] {
        until("the quota is normal", async || instance.status().await["quota"]["mode"] == "normal").await;
    }

    let doors =
        Arc::new(Doors { addresses: Mutex::new([first.addr, second.addr]), held: AtomicUsize::new(0) });
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(follow(number, Arc::clone(&doors), handle.clone(), offset.clone()));
    }
    is_full(&doors, [&first, &second]).await;
    let told = Arc::new(AtomicBool::new(false));
    let (writing, stop) = (Arc::clone(&place), Stop(Arc::clone(&told)));
    let writer = tokio::task::spawn_blocking(move || write(&writing, &told));

    for turn in 0..2 {
        let (old, other) = if turn == 0 { (&mut first, &second) } else { (&mut second, &first) };
        old.signal(Signal::TERM);
        assert!(old.end().await.success());
        other.becomes("active").await;
        *old = place.spawn(&settings);
        doors.addresses.lock().unwrap()[turn] = old.addr;
        old.becomes("waiting").await;
        is_full(&doors, [&first, &second]).await;
    }
    drop(stop);
    let written = writer.await.unwrap();
    // Whoever has the last row leaves, and makes room for those who never had a place.
    for rows in clients.join_all().await {
        assert_eq!(rows, written);
    }
    until("all streams are gone", async || streams([&first, &second]).await == 0).await;
    until("nobody counts any", async || {
        first.status().await["admission"]["total_connections"] == 0
            && second.status().await["admission"]["total_connections"] == 0
    })
    .await;
}
