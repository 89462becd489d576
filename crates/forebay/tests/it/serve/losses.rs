//! What the database has lost of its history: clients start over, and then have what it has. What it has kept, they go on with.

use forebay_sandbox::{Postgres, RecoveryTarget};
use forebay_testkit::Proxy;
use rustix::process::Signal;

use super::support::{Place, Reader, Serve, changes, short};
use crate::wire::until;

const ITEMS: &str = "CREATE TABLE items (id int PRIMARY KEY, note text);
    INSERT INTO items VALUES (1, 'one')";
const ITEM: [(&str, &str); 1] = [("table", "items")];
const QUICK: (&str, &str) = ("FOREBAY_SERVE_LONG_POLL_MS", "500");

fn leaked(postgres: Postgres) -> &'static Postgres {
    Box::leak(Box::new(postgres))
}

/// The reader is told to start over, and whoever does has these rows.
async fn starts_over(serve: &Serve, reader: &mut Reader<'_>, rows: &[&str]) {
    until("it is told to start over", async || {
        serve.get(&[reader.params(), vec![("live", "true")]].concat()).await.head.status == 409
    })
    .await;
    // While everything is set up again, nobody is.
    until("whoever starts over is served", async || {
        serve.get(&[("table", "items"), ("offset", "-1")]).await.head.status == 200
            && serve.get(&[("table", "items"), ("offset", "now")]).await.head.status == 200
    })
    .await;
    let mut anew = Reader::new(&ITEM);
    assert_eq!(short(&anew.catch_up(serve).await), rows);
    assert_ne!(anew.handle, reader.handle);
    *reader = anew;
}

/// What is done to the database while the server is down, and the rows that it has then.
async fn while_down(place: &Place, loss: &[&str], rows: &[&str]) {
    let mut serve = place.serve_with(&[QUICK]).await;
    let mut reader = serve.reader(&ITEM).await;
    serve.signal(Signal::TERM);
    serve.end().await;
    for sql in loss {
        place.sql(&sql.replace("SLOT", &place.slot));
    }
    let serve = place.serve_with(&[QUICK]).await;
    starts_over(&serve, &mut reader, rows).await;
    place.sql("INSERT INTO items VALUES (9, 'nine')");
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["insert 9"], "{loss:?}");
}

const MISSED: &str = "INSERT INTO items VALUES (2, 'missed')";
const BOTH: [&str; 2] = ["insert 1", "insert 2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_was_dropped() {
    let place = Place::new(ITEMS);
    while_down(&place, &[MISSED, "SELECT pg_drop_replication_slot('SLOT')"], &BOTH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_has_lost_its_log() {
    let forgetful = Postgres::builder()
        .config("max_slot_wal_keep_size", "1MB")
        .config("min_wal_size", "32MB")
        .config("max_wal_size", "32MB");
    let place = Place::on(leaked(forgetful.start().unwrap()), ITEMS);
    let next = "SELECT pg_logical_emit_message(false, 'log', 'goes on'); SELECT pg_switch_wal()";
    let lost = "DO $$ BEGIN ASSERT (SELECT wal_status = 'lost' FROM pg_replication_slots); END $$";
    while_down(&place, &[MISSED, next, next, next, next, "CHECKPOINT", lost], &BOTH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_was_made_again() {
    let place = Place::new(ITEMS);
    let again = "CREATE PUBLICATION SLOT FOR TABLE items WITH (publish_via_partition_root = true)";
    while_down(&place, &[MISSED, "DROP PUBLICATION SLOT", again], &BOTH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_was_out_of_the_publication() {
    let place = Place::new(ITEMS);
    while_down(&place, &["ALTER PUBLICATION SLOT DROP TABLE items", MISSED], &BOTH).await;
    let place = Place::new(ITEMS);
    let (out, back) = ("ALTER PUBLICATION SLOT DROP TABLE items", "ALTER PUBLICATION SLOT ADD TABLE items");
    while_down(&place, &[out, MISSED, back], &BOTH).await;
}

/// A server that reaches its database through a proxy.
async fn through(place: &Place, proxy: &Proxy, settings: &[(&str, &str)]) -> Serve {
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), place.database);
    place.serve_with(&[&[QUICK, ("DATABASE_URL", &url)], settings].concat()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_restored_to_an_earlier_point() {
    let postgres = leaked(Postgres::builder().archive().start().unwrap());
    let place = Place::on(postgres, ITEMS);
    let proxy = Proxy::start(postgres.addr());
    let serve = through(&place, &proxy, &[]).await;
    let mut reader = serve.reader(&ITEM).await;
    let backup = postgres.backup().unwrap();
    place.sql("INSERT INTO items VALUES (2, 'kept')");
    place.sql("SELECT pg_create_restore_point('here')");
    place.sql("INSERT INTO items VALUES (3, 'undone')");
    assert_eq!(short(&reader.live_changes(&serve, 2).await), ["insert 2", "insert 3"]);
    let restored = postgres.restore_to(&backup, RecoveryTarget::Name("here")).unwrap();
    proxy.fail_over_to(restored.addr());
    starts_over(&serve, &mut reader, &BOTH).await;
    restored.execute(&place.database, "INSERT INTO items VALUES (3, 'anew')").unwrap();
    let anew = reader.live_changes(&serve, 1).await;
    assert_eq!(changes(&anew)[0]["value"]["note"], "anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_was_promoted_without_the_slot() {
    let primary = leaked(Postgres::builder().version(18).start().unwrap());
    let place = Place::on(primary, ITEMS);
    let standby = primary.standby().start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let serve = through(&place, &proxy, &[]).await;
    let mut reader = serve.reader(&ITEM).await;
    place.sql("INSERT INTO items VALUES (2, 'two')");
    reader.live_changes(&serve, 1).await;
    // In good order, so that the standby has all of it.
    primary.stop().unwrap();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    starts_over(&serve, &mut reader, &BOTH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_was_promoted_with_the_slot_is_gone_on_with() {
    let primary = leaked(Postgres::builder().version(18).start().unwrap());
    let place = Place::on(primary, ITEMS);
    let standby = primary.standby().failover_slots().start().unwrap();
    let proxy = Proxy::start(primary.addr());
    let serve = through(&place, &proxy, &[("FOREBAY_DATABASE_FAILOVER_SLOT", "true")]).await;
    let mut reader = serve.reader(&ITEM).await;
    let handle = reader.handle.clone();
    until("the standby has the slot", async || {
        // It needs a list of what runs that is younger than the slot.
        primary.execute("postgres", "SELECT pg_log_standby_snapshot()").unwrap();
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary";
        standby.query("postgres", slots).unwrap()[0][0].as_deref() == Some("1")
    })
    .await;
    place.sql("INSERT INTO items VALUES (2, 'before')");
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["insert 2"]);
    primary.kill();
    standby.promote().unwrap();
    proxy.fail_over_to(standby.addr());
    standby.execute(&place.database, "INSERT INTO items VALUES (3, 'after')").unwrap();
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["insert 3"]);
    assert_eq!(reader.handle, handle);
}
