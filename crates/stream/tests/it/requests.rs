//! Requests on the fast path and through hyper, and their deadlines.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::AsyncReadExt;

use crate::client::RawClient;
use crate::test_server::{BIG, ECHO, H1_AND_HYPER, TestServer, on_both_runtimes, soon, until};

#[test]
fn a_connection_is_kept_for_the_next_request_and_the_last_may_stream() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        for _ in 0..3 {
            client.send(ECHO).await;
            assert!(client.until("\r\n\r\nhello").await.starts_with("HTTP/1.1 200 OK\r\n"));
        }
        client.send("GET /live HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let mut stream = server.stream().await;
        stream.end();
        assert!(client.head().await.contains("connection: close"));
        assert!(client.rest_of_chunks().await.complete);
        let counts = server.stats.counts();
        assert_eq!((counts.accepted, counts.requests, counts.live_started), (1, 4, 1));
    });
}

#[test]
fn an_unmarked_body_is_no_live_stream_and_its_failure_is_visible() {
    on_both_runtimes(async || {
        for headers in H1_AND_HYPER {
            let mut server = TestServer::default().await;
            let mut client = RawClient::ask(server.address, &format!("GET /dead HTTP/1.1{headers}")).await;
            let mut stream = server.stream().await;
            client.head().await;
            stream.send("part").await;
            client.until("part\r\n").await;
            stream.fail().await;
            stream.dropped().await;
            assert_eq!(client.rest().await, b"");
            assert_eq!(server.stats.counts().live_started, 0);
        }
    });
}

#[test]
fn an_idle_hyper_connection_is_closed_at_the_idle_timeout() {
    on_both_runtimes(async || {
        let timeout = Duration::from_secs(1);
        let server = TestServer::start(|config| config.idle_timeout = timeout).await;
        let mut client = RawClient::connect(server.address).await;
        let mut busy = Instant::now();
        for _ in 0..3 {
            busy = Instant::now();
            client.send(ECHO).await;
            client.until("\r\n\r\nhello").await;
        }
        assert_eq!(client.rest().await, b"");
        assert!(busy.elapsed() >= timeout, "closed after {:?}", busy.elapsed());
        until("the count", || server.stats.counts().open_connections == 0).await;
        assert_eq!(server.stats.counts().header_timeouts, 0);
    });
}

#[test]
fn the_idle_timeout_does_not_end_a_longer_request() {
    on_both_runtimes(async || {
        let ask = async |headers: &str| {
            let mut server = TestServer::start(|config| {
                config.idle_timeout = Duration::from_secs(1);
                config.header_read_timeout = Duration::from_secs(1);
            })
            .await;
            let mut client = RawClient::ask(server.address, &format!("GET /dead HTTP/1.1{headers}")).await;
            let mut stream = server.stream().await;
            client.head().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            stream.send("late").await;
            stream.end();
            assert!(client.until("0\r\n\r\n").await.contains("late"));
        };
        join_all(H1_AND_HYPER.map(ask)).await;
    });
}

#[test]
fn a_client_that_does_not_read_its_response_is_closed() {
    on_both_runtimes(async || {
        for headers in H1_AND_HYPER {
            let server = TestServer::start(|config| config.write_timeout = Duration::from_millis(300)).await;
            let mut client = RawClient::connect_narrow(server.address).await;
            client.send(&format!("GET /big HTTP/1.1{headers}\r\nhost: a\r\n\r\n")).await;
            until("the count", || server.stats.counts().slow_clients == 1).await;
            until("the count", || server.stats.counts().open_connections == 0).await;
            assert_eq!(server.stats.counts().live_started, 0);
        }
    });
}

#[test]
fn while_a_response_is_written_there_is_no_idle_timeout_and_no_408() {
    on_both_runtimes(async || {
        let cases = H1_AND_HYPER.map(|headers| [(headers, ""), (headers, "GET /ec")]);
        let ask = async |(headers, next): (&str, &str)| {
            let server = TestServer::start(|config| {
                config.idle_timeout = Duration::from_secs(1);
                config.header_read_timeout = Duration::from_secs(1);
            })
            .await;
            let mut client = RawClient::connect_narrow(server.address).await;
            client.send(&format!("GET /big HTTP/1.1{headers}\r\nhost: a\r\n\r\n")).await;
            client.head().await;
            client.send(next).await;
            tokio::time::sleep(Duration::from_secs(2)).await; // longer than both timeouts
            assert!(client.exactly(BIG).await.iter().all(|&byte| byte == b'B'));
            let after = String::from_utf8(client.rest().await).unwrap();
            assert_eq!(after.starts_with("HTTP/1.1 408"), !next.is_empty(), "{after}");
            assert_eq!(server.stats.counts().slow_clients, 0);
        };
        join_all(cases.into_iter().flatten().map(ask)).await;
    });
}

#[test]
fn over_http_1_0_a_body_that_fails_or_panics_or_is_cut_ends_with_a_reset() {
    on_both_runtimes(async || {
        for end in ["by itself", "by an error", "by a panic", "by a drain"] {
            let mut server =
                TestServer::start(|config| config.drain_timeout = Duration::from_millis(100)).await;
            let mut client = RawClient::ask(server.address, "GET /dead HTTP/1.0").await;
            let mut stream = server.stream().await;
            client.head().await;
            stream.send("part").await;
            client.until("part").await;
            match end {
                "by itself" => stream.end(),
                "by an error" => stream.fail().await,
                "by a panic" => stream.panic().await,
                _ => server.begin_shutdown(),
            }
            stream.dropped().await;
            let read = soon("the end", client.socket.read(&mut [0; 1])).await;
            let is_reset = read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
            assert_eq!(is_reset, end != "by itself", "ended {end}");
        }
    });
}

#[test]
fn over_http_1_0_a_client_that_reads_late_gets_the_complete_body() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send("GET /dead HTTP/1.0\r\n\r\n").await;
        let mut stream = server.stream().await;
        stream.send(vec![b'x'; 100_000]).await;
        stream.end();
        until("the close", || server.stats.counts().open_connections == 0).await;
        client.head().await;
        assert_eq!(client.rest().await.len(), 100_000);
    });
}

#[test]
fn a_connection_beyond_the_limit_is_refused_and_open_ones_continue() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.max_connections = 2).await;
        let mut streaming = RawClient::ask(server.address, "GET /live HTTP/1.1").await;
        let mut stream = server.stream().await;
        streaming.head().await;
        let mut idle = RawClient::connect(server.address).await;
        idle.send(ECHO).await;
        idle.until("hello").await;

        let mut refused = RawClient::ask(server.address, "GET /live HTTP/1.1").await;
        let response = String::from_utf8(refused.rest().await).unwrap();
        assert!(response.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{response}");
        assert_eq!(server.stats.counts().refused, 1);

        stream.send("undisturbed").await;
        streaming.until("undisturbed\r\n").await;
        drop(idle);
        until("a free connection", || server.stats.counts().open_connections == 1).await;
        let mut next = RawClient::connect(server.address).await;
        next.send(ECHO).await;
        next.until("hello").await;
        stream.end();
    });
}
