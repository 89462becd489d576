//! Snapshots that fail: waiting requests get a 503 with Retry-After, other shapes are not affected,
//! and the next snapshot succeeds. Also a restart of Postgres while replication is paused.

use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::Proxy;
use serde_json::Value;
use tokio::task::block_in_place;

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, path, summarize};
use crate::wire::{HttpConnection, HttpResponse, until};

const CREATE_TABLES: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n;
    CREATE TABLE others (id int PRIMARY KEY, note text);
    INSERT INTO others VALUES (1, 'one')";

/// Checks a 503 whose message contains `words`.
#[track_caller]
fn assert_unavailable(response: &HttpResponse, words: &str) {
    let text = String::from_utf8_lossy(&response.body);
    assert_eq!((response.head.status, response.head.header("retry-after")), (503, Some("10")), "{text}");
    assert_eq!(response.head.header("cache-control"), Some("no-store"));
    let message = response.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(words), "{message}");
}

/// Checks that a shape of another table gets changes, and that new shapes of it can be created.
async fn other_table_is_served(
    fixture: &ServeFixture,
    serve: &ServeProcess,
    reader: &mut ShapeReader<'_>,
    id: u32,
) {
    fixture.sql(&format!("INSERT INTO others VALUES ({id}, 'x')"));
    assert_eq!(summarize(&reader.live_changes(serve, 1).await), [format!("insert {id}")]);
    let clause = format!("id = {id}");
    let mut created = ShapeReader::new(&[("table", "others"), ("where", &clause)]);
    assert_eq!(
        summarize(&created.catch_up(serve).await),
        [format!("insert {id}")],
        "other shapes can be created"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_locked_table_fails_and_affects_no_other_table() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve().await;
    let mut bystander = serve.reader(&[("table", "others")]).await;
    // Now the table is published, and no older transaction writes to it.
    let mut before = serve.reader(&[("table", "items"), ("where", "id = 1")]).await;
    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let lock = "LOCK TABLE items IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(120)";
    let lock_holder = std::thread::spawn(move || postgres.execute(&database, lock));
    let holder =
        "FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    until("the table is locked", async || {
        fixture.query_value(&format!("SELECT count(*) {holder}")).as_deref() == Some("1")
    })
    .await;

    let some = [("table", "items"), ("where", "id < 3"), ("offset", "-1")];
    let mut waiting = serve.start_get(&some).await;
    other_table_is_served(&fixture, &serve, &mut bystander, 2).await;
    assert_unavailable(&waiting.response().await, "lock timeout");
    other_table_is_served(&fixture, &serve, &mut bystander, 3).await;
    fixture.sql(&format!("SELECT pg_terminate_backend(pid) {holder}"));
    let _ended = lock_holder.join().unwrap();
    assert_eq!(summarize(&ShapeReader::new(&some[..2]).catch_up(&serve).await), ["insert 1", "insert 2"]);
    fixture.sql("UPDATE items SET note = 'uno' WHERE id = 1");
    assert_eq!(summarize(&before.live_changes(&serve, 1).await), ["update 1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_ends_during_a_snapshot_affects_no_other_table() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let proxy = Proxy::start(fixture.postgres.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), fixture.database);
    let serve = fixture.serve_with(&[("DATABASE_URL", &url)]).await;
    let mut bystander = serve.reader(&[("table", "others")]).await;
    // At this rate, all rows would take 40 s.
    proxy.throttle(500_000);
    let mut reading = serve.start_get(&[("table", "items"), ("offset", "-1")]).await;
    assert_eq!(reading.head().await.status, 200, "the first rows have arrived");
    assert!(reading.chunk().await.is_some());
    let now = path(&[("table", "items"), ("offset", "now")]);
    let mut waiting = HttpConnection::get(serve.addr, &now, &[]).await;
    let copying = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY (SELECT%'";
    until("the backend is terminated", async || {
        fixture.query_value(&format!("SELECT count(pg_terminate_backend(pid)) {copying}")).as_deref()
            != Some("0")
    })
    .await;
    proxy.resume();
    assert_unavailable(&waiting.response().await, "connection");
    // The response that the client was reading ends without its last chunk.
    let rest = tokio::time::timeout(Duration::from_secs(60), reading.rest()).await.unwrap();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{} bytes", rest.len());
    other_table_is_served(&fixture, &serve, &mut bystander, 2).await;
    let all: Vec<Value> = ShapeReader::new(&[("table", "items")]).catch_up(&serve).await;
    assert_eq!(changes(&all).len(), 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_can_restart_while_replication_is_paused() {
    let postgres: &'static Postgres = Box::leak(Box::new(Postgres::builder().start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, CREATE_TABLES);
    let serve = fixture.serve().await;
    let mut reader = serve.reader(&[("table", "others")]).await;

    // An open session changes the definition and a row. Then the server can't connect to read the
    // new definition.
    let database = fixture.database.clone();
    let change = "SELECT pg_sleep(8); ALTER TABLE others ALTER note SET STATISTICS 10; INSERT INTO others VALUES (2, 'two')";
    let changing = std::thread::spawn(move || postgres.execute(&database, change));
    let of = format!(
        "FROM pg_stat_activity WHERE datname = '{}' AND backend_type = 'client backend'",
        fixture.database
    );
    let query_value = |sql: &str| postgres.query("postgres", sql).unwrap()[0][0].clone();
    until("the session is open", async || {
        query_value(&format!("SELECT count(*) {of} AND query LIKE '%pg_sleep%'")).as_deref() == Some("1")
    })
    .await;
    let allow_connections = |allowed: bool| {
        let sql = format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allowed}", fixture.database);
        postgres.execute("postgres", &sql).unwrap();
    };
    allow_connections(false);
    query_value(&format!("SELECT count(pg_terminate_backend(pid)) {of} AND query NOT LIKE '%pg_sleep%'"));
    changing.join().unwrap().unwrap();
    until("replication is paused", async || serve.log().contains("replication paused")).await;

    // Shutdown of Postgres waits for the replication connection, at most a minute.
    block_in_place(|| postgres.restart_fast()).unwrap();
    allow_connections(true);
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 2"]);
}
