//! Tests with real servers: authentication, TLS, hosts and queries.

use std::time::Duration;

use forebay_reservoir::{ConnectionErrorKind, PostgresConnect, PostgresError};
use forebay_testkit::sandbox::{Postgres, free_port};
use forebay_testkit::{Direction, Proxy, eventually, within};

use crate::wire::{ReplicationConnection, WireError};

const PASSWORD: &str = "correct horse";

async fn open(conninfo: &str) -> Result<ReplicationConnection, PostgresError> {
    let connect = PostgresConnect::new(conninfo).unwrap();
    within("a connection", ReplicationConnection::open(&connect)).await
}

/// Returns a connection string of the superuser, by TCP unless `rest` overrides it.
fn conninfo(postgres: &Postgres, rest: &str) -> String {
    format!("user=postgres dbname=postgres host=127.0.0.1 port={} {rest}", postgres.port())
}

async fn query(connection: &mut ReplicationConnection, sql: &str) -> String {
    let rows = within(sql, connection.query(sql)).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    rows[0][0].clone().unwrap_or_else(|| "NULL".to_owned())
}

const IS_ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

#[tokio::test]
async fn a_connection_has_the_parameters_of_its_string() {
    let postgres = Postgres::shared();
    let socket = postgres.socket_dir().display();
    let rest = "application_name=wired options='-c statement_timeout=7s'";
    for host in ["127.0.0.1".to_owned(), socket.to_string()] {
        let parameters = format!("user=postgres dbname=postgres host={host} port={} {rest}", postgres.port());
        let mut connection = open(&parameters).await.unwrap_or_else(|error| panic!("{host}: {error}"));
        assert!(connection.address().contains(&postgres.port().to_string()), "{}", connection.address());
        assert_eq!(connection.parameter("client_encoding"), Some("UTF8"));
        assert!(connection.parameter("server_version").unwrap().starts_with(&postgres.version().to_string()));
        let pid = connection.backend_pid().to_string();
        assert_eq!(query(&mut connection, "SELECT pg_backend_pid()").await, pid);
        assert_eq!(query(&mut connection, "SHOW statement_timeout").await, "7s");
        let backend_query =
            format!("SELECT backend_type || application_name FROM pg_stat_activity WHERE pid = {pid}");
        assert_eq!(query(&mut connection, &backend_query).await, "walsenderwired");
        let identity = connection.query("IDENTIFY_SYSTEM").await.unwrap();
        assert_eq!(identity[0][3].as_deref(), Some("postgres"), "{identity:?}");
        within("the server closes the connection", connection.close()).await;
        let backends =
            postgres.query("postgres", &format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"));
        assert!(backends.unwrap().is_empty(), "the backend has ended");
    }
}

#[tokio::test]
async fn scram_succeeds_with_and_without_channel_binding() {
    let postgres = Postgres::builder().password(PASSWORD).tls().start().unwrap();
    let ca = postgres.ca_path().display();
    let password = format!("password='{PASSWORD}'");
    let accepted = [
        ("sslmode=disable".to_owned(), "f"),
        ("sslmode=prefer".to_owned(), "t"),
        ("sslmode=require channel_binding=disable".to_owned(), "t"),
        ("sslmode=require channel_binding=require".to_owned(), "t"),
        (format!("sslmode=verify-full sslrootcert={ca} channel_binding=require"), "t"),
    ];
    for (rest, encrypted) in accepted {
        let mut connection = open(&conninfo(&postgres, &format!("{password} {rest}"))).await.unwrap();
        assert_eq!(query(&mut connection, IS_ENCRYPTED).await, encrypted, "{rest}");
        within("the server closes the connection", connection.close()).await;
    }
    let binding_required = conninfo(&postgres, &format!("{password} sslmode=prefer channel_binding=require"));
    postgres.set_config("ssl", "off").unwrap();
    postgres.reload().unwrap();
    let error = open(&binding_required).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("channel_binding=require"), "{error}");
}

#[tokio::test]
async fn a_refused_login_has_the_servers_reason() {
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    postgres.execute("postgres", "CREATE ROLE app LOGIN PASSWORD 'app'").unwrap();
    let port = postgres.port();
    let url = |user: &str, database: &str| format!("postgres://{user}@127.0.0.1:{port}/{database}");
    let cases = [
        (url("postgres:hunter2hunter2", "postgres"), "[28P01]: check the user"),
        (url("postgres", "postgres"), "asks user postgres for a password"),
        (url("postgres:correct%20horse", "nowhere"), "[3D000]"),
        (url("app:app", "postgres"), "[42501]"),
    ];
    for (url, wanted) in cases {
        let error = open(&url).await.unwrap_err();
        let text = format!("{error}");
        assert!(text.contains(wanted) && text.contains(&format!("127.0.0.1:{port}")), "{text}");
        assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{text}");
        assert!(!format!("{text} {error:?}").contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn md5_and_cleartext_passwords_are_supported() {
    for method in ["md5", "password"] {
        let postgres = Postgres::builder()
            .config("password_encryption", if method == "md5" { "md5" } else { "scram-sha-256" })
            .password(PASSWORD)
            .hba(&format!("host all all 127.0.0.1/32 {method}"))
            .start()
            .unwrap();
        let mut connection = open(&postgres.url("postgres")).await.unwrap();
        assert_eq!(query(&mut connection, "SELECT 1").await, "1", "{method}");
        let error = open(&postgres.url_as("postgres", "wrong", "postgres")).await.unwrap_err();
        assert!(error.to_string().contains("[28P01]"), "{method}: {error}");
        let binding_required = format!("{}?channel_binding=require", postgres.url("postgres"));
        let error = open(&binding_required).await.unwrap_err();
        assert!(matches!(error, PostgresError::Authentication { .. }), "{method}: {error}");
    }
}

#[tokio::test]
async fn tls_follows_sslmode() {
    let postgres = Postgres::builder().tls().hba("hostssl all all 127.0.0.1/32 trust").start().unwrap();
    let wrong_ca = format!("sslmode=verify-full sslrootcert={}", postgres.wrong_ca_path().display());
    let error = open(&conninfo(&postgres, &wrong_ca)).await.unwrap_err();
    assert!(error.to_string().contains("check sslrootcert"), "{error}");
    let error = open(&conninfo(&postgres, "sslmode=disable")).await.unwrap_err();
    assert!(error.to_string().contains("[28000]"), "{error}");

    postgres.set_hba(&["hostnossl all all 127.0.0.1/32 trust"]).unwrap();
    postgres.reload().unwrap();
    let mut connection = open(&conninfo(&postgres, "sslmode=prefer")).await.unwrap();
    assert_eq!(
        query(&mut connection, IS_ENCRYPTED).await,
        "f",
        "prefer falls back to a connection without TLS"
    );

    let without_tls = Postgres::shared();
    let error = open(&conninfo(without_tls, "sslmode=require")).await.unwrap_err();
    assert!(error.to_string().contains("the server has no TLS"), "{error}");
    open(&conninfo(without_tls, "sslmode=prefer")).await.unwrap();
}

#[tokio::test]
async fn the_first_host_that_matches_target_session_attrs_is_used() {
    let (closed_port, postgres) = (free_port(), Postgres::shared());
    let hosts = format!("127.0.0.1:{closed_port},127.0.0.1:{}", postgres.port());
    open(&format!("postgres://postgres@{hosts}/postgres?target_session_attrs=primary")).await.unwrap();
    let error = open(&format!("postgres://postgres@{hosts}/postgres?target_session_attrs=standby"))
        .await
        .unwrap_err();
    assert!(matches!(error, PostgresError::WrongSession { wanted: "a standby", .. }), "{error}");
}

#[tokio::test]
async fn a_failed_query_returns_its_sqlstate_and_leaves_the_connection_usable() {
    let postgres = Postgres::shared();
    let mut connection = open(&postgres.url("postgres")).await.unwrap();
    let cases = [
        ("SELCT 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT 1 / 0", "22012"),
        ("DROP_REPLICATION_SLOT nowhere", "42704"),
    ];
    for (sql, code) in cases {
        match within(sql, connection.query(sql)).await.unwrap_err() {
            WireError::Server(error) => assert_eq!(error.code(), code, "{sql}: {error}"),
            other => panic!("{sql}: {other}"),
        }
        assert!(!connection.is_broken());
        assert_eq!(query(&mut connection, "SELECT 1").await, "1");
    }
    let rows = connection.query("SELECT 1; SELECT a, NULL FROM generate_series(1, 2) a").await.unwrap();
    let row = |value: &str| vec![Some(value.to_owned()), None];
    assert_eq!(rows, [row("1"), row("2")]);
    assert!(connection.query("DO $$ BEGIN RAISE NOTICE 'secret'; END $$").await.unwrap().is_empty());
    assert!(matches!(connection.query("SELECT '\0'").await, Err(WireError::Protocol(_))));

    let mut connection = open(&postgres.url("postgres")).await.unwrap();
    let too_long = connection.query("SELECT repeat('x', 20000000)").await;
    assert!(matches!(too_long, Err(WireError::TooLong { tag: b'D', .. })), "{too_long:?}");
    let mut connection = open(&postgres.url("postgres")).await.unwrap();
    let too_big = connection.query("SELECT generate_series(1, 20000)").await;
    assert!(matches!(too_big, Err(WireError::TooBig { .. })), "{too_big:?}");
    let pid = connection.backend_pid();
    connection.close().await;
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    let no_backend = vec![vec![Some("0".to_owned())]];
    eventually("the backend has ended", no_backend, async || postgres.query("postgres", &count).unwrap())
        .await;
}

#[tokio::test]
async fn the_connect_timeout_includes_the_startup() {
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    let proxy = Proxy::start(postgres.addr());
    let url = format!("postgres://postgres:correct%20horse@{}/postgres?sslmode=disable", proxy.addr());
    let connect =
        PostgresConnect::builder(&url).unwrap().connect_timeout(Duration::from_secs(1)).build().unwrap();
    proxy.stall(Direction::ToClient);
    let error = within("an error", ReplicationConnection::open(&connect)).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 1s while authenticating"), "{error}");
    proxy.resume();

    let connection = open(&url).await.unwrap();
    let total = proxy.forwarded_bytes(Direction::ToClient);
    connection.close().await;
    for bytes in (1..total).step_by(29) {
        proxy.truncate_after(bytes, Direction::ToClient);
        let error = open(&url).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Unreachable, "after {bytes} of {total} bytes: {error}");
        proxy.resume();
    }
}
