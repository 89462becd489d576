//! The HTTP/1.1 fast path, and connections that move from it to hyper.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::client::RawClient;
use crate::test_server::{BIG, ECHO, TestServer, on_both_runtimes, soon, until};

const GET: &str = "GET /echo HTTP/1.1\r\nhost: a\r\n\r\n";

#[test]
fn one_connection_serves_requests_of_all_kinds() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        for _ in 0..3 {
            client.send(GET).await;
            let head = client.head().await;
            assert!(
                head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("content-length: 0\r\n"),
                "{head}"
            );
            assert!(head.contains("date: ") && !head.contains("connection"), "{head}");
        }
        client.send("HEAD /big HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(client.head().await.contains(&format!("content-length: {BIG}\r\n")));
        client.send("GET /big HTTP/1.1\r\nhost: a\r\nconnection: Keep-Alive\r\n\r\n").await;
        client.head().await;
        assert!(client.exactly(BIG).await.iter().all(|&byte| byte == b'B'));
        client.send(ECHO).await;
        client.until("\r\n\r\nhello").await;
        client.send(GET).await;
        client.head().await;
        client.send("GET /live HTTP/1.1\r\nhost: a\r\n\r\n").await;
        server.stream().await.end();
        client.head().await;
        assert!(client.rest_of_chunks().await.complete);
        let counts = server.stats.counts();
        assert_eq!((counts.accepted, counts.requests, counts.live_started), (1, 8, 1));
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_both_runtimes(async || {
        for order in ["get post get get", "post get get post"] {
            let server = TestServer::default().await;
            let mut client = RawClient::connect(server.address).await;
            let requests = order.split(' ').map(|one| if one == "get" { GET } else { ECHO });
            client.send(&requests.collect::<String>()).await;
            for one in order.split(' ') {
                let body = if one == "get" { "" } else { "hello" };
                let head = client.head().await;
                assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{order}: {head}");
                assert_eq!(client.exactly(body.len()).await, body.as_bytes());
            }
        }
    });
}

#[test]
fn the_connection_closes_after_an_interim_response() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        let mut client = RawClient::ask(server.address, "GET /interim HTTP/1.1").await;
        assert_eq!(client.head().await.lines().next(), Some("HTTP/1.1 103 Early Hints"));
        assert_eq!(client.rest().await, b"");
    });
}

#[test]
fn a_request_that_arrives_during_another_is_answered_after_it() {
    on_both_runtimes(async || {
        for (next, body) in [(GET, ""), (ECHO, "hello")] {
            let mut server = TestServer::default().await;
            let mut client = RawClient::ask(server.address, "GET /dead HTTP/1.1").await;
            let mut stream = server.stream().await;
            assert!(client.head().await.contains("transfer-encoding: chunked\r\n"));
            client.send(next).await;
            stream.send("first").await;
            client.until("first\r\n").await;
            stream.end();
            client.until("0\r\n\r\n").await;
            assert!(client.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
            assert_eq!(client.exactly(body.len()).await, body.as_bytes());
        }
    });
}

#[test]
fn a_head_may_arrive_byte_by_byte() {
    on_both_runtimes(async || {
        let server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        for _ in 0..2 {
            for byte in GET.bytes() {
                client.socket.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            assert!(client.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
        }
        assert_eq!(server.stats.counts().requests, 2);
    });
}

#[test]
fn a_client_that_disconnects_while_it_waits_ends_its_request() {
    on_both_runtimes(async || {
        for leaves_by_reset in [false, true] {
            let mut server = TestServer::default().await;
            let client = RawClient::ask(server.address, "GET /hangs HTTP/1.1").await;
            let mut request = server.stream().await;
            if leaves_by_reset {
                client.reset();
            } else {
                drop(client);
            }
            request.dropped().await;
            until("the count", || server.stats.counts().open_connections == 0).await;
        }
    });
}

#[test]
fn a_client_that_sends_more_and_disconnects_ends_its_request() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::ask(server.address, "GET /hangs HTTP/1.1").await;
        let mut request = server.stream().await;
        client.send("GET /ec").await;
        // The server may read the bytes before the FIN.
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(client);
        request.dropped().await;
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_client_with_endless_requests_does_not_starve_others() {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    current.block_on(async {
        let server = TestServer::default().await;
        let (address, stop) = (server.address, Arc::new(AtomicBool::new(false)));
        let flood = {
            let stop = Arc::clone(&stop);
            tokio::task::spawn_blocking(move || flood(address, &stop))
        };
        until("the flood", || server.stats.counts().requests > 100).await;
        for _ in 0..20 {
            let mut client = RawClient::ask(server.address, "GET /echo HTTP/1.1").await;
            assert!(client.head().await.starts_with("HTTP/1.1 200"));
        }
        stop.store(true, Ordering::Relaxed);
        soon("the end of the flood", flood).await.unwrap();
    });
}

/// Sends requests of exactly one read's size as fast as possible, until `stop` is set.
fn flood(address: SocketAddr, stop: &AtomicBool) {
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let frame = "GET /echo HTTP/1.1\r\nx: \r\n\r\n".len();
    let request = format!("GET /echo HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(8 * 1024 - frame)).repeat(16);
    let mut responses = socket.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut response = [0; 1 << 16];
        while responses.read(&mut response).is_ok_and(|count| count > 0) {}
    });
    while !stop.load(Ordering::Relaxed) && socket.write_all(request.as_bytes()).is_ok() {}
    let _gone = socket.shutdown(Shutdown::Both); // fails if the server has closed
    reading.join().unwrap();
}

#[test]
fn a_client_that_disconnects_during_a_pause_of_the_body_drops_it() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::ask(server.address, "GET /dead HTTP/1.1").await;
        let mut stream = server.stream().await;
        stream.send("part").await;
        client.until("part\r\n").await;
        drop(client);
        stream.dropped().await;
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn an_idle_connection_is_closed_at_the_idle_timeout() {
    on_both_runtimes(async || {
        let timeout = Duration::from_millis(1_500);
        let server = TestServer::start(|config| config.idle_timeout = timeout).await;
        let mut client = RawClient::connect(server.address).await;
        for _ in 0..3 {
            client.send(GET).await;
            client.head().await;
            tokio::time::sleep(timeout * 2 / 5).await; // together longer than the idle timeout
        }
        let busy = std::time::Instant::now();
        client.send(GET).await;
        client.head().await;
        assert_eq!(client.rest().await, b"");
        assert!(busy.elapsed() >= timeout, "closed after {:?}", busy.elapsed());
        assert_eq!(server.stats.counts().header_timeouts, 0);
    });
}

#[test]
fn a_drain_closes_idle_connections_and_sends_close_on_busy_ones() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut idle = RawClient::connect(server.address).await;
        idle.send(GET).await;
        idle.head().await;
        let mut busy = RawClient::ask(server.address, "GET /dead HTTP/1.1").await;
        let mut stream = server.stream().await;
        busy.head().await;
        let mut waiting = RawClient::ask(server.address, "GET /late HTTP/1.1").await;
        let mut late = server.stream().await;
        server.begin_shutdown();
        assert_eq!(idle.rest().await, b"");
        stream.send("still").await;
        stream.end();
        busy.until("still\r\n0\r\n\r\n").await;
        late.end();
        let response = String::from_utf8(waiting.rest().await).unwrap();
        assert!(
            response.starts_with("HTTP/1.1 200") && response.contains("connection: close\r\n"),
            "{response}"
        );
        assert_eq!(busy.rest().await, b"");
        assert_eq!(server.ended().await.cut, 0);
    });
}

#[test]
fn a_body_of_another_length_than_declared_is_never_complete() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        for (says, sends, arrives) in [(9, "short", "short"), (3, "too long", "")] {
            let mut client = RawClient::ask(server.address, &format!("GET /says/{says} HTTP/1.1")).await;
            let mut stream = server.stream().await;
            stream.send(sends).await;
            stream.end();
            assert!(client.head().await.contains(&format!("content-length: {says}\r\n")));
            assert_eq!(client.rest().await, arrives.as_bytes());
        }
        let mut client = RawClient::ask(server.address, "GET /says/5 HTTP/1.1").await;
        let mut stream = server.stream().await;
        stream.send("right").await;
        client.until("\r\n\r\nright").await;
        stream.dropped().await;
        client.send(GET).await;
        assert!(client.head().await.starts_with("HTTP/1.1 200"));
    });
}
