//! Permits: who gets one, who is refused, and that every one comes back.

use std::time::Duration;

use crate::gate::Gate;
use crate::origin::{Origin, Streams};
use crate::startup::write;
use crate::wire::{Answer, Client, until};

/// Opens a stream and waits for its first event.
pub(crate) async fn open(gate: &Gate, path: &str, lines: &[&str]) -> Result<Client, Answer> {
    let mut client = Client::get(gate.addr, path, lines).await;
    let head = client.head().await;
    if head.status != 200 {
        let length = head.header("content-length").unwrap().parse().unwrap();
        let body = client.take(length).await;
        return Err(Answer { head, body });
    }
    assert_eq!(client.event().await, "data: 1\n\n");
    Ok(client)
}

/// Users as a proxy on this machine names them.
pub(crate) const USERS: [(&str, &str); 1] = [("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID")];
pub(crate) const TRUSTED: [&str; 2] = ["--trusted-proxy", "127.0.0.1"];

#[tokio::test]
async fn beyond_the_total_is_a_503_and_a_place_that_comes_free_is_given_again() {
    let origin = Streams::start().await;
    let gate = Gate::start(&origin.url(), &["--total", "3", "--stream-route", "GET /stream"]);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(open(&gate, "/stream", &[]).await.unwrap());
    }
    let answer = open(&gate, "/stream", &["X-Thread-ID: t-9"]).await.unwrap_err();
    assert_eq!(answer.head.status, 503);
    assert_eq!(answer.head.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.head.header("x-thread-id"), Some("t-9"));
    assert!(answer.head.header("retry-after").is_some(), "{}", answer.head.text);
    assert_eq!(answer.json()["error"], "service_unavailable");
    assert_eq!(origin.open(), 3, "the upstream never heard of it");

    let plain = open(&gate, "/other", &[]).await.unwrap();
    assert_eq!(gate.status().await["statistics"]["total_connections"], 3, "other routes take no permit");
    drop((streams.pop(), plain));
    until("a place is free", async || open(&gate, "/stream", &[]).await.is_ok()).await;
    drop(streams);
    gate.empty().await;
    until("the upstream is empty", async || origin.open() == 0).await;
}

#[tokio::test]
async fn a_route_s_class_stops_before_the_total_and_leaves_the_rest_to_others() {
    let origin = Streams::start().await;
    let text = "[gate]\nstream_routes = [\"GET /report/** batch\", \"GET /chat/**\"]\n\
                [admission]\ntotal = 4\nclass_percent = { batch = 50 }\n";
    let path = write("classes.toml", text);
    let gate = Gate::start(&origin.url(), &["--config", path.to_str().unwrap()]);
    let mut streams = Vec::new();
    for path in ["/report/1", "/report/2"] {
        streams.push(open(&gate, path, &[]).await.unwrap());
    }
    // Where readings of a path differ, the class that stops first holds.
    for path in ["/report/3", "/chat/../%72eport", "/chat/../report/3"] {
        let answer = open(&gate, path, &[]).await.unwrap_err();
        assert_eq!(answer.head.status, 503, "{path}");
        let body = answer.json();
        assert_eq!(body["detail"], "What is left is kept for other classes.", "{body}");
    }
    for _ in 0..2 {
        streams.push(open(&gate, "/chat", &[]).await.unwrap());
    }
    assert_eq!(open(&gate, "/chat", &[]).await.unwrap_err().head.status, 503, "the total holds for all");
    assert_eq!(gate.metric("forebay_admission_admitted_total", &["class=\"batch\""]).await, 2.0);
    assert_eq!(gate.metric("forebay_admission_rejected_total", &["reason=\"headroom\""]).await, 3.0);
    assert_eq!(gate.status().await["gate"]["stream_routes"][0], "GET /report/** batch");
    drop(streams);
    gate.empty().await;
    open(&gate, "/report/3", &[]).await.unwrap();
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_user_s_fourth_is_a_429_and_other_users_are_unaffected() {
    let origin = Streams::start().await;
    let gate = Gate::start_with(&origin.url(), &TRUSTED, &USERS);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(open(&gate, "/", &["X-User-ID: ada"]).await.unwrap());
    }
    let answer = open(&gate, "/", &["X-User-ID: ada"]).await.unwrap_err();
    assert_eq!(answer.head.status, 429);
    let body = answer.json();
    assert_eq!(body["error"], "too_many_connections");
    assert_eq!(body["message"], "Too many concurrent connections. Maximum 3 allowed.");
    assert_eq!(body["details"]["current"], 3, "{body}");
    streams.push(open(&gate, "/", &["X-User-ID: bob"]).await.unwrap());
    let status = gate.status().await;
    assert_eq!(status["statistics"]["total_connections"], 4);
    let text = status.to_string() + &gate.log();
    assert!(!text.contains("\"ada\"") && !text.contains("bob"), "users are hashed wherever operators look");
    drop(streams);
    gate.empty().await;
}

#[tokio::test]
async fn where_no_route_is_named_everything_takes_a_permit_and_the_start_says_so() {
    let origin = Origin::start().await;
    let gate = Gate::start(&origin.url(), &["--total", "1"]);
    gate.wait_for_log("no stream routes configured: every request takes a permit");
    let mut client = Client::get(gate.addr, "/anything", &[]).await;
    let mut upstream = origin.accept().await;
    upstream.head().await;
    assert_eq!(Client::ask(gate.addr, "GET", "/else", &[], "").await.head.status, 503);
    upstream.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    client.answer().await;
    gate.empty().await;
    // The permit is back with the body's end, and the connection goes on.
    client.request("GET", "/anything", &[], "").await;
    upstream.head().await;
    upstream.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").await;
    assert_eq!(client.answer().await.head.status, 200);
    assert_eq!(
        gate.status().await["http"]["accepted"],
        2,
        "a chunked answer that is no stream of events kept it"
    );
}

#[tokio::test]
async fn who_waits_in_the_queue_may_leave_or_be_let_in() {
    let origin = Streams::start().await;
    let settings = [("FOREBAY_ADMISSION_WAIT_MS", "20000")];
    let gate = Gate::start_with(&origin.url(), &["--total", "1"], &settings);
    let first = open(&gate, "/", &[]).await.unwrap();
    let leaves = Client::get(gate.addr, "/", &[]).await;
    let mut stays = Client::get(gate.addr, "/", &[]).await;
    until("two wait", async || gate.status().await["admission"]["waiting"] == 2).await;
    drop(leaves);
    until("one waits", async || gate.status().await["admission"]["waiting"] == 1).await;
    assert_eq!(origin.open(), 1);
    drop(first);
    assert_eq!(stays.head().await.status, 200);
    assert_eq!(stays.event().await, "data: 1\n\n");
    drop(stays);
    gate.empty().await;
}

#[tokio::test]
async fn a_way_around_the_route_s_spelling_is_none_around_its_limit() {
    let origin = Streams::start().await;
    let gate = Gate::start(&origin.url(), &["--total", "1", "--stream-route", "GET /api/v1/stream"]);
    let _first = open(&gate, "/api/v1/stream", &[]).await.unwrap();
    for path in ["/api/v1/%73tream", "//api/v1/stream/", "/api/./v1/x/../stream", "/api/v1/stream;x?y"] {
        assert_eq!(open(&gate, path, &[]).await.unwrap_err().head.status, 503, "{path}");
    }
}

#[tokio::test]
async fn a_star_in_a_route_takes_every_spelling_of_its_segment() {
    let origin = Streams::start().await;
    let routes = ["--stream-route", "GET /feeds/*/live", "--stream-route", "GET /open/**"];
    let gate = Gate::start(&origin.url(), &[&["--total", "1"], &routes[..]].concat());
    let _first = open(&gate, "/feeds/x/live", &[]).await.unwrap();
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
        let refused = open(&gate, path, &[]).await.map(drop).unwrap_err();
        assert_eq!(refused.head.status, 503, "{path}");
    }
    assert_eq!(origin.open(), 1, "the upstream heard of none of them");
}

/// 200 clients of 100 users come and go at once, at random places of their requests.
#[tokio::test]
async fn after_a_tumult_the_count_is_zero() {
    let origin = Streams::start().await;
    let mut args = vec!["--total", "50"];
    args.extend(TRUSTED);
    let gate = Gate::start_with(&origin.url(), &args, &USERS);
    let addr = gate.addr;
    let clients = (0..200_u64).map(|number| {
        tokio::spawn(async move {
            for round in 0..5 {
                let mut client = Client::connect(addr).await;
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
    gate.empty().await;
    until("the upstream is empty", async || origin.open() == 0).await;
    assert_eq!(
        open(&gate, "/", &["X-User-ID: u1"]).await.map(drop).map_err(|answer| answer.head.text),
        Ok(())
    );
}
