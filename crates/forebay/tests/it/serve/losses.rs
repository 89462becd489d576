//! The database, its slot or its publication loses changes: clients start over and then have the
//! current rows. If nothing was lost, they continue.

use forebay_sandbox::{Postgres, RecoveryTarget};
use forebay_testkit::Proxy;
use rustix::process::Signal;

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, summarize};
use crate::wire::until;

const CREATE_ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
const SHORT_LONG_POLL: (&str, &str) = ("FOREBAY_SERVE_LONG_POLL_MS", "500");

fn leaked(postgres: Postgres) -> &'static Postgres {
    Box::leak(Box::new(postgres))
}

/// Waits until the reader gets a 409, and checks that a new reader gets these rows.
async fn expect_refetch_with_rows(serve: &ServeProcess, reader: &mut ShapeReader<'_>, rows: &[&str]) {
    until("the reader gets a 409", async || {
        serve.get(&[reader.params(), vec![("live", "true")]].concat()).await.head.status == 409
    })
    .await;
    // While the slot and the publication are created again, requests are refused.
    until("the shape is served again", async || {
        serve.get(&[("table", "items"), ("offset", "-1")]).await.head.status == 200
            && serve.get(&[("table", "items"), ("offset", "now")]).await.head.status == 200
    })
    .await;
    let mut fresh = ShapeReader::new(&ITEMS_SHAPE);
    assert_eq!(summarize(&fresh.catch_up(serve).await), rows);
    assert_ne!(fresh.handle, reader.handle);
    *reader = fresh;
}

/// Runs scripts while the server is down, and checks that the reader starts over with these rows.
async fn lose_while_down(fixture: &ServeFixture, loss: &[&str], rows: &[&str]) {
    let mut serve = fixture.serve_with(&[SHORT_LONG_POLL]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    serve.signal(Signal::TERM);
    serve.end().await;
    for sql in loss {
        fixture.sql(&sql.replace("SLOT", &fixture.slot));
    }
    let serve = fixture.serve_with(&[SHORT_LONG_POLL]).await;
    expect_refetch_with_rows(&serve, &mut reader, rows).await;
    fixture.sql("INSERT INTO items VALUES (9, 'nine')");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 9"], "{loss:?}");
}

const INSERT_MISSED_ROW: &str = "INSERT INTO items VALUES (2, 'missed')";
const BOTH_ROWS: [&str; 2] = ["insert 1", "insert 2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_over_after_the_slot_was_dropped() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    lose_while_down(&fixture, &[INSERT_MISSED_ROW, "SELECT pg_drop_replication_slot('SLOT')"], &BOTH_ROWS)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_over_after_the_slot_lost_its_wal() {
    let forgetful = Postgres::builder()
        .config("max_slot_wal_keep_size", "1MB")
        .config("min_wal_size", "32MB")
        .config("max_wal_size", "32MB");
    let fixture = ServeFixture::on_postgres(leaked(forgetful.start().unwrap()), CREATE_ITEMS);
    let next = "SELECT pg_logical_emit_message(false, 'log', 'goes on'); SELECT pg_switch_wal()";
    let lost = "DO $$ BEGIN ASSERT (SELECT wal_status = 'lost' FROM pg_replication_slots); END $$";
    lose_while_down(&fixture, &[INSERT_MISSED_ROW, next, next, next, next, "CHECKPOINT", lost], &BOTH_ROWS)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_over_after_the_publication_was_created_again() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let again = "CREATE PUBLICATION SLOT FOR TABLE items WITH (publish_via_partition_root = true)";
    lose_while_down(&fixture, &[INSERT_MISSED_ROW, "DROP PUBLICATION SLOT", again], &BOTH_ROWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_over_after_their_table_was_unpublished() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    lose_while_down(&fixture, &["ALTER PUBLICATION SLOT DROP TABLE items", INSERT_MISSED_ROW], &BOTH_ROWS)
        .await;
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let (out, back) = ("ALTER PUBLICATION SLOT DROP TABLE items", "ALTER PUBLICATION SLOT ADD TABLE items");
    lose_while_down(&fixture, &[out, INSERT_MISSED_ROW, back], &BOTH_ROWS).await;
}

/// Starts a server that connects to the database through a proxy.
async fn serve_through(fixture: &ServeFixture, proxy: &Proxy, settings: &[(&str, &str)]) -> ServeProcess {
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), fixture.database);
    fixture.serve_with(&[&[SHORT_LONG_POLL, ("DATABASE_URL", &url)], settings].concat()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_over_after_the_database_was_restored_to_an_earlier_point() {
    let postgres = leaked(Postgres::builder().archive().start().unwrap());
    let fixture = ServeFixture::on_postgres(postgres, CREATE_ITEMS);
    let proxy = Proxy::start(postgres.addr());
    let serve = serve_through(&fixture, &proxy, &[]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let backup = postgres.backup().unwrap();
    fixture.sql("INSERT INTO items VALUES (2, 'kept')");
    fixture.sql("SELECT pg_create_restore_point('here')");
    fixture.sql("INSERT INTO items VALUES (3, 'undone')");
    assert_eq!(summarize(&reader.live_changes(&serve, 2).await), ["insert 2", "insert 3"]);
    let restored = postgres.restore_to(&backup, RecoveryTarget::Name("here")).unwrap();
    proxy.fail_over_to(restored.addr());
    expect_refetch_with_rows(&serve, &mut reader, &BOTH_ROWS).await;
    restored.execute(&fixture.database, "INSERT INTO items VALUES (3, 'anew')").unwrap();
    let again = reader.live_changes(&serve, 1).await;
    assert_eq!(changes(&again)[0]["value"]["note"], "anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_over_after_a_standby_without_the_slot_was_promoted() {
    let primary = leaked(Postgres::builder().version(18).start().unwrap());
    let fixture = ServeFixture::on_postgres(primary, CREATE_ITEMS);
    let standby = primary.standby().start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let serve = serve_through(&fixture, &proxy, &[]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    fixture.sql("INSERT INTO items VALUES (2, 'two')");
    reader.live_changes(&serve, 1).await;
    // A clean shutdown, so that the standby has everything.
    primary.stop().unwrap();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    expect_refetch_with_rows(&serve, &mut reader, &BOTH_ROWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_continue_after_a_standby_with_the_slot_was_promoted() {
    let primary = leaked(Postgres::builder().version(18).start().unwrap());
    let fixture = ServeFixture::on_postgres(primary, CREATE_ITEMS);
    let standby = primary.standby().failover_slots().start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let serve = serve_through(&fixture, &proxy, &[("FOREBAY_DATABASE_FAILOVER_SLOT", "true")]).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let handle = reader.handle.clone();
    until("the standby has the slot", async || {
        // The standby needs a list of running transactions that is newer than the slot.
        primary.execute("postgres", "SELECT pg_log_standby_snapshot()").unwrap();
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        standby.query("postgres", slots).unwrap()[0][0].as_deref() == Some("1")
    })
    .await;
    fixture.sql("INSERT INTO items VALUES (2, 'before')");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 2"]);
    primary.kill();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    standby.execute(&fixture.database, "INSERT INTO items VALUES (3, 'after')").unwrap();
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["insert 3"]);
    assert_eq!(reader.handle, handle);
}
