//! The end in order.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_testkit::Dice;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::echo::{Echo, Manners};
use crate::gate::Gate;
use crate::origin::Origin;
use crate::wire::{Client, until};

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const ARGS: [&str; 2] = ["--stream-route", "GET /stream"];

/// A stream that is open.
async fn stream(origin: &Origin, gate: &Gate) -> (Client, Client) {
    let mut client = Client::get(gate.addr, "/stream", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(EVENTS).await;
    client.head().await;
    (client, upstream)
}

#[tokio::test]
async fn after_sigterm_streams_go_on_new_ones_are_refused_and_the_last_one_ends_it() {
    let origin = Origin::start().await;
    let mut gate = Gate::start(&origin.url(), &ARGS);
    assert_eq!(gate.admin("/readyz").await.head.status, 200);
    let (mut client, mut upstream) = stream(&origin, &gate).await;
    gate.signal(Signal::TERM);
    until("it is not ready", async || gate.admin("/readyz").await.head.status == 503).await;
    assert_eq!(gate.admin("/healthz").await.head.status, 200, "alive all the same");

    let refused = Client::ask(gate.addr, "GET", "/stream", &[], "").await;
    assert_eq!(refused.head.status, 503);
    assert!(refused.head.header("retry-after").is_some(), "{}", refused.head.text);
    let mut plain = Client::get(gate.addr, "/plain", &[]).await;
    let mut other = origin.accept().await;
    other.head().await;
    other.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(plain.answer().await.body, b"ok", "what is no stream is still served");

    upstream.send("3\r\nabc\r\n").await;
    assert_eq!(client.event().await, "abc", "the old stream goes on");
    assert!(gate.has_ended().is_none());
    let begun = Instant::now();
    upstream.send("0\r\n\r\n").await;
    assert_eq!(client.chunk().await, Some(Vec::new()));
    assert!(gate.end().await.success());
    assert!(begun.elapsed() < Duration::from_secs(10), "long before the deadline");
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 0);
}

#[tokio::test]
async fn at_the_deadline_streams_are_cut_and_their_clients_know() {
    let origin = Origin::start().await;
    let mut gate = Gate::start(&origin.url(), &[&ARGS[..], &["--drain-timeout-ms", "500"]].concat());
    let (mut client, mut upstream) = stream(&origin, &gate).await;
    let begun = Instant::now();
    gate.signal(Signal::INT);
    assert_eq!(client.chunk().await, None, "broken, not complete");
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert_eq!(upstream.rest().await, b"");
    assert!(gate.end().await.success());
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 1);
    let log = gate.log();
    let place = |message: &str| log.find(message).unwrap_or_else(|| panic!("no {message} in {log}"));
    assert!(
        place("drain finished") < place("gate stopped"),
        "what is cut is gone before it is given back: {log}"
    );
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let origin = Origin::start().await;
    let mut gate = Gate::start(&origin.url(), &ARGS);
    let (mut client, _upstream) = stream(&origin, &gate).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("gate draining");
    gate.signal(Signal::INT);
    let status = gate.end().await;
    assert_eq!(status.code(), Some(1));
    assert_eq!(client.chunk().await, None);
}

#[tokio::test]
async fn without_streams_it_ends_soon_and_lets_a_request_finish() {
    let origin = Origin::start().await;
    let mut gate = Gate::start(&origin.url(), &ARGS);
    let mut client = Client::get(gate.addr, "/plain", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    let idle = Client::connect(gate.addr).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("gate draining");
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(client.answer().await.body, b"ok");
    assert!(gate.end().await.success());
    drop(idle);
}

/// How a client of the crowd came out.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It never had a connection.
    Refused,
    /// The status of a whole answer to its last request.
    Answered(u16),
    /// It had a connection, and got no whole answer.
    Lost(String),
}

/// One that connects, and asks as soon as it is connected; or that has asked before, and asks again.
async fn visit(
    gate: SocketAddr,
    nonce: String,
    asks_twice: bool,
    pause: Duration,
    connected: mpsc::Sender<()>,
) -> Outcome {
    tokio::time::sleep(pause).await;
    let Ok(socket) = TcpStream::connect(gate).await else { return Outcome::Refused };
    let mut client = Client::over(socket);
    let mut status = 0;
    for request in 0..=u32::from(asks_twice) {
        if request == u32::from(asks_twice) {
            let _ = connected.send(()).await;
        }
        let text = format!("GET /plain/{nonce} HTTP/1.1\r\nHost: a\r\n\r\n");
        if let Err(error) = tokio::io::AsyncWriteExt::write_all(&mut client.socket, text.as_bytes()).await {
            return Outcome::Lost(format!("request {request}: {error}"));
        }
        let Some(head) = client.try_head().await else {
            return Outcome::Lost(format!("request {request}: closed without an answer"));
        };
        let length: usize = head.header("content-length").map_or(0, |length| length.parse().unwrap());
        let body = client.take(length).await;
        if body.len() < length || (head.status == 200 && body != nonce.as_bytes()) {
            return Outcome::Lost(format!("request {request}: {:?}", String::from_utf8_lossy(&body)));
        }
        status = head.status;
        if head.header("connection") == Some("close") {
            break; // it was told not to ask again
        }
    }
    Outcome::Answered(status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_that_connected_while_sigterm_came_gets_a_whole_answer() {
    const CLIENTS: usize = 60;
    // SIGTERM comes when so many are connected.
    for (round, connected_before) in [0, 1, 15, 30, 59].into_iter().enumerate() {
        let origin = Echo::start(0, Manners::Good).await;
        // Long, so that a busy machine needn't send in half a second; everybody leaves when answered, so it isn't waited for.
        let settings = [("FOREBAY_HTTP_DRAIN_GRACE_MS", "10000")];
        let mut gate = Gate::start_with(&origin.url(), &ARGS, &settings);
        let (connected, mut connections) = mpsc::channel(CLIENTS);
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let mut dice = Dice::of(round as u64, "a client", number);
            let pause = Duration::from_micros(dice.below(20_000) as u64);
            clients.spawn(visit(gate.addr, format!("n{number}"), dice.percent(40), pause, connected.clone()));
        }
        for _ in 0..connected_before {
            connections.recv().await.unwrap();
        }
        gate.signal(Signal::TERM);
        let outcomes = clients.join_all().await;
        let lost: Vec<_> = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Lost(_))).collect();
        assert!(lost.is_empty(), "{} of {CLIENTS} in round {round}: {lost:?}", lost.len());
        let answered = outcomes.iter().filter(|outcome| **outcome == Outcome::Answered(200)).count();
        assert!(answered >= connected_before, "{outcomes:?}");
        assert!(gate.end().await.success());
        assert_eq!(gate.wait_for_log("gate stopped")["cut"], 0);
    }
}
