//! Failures of the upstream: responses to the client, retries, and connection reuse.

use forebay_sandbox::free_port;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::wire::{HttpConnection, HttpResponse, until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Fails unless the response has this problem and shows no internals.
fn assert_problem(response: &HttpResponse, status: u16, error: &str) {
    assert_eq!(response.head.status, status, "{}", response.head.text);
    assert_eq!(response.head.header("content-type"), Some("application/problem+json"));
    let body = response.json();
    assert_eq!((&body["error"], &body["status"]), (&error.into(), &status.into()), "{body}");
    assert!(body["message"].as_str().unwrap().len() > 10, "{body}");
    let text = body.to_string();
    assert!(
        !text.contains("127.0.0.1") && !text.contains("os error"),
        "the response shows internals: {text}"
    );
}

#[tokio::test]
async fn an_unreachable_upstream_is_a_502_and_logged_once() {
    let gate = ForebayProcess::start_gate(&format!("http://127.0.0.1:{}", free_port()), &[]);
    for _ in 0..3 {
        let response = HttpConnection::fetch(gate.addr, "GET", "/", &["X-Thread-ID: t-1"], "").await;
        assert_problem(&response, 502, "upstream_unreachable");
        assert_eq!(response.head.header("x-thread-id"), Some("t-1"));
    }
    gate.wait_for_log("upstream failing");
    assert_eq!(gate.log().matches("upstream failing").count(), 1, "{}", gate.log());
    assert_eq!(gate.metric("forebay_gate_upstream_failures_total", &["upstream_unreachable"]).await, 3.0);
    assert_eq!(gate.status().await["gate"]["upstream_failing"], true);
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_502() {
    let gate = ForebayProcess::start_gate("http://nowhere.invalid:8000", &[]);
    assert_problem(&HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await, 502, "upstream_unresolved");
}

#[tokio::test]
async fn an_upstream_that_closes_or_sends_an_invalid_response_is_a_502() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    for (sent, error) in [
        ("", "upstream_closed"),
        ("HTTP/1.1 200 OK\r\nContent-Le", "upstream_closed"),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", "upstream_bad_response"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "upstream_bad_response"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "upstream_switched",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "upstream_bad_coding"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n\x1f", "upstream_bad_coding"),
    ] {
        let mut client = HttpConnection::get(gate.addr, "/", &[]).await;
        let mut upstream = origin.accept().await;
        upstream.head().await;
        upstream.send(sent).await;
        drop(upstream);
        assert_problem(&client.response().await, 502, error);
    }
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn an_upstream_that_exceeds_the_response_timeout_is_a_504() {
    let origin = ScriptedUpstream::start().await;
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "300")]);
    let mut client = HttpConnection::get(gate.addr, "/", &[]).await;
    let mut upstream = origin.accept().await;
    assert_problem(&client.response().await, 504, "upstream_response_timeout");
    upstream.head().await;
    assert_eq!(upstream.rest().await, b"", "the gate closes the upstream connection");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn the_time_of_an_upload_does_not_count_as_response_time() {
    let origin = ScriptedUpstream::start().await;
    let gate =
        ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "2500")]);
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    for _ in 0..10 {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await; // twice the timeout in total
        client.send("x").await;
        assert_eq!(upstream.take(1).await, b"x");
    }
    upstream.send(OK).await;
    assert_eq!(client.response().await.head.status, 200);
}

#[tokio::test]
async fn a_host_that_drops_connection_attempts_is_a_504() {
    // The backlog of this listener is full, so the kernel drops connection attempts like a
    // firewall.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let full = listener.local_addr().unwrap();
    let connect = || tokio::net::TcpStream::connect(full);
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(std::time::Duration::from_millis(300), connect()).await {
        held.push(stream);
    }
    let gate = ForebayProcess::start_gate_with(
        &format!("http://{full}"),
        &[],
        &[("FOREBAY_GATE_CONNECT_TIMEOUT_MS", "300")],
    );
    let response = HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await;
    assert_problem(&response, 504, "upstream_connect_timeout");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn without_a_free_upstream_connection_the_response_is_a_503() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(
        &origin.url(),
        &[],
        &[("FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS", "1")],
    );
    let mut first = HttpConnection::get(gate.addr, "/", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    let response = HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await;
    assert_problem(&response, 503, "upstream_busy");
    assert!(response.head.header("retry-after").is_some());
    upstream.send(OK).await;
    assert_eq!(first.response().await.head.status, 200);
}

/// Returns the descriptors of a process that stay open: standard streams, and all that aren't
/// files.
fn lasting_descriptors(pid: u32) -> Vec<u64> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    let lasting = open.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let file = std::fs::read_link(entry.path()).ok()?.has_root();
        (number < 3 || !file).then_some(number)
    });
    lasting.collect()
}

#[tokio::test]
async fn without_a_free_descriptor_the_response_is_a_503_and_the_upstream_is_not_blamed() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let before = lasting_descriptors(gate.pid()).len();
    let mut client = HttpConnection::connect(gate.addr).await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
    until("the gate has accepted the connection", async || lasting_descriptors(gate.pid()).len() > before)
        .await;
    let taken = lasting_descriptors(gate.pid());
    let limit = (0..).find(|number| !taken.contains(number));
    let pid = Pid::from_raw(gate.pid().try_into().unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    client.send("\r\n").await;
    let response = client.response().await;
    assert_problem(&response, 503, "gate_exhausted");
    assert!(response.head.header("retry-after").is_some());
    assert!(!gate.log().contains("upstream failing"), "{}", gate.log());
    gate.wait_for_log("gate resources exhausted");
}

#[tokio::test]
async fn upstream_connections_are_reused_and_closed_when_idle() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(
        &origin.url(),
        &[],
        &[("FOREBAY_GATE_UPSTREAM_IDLE_TIMEOUT_MS", "4000")],
    );
    let mut client = HttpConnection::get(gate.addr, "/1", &[]).await;
    let mut upstream = origin.accept().await;
    for _ in 0..3 {
        upstream.head().await;
        upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n").await;
        assert_eq!(client.response().await.body, b"ok");
        client.request("GET", "/again", &[], "").await;
    }
    upstream.head().await;
    upstream.send(OK).await;
    assert_eq!(client.response().await.body, b"ok");
    let stats = &gate.status().await["gate"]["upstream_connections"];
    assert_eq!(
        (&stats["dials"], &stats["reuses"], &stats["idle"]),
        (&1.into(), &3.into(), &1.into()),
        "{stats}"
    );
    assert_eq!(upstream.rest().await, b"", "the gate closes the connection after the idle timeout");
    until("no upstream connection is open", async || {
        gate.status().await["gate"]["upstream_connections"]["open"] == 0
    })
    .await;
}

/// Leaves a connection in the gate's pool that the upstream has closed.
async fn leave_closed_connection(origin: &ScriptedUpstream, gate: &ForebayProcess) {
    let mut client = HttpConnection::get(gate.addr, "/first", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(OK).await;
    client.response().await;
    drop(upstream);
}

#[tokio::test]
async fn a_pooled_connection_that_was_closed_fails_no_request() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    for (method, body) in [("GET", ""), ("POST", "abc"), ("DELETE", "")] {
        leave_closed_connection(&origin, &gate).await;
        let mut client = HttpConnection::connect(gate.addr).await;
        client.request(method, "/second", &[], body).await;
        let mut upstream = origin.accept().await;
        assert!(upstream.head().await.text.starts_with(&format!("{method} /second ")));
        assert_eq!(upstream.take(body.len()).await, body.as_bytes());
        upstream.send(OK).await;
        assert_eq!(client.response().await.head.status, 200, "{method}");
        drop(upstream);
    }
}

/// Sends a request so that the gate keeps its upstream connection. Returns the upstream's end.
async fn kept_connection(origin: &ScriptedUpstream, client: &mut HttpConnection) -> HttpConnection {
    client.request("GET", "/first", &[], "").await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(OK).await;
    client.response().await;
    upstream
}

/// The upstream closes the connection before a byte of the response. On a new connection, no
/// request is sent again.
#[tokio::test]
async fn only_idempotent_requests_on_reused_connections_are_retried_and_only_once() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut retries = 0;
    for (method, body, is_repeatable) in [
        ("GET", "", true),
        ("HEAD", "", true),
        ("PUT", "", true),
        ("DELETE", "", true),
        ("POST", "", false),
        ("PATCH", "", false),
        ("PUT", "abc", false),
        ("GET", "abc", false),
    ] {
        for kept in [true, false] {
            let mut client = HttpConnection::connect(gate.addr).await;
            let kept_upstream = if kept { Some(kept_connection(&origin, &mut client).await) } else { None };
            client.request(method, "/second", &[], body).await;
            // The upstream reads the request and closes the connection.
            let mut upstream = match kept_upstream {
                Some(upstream) => upstream,
                None => origin.accept().await,
            };
            upstream.head().await;
            upstream.take(body.len()).await;
            drop(upstream);
            if kept && is_repeatable {
                retries += 1;
                let mut upstream = origin.accept().await;
                assert!(upstream.head().await.text.starts_with(&format!("{method} /second ")));
                drop(upstream); // the retry is not retried
            }
            let head = client.head().await;
            assert_eq!(head.status, 502, "{method}: {}", head.text);
            assert!(origin.is_quiet(), "{method} was sent again, kept: {kept}");
            let stats = &gate.status().await["gate"]["upstream_connections"];
            assert_eq!(stats["retries"], retries, "{method}, kept: {kept}");
        }
    }
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn a_request_is_not_retried_once_a_response_byte_arrived() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
    let half = format!("{head}ab");
    let partial_responses = [
        ("H", 502),
        ("HTTP/1.1 2", 502),
        ("HTTP/1.1 200 OK\r\nContent-Le", 502),
        ("HTTP/1.1 100 Continue\r\n\r\n", 502),
        ("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 502),
        ("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 2", 502),
        (head, 200),
        (&half, 200),
    ];
    for (method, body) in
        [("GET", ""), ("HEAD", ""), ("PUT", ""), ("DELETE", ""), ("POST", ""), ("PUT", "abc")]
    {
        for ((sent, status), (kept, resets)) in partial_responses
            .iter()
            .flat_map(|partial| [(true, false), (true, true), (false, false)].map(|how| (*partial, how)))
        {
            let case = format!("{method} with {body:?}, {sent:?}, kept: {kept}, resets: {resets}");
            let mut client = HttpConnection::connect(gate.addr).await;
            let kept = if kept { Some(kept_connection(&origin, &mut client).await) } else { None };
            client.request(method, "/second", &[], body).await;
            let mut upstream = match kept {
                Some(upstream) => upstream,
                None => origin.accept().await,
            };
            upstream.head().await;
            upstream.take(body.len()).await;
            upstream.send(sent).await;
            if resets {
                upstream.socket.set_zero_linger().unwrap();
            }
            drop(upstream);
            // If the body is truncated, the head may be lost too.
            let head = client.try_head().await.map(|head| head.status);
            assert!(head == Some(status) || (head.is_none() && status == 200), "{head:?}: {case}");
            assert!(origin.is_quiet(), "sent again: {case}");
        }
    }
    assert_eq!(gate.status().await["gate"]["upstream_connections"]["retries"], 0);
    gate.wait_until_empty().await;
}
