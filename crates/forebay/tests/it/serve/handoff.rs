//! Handoff from snapshot to stream without a gap, for commits that wait for a synchronous standby.
//!
//! Postgres writes a commit to the WAL, waits for the standby, and only then lets snapshots see it.
//! The replication stream sends it before snapshots see it.

use std::time::Duration;

use forebay_sandbox::Postgres;
use tokio::time::timeout;

use super::support::{ServeFixture, ShapeReader, changes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_its_standby_is_in_a_new_shape() {
    let postgres = Postgres::builder().config("synchronous_commit", "local");
    let postgres: &'static Postgres = Box::leak(Box::new(postgres.start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, "CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = fixture.serve().await;
    let mut before = serve.reader(&[("table", "items")]).await;

    postgres.set_config("synchronous_standby_names", "absent_standby").unwrap();
    postgres.reload().unwrap();
    let database = fixture.database.clone();
    let insert = "SET synchronous_commit = on; INSERT INTO items VALUES (1, 'one')";
    let writer = std::thread::spawn(move || postgres.execute(&database, insert));
    // The stream has the row, and queries don't see it.
    assert_eq!(changes(&before.live_changes(&serve, 1).await).len(), 1);
    assert_eq!(fixture.query_value("SELECT count(*) FROM items").as_deref(), Some("0"));

    let mut after = ShapeReader::new(&[("table", "items"), ("where", "id > 0")]);
    let mut request = serve.start_get(&after.params()).await;
    // The server responds without the row, or waits until queries see it.
    let early = timeout(Duration::from_secs(1), request.response()).await;
    postgres.set_config("synchronous_standby_names", "").unwrap();
    postgres.reload().unwrap();
    writer.join().unwrap().unwrap();
    let first = match early {
        Ok(response) => response,
        Err(_) => request.response().await,
    };
    let mut seen = after.accept(&first);
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    while !seen.iter().any(|message| message["value"]["id"] == "2") {
        seen.extend(after.long_poll(&serve).await);
    }
    assert!(seen.iter().any(|message| message["value"]["id"] == "1"), "row 1 is lost: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ddl_that_waits_for_its_standby_ends_the_shape_before_the_next_row() {
    let postgres = Postgres::builder().config("synchronous_commit", "local");
    let postgres: &'static Postgres = Box::leak(Box::new(postgres.start().unwrap()));
    let fixture = ServeFixture::on_postgres(
        postgres,
        "CREATE TABLE items (id int PRIMARY KEY, note text NOT NULL); INSERT INTO items VALUES (1, 'one')",
    );
    let serve = fixture.serve().await;
    let reader = serve.reader(&[("table", "items")]).await;
    let mut waiting = serve.start_get(&[reader.params(), vec![("live", "true")]].concat()).await;
    postgres.set_config("synchronous_standby_names", "absent_standby").unwrap();
    postgres.reload().unwrap();
    let database = fixture.database.clone();
    let change = "SET synchronous_commit = on; ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, note);
        INSERT INTO items VALUES (1, 'uno')";
    let writer = std::thread::spawn(move || postgres.execute(&database, change));
    // Queries still see the old key.
    let early = timeout(Duration::from_secs(1), waiting.head()).await;
    assert!(early.is_err(), "{early:?}");
    postgres.set_config("synchronous_standby_names", "").unwrap();
    postgres.reload().unwrap();
    writer.join().unwrap().unwrap();
    let head = waiting.head().await;
    assert_eq!(head.status, 409, "{}", head.text);
}
