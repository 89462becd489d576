//! Changes of the publication by other clients of the database, and tables that the server
//! unpublishes when no shape needs them.

use super::support::{ServeFixture, ServeProcess, ShapeReader, changes, column_values, summarize};
use crate::wire::until;

const CREATE_TABLES: &str =
    "CREATE TABLE items (id int PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'a'), (2, 'a');
    CREATE TABLE others (id int PRIMARY KEY, note text); INSERT INTO others VALUES (1, 'a')";
const SHORT_LONG_POLL: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];
/// Settings of a server that soon unpublishes tables without shapes.
const UNPUBLISHING: [(&str, &str); 3] = [
    SHORT_LONG_POLL[0],
    ("FOREBAY_SERVE_ALLOW_DELETE", "true"),
    ("FOREBAY_DATABASE_UNPUBLISH_AFTER_MS", "500"),
];
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];
const OTHERS_SHAPE: [(&str, &str); 1] = [("table", "others")];

/// Reads until a 409. Fails if a change arrives before it: an earlier change would be missing.
async fn expect_refetch_before_changes(serve: &ServeProcess, reader: &mut ShapeReader<'_>, why: &str) {
    loop {
        let response = serve.get(&[reader.params(), vec![("live", "true")]].concat()).await;
        if response.head.status == 409 {
            return;
        }
        let messages = reader.accept(&response);
        assert!(changes(&messages).is_empty(), "{why}: {messages:?}");
    }
}

#[tokio::test]
async fn a_publication_that_was_narrowed_briefly_replaces_shapes_before_their_next_change() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let publication = &fixture.slot;
    for (narrowed, widened) in [
        ("DROP TABLE items", "ADD TABLE items"),
        ("SET (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')"),
        ("SET TABLE items WHERE (id > 1), others", "SET TABLE items, others"),
        ("SET TABLE items (id), others", "SET TABLE items, others"),
    ] {
        let mut reader = serve.reader(&ITEMS_SHAPE).await;
        let mut others = serve.reader(&OTHERS_SHAPE).await;
        // With a column list, Postgres refuses updates of a table with REPLICA IDENTITY FULL.
        let change = match narrowed.contains("(id)") {
            true => "INSERT INTO items SELECT max(id) + 1, 'lost' FROM items",
            false => "UPDATE items SET note = note || 'x' WHERE id = 1",
        };
        fixture.sql(&format!("ALTER PUBLICATION {publication} {narrowed}"));
        fixture.sql(change);
        fixture.sql(&format!("ALTER PUBLICATION {publication} {widened}"));
        fixture.sql("UPDATE items SET note = note || 'y' WHERE id = 2");
        expect_refetch_before_changes(&serve, &mut reader, narrowed).await;
        let rows = fixture.query_value("SELECT string_agg(note, ' ' ORDER BY note) FROM items").unwrap();
        assert_eq!(column_values(&serve, &ITEMS_SHAPE, "note").await.join(" "), rows, "{narrowed}");
        if narrowed == "DROP TABLE items" {
            fixture.sql("UPDATE others SET note = 'b'");
            assert_eq!(summarize(&others.live_changes(&serve, 1).await), ["update 1"], "{narrowed}");
        }
    }
}

#[tokio::test]
async fn no_shape_is_created_while_the_publication_omits_changes() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    let publication = &fixture.slot;
    fixture.sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"));
    reader.wait_for_refetch(&serve).await;
    let refused = serve.get(&[("table", "items"), ("offset", "-1")]).await;
    assert_eq!(refused.head.status, 503, "{}", refused.head.text);
    let reason = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(reason.contains("leaves out a kind of change"), "{reason}");
    fixture.sql("UPDATE items SET note = 'b' WHERE id = 1");
    fixture
        .sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"));
    until("shapes are created again", async || {
        serve.get(&[("table", "items"), ("offset", "-1")]).await.head.status == 200
    })
    .await;
    assert_eq!(column_values(&serve, &ITEMS_SHAPE, "note").await, ["a", "b"]);
}

#[tokio::test]
async fn a_publication_that_was_narrowed_while_the_server_was_down_replaces_shapes() {
    let fixture = ServeFixture::new(CREATE_TABLES);
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    serve.stop().await;
    let publication = &fixture.slot;
    fixture.sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"));
    fixture.sql("UPDATE items SET note = 'lost' WHERE id = 1");
    fixture
        .sql(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"));
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    expect_refetch_before_changes(&serve, &mut reader, "while the server was down").await;
    assert_eq!(column_values(&serve, &ITEMS_SHAPE, "note").await, ["a", "lost"]);
}

/// Starts a server with the settings [`UNPUBLISHING`], on a Postgres of its own.
async fn serve_with_unpublishing() -> (ServeFixture, ServeProcess) {
    let postgres = Box::leak(Box::new(forebay_sandbox::Postgres::builder().start().unwrap()));
    let fixture = ServeFixture::on_postgres(postgres, CREATE_TABLES);
    let serve = fixture.serve_with(&UNPUBLISHING).await;
    (fixture, serve)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_cannot_be_unpublished_yet_is_still_served() {
    let (fixture, serve) = serve_with_unpublishing().await;
    let reader = serve.reader(&ITEMS_SHAPE).await;
    let session =
        forebay_replication::reservoir::PostgresConnect::new(&fixture.postgres.url(&fixture.database))
            .unwrap();
    let config = forebay_replication::reservoir::ReservoirConfig::new(1);
    let limits = forebay_replication::reservoir::ConnectionLimits::local();
    let sessions = forebay_replication::reservoir::Reservoir::start(session, config, limits).unwrap();
    let session = sessions.checkout().await.unwrap();
    // The lock of VACUUM and of CREATE INDEX CONCURRENTLY.
    session.batch_execute("BEGIN; LOCK TABLE items IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    serve.request("DELETE", &super::support::path(&reader.params()), &[], "").await;
    until("the server has tried to unpublish the table", async || {
        serve.log().contains("table not removed from the publication")
    })
    .await;
    let mut reader = serve.reader(&ITEMS_SHAPE).await;
    fixture.sql("UPDATE items SET note = 'seen' WHERE id = 1");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"]);
    session.batch_execute("COMMIT").await.unwrap();
}

/// Returns the published tables.
fn published(fixture: &ServeFixture) -> String {
    let sql = format!(
        "SELECT coalesce(string_agg(tablename, ' ' ORDER BY tablename), '') FROM pg_publication_tables WHERE pubname = '{}'",
        fixture.slot
    );
    fixture.query_value(&sql).unwrap()
}

#[tokio::test]
async fn a_table_is_unpublished_after_its_last_shape_and_published_again_with_the_next() {
    let (fixture, serve) = serve_with_unpublishing().await;
    let mut others = serve.reader(&OTHERS_SHAPE).await;
    for round in 0..2 {
        let reader = serve.reader(&ITEMS_SHAPE).await;
        assert_eq!(published(&fixture), "items others");
        let deleted = serve.request("DELETE", &super::support::path(&reader.params()), &[], "").await;
        assert_eq!(deleted.head.status, 202);
        until("the table is unpublished", async || published(&fixture) == "others").await;
        fixture.sql(&format!("UPDATE items SET note = 'unseen {round}' WHERE id = 1"));
        // The table is published again with its next shape, which gets changes.
        let mut reader = serve.reader(&ITEMS_SHAPE).await;
        fixture.sql(&format!("UPDATE items SET note = 'seen {round}' WHERE id = 1"));
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"]);
        let deleted = serve.request("DELETE", &super::support::path(&reader.params()), &[], "").await;
        assert_eq!(deleted.head.status, 202);
    }
    until("the table is unpublished", async || published(&fixture) == "others").await;
    fixture.sql("UPDATE others SET note = 'b'");
    assert_eq!(
        summarize(&others.live_changes(&serve, 1).await),
        ["update 1"],
        "a table with a shape stays published"
    );
    assert!(serve.log().contains("removed from the publication"));
    // A table that an earlier process published is also removed, but not while another slot may use
    // the publication.
    serve.reader(&ITEMS_SHAPE).await;
    fixture.sql("SELECT pg_create_logical_replication_slot('another', 'pgoutput')");
    let reader = serve.reader(&ITEMS_SHAPE).await;
    serve.request("DELETE", &super::support::path(&reader.params()), &[], "").await;
    serve.stop().await;
    let serve = fixture.serve_with(&UNPUBLISHING).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(published(&fixture), "items others");
    fixture.sql("SELECT pg_drop_replication_slot('another')");
    until("the table is unpublished", async || published(&fixture) == "others").await;
    drop(serve);
}
