//! Hostile and broken clients.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::client::RawClient;
use crate::test_server::{H1_AND_HYPER, TestServer, on_both_runtimes, until};

#[test]
fn a_head_that_trickles_in_times_out_with_a_408() {
    on_both_runtimes(async || {
        let server =
            TestServer::start(|config| config.header_read_timeout = Duration::from_millis(300)).await;
        let mut client = RawClient::connect(server.address).await;
        client.send("GET /echo HTTP/1.1\r\n").await;
        let mut sent = 0;
        // Each byte arrives long before the deadline of the whole head.
        while sent < 10_000 && client.socket.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            sent += 1;
            if server.stats.counts().header_timeouts == 1 {
                break;
            }
        }
        assert!(sent < 10_000);
        let response = String::from_utf8(client.rest().await).unwrap();
        assert!(
            response.is_empty() || response.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
            "{response}"
        );
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn half_a_head_and_then_nothing_gets_a_408() {
    on_both_runtimes(async || {
        // Long enough for each client to send its bytes first.
        let server = TestServer::start(|config| config.header_read_timeout = Duration::from_secs(1)).await;
        let mut clients = Vec::new();
        for begin in ["GET /echo HTTP/1.1\r\nhost:", "G", "P", "PR"] {
            let mut client = RawClient::connect(server.address).await;
            client.send(begin).await;
            clients.push((begin, client));
        }
        for (begin, mut client) in clients {
            let response = String::from_utf8(client.rest().await).unwrap();
            assert!(response.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{begin}: {response}");
        }
        assert_eq!(server.stats.counts().header_timeouts, 4);
    });
}

#[test]
fn half_an_http2_preface_gets_no_http1_response() {
    on_both_runtimes(async || {
        let server =
            TestServer::start(|config| config.header_read_timeout = Duration::from_millis(100)).await;
        for begin in ["PRI", "PRI * HTTP/2"] {
            let mut client = RawClient::connect(server.address).await;
            client.send(begin).await;
            assert_eq!(client.rest().await, b"");
        }
        assert_eq!(server.stats.counts().header_timeouts, 2);
    });
}

#[test]
fn a_head_that_began_during_another_request_has_the_head_deadline() {
    on_both_runtimes(async || {
        for headers in H1_AND_HYPER {
            let timeout = Duration::from_secs(1);
            let mut server = TestServer::start(|config| config.header_read_timeout = timeout).await;
            let mut client = RawClient::ask(server.address, &format!("GET /dead HTTP/1.1{headers}")).await;
            let mut stream = server.stream().await;
            client.head().await;
            client.send("GET /ec").await;
            stream.send("one").await;
            client.until("one\r\n").await;
            stream.end();
            client.until("0\r\n\r\n").await;
            assert!(client.rest().await.starts_with(b"HTTP/1.1 408"), "after the idle time");
            assert_eq!(server.stats.counts().header_timeouts, 1);
        }
    });
}

#[test]
fn the_second_head_of_a_connection_has_a_deadline_too() {
    on_both_runtimes(async || {
        let server = TestServer::start(|config| config.header_read_timeout = Duration::from_secs(1)).await;
        let mut client = RawClient::connect(server.address).await;
        client.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok").await;
        client.until("\r\n\r\nok").await;
        client.send("GET /echo").await;
        assert!(client.rest().await.starts_with(b"HTTP/1.1 408"));
        assert_eq!(server.stats.counts().header_timeouts, 1);
    });
}

#[test]
fn a_silent_connection_is_closed() {
    on_both_runtimes(async || {
        let server =
            TestServer::start(|config| config.header_read_timeout = Duration::from_millis(100)).await;
        let mut client = RawClient::connect(server.address).await;
        assert_eq!(client.rest().await, b"");
        assert_eq!(server.stats.counts().header_timeouts, 1);
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_body_that_stops_arriving_ends_the_connection() {
    on_both_runtimes(async || {
        let server = TestServer::start(|config| config.body_read_timeout = Duration::from_millis(200)).await;
        let mut client = RawClient::connect(server.address).await;
        client.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhello").await;
        client.rest().await;
        until("the counts", || {
            (server.stats.counts().body_timeouts, server.stats.counts().open_connections) == (1, 0)
        })
        .await;
    });
}

#[test]
fn heads_beyond_the_limits_get_a_431() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        let large = format!("x-large: {}\r\n", "v".repeat(33 * 1024));
        let many: String = (0..101).map(|i| format!("x-{i}: v\r\n")).collect();
        for (round, headers) in (1..).zip([large, many]) {
            let mut client = RawClient::connect(server.address).await;
            client.send(&format!("GET /echo HTTP/1.1\r\n{headers}\r\n")).await;
            let response = client.head().await;
            assert!(response.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{response}");
            client.rest().await;
            until("the count", || server.stats.counts().oversized_heads == round).await;
        }
        assert_eq!(server.stats.counts().requests, 0);
    });
}

#[test]
fn the_431_of_a_large_head_has_the_body_that_the_config_gives_it() {
    on_both_runtimes(async || {
        const JSON: &str = r#"{"message":"use POST"}"#;
        let server = TestServer::start(|config| config.oversized_head_json = Some(JSON)).await;
        let large = format!("GET /echo?{} HTTP/1.1\r\nhost: a\r\n\r\n", "v".repeat(40 * 1024));
        for first in [
            "",
            "GET /echo HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        ] {
            let mut client = RawClient::connect(server.address).await;
            if !first.is_empty() {
                client.send(first).await;
                assert!(client.head().await.starts_with("HTTP/1.1 200 "));
            }
            client.send(&large).await;
            let response = String::from_utf8(client.rest().await).unwrap();
            let (head, body) = response.split_at(response.rfind("\r\n\r\n").unwrap() + 4);
            assert!(head.contains("HTTP/1.1 431 ") && head.contains("content-length: 22\r\n"), "{response}");
            assert_eq!(body, JSON);
        }
    });
}

#[test]
fn an_endless_head_gets_a_431_while_more_of_it_arrives() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        client.send("GET /echo HTTP/1.1\r\nx-endless: ").await;
        let piece = "v".repeat(8 * 1024);
        let mut sent = 0;
        while server.stats.counts().oversized_heads == 0 && sent < 1_000 {
            if client.socket.write_all(piece.as_bytes()).await.is_err() {
                break;
            }
            sent += 1;
            tokio::task::yield_now().await;
        }
        until("the count", || server.stats.counts().oversized_heads == 1).await;
        assert!(client.rest().await.starts_with(b"HTTP/1.1 431"));
    });
}

#[test]
fn garbage_gets_a_400() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        let garbage = ["\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", "GET /echo HTTP/1.1\r\nno colon\r\n\r\n"];
        for (round, garbage) in (1..).zip(garbage) {
            let mut client = RawClient::connect(server.address).await;
            client.send(garbage).await;
            let response = client.head().await;
            assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
            client.rest().await;
            until("the count", || server.stats.counts().bad_requests == round).await;
        }
        for garbage in
            ["GET / HTTP/9.9\r\n\r\n", "GET /echo HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"]
        {
            let mut client = RawClient::connect(server.address).await;
            client.send(garbage).await;
            let response = client.rest().await;
            assert!(!response.starts_with(b"HTTP/1.1 200"), "{}", response.escape_ascii());
        }
        assert_eq!(server.stats.counts().requests, 0);
    });
}

#[test]
fn a_client_that_disconnects_in_the_middle_of_a_head_leaves_nothing() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        for begin in ["", "P", "GET /echo HTTP/1.1\r\nhost"] {
            let mut client = RawClient::connect(server.address).await;
            client.send(begin).await;
            drop(client);
        }
        until("the counts", || {
            (server.stats.counts().accepted, server.stats.counts().open_connections) == (3, 0)
        })
        .await;
    });
}
