//! The adaptive limit of a gate, with an upstream that slows down under load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::forebay_process::ForebayProcess;
use crate::limits::open_stream;
use crate::scripted_upstream::ScriptedUpstream;
use crate::serve::support::ServeFixture;
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

const ADAPTIVE: [(&str, &str); 1] = [("FOREBAY_ADMISSION_ADAPTIVE_FLOOR", "4")];
/// Clients of a [`Crowd`].
const CLIENTS: usize = 40;

/// Clients that each hold one stream for 50 ms, then open the next one, or try again after a
/// refusal.
struct Crowd {
    refused: Arc<AtomicUsize>,
    _clients: JoinSet<()>,
}

impl Crowd {
    fn start(gate: SocketAddr) -> Crowd {
        let (refused, mut clients) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        for _ in 0..CLIENTS {
            let refused = Arc::clone(&refused);
            clients.spawn(async move {
                loop {
                    let mut client = HttpConnection::get(gate, "/stream", &[]).await;
                    if client.head().await.status != 200 {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            });
        }
        Crowd { refused, _clients: clients }
    }
}

async fn adaptive(gate: &ForebayProcess) -> Value {
    gate.status().await["admission"]["adaptive"].clone()
}

/// Waits until the limit satisfies a condition.
async fn until_limit(gate: &ForebayProcess, what: &str, is_so: impl Fn(u64) -> bool) {
    until(what, async || is_so(adaptive(gate).await["limit"].as_u64().unwrap())).await;
}

#[tokio::test]
async fn the_adaptive_limit_falls_when_the_upstream_slows_and_rises_when_it_recovers() {
    let origin = StreamingUpstream::start().await;
    origin.set_capacity(1_000);
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "60"], &ADAPTIVE);
    assert_eq!(adaptive(&gate).await["limit"], 4, "it begins at the floor");
    let mut held = open_stream(&gate, "/stream", &[]).await.unwrap();
    let crowd = Crowd::start(gate.addr);
    until_limit(&gate, "the limit exceeds the demand", |limit| limit > 30).await;

    origin.set_capacity(6);
    until_limit(&gate, "the limit is near the capacity", |limit| limit <= 12).await;
    let status = adaptive(&gate).await;
    assert_eq!(status["last_decrease"]["cause"], "latency", "{status}");
    assert!(gate.metric("forebay_admission_adaptive_decreases_total", &["cause=\"latency\""]).await >= 1.0);

    origin.set_capacity(1_000);
    until_limit(&gate, "the limit recovers", |limit| limit > 30).await;
    let limit = gate.metric("forebay_admission_adaptive_limit_streams", &[]).await;
    assert!((4.0..=60.0).contains(&limit), "{limit}");
    drop(crowd);
    assert!(!has_ended(&mut held).await, "the stream of before the decrease has ended");
}

/// Returns whether a stream has ended.
async fn has_ended(client: &mut HttpConnection) -> bool {
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_millis(50), client.socket.peek(&mut byte)).await;
    read.is_ok()
}

#[tokio::test]
async fn a_refusal_of_the_adaptive_limit_has_its_own_reason_and_is_no_start() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "GET /stream"], &ADAPTIVE);
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(open_stream(&gate, "/stream", &[]).await.unwrap());
    }
    let response = open_stream(&gate, "/stream", &[]).await.unwrap_err();
    assert_eq!(response.head.status, 503);
    assert!(response.head.header("retry-after").is_some(), "{}", response.head.text);
    assert!(response.head.header("ratelimit").unwrap().starts_with("\"instance\";r=0"));
    let body = response.json();
    assert_eq!(body["error"], "service_unavailable");
    let detail = "This server has as many streams open as it can carry at present; open streams go on.";
    assert_eq!(body["detail"], detail);
    assert_eq!(gate.metric("forebay_admission_rejected_total", &["reason=\"adaptive\""]).await, 1.0);
    assert_eq!(origin.open(), 4, "the upstream got the refused request");
    let plain = open_stream(&gate, "/other", &[]).await.unwrap();
    assert_eq!(adaptive(&gate).await["open"], 4, "other routes take no permit");
    // Refused requests alone raise the limit, if all streams stay open.
    until("a stream is admitted", async || open_stream(&gate, "/stream", &[]).await.is_ok()).await;
    drop((streams, plain));
    gate.wait_until_empty().await;
    assert_eq!(adaptive(&gate).await["open"], 0);
}

#[tokio::test]
async fn an_upstream_that_fails_lowers_the_adaptive_limit_to_its_floor() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "60"], &ADAPTIVE);
    let _crowd = Crowd::start(gate.addr);
    until_limit(&gate, "the limit exceeds its floor", |limit| limit > 16).await;
    drop(origin); // its port refuses connections
    until_limit(&gate, "the limit is at its floor", |limit| limit == 4).await;
    let status = adaptive(&gate).await;
    assert_eq!(status["last_decrease"]["cause"], "errors", "{status}");
}

#[tokio::test]
async fn without_a_floor_a_slow_upstream_changes_no_limit() {
    let origin = StreamingUpstream::start().await;
    origin.set_capacity(6);
    let gate = ForebayProcess::start_gate(&origin.url(), &["--total", "60"]);
    let crowd = Crowd::start(gate.addr);
    until("most clients have a stream", async || origin.open() >= CLIENTS * 3 / 4).await;
    assert_eq!(gate.status().await["admission"]["adaptive"], json!(null));
    assert!(!gate.metrics().await.contains("forebay_admission_adaptive"));
    assert_eq!(crowd.refused.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_request_body_that_arrives_slowly_is_no_slow_start() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "60"], &ADAPTIVE);
    let mut clients = JoinSet::new();
    let mut upstream = JoinSet::new();
    upstream.spawn(async move {
        loop {
            let mut connection = origin.accept().await;
            tokio::spawn(async move {
                while connection.try_head().await.is_some() {
                    connection.take(2).await;
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                }
            });
        }
    });
    // A window of eight samples is complete after two seconds.
    for _ in 0..3 {
        for _ in 0..4 {
            let mut client = HttpConnection::connect(gate.addr).await;
            clients.spawn(async move {
                client.send("POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx").await;
                sleep(Duration::from_secs(1)).await;
                client.send("y").await;
                client.head().await.status
            });
        }
        while let Some(status) = clients.join_next().await {
            assert_eq!(status.unwrap(), 200);
        }
        gate.wait_until_empty().await;
    }
    until("the time of a window is known", async || adaptive(&gate).await["first_byte_seconds"].is_f64())
        .await;
    let seconds = adaptive(&gate).await["first_byte_seconds"].as_f64().unwrap();
    assert!(seconds < 1.0, "{seconds}: the upload counts as the upstream's time");
}

#[tokio::test]
async fn in_front_of_shapes_the_adaptive_limit_begins_at_the_total() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = fixture.serve_with(&[ADAPTIVE[0], ("FOREBAY_ADMISSION_TOTAL", "60")]).await;
    let mut reader = serve.reader(&[("table", "items")]).await;
    let events = serve.events(&reader).await;
    let status = adaptive(&serve).await;
    assert_eq!((&status["limit"], &status["floor"], &status["open"]), (&json!(60), &json!(4), &json!(1)));
    drop(events);
    fixture.sql("INSERT INTO items VALUES (1)");
    assert!(!reader.live_changes(&serve, 1).await.is_empty());
    assert_eq!(adaptive(&serve).await["first_byte_seconds"], json!(null), "a long-poll is no slow start");
}
