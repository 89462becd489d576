//! Real servers: how each lets us in or doesn't, and what it answers.

use std::time::Duration;

use forebay_reservoir::{ConnectionErrorKind, PostgresConnect, PostgresError};
use forebay_testkit::sandbox::{Postgres, free_port};
use forebay_testkit::{Direction, Proxy, eventually, within};

use crate::wire::{Wire, WireError};

const PASSWORD: &str = "correct horse";

async fn open(words: &str) -> Result<Wire, PostgresError> {
    let connect = PostgresConnect::new(words).unwrap();
    within("a connection", Wire::open(&connect)).await
}

/// As the superuser, by TCP unless `rest` says otherwise.
fn words(postgres: &Postgres, rest: &str) -> String {
    format!("user=postgres dbname=postgres host=127.0.0.1 port={} {rest}", postgres.port())
}

async fn ask(wire: &mut Wire, sql: &str) -> String {
    let rows = within(sql, wire.query(sql)).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    rows[0][0].clone().unwrap_or_else(|| "NULL".to_owned())
}

const IS_ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

#[tokio::test]
async fn a_connection_is_what_its_string_says() {
    let postgres = Postgres::shared();
    let socket = postgres.socket_dir().display();
    let rest = "application_name=wired options='-c statement_timeout=7s'";
    for host in ["127.0.0.1".to_owned(), socket.to_string()] {
        let words = format!("user=postgres dbname=postgres host={host} port={} {rest}", postgres.port());
        let mut wire = open(&words).await.unwrap_or_else(|error| panic!("{host}: {error}"));
        assert!(wire.address().contains(&postgres.port().to_string()), "{}", wire.address());
        assert_eq!(wire.parameter("client_encoding"), Some("UTF8"));
        assert!(wire.parameter("server_version").unwrap().starts_with(&postgres.version().to_string()));
        let pid = wire.backend_pid().to_string();
        assert_eq!(ask(&mut wire, "SELECT pg_backend_pid()").await, pid);
        assert_eq!(ask(&mut wire, "SHOW statement_timeout").await, "7s");
        let mode = format!("SELECT backend_type || application_name FROM pg_stat_activity WHERE pid = {pid}");
        assert_eq!(ask(&mut wire, &mode).await, "walsenderwired");
        let identity = wire.query("IDENTIFY_SYSTEM").await.unwrap();
        assert_eq!(identity[0][3].as_deref(), Some("postgres"), "{identity:?}");
        within("the server's goodbye", wire.close()).await;
        let left = postgres.query("postgres", &format!("SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"));
        assert!(left.unwrap().is_empty(), "closed means gone");
    }
}

#[tokio::test]
async fn scram_lets_us_in_with_and_without_a_bound_channel() {
    let postgres = Postgres::builder().password(PASSWORD).tls().start().unwrap();
    let ca = postgres.ca_path().display();
    let password = format!("password='{PASSWORD}'");
    let good = [
        ("sslmode=disable".to_owned(), "f"),
        ("sslmode=prefer".to_owned(), "t"),
        ("sslmode=require channel_binding=disable".to_owned(), "t"),
        ("sslmode=require channel_binding=require".to_owned(), "t"),
        (format!("sslmode=verify-full sslrootcert={ca} channel_binding=require"), "t"),
    ];
    for (rest, encrypted) in good {
        let mut wire = open(&words(&postgres, &format!("{password} {rest}"))).await.unwrap();
        assert_eq!(ask(&mut wire, IS_ENCRYPTED).await, encrypted, "{rest}");
        within("the server's goodbye", wire.close()).await;
    }
    let plain = words(&postgres, &format!("{password} sslmode=prefer channel_binding=require"));
    postgres.set_config("ssl", "off").unwrap();
    postgres.reload().unwrap();
    let error = open(&plain).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("channel_binding=require"), "{error}");
}

#[tokio::test]
async fn who_isnt_let_in_is_told_why() {
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
        let said = format!("{error}");
        assert!(said.contains(wanted) && said.contains(&format!("127.0.0.1:{port}")), "{said}");
        assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{said}");
        assert!(!format!("{said} {error:?}").contains("hunter2"), "{said}");
    }
}

#[tokio::test]
async fn older_ways_to_ask_for_a_password_are_answered() {
    for method in ["md5", "password"] {
        let postgres = Postgres::builder()
            .config("password_encryption", if method == "md5" { "md5" } else { "scram-sha-256" })
            .password(PASSWORD)
            .hba(&format!("host all all 127.0.0.1/32 {method}"))
            .start()
            .unwrap();
        let mut wire = open(&postgres.url("postgres")).await.unwrap();
        assert_eq!(ask(&mut wire, "SELECT 1").await, "1", "{method}");
        let error = open(&postgres.url_as("postgres", "wrong", "postgres")).await.unwrap_err();
        assert!(error.to_string().contains("[28P01]"), "{method}: {error}");
        let bound = format!("{}?channel_binding=require", postgres.url("postgres"));
        let error = open(&bound).await.unwrap_err();
        assert!(matches!(error, PostgresError::Authentication { .. }), "{method}: {error}");
    }
}

#[tokio::test]
async fn tls_is_as_the_mode_says() {
    let postgres = Postgres::builder().tls().hba("hostssl all all 127.0.0.1/32 trust").start().unwrap();
    let wrong = format!("sslmode=verify-full sslrootcert={}", postgres.wrong_ca_path().display());
    let error = open(&words(&postgres, &wrong)).await.unwrap_err();
    assert!(error.to_string().contains("check sslrootcert"), "{error}");
    let error = open(&words(&postgres, "sslmode=disable")).await.unwrap_err();
    assert!(error.to_string().contains("[28000]"), "{error}");

    postgres.set_hba(&["hostnossl all all 127.0.0.1/32 trust"]).unwrap();
    postgres.reload().unwrap();
    let mut wire = open(&words(&postgres, "sslmode=prefer")).await.unwrap();
    assert_eq!(ask(&mut wire, IS_ENCRYPTED).await, "f", "prefer goes on without where the rules want that");

    let plain = Postgres::shared();
    let error = open(&words(plain, "sslmode=require")).await.unwrap_err();
    assert!(error.to_string().contains("the server has no TLS"), "{error}");
    open(&words(plain, "sslmode=prefer")).await.unwrap();
}

#[tokio::test]
async fn the_first_host_that_is_what_is_asked_for_is_taken() {
    let (dead, postgres) = (free_port(), Postgres::shared());
    let hosts = format!("127.0.0.1:{dead},127.0.0.1:{}", postgres.port());
    open(&format!("postgres://postgres@{hosts}/postgres?target_session_attrs=primary")).await.unwrap();
    let error = open(&format!("postgres://postgres@{hosts}/postgres?target_session_attrs=standby"))
        .await
        .unwrap_err();
    assert!(matches!(error, PostgresError::WrongSession { wanted: "a standby", .. }), "{error}");
}

#[tokio::test]
async fn a_query_that_fails_says_its_sqlstate_and_leaves_the_connection_as_it_was() {
    let postgres = Postgres::shared();
    let mut wire = open(&postgres.url("postgres")).await.unwrap();
    let cases = [
        ("SELCT 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT 1 / 0", "22012"),
        ("DROP_REPLICATION_SLOT nowhere", "42704"),
    ];
    for (sql, code) in cases {
        match within(sql, wire.query(sql)).await.unwrap_err() {
            WireError::Server(said) => assert_eq!(said.code(), code, "{sql}: {said}"),
            other => panic!("{sql}: {other}"),
        }
        assert!(!wire.is_broken());
        assert_eq!(ask(&mut wire, "SELECT 1").await, "1");
    }
    let rows = wire.query("SELECT 1; SELECT a, NULL FROM generate_series(1, 2) a").await.unwrap();
    let row = |value: &str| vec![Some(value.to_owned()), None];
    assert_eq!(rows, [row("1"), row("2")]);
    assert!(wire.query("DO $$ BEGIN RAISE NOTICE 'secret'; END $$").await.unwrap().is_empty());
    assert!(matches!(wire.query("SELECT '\0'").await, Err(WireError::Protocol(_))));

    let mut wire = open(&postgres.url("postgres")).await.unwrap();
    let long = wire.query("SELECT repeat('x', 20000000)").await;
    assert!(matches!(long, Err(WireError::Long { tag: b'D', .. })), "{long:?}");
    let mut wire = open(&postgres.url("postgres")).await.unwrap();
    let many = wire.query("SELECT generate_series(1, 20000)").await;
    assert!(matches!(many, Err(WireError::Big { .. })), "{many:?}");
    let pid = wire.backend_pid();
    wire.close().await;
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    let gone = vec![vec![Some("0".to_owned())]];
    eventually("it is gone", gone, async || postgres.query("postgres", &count).unwrap()).await;
}

#[tokio::test]
async fn the_time_for_a_connection_covers_its_start_up() {
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    let proxy = Proxy::start(postgres.addr());
    let url = format!("postgres://postgres:correct%20horse@{}/postgres?sslmode=disable", proxy.addr());
    let connect =
        PostgresConnect::builder(&url).unwrap().connect_timeout(Duration::from_secs(1)).build().unwrap();
    proxy.stall(Direction::ToClient);
    let error = within("an error", Wire::open(&connect)).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 1s while authenticating"), "{error}");
    proxy.resume();

    let wire = open(&url).await.unwrap();
    let whole = proxy.forwarded_bytes(Direction::ToClient);
    wire.close().await;
    for bytes in (1..whole).step_by(29) {
        proxy.truncate_after(bytes, Direction::ToClient);
        let error = open(&url).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Unreachable, "after {bytes} of {whole} bytes: {error}");
        proxy.resume();
    }
}
