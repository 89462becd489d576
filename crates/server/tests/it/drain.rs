//! The end in order.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

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
    assert_eq!(gate.wait_for_log("the gate ends")["cut"], 0);
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
    assert_eq!(gate.wait_for_log("the gate ends")["cut"], 1);
    let log = gate.log();
    let place = |message: &str| log.find(message).unwrap_or_else(|| panic!("no {message} in {log}"));
    assert!(
        place("\"drained\"") < place("the gate ends"),
        "what is cut is gone before it is given back: {log}"
    );
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let origin = Origin::start().await;
    let mut gate = Gate::start(&origin.url(), &ARGS);
    let (mut client, _upstream) = stream(&origin, &gate).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("the gate drains: new streams are refused");
    gate.signal(Signal::INT);
    let status = gate.end().await;
    assert_eq!(status.code(), Some(1));
    assert_eq!(client.chunk().await, None);
}

#[tokio::test]
async fn without_streams_it_ends_at_once_and_lets_a_request_finish() {
    let origin = Origin::start().await;
    let mut gate = Gate::start(&origin.url(), &ARGS);
    let mut client = Client::get(gate.addr, "/plain", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    let idle = Client::connect(gate.addr).await;
    gate.signal(Signal::TERM);
    gate.wait_for_log("the gate drains: new streams are refused");
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(client.answer().await.body, b"ok");
    assert!(gate.end().await.success());
    drop(idle);
}
