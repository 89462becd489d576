//! Connections with a handshake: the same deadlines and drain as plain ones.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::{Handshake, HandshakeFuture, HttpServerConfig, NegotiatedTransport};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::client::RawClient;
use crate::drain::listener_closed;
use crate::test_server::{SOON, TestServer, on_both_runtimes, soon, until};

/// Handshake that reads a four-byte password.
#[derive(Debug)]
pub(crate) struct PasswordHandshake;

impl Handshake for PasswordHandshake {
    fn handshake(&self, mut stream: TcpStream) -> HandshakeFuture {
        Box::pin(async move {
            let mut password = [0; 4];
            stream.read_exact(&mut password).await?;
            match &password {
                b"open" => Ok(NegotiatedTransport { io: Box::new(stream), is_http2: false }),
                b"hang" => pending().await,
                _ => Err(io::ErrorKind::PermissionDenied.into()),
            }
        })
    }
}

const GET: &str = "GET /live HTTP/1.1\r\nhost: a\r\n\r\n";

#[test]
fn a_stream_with_a_handshake_stays_with_hyper_and_ends_with_its_client() {
    on_both_runtimes(async || {
        let mut server = TestServer::start_with_handshake(|_| {}, Arc::new(PasswordHandshake)).await;
        let mut client = RawClient::connect(server.address).await;
        client.send("open").await;
        client.send(GET).await;
        let mut stream = server.stream().await;
        client.head().await;
        stream.send("data: 1\n\n").await;
        assert_eq!(client.until("data: 1\n\n\r\n").await, "9\r\ndata: 1\n\n\r\n");
        assert_eq!((server.stats.counts().live_started, server.stats.counts().open_connections), (0, 1));
        drop(client);
        stream.dropped().await;
        until("the connection closed", || server.stats.counts().open_connections == 0).await;
    });
}

#[test]
fn a_handshake_that_fails_or_times_out_closes_the_connection() {
    on_both_runtimes(async || {
        // Long enough for the refused client to send its password first.
        let short = Duration::from_secs(1);
        let server = TestServer::start_with_handshake(
            |config| config.header_read_timeout = short,
            Arc::new(PasswordHandshake),
        )
        .await;
        let mut clients = Vec::new();
        for sent in ["no..", "hang", "", "op", "open", "openGET / HT"] {
            let mut client = RawClient::connect(server.address).await;
            client.send(sent).await;
            clients.push((sent, client));
        }
        for (sent, mut client) in clients {
            assert_eq!(client.rest().await, b"", "{sent}");
        }
        until("all connections closed", || server.stats.counts().open_connections == 0).await;
        assert_eq!(server.stats.counts().header_timeouts, 5, "all but the refused one");
    });
}

#[test]
fn a_client_with_a_handshake_that_accepts_no_bytes_is_closed() {
    on_both_runtimes(async || {
        let short = Duration::from_millis(200);
        let mut server = TestServer::start_with_handshake(
            |config| config.write_timeout = short,
            Arc::new(PasswordHandshake),
        )
        .await;
        let mut client = RawClient::connect_narrow(server.address).await;
        client.send("open").await;
        client.send(GET).await;
        let mut stream = server.stream().await;
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        soon("the close", async { while stream.try_send(piece.clone()).await {} }).await;
        stream.dropped().await;
        until("the count", || server.stats.counts().slow_clients == 1).await;
    });
}

#[test]
fn a_drain_ends_handshakes_and_idle_connections_after_the_grace() {
    on_both_runtimes(async || {
        let short = Duration::from_millis(50);
        let mut server = TestServer::start_with_handshake(
            |config| config.drain_grace = short,
            Arc::new(PasswordHandshake),
        )
        .await;
        let mut hangs = RawClient::connect(server.address).await;
        hangs.send("hang").await;
        let mut idle = RawClient::connect(server.address).await;
        idle.send("open").await;
        idle.send("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
        idle.head().await;
        let mut incomplete = RawClient::connect(server.address).await;
        incomplete.send("openGET / HT").await;
        until("all connections", || server.stats.counts().open_connections == 3).await;
        server.begin_shutdown();
        assert_eq!(hangs.rest().await, b"");
        assert_eq!(idle.rest().await, b"");
        assert!(incomplete.rest().await.starts_with(b"HTTP/1.1 503 "));
        assert_eq!(server.ended().await.cut, 0);
    });
}

#[test]
fn a_request_in_transit_after_a_handshake_is_answered_when_the_drain_begins() {
    on_both_runtimes(async || {
        let change = |config: &mut HttpServerConfig| {
            (config.drain_grace, config.drain_timeout) = (SOON * 2, SOON * 4);
            config.header_read_timeout = SOON * 2;
        };
        let mut server = TestServer::start_with_handshake(change, Arc::new(PasswordHandshake)).await;
        let get = "GET /echo HTTP/1.1\r\nhost: a\r\n\r\n";
        let all = format!("open{get}");
        let mut clients = Vec::new();
        for cut in [0, 2, 4, 12] {
            let mut client = RawClient::connect(server.address).await;
            client.send(&all[..cut]).await;
            clients.push((client, all[cut..].to_owned()));
        }
        let mut kept = RawClient::connect(server.address).await;
        kept.send(&all).await;
        kept.head().await;
        clients.push((kept, get.to_owned()));
        until("all connections", || server.stats.counts().open_connections == 5).await;
        let address = server.address;
        server.begin_shutdown();
        listener_closed(address).await;
        for (client, rest) in &mut clients {
            client.send(rest).await;
        }
        for (mut client, rest) in clients {
            let response = String::from_utf8(client.rest().await).unwrap();
            assert!(
                response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("connection: close\r\n"),
                "{rest:?}: {response:?}"
            );
        }
        assert_eq!(server.ended().await.cut, 0);
    });
}
