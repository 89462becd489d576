//! Upgraded connections: the body of a 101 owns the client's connection, with a handshake or not.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::client::RawClient;
use crate::test_server::{TestServer, on_both_runtimes, until};
use crate::transport::PasswordHandshake;

const UPGRADE: &str = "connection: upgrade\r\nupgrade: echo\r\n\r\n";

#[test]
fn an_upgraded_connection_gets_the_bytes_behind_the_request_and_lives_as_long_as_its_body() {
    on_both_runtimes(async || {
        for password in ["", "open"] {
            let mut server = match password {
                "" => TestServer::default().await,
                _ => TestServer::start_with_handshake(|_| {}, Arc::new(PasswordHandshake)).await,
            };
            let mut client = RawClient::connect(server.address).await;
            client.send(&format!("{password}GET /upgrade HTTP/1.1\r\nhost: a\r\n{UPGRADE}early")).await;
            let mut stream = server.stream().await;
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\n"), "{head}");
            assert!(head.ends_with("\r\nconnection: upgrade\r\n\r\n"), "{head}");
            assert_eq!(client.exactly(5).await, b"early");
            client.send("GET / HTTP/1.1\r\n\r\n").await;
            assert_eq!(client.until("\r\n\r\n").await, "GET / HTTP/1.1\r\n\r\n", "no longer HTTP");
            let counts = server.stats.counts();
            assert_eq!((counts.upgraded_connections, counts.upgrades, counts.requests), (1, 1, 1));

            client.socket.shutdown().await.unwrap();
            assert_eq!(client.rest().await, b"", "the echo ends with its input");
            stream.dropped().await;
            until("the connection closed", || server.stats.counts().open_connections == 0).await;
            assert_eq!(server.stats.counts().upgraded_connections, 0);
        }
    });
}

#[test]
fn a_request_with_a_body_can_be_upgraded_once_the_body_is_read() {
    on_both_runtimes(async || {
        let mut server = TestServer::default().await;
        let mut client = RawClient::connect(server.address).await;
        client
            .send(&format!("POST /upgrade HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n{UPGRADE}bodyearly"))
            .await;
        assert_eq!(server.stream().await.request_body, "body");
        client.head().await;
        assert_eq!(client.exactly(5).await, b"early");
    });
}

#[test]
fn an_upgraded_connection_continues_in_a_drain_and_is_cut_at_its_deadline() {
    on_both_runtimes(async || {
        let deadline = Duration::from_millis(500);
        let mut server = TestServer::start(|config| config.drain_timeout = deadline).await;
        let mut client =
            RawClient::ask(server.address, &format!("GET /upgrade HTTP/1.1\r\n{}", UPGRADE.trim())).await;
        let mut stream = server.stream().await;
        client.head().await;
        server.begin_shutdown();
        client.send("still").await;
        assert_eq!(client.exactly(5).await, b"still");
        assert_eq!(client.rest().await, b"");
        stream.dropped().await;
        assert_eq!(server.ended().await.cut, 1);
    });
}

#[test]
fn a_client_that_accepts_no_bytes_loses_its_upgraded_connection() {
    on_both_runtimes(async || {
        let short = Duration::from_millis(200);
        let mut server = TestServer::start(|config| config.write_timeout = short).await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send(&format!("GET /upgrade?flood HTTP/1.1\r\nhost: a\r\n{UPGRADE}")).await;
        server.stream().await.dropped().await;
        until("the connection closed", || server.stats.counts().open_connections == 0).await;
    });
}
