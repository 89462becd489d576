//! Hostile clients: refused with a clear status, bounded and counted.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_testkit::{Direction, Proxy};
use ring::hmac;
use serde_json::{Value, json};

use crate::forebay_process::ForebayProcess;
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::scripted_upstream::ScriptedUpstream;
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

/// Waits until the event has this count. The metric may follow the response.
async fn wait_for_event_count(gate: &ForebayProcess, event: &str, count: f64) {
    let label = format!("event=\"{event}\"");
    until(&format!("{event} is counted {count} times"), async || {
        gate.metric("forebay_http_events_total", &[&label]).await == count
    })
    .await;
}

#[tokio::test]
async fn request_heads_beyond_the_limits_get_a_431() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let large = format!("X-Large: {}", "x".repeat(40 * 1024));
    let many: Vec<String> = (0..150).map(|number| format!("X-{number}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for lines in [&[large.as_str()][..], &many] {
        let mut client = HttpConnection::get(gate.addr, "/", lines).await;
        assert_eq!(client.head().await.status, 431);
    }
    wait_for_event_count(&gate, "oversized_head", 2.0).await;
    assert!(origin.is_quiet());
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn user_names_beyond_the_limit_are_refused() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &USERS);
    let mut client = HttpConnection::connect(gate.addr).await;
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User-ID: {}\r\n\r\n", "x".repeat(1 << 20));
    let (mut reading, mut writing) = client.socket.split();
    let sending = tokio::io::AsyncWriteExt::write_all(&mut writing, request.as_bytes());
    let mut response = [0; 12];
    // The gate responds before it has read the whole request, and doesn't read the rest.
    let (_, read) = tokio::join!(sending, tokio::io::AsyncReadExt::read_exact(&mut reading, &mut response));
    read.unwrap();
    assert_eq!(&response, b"HTTP/1.1 431");

    // User names have their own limit, below the limit of heads.
    let settings = [USERS[0], ("FOREBAY_HTTP_MAX_HEADER_BYTES", "4194304")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &settings);
    for length in [300, 1 << 20] {
        let line = format!("X-User-ID: {}", "x".repeat(length));
        let response = HttpConnection::fetch(gate.addr, "GET", "/", &[&line], "").await;
        assert!((400..=431).contains(&response.head.status), "{}", response.head.text);
        assert!(response.body.len() < 1_000, "the response repeats the name");
    }
    assert_eq!(gate.metric("forebay_admission_bad_credentials_total", &["too_long"]).await, 2.0);
    assert!(origin.is_quiet() && !gate.log().contains("xxxx"));
}

#[tokio::test]
async fn forged_identity_headers_do_not_evade_limits() {
    let origin = StreamingUpstream::start().await;
    let settings = [USERS[0], ("FOREBAY_IDENTITY_BY_ADDRESS", "true")];
    // A proxy is trusted, but it isn't this machine.
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--trusted-proxy", "192.0.2.1"], &settings);
    let mut streams = Vec::new();
    for number in 0..3 {
        let forged = [format!("X-User-ID: user-{number}"), format!("X-Forwarded-For: 10.0.0.{number}")];
        streams.push(open_stream(&gate, "/", &[&forged[0], &forged[1]]).await.unwrap());
    }
    let fourth =
        open_stream(&gate, "/", &["X-User-ID: another", "X-Forwarded-For: 10.9.9.9"]).await.unwrap_err();
    assert_eq!(fourth.head.status, 429, "all four requests count for 127.0.0.1");
    assert_eq!(fourth.json()["details"]["user_id"], "127.0.0.1");
    let label = |header| [format!("header=\"{header}\"")];
    for header in ["x-user-id", "x-forwarded-for"] {
        let labels = label(header);
        let count = gate.metric("forebay_admission_untrusted_headers_total", &[&labels[0]]).await;
        assert_eq!(count, 4.0, "{header}");
    }
}

/// Returns a JWT signed with HMAC-SHA256.
fn token(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

#[tokio::test]
async fn only_valid_tokens_are_accepted() {
    const SECRET: &str = "a secret of the test, of more than thirty-two bytes";
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.secret", std::process::id()));
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let origin = StreamingUpstream::start().await;
    let settings = [("FOREBAY_IDENTITY_JWT_SECRET_FILE", path.to_str().unwrap())];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &settings);
    let (far, past) = (4_000_000_000_u64, 1_000_000_000_u64);
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let none = json!({"alg": "none"});
    let unsigned = token(&none, &json!({"sub": "alice", "exp": far}), b"x".repeat(32).as_slice());
    let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    for (bad, reason) in [
        (token(&hs256, &json!({"sub": "alice", "exp": past}), SECRET.as_bytes()), "expired"),
        (unsigned, "alg: none"),
        (token(&hs256, &json!({"sub": "alice", "exp": far}), &[b'x'; 40]), "signed with another secret"),
        (
            token(&hs256, &json!({"sub": "a".repeat(1 << 13), "exp": far}), SECRET.as_bytes()),
            "a subject of 8 KiB",
        ),
        ("rubbish".to_owned(), "not a token"),
    ] {
        let response = open_stream(&gate, "/", &[&format!("Authorization: Bearer {bad}")]).await.unwrap_err();
        assert!(matches!(response.head.status, 400 | 401 | 431), "{reason}: {}", response.head.text);
        assert!(!String::from_utf8_lossy(&response.body).contains(&bad), "{reason}");
    }
    assert_eq!(gate.metric("forebay_admission_bad_credentials_total", &[]).await, 5.0);
    assert_eq!(origin.open(), 0);
    let good = token(&hs256, &json!({"sub": "alice", "exp": far}), SECRET.as_bytes());
    open_stream(&gate, "/", &[&format!("Authorization: Bearer {good}")]).await.unwrap();
    assert!(
        !gate.log().contains(&good) && !gate.log().contains("alice"),
        "the log has the token or the name"
    );
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn slow_loris_clients_are_disconnected_at_the_header_timeout() {
    let origin = ScriptedUpstream::start().await;
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "3000")]);
    let mut clients = Vec::new();
    for number in 0..50 {
        let mut client = HttpConnection::connect(gate.addr).await;
        if number % 2 == 0 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ").await;
        }
        clients.push(client);
    }
    // Single bytes don't extend the deadline.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for client in clients.iter_mut().step_by(2) {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client.socket, b"x").await;
        }
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let reply = client.rest().await;
        if number % 2 == 0 {
            assert!(reply.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&reply));
        }
    }
    wait_for_event_count(&gate, "header_timeout", 50.0).await;
    assert!(origin.is_quiet());
}

#[tokio::test]
async fn a_client_that_stops_reading_is_closed_and_its_permit_returned() {
    let origin = ScriptedUpstream::start().await;
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_HTTP_WRITE_TIMEOUT_MS", "500")]);
    let path = Proxy::start(gate.addr);
    let mut client = HttpConnection::get(path.addr(), "/", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    client.head().await;
    path.stall(Direction::Both); // the client stays connected and reads nothing
    let chunk = [b"10000\r\n", &[b'x'; 65_536][..], b"\r\n"].concat();
    let flood = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while upstream.socket.write_all(&chunk).await.is_ok() {}
    });
    gate.wait_until_empty().await;
    crate::wire::within("the upstream connection is closed", flood).await.unwrap();
    wait_for_event_count(&gate, "lean_slow", 1.0).await;
}

#[tokio::test]
async fn a_stalled_upstream_costs_no_more_than_its_timeout() {
    let origin = ScriptedUpstream::start().await;
    let path = Proxy::start(origin.addr());
    let url = format!("http://{}", path.addr());
    let gate = ForebayProcess::start_gate_with(&url, &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "500")]);
    path.stall(Direction::Both);
    let response = HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await;
    assert_eq!(response.head.status, 504);
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn bytes_that_are_not_http_are_refused() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let noise: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let inputs: [&[u8]; 8] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client's hello", // an https:// client at a plain port
        &noise,
        &[0; 1024],
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nBad\x00Name: 1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot a frame of HTTP/2, but many letters instead",
    ];
    for bytes in inputs {
        let mut client = HttpConnection::connect(gate.addr).await;
        client.send(bytes).await;
        let reply = client.rest().await;
        let refused = reply.is_empty() || reply.starts_with(b"HTTP/1.1 400 ") || reply.starts_with(b"\0\0");
        assert!(refused, "{:?} to {:?}", String::from_utf8_lossy(&reply), String::from_utf8_lossy(bytes));
    }
    assert!(origin.is_quiet());
    wait_for_event_count(&gate, "bad_request", 7.0).await;
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn no_request_is_smuggled() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let chunked = format!("0\r\n\r\n{smuggled}");
    let length = chunked.len();
    for head in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        format!("Transfer-Encoding: identity, chunked\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: {length}\r\nContent-Length: 3\r\n"),
        format!("Content-Length: +{length}\r\n"),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding: xchunked\r\n".to_owned(),
        format!("Transfer-Encoding : chunked\r\nContent-Length: {length}\r\n"),
        format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: {length}\r\n"),
    ] {
        let origin = ScriptedUpstream::start().await;
        let gate = ForebayProcess::start_gate(&origin.url(), &[]);
        let mut client = HttpConnection::connect(gate.addr).await;
        client.send(format!("POST /first HTTP/1.1\r\nHost: a\r\n{head}\r\n{chunked}")).await;
        // The request is refused, or the upstream gets exactly one request with the gate's own
        // framing.
        let upstream = tokio::spawn(async move {
            let mut upstream = origin.accept().await;
            let seen = upstream.head().await;
            assert!(seen.text.starts_with("POST /first "), "{}", seen.text);
            assert!(seen.is_chunked() != seen.header("content-length").is_some(), "{}", seen.text);
            assert_eq!(upstream.take(5).await, b"0\r\n\r\n");
            upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            assert_eq!(String::from_utf8_lossy(&upstream.rest().await), "", "after {}", seen.text);
        });
        let status = client.head().await.status;
        match status {
            200 => {
                assert_eq!(client.rest().await, b"", "{head}: the gate responded to bytes after the request");
                drop(gate);
                upstream.await.unwrap();
            }
            400 | 501 => upstream.abort(),
            other => panic!("{head}: {other}"),
        }
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_get_a_503_and_are_counted() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_HTTP_MAX_CONNECTIONS", "5")]);
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(open_stream(&gate, "/", &[]).await.unwrap());
    }
    let mut sixth = HttpConnection::get(gate.addr, "/", &[]).await;
    assert_eq!(sixth.head().await.status, 503);
    wait_for_event_count(&gate, "refused", 1.0).await;
    drop(clients);
    until("a connection is free", async || {
        HttpConnection::get(gate.addr, "/", &[]).await.try_head().await.is_some_and(|head| head.status == 200)
    })
    .await;
}
