//! Sessions: settings, hosts, reset and cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_reservoir::{
    AuthSecret, AuthToken, Connect, ConnectionErrorKind, PostgresConnect, ReservoirConnection, TokenError,
    TokenFuture, TokenProvider,
};
use forebay_testkit::sandbox::{Postgres, free_port};
use forebay_testkit::within;

use super::{ask, open, open_by, run};

/// The reservoir's standard reset, without the role.
const SCRIPT: &str = "ROLLBACK; CLOSE ALL; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD TEMP; \
                      DISCARD SEQUENCES";

#[tokio::test]
async fn connection_string_settings_are_applied() {
    let postgres = Postgres::shared();
    let database = postgres.create_database("what's in a name").unwrap();
    let (port, socket) = (postgres.port(), postgres.socket_dir().display());
    let name = database.replace(' ', "%20");
    let rest = "application_name=strings&options=-c%20statement_timeout%3D7s&sslmode=prefer";
    let strings = [
        format!("postgres://postgres@127.0.0.1:{port}/{name}?{rest}"),
        format!("postgresql://postgres@localhost:{port}/{name}?{rest}"),
        format!("postgres://postgres@/{name}?host={socket}&port={port}&{rest}"),
        format!(
            "user=postgres host={socket} port={port} dbname='{}' application_name=strings \
             options='-c statement_timeout=7s'",
            database.replace('\'', r"\'")
        ),
    ];
    for string in &strings {
        let client = open(string).await.unwrap_or_else(|error| panic!("{string}: {error}"));
        assert_eq!(ask(&client, "SELECT current_database()").await, database, "{string}");
        assert_eq!(ask(&client, "SHOW application_name").await, "strings");
        assert_eq!(ask(&client, "SHOW statement_timeout").await, "7s");
        assert!(!client.is_closed());
    }
    let connect = PostgresConnect::new(&strings[0]).unwrap();
    assert_eq!((connect.user(), connect.database()), ("postgres", database.as_str()));
    assert_eq!(connect.endpoint(), format!("127.0.0.1:{port}"));
}

#[tokio::test]
async fn hosts_are_tried_in_order_until_one_matches_target_session_attrs() {
    let postgres = Postgres::shared();
    let (port, dead) = (postgres.port(), free_port());
    let to = |rest: &str| {
        let hosts = format!("no-such-host.invalid:1,127.0.0.1:{dead},localhost:{port}");
        format!("postgres://postgres@{hosts}/postgres?{rest}")
    };
    for attrs in ["any", "read-write", "primary"] {
        open(&to(&format!("target_session_attrs={attrs}"))).await.unwrap();
    }
    let read_only = "options=-c%20default_transaction_read_only%3Don";
    open(&to(&format!("target_session_attrs=read-only&{read_only}"))).await.unwrap();
    let unmet = [("read-only".to_owned(), "read-only"), ("standby".to_owned(), "a standby")];
    let unmet = unmet.into_iter().chain([(format!("read-write&{read_only}"), "read-write")]);
    for (attrs, message) in unmet {
        let error = open(&to(&format!("target_session_attrs={attrs}"))).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Unreachable);
        assert!(error.to_string().contains(&format!("the server isn't {message}")), "{error}");
    }
}

#[tokio::test]
async fn a_reset_works_outside_inside_and_after_a_failed_transaction() {
    let postgres = Postgres::start().unwrap();
    let mut client = open(&postgres.url("postgres")).await.unwrap();
    client.batch_execute("CREATE SEQUENCE numbers; CREATE TABLE things (id int)").await.unwrap();
    let prepared = client.prepare("SELECT $1::int + 1").await.unwrap();
    let use_it = "SET statement_timeout = '7s'; LISTEN news; SELECT pg_advisory_lock(1); \
                  CREATE TEMP TABLE mine (id int); SELECT nextval('numbers'); \
                  DECLARE reading CURSOR WITH HOLD FOR SELECT 1;";
    for state in
        ["", "BEGIN; INSERT INTO things VALUES (1)", "BEGIN; INSERT INTO things VALUES (1); SELECT 1 / 0"]
    {
        client.batch_execute(use_it).await.unwrap();
        let broken = client.batch_execute(state).await.is_err();
        assert_eq!(broken, state.contains('/'), "{state}");

        client.reset(SCRIPT).await.unwrap_or_else(|error| panic!("{state}: {error}"));

        assert_eq!(ask(&client, "SHOW statement_timeout").await, "0", "{state}");
        assert_eq!(ask(&client, "SELECT count(*) FROM pg_listening_channels()").await, "0");
        assert_eq!(ask(&client, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").await, "0");
        assert_eq!(ask(&client, "SELECT to_regclass('mine') IS NULL").await, "t");
        assert_eq!(ask(&client, "SELECT count(*) FROM pg_cursors").await, "0");
        assert_eq!(ask(&client, "SELECT count(*) FROM things").await, "0");
        let lastval = client.simple_query("SELECT lastval()").await.unwrap_err();
        assert_eq!(lastval.code().unwrap().code(), "55000", "the sequence's last value is forgotten");
        let row = client.query_one(&prepared, &[&41_i32]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 42, "prepared statements stay");
        // VACUUM fails inside a transaction.
        client.batch_execute("VACUUM things").await.unwrap();
    }
    let error = client.reset("SELECT 1 / 0").await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Other, "{error}");
    client.reset(SCRIPT).await.unwrap();
}

/// `RESET ALL` doesn't reset the role; a reset script must do so explicitly.
#[tokio::test]
async fn reset_all_keeps_a_role_that_was_set() {
    let postgres = Postgres::start().unwrap();
    run(&postgres, &["CREATE ROLE app"]);
    let mut client = open(&postgres.url("postgres")).await.unwrap();
    for taken in ["SET ROLE app", "SET SESSION AUTHORIZATION app"] {
        client.batch_execute(taken).await.unwrap();
        client.reset(SCRIPT).await.unwrap();
        assert_eq!(ask(&client, "SELECT current_user").await, "app", "{taken}");
        let script = SCRIPT.replace("RESET ALL", "SET SESSION AUTHORIZATION DEFAULT; RESET ALL");
        client.reset(&script).await.unwrap();
        let who = ask(&client, "SELECT current_user || ' ' || session_user").await;
        assert_eq!(who, "postgres postgres", "{taken}");
    }
}

#[tokio::test]
async fn a_query_is_cancelled_over_a_second_connection() {
    let postgres = Postgres::shared();
    for host in ["127.0.0.1", postgres.socket_dir().to_str().unwrap()] {
        let conninfo = format!("user=postgres dbname=postgres host={host} port={}", postgres.port());
        let (client, watcher) = (open(&conninfo).await.unwrap(), open(&conninfo).await.unwrap());
        let pid = ask(&client, "SELECT pg_backend_pid()").await;
        let running =
            format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'");
        let token = client.cancel_token();
        let cancelling = async {
            forebay_testkit::eventually("the query runs", "1".to_owned(), async || {
                ask(&watcher, &running).await
            })
            .await;
            token.cancel().await.unwrap();
        };
        let both = async { tokio::join!(client.simple_query("SELECT pg_sleep(3600)"), cancelling) };
        let (slept, ()) = within("a cancelled query", both).await;
        assert_eq!(slept.unwrap_err().code().unwrap().code(), "57014");
        assert_eq!(ask(&client, "SELECT 1").await, "1", "the connection stays open");
    }
}

/// Returns the passwords in order, then an error.
struct Passwords {
    given: AtomicU32,
    refused: AtomicU32,
    passwords: &'static [&'static str],
}

impl TokenProvider for Passwords {
    fn token(&self) -> TokenFuture<'_> {
        let number = self.given.fetch_add(1, Ordering::Relaxed) as usize;
        Box::pin(async move {
            let none = || TokenError("the vault is shut".to_owned());
            let password = self.passwords.get(number).ok_or_else(none)?;
            Ok(AuthToken { secret: AuthSecret::new(*password), valid_for: None })
        })
    }

    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn each_connection_requests_the_password() {
    let postgres = Postgres::builder().password("third").start().unwrap();
    let passwords = ["first", "second", "third"];
    let passwords: &'static [&'static str] = Box::leak(Box::new(passwords));
    let provider = Arc::new(Passwords { given: 0.into(), refused: 0.into(), passwords });
    // The password of the connection string is correct, but the provider takes precedence.
    let connect = PostgresConnect::builder(&postgres.url("postgres")).unwrap();
    let connect = connect.password_from(Arc::clone(&provider)).build().unwrap();
    for refused in 1..=2 {
        let error = open_by(&connect).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{error}");
        assert_eq!(provider.refused.load(Ordering::Relaxed), refused);
        assert!(!format!("{error} {error:?}").contains("first"));
    }
    open_by(&connect).await.unwrap();
    let error = connect.credentials().await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Credentials);
    assert_eq!(error.to_string(), "no credentials: the vault is shut");
    assert_eq!(provider.refused.load(Ordering::Relaxed), 2);
}
