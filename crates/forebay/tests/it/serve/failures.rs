//! Snapshots that fail: whoever waits is told when to come again, nobody else notices, and the next one succeeds.

use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::Proxy;
use serde_json::Value;
use tokio::task::block_in_place;

use super::support::{Place, Reader, Serve, changes, path, short};
use crate::wire::{HttpConnection, HttpResponse, until};

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n;
    CREATE TABLE others (id int PRIMARY KEY, note text);
    INSERT INTO others VALUES (1, 'one')";

#[track_caller]
fn is_told(answer: &HttpResponse, words: &str) {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!((answer.head.status, answer.head.header("retry-after")), (503, Some("10")), "{text}");
    assert_eq!(answer.head.header("cache-control"), Some("no-store"));
    let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(words), "{message}");
}

/// A reader of another table that must not notice.
async fn goes_on(place: &Place, serve: &Serve, reader: &mut Reader<'_>, id: u32) {
    place.sql(&format!("INSERT INTO others VALUES ({id}, 'x')"));
    assert_eq!(short(&reader.live_changes(serve, 1).await), [format!("insert {id}")]);
    let clause = format!("id = {id}");
    let mut made = Reader::new(&[("table", "others"), ("where", &clause)]);
    assert_eq!(short(&made.catch_up(serve).await), [format!("insert {id}")], "others are made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_for_too_long() {
    let place = Place::new(ITEMS);
    let serve = place.serve().await;
    let mut bystander = serve.reader(&[("table", "others")]).await;
    // It is published, and has no writers from before.
    let mut before = serve.reader(&[("table", "items"), ("where", "id = 1")]).await;
    let (postgres, database) = (place.postgres, place.database.clone());
    let lock = "LOCK TABLE items IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(120)";
    let locking = std::thread::spawn(move || postgres.execute(&database, lock));
    let holder =
        "FROM pg_locks WHERE relation = 'items'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    until("it is locked", async || place.ask(&format!("SELECT count(*) {holder}")).as_deref() == Some("1"))
        .await;

    let some = [("table", "items"), ("where", "id < 3"), ("offset", "-1")];
    let mut waiting = serve.begin(&some).await;
    goes_on(&place, &serve, &mut bystander, 2).await;
    is_told(&waiting.response().await, "lock timeout");
    goes_on(&place, &serve, &mut bystander, 3).await;
    place.sql(&format!("SELECT pg_terminate_backend(pid) {holder}"));
    let _ended = locking.join().unwrap();
    assert_eq!(short(&Reader::new(&some[..2]).catch_up(&serve).await), ["insert 1", "insert 2"]);
    place.sql("UPDATE items SET note = 'uno' WHERE id = 1");
    assert_eq!(short(&before.live_changes(&serve, 1).await), ["update 1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_ends_in_the_middle_of_its_rows() {
    let place = Place::new(ITEMS);
    let proxy = Proxy::start(place.postgres.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), place.database);
    let serve = place.serve_with(&[("DATABASE_URL", &url)]).await;
    let mut bystander = serve.reader(&[("table", "others")]).await;
    // All rows would take 40 s.
    proxy.throttle(500_000);
    let mut reading = serve.begin(&[("table", "items"), ("offset", "-1")]).await;
    assert_eq!(reading.head().await.status, 200, "it has rows already");
    assert!(reading.chunk().await.is_some());
    let now = path(&[("table", "items"), ("offset", "now")]);
    let mut waiting = HttpConnection::get(serve.addr, &now, &[]).await;
    let copying = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY (SELECT%'";
    until("it is ended", async || {
        place.ask(&format!("SELECT count(pg_terminate_backend(pid)) {copying}")).as_deref() != Some("0")
    })
    .await;
    proxy.resume();
    is_told(&waiting.response().await, "connection");
    // Whoever was reading sees a stream that breaks, and never one that ends.
    let rest = tokio::time::timeout(Duration::from_secs(60), reading.rest()).await.unwrap();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{} bytes", rest.len());
    goes_on(&place, &serve, &mut bystander, 2).await;
    let all: Vec<Value> = Reader::new(&[("table", "items")]).catch_up(&serve).await;
    assert_eq!(changes(&all).len(), 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_shuts_down_while_the_stream_waits_for_its_word() {
    let postgres: &'static Postgres = Box::leak(Box::new(Postgres::builder().start().unwrap()));
    let place = Place::on(postgres, ITEMS);
    let serve = place.serve().await;
    let mut reader = serve.reader(&[("table", "others")]).await;

    // A session that was open before has the table described anew; by then nobody can ask what it is.
    let database = place.database.clone();
    let change = "SELECT pg_sleep(8); ALTER TABLE others ALTER note SET STATISTICS 10; INSERT INTO others VALUES (2, 'two')";
    let changing = std::thread::spawn(move || postgres.execute(&database, change));
    let of = format!(
        "FROM pg_stat_activity WHERE datname = '{}' AND backend_type = 'client backend'",
        place.database
    );
    let ask = |sql: &str| postgres.query("postgres", sql).unwrap()[0][0].clone();
    until("it is open", async || {
        ask(&format!("SELECT count(*) {of} AND query LIKE '%pg_sleep%'")).as_deref() == Some("1")
    })
    .await;
    let accept = |whether: bool| {
        let sql = format!("ALTER DATABASE {} ALLOW_CONNECTIONS {whether}", place.database);
        postgres.execute("postgres", &sql).unwrap();
    };
    accept(false);
    ask(&format!("SELECT count(pg_terminate_backend(pid)) {of} AND query NOT LIKE '%pg_sleep%'"));
    changing.join().unwrap().unwrap();
    until("the stream waits", async || serve.log().contains("replication paused")).await;

    // It waits for whoever streams, and gives up after a minute.
    block_in_place(|| postgres.restart_fast()).unwrap();
    accept(true);
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["insert 2"]);
}
