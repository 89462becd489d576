//! The publication under the hands of others, and tables that leave it when no shape needs them.

use super::support::{Place, Reader, Serve, changes, column, short};
use crate::wire::until;

const TABLES: &str =
    "CREATE TABLE items (id int PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'a'), (2, 'a');
    CREATE TABLE others (id int PRIMARY KEY, note text); INSERT INTO others VALUES (1, 'a')";
const LIVE: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];
const ITEMS: [(&str, &str); 1] = [("table", "items")];
const OTHERS: [(&str, &str); 1] = [("table", "others")];

/// Reads on until it is told to start over. Fails if it is told of the row that was changed last:
/// the change before it is missing.
async fn is_never_torn(serve: &Serve, reader: &mut Reader<'_>, why: &str) {
    loop {
        let answer = serve.get(&[reader.params(), vec![("live", "true")]].concat()).await;
        if answer.head.status == 409 {
            return;
        }
        let messages = reader.take(&answer);
        assert!(changes(&messages).is_empty(), "{why}: {messages:?}");
    }
}

#[tokio::test]
async fn a_publication_that_was_narrowed_for_a_moment_replaces_shapes_before_their_next_change() {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&LIVE).await;
    let publication = &place.slot;
    for (narrowed, widened) in [
        ("DROP TABLE items", "ADD TABLE items"),
        ("SET (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')"),
        ("SET TABLE items WHERE (id > 1), others", "SET TABLE items, others"),
        ("SET TABLE items (id), others", "SET TABLE items, others"),
    ] {
        let mut reader = serve.reader(&ITEMS).await;
        let mut others = serve.reader(&OTHERS).await;
        // A column list that leaves columns out refuses updates of a table with full old rows.
        let change = match narrowed.contains("(id)") {
            true => "INSERT INTO items SELECT max(id) + 1, 'lost' FROM items",
            false => "UPDATE items SET note = note || 'x' WHERE id = 1",
        };
        place.sql(&format!("ALTER PUBLICATION {publication} {narrowed}"));
        place.sql(change);
        place.sql(&format!("ALTER PUBLICATION {publication} {widened}"));
        place.sql("UPDATE items SET note = note || 'y' WHERE id = 2");
        is_never_torn(&serve, &mut reader, narrowed).await;
        let rows = place.ask("SELECT string_agg(note, ' ' ORDER BY note) FROM items").unwrap();
        assert_eq!(column(&serve, &ITEMS, "note").await.join(" "), rows, "{narrowed}");
        if narrowed == "DROP TABLE items" {
            place.sql("UPDATE others SET note = 'b'");
            assert_eq!(short(&others.live_changes(&serve, 1).await), ["update 1"], "{narrowed}");
        }
    }
}

#[tokio::test]
async fn no_shape_is_made_while_the_publication_leaves_changes_out() {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&LIVE).await;
    let mut reader = serve.reader(&ITEMS).await;
    let publication = &place.slot;
    place.sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"));
    reader.starts_over(&serve).await;
    let refused = serve.get(&[("table", "items"), ("offset", "-1")]).await;
    assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    let said = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(said.contains("leaves out a kind of change"), "{said}");
    place.sql("UPDATE items SET note = 'b' WHERE id = 1");
    place.sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"));
    until("shapes are made again", async || {
        serve.get(&[("table", "items"), ("offset", "-1")]).await.head.status == 200
    })
    .await;
    assert_eq!(column(&serve, &ITEMS, "note").await, ["a", "b"]);
}

#[tokio::test]
async fn a_publication_that_was_narrowed_while_the_server_was_away_replaces_shapes() {
    let place = Place::new(TABLES);
    let serve = place.serve_with(&LIVE).await;
    let mut reader = serve.reader(&ITEMS).await;
    serve.stop().await;
    let publication = &place.slot;
    place.sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"));
    place.sql("UPDATE items SET note = 'lost' WHERE id = 1");
    place.sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"));
    let serve = place.serve_with(&LIVE).await;
    is_never_torn(&serve, &mut reader, "away").await;
    assert_eq!(column(&serve, &ITEMS, "note").await, ["a", "lost"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_cannot_be_taken_out_yet_is_served_meanwhile() {
    let postgres = Box::leak(Box::new(forebay_sandbox::Postgres::builder().start().unwrap()));
    let place = Place::on(postgres, TABLES);
    let settings =
        [LIVE[0], ("FOREBAY_SERVE_ALLOW_DELETE", "true"), ("FOREBAY_DATABASE_UNPUBLISH_AFTER_MS", "500")];
    let serve = place.serve_with(&settings).await;
    let reader = serve.reader(&ITEMS).await;
    let session =
        forebay_replication::reservoir::PostgresConnect::new(&postgres.url(&place.database)).unwrap();
    let config = forebay_replication::reservoir::ReservoirConfig::new(1);
    let limits = forebay_replication::reservoir::ConnectionLimits::local();
    let sessions = forebay_replication::reservoir::Reservoir::start(session, config, limits).unwrap();
    let session = sessions.checkout().await.unwrap();
    // As VACUUM or CREATE INDEX CONCURRENTLY hold it.
    session.batch_execute("BEGIN; LOCK TABLE items IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    serve.ask("DELETE", &super::support::path(&reader.params()), &[], "").await;
    until("it was tried", async || serve.log().contains("table not removed from the publication")).await;
    let mut reader = serve.reader(&ITEMS).await;
    place.sql("UPDATE items SET note = 'seen' WHERE id = 1");
    assert_eq!(short(&reader.live_changes(&serve, 1).await), ["update 1"]);
    session.batch_execute("COMMIT").await.unwrap();
}

fn published(place: &Place) -> String {
    let sql = format!(
        "SELECT coalesce(string_agg(tablename, ' ' ORDER BY tablename), '') FROM pg_publication_tables WHERE pubname = '{}'",
        place.slot
    );
    place.ask(&sql).unwrap()
}

#[tokio::test]
async fn a_table_leaves_the_publication_some_time_after_its_last_shape_and_comes_back() {
    let postgres = Box::leak(Box::new(forebay_sandbox::Postgres::builder().start().unwrap()));
    let place = Place::on(postgres, TABLES);
    let settings =
        [LIVE[0], ("FOREBAY_SERVE_ALLOW_DELETE", "true"), ("FOREBAY_DATABASE_UNPUBLISH_AFTER_MS", "500")];
    let serve = place.serve_with(&settings).await;
    let mut others = serve.reader(&OTHERS).await;
    for round in 0..2 {
        let reader = serve.reader(&ITEMS).await;
        assert_eq!(published(&place), "items others");
        let deleted = serve.ask("DELETE", &super::support::path(&reader.params()), &[], "").await;
        assert_eq!(deleted.head.status, 202);
        until("the table has left", async || published(&place) == "others").await;
        place.sql(&format!("UPDATE items SET note = 'unseen {round}' WHERE id = 1"));
        // It comes back with its next shape, and is followed again.
        let mut reader = serve.reader(&ITEMS).await;
        place.sql(&format!("UPDATE items SET note = 'seen {round}' WHERE id = 1"));
        assert_eq!(short(&reader.live_changes(&serve, 1).await), ["update 1"]);
        let deleted = serve.ask("DELETE", &super::support::path(&reader.params()), &[], "").await;
        assert_eq!(deleted.head.status, 202);
    }
    until("the table has left", async || published(&place) == "others").await;
    place.sql("UPDATE others SET note = 'b'");
    assert_eq!(short(&others.live_changes(&serve, 1).await), ["update 1"], "a table in use stays");
    assert!(serve.log().contains("removed from the publication"));
    // One that was left by the process before goes, too; but not while another slot may read the
    // publication.
    serve.reader(&ITEMS).await;
    place.sql("SELECT pg_create_logical_replication_slot('another', 'pgoutput')");
    let reader = serve.reader(&ITEMS).await;
    serve.ask("DELETE", &super::support::path(&reader.params()), &[], "").await;
    serve.stop().await;
    let serve = place.serve_with(&settings).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(published(&place), "items others");
    place.sql("SELECT pg_drop_replication_slot('another')");
    until("the table has left", async || published(&place) == "others").await;
    drop(serve);
}
