//! Permits: limits by total, user and class; every permit is returned.

use std::time::Duration;

use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::startup::write_temp_file;
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, HttpResponse, until};

/// Opens a stream and waits for its first event.
pub(crate) async fn open_stream(
    gate: &ForebayProcess,
    path: &str,
    lines: &[&str],
) -> Result<HttpConnection, HttpResponse> {
    let mut client = HttpConnection::get(gate.addr, path, lines).await;
    let head = client.head().await;
    if head.status != 200 {
        let length = head.header("content-length").unwrap().parse().unwrap();
        let body = client.take(length).await;
        return Err(HttpResponse { head, body });
    }
    assert_eq!(client.event().await, "data: 1\n\n");
    Ok(client)
}

/// Setting that takes the user from a header, which [`TRUSTED`] proxies send.
pub(crate) const USERS: [(&str, &str); 1] = [("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID")];
pub(crate) const TRUSTED: [&str; 2] = ["--trusted-proxy", "127.0.0.1"];

#[tokio::test]
async fn streams_beyond_the_total_get_a_503_and_a_freed_permit_is_reused() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--total", "3", "--stream-route", "GET /stream"]);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(open_stream(&gate, "/stream", &[]).await.unwrap());
    }
    let response = open_stream(&gate, "/stream", &["X-Thread-ID: t-9"]).await.unwrap_err();
    assert_eq!(response.head.status, 503);
    assert_eq!(response.head.header("content-type"), Some("application/problem+json"));
    assert_eq!(response.head.header("x-thread-id"), Some("t-9"));
    assert!(response.head.header("retry-after").is_some(), "{}", response.head.text);
    assert_eq!(response.json()["error"], "service_unavailable");
    assert_eq!(origin.open(), 3, "the upstream got the refused request");

    let plain = open_stream(&gate, "/other", &[]).await.unwrap();
    assert_eq!(gate.status().await["statistics"]["total_connections"], 3, "other routes take no permit");
    drop((streams.pop(), plain));
    until("a permit is free", async || open_stream(&gate, "/stream", &[]).await.is_ok()).await;
    drop(streams);
    gate.wait_until_empty().await;
    until("the upstream is empty", async || origin.open() == 0).await;
}

#[tokio::test]
async fn a_class_is_refused_at_its_percentage_and_the_rest_is_left_to_other_classes() {
    let origin = StreamingUpstream::start().await;
    let text = "[gate]\nstream_routes = [\"GET /report/** batch\", \"GET /chat/**\"]\n\
                [admission]\ntotal = 4\nclass_percent = { batch = 50 }\n";
    let path = write_temp_file("classes.toml", text);
    let gate = ForebayProcess::start_gate(&origin.url(), &["--config", path.to_str().unwrap()]);
    let mut streams = Vec::new();
    for path in ["/report/1", "/report/2"] {
        streams.push(open_stream(&gate, path, &[]).await.unwrap());
    }
    // If a path can be read in several ways, the class with the lowest limit applies.
    for path in ["/report/3", "/chat/../%72eport", "/chat/../report/3"] {
        let response = open_stream(&gate, path, &[]).await.unwrap_err();
        assert_eq!(response.head.status, 503, "{path}");
        let body = response.json();
        assert_eq!(body["detail"], "What is left is kept for other classes.", "{body}");
    }
    for _ in 0..2 {
        streams.push(open_stream(&gate, "/chat", &[]).await.unwrap());
    }
    assert_eq!(
        open_stream(&gate, "/chat", &[]).await.unwrap_err().head.status,
        503,
        "the total applies to all classes"
    );
    assert_eq!(gate.metric("forebay_admission_admitted_total", &["class=\"batch\""]).await, 2.0);
    assert_eq!(gate.metric("forebay_admission_rejected_total", &["reason=\"headroom\""]).await, 3.0);
    assert_eq!(gate.status().await["gate"]["stream_routes"][0], "GET /report/** batch");
    drop(streams);
    gate.wait_until_empty().await;
    open_stream(&gate, "/report/3", &[]).await.unwrap();
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_users_fourth_stream_gets_a_429_and_other_users_are_unaffected() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &USERS);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(open_stream(&gate, "/", &["X-User-ID: ada"]).await.unwrap());
    }
    let response = open_stream(&gate, "/", &["X-User-ID: ada"]).await.unwrap_err();
    assert_eq!(response.head.status, 429);
    let body = response.json();
    assert_eq!(body["error"], "too_many_connections");
    assert_eq!(body["message"], "Too many concurrent connections. Maximum 3 allowed.");
    assert_eq!(body["details"]["current"], 3, "{body}");
    streams.push(open_stream(&gate, "/", &["X-User-ID: bob"]).await.unwrap());
    let status = gate.status().await;
    assert_eq!(status["statistics"]["total_connections"], 4);
    let text = status.to_string() + &gate.log();
    assert!(!text.contains("\"ada\"") && !text.contains("bob"), "a user is shown without a hash");
    drop(streams);
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn without_stream_routes_every_request_takes_a_permit_and_this_is_logged() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &["--total", "1"]);
    gate.wait_for_log("no stream routes configured: every request takes a permit");
    let mut client = HttpConnection::get(gate.addr, "/anything", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    assert_eq!(HttpConnection::fetch(gate.addr, "GET", "/else", &[], "").await.head.status, 503);
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    client.response().await;
    gate.wait_until_empty().await;
    // The permit is returned when the body ends; the connection stays open.
    client.request("GET", "/anything", &[], "").await;
    upstream.head().await;
    upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").await;
    assert_eq!(client.response().await.head.status, 200);
    assert_eq!(
        gate.status().await["http"]["accepted"],
        2,
        "a chunked response that is no event stream keeps its connection"
    );
}

#[tokio::test]
async fn a_queued_client_can_disconnect_or_be_admitted() {
    let origin = StreamingUpstream::start().await;
    let settings = [("FOREBAY_ADMISSION_WAIT_MS", "20000")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "1"], &settings);
    let first = open_stream(&gate, "/", &[]).await.unwrap();
    let leaving = HttpConnection::get(gate.addr, "/", &[]).await;
    let mut waiting_client = HttpConnection::get(gate.addr, "/", &[]).await;
    until("two wait", async || gate.status().await["admission"]["waiting"] == 2).await;
    drop(leaving);
    until("one waits", async || gate.status().await["admission"]["waiting"] == 1).await;
    assert_eq!(origin.open(), 1);
    drop(first);
    assert_eq!(waiting_client.head().await.status, 200);
    assert_eq!(waiting_client.event().await, "data: 1\n\n");
    drop(waiting_client);
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn other_spellings_of_a_path_do_not_evade_its_routes_limit() {
    let origin = StreamingUpstream::start().await;
    let gate =
        ForebayProcess::start_gate(&origin.url(), &["--total", "1", "--stream-route", "GET /api/v1/stream"]);
    let _first = open_stream(&gate, "/api/v1/stream", &[]).await.unwrap();
    for path in ["/api/v1/%73tream", "//api/v1/stream/", "/api/./v1/x/../stream", "/api/v1/stream;x?y"] {
        assert_eq!(open_stream(&gate, path, &[]).await.unwrap_err().head.status, 503, "{path}");
    }
}

#[tokio::test]
async fn a_star_in_a_route_matches_every_spelling_of_its_segment() {
    let origin = StreamingUpstream::start().await;
    let routes = ["--stream-route", "GET /feeds/*/live", "--stream-route", "GET /open/**"];
    let gate = ForebayProcess::start_gate(&origin.url(), &[&["--total", "1"], &routes[..]].concat());
    let _first = open_stream(&gate, "/feeds/x/live", &[]).await.unwrap();
    for path in [
        "/feeds/./live",
        "/feeds/../live",
        "/feeds/;x/live",
        "/feeds/a\\b/live",
        "/feeds/a%2Fb/live",
        "/FEEDS/x/live",
        "/open/x/../../y",
        "/open/%2e%2e/y",
    ] {
        let refused = open_stream(&gate, path, &[]).await.map(drop).unwrap_err();
        assert_eq!(refused.head.status, 503, "{path}");
    }
    assert_eq!(origin.open(), 1, "the upstream got a refused request");
}

/// 200 concurrent clients of 100 users disconnect at different points of their requests.
#[tokio::test]
async fn after_random_disconnects_no_permit_is_held() {
    let origin = StreamingUpstream::start().await;
    let mut args = vec!["--total", "50"];
    args.extend(TRUSTED);
    let gate = ForebayProcess::start_gate_with(&origin.url(), &args, &USERS);
    let addr = gate.addr;
    let clients = (0..200_u64).map(|number| {
        tokio::spawn(async move {
            for round in 0..5 {
                let mut client = HttpConnection::connect(addr).await;
                let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User-ID: u{}\r\n\r\n", number % 100);
                let cut = if (number + round) % 3 == 0 { request.len() - 2 } else { request.len() };
                client.send(&request[..cut]).await;
                match (number * 7 + round) % 4 {
                    0 => {}
                    1 => tokio::time::sleep(Duration::from_micros(100 * (number % 50))).await,
                    _ if cut < request.len() => {}
                    2 => drop(client.try_head().await),
                    _ => {
                        if client.try_head().await.is_some_and(|head| head.status == 200) {
                            client.event().await;
                        }
                    }
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    gate.wait_until_empty().await;
    until("the upstream is empty", async || origin.open() == 0).await;
    assert_eq!(
        open_stream(&gate, "/", &["X-User-ID: u1"]).await.map(drop).map_err(|response| response.head.text),
        Ok(())
    );
}
