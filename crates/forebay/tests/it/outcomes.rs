//! Metrics of a gate's requests: outcomes, labels from headers, errors by stage and type.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;

use crate::admin::check_metrics;
use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::upgraded_connections::open_upgraded;
use crate::wire::{HttpConnection, until};

const OUTCOMES: &str = "forebay_gate_outcomes_total";
const ERRORS: &str = "forebay_gate_errors_total";
const STREAM: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
const LAST_CHUNK: &str = "0\r\n\r\n";

async fn outcomes(gate: &ForebayProcess, kind: &str, outcome: &str) -> f64 {
    gate.metric(OUTCOMES, &[&format!("kind=\"{kind}\""), &format!("outcome=\"{outcome}\"")]).await
}

/// Waits until requests with this outcome are counted; the last one ends after its response.
async fn wait_for(gate: &ForebayProcess, kind: &str, outcome: &str, count: f64) {
    until(&format!("{count} {kind} {outcome}"), async || outcomes(gate, kind, outcome).await == count).await;
}

async fn wait_for_error(gate: &ForebayProcess, stage: &str, kind: &str, count: f64) {
    let labels = [format!("stage=\"{stage}\""), format!("type=\"{kind}\"")];
    until(&format!("{count} {stage} {kind}"), async || {
        gate.metric(ERRORS, &[&labels[0], &labels[1]]).await == count
    })
    .await;
}

/// Sends a request. Returns the client's connection and the upstream's, which has read the head.
async fn begin(
    origin: &ScriptedUpstream,
    gate: &ForebayProcess,
    path: &str,
) -> (HttpConnection, HttpConnection) {
    let client = HttpConnection::get(gate.addr, path, &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    (client, upstream)
}

/// Answers the gate's next request, which comes over a new connection, with an empty 200.
async fn answer(origin: &ScriptedUpstream) {
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
}

/// Sends a reset instead of a normal end.
fn reset(connection: HttpConnection) {
    SockRef::from(&connection.socket).set_linger(Some(Duration::ZERO)).unwrap();
}

#[tokio::test]
async fn every_request_is_counted_once_by_its_outcome() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--total", "1", "--stream-route", "GET /stream"]);
    let text = gate.metrics().await;
    for outcome in ["success", "client_error", "upstream_error", "refused", "cancelled"] {
        let labels = ["kind=\"stream\"".to_owned(), format!("outcome=\"{outcome}\"")];
        let line = text.lines().find(|line| {
            line.starts_with("forebay_gate_outcomes_total{")
                && labels.iter().all(|label| line.contains(label))
        });
        assert!(line.is_some_and(|line| line.ends_with(" 0")), "{outcome}: {line:?}");
    }
    for (status, outcome) in
        [("204 A", "success"), ("304 B", "success"), ("404 C", "client_error"), ("503 D", "upstream_error")]
    {
        let before = outcomes(&gate, "plain", outcome).await;
        let (mut client, mut upstream) = begin(&origin, &gate, "/plain").await;
        upstream.send(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")).await;
        client.head().await;
        wait_for(&gate, "plain", outcome, before + 1.0).await;
    }
    wait_for_error(&gate, "first_byte", "upstream_5xx", 1.0).await;
    let bad = HttpConnection::fetch(gate.addr, "GET", "/", &["Host: another"], "").await;
    assert_eq!(bad.head.status, 400);
    wait_for(&gate, "plain", "client_error", 2.0).await;
    wait_for_error(&gate, "request", "bad_request", 1.0).await;

    // A stream is counted when it ends, not when it begins. A second one is refused meanwhile.
    let (mut client, mut upstream) = begin(&origin, &gate, "/stream").await;
    upstream.send(STREAM).await;
    client.head().await;
    assert_eq!(client.event().await, "a");
    let full = HttpConnection::fetch(gate.addr, "GET", "/stream", &[], "").await;
    assert_eq!(full.head.status, 503);
    wait_for(&gate, "stream", "refused", 1.0).await;
    assert_eq!(outcomes(&gate, "stream", "success").await, 0.0, "the stream is open");
    upstream.send(LAST_CHUNK).await;
    assert_eq!(client.event().await, "");
    wait_for(&gate, "stream", "success", 1.0).await;

    let (mut client, mut upstream) = begin(&origin, &gate, "/stream").await;
    upstream.send(STREAM).await;
    client.head().await;
    drop(upstream);
    wait_for(&gate, "stream", "upstream_error", 1.0).await;
    wait_for_error(&gate, "stream", "closed", 1.0).await;

    let (client, upstream) = begin(&origin, &gate, "/stream").await;
    drop(client);
    wait_for(&gate, "stream", "cancelled", 1.0).await;
    drop(upstream);
    let (mut client, mut upstream) = begin(&origin, &gate, "/stream").await;
    upstream.send(STREAM).await;
    client.head().await;
    drop(client);
    wait_for(&gate, "stream", "cancelled", 2.0).await;

    let (mut client, mut upstream) = open_upgraded(&origin, &gate).await;
    client.socket.shutdown().await.unwrap();
    upstream.socket.shutdown().await.unwrap();
    wait_for(&gate, "stream", "success", 2.0).await;

    gate.wait_until_empty().await;
    assert_eq!(gate.metric(OUTCOMES, &[]).await, 11.0, "each request is counted once");
    assert_eq!(gate.metric(ERRORS, &[]).await, 3.0);
}

#[tokio::test]
async fn errors_are_counted_by_stage_and_type() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--stream-route", "GET /stream"]);
    let (mut client, upstream) = begin(&origin, &gate, "/first").await;
    drop(upstream);
    assert_eq!(client.head().await.status, 502);
    wait_for_error(&gate, "first_byte", "closed", 1.0).await;
    let (mut client, upstream) = begin(&origin, &gate, "/first").await;
    reset(upstream);
    assert_eq!(client.head().await.status, 502);
    wait_for_error(&gate, "first_byte", "reset", 1.0).await;
    let (mut client, mut upstream) = begin(&origin, &gate, "/first").await;
    upstream.send("this is no HTTP\r\n\r\n").await;
    assert_eq!(client.head().await.status, 502);
    wait_for_error(&gate, "first_byte", "bad_response", 1.0).await;

    // A live stream is read from its socket, other bodies by hyper.
    for (number, path) in [(1.0, "/stream"), (2.0, "/plain")] {
        let open = async || {
            let (mut client, mut upstream) = begin(&origin, &gate, path).await;
            upstream.send(STREAM).await;
            client.head().await;
            assert_eq!(client.event().await, "a");
            (client, upstream)
        };
        let (_client, upstream) = open().await;
        drop(upstream);
        wait_for_error(&gate, "stream", "closed", number).await;
        let (_client, upstream) = open().await;
        reset(upstream);
        wait_for_error(&gate, "stream", "reset", number).await;
        let (_client, mut upstream) = open().await;
        upstream.send("no size\r\n").await;
        wait_for_error(&gate, "stream", "bad_response", number).await;
    }

    let mut client = HttpConnection::connect(gate.addr).await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nno size\r\n")
        .await;
    assert_eq!(client.head().await.status, 400);
    wait_for_error(&gate, "request", "incomplete", 1.0).await;
    check_metrics(&gate.metrics().await);

    let closed = TcpSocket::new_v4().unwrap(); // bound, so that no other process listens there
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gate = ForebayProcess::start_gate(&format!("http://{}", closed.local_addr().unwrap()), &[]);
    assert_eq!(HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await.head.status, 502);
    wait_for_error(&gate, "connect", "refused", 1.0).await;
    let busy = [("FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS", "1")];
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &busy);
    let _open = begin(&origin, &gate, "/").await;
    assert_eq!(HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await.head.status, 503);
    wait_for_error(&gate, "connect", "busy", 1.0).await;
    wait_for(&gate, "any", "refused", 1.0).await;
}

#[tokio::test]
async fn timeouts_are_counted_by_stage() {
    let origin = ScriptedUpstream::start().await;
    let start = |variable, ms| ForebayProcess::start_gate_with(&origin.url(), &[], &[(variable, ms)]);
    let gate = start("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "100");
    let silent = HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await;
    assert_eq!(silent.head.status, 504);
    wait_for_error(&gate, "first_byte", "timeout", 1.0).await;
    wait_for(&gate, "any", "upstream_error", 1.0).await;
    let gate = start("FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS", "100");
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n123").await;
    assert_eq!(client.head().await.status, 408);
    wait_for_error(&gate, "request", "timeout", 1.0).await;
    wait_for(&gate, "any", "client_error", 1.0).await;
}

/// The upstream answers before it has the request's body, which then fails.
#[tokio::test]
async fn an_upload_that_fails_after_the_response_head_is_not_the_upstreams_error() {
    let origin = ScriptedUpstream::start().await;
    let timeout = [("FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS", "300")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &timeout);
    let begin = async |request: &str| {
        let mut client = HttpConnection::connect(gate.addr).await;
        client.send(request).await;
        let mut upstream = origin.accept().await;
        upstream.head().await;
        upstream.send(STREAM).await;
        assert_eq!(client.head().await.status, 200);
        (client, upstream)
    };
    let _stalled = begin("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n123").await;
    wait_for_error(&gate, "request", "timeout", 1.0).await;
    wait_for(&gate, "any", "client_error", 1.0).await;
    let (mut broken, _upstream) =
        begin("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n").await;
    broken.send("no size\r\n").await;
    wait_for_error(&gate, "request", "incomplete", 1.0).await;
    wait_for(&gate, "any", "client_error", 2.0).await;
    assert_eq!(outcomes(&gate, "any", "upstream_error").await, 0.0);
    assert_eq!(gate.metric(ERRORS, &[]).await, 2.0);
}

#[tokio::test]
async fn labels_from_headers_are_bounded() {
    let origin = ScriptedUpstream::start().await;
    let labels = [("FOREBAY_GATE_METRIC_LABELS", "model=X-Model, provider=X-Provider")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &labels);
    // Requests that the upstream doesn't answer add no values.
    for number in 0..60 {
        let lines = [&format!("X-Model: refused-{number}"), "X-Provider: refused", "Host: another"];
        assert_eq!(HttpConnection::fetch(gate.addr, "GET", "/", &lines, "").await.head.status, 400);
    }
    let mut client = HttpConnection::connect(gate.addr).await;
    let long = format!("X-Model: {}", "x".repeat(129));
    let mut send = async |lines: &[&str]| {
        client.request("GET", "/", lines, "").await;
        answer(&origin).await;
        assert_eq!(client.response().await.head.status, 200);
    };
    send(&[]).await;
    send(&["X-Model: gpt", "X-Provider: openai"]).await;
    send(&["x-model: gpt", "x-provider: openai"]).await;
    send(&[r#"X-Model: a "b" \c}"#]).await;
    for number in 0..60 {
        send(&[&format!("X-Model: model-{number}"), "X-Provider: openai"]).await;
    }
    send(&[&long, "X-Provider: openai"]).await;
    let mut bytes = HttpConnection::connect(gate.addr).await;
    bytes.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Model: \xff\xfe\r\nX-Provider: openai\r\n\r\n").await;
    answer(&origin).await;
    assert_eq!(bytes.response().await.head.status, 200);

    let count = async |labels: &[&str]| gate.metric(OUTCOMES, labels).await;
    until("all requests are counted", async || count(&[]).await == 60.0 + 66.0).await;
    assert_eq!(count(&["model=\"other\"", "provider=\"other\"", "client_error"]).await, 60.0);
    assert_eq!(count(&["model=\"none\"", "provider=\"none\"", "success"]).await, 1.0);
    assert_eq!(count(&["model=\"gpt\"", "provider=\"openai\"", "success"]).await, 2.0);
    assert_eq!(count(&[r#"model="a \"b\" \\c}""#, "provider=\"none\""]).await, 1.0);
    // 50 values are kept: `gpt`, the one with quotes, and 48 others.
    assert_eq!(count(&["model=\"model-47\""]).await, 1.0);
    assert_eq!(count(&["model=\"other\"", "provider=\"openai\""]).await, 12.0 + 2.0);
    let text = gate.metrics().await;
    assert!(["model-48", "xxx", "refused-"].iter().all(|value| !text.contains(value)), "{text}");
    check_metrics(&text);
}
