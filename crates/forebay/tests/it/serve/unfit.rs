//! An unfit database: the server says what to change, keeps running, and continues after the
//! change. With `--exit-when-unfit` it exits.

use std::path::PathBuf;
use std::time::Duration;

use forebay_sandbox::Postgres;
use rustix::process::Signal;

use super::support::{ServeFixture, ServeProcess};
use crate::forebay_process::ForebayProcess;
use crate::wire::{HttpConnection, until};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY)";

/// Checks that the server reports `reason` and `trouble`. Then changes the database, sends SIGHUP,
/// and checks that the server follows the database.
async fn recovers_on_sighup(serve: &ServeProcess, reason: &str, trouble: &str, change: impl FnOnce()) {
    let database = async || serve.status().await["database"].clone();
    until("the manager has halted", async || database().await["halted"] == reason).await;
    let status = database().await;
    assert!(status["trouble"].as_str().unwrap().contains(trouble), "{status:#}");
    let halted = serve.wait_for_log("manager halted");
    assert_eq!((&halted["reason"], &halted["retry_in"]), (&reason.into(), &"30s".into()));
    assert!(halted["why"].as_str().unwrap().contains(trouble), "{halted}");
    assert_eq!(serve.health().await, "starting");
    assert_eq!(serve.admin("/healthz").await.head.status, 200, "a restart would not help");
    let ready = serve.admin("/readyz").await;
    let body = String::from_utf8(ready.body).unwrap();
    assert!(ready.head.status == 503 && body.contains("the database is unfit"), "{body}");
    let label = format!("reason=\"{reason}\"");
    assert_eq!(serve.metric("forebay_postgres_halted", &[&label]).await, 1.0);
    assert_eq!(serve.metric("forebay_postgres_recovery_seconds_count", &[]).await, 0.0);

    change();
    serve.signal(Signal::HUP);
    serve.wait_for_log("database connection retried");
    serve.wait_for_health("active").await;
    let recovered = serve.wait_for_log("replication recovered");
    assert!(recovered["tries"].as_u64() >= Some(1) && recovered["retried_for"].is_string(), "{recovered}");
    let status = database().await;
    assert!(status["halted"].is_null() && status["trouble"].is_null(), "{status:#}");
    assert_eq!(serve.metric("forebay_postgres_halted", &[&label]).await, 0.0);
    assert_eq!(serve.metric("forebay_postgres_recovery_seconds_count", &[]).await, 1.0);
    serve.reader(&[("table", "items")]).await;
}

/// A password file that is removed when dropped.
struct PasswordFile(PathBuf);

impl PasswordFile {
    fn new(fixture: &ServeFixture, password: &str) -> PasswordFile {
        let file = PasswordFile(fixture.dir.with_extension("password"));
        file.write(password);
        file
    }

    fn write(&self, password: &str) {
        std::fs::write(&self.0, password).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Returns a fixture on a server of its own that asks for the password `right`.
fn with_password() -> ServeFixture {
    let postgres: &Postgres = Box::leak(Box::new(Postgres::builder().password("right").start().unwrap()));
    ServeFixture::on_postgres(postgres, ITEMS)
}

#[tokio::test]
async fn a_corrected_password_file_is_read_on_sighup() {
    let fixture = with_password();
    let file = PasswordFile::new(&fixture, "wrong");
    let url = fixture.postgres.url_as("postgres", "", &fixture.database);
    let serve = fixture.spawn(&[("DATABASE_URL", &url), ("FOREBAY_DATABASE_PASSWORD_FILE", file.path())]);
    let failed = "password authentication failed";
    recovers_on_sighup(&serve, "refused", failed, || file.write("right")).await;
    assert!(!serve.log().contains("wrong"), "the log has no password");
}

#[tokio::test]
async fn a_role_that_is_created_is_used_on_sighup() {
    let fixture = ServeFixture::new(ITEMS);
    let (role, database) = (format!("role_{}", fixture.database), &fixture.database);
    let serve = fixture.spawn(&[("DATABASE_URL", &fixture.postgres.url_as(&role, "", database))]);
    recovers_on_sighup(&serve, "refused", "does not exist", || {
        fixture.sql(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT ALL ON DATABASE {database} TO {role}; \
             ALTER TABLE items OWNER TO {role}"
        ));
    })
    .await;
}

#[tokio::test]
async fn a_right_that_is_granted_is_used_on_sighup() {
    let fixture = ServeFixture::new(ITEMS);
    let (role, database) = (format!("role_{}", fixture.database), &fixture.database);
    fixture.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT ALL ON DATABASE {database} TO {role}; ALTER TABLE items OWNER TO {role}"
    ));
    let serve = fixture.spawn(&[("DATABASE_URL", &fixture.postgres.url_as(&role, "", database))]);
    recovers_on_sighup(&serve, "no_replication_right", "may not replicate", || {
        fixture.sql(&format!("ALTER ROLE {role} REPLICATION"));
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_created_is_followed_on_sighup() {
    let fixture = ServeFixture::new(ITEMS);
    let later = format!("{}_later", fixture.database);
    let serve = fixture.spawn(&[("DATABASE_URL", &fixture.postgres.url(&later))]);
    recovers_on_sighup(&serve, "refused", "does not exist", || {
        fixture.sql(&format!("CREATE DATABASE {later}"));
        fixture.postgres.execute(&later, ITEMS).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_corrected_wal_level_is_used_on_sighup() {
    let postgres: &Postgres =
        Box::leak(Box::new(Postgres::builder().config("wal_level", "replica").start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, ITEMS);
    let serve = fixture.spawn(&[]);
    recovers_on_sighup(&serve, "wal_level", "wal_level is replica", || {
        postgres.set_config("wal_level", "logical").unwrap();
        postgres.restart_fast().unwrap();
    })
    .await;
}

#[tokio::test]
async fn with_exit_when_unfit_the_process_exits_with_status_1_and_says_why() {
    let fixture = ServeFixture::new(ITEMS);
    let missing = fixture.postgres.url("nowhere");
    let mut command = fixture.command(&["--exit-when-unfit"]);
    command.env("DATABASE_URL", &missing);
    let mut serve = ForebayProcess::run(command, "server listening");
    let exiting = serve.wait_for_log("process exiting: database unfit");
    assert_eq!(exiting["reason"], "refused");
    assert!(exiting["why"].as_str().unwrap().contains("\"nowhere\" does not exist"), "{exiting}");
    assert_eq!(serve.end().await.code(), Some(1));

    let mut serve = fixture.serve_with(&[("FOREBAY_DATABASE_EXIT_WHEN_UNFIT", "true")]).await;
    serve.signal(Signal::TERM);
    assert_eq!(serve.end().await.code(), Some(0), "a fit database");
}

#[tokio::test]
async fn a_signal_after_the_server_stopped_because_it_is_unfit_counts_as_the_first() {
    let postgres: &Postgres =
        Box::leak(Box::new(Postgres::builder().config("wal_level", "replica").start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, ITEMS);
    postgres.stop().unwrap();
    let mut serve = fixture.spawn(&[("FOREBAY_DATABASE_EXIT_WHEN_UNFIT", "true")]);
    // The drain waits for this request, whose body is incomplete.
    let mut client = HttpConnection::connect(serve.addr).await;
    client
        .send("POST /v1/shape?table=items&offset=-1 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        .await;
    until("the request has arrived", async || serve.status().await["http"]["requests"] == 1).await;
    postgres.revive().unwrap();
    serve.wait_for_log("process exiting: database unfit");
    serve.wait_for_log("server stopping");
    serve.signal(Signal::TERM);
    tokio::time::sleep(Duration::from_millis(500)).await; // an abort takes less
    assert_eq!(serve.has_ended(), None, "one signal aborted the shutdown");
    serve.signal(Signal::INT);
    assert_eq!(serve.end().await.code(), Some(1));
    serve.wait_for_log("server aborted by a second signal");
}

#[tokio::test]
async fn with_exit_when_unfit_an_unreachable_database_is_retried() {
    let postgres: &Postgres = Box::leak(Box::new(Postgres::start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, ITEMS);
    postgres.stop().unwrap();
    let mut serve = fixture.spawn(&[("FOREBAY_DATABASE_EXIT_WHEN_UNFIT", "true")]);
    serve.wait_for_log("replication failed: retrying");
    postgres.revive().unwrap();
    serve.wait_for_health("active").await;
    assert_eq!(serve.has_ended(), None);
}
