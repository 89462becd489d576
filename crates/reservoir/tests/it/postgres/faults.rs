//! What answers isn't Postgres, or doesn't answer, or stops in the midst of it.

use std::time::{Duration, Instant};

use forebay_reservoir::{Connect, ConnectErrorKind, PostgresConnect};
use forebay_testkit::sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{open, open_by};

/// Sends this to whoever connects, after they said something, and closes.
async fn answering(bytes: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = [0; 1024];
                let _length = socket.read(&mut heard).await;
                let _sent = socket.write_all(bytes).await;
                let _closed = socket.shutdown().await;
                // Until they hang up, so that no reset overtakes what was sent.
                while socket.read(&mut heard).await.is_ok_and(|length| length > 0) {}
            });
        }
    });
    port
}

#[tokio::test]
async fn rubbish_is_told_from_postgres() {
    let rubbish: [(&[u8], &str, ConnectErrorKind); 10] = [
        (b"", "disable", ConnectErrorKind::Unreachable),
        (b"", "require", ConnectErrorKind::Unreachable),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "disable", ConnectErrorKind::Unreachable),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "prefer", ConnectErrorKind::Other),
        (b"-ERR unknown command\r\n", "require", ConnectErrorKind::Other),
        (b"R\0\0\0\0", "disable", ConnectErrorKind::Other),
        (b"R\0\0\0\x08\0\0\0\x63", "disable", ConnectErrorKind::Other),
        (b"Z\0\0\0\x05I", "disable", ConnectErrorKind::Other),
        (b"Ssssssssssssssssssssssssssssss", "require", ConnectErrorKind::Other),
        (b"Eout of memory\0", "require", ConnectErrorKind::Unreachable),
    ];
    for (bytes, mode, kind) in rubbish {
        let port = answering(bytes).await;
        let error = open(&format!("postgres://me@127.0.0.1:{port}/db?sslmode={mode}")).await.unwrap_err();
        let said = String::from_utf8_lossy(bytes);
        assert_eq!(error.kind(), kind, "{said:?} with {mode}: {error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    }
}

#[tokio::test]
async fn the_time_for_a_connection_covers_all_of_it() {
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
        assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
        let said = format!("127.0.0.1:{port}: no answer within 1s while {step}");
        assert!(error.to_string().contains(&said), "{error}");
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
    assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
    assert!(error.to_string().contains("while authenticating"), "{error}");
    proxy.resume();
    open_by(&PostgresConnect::new(&url).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_connection_cut_anywhere_in_its_making_is_unreachable() {
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
        assert_eq!(error.kind(), ConnectErrorKind::Unreachable, "after {bytes} of {whole} bytes: {error}");
        proxy.resume();
    }
    open_by(&connect).await.unwrap();
}

#[tokio::test]
async fn a_connect_that_is_dropped_hangs_up_at_once() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    for mode in ["disable", "require"] {
        let connect =
            PostgresConnect::new(&format!("postgres://me@127.0.0.1:{port}/db?sslmode={mode}")).unwrap();
        let connecting = tokio::spawn(async move { connect.connect(None).await.map(drop) });
        let (mut socket, _) = within("somebody calls", silent.accept()).await.unwrap();
        let mut heard = [0; 1024];
        assert!(within("it speaks", socket.read(&mut heard)).await.unwrap() > 0);
        connecting.abort();
        assert_eq!(within("it hangs up", socket.read(&mut heard)).await.unwrap(), 0);
    }
}
