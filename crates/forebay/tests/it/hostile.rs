//! Rude clients: refused clearly, bounded, counted.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_testkit::{Direction, Proxy};
use ring::hmac;
use serde_json::{Value, json};

use crate::gate::Gate;
use crate::limits::{TRUSTED, USERS, open};
use crate::origin::{Origin, Streams};
use crate::wire::{Client, until};

/// Waits until so many are counted: a client may hear of it first.
async fn counted(gate: &Gate, event: &str, count: f64) {
    let label = format!("event=\"{event}\"");
    until(&format!("{count} of {event} are counted"), async || {
        gate.metric("forebay_http_events_total", &[&label]).await == count
    })
    .await;
}

#[tokio::test]
async fn heads_beyond_the_bounds_are_a_431() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    let large = format!("X-Large: {}", "x".repeat(40 * 1024));
    let many: Vec<String> = (0..150).map(|number| format!("X-{number}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for lines in [&[large.as_str()][..], &many] {
        let mut client = Client::get(gate.addr, "/", lines).await;
        assert_eq!(client.head().await.status, 431);
    }
    counted(&gate, "oversized_head", 2.0).await;
    assert!(origin.is_quiet());
    gate.empty().await;
}

#[tokio::test]
async fn a_megabyte_is_nobody_s_name() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &TRUSTED, &USERS);
    let mut client = Client::connect(gate.addr).await;
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User-ID: {}\r\n\r\n", "x".repeat(1 << 20));
    let (mut reading, mut writing) = client.socket.split();
    let sending = tokio::io::AsyncWriteExt::write_all(&mut writing, request.as_bytes());
    let mut answer = [0; 12];
    // The gate answers before it has heard all, and does not hear all.
    let (_, read) = tokio::join!(sending, tokio::io::AsyncReadExt::read_exact(&mut reading, &mut answer));
    read.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");

    // Even where heads may be as large as that, a name may not.
    let settings = [USERS[0], ("FOREBAY_HTTP_MAX_HEADER_BYTES", "4194304")];
    let gate = Gate::start_with(&origin.url(), &TRUSTED, &settings);
    for length in [300, 1 << 20] {
        let line = format!("X-User-ID: {}", "x".repeat(length));
        let answer = Client::ask(gate.addr, "GET", "/", &[&line], "").await;
        assert!((400..=431).contains(&answer.head.status), "{}", answer.head.text);
        assert!(answer.body.len() < 1_000, "the answer does not repeat it");
    }
    assert_eq!(gate.metric("forebay_admission_bad_credentials_total", &["too_long"]).await, 2.0);
    assert!(origin.is_quiet() && !gate.log().contains("xxxx"));
}

#[tokio::test]
async fn forged_names_and_addresses_buy_nothing() {
    let origin = Streams::start().await;
    let settings = [USERS[0], ("FOREBAY_IDENTITY_BY_ADDRESS", "true")];
    // Somebody is trusted, but not this machine.
    let gate = Gate::start_with(&origin.url(), &["--trusted-proxy", "192.0.2.1"], &settings);
    let mut streams = Vec::new();
    for number in 0..3 {
        let forged = [format!("X-User-ID: user-{number}"), format!("X-Forwarded-For: 10.0.0.{number}")];
        streams.push(open(&gate, "/", &[&forged[0], &forged[1]]).await.unwrap());
    }
    let fourth = open(&gate, "/", &["X-User-ID: another", "X-Forwarded-For: 10.9.9.9"]).await.unwrap_err();
    assert_eq!(fourth.head.status, 429, "all of them are 127.0.0.1");
    assert_eq!(fourth.json()["details"]["user_id"], "127.0.0.1");
    let counted = |header| [format!("header=\"{header}\"")];
    for header in ["x-user-id", "x-forwarded-for"] {
        let labels = counted(header);
        let count = gate.metric("forebay_admission_untrusted_headers_total", &[&labels[0]]).await;
        assert_eq!(count, 4.0, "{header}");
    }
}

fn token(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

#[tokio::test]
async fn only_tokens_that_hold_are_believed() {
    const SECRET: &str = "a secret of the test, of more than thirty-two bytes";
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.secret", std::process::id()));
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let origin = Streams::start().await;
    let settings = [("FOREBAY_IDENTITY_JWT_SECRET_FILE", path.to_str().unwrap())];
    let gate = Gate::start_with(&origin.url(), &[], &settings);
    let (far, past) = (4_000_000_000_u64, 1_000_000_000_u64);
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let none = json!({"alg": "none"});
    let unsigned = token(&none, &json!({"sub": "alice", "exp": far}), b"x".repeat(32).as_slice());
    let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    for (bad, reason) in [
        (token(&hs256, &json!({"sub": "alice", "exp": past}), SECRET.as_bytes()), "expired"),
        (unsigned, "alg: none"),
        (token(&hs256, &json!({"sub": "alice", "exp": far}), &[b'x'; 40]), "another's signature"),
        (
            token(&hs256, &json!({"sub": "a".repeat(1 << 13), "exp": far}), SECRET.as_bytes()),
            "an endless name",
        ),
        ("rubbish".to_owned(), "no token at all"),
    ] {
        let answer = open(&gate, "/", &[&format!("Authorization: Bearer {bad}")]).await.unwrap_err();
        assert!(matches!(answer.head.status, 400 | 401 | 431), "{reason}: {}", answer.head.text);
        assert!(!String::from_utf8_lossy(&answer.body).contains(&bad), "{reason}");
    }
    assert_eq!(gate.metric("forebay_admission_bad_credentials_total", &[]).await, 5.0);
    assert_eq!(origin.open(), 0);
    let good = token(&hs256, &json!({"sub": "alice", "exp": far}), SECRET.as_bytes());
    open(&gate, "/", &[&format!("Authorization: Bearer {good}")]).await.unwrap();
    assert!(!gate.log().contains(&good) && !gate.log().contains("alice"), "neither token nor name is logged");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn slow_loris_clients_are_sent_away() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "3000")]);
    let mut clients = Vec::new();
    for number in 0..50 {
        let mut client = Client::connect(gate.addr).await;
        if number % 2 == 0 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ").await;
        }
        clients.push(client);
    }
    // One letter after the other buys no time.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for client in clients.iter_mut().step_by(2) {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut client.socket, b"x").await;
        }
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let said = client.rest().await;
        if number % 2 == 0 {
            assert!(said.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&said));
        }
    }
    counted(&gate, "header_timeout", 50.0).await;
    assert!(origin.is_quiet());
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go_and_its_permit_is_back() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_HTTP_WRITE_TIMEOUT_MS", "500")]);
    let path = Proxy::start(gate.addr);
    let mut client = Client::get(path.addr(), "/", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    client.head().await;
    path.stall(Direction::Both); // the client is there, and isn't
    let chunk = [b"10000\r\n", &[b'x'; 65_536][..], b"\r\n"].concat();
    let flood = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while upstream.socket.write_all(&chunk).await.is_ok() {}
    });
    gate.empty().await;
    crate::wire::within("the upstream hears of it", flood).await.unwrap();
    counted(&gate, "lean_slow", 1.0).await;
}

#[tokio::test]
async fn an_upstream_that_is_half_there_costs_no_more_than_its_deadline() {
    let origin = Origin::start().await;
    let path = Proxy::start(origin.addr());
    let url = format!("http://{}", path.addr());
    let gate = Gate::start_with(&url, &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "500")]);
    path.stall(Direction::Both);
    let answer = Client::ask(gate.addr, "GET", "/", &[], "").await;
    assert_eq!(answer.head.status, 504);
    gate.empty().await;
}

#[tokio::test]
async fn rubbish_is_refused() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    let noise: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let rubbish: [&[u8]; 8] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client's hello", // https:// at a plain port
        &noise,
        &[0; 1024],
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nBad\x00Name: 1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot a frame of HTTP/2, but many letters instead",
    ];
    for bytes in rubbish {
        let mut client = Client::connect(gate.addr).await;
        client.send(bytes).await;
        let said = client.rest().await;
        let refused = said.is_empty() || said.starts_with(b"HTTP/1.1 400 ") || said.starts_with(b"\0\0");
        assert!(refused, "{:?} to {:?}", String::from_utf8_lossy(&said), String::from_utf8_lossy(bytes));
    }
    assert!(origin.is_quiet());
    counted(&gate, "bad_request", 7.0).await;
    gate.empty().await;
}

#[tokio::test]
async fn nothing_is_smuggled() {
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
        let origin = Origin::start().await;
        let gate = Gate::start(&origin.url(), &[]);
        let mut client = Client::connect(gate.addr).await;
        client.send(format!("POST /first HTTP/1.1\r\nHost: a\r\n{head}\r\n{chunked}")).await;
        // Either it is refused, or the upstream sees one request, framed by the gate alone.
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
                assert_eq!(
                    client.rest().await,
                    b"",
                    "{head}: the connection ends, and what follows is not read"
                );
                drop(gate);
                upstream.await.unwrap();
            }
            400 | 501 => upstream.abort(),
            other => panic!("{head}: {other}"),
        }
    }
}

#[tokio::test]
async fn beyond_its_connections_the_gate_says_so_and_counts() {
    let origin = Streams::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_HTTP_MAX_CONNECTIONS", "5")]);
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(open(&gate, "/", &[]).await.unwrap());
    }
    let mut sixth = Client::get(gate.addr, "/", &[]).await;
    assert_eq!(sixth.head().await.status, 503);
    counted(&gate, "refused", 1.0).await;
    drop(clients);
    until("there is room", async || {
        Client::get(gate.addr, "/", &[]).await.try_head().await.is_some_and(|head| head.status == 200)
    })
    .await;
}
