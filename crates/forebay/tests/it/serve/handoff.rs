//! A snapshot and its stream meet without a gap, also around a commit that is in the log and not yet in sight.
//!
//! Postgres writes a commit to its log, waits for its standbys, and only then lets snapshots see it. The stream has it before.

use std::time::Duration;

use forebay_sandbox::Postgres;
use tokio::time::timeout;

use super::support::{Place, Reader, changes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waits_for_its_standby_is_in_a_new_shape_all_the_same() {
    let postgres = Postgres::builder().config("synchronous_commit", "local");
    let postgres: &'static Postgres = Box::leak(Box::new(postgres.start().unwrap()));
    let place = Place::on(postgres, "CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = place.serve().await;
    let mut before = serve.reader(&[("table", "items")]).await;

    postgres.set_config("synchronous_standby_names", "nobody").unwrap();
    postgres.reload().unwrap();
    let database = place.database.clone();
    let insert = "SET synchronous_commit = on; INSERT INTO items VALUES (1, 'one')";
    let writer = std::thread::spawn(move || postgres.execute(&database, insert));
    // The stream has it; for whoever looks, it isn't there.
    assert_eq!(changes(&before.live_changes(&serve, 1).await).len(), 1);
    assert_eq!(place.ask("SELECT count(*) FROM items").as_deref(), Some("0"));

    let mut after = Reader::new(&[("table", "items"), ("where", "id > 0")]);
    let mut asking = serve.begin(&after.params()).await;
    // Either it answers without the row, or it waits until the row can be seen.
    let early = timeout(Duration::from_secs(1), asking.response()).await;
    postgres.set_config("synchronous_standby_names", "").unwrap();
    postgres.reload().unwrap();
    writer.join().unwrap().unwrap();
    let first = match early {
        Ok(answer) => answer,
        Err(_) => asking.response().await,
    };
    let mut seen = after.take(&first);
    place.sql("INSERT INTO items VALUES (2, 'two')");
    while !seen.iter().any(|message| message["value"]["id"] == "2") {
        seen.extend(after.live(&serve).await);
    }
    assert!(seen.iter().any(|message| message["value"]["id"] == "1"), "row 1 is lost: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_changed_by_a_commit_that_waits_for_its_standby_ends_its_shape_before_the_row() {
    let postgres = Postgres::builder().config("synchronous_commit", "local");
    let postgres: &'static Postgres = Box::leak(Box::new(postgres.start().unwrap()));
    let place = Place::on(
        postgres,
        "CREATE TABLE items (id int PRIMARY KEY, note text NOT NULL); INSERT INTO items VALUES (1, 'one')",
    );
    let serve = place.serve().await;
    let reader = serve.reader(&[("table", "items")]).await;
    let mut waiting = serve.begin(&[reader.params(), vec![("live", "true")]].concat()).await;
    postgres.set_config("synchronous_standby_names", "nobody").unwrap();
    postgres.reload().unwrap();
    let database = place.database.clone();
    let change = "SET synchronous_commit = on; ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, note);
        INSERT INTO items VALUES (1, 'uno')";
    let writer = std::thread::spawn(move || postgres.execute(&database, change));
    // For whoever looks, the key is what it was.
    let early = timeout(Duration::from_secs(1), waiting.head()).await;
    assert!(early.is_err(), "{early:?}");
    postgres.set_config("synchronous_standby_names", "").unwrap();
    postgres.reload().unwrap();
    writer.join().unwrap().unwrap();
    let head = waiting.head().await;
    assert_eq!(head.status, 409, "{}", head.text);
}
