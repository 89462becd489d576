//! Errors that servers send: how each is classified, and what it advises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_reservoir::{ConnectionError, ConnectionErrorKind, PostgresError};
use forebay_testkit::sandbox::{Postgres, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{ask, open, run};

const SECRET: &str = "hunter2hunter2";

fn check(error: &ConnectionError, kind: ConnectionErrorKind, parts: &[&str]) {
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} isn't in: {message}");
    }
    assert!(!format!("{message} {error:?}").contains(SECRET), "{message}");
    let source = std::error::Error::source(error).unwrap();
    assert_eq!(source.downcast_ref::<PostgresError>().unwrap().kind(), kind);
}

#[tokio::test]
async fn a_refused_login_says_why() {
    let postgres = Postgres::builder().password("right").start().unwrap();
    run(
        &postgres,
        &[
            &format!("CREATE ROLE app LOGIN PASSWORD '{SECRET}'"),
            "CREATE ROLE nologin PASSWORD 'x'",
            "CREATE DATABASE private",
            "REVOKE CONNECT ON DATABASE private FROM PUBLIC",
        ],
    );
    let address = format!("127.0.0.1:{}", postgres.port());
    let to = |user: &str, database: &str| open_owned(format!("postgres://{user}@{address}/{database}"));
    let good = format!("app:{SECRET}");

    to(&good, "postgres").await.unwrap();
    let error = to(&format!("postgres:{SECRET}"), "postgres").await.unwrap_err();
    check(
        &error,
        ConnectionErrorKind::Refused,
        &[&address, "password authentication failed", "[28P01]: check the user"],
    );
    let error = to("postgres", "postgres").await.unwrap_err();
    check(
        &error,
        ConnectionErrorKind::Refused,
        &[&address, "asks user postgres for a password", "password_from"],
    );
    let error = to("missing:x", "postgres").await.unwrap_err();
    check(&error, ConnectionErrorKind::Refused, &[&address, "[28P01]"]);
    let error = to(&good, "nowhere").await.unwrap_err();
    check(
        &error,
        ConnectionErrorKind::Refused,
        &[&address, "\"nowhere\" does not exist [3D000]", "or create it"],
    );
    let error = to(&good, "private").await.unwrap_err();
    check(&error, ConnectionErrorKind::Refused, &[&address, "permission denied", "[42501]", "grant"]);
    let error = to("nologin:x", "postgres").await.unwrap_err();
    check(&error, ConnectionErrorKind::Refused, &[&address, "not permitted to log in [28000]"]);
}

async fn open_owned(url: String) -> Result<forebay_reservoir::PostgresClient, ConnectionError> {
    open(&url).await
}

#[tokio::test]
async fn a_full_server_is_classified_as_full() {
    let settings =
        [("max_connections", "4"), ("superuser_reserved_connections", "1"), ("max_wal_senders", "0")];
    let builder =
        settings.iter().fold(Postgres::builder(), |builder, (key, value)| builder.config(key, value));
    let postgres = builder.start().unwrap();
    run(&postgres, &["CREATE ROLE app LOGIN", "CREATE ROLE two LOGIN CONNECTION LIMIT 2"]);
    let to = |user: &str| open_owned(format!("postgres://{user}@127.0.0.1:{}/postgres", postgres.port()));
    let two = [to("two").await.unwrap(), to("two").await.unwrap()];
    let error = to("two").await.unwrap_err();
    check(&error, ConnectionErrorKind::Full, &["[53300]", "lower the budget of connections"]);
    drop(two);

    let mut held = Vec::new();
    let error = loop {
        match to("app").await {
            Ok(client) => held.push(client),
            Err(error) => break error,
        }
    };
    check(&error, ConnectionErrorKind::Full, &["[53300]"]);
    assert!(held.len() <= 3, "{}", held.len());
    let superuser = to("postgres").await.unwrap();
    assert_eq!(ask(&superuser, "SELECT 1").await, "1");
}

#[tokio::test]
async fn a_server_that_is_gone_is_unreachable() {
    let postgres = Postgres::start().unwrap();
    postgres.kill();
    let error = open(&postgres.url("postgres")).await.unwrap_err();
    check(&error, ConnectionErrorKind::Unreachable, &["Connection refused", "check that the server runs"]);
    let socket = format!("user=postgres host=/no/such/folder port={}", postgres.port());
    let error = open(&socket).await.unwrap_err();
    check(&error, ConnectionErrorKind::Unreachable, &["/no/such/folder/.s.PGSQL."]);
    let error = open("postgres://me@no-such-host.invalid/db").await.unwrap_err();
    check(&error, ConnectionErrorKind::Unreachable, &["no-such-host.invalid can't be looked up"]);
    postgres.revive().unwrap();
    open(&postgres.url("postgres")).await.unwrap();
}

/// Sends this error to each start-up message, and counts clients after they have closed.
async fn refusing(sqlstate: &str) -> (u16, Arc<AtomicU32>) {
    let closed = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&closed);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let fields = format!("SFATAL\0VFATAL\0C{sqlstate}\0Mnot now\0\0");
    let mut response = vec![b'E'];
    response.extend_from_slice(&u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
    response.extend_from_slice(fields.as_bytes());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let length = socket.read_u32().await.unwrap();
            let mut startup = vec![0; length as usize - 4];
            socket.read_exact(&mut startup).await.unwrap();
            socket.write_all(&response).await.unwrap();
            let _end = socket.read(&mut startup).await;
            counting.fetch_add(1, Ordering::SeqCst);
        }
    });
    (port, closed)
}

#[tokio::test]
async fn only_a_starting_server_is_skipped_for_the_next_host() {
    let postgres = Postgres::shared();
    let cases = [
        ("57P03", ConnectionErrorKind::Unreachable),
        ("53300", ConnectionErrorKind::Full),
        ("53400", ConnectionErrorKind::Full),
        ("28P01", ConnectionErrorKind::Refused),
        ("28000", ConnectionErrorKind::Refused),
        ("3D000", ConnectionErrorKind::Refused),
        ("XX000", ConnectionErrorKind::Other),
    ];
    for (sqlstate, kind) in cases {
        let (port, closed) = refusing(sqlstate).await;
        let first = format!("127.0.0.1:{port}");
        let error = open(&format!("postgres://postgres@{first}/postgres?sslmode=disable")).await.unwrap_err();
        check(&error, kind, &[&first, "not now", sqlstate]);
        assert_eq!(closed.load(Ordering::SeqCst), 1, "an error is returned after the server has closed");
        let both = format!("{first},127.0.0.1:{}", postgres.port());
        let outcome = open(&format!("postgres://postgres@{both}/postgres?sslmode=disable")).await;
        assert_eq!(outcome.is_ok(), kind == ConnectionErrorKind::Unreachable, "{sqlstate}: {outcome:?}");
    }
    let dead = free_port();
    open(&format!("postgres://postgres@127.0.0.1:{dead},127.0.0.1:{}/postgres", postgres.port()))
        .await
        .unwrap();
}
