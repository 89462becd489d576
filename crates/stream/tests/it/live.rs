//! Live streams that own their socket: what the client sees, and when the body is dropped.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::client::{DecodedChunks, RawClient};
use crate::test_server::{BIG, TestServer, on_both_runtimes, soon, until};

const LIVE: &str = "GET /live HTTP/1.1";

#[test]
fn a_live_stream_is_a_head_its_chunks_as_they_come_and_the_last_chunk() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::ask(server.address, LIVE).await;
        let mut stream = server.stream().await;
        let head = client.head().await;
        let lines: Vec<_> = head.split("\r\n").collect();
        assert_eq!(lines[..2], ["HTTP/1.1 200 OK", "x-path: /live"]);
        assert!(lines[2].starts_with("date: ") && lines[2].ends_with(" GMT"), "{head}");
        assert_eq!(lines[3..], ["transfer-encoding: chunked", "connection: close", "", ""]);
        assert_eq!(stream.peer, client.socket.local_addr().unwrap());

        stream.send("data: 1\n\n").await;
        assert_eq!(client.until("\n\n\r\n").await, "9\r\ndata: 1\n\n\r\n");
        stream.send("data: 2\n\n").await;
        assert_eq!(client.until("\n\n\r\n").await, "9\r\ndata: 2\n\n\r\n");
        assert_eq!(server.stats.counts().live_streams, 1);
        stream.end();
        stream.dropped().await;
        assert_eq!(client.rest().await, b"0\r\n\r\n");

        drop(client);
        until("the end of the stream", || server.stats.counts().live_completed == 1).await;
        until("the end of the connection", || server.stats.counts().open_connections == 0).await;
        let counts = server.stats.counts();
        assert_eq!((counts.live_started, counts.live_streams, counts.requests), (1, 0, 1));
    });
}

#[test]
fn a_client_that_closes_half_closes_or_resets_drops_the_body_of_an_idle_stream() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        for round in 1..=3 {
            let mut client = RawClient::ask(server.address, LIVE).await;
            let mut stream = server.stream().await;
            client.head().await;
            match round {
                1 => drop(client),
                2 => {
                    client.socket.shutdown().await.unwrap();
                    assert!(!client.rest_of_chunks().await.complete);
                }
                _ => client.reset(),
            }
            stream.dropped().await;
            until("the count", || server.stats.counts().live_client_closed == round).await;
        }
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_client_that_disconnects_before_the_response_drops_the_request() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let client = RawClient::ask(server.address, "GET /hangs HTTP/1.1").await;
        let mut request = server.stream().await;
        drop(client);
        request.dropped().await;
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_body_that_fails_or_panics_ends_without_the_last_chunk() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        for panics in [false, true] {
            let mut client = RawClient::ask(server.address, LIVE).await;
            let mut stream = server.stream().await;
            client.head().await;
            stream.send("before").await;
            client.until("before\r\n").await;
            if panics {
                stream.panic().await
            } else {
                stream.fail().await
            }
            stream.dropped().await;
            assert_eq!(client.rest().await, b"");
        }
        until("the counts", || {
            let counts = server.stats.counts();
            (counts.live_failed, counts.live_aborted, counts.open_connections) == (1, 1, 0)
        })
        .await;
    });
}

#[test]
fn data_before_a_failure_still_reaches_the_client() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::ask(server.address, LIVE).await;
        let stream = server.stream().await;
        stream.send("one").await;
        stream.send("two").await;
        stream.fail().await;
        client.head().await;
        assert_eq!(client.rest_of_chunks().await, DecodedChunks { data: b"onetwo".into(), complete: false });
    });
}

#[test]
fn a_client_that_never_reads_is_closed_and_nothing_is_buffered_beyond_the_bound() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.write_timeout = Duration::from_millis(300)).await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send("GET /live HTTP/1.1\r\nhost: test\r\n\r\n").await;
        let mut stream = server.stream().await;
        let chunk = bytes::Bytes::from(vec![b'x'; 100_000]);
        let sending = async {
            let mut sent = 0;
            while stream.try_send(chunk.clone()).await {
                sent += 1;
                assert!(sent < 200, "20 MB were buffered for a client that reads nothing");
            }
        };
        soon("the close", sending).await;
        stream.dropped().await;
        until("the count", || server.stats.counts().live_write_timeouts == 1).await;
        assert_eq!(server.stats.counts().slow_clients, 1);
        client.head().await;
        assert!(!client.rest_of_chunks().await.complete);
    });
}

#[test]
fn a_client_that_reads_slowly_gets_every_byte() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.write_timeout = Duration::from_secs(15)).await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send("GET /live HTTP/1.1\r\nhost: test\r\n\r\n").await;
        let mut stream = server.stream().await;
        let chunks = (0..400_usize).map(|i| vec![i as u8; [1, 700, 1024, 1025, 9_000][i % 5]]);
        let chunks: Vec<_> = chunks.collect();
        let sending = async {
            for chunk in &chunks {
                assert!(stream.try_send(chunk.clone().into()).await);
            }
            stream.end();
        };
        let reading = async {
            client.head().await;
            client.rest_of_chunks().await
        };
        let ((), chunked) = soon("the bytes", futures_util::future::join(sending, reading)).await;
        assert_eq!(chunked, DecodedChunks { data: chunks.concat(), complete: true });
    });
}

#[test]
fn a_client_that_leaves_while_a_write_is_blocked_drops_the_body_at_once() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send("GET /live HTTP/1.1\r\nhost: test\r\n\r\n").await;
        let mut stream = server.stream().await;
        stream.send(vec![b'x'; 16 << 20]).await;
        client.head().await;
        client.reset();
        stream.dropped().await;
        until("the count", || server.stats.counts().live_client_closed == 1).await;
    });
}

#[test]
fn bytes_from_the_client_are_discarded_up_to_a_bound() {
    on_both_runtimes(async || {
        let mut server = TestServer::start(|config| config.max_discarded_bytes = 10_000).await;
        let mut client = RawClient::ask(server.address, LIVE).await;
        let mut stream = server.stream().await;
        client.head().await;
        client.send(&"x".repeat(9_000)).await;
        stream.send("still here").await;
        client.until("still here\r\n").await;
        client.send(&"x".repeat(9_000)).await;
        stream.dropped().await;
        until("the count", || server.stats.counts().live_excess_input == 1).await;
        assert!(!client.rest_of_chunks().await.complete);
    });
}

#[test]
fn a_request_pipelined_after_a_stream_is_not_answered() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        let request = "GET /live HTTP/1.1\r\nhost: test\r\n\r\n";
        client.send(&request.repeat(2)).await;
        let mut stream = server.stream().await;
        client.head().await;
        stream.send("only this").await;
        stream.end();
        assert_eq!(
            client.rest_of_chunks().await,
            DecodedChunks { data: b"only this".into(), complete: true }
        );
        assert_eq!(server.stats.counts().requests, 1);
    });
}

#[test]
fn a_stream_starts_after_all_earlier_responses_are_written() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send("GET /big HTTP/1.1\r\nhost: a\r\n\r\nGET /live HTTP/1.1\r\nhost: b\r\n\r\n").await;
        assert!(client.head().await.contains(&format!("content-length: {BIG}\r\n")));
        assert!(client.exactly(BIG).await.iter().all(|&byte| byte == b'B'));
        let mut stream = server.stream().await;
        stream.send("live").await;
        stream.end();
        assert!(client.head().await.contains("transfer-encoding: chunked\r\n"));
        assert_eq!(client.rest_of_chunks().await, DecodedChunks { data: b"live".into(), complete: true });
        assert_eq!(server.stats.counts().live_started, 1);
    });
}

#[test]
fn a_post_whose_body_was_read_becomes_a_live_stream() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let framings = [
            "content-length: 5\r\n\r\nhello",
            "transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        ];
        for (round, framing) in (1..).zip(framings) {
            let mut client = RawClient::connect(server.address).await;
            client.send(&format!("POST /live HTTP/1.1\r\nhost: test\r\n{framing}")).await;
            let mut stream = server.stream().await;
            assert_eq!(stream.request_body, "hello");
            client.head().await;
            stream.send("response").await;
            stream.end();
            assert_eq!(
                client.rest_of_chunks().await,
                DecodedChunks { data: b"response".into(), complete: true }
            );
            assert_eq!(server.stats.counts().live_started, round);
        }
    });
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it_before_its_stream() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        let head = "POST /live HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
        client.send(head).await;
        assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.send("hello").await;
        let mut stream = server.stream().await;
        stream.end();
        assert!(client.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(client.rest_of_chunks().await.complete);
        assert_eq!(server.stats.counts().live_started, 1);
    });
}

#[test]
fn an_unread_request_body_keeps_the_stream_with_hyper() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        for path in ["/unread", "/held"] {
            let mut client = RawClient::connect(server.address).await;
            // The rest of the body never arrives, so hyper doesn't read and can't see a disconnect.
            client
                .send(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\nhello"))
                .await;
            let mut stream = server.stream().await;
            assert!(client.head().await.contains("transfer-encoding: chunked\r\n"));
            stream.send("event").await;
            client.until("event\r\n").await;
            assert_eq!(server.stats.counts().live_started, 0);
            drop(client);
            stream.dropped().await;
        }
        until("the count", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn head_requests_http_1_0_and_responses_without_a_body_are_no_live_streams() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        for request in ["HEAD /live HTTP/1.1", "GET /empty HTTP/1.1"] {
            let mut client = RawClient::ask(server.address, request).await;
            let mut stream = server.stream().await;
            client.head().await;
            stream.dropped().await;
            client.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok").await;
            client.until("\r\n\r\nok").await; // the connection was kept
        }
        let mut client = RawClient::ask(server.address, "GET /live HTTP/1.0").await;
        let mut stream = server.stream().await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.0 200 OK\r\n") && !head.contains("chunked"), "{head}");
        stream.send("as it is").await;
        client.until("as it is").await;
        drop(client);
        stream.dropped().await;
        assert_eq!(server.stats.counts().live_started, 0);
    });
}
