//! What the client is told when the upstream fails, and when a request may be sent again.

use forebay_sandbox::free_port;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::gate::Gate;
use crate::origin::Origin;
use crate::wire::{Answer, Client, until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn assert_problem(answer: &Answer, status: u16, error: &str) {
    assert_eq!(answer.head.status, status, "{}", answer.head.text);
    assert_eq!(answer.head.header("content-type"), Some("application/problem+json"));
    let body = answer.json();
    assert_eq!((&body["error"], &body["status"]), (&error.into(), &status.into()), "{body}");
    assert!(body["message"].as_str().unwrap().len() > 10, "{body}");
    let text = body.to_string();
    assert!(!text.contains("127.0.0.1") && !text.contains("os error"), "internals in {text}");
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_502_and_said_once_in_the_log() {
    let gate = Gate::start(&format!("http://127.0.0.1:{}", free_port()), &[]);
    for _ in 0..3 {
        let answer = Client::ask(gate.addr, "GET", "/", &["X-Thread-ID: t-1"], "").await;
        assert_problem(&answer, 502, "upstream_unreachable");
        assert_eq!(answer.head.header("x-thread-id"), Some("t-1"));
    }
    gate.wait_for_log("upstream failing");
    assert_eq!(gate.log().matches("upstream failing").count(), 1, "{}", gate.log());
    assert_eq!(gate.metric("forebay_gate_upstream_failures_total", &["upstream_unreachable"]).await, 3.0);
    assert_eq!(gate.status().await["gate"]["upstream_failing"], true);
    gate.empty().await;
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_502() {
    let gate = Gate::start("http://nowhere.invalid:8000", &[]);
    assert_problem(&Client::ask(gate.addr, "GET", "/", &[], "").await, 502, "upstream_unresolved");
}

#[tokio::test]
async fn an_upstream_that_hangs_up_or_talks_rubbish_is_a_502() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    for (said, error) in [
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
        let mut client = Client::get(gate.addr, "/", &[]).await;
        let mut upstream = origin.accept().await;
        upstream.head().await;
        upstream.send(said).await;
        drop(upstream);
        assert_problem(&client.answer().await, 502, error);
    }
    gate.empty().await;
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_in_time_is_a_504() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "300")]);
    let mut client = Client::get(gate.addr, "/", &[]).await;
    let mut upstream = origin.accept().await;
    assert_problem(&client.answer().await, 504, "upstream_response_timeout");
    upstream.head().await;
    assert_eq!(upstream.rest().await, b"", "and the upstream is told by the end of its connection");
    gate.empty().await;
}

#[tokio::test]
async fn the_time_of_an_upload_is_not_the_upstream_s_silence() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "2500")]);
    let mut client = Client::connect(gate.addr).await;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    for _ in 0..10 {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await; // in all, twice the timeout
        client.send("x").await;
        assert_eq!(upstream.take(1).await, b"x");
    }
    upstream.send(OK).await;
    assert_eq!(client.answer().await.head.status, 200);
}

#[tokio::test]
async fn a_host_that_accepts_nothing_is_a_504() {
    // A listener whose backlog is full: the kernel drops what comes, as a firewall would.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let full = listener.local_addr().unwrap();
    let connect = || tokio::net::TcpStream::connect(full);
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(std::time::Duration::from_millis(300), connect()).await {
        held.push(stream);
    }
    let gate =
        Gate::start_with(&format!("http://{full}"), &[], &[("FOREBAY_GATE_CONNECT_TIMEOUT_MS", "300")]);
    let answer = Client::ask(gate.addr, "GET", "/", &[], "").await;
    assert_problem(&answer, 504, "upstream_connect_timeout");
    gate.empty().await;
}

#[tokio::test]
async fn beyond_its_connections_the_gate_says_that_it_is_busy() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS", "1")]);
    let mut first = Client::get(gate.addr, "/", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    let answer = Client::ask(gate.addr, "GET", "/", &[], "").await;
    assert_problem(&answer, 503, "upstream_busy");
    assert!(answer.head.header("retry-after").is_some());
    upstream.send(OK).await;
    assert_eq!(first.answer().await.head.status, 200);
}

/// What a process has open beside files, which it may close at any time; and the standard streams.
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
async fn without_a_descriptor_it_is_the_gate_that_is_at_fault() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    let before = lasting_descriptors(gate.pid()).len();
    let mut client = Client::connect(gate.addr).await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
    until("the gate has accepted", async || lasting_descriptors(gate.pid()).len() > before).await;
    let taken = lasting_descriptors(gate.pid());
    let limit = (0..).find(|number| !taken.contains(number));
    let pid = Pid::from_raw(gate.pid().try_into().unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    client.send("\r\n").await;
    let answer = client.answer().await;
    assert_problem(&answer, 503, "gate_exhausted");
    assert!(answer.head.header("retry-after").is_some());
    assert!(!gate.log().contains("upstream failing"), "{}", gate.log());
    gate.wait_for_log("gate resources exhausted");
}

#[tokio::test]
async fn connections_to_the_upstream_are_used_again_and_end_when_idle() {
    let origin = Origin::start().await;
    let gate = Gate::start_with(&origin.url(), &[], &[("FOREBAY_GATE_UPSTREAM_IDLE_TIMEOUT_MS", "4000")]);
    let mut client = Client::get(gate.addr, "/1", &[]).await;
    let mut upstream = origin.accept().await;
    for _ in 0..3 {
        upstream.head().await;
        upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n").await;
        assert_eq!(client.answer().await.body, b"ok");
        client.request("GET", "/again", &[], "").await;
    }
    upstream.head().await;
    upstream.send(OK).await;
    assert_eq!(client.answer().await.body, b"ok");
    let stats = &gate.status().await["gate"]["upstream_connections"];
    assert_eq!(
        (&stats["dials"], &stats["reuses"], &stats["idle"]),
        (&1.into(), &3.into(), &1.into()),
        "{stats}"
    );
    assert_eq!(upstream.rest().await, b"", "after the idle timeout the gate closes it");
    until("none is idle", async || gate.status().await["gate"]["upstream_connections"]["open"] == 0).await;
}

/// A connection that waits in the pool and was closed by the upstream.
async fn closed_in_the_pool(origin: &Origin, gate: &Gate) {
    let mut client = Client::get(gate.addr, "/first", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(OK).await;
    client.answer().await;
    drop(upstream);
}

#[tokio::test]
async fn a_connection_that_died_while_it_waited_costs_no_request() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    for (method, body) in [("GET", ""), ("POST", "abc"), ("DELETE", "")] {
        closed_in_the_pool(&origin, &gate).await;
        let mut client = Client::connect(gate.addr).await;
        client.request(method, "/second", &[], body).await;
        let mut upstream = origin.accept().await;
        assert!(upstream.head().await.text.starts_with(&format!("{method} /second ")));
        assert_eq!(upstream.take(body.len()).await, body.as_bytes());
        upstream.send(OK).await;
        assert_eq!(client.answer().await.head.status, 200, "{method}");
        drop(upstream);
    }
}

/// Has the gate keep one connection, and returns the upstream's end of it.
async fn kept_connection(origin: &Origin, client: &mut Client) -> Client {
    client.request("GET", "/first", &[], "").await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    upstream.send(OK).await;
    client.answer().await;
    upstream
}

/// Of a request whose connection closes before a byte of the response. On a connection of its own none is sent again.
#[tokio::test]
async fn what_does_harm_twice_is_sent_once() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
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
            let mut client = Client::connect(gate.addr).await;
            let kept_upstream = if kept { Some(kept_connection(&origin, &mut client).await) } else { None };
            client.request(method, "/second", &[], body).await;
            // The upstream takes the request, and dies over it.
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
                drop(upstream); // and a third time is one too many
            }
            let head = client.head().await;
            assert_eq!(head.status, 502, "{method}: {}", head.text);
            assert!(origin.is_quiet(), "{method} was sent again, kept: {kept}");
            let stats = &gate.status().await["gate"]["upstream_connections"];
            assert_eq!(stats["retries"], retries, "{method}, kept: {kept}");
        }
    }
    gate.empty().await;
}

#[tokio::test]
async fn a_request_that_the_upstream_began_to_answer_is_sent_once() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &[]);
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
    let half = format!("{head}ab");
    let beginnings = [
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
        for ((said, status), (kept, resets)) in beginnings
            .iter()
            .flat_map(|beginning| [(true, false), (true, true), (false, false)].map(|how| (*beginning, how)))
        {
            let case = format!("{method} with {body:?}, {said:?}, kept: {kept}, resets: {resets}");
            let mut client = Client::connect(gate.addr).await;
            let kept = if kept { Some(kept_connection(&origin, &mut client).await) } else { None };
            client.request(method, "/second", &[], body).await;
            let mut upstream = match kept {
                Some(upstream) => upstream,
                None => origin.accept().await,
            };
            upstream.head().await;
            upstream.take(body.len()).await;
            upstream.send(said).await;
            if resets {
                upstream.socket.set_zero_linger().unwrap();
            }
            drop(upstream);
            // A body that breaks off may take the head with it.
            let head = client.try_head().await.map(|head| head.status);
            assert!(head == Some(status) || (head.is_none() && status == 200), "{head:?}: {case}");
            assert!(origin.is_quiet(), "sent again: {case}");
        }
    }
    assert_eq!(gate.status().await["gate"]["upstream_connections"]["retries"], 0);
    gate.empty().await;
}
