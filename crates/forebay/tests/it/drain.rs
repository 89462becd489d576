//! Graceful shutdown of the gate.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_testkit::TestRng;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::echo_upstream::{EchoUpstream, UpstreamBehavior};
use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::wire::{HttpConnection, until};

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const ARGS: [&str; 2] = ["--stream-route", "GET /stream"];

/// Opens a stream. Returns the connections of the client and of the upstream.
async fn open_event_stream(
    origin: &ScriptedUpstream,
    gate: &ForebayProcess,
) -> (HttpConnection, HttpConnection) {
    let mut client = HttpConnection::get(gate.addr, "/stream", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(EVENTS).await;
    client.head().await;
    (client, upstream)
}

#[tokio::test]
async fn after_sigterm_open_streams_continue_new_ones_are_refused_and_the_process_ends_with_the_last() {
    let origin = ScriptedUpstream::start().await;
    let mut gate = ForebayProcess::start_gate(&origin.url(), &ARGS);
    assert_eq!(gate.admin("/readyz").await.head.status, 200);
    let (mut client, mut upstream) = open_event_stream(&origin, &gate).await;
    gate.signal(Signal::TERM);
    until("the gate is not ready", async || gate.admin("/readyz").await.head.status == 503).await;
    assert_eq!(gate.admin("/healthz").await.head.status, 200, "the gate is still healthy");

    let refused = HttpConnection::fetch(gate.addr, "GET", "/stream", &[], "").await;
    assert_eq!(refused.head.status, 503);
    assert!(refused.head.header("retry-after").is_some(), "{}", refused.head.text);
    let mut plain = HttpConnection::get(gate.addr, "/plain", &[]).await;
    let mut other = origin.accept().await;
    other.head().await;
    other.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(plain.response().await.body, b"ok", "plain requests are still served");

    upstream.send("3\r\nabc\r\n").await;
    assert_eq!(client.event().await, "abc", "the open stream continues");
    assert!(gate.has_ended().is_none());
    let started = Instant::now();
    upstream.send("0\r\n\r\n").await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
    assert!(gate.end().await.success());
    assert!(started.elapsed() < Duration::from_secs(10), "the drain ends before its deadline");
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 0);
}

#[tokio::test]
async fn at_the_drain_deadline_streams_are_cut_without_a_clean_end() {
    let origin = ScriptedUpstream::start().await;
    let mut gate =
        ForebayProcess::start_gate(&origin.url(), &[&ARGS[..], &["--drain-timeout-ms", "500"]].concat());
    let (mut client, mut upstream) = open_event_stream(&origin, &gate).await;
    let started = Instant::now();
    gate.signal(Signal::INT);
    assert_eq!(client.chunk().await, None, "the body ends without the last chunk");
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert_eq!(upstream.rest().await, b"");
    assert!(gate.end().await.success());
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 1);
    let log = gate.log();
    let position = |message: &str| log.find(message).unwrap_or_else(|| panic!("no {message} in {log}"));
    assert!(
        position("drain finished") < position("gate stopped"),
        "streams are cut before the quota is returned: {log}"
    );
}

#[tokio::test]
async fn a_second_signal_ends_the_gate_at_once() {
    let origin = ScriptedUpstream::start().await;
    let mut gate = ForebayProcess::start_gate(&origin.url(), &ARGS);
    let (mut client, _upstream) = open_event_stream(&origin, &gate).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("gate draining");
    gate.signal(Signal::INT);
    let status = gate.end().await;
    assert_eq!(status.code(), Some(1));
    assert_eq!(client.chunk().await, None);
}

#[tokio::test]
async fn without_streams_the_drain_waits_only_for_running_requests() {
    let origin = ScriptedUpstream::start().await;
    let mut gate = ForebayProcess::start_gate(&origin.url(), &ARGS);
    let mut client = HttpConnection::get(gate.addr, "/plain", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    let idle = HttpConnection::connect(gate.addr).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("gate draining");
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(client.response().await.body, b"ok");
    assert!(gate.end().await.success());
    drop(idle);
}

/// Result of one client.
#[derive(Debug, PartialEq, Eq)]
enum ClientOutcome {
    /// The connection was refused.
    Refused,
    /// Status of the complete response to the last request.
    Answered(u16),
    /// The client was connected, and got no complete response. Holds the reason.
    Lost(String),
}

/// Connects after `pause` and sends one request, or two on the same connection. Sends to
/// `connected` before the last request.
async fn run_client(
    gate: SocketAddr,
    nonce: String,
    sends_two: bool,
    pause: Duration,
    connected: mpsc::Sender<()>,
) -> ClientOutcome {
    tokio::time::sleep(pause).await;
    let Ok(socket) = TcpStream::connect(gate).await else { return ClientOutcome::Refused };
    let mut client = HttpConnection::over(socket);
    let mut status = 0;
    for request in 0..=u32::from(sends_two) {
        if request == u32::from(sends_two) {
            let _ = connected.send(()).await;
        }
        let text = format!("GET /plain/{nonce} HTTP/1.1\r\nHost: a\r\n\r\n");
        if let Err(error) = tokio::io::AsyncWriteExt::write_all(&mut client.socket, text.as_bytes()).await {
            return ClientOutcome::Lost(format!("request {request}: {error}"));
        }
        let Some(head) = client.try_head().await else {
            return ClientOutcome::Lost(format!("request {request}: closed without a response"));
        };
        let length: usize = head.header("content-length").map_or(0, |length| length.parse().unwrap());
        let body = client.take(length).await;
        if body.len() < length || (head.status == 200 && body != nonce.as_bytes()) {
            return ClientOutcome::Lost(format!("request {request}: {:?}", String::from_utf8_lossy(&body)));
        }
        status = head.status;
        if head.header("connection") == Some("close") {
            break; // the gate announced that it closes the connection
        }
    }
    ClientOutcome::Answered(status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_connected_at_sigterm_gets_a_complete_response() {
    const CLIENTS: usize = 60;
    // Number of connected clients at which SIGTERM is sent.
    for (round, connected_before) in [0, 1, 15, 30, 59].into_iter().enumerate() {
        let origin = EchoUpstream::start(0, UpstreamBehavior::AnswersAll).await;
        // Long enough for a busy machine. The gate doesn't wait for it, because each client
        // disconnects after its response.
        let settings = [("FOREBAY_HTTP_DRAIN_GRACE_MS", "10000")];
        let mut gate = ForebayProcess::start_gate_with(&origin.url(), &ARGS, &settings);
        let (connected, mut connections) = mpsc::channel(CLIENTS);
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let mut rng = TestRng::of(round as u64, "a client", number);
            let pause = Duration::from_micros(rng.below(20_000) as u64);
            clients.spawn(run_client(
                gate.addr,
                format!("n{number}"),
                rng.percent(40),
                pause,
                connected.clone(),
            ));
        }
        for _ in 0..connected_before {
            connections.recv().await.unwrap();
        }
        gate.signal(Signal::TERM);
        let outcomes = clients.join_all().await;
        let lost: Vec<_> =
            outcomes.iter().filter(|outcome| matches!(outcome, ClientOutcome::Lost(_))).collect();
        assert!(lost.is_empty(), "{} of {CLIENTS} in round {round}: {lost:?}", lost.len());
        let answered = outcomes.iter().filter(|outcome| **outcome == ClientOutcome::Answered(200)).count();
        assert!(answered >= connected_before, "{outcomes:?}");
        assert!(gate.end().await.success());
        assert_eq!(gate.wait_for_log("gate stopped")["cut"], 0);
    }
}
