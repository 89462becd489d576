//! Request and response bodies: bytes pass as they arrive, and each disconnect is detected at once.

use std::time::Duration;

use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::wire::{HttpConnection, until, within};

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Request whose body lacks seven bytes.
const UNFINISHED: &str = "POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n123";

/// Starts an upstream, and a gate in front of it whose route `/stream` takes permits.
async fn start_gate(settings: &[(&str, &str)]) -> (ScriptedUpstream, ForebayProcess) {
    let origin = ScriptedUpstream::start().await;
    let args = ["--stream-route", "* /stream", "--total", "5"];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &args, settings);
    (origin, gate)
}

/// Sends a request and waits until the upstream has read its head. Returns the connections of the
/// client and of the upstream.
async fn send_request(
    origin: &ScriptedUpstream,
    gate: &ForebayProcess,
    request: impl AsRef<[u8]>,
) -> (HttpConnection, HttpConnection) {
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send(request).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    (client, upstream)
}

/// Sends a GET request like [`send_request`].
async fn send_get(
    origin: &ScriptedUpstream,
    gate: &ForebayProcess,
    path: &str,
) -> (HttpConnection, HttpConnection) {
    send_request(origin, gate, format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await
}

/// Sends a GET request and passes one event to the client. Returns both connections.
async fn open_event_stream(
    origin: &ScriptedUpstream,
    gate: &ForebayProcess,
    path: &str,
) -> (HttpConnection, HttpConnection) {
    let (mut client, mut upstream) = send_get(origin, gate, path).await;
    upstream.send(format!("{EVENTS}3\r\nabc\r\n")).await;
    client.head().await;
    assert_eq!(client.event().await, "abc");
    (client, upstream)
}

#[tokio::test]
async fn each_event_arrives_before_the_next_is_sent() {
    let (origin, gate) = start_gate(&[]).await;
    for path in ["/stream", "/plain"] {
        let (mut client, mut upstream) = send_get(&origin, &gate, path).await;
        upstream.send(EVENTS).await;
        assert_eq!(client.head().await.status, 200, "the head arrives before any event");
        for number in 0..20 {
            let event = format!("data: {number}\n\n");
            upstream.send(format!("{:x}\r\n{event}\r\n", event.len())).await;
            assert_eq!(client.event().await, event);
        }
        upstream.send("0\r\n\r\n").await;
        assert_eq!(client.chunk().await, Some(Vec::new()), "a clean end");
    }
    assert_eq!(gate.status().await["http"]["lean_begun"], 1, "only the stream route uses the lean path");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn request_and_response_bodies_stream_at_the_same_time() {
    let (origin, gate) = start_gate(&[]).await;
    for path in ["/stream", "/plain"] {
        let mut client = HttpConnection::connect(gate.addr).await;
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")).await;
        let mut upstream = origin.accept().await;
        assert!(upstream.head().await.is_chunked());
        upstream.send(EVENTS).await;
        client.head().await;
        for word in ["one", "two", "three"] {
            client.send(format!("{:x}\r\n{word}\r\n", word.len())).await;
            assert_eq!(upstream.event().await, word);
            upstream.send(format!("{:x}\r\n{word}!\r\n", word.len() + 1)).await;
            assert_eq!(client.event().await, format!("{word}!"));
        }
        client.send("0\r\n\r\n").await;
        assert_eq!(upstream.chunk().await, Some(Vec::new()));
        upstream.send("0\r\n\r\n").await;
        assert_eq!(client.chunk().await, Some(Vec::new()));
    }
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_chunked_request_body_passes_with_any_method() {
    let (origin, gate) = start_gate(&[]).await;
    for (method, path) in [("GET", "/plain"), ("HEAD", "/plain"), ("GET", "/stream"), ("DELETE", "/plain")] {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut client = HttpConnection::connect(gate.addr).await;
        client.send(head + "3\r\nabc\r\n0\r\n\r\n").await;
        let mut upstream = origin.accept().await;
        let seen = upstream.head().await;
        assert!(seen.is_chunked(), "{}", seen.text);
        assert_eq!(upstream.event().await, "abc", "{method} {path}");
        assert_eq!(upstream.chunk().await, Some(Vec::new()));
        upstream.send("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await;
        assert_eq!(client.head().await.status, 204);
    }
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_content_length_beside_chunks_does_not_truncate_the_body() {
    let (origin, gate) = start_gate(&[]).await;
    for path in ["/stream", "/plain"] {
        let (mut client, mut upstream) = send_get(&origin, &gate, path).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
        upstream.send(format!("{head}6\r\nabcdef\r\n0\r\n\r\n")).await;
        let response = client.response().await;
        assert_eq!(response.head.header("content-length"), None, "{}", response.head.text);
        assert_eq!(String::from_utf8_lossy(&response.body), "abcdef", "{path}");
    }
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn many_megabytes_pass_unchanged() {
    const LENGTH: usize = 24 << 20;
    let (origin, gate) = start_gate(&[]).await;
    let body: Vec<u8> = (0..LENGTH).map(|at| (at * 31 % 251) as u8).collect();
    let mut client = HttpConnection::connect(gate.addr).await;
    let echo = tokio::spawn(async move {
        let mut upstream = origin.accept().await;
        assert_eq!(upstream.head().await.header("content-length"), Some(LENGTH.to_string().as_str()));
        let body = upstream.take(LENGTH).await;
        upstream.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n")).await;
        upstream.send(body).await;
    });
    client.send(format!("POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n")).await;
    client.send(&body).await;
    let response = client.response().await;
    assert!(response.body == body, "{} of {LENGTH} bytes", response.body.len());
    echo.await.unwrap();
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_response_cancels_the_request() {
    let (origin, gate) = start_gate(&[]).await;
    for path in ["/stream", "/plain"] {
        let (client, mut upstream) = send_get(&origin, &gate, path).await;
        drop(client);
        assert_eq!(upstream.rest().await, b"", "the upstream connection is closed");
    }
    gate.wait_until_empty().await;
    assert_eq!(gate.metric("forebay_gate_cancelled_total", &["stage=\"head\""]).await, 2.0);
}

#[tokio::test]
async fn a_client_that_disconnects_during_a_stream_cancels_it() {
    let (origin, gate) = start_gate(&[]).await;
    for path in ["/stream", "/plain"] {
        let (client, mut upstream) = open_event_stream(&origin, &gate, path).await;
        drop(client);
        assert_eq!(
            upstream.rest().await,
            b"",
            "the upstream connection is closed although the upstream is silent"
        );
    }
    gate.wait_until_empty().await;
    assert_eq!(gate.metric("forebay_gate_cancelled_total", &["stage=\"body\""]).await, 2.0);
}

#[tokio::test]
async fn a_client_that_disconnects_while_it_sends_cancels_the_request() {
    let (origin, gate) = start_gate(&[]).await;
    let (client, mut upstream) = send_request(&origin, &gate, UNFINISHED).await;
    assert_eq!(upstream.take(3).await, b"123");
    drop(client);
    assert_eq!(upstream.rest().await, b"");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn when_the_upstream_aborts_a_stream_the_client_sees_no_clean_end() {
    let (origin, gate) = start_gate(&[]).await;
    for path in ["/stream", "/plain"] {
        let (mut client, upstream) = open_event_stream(&origin, &gate, path).await;
        drop(upstream);
        assert_eq!(client.chunk().await, None, "without the last chunk, the client detects the truncation");
    }
    gate.wait_until_empty().await;
    assert_eq!(gate.metric("forebay_gate_upstream_failures_total", &["upstream_broke_off"]).await, 2.0);
}

/// Reads the body to its end. Returns it, and whether it ended with the last chunk.
async fn read_payload(client: &mut HttpConnection) -> (String, bool) {
    let mut payload = String::new();
    loop {
        match client.chunk().await {
            Some(chunk) if chunk.is_empty() => return (payload, true),
            Some(chunk) => payload += std::str::from_utf8(&chunk).unwrap(),
            None => return (payload, false),
        }
    }
}

#[tokio::test]
async fn a_stream_is_the_same_for_any_split_of_its_bytes() {
    let (origin, gate) = start_gate(&[]).await;
    let (old, new) = ("HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    for (sent, expected_payload, complete) in [
        (format!("{new}3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: x\r\n\r\n"), "abcde", true),
        (format!("{hints}{new}3\r\nabc\r\n0\r\n\r\n"), "abc", true),
        (format!("{new}0\r\n\r\n"), "", true),
        (format!("{old}until the end"), "until the end", true),
        (format!("{new}3\r\nabc\r\n5\r\nab"), "abcab", false),
        (format!("{new}3\r\nabc\r\n"), "abc", false),
        (format!("{new}3\r\nabc\r\n0\r\n"), "abc", false),
        (format!("{new}3\r\nabc\r\nrubbish"), "abc", false),
    ] {
        // In one write, byte by byte, split within the head, and split after the head.
        let head = sent.rfind("\r\n\r\n").map_or(0, |end| end.min(new.len()));
        let all = vec![sent.len()];
        let cuts = [all, (1..=sent.len()).collect(), vec![7, sent.len()], vec![head + 4, sent.len()]];
        for cuts in cuts {
            let (mut client, mut upstream) = send_get(&origin, &gate, "/stream").await;
            let mut from = 0;
            for cut in cuts {
                upstream.send(&sent[from..cut.max(from)]).await;
                from = cut.max(from);
            }
            drop(upstream);
            assert_eq!(client.head().await.status, 200, "{sent:?}");
            assert_eq!(read_payload(&mut client).await, (expected_payload.to_owned(), complete), "{sent:?}");
        }
    }
    gate.wait_until_empty().await;
    until("all upstream connections are closed", async || {
        gate.status().await["gate"]["upstream_connections"]["open"] == 0
    })
    .await;
}

#[tokio::test]
async fn a_body_shorter_than_its_content_length_is_not_a_clean_end() {
    let (origin, gate) = start_gate(&[]).await;
    let (mut client, mut upstream) = send_get(&origin, &gate, "/plain").await;
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").await;
    assert_eq!(client.head().await.header("content-length"), Some("10"));
    assert_eq!(client.take(3).await, b"abc");
    drop(upstream);
    assert_eq!(client.rest().await, b"", "the connection is closed");
}

#[tokio::test]
async fn a_client_that_stalls_in_its_body_gets_a_408() {
    let (origin, gate) = start_gate(&[("FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS", "300")]).await;
    let (mut client, mut upstream) = send_request(&origin, &gate, UNFINISHED).await;
    let response = client.response().await;
    assert_eq!((response.head.status, &response.json()["error"]), (408, &"request_stalled".into()));
    assert_eq!(response.head.header("connection"), Some("close"));
    upstream.rest().await;
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_slow_upstream_does_not_count_against_the_clients_idle_timeout() {
    const LENGTH: usize = 24 << 20;
    let (origin, gate) = start_gate(&[("FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS", "2000")]).await;
    let request = format!("POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (client, mut upstream) = send_request(&origin, &gate, request).await;
    let (_, mut sending) = client.socket.into_split();
    let sent = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        sending.write_all(&vec![7; LENGTH]).await.map(|()| sending)
    });
    // By now all buffers are full, and the client has waited longer than the idle timeout.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(upstream.take(LENGTH).await.len(), LENGTH);
    within("sending", sent).await.unwrap().unwrap();
}

#[tokio::test]
async fn expect_100_continue_is_answered_and_not_forwarded() {
    let (origin, gate) = start_gate(&[]).await;
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send("POST /plain HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n").await;
    assert_eq!(client.head().await.status, 100);
    client.send("abc").await;
    let mut upstream = origin.accept().await;
    assert_eq!(upstream.head().await.header("expect"), None);
    assert_eq!(upstream.take(3).await, b"abc");
    upstream.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(client.head().await.status, 204);
}

#[tokio::test]
async fn responses_without_a_body_end_at_once() {
    let (origin, gate) = start_gate(&[]).await;
    let mut client = HttpConnection::connect(gate.addr).await;
    client.request("HEAD", "/stream", &[], "").await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").await;
    assert_eq!(client.head().await.header("content-length"), Some("1000"));
    for (status, rest) in [("204 No Content", ""), ("304 Not Modified", "ETag: x\r\n")] {
        client.request("GET", "/plain", &[], "").await;
        upstream.head().await; // the same connection
        upstream.send(format!("HTTP/1.1 {status}\r\n{rest}\r\n")).await;
        assert!(status.starts_with(&client.head().await.status.to_string()));
    }
    gate.wait_until_empty().await;
    assert_eq!(gate.status().await["gate"]["upstream_connections"]["dials"], 1);
}

#[tokio::test]
async fn http_2_requests_stream_and_are_cancelled_independently() {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let (origin, gate) = start_gate(&[]).await;
    let socket = tokio::net::TcpStream::connect(gate.addr).await.unwrap();
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, driver) = builder.handshake::<_, Empty<Bytes>>(TokioIo::new(socket)).await.unwrap();
    let driver = tokio::spawn(driver);

    let mut streams = Vec::new();
    for number in 0..3 {
        let uri = format!("http://example.org/stream?{number}");
        let request = http::Request::get(uri).header("cookie", "a=1").header("cookie", "b=2");
        let response = tokio::spawn(sender.send_request(request.body(Empty::new()).unwrap()));
        let mut upstream = origin.accept().await;
        let seen = upstream.head().await;
        assert!(seen.text.starts_with(&format!("GET /stream?{number} HTTP/1.1\r\n")), "{}", seen.text);
        assert_eq!((seen.header("host"), seen.header("via")), (Some("example.org"), Some("2.0 forebay")));
        assert_eq!(seen.header("cookie"), Some("a=1; b=2"));
        upstream.send(EVENTS).await;
        let response = within("the head", response).await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        streams.push((response.into_body(), upstream));
    }
    for (body, upstream) in &mut streams {
        upstream.send("3\r\nabc\r\n").await;
        let frame = within("an event", body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "abc");
    }
    // One stream is cancelled; the others continue.
    let (body, mut cancelled) = streams.remove(1);
    drop(body);
    assert_eq!(cancelled.rest().await, b"");
    until("two are left", async || gate.status().await["gate"]["streams"] == 2).await;
    for (body, mut upstream) in streams {
        upstream.send("0\r\n\r\n").await;
        let rest = within("the end", body.collect()).await.unwrap().to_bytes();
        assert!(rest.is_empty(), "{rest:?}");
    }
    drop(sender);
    within("the connection's end", driver).await.unwrap().ok();
    gate.wait_until_empty().await;
}
