//! Rolling restart: two instances with one database and one Redis are restarted one after the
//! other, with a thousand open streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_sandbox::Redis;
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::support::{ServeFixture, ServeProcess, ShapeReader, SseEvent, SseStream, path};
use crate::many_streams::MANY_CONNECTIONS_LOCK;
use crate::wire::{HttpConnection, HttpHead, until};

const STREAMS: usize = 1_000;
/// More clients than the limit on streams.
const CLIENTS: usize = 1_020;
/// Pause of a refused client before its next request.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Interval of the writer. The test reads a thousand messages for each row, in a debug build.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// Note of the last row.
const LAST: &str = "the last";

/// Addresses of the instances, and number of connected clients.
struct InstanceAddresses {
    addresses: Mutex<[SocketAddr; 2]>,
    /// Clients with an open stream.
    open_streams: AtomicUsize,
}

impl InstanceAddresses {
    /// Sends a request to one of the instances. `None`: the instance shuts down or has ended.
    async fn get(&self, number: usize, path: &str) -> Option<(HttpConnection, HttpHead)> {
        let address = self.addresses.lock()[number % 2];
        let mut socket = TcpStream::connect(address).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        socket.write_all(request.as_bytes()).await.ok()?;
        let mut client = HttpConnection::over(socket);
        let head = client.try_head().await?;
        Some((client, head))
    }
}

/// Follows until the last row, and returns the number of rows. Resumes as the published client
/// does.
async fn follow(
    number: usize,
    instances: Arc<InstanceAddresses>,
    handle: String,
    mut offset: String,
) -> usize {
    let mut last = 0;
    for attempt in number.. {
        let params = [("table", "items"), ("handle", &handle), ("offset", &offset)];
        let live = path(&[&params[..], &[("live", "true"), ("live_sse", "true")]].concat());
        let mut events = match instances.get(attempt, &live).await {
            Some((client, head)) if head.status == 200 => SseStream::new(client, head),
            Some((_, head)) if head.status != 503 => panic!("client {number}: {}", head.text),
            Some(_) | None => {
                sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        instances.open_streams.fetch_add(1, Ordering::AcqRel);
        let mut has_all = false;
        while let SseEvent::Message(message) = events.next().await {
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
        instances.open_streams.fetch_sub(1, Ordering::AcqRel);
        if has_all {
            break;
        }
    }
    last
}

/// Stops the writer when dropped, also if the test fails.
struct StopWriter(Arc<AtomicBool>);

impl Drop for StopWriter {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Inserts a row every [`WRITE_INTERVAL`] until `stop` is set. Returns the number of rows.
fn write_rows(fixture: &ServeFixture, stop: &AtomicBool) -> usize {
    for id in 1.. {
        let is_last = stop.load(Ordering::Acquire);
        fixture.sql(&format!("INSERT INTO items VALUES ({id}, '{}')", if is_last { LAST } else { "more" }));
        if is_last {
            return id;
        }
        std::thread::sleep(WRITE_INTERVAL);
    }
    unreachable!("the loop has no end")
}

/// Waits until the limit on streams is reached, and checks that each instance refuses one more.
async fn wait_until_full(addresses: &InstanceAddresses, instances: [&ServeProcess; 2]) {
    until("the limit on streams is reached", async || {
        addresses.open_streams.load(Ordering::Acquire) == STREAMS
    })
    .await;
    assert_eq!(open_streams(instances).await, STREAMS as u64);
    for instance in instances {
        let now =
            HttpConnection::fetch(instance.addr, "GET", "/v1/shape?table=items&offset=now", &[], "").await;
        let reader = [("table", "items"), ("live", "true"), ("live_sse", "true")];
        let [handle, offset] =
            ["electric-handle", "electric-offset"].map(|name| now.head.header(name).unwrap());
        let more = [&reader[..], &[("handle", handle), ("offset", offset)]].concat();
        let refused = HttpConnection::fetch(instance.addr, "GET", &path(&more), &[], "").await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    }
}

/// Returns the number of open streams of both instances.
async fn open_streams(instances: [&ServeProcess; 2]) -> u64 {
    let mut sum = 0;
    for instance in instances {
        sum += instance.status().await["http"]["lean_streams"].as_u64().unwrap();
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_a_thousand_streams_loses_no_change_and_keeps_the_limit() {
    let _alone = MANY_CONNECTIONS_LOCK.lock().await;
    let fixture = Arc::new(ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)"));
    let (redis, total) = (Redis::shared().url(), STREAMS.to_string());
    let settings = [
        ("FOREBAY_REDIS_URL", &*redis),
        ("FOREBAY_REDIS_NAMESPACE", &fixture.slot),
        ("FOREBAY_ADMISSION_TOTAL", &total),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "600000"),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "600000"),
    ];
    let mut first = fixture.serve_with(&settings).await;
    let ShapeReader { handle, offset, .. } = first.reader(&[("table", "items")]).await;
    let mut second = fixture.spawn(&settings);
    second.wait_for_health("waiting").await;
    // A new namespace in Redis grants nothing for a while.
    for instance in [&first, &second] {
        until("the shared quota is available", async || instance.status().await["quota"]["mode"] == "normal")
            .await;
    }

    let addresses = Arc::new(InstanceAddresses {
        addresses: Mutex::new([first.addr, second.addr]),
        open_streams: AtomicUsize::new(0),
    });
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(follow(number, Arc::clone(&addresses), handle.clone(), offset.clone()));
    }
    wait_until_full(&addresses, [&first, &second]).await;
    let stop_requested = Arc::new(AtomicBool::new(false));
    let (writing, stop) = (Arc::clone(&fixture), StopWriter(Arc::clone(&stop_requested)));
    let writer = tokio::task::spawn_blocking(move || write_rows(&writing, &stop_requested));

    for turn in 0..2 {
        let (old, other) = if turn == 0 { (&mut first, &second) } else { (&mut second, &first) };
        old.signal(Signal::TERM);
        assert!(old.end().await.success());
        other.wait_for_health("active").await;
        *old = fixture.spawn(&settings);
        addresses.addresses.lock()[turn] = old.addr;
        old.wait_for_health("waiting").await;
        wait_until_full(&addresses, [&first, &second]).await;
    }
    drop(stop);
    let written = writer.await.unwrap();
    // A client disconnects after the last row, so that a waiting client gets its permit.
    for rows in clients.join_all().await {
        assert_eq!(rows, written);
    }
    until("all streams are gone", async || open_streams([&first, &second]).await == 0).await;
    until("no permit is in use", async || {
        first.status().await["admission"]["total_connections"] == 0
            && second.status().await["admission"]["total_connections"] == 0
    })
    .await;
}
