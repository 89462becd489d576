//! Peers that aren't Postgres, don't respond, or stop halfway.

use std::time::{Duration, Instant};

use forebay_reservoir::{Connect, ConnectionErrorKind, PostgresConnect};
use forebay_testkit::sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{open, open_by};

/// Sends `bytes` to each client after its first message, and closes.
async fn responding(bytes: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = [0; 1024];
                let _length = socket.read(&mut received).await;
                let _sent = socket.write_all(bytes).await;
                let _closed = socket.shutdown().await;
                // Reads until the client closes, so that no RST overtakes the sent bytes.
                while socket.read(&mut received).await.is_ok_and(|length| length > 0) {}
            });
        }
    });
    port
}

#[tokio::test]
async fn replies_of_other_protocols_are_classified() {
    let rubbish: [(&[u8], &str, ConnectionErrorKind); 10] = [
        (b"", "disable", ConnectionErrorKind::Unreachable),
        (b"", "require", ConnectionErrorKind::Unreachable),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "disable", ConnectionErrorKind::Unreachable),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "prefer", ConnectionErrorKind::Other),
        (b"-ERR unknown command\r\n", "require", ConnectionErrorKind::Other),
        (b"R\0\0\0\0", "disable", ConnectionErrorKind::Other),
        (b"R\0\0\0\x08\0\0\0\x63", "disable", ConnectionErrorKind::Other),
        (b"Z\0\0\0\x05I", "disable", ConnectionErrorKind::Other),
        (b"Ssssssssssssssssssssssssssssss", "require", ConnectionErrorKind::Other),
        (b"Eout of memory\0", "require", ConnectionErrorKind::Unreachable),
    ];
    for (bytes, mode, kind) in rubbish {
        let port = responding(bytes).await;
        let error = open(&format!("postgres://me@127.0.0.1:{port}/db?sslmode={mode}")).await.unwrap_err();
        let message = String::from_utf8_lossy(bytes);
        assert_eq!(error.kind(), kind, "{message:?} with {mode}: {error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    }
}

#[tokio::test]
async fn connect_timeout_covers_the_whole_dial() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let limit = Duration::from_secs(1);
    for (mode, step) in
        [("disable", "authenticating"), ("prefer", "negotiating TLS"), ("require", "negotiating TLS")]
    {
        let connect =
            PostgresConnect::builder(&format!("postgres://me@127.0.0.1:{port}/db?sslmode={mode}")).unwrap();
        let connect = connect.connect_timeout(limit).build().unwrap();
        let begun = Instant::now();
        let error = open_by(&connect).await.unwrap_err();
        assert!(begun.elapsed() >= limit);
        assert_eq!(error.kind(), ConnectionErrorKind::Unreachable);
        let message = format!("127.0.0.1:{port}: no answer within 1s while {step}");
        assert!(error.to_string().contains(&message), "{error}");
    }
}

#[tokio::test]
async fn a_host_that_doesnt_answer_leaves_time_for_the_next() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let postgres = Postgres::shared();
    let hosts = format!("127.0.0.1:{port},127.0.0.1:{}", postgres.port());
    let connect =
        PostgresConnect::builder(&format!("postgres://postgres@{hosts}/postgres?sslmode=disable")).unwrap();
    open_by(&connect.connect_timeout(Duration::from_secs(6)).build().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_stops_while_it_authenticates_is_unreachable() {
    let postgres = Postgres::builder().password("secret").start().unwrap();
    let proxy = Proxy::start(postgres.addr());
    proxy.stall(Direction::ToClient);
    let url = format!("postgres://postgres:secret@{}/postgres?sslmode=disable", proxy.addr());
    let connect =
        PostgresConnect::builder(&url).unwrap().connect_timeout(Duration::from_secs(1)).build().unwrap();
    let error = open_by(&connect).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Unreachable);
    assert!(error.to_string().contains("while authenticating"), "{error}");
    proxy.resume();
    open_by(&PostgresConnect::new(&url).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_dial_cut_at_any_byte_is_unreachable() {
    let postgres = Postgres::builder().password("secret").start().unwrap();
    let proxy = Proxy::start(postgres.addr());
    let url = format!("postgres://postgres:secret@{}/postgres", proxy.addr());
    let connect = PostgresConnect::new(&url).unwrap();
    let client = open_by(&connect).await.unwrap();
    let whole = proxy.forwarded_bytes(Direction::ToClient);
    drop(client);
    for bytes in (1..whole).step_by(13) {
        proxy.truncate_after(bytes, Direction::ToClient);
        let error = open_by(&connect).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Unreachable, "after {bytes} of {whole} bytes: {error}");
        proxy.resume();
    }
    open_by(&connect).await.unwrap();
}

#[tokio::test]
async fn a_dropped_dial_closes_its_socket() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    for mode in ["disable", "require"] {
        let connect =
            PostgresConnect::new(&format!("postgres://me@127.0.0.1:{port}/db?sslmode={mode}")).unwrap();
        let connecting = tokio::spawn(async move { connect.connect(None).await.map(drop) });
        let (mut socket, _) = within("a client connects", silent.accept()).await.unwrap();
        let mut received = [0; 1024];
        assert!(within("a message", socket.read(&mut received)).await.unwrap() > 0);
        connecting.abort();
        assert_eq!(within("the close", socket.read(&mut received)).await.unwrap(), 0);
    }
}
