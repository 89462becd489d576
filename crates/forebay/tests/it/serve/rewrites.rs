//! DDL that changes values without row changes in the stream: it replaces the shapes and ends open
//! streams. DDL that changes no value replaces no shape.

use super::support::{ServeFixture, ServeProcess, SseEvent, column_values, summarize};
use crate::wire::until;

const SHORT_LONG_POLL: [(&str, &str); 1] = [("FOREBAY_SERVE_LONG_POLL_MS", "1000")];

/// Runs DDL, and waits until the open stream of the shape ends and its reader gets a 409.
async fn expect_replaced(fixture: &ServeFixture, serve: &ServeProcess, table: &str, ddl: &str) {
    let shape = [("table", table)];
    let mut reader = serve.reader(&shape).await;
    let mut events = serve.events(&reader).await;
    fixture.sql(ddl);
    loop {
        match events.next().await {
            SseEvent::End => break,
            SseEvent::KeepAlive | SseEvent::Message(_) => {}
        }
    }
    reader.wait_for_refetch(serve).await;
}

#[tokio::test]
async fn rewriting_a_column_with_the_same_type_replaces_the_shape() {
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, amount int); INSERT INTO items VALUES (1, 5)",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    expect_replaced(&fixture, &serve, "items", "ALTER TABLE items ALTER amount TYPE int USING amount * 100")
        .await;
    assert_eq!(column_values(&serve, &[("table", "items")], "amount").await, ["500"]);
    // The new shape gets changes.
    let mut reader = serve.reader(&[("table", "items")]).await;
    fixture.sql("UPDATE items SET amount = 6");
    assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"]);
}

#[tokio::test]
async fn a_rewrite_also_ends_streams_of_a_waiting_instance() {
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, amount int); INSERT INTO items VALUES (1, 5)",
    );
    let writer = fixture.serve_with(&SHORT_LONG_POLL).await;
    let second = fixture.spawn(&SHORT_LONG_POLL);
    second.wait_for_health("waiting").await;
    writer.reader(&[("table", "items")]).await;
    let first = [("table", "items"), ("offset", "-1")];
    until("the second instance has the shape", async || second.get(&first).await.head.status == 200).await;
    let mut reader = second.reader(&[("table", "items")]).await;
    let mut events = second.events(&reader).await;
    fixture.sql("ALTER TABLE items ALTER amount TYPE int USING amount * 100");
    while events.next().await != SseEvent::End {}
    reader.wait_for_refetch(&second).await;
}

#[tokio::test]
async fn a_rewrite_while_the_server_is_down_is_detected_at_startup() {
    let fixture = ServeFixture::new(
        "CREATE TABLE items (id int PRIMARY KEY, amount int); INSERT INTO items VALUES (1, 5)",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut reader = serve.reader(&[("table", "items")]).await;
    serve.stop().await;
    fixture.sql("ALTER TABLE items ALTER amount TYPE int USING amount * 100");
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    reader.wait_for_refetch(&serve).await;
    assert_eq!(column_values(&serve, &[("table", "items")], "amount").await, ["500"]);
}

#[tokio::test]
async fn a_new_expression_of_a_generated_column_replaces_the_shape() {
    // Generated columns are in shapes since 18, and SET EXPRESSION exists since 17.
    let postgres = forebay_sandbox::Postgres::shared_version(18);
    let fixture = ServeFixture::on_postgres(
        postgres,
        "CREATE TABLE items (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
         INSERT INTO items VALUES (1)",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    assert_eq!(column_values(&serve, &[("table", "items")], "twice").await, ["2"]);
    expect_replaced(&fixture, &serve, "items", "ALTER TABLE items ALTER twice SET EXPRESSION AS (id * 3)")
        .await;
    assert_eq!(column_values(&serve, &[("table", "items")], "twice").await, ["3"]);
}

#[tokio::test]
async fn renaming_an_enum_label_replaces_every_shape_with_the_enum() {
    let fixture = ServeFixture::new(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN some_mood AS mood; CREATE TYPE pair AS (a int, b mood);
         CREATE TABLE plain (id int PRIMARY KEY, m mood); INSERT INTO plain VALUES (1, 'sad');
         CREATE TABLE arrays (id int PRIMARY KEY, m mood[]); INSERT INTO arrays VALUES (1, '{sad}');
         CREATE TABLE domains (id int PRIMARY KEY, m some_mood); INSERT INTO domains VALUES (1, 'sad');
         CREATE TABLE pairs (id int PRIMARY KEY, m pair[]); INSERT INTO pairs VALUES (1, '{\"(1,sad)\"}')",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let (mut before, tables) = ("sad".to_owned(), ["plain", "arrays", "domains", "pairs"]);
    for table in tables {
        let label = format!("for_{table}");
        expect_replaced(
            &fixture,
            &serve,
            table,
            &format!("ALTER TYPE mood RENAME VALUE '{before}' TO '{label}'"),
        )
        .await;
        for table in tables {
            // The other tables have no open stream; a request detects the change.
            until("the new label is served", async || {
                column_values(&serve, &[("table", table)], "m").await[0].contains(&label)
            })
            .await;
        }
        before = label;
    }
}

#[tokio::test]
async fn a_new_attribute_of_a_composite_type_replaces_the_shape() {
    let fixture = ServeFixture::new(
        "CREATE TYPE point2 AS (x int, y int); CREATE TABLE items (id int PRIMARY KEY, at point2);
         INSERT INTO items VALUES (1, '(1,2)')",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    expect_replaced(&fixture, &serve, "items", "ALTER TYPE point2 ADD ATTRIBUTE z int").await;
    assert_eq!(column_values(&serve, &[("table", "items")], "at").await, ["(1,2,)"]);
}

#[tokio::test]
async fn ddl_that_changes_no_value_replaces_no_shape() {
    let fixture = ServeFixture::new(
        "CREATE TYPE mood AS ENUM ('sad');
         CREATE TABLE items (id int PRIMARY KEY, amount int, m mood); INSERT INTO items VALUES (1, 5, 'sad')",
    );
    let serve = fixture.serve_with(&SHORT_LONG_POLL).await;
    let mut reader = serve.reader(&[("table", "items")]).await;
    let mut events = serve.events(&reader).await;
    let handle = reader.handle.clone();
    let harmless = [
        "VACUUM FULL items",
        "CLUSTER items USING items_pkey",
        "ANALYZE items",
        "ALTER TABLE items ALTER amount SET DEFAULT 7",
        "ALTER TABLE items ALTER amount SET STATISTICS 10",
        "VACUUM FULL items",
        "ALTER TYPE mood ADD VALUE 'happy'",
        "ALTER TABLE items ALTER amount DROP DEFAULT",
    ];
    for (number, ddl) in harmless.into_iter().enumerate() {
        fixture.sql(ddl);
        fixture.sql(&format!("UPDATE items SET amount = {}", 100 + number));
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), ["update 1"], "{ddl}");
        assert_eq!(reader.handle, handle, "{ddl}");
        let (messages, _) = events.until_up_to_date().await;
        assert_eq!(summarize(&messages), ["update 1"], "{ddl}");
    }
}
