//! Drain: which requests and streams may finish, and which are aborted.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{DecodedChunks, RawClient};
use crate::test_server::{ECHO, SOON, TestServer, on_both_runtimes, soon, until};

/// Waits until the listener is closed, which shows that the drain has started.
pub(crate) async fn listener_closed(address: SocketAddr) {
    let is_refused = async || {
        let connected = timeout(Duration::from_millis(20), TcpStream::connect(address)).await;
        connected.is_ok_and(|connected| connected.is_err())
    };
    soon("the listener's end", async { while !is_refused().await {} }).await;
}

#[test]
fn a_server_without_connections_ends_at_once() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        server.begin_shutdown();
        let summary = server.ended().await;
        assert_eq!((summary.open, summary.cut), (0, 0));
    });
}

#[test]
fn idle_connections_close_and_no_new_one_is_accepted() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut silent = RawClient::connect(server.address).await;
        let mut idle = RawClient::connect(server.address).await;
        idle.send(ECHO).await;
        idle.until("hello").await;
        until("both", || server.stats.counts().open_connections == 2).await;
        let address = server.address;
        server.begin_shutdown();
        assert_eq!((silent.rest().await, idle.rest().await), (vec![], vec![]));
        let summary = server.ended().await;
        assert_eq!((summary.open, summary.cut), (2, 0));
        assert!(TcpStream::connect(address).await.is_err());
    });
}

#[test]
fn running_requests_and_streams_may_finish() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut streaming = RawClient::ask(server.address, "GET /live HTTP/1.1").await;
        let mut stream = server.stream().await;
        let mut asking = RawClient::ask(server.address, "GET /dead HTTP/1.1").await;
        let mut request = server.stream().await;
        streaming.head().await;
        asking.head().await;
        server.begin_shutdown();
        stream.send("still open").await;
        streaming.until("still open\r\n").await;
        stream.end();
        request.send("this too").await;
        request.end();
        assert!(streaming.rest_of_chunks().await.complete);
        assert_eq!(asking.rest_of_chunks().await, DecodedChunks { data: b"this too".into(), complete: true });
        drop((streaming, asking));
        let summary = server.ended().await;
        assert_eq!((summary.open, summary.cut), (2, 0));
    });
}

#[test]
fn a_request_that_is_answered_during_the_drain_may_still_stream() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        client.send("POST /live HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe").await;
        until("the request", || server.stats.counts().requests == 1).await;
        server.begin_shutdown();
        client.send("llo").await;
        let mut stream = server.stream().await;
        stream.end();
        client.head().await;
        assert!(client.rest_of_chunks().await.complete);
        assert_eq!(server.stats.counts().live_started, 1);
    });
}

#[test]
fn streams_left_at_the_deadline_are_aborted_without_the_last_chunk() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.drain_timeout = Duration::from_millis(200)).await;
        let mut clients = Vec::new();
        let mut streams = Vec::new();
        for path in ["/live", "/dead"] {
            let mut client = RawClient::ask(server.address, &format!("GET {path} HTTP/1.1")).await;
            streams.push(server.stream().await);
            client.head().await;
            clients.push(client);
        }
        let hanging = RawClient::ask(server.address, "GET /hangs HTTP/1.1").await;
        streams.push(server.stream().await);
        let stats = server.stats.clone();
        server.begin_shutdown();
        let summary = server.ended().await;
        assert_eq!((summary.open, summary.cut), (3, 3));
        assert!(summary.took >= Duration::from_millis(200));
        let counts = stats.counts();
        assert_eq!((counts.open_connections, counts.live_streams, counts.live_aborted), (0, 0, 1));
        for mut stream in streams {
            stream.dropped().await;
        }
        for mut client in clients {
            assert_eq!(client.rest().await, b"");
        }
        drop(hanging);
    });
}

/// Sends a request, if there is one, and reads its response.
async fn exchange(client: &mut RawClient, request: &str) {
    client.send(request).await;
    match request {
        "" => {}
        ECHO => drop(client.until("hello").await),
        _ => drop(client.head().await),
    }
}

/// Encodes an HTTP/2 request: preface, SETTINGS, one HEADERS frame.
fn h2_request() -> Vec<u8> {
    let block = [&b"\x82\x86\x04\x05/echo\x01\x01a"[..]].concat();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let headers = [0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1];
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &headers, &block].concat()
}

/// Decodes the type, stream and payload of each frame.
fn h2_frames(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, next) = rest.split_at(length.min(rest.len()));
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        frames.push((head[3], stream, payload.to_vec()));
        bytes = next;
    }
    frames
}

#[test]
fn a_request_in_transit_when_the_drain_begins_is_answered() {
    on_both_runtimes(async || {
        // The server ends long before the grace, so answered connections are not waited for.
        let mut server = TestServer::start(|config| {
            (config.drain_grace, config.drain_timeout) = (SOON * 2, SOON * 4);
            config.header_read_timeout = SOON * 2;
        })
        .await;
        let get = "GET /echo HTTP/1.1\r\nhost: a\r\n\r\n";
        // Exchanged before the drain; part of a request sent before it; the rest, sent after.
        let cases = [
            ("", "", get),
            ("", &get[..1], &get[1..]),
            ("", &get[..12], &get[12..]),
            ("", "", ECHO),
            (get, "", get),
            (get, "", ECHO),
            (get, &get[..12], &get[12..]),
            (ECHO, "", get),
            (ECHO, &get[..12], &get[12..]),
        ];
        let mut clients = Vec::new();
        for (exchanged, before, after) in cases {
            let mut client = RawClient::connect(server.address).await;
            exchange(&mut client, exchanged).await;
            client.send(before).await;
            clients.push((client, exchanged, before, after));
        }
        let mut h2 = RawClient::connect(server.address).await;
        until("all", || server.stats.counts().open_connections == 10).await;
        let address = server.address;
        server.begin_shutdown();
        listener_closed(address).await;
        for (client, .., after) in &mut clients {
            client.send(after).await;
        }
        soon("a write", h2.socket.write_all(&h2_request())).await.unwrap();
        for (mut client, exchanged, before, after) in clients {
            let response = String::from_utf8(client.rest().await).unwrap();
            assert!(
                response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("connection: close\r\n"),
                "{exchanged:?}, {before:?}, {after:?}: {response:?}"
            );
        }
        let frames = h2_frames(&h2.rest().await);
        let is_response = |(kind, stream, payload): &(u8, u32, Vec<u8>)| {
            (*kind, *stream, payload.first()) == (1, 1, Some(&0x88))
        };
        assert!(frames.iter().any(is_response), "{frames:?}");
        assert!(frames.iter().any(|(kind, ..)| *kind == 7), "no GOAWAY in {frames:?}");
        assert_eq!(server.ended().await.cut, 0);
    });
}

#[tokio::test]
async fn connections_in_the_backlog_are_answered() {
    let mut server = TestServer::start(|config| config.drain_grace = SOON).await;
    server.begin_shutdown();
    // No await in between: the server's task, on this thread, sees the shutdown first.
    let connect = |_| {
        let mut client = std::net::TcpStream::connect(server.address).unwrap();
        client.write_all(b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        client
    };
    let clients: Vec<_> = (0..50).map(connect).collect();
    let reading = tokio::task::spawn_blocking(move || {
        for mut client in clients {
            let mut response = String::new();
            client.read_to_string(&mut response).unwrap();
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response:?}");
        }
    });
    reading.await.unwrap();
    let summary = server.ended().await;
    assert_eq!((summary.open, summary.cut), (50, 0));
}

#[test]
fn after_the_grace_an_incomplete_head_gets_a_503_and_an_idle_connection_closes() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.drain_grace = Duration::from_millis(50)).await;
        let get = "GET /echo HTTP/1.1\r\nhost: a\r\n\r\n";
        let mut clients = Vec::new();
        for (exchanged, started) in [
            ("", ""),
            ("", "P"),
            ("", "GET /echo HT"),
            ("", "PRI *"),
            (get, ""),
            (get, "GE"),
            (ECHO, ""),
            (ECHO, "GE"),
        ] {
            let mut client = RawClient::connect(server.address).await;
            exchange(&mut client, exchanged).await;
            client.send(started).await;
            clients.push((client, exchanged, started));
        }
        until("all", || server.stats.counts().open_connections == 8).await;
        server.begin_shutdown();
        for (mut client, exchanged, started) in clients {
            let response = String::from_utf8(client.rest().await).unwrap();
            if matches!(started, "" | "PRI *") {
                assert_eq!(response, "", "after {exchanged:?} and {started:?}");
            } else {
                assert!(
                    response.starts_with("HTTP/1.1 503 "),
                    "after {exchanged:?} and {started:?}: {response:?}"
                );
                assert!(
                    response.contains("connection: close\r\n") && response.ends_with("shutting down."),
                    "{response}"
                );
            }
        }
        let stats = server.stats.clone();
        assert_eq!(server.ended().await.cut, 0);
        assert_eq!(stats.counts().header_timeouts, 0);
    });
}
