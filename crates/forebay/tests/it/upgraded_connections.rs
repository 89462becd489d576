//! Upgraded connections, byte by byte: permits, half-closes, losses, idle time, drain.

use std::time::Duration;

use forebay_sandbox::Redis;
use rustix::process::Signal;
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::forebay_process::ForebayProcess;
use crate::limits::{TRUSTED, USERS};
use crate::scripted_upstream::ScriptedUpstream;
use crate::streams::{BEARER, StreamCluster, end, list, wait_until_normal};
use crate::wire::{HttpConnection, within};

const REQUEST: [&str; 3] = ["Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: k"];
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n";

/// Opens an upgraded connection. Returns its ends at the client and at the upstream.
pub(crate) async fn open_upgraded(
    origin: &ScriptedUpstream,
    gate: &ForebayProcess,
) -> (HttpConnection, HttpConnection) {
    let mut client = HttpConnection::get(gate.addr, "/socket", &REQUEST).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(SWITCH).await;
    assert_eq!(client.head().await.status, 101);
    (client, upstream)
}

/// Sends a byte in each direction.
async fn exchange(client: &mut HttpConnection, upstream: &mut HttpConnection) {
    client.send("c").await;
    assert_eq!(upstream.take(1).await, b"c");
    upstream.send("u").await;
    assert_eq!(client.take(1).await, b"u");
}

async fn count_ended(gate: &ForebayProcess, end: &str) -> f64 {
    gate.metric("forebay_gate_upgrades_ended_total", &[&format!("end=\"{end}\"")]).await
}

fn reset(connection: HttpConnection) {
    SockRef::from(&connection.socket).set_linger(Some(Duration::ZERO)).unwrap();
}

#[tokio::test]
async fn an_upgraded_connection_holds_its_permit_until_both_sides_have_ended() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--total", "1", "--stream-route", "GET /other"]);
    let mut client = HttpConnection::connect(gate.addr).await;
    let head = REQUEST.join("\r\n");
    client.send(format!("GET /socket HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\nearly")).await;
    let mut upstream = origin.accept().await;
    let request = upstream.head().await;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "k")] {
        assert_eq!(request.header(name), Some(value), "{}", request.text);
    }
    upstream.send(format!("{SWITCH}hello")).await;
    let response = client.head().await;
    assert_eq!(response.status, 101);
    for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-accept", "a")]
    {
        assert_eq!(response.header(name), Some(value), "{}", response.text);
    }
    assert!(response.header("x-thread-id").is_some() && response.header("content-length").is_none());
    assert_eq!((client.take(5).await, upstream.take(5).await), (b"hello".to_vec(), b"early".to_vec()));
    exchange(&mut client, &mut upstream).await;

    let status = gate.status().await;
    assert_eq!(
        (&status["gate"]["streams"], &status["statistics"]["total_connections"]),
        (&1.into(), &1.into())
    );
    assert_eq!(status["http"]["upgraded_connections"], 1);
    let full = HttpConnection::fetch(gate.addr, "GET", "/socket", &REQUEST, "").await;
    assert_eq!((full.head.status, &full.json()["error"]), (503, &"service_unavailable".into()));
    assert!(origin.is_quiet(), "the refused upgrade reached the upstream");

    client.socket.shutdown().await.unwrap();
    assert_eq!(upstream.rest().await, b"", "the end of the client reaches the upstream");
    upstream.send("last").await;
    assert_eq!(client.take(4).await, b"last", "the other direction continues");
    assert_eq!(gate.status().await["gate"]["streams"], 1);
    drop(upstream);
    assert_eq!(client.rest().await, b"");
    gate.wait_until_empty().await;
    assert_eq!(count_ended(&gate, "closed").await, 1.0);
    let connections = &gate.status().await["gate"]["upstream_connections"];
    assert_eq!((&connections["open"], &connections["idle"]), (&0.into(), &0.into()), "it was pooled");

    let (client, upstream) = open_upgraded(&origin, &gate).await;
    drop((client, upstream));
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_user_at_the_limit_gets_a_429_before_the_upgrade() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(
        &origin.url(),
        &[&TRUSTED[..], &["--per-user", "1", "--stream-route", "GET /other"]].concat(),
        &USERS,
    );
    let lines = [&REQUEST[..], &["X-User-ID: ada"]].concat();
    let mut client = HttpConnection::get(gate.addr, "/socket", &lines).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(SWITCH).await;
    assert_eq!(client.head().await.status, 101);
    let second = HttpConnection::fetch(gate.addr, "GET", "/socket", &lines, "").await;
    assert_eq!((second.head.status, &second.json()["error"]), (429, &"too_many_connections".into()));
    assert!(origin.is_quiet());
    exchange(&mut client, &mut upstream).await;
}

#[tokio::test]
async fn a_refused_upgrade_leaves_both_connections_usable() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut client = HttpConnection::get(gate.addr, "/socket", &REQUEST).await;
    let mut upstream = origin.accept().await;
    for status in [426, 200] {
        upstream.head().await;
        upstream.send(format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\nok")).await;
        let response = client.response().await;
        assert_eq!((response.head.status, &response.body[..]), (status, &b"ok"[..]));
        if status == 426 {
            client.request("GET", "/socket", &REQUEST, "").await; // over the same two connections
        }
    }
    assert!(origin.is_quiet());
    gate.wait_until_empty().await;
    assert_eq!(gate.status().await["http"]["upgrade"], 0);
}

#[tokio::test]
async fn a_protocol_that_was_not_offered_is_a_502() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut client =
        HttpConnection::get(gate.addr, "/", &["Connection: Upgrade", "Upgrade: h2c, websocket"]).await;
    let mut upstream = origin.accept().await;
    let head = upstream.head().await;
    assert_eq!(
        head.header("upgrade"),
        Some("websocket"),
        "HTTP inside would bypass the limits: {}",
        head.text
    );
    upstream.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!((response.head.status, &response.json()["error"]), (502, &"upstream_switched".into()));
    assert_eq!(upstream.rest().await, b"", "the connection is closed");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_reset_of_one_side_ends_the_other() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let (client, mut upstream) = open_upgraded(&origin, &gate).await;
    reset(client);
    assert_eq!(upstream.rest().await, b"");
    gate.wait_until_empty().await;
    assert_eq!(count_ended(&gate, "client_lost").await, 1.0);

    let (mut client, upstream) = open_upgraded(&origin, &gate).await;
    reset(upstream);
    let mut byte = [0];
    let end = within("the end", tokio::io::AsyncReadExt::read(&mut client.socket, &mut byte)).await;
    assert!(end.is_err(), "a reset is not a clean end");
    gate.wait_until_empty().await;
    assert_eq!(count_ended(&gate, "upstream_lost").await, 1.0);
    assert_eq!(gate.metric("forebay_gate_upstream_failures_total", &["upstream_broke_off"]).await, 1.0);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_used_one_is_not() {
    let origin = ScriptedUpstream::start().await;
    let timeout = ("FOREBAY_GATE_UPGRADE_IDLE_TIMEOUT_MS", "2000");
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &[timeout]);
    let (mut client, mut upstream) = open_upgraded(&origin, &gate).await;
    let started = Instant::now();
    // Bytes in one direction are enough, for twice the timeout.
    while started.elapsed() < Duration::from_secs(4) {
        upstream.send("u").await;
        assert_eq!(client.take(1).await, b"u");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let idle = Instant::now();
    assert_eq!((client.rest().await, upstream.rest().await), (vec![], vec![]));
    assert!(idle.elapsed() >= Duration::from_millis(1_900), "{:?}", idle.elapsed());
    gate.wait_until_empty().await;
    assert_eq!(count_ended(&gate, "idle").await, 1.0);
}

/// Size of the transfers in each direction, in bytes.
const LARGE: usize = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_costs_no_memory_and_gets_every_byte() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let (client, upstream) = open_upgraded(&origin, &gate).await;
    transfer_both_ways(&gate, client, upstream).await;
    gate.wait_until_empty().await;
}

/// Sends [`LARGE`] bytes in both directions at once, and begins to read when the sender is stuck.
async fn transfer_both_ways(gate: &ForebayProcess, client: HttpConnection, upstream: HttpConnection) {
    let before = gate.resident_kib();
    let bytes: Vec<u8> = (0..LARGE).map(|at| (at / 7 % 251) as u8).collect();
    let mut tasks = tokio::task::JoinSet::new();
    let (client_side, upstream_side) = (client.socket.into_split(), upstream.socket.into_split());
    let stuck = std::sync::Arc::new(tokio::sync::Barrier::new(4));
    for (mut reader, mut writer) in [client_side, upstream_side] {
        let (bytes, stuck) = (bytes.clone(), std::sync::Arc::clone(&stuck));
        let (expected, reader_stuck) = (bytes.clone(), std::sync::Arc::clone(&stuck));
        tasks.spawn(async move {
            // The first bytes fill the buffers between the two ends, and then the write waits.
            let mut sent = 0;
            while let Ok(count) =
                tokio::time::timeout(Duration::from_secs(1), writer.write(&bytes[sent..])).await
            {
                sent += count.unwrap();
            }
            assert!(sent < LARGE, "nothing holds the sender back");
            stuck.wait().await;
            writer.write_all(&bytes[sent..]).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        tasks.spawn(async move {
            reader_stuck.wait().await;
            let mut received = Vec::with_capacity(LARGE);
            tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut received).await.unwrap();
            assert!(received == expected, "{} bytes differ", received.len());
        });
    }
    within("both transfers", tasks.join_all()).await;
    let growth = gate.resident_kib().saturating_sub(before);
    assert!(growth < 4_096, "the gate grew by {growth} KiB");
}

/// The operator asks another gate. Neither side of the connection reads, so both senders wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_a_connection_of_another_instance_although_both_sides_stall() {
    let origin = ScriptedUpstream::start().await;
    let cluster = StreamCluster::new(Redis::shared(), "upgraded-end", 100).await;
    let [here, there] = ["here", "there"].map(|member| cluster.start_gate(member, &origin.url()));
    for gate in [&here, &there] {
        wait_until_normal(gate).await;
    }
    let (mut client, mut upstream) = open_upgraded(&origin, &there).await;
    for side in [&mut client, &mut upstream] {
        let block = [0; 1 << 16];
        while tokio::time::timeout(Duration::from_secs(1), side.socket.write_all(&block)).await.is_ok() {}
    }
    let streams = list(&here, "").await;
    assert_eq!((&streams["open"], &streams["streams"][0]["instance"]), (&1.into(), &"there".into()));
    let thread_id = streams["streams"][0]["thread_id"].as_str().unwrap();
    let report = end(&here, thread_id, &[BEARER]).await.json();
    let instances = serde_json::json!([{"instance": "there", "ended": 1, "ending": 0}]);
    assert_eq!(report["instances"], instances, "{report}");
    assert_eq!(list(&here, "").await["open"], 0);
    // What was in transit arrives, and then the end: clean, or a reset, as bytes were not read.
    for side in [&mut client, &mut upstream] {
        let mut rest = tokio::io::sink();
        let _reset_or_end = within("the end", tokio::io::copy(&mut side.socket, &mut rest)).await;
    }
    let status = HttpConnection::fetch(there.admin, "GET", "/v1/status", &[BEARER], "").await.json();
    let connections = &status["gate"]["upstream_connections"];
    assert_eq!((&connections["open"], &status["http"]["upgraded_connections"]), (&0.into(), &0.into()));
}

const SHORT_DRAIN: [&str; 2] = ["--drain-timeout-ms", "500"];

#[tokio::test]
async fn after_sigterm_upgraded_connections_continue_and_the_process_ends_with_the_last() {
    let origin = ScriptedUpstream::start().await;
    let mut gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let (mut client, mut upstream) = open_upgraded(&origin, &gate).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("gate draining");
    exchange(&mut client, &mut upstream).await;
    let refused = HttpConnection::fetch(gate.addr, "GET", "/socket", &REQUEST, "").await;
    assert_eq!(refused.head.status, 503);
    assert!(gate.has_ended().is_none());
    drop((client, upstream));
    assert!(gate.end().await.success());
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 0);
}

#[tokio::test]
async fn at_the_drain_deadline_upgraded_connections_are_closed() {
    let origin = ScriptedUpstream::start().await;
    let mut gate = ForebayProcess::start_gate(&origin.url(), &SHORT_DRAIN);
    let mut ends = Vec::new();
    for _ in 0..20 {
        ends.push(open_upgraded(&origin, &gate).await);
    }
    // Under load: every client sends as fast as it can while the gate drains.
    let mut load = tokio::task::JoinSet::new();
    let started = Instant::now();
    gate.signal(Signal::TERM);
    for (client, mut upstream) in ends {
        load.spawn(async move {
            let (mut reader, mut writer) = client.socket.into_split();
            while writer.write_all(&[0; 1024]).await.is_ok() {
                tokio::task::yield_now().await;
            }
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut Vec::new()).await;
        });
        load.spawn(async move {
            upstream.rest().await;
        });
    }
    within("the end of all connections", load.join_all()).await;
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert!(gate.end().await.success());
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 20);
}
