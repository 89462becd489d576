//! Tests of the wait for transactions that wrote before the table was published.

use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_serve::database::{WritersError, wait_for_writers};
use tokio::time::{Instant, sleep, timeout};

use super::{Database, query};
use crate::database::CollectingSink;
use crate::deadline::within;

const SHORT: Duration = Duration::from_millis(200);

fn items() -> Database {
    Database::new(
        15,
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int);
         CREATE TABLE parts (id int) PARTITION BY RANGE (id);
         CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10) PARTITION BY LIST (id);
         CREATE TABLE five PARTITION OF low FOR VALUES IN (5)",
    )
}

async fn wait(database: &Database, table: &str, patience: Duration) -> Result<(), WritersError> {
    let oid = database.describe(table).await.oid;
    let client = database.client().await;
    within("the wait", wait_for_writers(&client, oid, Instant::now() + patience)).await
}

fn is_open(outcome: &Result<(), WritersError>, count: usize) -> bool {
    matches!(outcome, Err(WritersError::Open { open, .. }) if *open == count)
}

#[tokio::test]
async fn only_transactions_that_wrote_to_the_table_are_waited_for() {
    let database = items();
    for (table, statement, is_writer) in [
        ("t", "INSERT INTO t VALUES (1)", true),
        ("t", "DELETE FROM t", true),
        ("t", "TRUNCATE t", true),
        ("parts", "INSERT INTO parts VALUES (5)", true),
        ("parts", "INSERT INTO five VALUES (5)", true),
        ("parts", "TRUNCATE five", true),
        ("t", "SELECT * FROM t FOR UPDATE", false),
        ("t", "LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE", false),
        ("t", "INSERT INTO other VALUES (1)", false),
        ("five", "INSERT INTO other VALUES (1)", false),
    ] {
        let oid = database.describe(table).await.oid;
        let (writer, client) = (database.client().await, database.client().await);
        writer.batch_execute(&format!("BEGIN; {statement}")).await.unwrap();
        let outcome = within("the wait", wait_for_writers(&client, oid, Instant::now() + SHORT)).await;
        assert_eq!(is_open(&outcome, 1), is_writer, "{statement}: {outcome:?}");
        writer.batch_execute("ROLLBACK").await.unwrap();
        wait_for_writers(&client, oid, Instant::now() + SHORT).await.unwrap();
    }
}

#[tokio::test]
async fn the_wait_ends_with_the_earlier_writers_and_ignores_later_ones() {
    let database = items();
    let oid = database.describe("t").await.oid;
    let (first, client) = (database.client().await, database.client().await);
    first.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    let mut waiting = Box::pin(wait_for_writers(&client, oid, Instant::now() + Duration::from_secs(20)));
    assert!(timeout(SHORT, &mut waiting).await.is_err(), "the first transaction is open");
    // A later transaction of the same session isn't waited for.
    first.batch_execute("COMMIT; BEGIN; INSERT INTO t VALUES (2)").await.unwrap();
    within("the end", waiting).await.unwrap();
}

#[tokio::test]
async fn the_error_has_the_number_and_the_age_of_open_writers() {
    let database = items();
    let writer = database.client().await;
    writer.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    sleep(Duration::from_millis(1100)).await;
    let error = wait(&database, "t", SHORT).await.unwrap_err();
    let WritersError::Open { open: 1, oldest: Some(oldest), waited } = &error else { panic!("{error:?}") };
    assert!(*oldest > Duration::from_secs(1) && *waited >= SHORT && waited < oldest, "{error:?}");
    let message = error.to_string();
    let before =
        "1 transaction has written to the table and been open since before it was published, the oldest for";
    assert!(message.starts_with(&format!("{before} {} s: waited ", oldest.as_secs())), "{message}");
}

/// The wait failed because of the writers, whether their age is known or not.
#[tokio::test]
async fn the_error_has_the_number_of_open_writers_if_their_age_can_not_be_read() {
    let database = items();
    database.run("CREATE ROLE no_age; REVOKE SELECT ON pg_prepared_xacts FROM PUBLIC");
    let oid = database.describe("t").await.oid;
    let (writer, client) = (database.client().await, database.client().await);
    writer.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    client.batch_execute("SET ROLE no_age").await.unwrap();
    let outcome = within("the wait", wait_for_writers(&client, oid, Instant::now() + SHORT)).await;
    let is_open = matches!(outcome, Err(WritersError::Open { open: 1, oldest: None, .. }));
    assert!(is_open, "{outcome:?}");
}

#[tokio::test]
async fn prepared_transactions_are_waited_for_whenever_they_were_prepared() {
    for version in [15, 18] {
        let postgres =
            Postgres::builder().version(version).config("max_prepared_transactions", "4").start().unwrap();
        let database = Database::on(Box::leak(Box::new(postgres)), "CREATE TABLE t (id int PRIMARY KEY)");
        let oid = database.describe("t").await.oid;
        let (writer, client) = (database.client().await, database.client().await);
        let wait = || wait_for_writers(&client, oid, Instant::now() + Duration::from_secs(20));

        // Prepared before the wait.
        writer.batch_execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'a'").await.unwrap();
        let outcome = wait_for_writers(&client, oid, Instant::now() + SHORT).await;
        assert!(matches!(outcome, Err(WritersError::Open { open: 1, oldest: Some(_), .. })), "{outcome:?}");
        // Prepared during the wait.
        writer.batch_execute("BEGIN; INSERT INTO t VALUES (2)").await.unwrap();
        let mut waiting = Box::pin(wait());
        assert!(timeout(SHORT, &mut waiting).await.is_err());
        writer.batch_execute("PREPARE TRANSACTION 'b'").await.unwrap();
        writer.batch_execute("COMMIT PREPARED 'a'").await.unwrap();
        assert!(timeout(SHORT, &mut waiting).await.is_err(), "the second is open still");
        writer.batch_execute("COMMIT PREPARED 'b'").await.unwrap();
        within("the end", waiting).await.unwrap();

        // After a restart, it has a different virtual transaction id.
        writer.batch_execute("BEGIN; INSERT INTO t VALUES (3); PREPARE TRANSACTION 'c'").await.unwrap();
        database.postgres.restart_fast().unwrap();
        drop((writer, client));
        let client = database.client().await;
        let outcome = wait_for_writers(&client, oid, Instant::now() + SHORT).await;
        assert!(is_open(&outcome, 1), "{outcome:?}");
        database.run("ROLLBACK PREPARED 'c'");
        wait_for_writers(&client, oid, Instant::now() + Duration::from_secs(20)).await.unwrap();
        database.postgres.stop().unwrap();
    }
}

/// The writer's row is in no stream, and without the wait it would be in no snapshot.
#[tokio::test]
async fn a_writer_that_is_open_across_the_table_s_publication_is_in_the_snapshot() {
    let database = items();
    database.run("CREATE PUBLICATION p");
    let table = database.describe("t").await;
    let (writer, client) = (database.client().await, database.client().await);
    writer.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    database.run("ALTER PUBLICATION p ADD TABLE ONLY t");
    let mut waiting =
        Box::pin(wait_for_writers(&client, table.oid, Instant::now() + Duration::from_secs(20)));
    assert!(timeout(SHORT, &mut waiting).await.is_err());
    writer.batch_execute("COMMIT").await.unwrap();
    within("the end", waiting).await.unwrap();
    drop((writer, client));
    let mut sink = CollectingSink::default();
    database.read(&query(&table, &[0], None), &mut sink).await.unwrap();
    assert_eq!(sink.messages().len(), 1);
}
